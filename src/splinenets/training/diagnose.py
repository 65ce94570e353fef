"""Which layer went bad first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class DivergedError(ValueError):
    """Training cannot go on: the loss is not finite."""

    exit_code = 3


@torch.no_grad()
def first_bad_layer(net: nn.Module, images: Tensor) -> str:
    """Run a batch again and name the first layer whose weights or output are not finite."""
    found: list[str] = []
    names = {module: name for name, module in net.named_modules()}

    def watch(module: nn.Module, args: Any, output: Any) -> None:
        if found:
            return
        if not all(bool(p.isfinite().all()) for p in module.parameters(recurse=False)):
            found.append(f"the weights of layer {names[module]!r}")
        elif isinstance(output, Tensor) and not bool(output.isfinite().all()):
            inputs = [a for a in args if isinstance(a, Tensor)]
            if all(bool(a.isfinite().all()) for a in inputs):
                found.append(f"the output of layer {names[module]!r}")

    handles = [module.register_forward_hook(watch) for name, module in net.named_modules() if name]
    try:
        net(images)
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    return "the images" if not bool(images.isfinite().all()) else "the loss"
