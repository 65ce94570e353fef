"""From a network to a checked file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from ..conditions import Conditions
from ..conversion import copy_network
from ..deployment import deploy
from ..files import Json, replacing
from ..layers import SplineLayer
from ..tracing import logits_of
from .capture import IMAGES, LOGITS, Inputs, conditions_of, naming_layers
from .formats import VERSION, Exported, runtime_of

PURPOSES = {"latency": False, "throughput": True}  # whether a batch of any size can be asked for
BATCHES = (1, 2, 3, 17, 64)
FEWEST = 32  # samples on which a file is compared with its network
NOISE = 8  # times the network's own rounding errors is what a file may differ by
HARDEST = 64  # samples on which those are looked at: where the file differs most


def export(
    net: nn.Module,
    example: Tensor | Sequence[object],
    path: str | PathLike[str],
    *,
    to: str | None = None,
    purpose: str = "latency",
    knots: str = "float32",
    tolerance: float = 1e-4,
    labels: Tensor | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Exported:
    """Write a network for another runtime, after loading it back and comparing it with the original on the example.

    Returns the network as it was loaded back. Its metadata also has the largest "difference" of a logit from the
    network in float32, and how many answers are "agreeing" with it, both on the example; with labels also the
    "accuracy" of the "network" and of the "file".

    example    images (N, C, H, W), as the network sees them, or (images, condition) for one that is told something;
               the more there are, the stricter the check. With few, noise like them is checked too
    to         "onnx", "onnxruntime", "pt2" or "native"; None: what the file's name ends with, .onnx for example
    purpose    "latency": one image at a time, as fast as possible; "throughput": batches of any size
    knots      "float32", "bf16" or "int8": how knots are stored; the file must then be what the rounded network is
    tolerance  by how much a logit may differ, times the largest logit if that is above 1; a network whose own rounding
               errors (float32 against float64) are larger may differ by a small multiple of them
    labels     the classes of the example, (N,)
    metadata   what else to store in the file, as JSON, beside what is always there: see ``Exported``

    Examples:
        >>> net = sn.convert(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)), "D(5)-C-R4")
        >>> images = torch.randn(32, 1, 28, 28)
        >>> served = sn.export(net, images, "net.pt2", purpose="throughput")  # sn.load_export("net.pt2") later
        >>> served(images).shape
        torch.Size([32, 10])
    """
    path = Path(path)
    runtime = runtime_of(path, to)
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}, choose from {', '.join(PURPOSES)}")
    net = copy_network(net).cpu().float().eval()
    net.register_forward_hook(only_logits)
    batch = _read_example(net, example)
    _check_path(path)
    deployed = deploy(net, batch.arguments(), knots=knots)
    described = {
        **(metadata or {}),
        "splinenets": VERSION,
        "purpose": purpose,
        "knots": knots,
        "input": list(batch.images.shape[1:]),
        "layers": {name: str(m.spec) for name, m in net.named_modules() if isinstance(m, SplineLayer)},
    }
    if batch.conditions:
        described["conditions"] = conditions_of(net).described()
    text = json.dumps(described)  # before any work: what JSON does not know is an error of the caller
    tested = _enough(batch, conditions_of(net))
    plain = answers(net, tested)
    rounded, exact = (plain, net) if knots == "float32" else (answers(deployed, tested), copy_network(deployed))
    with naming_layers(deployed) as obstacles:
        content = runtime.dump(deployed, batch, PURPOSES[purpose], text, obstacles)
    exported = runtime.load(content, 1)
    found = compare(exported, exact, tested, rounded, tolerance)
    with replacing(path) as file:
        file.write(content)
    count = len(batch)
    return Exported({**exported.metadata, **report(found[:count], plain[:count], labels)}, exported.forward)


def report(found: Tensor, expected: Tensor, labels: Tensor | None) -> Json:
    """How a file's answers stand to the network's: (N, classes), (N, classes), (N,)."""
    chosen, wanted = found.argmax(1), expected.argmax(1)
    about: Json = {
        "difference": distance(found, expected).max().item(),
        "agreeing": int((chosen == wanted).sum()),
    }
    if labels is not None:
        right = {"network": wanted == labels.cpu(), "file": chosen == labels.cpu()}
        about["accuracy"] = {name: each.float().mean().item() for name, each in right.items()}
    return about


def only_logits(net: nn.Module, args: object, output: object) -> Tensor:
    """A forward hook: the one tensor that a file answers with."""
    if isinstance(answer := logits_of(output), Tensor):
        return answer
    got = type(output).__name__
    raise ValueError(f"an exported network answers with a tensor, or with something that has logits, not with {got}")


@torch.no_grad()
def answers(net: nn.Module, batch: Inputs, size: int = 250) -> Tensor:
    """What a network answers: (N, classes)."""
    return torch.cat([part.call(net) for part in batch.split(size)])


def distance(found: Tensor, expected: Tensor) -> Tensor:
    """The largest difference of a logit, for each sample; none where both are the same infinity or no number: (N,)."""
    same = (found == expected) | (found.isnan() & expected.isnan())
    return torch.where(same, 0, found - expected).abs().flatten(1).amax(1)


def compare(exported: Exported, net: nn.Module, batch: Inputs, expected: Tensor, tolerance: float) -> Tensor:
    """What a file answers, (N, classes); an error if that is not what the network answers."""
    batches = BATCHES if PURPOSES[exported.metadata["purpose"]] else (1,)
    found = torch.cat([part.call(exported) for part in _cut(batch, batches)])
    difference = distance(found, expected)
    allowed, reason = tolerance * max(1.0, expected.abs().max().item()), ""
    if not bool((difference <= allowed).all()):
        noise = rounding(net, batch, expected, difference)
        allowed = max(allowed, NOISE * noise)
        reason = f" (the network in float32 differs from itself in float64 by {noise:.2g}, of which {NOISE} times pass)"
    if not bool((difference <= allowed).all()):
        raise ValueError(
            f"the export differs from the network by {difference.max().item():.2g}, more than {allowed:.2g}{reason}: "
            "not written"
        )
    chosen = expected.gather(1, found.argmax(1, keepdim=True)).squeeze(1)
    if (expected.amax(1) - chosen > 2 * allowed).any():
        raise ValueError("the export gives another answer than the network: not written")
    return found


def rounding(net: nn.Module, batch: Inputs, expected: Tensor, difference: Tensor) -> float:
    """By how much the network's answers differ from its own in float64, where the file differs most.

    A deep and narrow network, or a long chain of decisions, makes more of a rounding error than others do.
    """
    hardest = difference.argsort(descending=True, stable=True)[:HARDEST]
    exact = answers(copy_network(net).double(), batch[hardest].each(Tensor.double), size=16)
    return distance(expected[hardest].double(), exact).max().item()


def _read_example(net: nn.Module, example: Tensor | Sequence[object]) -> Inputs:
    conditions = conditions_of(net)
    if wrong := {IMAGES, LOGITS} & set(conditions):
        raise ValueError(f"a condition of an exported network cannot be called {wrong.pop()!r}, its input's name")
    images, *more = example if isinstance(example, tuple | list) else (example,)
    if not isinstance(images, Tensor) or images.dim() < 2 or not len(images):
        got = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"an example is a batch of images (N, C, H, W), got {got}")
    return Inputs.of(conditions, images.detach().cpu().float().contiguous(), *more)


def _enough(batch: Inputs, conditions: Conditions) -> Inputs:
    """At least ``FEWEST`` samples: an example, and noise with the mean and deviation of each of its channels.

    One image says little, and a blank one nothing; conditions are anywhere in their range.
    """
    missing, images = FEWEST - len(batch), batch.images
    if missing <= 0:
        return batch
    random = torch.Generator().manual_seed(0)
    others = [dim for dim in range(images.dim()) if dim != 1]
    mean, deviation = images.mean(others, keepdim=True), images.std(others, correction=0, keepdim=True)
    noise = torch.randn(missing, *images.shape[1:], generator=random)
    anywhere = {
        name: conditions.at(name, torch.rand(missing, values.shape[1], generator=random))
        for name, values in batch.conditions.items()
    }
    return batch.join(Inputs(mean + noise * torch.where(deviation > 0, deviation, 1), anywhere))


def _cut(batch: Inputs, sizes: tuple[int, ...]) -> list[Inputs]:
    """All samples, in batches of these sizes, over and over."""
    parts: list[Inputs] = []
    while len(batch):
        size = sizes[len(parts) % len(sizes)]
        parts.append(batch[:size])
        batch = batch[size:]
    return parts


def _check_path(path: Path) -> None:
    """A file that cannot be written is known before any work is done."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, and an export is a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    with replacing(path.with_name(f".{path.name}.probe")):
        pass
    path.with_name(f".{path.name}.probe").unlink()
