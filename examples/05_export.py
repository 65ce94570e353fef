"""From a network to files for three runtimes, each checked before it is written, and back."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import splinenets as sn

steps = 5 if "--quick" in sys.argv else 150
data = sn.data.load("embedded")
images, tests = ((split.images.float() - 73) / 90 for split in (data.train, data.test))
net = sn.convert(sn.models.lenet(8), "D(5)-D-R3", example=images[:100], spread=0.1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(steps):
    pick = slice(step % 60 * 100, step % 60 * 100 + 100)
    loss = F.cross_entropy(net(images[pick]), data.train.labels[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with tempfile.TemporaryDirectory() as folder:
    for name in ("net.onnx", "net.pt2", "net.native"):
        path = Path(folder) / name
        try:
            sn.export(net, tests[:100], path, metadata={"classes": list(data.classes)})
        except ValueError as error:  # no compiler for the native runtime, or no onnx
            print(f"{name}: {error}")
            continue
        served = sn.load_export(path)
        began = time.perf_counter()
        right = (served(tests).argmax(1) == data.test.labels).float().mean()
        each = (time.perf_counter() - began) / len(tests)
        print(f"{name}: {path.stat().st_size:,} bytes, {right:.1%} right, {each * 1e3:.2f} ms an image")
    print(served.metadata)
