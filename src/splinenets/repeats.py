"""Gradient checkpointing calls layers once more, one by one, in the backward pass: which call of a network is it?"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn

MOST_CALLS = 32  # calls of a network whose backward pass may be yet to come


class Call:
    """What is remembered of one call of a network."""

    def __init__(self) -> None:
        self.learning = torch.is_grad_enabled()
        self.parents: dict[nn.Module, tuple[Tensor | None, int]] = {}
        self.given: dict[str, Tensor] | None = None
        self.read: dict[nn.Module, Tensor] = {}  # by what a layer's input is known again, (N,)
        self.repeated: set[nn.Module] = set()  # layers that were called once more

    def differs(self, other: Call, layer: nn.Module) -> bool:
        """Whether a layer was told something else in another call."""
        own, others = self.parents.get(layer, (None, 1))[0], other.parents.get(layer, (None, 1))[0]
        if own is None or others is None:
            return own is not others or self.given is not other.given
        return not torch.equal(own, others) or self.given is not other.given


class Memory:
    """The last calls of a network, as far as they may be repeated."""

    def __init__(self) -> None:
        self.past: deque[Call] = deque(maxlen=MOST_CALLS)
        self.unread: set[nn.Module] = set()  # layers of which nothing was kept to know them again by

    def note(self, layer: nn.Module, x: Tensor, call: Call) -> None:
        """A layer is given something in a call of its network."""
        learning = torch.is_grad_enabled()
        if learning and _may_be_repeated():
            call.read[layer] = _sums(x)
        elif not learning and call.learning and not torch.compiler.is_compiling():
            self.unread.add(layer)

    def find(self, layer: nn.Module, x: Tensor, *, matters: bool) -> Call | None:
        """The call in which a layer was given this, or an error if it matters and nobody can tell."""
        given = _sums(x)
        known = [call for call in reversed(self.past) if layer in call.read]
        fitting = [call for call in known if _alike(call.read[layer], given)]
        fitting = [call for call in fitting if layer not in call.repeated] or fitting[:1]
        lost = not fitting and (known or layer in self.unread)
        if matters and (lost or any(fitting[0].differs(call, layer) for call in fitting[1:])):
            raise RuntimeError(
                "gradient checkpointing repeats a layer whose positions in that call are not known any more: set "
                "use_reentrant=False, give each call other inputs, "
                f"and make at most {MOST_CALLS} before a backward pass"
            )
        if fitting:
            fitting[0].repeated.add(layer)
        return fitting[0] if fitting else None


def recomputing() -> bool:
    """Whether this is a backward pass, where layers are called only to be computed once more."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _may_be_repeated() -> bool:
    """Whether gradient checkpointing may be at work, by its hooks; torch.compile has a way of its own."""
    return not torch.compiler.is_compiling() and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _sums(x: Tensor) -> Tensor:
    """One number for each sample, to know a batch again by: (N, ...) -> (N,)."""
    return x.detach().float().sum(tuple(range(1, x.dim())))


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=1e-4, atol=1e-6, equal_nan=True)
