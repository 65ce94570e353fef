"""Example inputs: a tensor, a tuple of arguments or a dict of keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .path import evaluating


def run_example(net: nn.Module, example: Any) -> Any:
    """Call a network with an example, in eval mode and without gradients."""
    with evaluating(net), torch.no_grad():
        return call(net, example)


def call(net: nn.Module, example: Any) -> Any:
    """Call a network with an example."""
    if isinstance(example, Mapping):
        return net(**example)
    return net(*example) if isinstance(example, tuple | list) else net(example)


def describe(example: Any) -> str:
    """An example in a few words, for messages."""
    if isinstance(example, Tensor):
        return f"of shape {tuple(example.shape)}"
    if isinstance(example, Mapping):
        return "with " + ", ".join(f"{k} {describe(v)}" for k, v in example.items())
    if isinstance(example, tuple | list):
        return "with " + ", ".join(describe(v) for v in example)
    return f"of type {type(example).__name__}"
