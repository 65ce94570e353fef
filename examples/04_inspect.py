"""Where samples travel, and what a network costs."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

import splinenets as sn

steps = 5 if "--quick" in sys.argv else 150
data = sn.data.load("embedded")
images = (data.train.images.float() - 73) / 90
net = sn.convert(sn.models.lenet(8), "H(5)-D-R3", example=images[:100], spread=0.1)
print(sn.cost(net, images[:1]))

optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(steps):
    pick = slice(step % 60 * 100, step % 60 * 100 + 100)
    loss = F.cross_entropy(net(images[pick]), data.train.labels[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    logits, positions = sn.trace(net.eval(), images[:1000])
labels = data.train.labels[:1000]
print(f"\nafter {steps} steps: training accuracy {(logits.argmax(1) == labels).float().mean():.1%}")
print("mean position on the second layer's first spline, class by class:")
for number, name in enumerate(data.classes):
    print(f"  {name:12} {positions['conv2'][labels == number, 0].mean():.2f}")
