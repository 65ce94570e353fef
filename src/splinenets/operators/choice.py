"""Which strategy a layer uses: the fastest for its shape, or the one the user asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .bank import bank
from .grouped import grouped
from .operation import LinearMap, Operation
from .single import single

Strategy = Callable[..., Tensor]
STRATEGIES: dict[str, Strategy] = {"single": single, "grouped": grouped, "bank": bank}


class _Override(threading.local):
    name = "auto"


_override = _Override()


@contextmanager
def strategy(name: str) -> Iterator[None]:
    """Compute spline layers one way inside a with block: "auto", "single", "grouped" or "bank"."""
    if name != "auto" and name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}, choose from {['auto', *sorted(STRATEGIES)]}")
    before, _override.name = _override.name, name
    try:
        yield
    finally:
        _override.name = before


def choose(samples: int, operation: Operation) -> Strategy:
    """The strategy for a batch of this many samples."""
    if samples == 0:
        return bank  # no other one has an answer for an empty batch
    if _override.name != "auto":
        return STRATEGIES[_override.name]
    if samples == 1:
        return single
    if isinstance(operation, LinearMap):
        return bank  # a matrix per sample costs more to write down than to multiply
    # a compiled graph may be asked for any batch size, and only the bank's weights do not depend on it
    return bank if torch.compiler.is_compiling() else grouped
