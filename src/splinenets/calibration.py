"""Standardise decisions by what a network will meet, not by what it was trained on."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .projection import Projection
from .tracing import call, evaluating, uncompiled


def calibrate(net: nn.Module, examples: Iterable[object]) -> None:
    """Measure the mean and variance by which projections are standardised on these batches, which all count alike.

    Training measures them on the images that it sees, which are often distorted: cropped, bent, mixed. Plain images
    then go to other places on the splines than similar ones did in training. A few thousand training images,
    undistorted and in random order, put that right; their labels are not needed. Nothing else in the network changes,
    and further training measures again.

    examples  batches of two samples or more: tensors, tuples of arguments or dicts of keyword arguments; or one tensor

    Examples:
        >>> data = sn.data.load("embedded")
        >>> net = sn.convert(sn.models.lenet(4), "D(5)-C-R3")
        >>> sn.calibrate(net, (images / 255.0 for images in data.train.images[:500].split(250)))
    """
    net = uncompiled(net)  # which need not be compiled once more for this
    projections = [m for m in net.modules() if isinstance(m, Projection) and m.spec.standardize]
    if not projections:
        return
    shown = 0
    with evaluating(net), torch.no_grad():
        for projection in projections:
            projection.batches.zero_()
            projection.momentum = 0.0  # then the n-th batch has a share of 1 / n
        try:
            for example in [examples] if isinstance(examples, Tensor) else examples:
                for projection in projections:
                    projection.training = True
                call(net, example)
                shown += 1
        finally:
            for projection in projections:
                projection.training = False
                projection.batches.zero_()
                del projection.momentum
    if not shown:
        raise ValueError("calibrate needs a batch of examples or more, got none")
