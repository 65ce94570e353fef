"""Which strategy a layer uses: by a rule on the CPU, by a measurement elsewhere, or the one the user asked for."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .fused import dtype_of, fused, why_not
from .mixing import Curves
from .operation import LinearMap, Operation
from .serving import asked, transformed
from .strategies import bank, grouped, single, unfold

Strategy = Callable[[Tensor, Tensor, Curves, Operation, Tensor | None], Tensor]
STRATEGIES: dict[str, Strategy] = {
    "single": single,
    "fused": fused,
    "grouped": grouped,
    "unfold": unfold,
    "bank": bank,
}
SAFE = ("grouped", "bank", "single")  # each needs less memory than the one before
FEW = 8  # samples up to which a linear layer is faster with weights of its own for each


class StrategyWarning(UserWarning):
    """A batch did not fit into memory and is computed another way."""


class Case(NamedTuple):
    """A layer and its batch, as far as the time depends on it."""

    operation: Operation
    device: torch.device
    numbers: torch.dtype
    learning: bool
    input: tuple[int, ...]
    knots: tuple[int, ...]
    splines: int
    degree: int


measured: dict[Case, tuple[str, ...]] = {}  # the order that was found for a case, for as long as the process lives


def compute(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """Apply to each sample the weights at its position: (N, ...), (N, S * dims) -> (N, ...)."""
    curves = curves.opened()
    names = choose(x, position, curves, operation, bias)
    for name, following in pairwise(names):
        try:
            return STRATEGIES[name](x, position, curves, operation, bias)
        except (MemoryError, RuntimeError) as error:  # noqa: PERF203
            if not out_of_memory(error):
                raise
            # Python shows a warning once for each place and text
            warnings.warn(
                f"a batch of {len(x)} does not fit into memory with the strategy {name!r}: trying {following!r}",
                StrategyWarning,
                stacklevel=2,
            )
    return STRATEGIES[names[-1]](x, position, curves, operation, bias)


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, as torch's allocators say it."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def choose(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> tuple[str, ...]:
    """The strategies for a batch, the best one first."""
    if x.shape[0] == 0:
        return ("bank",)  # no other one has an answer for an empty batch
    compiling = torch.compiler.is_compiling()
    name = asked(compiling=compiling)
    if name == "fused" and (reason := why_not(x, position, curves, operation, bias)):
        raise ValueError(f"the strategy 'fused' {reason}; 'auto' picks one that fits")
    if name not in ("auto", "measure"):
        return (name,)
    if compiling:
        return compiled_rule(x, position, curves, operation, bias)
    if name == "measure" or not (x.is_cpu or x.is_meta):
        return measure(x, position, curves, operation, bias)
    return rule(x, position, curves, operation, bias)


def rule(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> tuple[str, ...]:
    """What is fastest on a CPU, within 10% in 341 of 360 cases measured (docs/performance.md)."""
    if isinstance(operation, LinearMap):
        if x.shape[0] == 1:
            return ("single", "bank")
        few = x.shape[0] <= FEW and dtype_of(x) == torch.float32
        return SAFE if few else ("bank", "grouped", "single")
    if why_not(x, position, curves, operation, bias):
        return SAFE
    return ("fused", *SAFE)


def compiled_rule(
    x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None
) -> tuple[str, ...]:
    """The same for a graph, which may be asked for any batch size: only such weights as do not depend on it."""
    if not why_not(x, position, curves, operation, bias):
        return ("fused",)
    return ("single",) if x.shape[0] == 1 else ("bank",)


def measure(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> tuple[str, ...]:
    """Time all strategies on the first call of a case, and keep to what was found: the fastest first."""
    sizes = (tuple(x.shape), tuple(curves.knots.shape), curves.splines, curves.degree)
    case = Case(operation, x.device, dtype_of(x), torch.is_grad_enabled(), *sizes)
    if transformed() or type(x) is not Tensor or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return SAFE  # no time can be taken here
    if case not in measured:
        given = (x, position, curves, operation, bias)
        times = {name: seconds(name, *given) for name in candidates(*given)}
        measured[case] = tuple(sorted(times, key=lambda name: times[name]))
    return (*measured[case], *(name for name in SAFE if name not in measured[case]))


def candidates(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> list[str]:
    """The strategies worth timing: one sample after the other only pays for one."""
    names = ["fused"] if not why_not(x, position, curves, operation, bias) else []
    return [*names, "grouped", "unfold", "bank", *(["single"] if x.shape[0] == 1 else [])]


def seconds(name: str, x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> float:
    """The shorter of two times of a forward pass, and of the way back where gradients are wanted."""
    learning = torch.is_grad_enabled()

    def fresh(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(learning)

    own = curves._replace(knots=fresh(curves.knots), base=None if curves.base is None else fresh(curves.base))
    inputs = (fresh(x), fresh(position), own, operation, None if bias is None else fresh(bias))
    times = []
    for _ in range(3):  # the first one warms up
        began = time.perf_counter()
        try:
            with saved_tensors_hooks(lambda t: t, lambda t: t):  # not those of gradient checkpointing
                y = STRATEGIES[name](*inputs)
            if learning:
                y.backward(torch.ones_like(y))
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            return float("inf")
        if x.device.type != "cpu":
            torch.accelerator.synchronize(x.device)
        times.append(time.perf_counter() - began)
    return min(times[1:])
