"""Muon for whole networks: an optimizer for loops of one's own, and for recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Groups = list[dict[str, Any]]
MIXED = "match_rms_adamw"  # of torch's: one learning rate then serves both optimizers


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for weights and knots, AdamW for biases, norms and whatever else is not a weight.

    torch's own Muon takes matrices alone. Here weights of convolutions are matrices with a row for each filter, and
    knots have a row for each filter of each knot. One learning rate serves all; it may follow any of torch's schedules.

        net           every parameter of it that learns is moved
        lr            0.01 to 0.04 with batch norm, 0.005 to 0.02 without
        weight_decay  of weights and knots; the rest has none

    >>> import torch, splinenets as sn
    >>> net = sn.convert(sn.models.lenet(4), "D(2)-C-R3", example=torch.randn(8, 1, 28, 28))
    >>> optimizer = sn.Muon(net, lr=0.02)
    >>> loss = net(torch.randn(8, 1, 28, 28)).square().mean()
    >>> loss.backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        net: nn.Module,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        groups: Groups | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise TypeError(
                f"Muon needs the network, to know which of its parameters are knots, got {type(net).__name__}"
            )
        groups = parameter_groups(net, weight_decay) if groups is None else groups
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        knots = {p for name, p in net.named_parameters() if name.endswith("knots")}
        self.matrices: dict[Tensor, nn.Parameter] = {}
        for group in self.param_groups:
            for p in group["params"] if group["weights"] else ():
                rows = p.numel() // p.shape[-1] if p in knots else len(p)
                self.matrices[p] = nn.Parameter(p.new_empty(rows, p.numel() // rows))
        self.rules = [self._rule(group) for group in self.param_groups]
        self._remember()

    def _rule(self, group: dict[str, Any]) -> torch.optim.Optimizer:
        """What moves a group."""
        if not group["weights"]:
            return torch.optim.AdamW(group["params"])
        return torch.optim.Muon([self.matrices[p] for p in group["params"]], adjust_lr_fn=MIXED)

    def _remember(self) -> None:
        """Let the optimizers inside remember what this one does."""
        for group, rule in zip(self.param_groups, self.rules, strict=True):
            for p in group["params"]:
                rule.state[self.matrices.get(p, p)] = self.state[p]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave."""
        super().load_state_dict(state_dict)
        self._remember()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p, matrix in self.matrices.items():
            matrix.data = p.detach().reshape(matrix.shape)  # in the same memory, unless channels come last
            matrix.grad = None if p.grad is None else p.grad.reshape(matrix.shape)
        for group, rule in zip(self.param_groups, self.rules, strict=True):
            (own,) = rule.param_groups
            own |= {key: group[key] for key in ("lr", "weight_decay", "momentum") if key in own}
            rule.step()
        for p, matrix in self.matrices.items():
            matrix.grad = None
            if not p.is_contiguous():
                p.copy_(matrix.view_as(p))
        return loss


def parameter_groups(net: nn.Module, decay: float, share: float | None = None) -> Groups:
    """Parameters that learn by what sets them apart; only "weights", which knots are too, are decayed.

    Biases and normalisations are not, nor are the matrices that match inherited positions: these are logits, and decay
    would make every row an average. ``share`` is the part of the learning rate by which offsets from a shared weight
    learn; they had one of their own before version 0.2.
    """
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    groups: dict[tuple[bool, float], list[Tensor]] = {}
    for name, parameter in named.items():
        weights = parameter.dim() > 1 and ".matching." not in name
        offsets = name.endswith("knots") and name.removesuffix("knots") + "weight" in named
        part = share if offsets and share is not None else 1.0
        groups.setdefault((weights, part), []).append(parameter)
    return [
        {"params": some, "weight_decay": decay if weights else 0.0, "share": part, "weights": weights}
        for (weights, part), some in groups.items()
    ]
