"""What moves weights in recipes: torch's optimizers, and Muon."""

from __future__ import annotations

import torch
from torch import nn

from ..muon import Muon, parameter_groups
from .recipe import Recipe


def build_optimizer(recipe: Recipe, net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a recipe for all parameters that learn. A group has its "share" of the learning rate."""
    groups = parameter_groups(net, recipe.weight_decay, recipe.knots_share)
    rate, momentum = recipe.learning_rate, recipe.momentum
    if recipe.optimizer == "muon":
        return Muon(net, rate, momentum, groups=groups)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate)
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=recipe.optimizer == "nesterov")
