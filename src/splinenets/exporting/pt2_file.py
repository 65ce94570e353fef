"""pt2: a program of ``torch.export``, run by torch."""

from __future__ import annotations

import io
import json

import torch
from torch import Tensor, nn

from .capture import Inputs, Obstacles, trace_graph
from .formats import KEY, Exported, check_seal, seal

COMMENT = 64  # bytes: a zip file ends with the length of a comment, zero so far, and the comment, which is our seal


def dump(net: nn.Module, example: Inputs, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
    """A program of torch's own operations, which needs nothing of ours to run; its extra file is our metadata."""
    program = trace_graph(net, example[:1], any_batch=any_batch)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={KEY: metadata})
    return seal(file.getvalue()[:-2] + COMMENT.to_bytes(2, "little"), str.encode)


def load(content: bytes, threads: int) -> Exported:
    """A program in torch, whose threads are the process's own business. Torch looks at no checksum of a zip file."""
    check_seal(content, str.encode, old=content[-22:].startswith(b"PK\5\6"))  # which have no comment
    extra = {KEY: ""}
    module = torch.export.load(io.BytesIO(content), extra_files=extra).module()
    metadata = json.loads(extra[KEY])
    names = list(metadata.get("conditions", {}))

    def forward(images: Tensor, *values: Tensor) -> Tensor:
        with torch.inference_mode():
            conditions = dict(zip(names, values, strict=True))
            return (module(images, conditions) if names else module(images)).clone()

    return Exported(metadata, forward)
