"""The ranks of a run: how they meet, in which precision they compute, and what they tell each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from torch import Tensor

Ranks: TypeAlias = Accelerator | PartialState


def resolve_precision(precision: str) -> str:
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
    if not PartialState._shared_state:
        meet_afresh()
    return PartialState(cpu=not torch.accelerator.is_available())


def meet_afresh() -> None:
    """Keep workers that torchrun has restarted from the addresses of those that died.

    torchrun's store outlives its workers and still holds these; workers that find them wait for the dead or give up. On
    one machine all workers know how often they were restarted, and that sets the new addresses apart. Machines count
    for themselves: docs/distributed.md says what to do there.
    """
    given = os.environ
    restarts = int(given.get("TORCHELASTIC_RESTART_COUNT", "0"))
    one_machine = given.get("WORLD_SIZE") == given.get("LOCAL_WORLD_SIZE")
    if restarts and one_machine and given.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        port = int(given["MASTER_PORT"])
        store = dist.TCPStore(given["MASTER_ADDR"], port, is_master=False)  # type: ignore[attr-defined]
        dist.init_process_group(
            dist.get_default_backend_for_device(device),
            store=dist.PrefixStore(f"restart {restarts}", store),  # type: ignore[attr-defined]
            rank=int(given["RANK"]),
            world_size=int(given["WORLD_SIZE"]),
        )


def accelerate_with(precision: str, trackers: Sequence[str] = (), folder: str | None = None) -> Accelerator:
    """An Accelerator of this precision; joins the other ranks if a launcher started several."""
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    mixed = "bf16" if precision == "bf16" else "no"
    return Accelerator(
        mixed_precision=mixed, cpu=ranks().device.type == "cpu", log_with=list(trackers) or None, project_dir=folder
    )


def share_bytes(ranks: Ranks, content: bytes) -> bytes:
    """What the first rank has, on every rank; so that only the first machine needs the run's folder."""
    if ranks.num_processes == 1:
        return content
    length = torch.tensor([len(content)], device=ranks.device)
    dist.broadcast(length, 0)
    packed = torch.zeros(int(length), dtype=torch.uint8, device=ranks.device)
    if ranks.is_main_process and content:
        packed.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    dist.broadcast(packed, 0)
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
        dist.all_reduce(tensor)
    return tensor


def part(ranks: Ranks) -> None:
    """The end of a process that had company: nobody leaves while others still talk."""
    if dist.is_initialized():
        ranks.wait_for_everyone()
        dist.destroy_process_group()
