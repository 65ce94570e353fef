"""What moves weights: torch's optimizers behind one face, which a checkpoint can ask what they remember."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .recipe import Recipe


class Group(NamedTuple):
    """Parameters that are moved alike."""

    named: dict[str, nn.Parameter]
    decay: float
    share: float  # of the learning rate
    weights: bool  # and knots; not biases, normalisations and the like


class Mover:
    """One or two of torch's optimizers that share out a network's parameters.

    matrices  parameter -> the matrix that an optimizer moves in its place, in the same memory
    """

    def __init__(self, rules: Iterable[torch.optim.Optimizer], matrices: dict[Tensor, Tensor] | None = None) -> None:
        self.rules, self.matrices = list(rules), matrices or {}
        self.param_groups = [group for rule in self.rules for group in rule.param_groups]
        self.rule_of = {p: rule for rule in self.rules for group in rule.param_groups for p in group["params"]}

    def memory(self, parameter: Tensor) -> dict[str, Any]:
        """What is remembered of a parameter from step to step."""
        moved = self.matrices.get(parameter, parameter)
        return self.rule_of[moved].state[moved] if moved in self.rule_of else {}

    def zero_grad(self) -> None:
        """Forget gradients."""
        for parameter in {*self.rule_of, *self.matrices}:
            parameter.grad = None

    def step(self) -> None:
        """Move all parameters."""
        for parameter, matrix in self.matrices.items():
            matrix.grad = None if parameter.grad is None else parameter.grad.reshape(matrix.shape)
        for rule in self.rules:
            rule.step()


def build_optimizer(recipe: Recipe, net: nn.Module) -> Mover:
    """The optimizer of a recipe for all parameters that learn. A group has its "share" of the learning rate."""
    groups, rate, momentum = parameter_groups(recipe, net), recipe.learning_rate, recipe.momentum
    if recipe.optimizer == "muon":
        return muon(recipe, groups)
    if recipe.optimizer == "adamw":
        return Mover([torch.optim.AdamW(_listed(groups), lr=rate)])
    nesterov = recipe.optimizer == "nesterov"
    return Mover([torch.optim.SGD(_listed(groups), lr=rate, momentum=momentum, nesterov=nesterov)])


def parameter_groups(recipe: Recipe, net: nn.Module) -> list[Group]:
    """Parameters by what sets them apart; only weights and knots are decayed.

    Biases and normalisations are not, nor are the matrices that match inherited positions: these are logits, and decay
    would make every row an average. Before version 0.2 offsets from a shared weight learned at a rate of their own.
    """
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    groups: dict[tuple[bool, float], dict[str, nn.Parameter]] = {}
    for name, parameter in named.items():
        weights = parameter.dim() > 1 and ".matching." not in name
        offsets = name.endswith("knots") and name.removesuffix("knots") + "weight" in named
        share = recipe.knots_share if offsets else None
        groups.setdefault((weights, 1.0 if share is None else share), {})[name] = parameter
    return [
        Group(some, recipe.weight_decay if weights else 0.0, share, weights)
        for (weights, share), some in groups.items()
    ]


def muon(recipe: Recipe, groups: list[Group]) -> Mover:
    """Muon for weights and knots, which it sees as matrices with a row for each filter; AdamW for the rest."""
    matrices: dict[Tensor, Tensor] = {
        p: nn.Parameter(p.detach().view(-1, p.shape[-1]) if name.endswith("knots") else p.detach().view(len(p), -1))
        for group in groups
        if group.weights
        for name, p in group.named.items()
    }
    moved = _listed(g for g in groups if g.weights)
    for group in moved:
        group["params"] = [matrices[p] for p in group["params"]]
    rate, alike = recipe.learning_rate, "match_rms_adamw"  # so that one rate serves both
    rules = [torch.optim.Muon(moved, lr=rate, momentum=recipe.momentum, adjust_lr_fn=alike)]
    rest = _listed(g for g in groups if not g.weights)
    return Mover([*rules, torch.optim.AdamW(rest, lr=rate)] if rest else rules, matrices)


def _listed(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """Groups as torch wants them."""
    return [{"params": list(g.named.values()), "weight_decay": g.decay, "share": g.share} for g in groups]
