"""What the ranks of a run tell each other, beside gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.distributed
from accelerate import Accelerator, PartialState
from torch import Tensor

Ranks: TypeAlias = Accelerator | PartialState


def share_bytes(ranks: Ranks, content: bytes) -> bytes:
    """What the first rank has, on every rank; so that only the first machine needs the run's folder."""
    if ranks.num_processes == 1:
        return content
    length = torch.tensor([len(content)], device=ranks.device)
    torch.distributed.broadcast(length, 0)
    packed = torch.zeros(int(length), dtype=torch.uint8, device=ranks.device)
    if ranks.is_main_process and content:
        packed.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    torch.distributed.broadcast(packed, 0)
    return packed.cpu().numpy().tobytes()


def on_main(ranks: Ranks, work: Callable[[], bytes]) -> bytes:
    """Do something on the first rank and tell all ranks the outcome; where it fails, all ranks stop."""
    outcome, failure = b"", None
    if ranks.is_main_process:
        try:
            outcome = b"+" + work()
        except (ValueError, OSError) as error:
            failure, outcome = error, b"-"
    outcome = share_bytes(ranks, outcome)
    if failure is not None:
        raise failure
    if outcome[:1] == b"-":
        raise SystemExit(2)  # the first rank says why
    return outcome[1:]


def total(ranks: Ranks, tensor: Tensor) -> Tensor:
    """The sum over all ranks; no gradient."""
    if ranks.num_processes > 1:
        torch.distributed.all_reduce(tensor)
    return tensor


def part(ranks: Ranks) -> None:
    """The end of a process that had company: nobody leaves while others still talk."""
    if torch.distributed.is_initialized():
        ranks.wait_for_everyone()
        torch.distributed.destroy_process_group()
