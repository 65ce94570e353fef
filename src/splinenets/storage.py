"""Knots in fewer bytes: 16 bits, or 8 bits and a scale for each filter of each knot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class Storage(nn.Module):
    """A parametrisation: what is stored, and how to have the numbers again."""

    def forward(self, *stored: Tensor) -> Tensor:
        """Numbers again, float32."""
        raise NotImplementedError

    def right_inverse(self, values: Tensor) -> tuple[Tensor, ...]:
        """What to store."""
        raise NotImplementedError


class BFloat16(Storage):
    """The upper half of a float32."""

    def forward(self, *stored: Tensor) -> Tensor:
        """(...,), bf16 -> (...,), float32; in a network that was made float64, they are so already."""
        return stored[0].float() if stored[0].dtype == torch.bfloat16 else stored[0]

    def right_inverse(self, values: Tensor) -> tuple[Tensor, ...]:
        """(...,) -> (...,), bf16."""
        return (values.bfloat16(),)


class Int8(Storage):
    """Whole numbers from -127 to 127, and what one of them is worth in each row."""

    def forward(self, *stored: Tensor) -> Tensor:
        """(..., M), int8, and (..., 1) -> (..., M), float32."""
        codes, scale = stored
        return codes.float() * scale

    def right_inverse(self, values: Tensor) -> tuple[Tensor, ...]:
        """(..., M) -> (..., M), int8, and (..., 1)."""
        scale = values.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny * 128) / 127
        return (values / scale).round().to(torch.int8), scale


STORAGES: dict[str, type[Storage] | None] = {"float32": None, "bf16": BFloat16, "int8": Int8}


def stored(module: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """A parameter in the form in which it is kept: numbers (..., M), and their scale (..., 1) where they have one."""
    if not parametrize.is_parametrized(module, name):
        return module.get_parameter(name), None
    kept: Any = module.get_submodule(f"parametrizations.{name}")
    numbers, *scale = (getattr(kept, f"original{i}") for i in range(kept.ntensors))
    return numbers, scale[0] if scale else None


def store(module: nn.Module, name: str, kind: type[Storage]) -> None:
    """Keep a parameter in another form from now on."""
    getattr(module, name).requires_grad_(False)
    if not parametrize.is_parametrized(module, name):
        parametrize.register_parametrization(module, name, kind(), unsafe=True)


def storage_of(module: nn.Module, name: str) -> str:
    """The name of the form in which a parameter is kept."""
    if not parametrize.is_parametrized(module, name):
        return "float32"
    kept: Any = module.get_submodule(f"parametrizations.{name}")
    return next((word for word, kind in STORAGES.items() if kind is type(kept[0])), "")
