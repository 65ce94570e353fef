"""From a network to a checked file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..conversion import copy_network
from ..deployment import deploy
from ..files import replacing
from ..layers import SplineLayer
from .capture import naming_layers
from .formats import Exported, runtime_of

PURPOSES = {"latency": False, "throughput": True}  # whether a batch of any size can be asked for
BATCHES = (1, 2, 3, 17, 64)


def export(
    net: nn.Module,
    example: Tensor,
    path: str | PathLike[str],
    *,
    to: str | None = None,
    purpose: str = "latency",
    knots: str = "float32",
    tolerance: float = 1e-4,
    metadata: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a network for another runtime, after loading it back and comparing it with the original on the example.

    What comes back is the network as it was loaded; its metadata also has the largest "difference" of a logit, and how
    many answers are "agreeing": all, unless two classes are as close as the tolerance.

    example    images (N, C, H, W), as the network sees them; the more there are, the stricter the check
    to         "onnx", "pt2" or "native"; None: what the file's name ends with, .onnx, .pt2 or .native
    purpose    "latency": one image at a time, as fast as can be; "throughput": batches of any size
    knots      "float32", "bf16" or "int8": how knots are stored; the check then compares with rounded knots
    tolerance  by how much a logit may differ, times the largest logit if that is above 1
    metadata   what shall travel in the file, as JSON knows it, beside what is always there: see ``Exported``
    """
    path = Path(path)
    runtime = runtime_of(path, to)
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}, choose from {list(PURPOSES)}")
    if example.dim() < 2 or not len(example):
        raise ValueError(f"an example is a batch of images (N, C, H, W), got shape {tuple(example.shape)}")
    _check_path(path)
    example = example.detach().cpu().float()
    net = copy_network(net).cpu().float().eval()
    deployed = deploy(net, example, knots=knots)
    described = {
        **(metadata or {}),
        "splinenets": 1,
        "purpose": purpose,
        "knots": knots,
        "input": list(example.shape[1:]),
        "layers": {name: str(m.spec) for name, m in net.named_modules() if isinstance(m, SplineLayer)},
    }
    text = json.dumps(described)  # before any work: what JSON does not know is an error of the caller
    reference = net if knots == "float32" else deployed
    with torch.no_grad():
        expected = torch.cat([reference(part) for part in example.split(250)])
    with naming_layers(deployed) as obstacles:
        content = runtime.dump(deployed, example, PURPOSES[purpose], text, obstacles)
    exported = runtime.load(content, 1)
    try:
        difference, agreeing = compare(exported, example, expected, tolerance)
    except ValueError as error:
        raise ValueError(f"{error}; {_noise(reference, example, expected)}") from None
    with replacing(path) as file:
        file.write(content)
    return Exported({**exported.metadata, "difference": difference, "agreeing": agreeing}, exported.forward)


def compare(exported: Exported, images: Tensor, expected: Tensor, tolerance: float) -> tuple[float, int]:
    """The largest difference of a logit, and how many answers agree; more than the tolerance is an error."""
    batches = BATCHES if PURPOSES[exported.metadata["purpose"]] else (1,)
    found = torch.cat([exported(part) for part in _cut(images, batches)])
    difference = (found - expected).abs().max().item()
    allowed = tolerance * max(1.0, expected.abs().max().item())
    if not difference <= allowed:
        raise ValueError(
            f"the export differs from the network by {difference:.2g}, more than {allowed:.2g}: not written"
        )
    chosen = expected.gather(1, found.argmax(1, keepdim=True)).squeeze(1)
    if (expected.amax(1) - chosen > 2 * allowed).any():
        raise ValueError("the export gives another answer than the network: not written")
    return difference, int((found.argmax(1) == expected.argmax(1)).sum())


@torch.no_grad()
def _noise(net: nn.Module, images: Tensor, expected: Tensor) -> str:
    """How exact the network's own answers are: a long chain of decisions can turn rounding into other positions."""
    exact = torch.cat([copy_network(net).double()(part) for part in images[:100].double().split(25)])
    noise = (exact - expected[:100]).abs().max().item()
    return f"the network in float32 differs from itself in float64 by {noise:.2g}"


def _cut(images: Tensor, batches: tuple[int, ...]) -> list[Tensor]:
    """All images, in batches of these sizes, over and over."""
    parts: list[Tensor] = []
    while len(images):
        size = batches[len(parts) % len(batches)]
        parts.append(images[:size])
        images = images[size:]
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
