"""Rules for pooling, and for what changes the shape of an image or the order of its dimensions."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from .graph import Found, Last, Lowering, Padded, Rule, Sparse, arguments, image_of, node_of, pair, shape_of, sizes
from .operations import item
from .program import Image, Kind, Step

aten = torch.ops.aten


def pooling(low: Lowering, node: fx.Node) -> Found:
    """``F.max_pool2d`` and ``F.avg_pool2d``."""
    given = arguments(node)
    kind = Kind.MAXPOOL if "max" in str(node.target) else Kind.AVGPOOL
    kernel = pair(given["kernel_size"], 1)
    if given.get("divisor_override"):
        raise ValueError("the native runtime averages over the pixels of a window")
    step = Step(kind, low.image(given["self"]), image_of(node), inclusive=bool(given.get("count_include_pad", True)))
    stride = pair(given.get("stride") or list(kernel), 1)
    return low.emit(step.window(kernel, stride, pair(given.get("padding"), 0), pair(given.get("dilation"), 1)))


def adaptive(low: Lowering, node: fx.Node) -> Found:
    """``F.adaptive_avg_pool2d``; averages of the whole image are shared."""
    source = low.image(node.args[0])
    output = image_of(node)
    return low.pool(source) if output.shape[1:] == (1, 1) else low.emit(Step(Kind.AVGPOOL, source, output))


def largest(low: Lowering, node: fx.Node) -> Found:
    """``F.adaptive_max_pool2d``, where all windows are alike; of its two results nobody wants the second."""
    source, output = low.image(node.args[0]), image_of(node)
    kernel = (source.height // output.height, source.width // output.width)
    if (kernel[0] * output.height, kernel[1] * output.width) != (source.height, source.width):
        raise ValueError(f"the native runtime cannot share out {source.shape} evenly between {output.shape}")
    return low.emit(Step(Kind.MAXPOOL, source, output).window(kernel, kernel, (0, 0), (1, 1))), output


def mean(low: Lowering, node: fx.Node) -> Found:
    """The mean over height, width or both."""
    given = arguments(node)
    source, again = low.view(given["self"])
    dims = len(shape_of(node_of(given["self"])))
    spatial = tuple(range(1, dims - 1) if again is Last else range(2, dims))
    over = tuple(sorted(d % dims for d in sizes(given["dim"] or [])))
    if over == spatial:
        return _pooled(low, source, keeps=bool(given.get("keepdim")), last=again is Last)
    if again is Last or len(spatial) != 2 or len(over) != 1 or not given.get("keepdim") or over[0] not in spatial:
        raise ValueError("the native runtime averages over height and width")
    kernel = (source.height, 1) if over[0] == 2 else (1, source.width)
    step = Step(Kind.AVGPOOL, source, image_of(node))
    return low.emit(step.window(kernel, (1, 1), (0, 0), (1, 1)))


def _pooled(low: Lowering, source: Image, *, keeps: bool, last: bool) -> Found:
    pooled = low.pool(source)
    return Last(pooled) if last and keeps else pooled


def concatenate(low: Lowering, node: fx.Node) -> Found:
    """Channels of several images, one after the other."""
    given = arguments(node)
    parts = [node_of(part) for part in cast("list[Argument]", given["tensors"])]
    views = [low.view(part) for part in parts]
    last = {again is Last for _, again in views}
    channel = len(shape_of(parts[0])) - 1 if last == {True} else 1
    if len(last) > 1 or cast(int, given.get("dim", 0)) % len(shape_of(parts[0])) != channel:
        raise ValueError("the native runtime puts images together by their channels")
    images = [image for image, _ in views]
    output = Image(sum(image.channels for image in images), *images[0].shape[1:])
    start = 0
    for image in images:
        low.emit(Step(Kind.COPY, image, output, target=start, count=image.channels))
        start += image.channels
    return Last(output) if last == {True} else output


def channels(low: Lowering, source: Image, first: int, count: int) -> Image:
    """Some channels of an image."""
    return low.emit(Step(Kind.COPY, source, Image(count, *source.shape[1:]), source=first, count=count))


def split(low: Lowering, node: fx.Node) -> Found:
    """Parts of the channels."""
    given = arguments(node)
    source = low.image(node.args[0])
    if cast(int, given.get("dim", 0)) % len(shape_of(node_of(node.args[0]))) != 1:
        raise ValueError("the native runtime cuts images by their channels")
    counts = [tuple(part.shape)[1] for part in node.meta["val"]]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return tuple(channels(low, source, first, count) for first, count in zip(starts, counts, strict=True))


def slices(low: Lowering, node: fx.Node) -> Found:
    """Every n-th row or column, or some of the channels."""
    given = arguments(node)
    dim, step, end = (given.get(name, default) for name, default in (("dim", 0), ("step", 1), ("end", None)))
    first, size = cast(int, given.get("start") or 0), shape_of(node)[cast(int, dim)]
    if dim == 1 and step == 1:
        source = low.image(given["self"])
        return channels(low, source, first % source.channels, size)
    before = _sparse(low, given["self"])
    cut = end is not None and cast(int, end) < shape_of(node_of(given["self"]))[cast(int, dim)]
    if before is None or dim not in (2, 3) or first or cut:
        raise ValueError("the native runtime takes every n-th pixel, from the first")
    return replace(before, stride={**before.stride, cast(int, dim): cast(int, step)})


def _sparse(low: Lowering, argument: Argument) -> Sparse | None:
    """An image or a shortcut, to make another shortcut of."""
    found = low.found[node_of(argument)]
    return Sparse(found, {}) if isinstance(found, Image) else found if isinstance(found, Sparse) else None


def padding(low: Lowering, node: fx.Node) -> Found:
    """Zeros around an image, or further channels of zeros behind the others."""
    given = arguments(node)
    widths = sizes(given["pad"])
    if given.get("mode") not in (None, "constant") or given.get("value") or min(widths) < 0:
        raise ValueError("the native runtime pads with zeros")
    if not any(widths):
        return low.alias(node, low.found[node_of(node.args[0])])
    before = _sparse(low, given.get("self", given.get("input")))
    if len(widths) == 6 and not any(widths[:5]) and before is not None:
        return Sparse(before.image, before.stride or {2: 1, 3: 1}, widths[5])
    if len(widths) != 4:
        raise ValueError("the native runtime pads images on their four sides, or with channels behind the others")
    left, right, top, bottom = widths
    return Padded(low.image(node.args[0]), (top, bottom, left, right))


def same(low: Lowering, node: fx.Node) -> Found:
    """Nothing changes."""
    if node.meta["val"].dtype != torch.float32:
        raise ValueError(f"the native runtime computes in float32, not in {node.meta['val'].dtype}")
    return low.alias(node, low.found[node_of(node.args[0])])


def reorder(low: Lowering, node: fx.Node) -> Found:
    """Channels first or last: who reads the image knows which."""
    before = node_of(node.args[0])
    found, dims = low.found[before], len(shape_of(before))
    order = list(range(dims))
    if node.target is aten.permute.default:
        order = [d % dims for d in sizes(node.args[1])]
    else:
        a, b = (cast(int, d) % dims for d in node.args[1:3])
        order[a], order[b] = order[b], order[a]
    to_last, to_first = [0, *range(2, dims), 1], [0, dims - 1, *range(1, dims - 1)]
    if isinstance(found, Last) and order == to_first:
        return low.alias(node, found.image)
    if not isinstance(found, Last) and order == to_last:
        return low.alias(node, Last(low.image(before)))
    raise ValueError("the native runtime has channels first or last, and no other order")


def reshape(low: Lowering, node: fx.Node) -> Found:
    """Height and width as one, or as two again; all features in a row."""
    found, shape = low.found[node_of(node.args[0])], shape_of(node)
    last = isinstance(found, Last)
    image = found.image if isinstance(found, Last) else low.image(node.args[0])
    count, height, width = image.shape
    rows = (
        ((1, height, width, count), (1, height * width, count))
        if last
        else (
            (1, count, height, width),
            (1, count, height * width),
            (1, count * height * width),
        )
    )
    vector = height * width == 1 and shape[0] == 1 and sorted(shape)[-1] == count
    if shape not in rows and not vector:
        raise ValueError(f"the native runtime cannot give an image of shape {image.shape} the shape {shape}")
    return low.alias(node, image if vector else found)


RULES: dict[object, Rule] = {
    operator.getitem: item,
    aten.max_pool2d.default: pooling,
    aten.avg_pool2d.default: pooling,
    aten.adaptive_avg_pool1d.default: adaptive,
    aten.adaptive_avg_pool2d.default: adaptive,
    aten.adaptive_max_pool2d.default: largest,
    aten.mean.dim: mean,
    aten.cat.default: concatenate,
    aten.split_with_sizes.default: split,
    aten.split.Tensor: split,
    aten.chunk.default: split,
    aten.slice.Tensor: slices,
    aten.pad.default: padding,
    aten.constant_pad_nd.default: padding,
    aten.permute.default: reorder,
    aten.transpose.int: reorder,
    **dict.fromkeys(
        (
            *(aten.flatten.using_ints, aten.reshape.default, aten.view.default, aten.reshape_as.default),
            *(
                aten.unsqueeze.default,
                aten.squeeze.dim,
                aten.squeeze.dims,
                aten.squeeze.default,
                aten._unsafe_view.default,
            ),
        ),
        reshape,
    ),
    **dict.fromkeys(
        (
            *(aten.dropout.default, aten.dropout_.default, aten.contiguous.default, aten.clone.default),
            *(aten.detach.default, aten.alias.default, aten.feature_dropout.default, aten._to_copy.default),
            *(getattr(aten.to, overload) for overload in aten.to.overloads()),
        ),
        same,
    ),
}
