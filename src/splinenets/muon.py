"""Muon for whole networks: an optimizer for loops of one's own, and for recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Groups = list[dict[str, Any]]
MIXED = "match_rms_adamw"  # of torch's: one learning rate then serves both optimizers


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for weights and knots, AdamW for embeddings, biases and norms.

    torch's own Muon takes matrices alone. Here weights of convolutions are matrices with a row for each filter, and
    knots have a row for each filter of each knot. One learning rate serves all; it may follow any of torch's schedules.

        net           all of its parameters are moved, when they have a gradient
        lr            0.01 to 0.04 with batch norm, 0.005 to 0.02 without
        weight_decay  of weights and knots; the rest has none
        groups        what recipes pass: parameters as ``parameter_groups`` gives them

    Networks in DDP are fine; FSDP, which puts other parameters in the place of a network's own, is not supported.

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
        knots = {p for name, p in net.named_parameters() if name.endswith(("knots", "knots.original"))}
        for group in self.param_groups:
            rows = [p.numel() // p.shape[-1] if p in knots else len(p) for p in group["params"] if p.dim()]
            group["rows"] = rows if group["weights"] else None
        self._build()

    def _build(self) -> None:
        """The optimizers inside, from groups alone: copies and loaded states have nothing else."""
        self.known = {p for group in self.param_groups for p in group["params"]}
        self.matrices: dict[Tensor, nn.Parameter] = {}
        self.rules: list[torch.optim.Optimizer] = []
        for group in self.param_groups:
            params, own = group["params"], {"lr": group["lr"], "weight_decay": group["weight_decay"]}
            if group["rows"] is None:
                self.rules.append(torch.optim.AdamW(params, **own))
                continue
            for p, rows in zip(params, group["rows"], strict=True):
                self.matrices[p] = nn.Parameter(p.detach().reshape(rows, -1))
            inside = [self.matrices[p] for p in params]
            self.rules.append(torch.optim.Muon(inside, momentum=group["momentum"], adjust_lr_fn=MIXED, **own))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on from a copy, a pickle or a state that was loaded."""
        super().__setstate__(state)
        self._build()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: which parameters are knots is told by the network alone."""
        if "rules" in self.__dict__:
            raise ValueError("Muon takes no further parameters: make another for the network, sn.Muon(net)")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not all(p in self.known for group in self.param_groups for p in group["params"]):
            raise ValueError("Muon's parameters were replaced by others, as FSDP does: it needs the network's own")
        for p, matrix in self.matrices.items():
            matrix.data = p.detach().reshape(matrix.shape)  # in the same memory, unless channels come last
            matrix.grad = None if p.grad is None else p.grad.reshape(matrix.shape)
        moved = []
        for group, rule in zip(self.param_groups, self.rules, strict=True):
            (own,) = rule.param_groups
            own |= {key: group[key] for key in ("lr", "weight_decay", "momentum") if key in own}
            some = [p for p in group["params"] if p.grad is not None]
            for p in some:  # what is remembered is ours: whoever looks after states may have put others in their place
                rule.state[self.matrices.get(p, p)] = self.state[p]
            rule.step()
            moved += some
        for p in moved:
            if p in self.matrices and not p.is_contiguous():
                p.copy_(self.matrices[p].view_as(p))
        for matrix in self.matrices.values():
            matrix.grad = None
        torch.autograd.graph.increment_version(moved)  # matrices share memory, but autograd does not see it
        return loss


def parameter_groups(net: nn.Module, decay: float, share: float | None = None) -> Groups:
    """Parameters that learn by what sets them apart; only "weights", which knots are too, are decayed.

    Biases, normalisations and embeddings are not, nor are the matrices that match inherited positions: these are
    logits, and decay would make every row an average. ``share`` is the part of the learning rate by which offsets from
    a shared weight learn; they had one of their own before version 0.2.
    """
    embeddings = {m.weight for m in net.modules() if isinstance(m, nn.Embedding)}
    named = {name: p for name, p in net.named_parameters() if p.numel()}
    groups: dict[tuple[bool, float], list[Tensor]] = {}
    for name, parameter in named.items():
        weights = parameter.dim() > 1 and ".matching." not in f".{name}" and parameter not in embeddings
        offsets = name.endswith("knots") and name.removesuffix("knots") + "weight" in named
        part = share if offsets and share is not None else 1.0
        groups.setdefault((weights, part), []).append(parameter)
    return [
        {"params": some, "weight_decay": decay if weights else 0.0, "share": part, "weights": weights}
        for (weights, part), some in groups.items()
    ]
