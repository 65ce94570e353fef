"""What changes while a network trains, and its checkpoints. Nothing random is in them, and nothing is pickled.

Tensors are in one safetensors file, everything else and the SHA-256 of that file in a JSON file beside it. The JSON
file is written last, so a checkpoint is there from the moment that file bears its name. Both are written under another
name, put on disk and renamed; what is no longer wanted is removed after that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from ..files import DamagedError, check_fields, naming, read_sealed, replacing, write_sealed

FORMAT = 1
MODEL, AVERAGE = "model.", "average."  # how names of weights begin
# what optimizers remember of a parameter, in torch's words; momentum has a shorter name in checkpoints
REMEMBERED = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")
MEMORY = {"momentum_buffer": "momentum"}
# sums over the samples of the epoch so far: cross entropy, regulariser, right answers, samples
TOTALS = ("cross_entropy", "regularizer", "right", "samples")


class Best(TypedDict):
    """The step at whose end the test accuracy was highest; the balanced one, where classes are drawn equally often."""

    step: int
    accuracy: float


class _Younger(TypedDict, total=False):
    """What checkpoints of 0.1 have not."""

    metrics_sha256: str  # of as many bytes


class Standing(_Younger):
    """What a checkpoint holds beside tensors."""

    totals: list[float]
    best: Best | None
    warned: list[str]  # layers that ailed when health warned
    metrics_length: int  # bytes of metrics.jsonl


class Manifest(TypedDict):
    """The JSON file of a checkpoint."""

    step: int
    tensors: str  # the SHA-256 of the other file
    state: Standing


@dataclass(frozen=True)
class Checkpoint:
    """Where training stood after ``step`` steps: tensors, and plain values as JSON knows them."""

    step: int
    tensors: Mapping[str, Tensor]
    state: Standing


@dataclass
class State:
    """Weights, their average, momentum, the number of steps done, and what the metrics of later epochs depend on."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    average: nn.Module | None = None  # the network that follows the one that learns
    step: int = 0
    totals: list[float] = field(default_factory=lambda: [0.0] * len(TOTALS))
    best: Best | None = None
    warned: list[str] = field(default_factory=list)  # layers that ailed when health warned
    quantiles: list[dict[str, Tensor]] = field(default_factory=list)  # of positions, in the last epochs

    @property
    def outcome(self) -> nn.Module:
        """The network that is tested: the average, where there is one."""
        return self.net if self.average is None else self.average

    @torch.no_grad()
    def follow(self, kept: float) -> None:
        """Let the average keep this share of itself, and in the first steps less: then all weights so far count."""
        if self.average is None:
            return
        share = max(1 - kept, 1 / self.step)
        for own, new in zip(self.average.state_dict().values(), self.net.state_dict().values(), strict=True):
            own.lerp_(new, share) if own.is_floating_point() else own.copy_(new)

    def checkpoint(self, metrics_length: int, metrics_sha256: str) -> Checkpoint:
        """Everything, as tensors and plain values."""
        tensors = {f"{MODEL}{name}": tensor.clone() for name, tensor in self.net.state_dict().items()}
        if self.average is not None:
            tensors |= {f"{AVERAGE}{name}": tensor.clone() for name, tensor in self.average.state_dict().items()}
        for name, parameter in self.net.named_parameters():
            for kind, tensor in self.optimizer.state.get(parameter, {}).items():
                if tensor is not None:
                    tensors[f"{MEMORY.get(kind, kind)}.{name}"] = tensor
        for age, layers in enumerate(self.quantiles):
            tensors |= {f"quantiles.{age}.{name}": tensor for name, tensor in layers.items()}
        state = Standing(totals=self.totals, best=self.best, warned=self.warned, metrics_length=metrics_length)
        state["metrics_sha256"] = metrics_sha256
        return Checkpoint(self.step, tensors, state)

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> tuple[int, str | None]:
        """Go back to a checkpoint; the length of the metrics at that time, and their digest where it is known."""
        restore_weights(self.net, checkpoint)
        if self.average is not None:
            restore_weights(self.average, checkpoint, AVERAGE)
        for name, parameter in self.net.named_parameters():
            for kind in REMEMBERED:
                short = MEMORY.get(kind, kind)
                if (tensor := checkpoint.tensors.get(f"{short}.{name}")) is None:
                    continue
                if kind != "step" and tensor.numel() != parameter.numel():
                    raise ValueError(_of_another(checkpoint, f"{short}.{name} has shape {tuple(tensor.shape)}"))
                self.optimizer.state[parameter][kind] = tensor if kind == "step" else tensor.to(parameter.device)
        self.step, self.totals = checkpoint.step, list(checkpoint.state["totals"])
        self.best, self.warned = checkpoint.state["best"], list(checkpoint.state["warned"])
        self.quantiles = []
        for name, tensor in checkpoint.tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "quantiles":
                age, _, layer = rest.partition(".")
                if not re.fullmatch(r"\d{1,3}", age):
                    raise ValueError(_of_another(checkpoint, f"it holds {name!r}"))
                while len(self.quantiles) <= int(age):
                    self.quantiles.append({})
                self.quantiles[int(age)][layer] = tensor
        return checkpoint.state["metrics_length"], checkpoint.state.get("metrics_sha256")


def restore_outcome(net: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights that were tested: the average, where there is one."""
    averaged = any(name.startswith(AVERAGE) for name in checkpoint.tensors)
    restore_weights(net, checkpoint, AVERAGE if averaged else MODEL)


def restore_weights(net: nn.Module, checkpoint: Checkpoint, start: str = MODEL) -> None:
    """Load a checkpoint's weights into the network it was made of."""
    own = net.state_dict()
    weights = {n.removeprefix(start): t for n, t in checkpoint.tensors.items() if n.startswith(start)}
    for name, tensor in weights.items():
        if name in own and tensor.dtype != own[name].dtype:
            raise ValueError(_of_another(checkpoint, f"{name} is {tensor.dtype}, and should be {own[name].dtype}"))
    try:
        net.load_state_dict(with_versions(weights, net))
    except RuntimeError as error:
        raise ValueError(_of_another(checkpoint, str(error).splitlines()[-1].strip())) from None


def with_versions(weights: Mapping[str, Tensor], net: nn.Module) -> OrderedDict[str, Tensor]:
    """Weights from a file, with the versions of a network's modules: some have a way of loading that asks for them."""
    told = OrderedDict(weights)
    told._metadata = net.state_dict()._metadata  # type: ignore[attr-defined]
    return told


def _of_another(checkpoint: Checkpoint, reason: str) -> str:
    return f"the checkpoint of step {checkpoint.step} is that of another network: {reason}"


# On disk


def write(folder: Path, checkpoint: Checkpoint, keep: int = 2, also: int | None = None) -> None:
    """Add a checkpoint to the folder; then remove all but the last ``keep`` and that of the step ``also``."""
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, checkpoint)
        prune(folder, checkpoint.step, keep, also)


def prune(folder: Path, last: int, keep: int, also: int | None = None) -> None:
    """Remove what is neither one of the ``keep`` checkpoints up to the step ``last`` nor that of the step ``also``."""
    kept = [step for step in steps(folder) if step <= last][-keep:]
    wanted = {path for step in {*kept, also} - {None} for path in _paths(folder, step or 0)}
    for path in sorted(folder.iterdir()):  # a .json before its .safetensors: tensors alone are no checkpoint
        if path not in wanted and path.name.endswith((".json", ".safetensors", ".tmp")):
            path.unlink(missing_ok=True)


def tidy(folder: Path, last: Checkpoint, keep: int) -> None:
    """Remove what writing the last checkpoint would have removed, unless there is a newer one, which is damaged."""
    if steps(folder)[-1] == last.step:
        best = last.state["best"]
        with naming(folder):
            prune(folder, last.step, keep, best["step"] if best else None)


def steps(folder: Path) -> list[int]:
    """The steps of which there are checkpoints, damaged or not, oldest first."""
    stems = (path.stem for path in folder.glob("*.json"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def read(folder: Path, step: int) -> Checkpoint:
    """The checkpoint of a step; ``DamagedError`` unless it is, bit for bit, what was written."""
    data, manifest = _paths(folder, step)
    if not manifest.exists():
        raise DamagedError(f"{manifest} is missing")
    content = read_sealed(manifest)
    if content.get("format") != FORMAT:
        raise ValueError(f"{manifest} has format {content.get('format')}, this version of splinenets reads {FORMAT}")
    check_fields(content, Manifest, manifest)
    if len(content["state"]["totals"]) != len(TOTALS) or content["state"]["metrics_length"] < 0:
        raise DamagedError(f"{manifest} is damaged: its state is that of no run")
    try:
        packed = data.read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{data} is missing") from None
    if hashlib.sha256(packed).hexdigest() != content["tensors"]:
        raise DamagedError(f"{data} is damaged: it does not have the SHA-256 that {manifest.name} names")
    if content["step"] != step:
        raise DamagedError(f"{manifest} is that of step {content['step']}")
    try:
        return Checkpoint(step, load(packed), content["state"])
    except SafetensorError as error:
        raise DamagedError(f"{data} is damaged: {error}") from None


def read_last(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole, None if there never was one; says so when it passes over a damaged one."""
    damaged: list[str] = []
    for step in reversed(steps(folder)):
        try:
            checkpoint = read(folder, step)
        except DamagedError as error:
            damaged.append(str(error))
            note(f"WARNING: {error}; trying the checkpoint before it")
            continue
        if damaged:
            note(f"WARNING: fell back to the last good checkpoint, of step {step}")
        return checkpoint
    if damaged:
        raise DamagedError(f"{folder} has no checkpoint that is whole; the newest: {damaged[0]}")
    return None


def pack(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as bytes, to be sent to other ranks."""
    head = json.dumps({"step": checkpoint.step, "state": checkpoint.state}).encode()
    return len(head).to_bytes(8, "little") + head + save(dict(checkpoint.tensors))


def unpack(packed: bytes) -> Checkpoint:
    """The inverse of ``pack``."""
    end = 8 + int.from_bytes(packed[:8], "little")
    head = json.loads(packed[8:end])
    return Checkpoint(head["step"], load(packed[end:]), head["state"])


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    data, manifest = _paths(folder, checkpoint.step)
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()})
    if manifest.exists():
        if _whole(folder, checkpoint.step):  # stopped right after resuming: it is this one
            return
        manifest.unlink()  # damaged, from before a fall-back: it must not vouch for the new tensors
    try:
        with replacing(data) as file:
            file.write(content)
        digest = hashlib.sha256(content).hexdigest()
        write_sealed(
            manifest, {"format": FORMAT, "step": checkpoint.step, "tensors": digest, "state": checkpoint.state}
        )
    except BaseException:
        if not manifest.exists():
            data.unlink(missing_ok=True)
        raise


def _whole(folder: Path, step: int) -> bool:
    try:
        return read(folder, step).step == step
    except DamagedError:
        return False


def _paths(folder: Path, step: int) -> tuple[Path, Path]:
    return folder / f"{step:08d}.safetensors", folder / f"{step:08d}.json"
