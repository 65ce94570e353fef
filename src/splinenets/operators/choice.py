"""Which strategy a layer uses: the fastest for its shape, as measured, or the one the user asked for."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

from .bank import bank
from .fused import fused, obstacle
from .grouped import grouped
from .measured import Case, ranking
from .mixing import Curves
from .operation import LinearMap, Operation
from .single import single

Strategy = Callable[[Tensor, Tensor, Curves, Operation, Tensor | None], Tensor]
STRATEGIES: dict[str, Strategy] = {"single": single, "fused": fused, "grouped": grouped, "bank": bank}
SAFE = ("grouped", "bank", "single")  # where nothing was measured; each needs less memory than the one before


class StrategyWarning(UserWarning):
    """A batch did not fit into memory and is computed another way."""


class _Override(threading.local):
    name = "auto"


_override = _Override()


@contextmanager
def strategy(name: str) -> Iterator[None]:
    """Compute spline layers one way inside a with block: "auto", "single", "fused", "grouped" or "bank"."""
    if name != "auto" and name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}, choose from {['auto', *sorted(STRATEGIES)]}")
    before, _override.name = _override.name, name
    try:
        yield
    finally:
        _override.name = before


def compute(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """Apply to each sample the weights at its position: (N, ...), (N, S * dims) -> (N, ...)."""
    names = choose(x, curves, operation)
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


def choose(x: Tensor, curves: Curves, operation: Operation) -> tuple[str, ...]:
    """The strategies for a batch, the best one first."""
    samples = x.shape[0]
    if samples == 0:
        return ("bank",)  # no other one has an answer for an empty batch
    if _override.name != "auto":
        return (_override.name,)
    if torch.compiler.is_compiling():
        # a graph may be asked for any batch size, and only the bank's weights do not depend on it
        return ("single",) if samples == 1 else ("bank",)
    if x.device.type != "cpu":
        return SAFE
    names = ranking(describe(x, curves, operation))
    return names if "fused" not in names or not obstacle(x, curves, operation) else without_fused(names)


def without_fused(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same order where the kernel cannot serve."""
    return tuple(name for name in names if name != "fused")


def describe(x: Tensor, curves: Curves, operation: Operation) -> Case:
    """What a strategy's time depends on."""
    rows, filters, fan_in = curves.knots.shape
    linear = isinstance(operation, LinearMap)
    narrow = x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    return Case(
        kind="linear" if linear else "convolution",
        numbers="bfloat16" if narrow else "float32",
        learning=torch.is_grad_enabled(),
        samples=x.shape[0],
        filters=filters,
        fan_in=fan_in,
        places=x[0].numel() // x.shape[-1 if linear else 1],
        splines=curves.splines,
        knots=rows,
    )
