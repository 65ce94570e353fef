"""ONNX that ONNX Runtime alone reads, on processors like the one that wrote it; and faster than ONNX for everybody."""

from __future__ import annotations

import json

from torch import Tensor, nn

from ..kernels import Unavailable
from . import onnx_file
from .blocked import block, block_size, scan
from .capture import Inputs, Obstacles, capture
from .formats import KEY, Exported, seal

BLOCK = "block"  # of channels, in the metadata


def dump(net: nn.Module, example: Inputs, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
    """An ONNX model for one image, in blocked order; for batches, image after image."""
    size = block_size()
    captured = capture(net, example[:1], any_batch=False, obstacles=obstacles)
    model = onnx_file.onnx_model(captured, any_batch=False)
    block(model, size)
    if any_batch:
        scan(model)
    model.metadata_props.add(key=KEY, value=json.dumps({**json.loads(metadata), BLOCK: size}))
    return seal(model.SerializeToString(), onnx_file.tail)


def load(content: bytes, threads: int) -> Exported:
    """A model in ONNX Runtime, if it has blocks of the same size here."""
    exported = onnx_file.load(content, threads)
    if (size := exported.metadata[BLOCK]) != block_size():
        raise Unavailable(
            f"the file is for processors on which ONNX Runtime has blocks of {size} channels, and here it has "
            f"{block_size()}: export it again here, or to onnx"
        )

    def forward(*inputs: Tensor) -> Tensor:
        if len(inputs[0]):
            return exported.forward(*inputs)
        # ONNX Runtime does not go through nothing image by image
        return exported.forward(*(each.new_zeros(1, *each.shape[1:]) for each in inputs))[:0]

    return Exported(exported.metadata, forward)
