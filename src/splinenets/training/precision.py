"""In which precision to train, and the Accelerator that does it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState


def resolve(precision: str) -> str:
    """What "auto" means here: bf16 where the processor has instructions for it, because there it is faster.

    The rule looks at the processor, not at a clock, so that the same machine always decides alike. docs/training.md has
    the times behind it.
    """
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    has = torch.cpu.get_capabilities()
    return "bf16" if has.get("avx512_bf16") or has.get("amx_bf16") else "float32"


def ranks() -> PartialState:
    """Join the other ranks if a launcher started several; on processors too, where Accelerate wants to be told so."""
    return PartialState(cpu=not torch.accelerator.is_available())


def accelerate_with(precision: str, trackers: Sequence[str] = (), folder: str | None = None) -> Accelerator:
    """An Accelerator of this precision; joins the other ranks if a launcher started several."""
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    mixed = "bf16" if precision == "bf16" else "no"
    return Accelerator(
        mixed_precision=mixed, cpu=ranks().device.type == "cpu", log_with=list(trackers) or None, project_dir=folder
    )
