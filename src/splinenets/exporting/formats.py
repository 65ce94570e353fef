"""The files an export can be: how each is written to bytes and read from them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .capture import capture, trace_graph
from .native import Unavailable
from .obstacles import Obstacles

KEY = "splinenets"  # of our metadata, beside others' in the same file


@dataclass(frozen=True)
class Exported:
    """A network from a file: images (N, C, H, W) -> logits (N, classes).

    metadata  "purpose", "knots", "input" (C, H, W), "layers" (name -> spec), and what the writer added; exports of runs
              have "classes", "preparation" (what to do with bytes to get images), "data", "network", "model", "step"
    """

    metadata: dict[str, Any]
    forward: Callable[[Tensor], Tensor]

    def __call__(self, images: Tensor) -> Tensor:
        """The network's answer; an export for latency takes images one by one."""
        one = self.metadata["purpose"] == "latency"
        return torch.cat([self.forward(part) for part in images.split(1 if one else max(len(images), 1))])


class Format(NamedTuple):
    """How a kind of file is written and read."""

    dump: Callable[[nn.Module, Tensor, bool, str, Obstacles], bytes]
    load: Callable[[bytes, int], Exported]
    packages: tuple[str, ...] = ()


def dump_onnx(net: nn.Module, example: Tensor, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
    """An ONNX model; our metadata is one of its properties."""
    from .onnx_file import onnx_model

    captured = capture(net, example[:1], any_batch=any_batch)
    obstacles.graph = captured.program.graph
    model = onnx_model(captured, any_batch=any_batch)
    model.metadata_props.add(key=KEY, value=metadata)
    return model.SerializeToString()


def load_onnx(content: bytes, threads: int) -> Exported:
    """An ONNX model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map[KEY])

    def forward(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return Exported(metadata, forward)


def dump_pt2(net: nn.Module, example: Tensor, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
    """A program of ``torch.export``; our metadata is one of its extra files."""
    program = trace_graph(net, example[:1], any_batch=any_batch)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={KEY: metadata})
    return file.getvalue()


def load_pt2(content: bytes, threads: int) -> Exported:
    """A program of ``torch.export``, run by torch; torch's threads are the process's own business."""
    extra = {KEY: ""}
    module = torch.export.load(io.BytesIO(content), extra_files=extra).module()

    def forward(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return module(images).clone()

    return Exported(json.loads(extra[KEY]), forward)


def dump_native(net: nn.Module, example: Tensor, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
    """A safetensors file with the engine's program; batches of any size are several images one by one."""
    from safetensors.torch import save

    from .native.lowering import native_program

    captured = capture(net, example[:1], any_batch=False)
    obstacles.graph = captured.program.graph
    program = native_program(captured)
    tensors = {
        "steps": torch.frombuffer(bytearray(program.steps.tobytes()), dtype=torch.uint8),
        "weights": torch.from_numpy(program.weights.copy()),
        "arena": torch.tensor(program.arena),
    }
    return _sealed(save(tensors, metadata={KEY: metadata}))


def load_native(content: bytes, threads: int) -> Exported:
    """A program in the native runtime."""
    from safetensors.torch import load

    from .native import STEP, Engine, Program

    content = _opened(content)
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    steps = tensors["steps"].numpy().view(STEP)
    engine = Engine(Program(steps, tensors["weights"].numpy(), int(tensors["arena"])), threads)
    return Exported(json.loads(header["__metadata__"][KEY]), engine)


MAGIC = b"splinenets native 1\n"


def _sealed(content: bytes) -> bytes:
    """The SHA-256 before the content: the engine checks nothing while it runs, so a damaged file must not reach it."""
    return MAGIC + hashlib.sha256(content).digest() + content


def _opened(sealed: bytes) -> bytes:
    start = len(MAGIC) + 32
    content = sealed[start:]
    if not sealed.startswith(MAGIC) or hashlib.sha256(content).digest() != sealed[len(MAGIC) : start]:
        raise ValueError("its content does not have the SHA-256 that stands before it")
    return content


FORMATS = {
    "onnx": Format(dump_onnx, load_onnx, ("onnx", "onnxscript", "onnxruntime")),
    "pt2": Format(dump_pt2, load_pt2),
    "native": Format(dump_native, load_native),
}


def format_of(path: Path, name: str | None = None) -> Format:
    """The format of this name, or that which the file's name ends with."""
    chosen = path.suffix.removeprefix(".") if name is None else name
    if chosen not in FORMATS:
        raise ValueError(f"unknown format {chosen!r}, choose from {list(FORMATS)}")
    try:
        for package in FORMATS[chosen].packages:
            import_module(package)
    except ImportError as error:
        raise ValueError(f"{chosen} needs more packages ({error}): pip install 'splinenets[export]'") from None
    return FORMATS[chosen]


def load_export(path: str | PathLike[str], *, to: str | None = None, threads: int = 1) -> Exported:
    """Read an exported network; ``to`` as it was exported, if the file's name does not tell."""
    path = Path(path)
    chosen, content = format_of(path, to), path.read_bytes()
    try:
        return chosen.load(content, threads)
    except (Unavailable, MemoryError):
        raise
    except Exception as error:  # every runtime has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is damaged or not an export of this package ({reason})") from error
