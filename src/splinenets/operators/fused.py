"""A convolution and the mixing of its weights in one kernel, as operators that torch knows.

``torch.ops.splinenets.conv2d`` is what layers call while gradients are wanted: under autograd it becomes
``conv2d_forward`` and, on the way back, ``conv2d_backward``; ``conv2d_inference`` is the shorter way where nothing is
to be learnt. torch.compile and torch.export see them as single nodes. The kernels are in kernels/kernels.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import kernels
from .mixing import Curves
from .operation import Convolution, Operation
from .serving import PLAIN, obstacle, readable
from .strategies import grouped

AS_THEY_ARE = 16  # samples up to which it does not pay to rearrange all knots first

library = torch.library.Library("splinenets", "FRAGMENT")
INPUTS = "Tensor x, Tensor position, Tensor knots, Tensor? base, Tensor? bias"
SETTING = "int[] kernel, int[] stride, int[] margins, int[] dilation, int splines, int dims, int degree"
library.define(f"conv2d({INPUTS}, {SETTING}) -> Tensor")
library.define(f"conv2d_inference({INPUTS}, {SETTING}) -> Tensor")
library.define(f"conv2d_forward({INPUTS}, {SETTING}) -> (Tensor, Tensor)")
library.define(
    f"conv2d_backward(Tensor grad, Tensor x, Tensor position, Tensor arranged, {SETTING}, "
    "bool image_too, bool bias_too) -> (Tensor, Tensor, Tensor, Tensor)"
)
ops = torch.ops.splinenets
# kernel (2), stride (2), margins (top, bottom, left, right), dilation (2), splines, dims, degree
Setting: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int, int]


def fused(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """(N, C, H, W), (N, S * dims) -> (N, filters, H', W'); neither time nor memory grows with K.

    For layers with which ``why_not`` finds nothing wrong.
    """
    assert isinstance(operation, Convolution)
    numbers = dtype_of(x)
    inputs = (
        x if x.dtype is numbers else x.to(numbers),
        position.float(),
        curves.knots.float(),
        None if curves.base is None else curves.base.float(),
        None if bias is None else bias.float(),
    )
    learning = torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        operator = ops.conv2d if learning else ops.conv2d_inference
        return operator(*inputs, *operation.setting(), *curves[2:5])
    setting = (*_setting(operation), *curves[2:5])
    # outside of graphs what is behind the operators: the way through torch's dispatcher takes time
    return _Differentiable.apply(*inputs, setting) if learning else _infer(*inputs, setting)  # type: ignore[no-untyped-call,arg-type]


def why_not(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> str:
    """Why ``fused`` cannot serve, or nothing; torch's own operations say what is wrong with sizes that do not fit."""
    knots, base, splines, dims, degree, _ = curves
    reason = obstacle(x, dtype_of(x), position, base, bias, knots=knots, operation=operation)
    if reason or torch.compiler.is_compiling():
        return reason
    assert isinstance(operation, Convolution)
    fits = _fits(x, position, knots, base, bias, operation.kernel, splines, dims, degree)
    return "" if fits else "needs knots, base, bias and positions whose sizes belong together"


def _fits(
    x: Tensor,
    position: Tensor,
    knots: Tensor,
    base: Tensor | None,
    bias: Tensor | None,
    kernel: Sequence[int],
    splines: int,
    dims: int,
    degree: int,
) -> bool:
    """Whether what the kernels would read has the sizes that they go by."""
    rows, filters, fan_in = knots.shape
    samples, channels, *_ = x.shape
    return (
        position.shape == (samples, splines * dims)
        and rows % dims == 0
        and rows // dims > degree
        and fan_in == channels * kernel[0] * kernel[1]
        and (base is None or base.shape == (filters, channels, *kernel))
        and (bias is None or bias.shape == (filters,))
    )


def dtype_of(x: Tensor) -> torch.dtype:
    """The numbers to compute with, as torch's own convolution would choose them."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


@lru_cache(maxsize=1024)
def _setting(operation: Convolution) -> tuple[tuple[int, ...], ...]:
    return operation.setting()


@lru_cache(maxsize=1024)
def _geometry(image: torch.Size, filters: int, rows: int, setting: Setting) -> kernels.Geometry:
    _, _, (top, _, left, _), _, splines, dims, degree = setting
    operation = _operation(setting)
    return kernels.Geometry(
        *(image, filters, operation.output_size(image[2:])),
        *(operation.kernel, operation.stride, (top, left), operation.dilation),
        *(splines, dims, rows // dims, degree),
    )


def _fixed(setting: tuple[Any, ...]) -> Setting:
    """A setting that can be looked up: torch hands lists to operators."""
    kernel, stride, margins, dilation, *rest = setting
    return tuple(kernel), tuple(stride), tuple(margins), tuple(dilation), *rest


def _in_order(x: Tensor, position: Tensor, knots: Tensor, base: Tensor | None, bias: Tensor | None) -> Any:
    """Tensors in an order in memory that the kernels know, whatever they came in."""
    if base is not None and not (base.is_contiguous() or base.is_contiguous(memory_format=torch.channels_last)):
        base = base.contiguous()
    bias = None if bias is None else bias.contiguous()
    return kernels.channels_last(x), position.contiguous(), knots.contiguous(), base, bias


def _serves(
    x: Tensor, position: Tensor, knots: Tensor, base: Tensor | None, bias: Tensor | None, *setting: Any
) -> bool:
    """Whether the kernels may read all of this: an operator may be given anything, even without layers of ours.

    There may be no kernel here for a graph that was made elsewhere.
    """
    kernel, _, _, _, splines, dims, degree = setting
    return (
        kernels.has_kernel(x.dtype)
        and readable(x, position, knots, base, bias)
        and _fits(x, position, knots, base, bias, kernel, splines, dims, degree)
    )


def _inference(
    x: Tensor, position: Tensor, knots: Tensor, base: Tensor | None, bias: Tensor | None, *setting: Any
) -> Tensor:
    if not _serves(x, position, knots, base, bias, *setting):
        return _composite(x, position, knots, base, bias, *setting)
    return _infer(x, position, knots, base, bias, _fixed(setting))


def _infer(
    x: Tensor, position: Tensor, knots: Tensor, base: Tensor | None, bias: Tensor | None, setting: Setting
) -> Tensor:
    x, position, knots, base, bias = _in_order(x, position, knots, base, bias)
    geometry = _geometry(x.shape, knots.shape[1], knots.shape[0], setting)
    arranged = kernels.arrange(geometry, knots, base, x.dtype) if x.shape[0] > AS_THEY_ARE else None
    return kernels.forward(geometry, x, position, arranged, knots, base, bias)


def _forward(
    x: Tensor, position: Tensor, knots: Tensor, base: Tensor | None, bias: Tensor | None, *setting: Any
) -> tuple[Tensor, Tensor]:
    x, position, knots, base, bias = _in_order(x, position, knots, base, bias)
    geometry = _geometry(x.shape, knots.shape[1], knots.shape[0], _fixed(setting))
    arranged = kernels.arrange(geometry, knots, base, x.dtype)
    return kernels.forward(geometry, x, position, arranged, knots, base, bias), arranged


def _backward(
    grad: Tensor, x: Tensor, position: Tensor, arranged: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *setting, image_too, bias_too = rest
    x, grad = kernels.channels_last(x), kernels.channels_last(grad)
    geometry = _geometry(x.shape, arranged.shape[1], arranged.shape[0], _fixed(tuple(setting)))
    wanted = (image_too, bias_too)
    position, arranged = position.contiguous(), arranged.contiguous()  # hooks on what is saved may have moved them
    image, place, knots, bias = kernels.backward(geometry, x, position, arranged, grad, *wanted)
    return x.new_empty(0) if image is None else image, place, knots, knots.new_empty(0) if bias is None else bias


# what torch.compile and torch.export ask: the shapes of results


def _output_like(x: Tensor, knots: Tensor, setting: Setting) -> Tensor:
    size = (x.shape[0], knots.shape[1], *_operation(setting).output_size(x.shape[2:]))
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _operation(setting: Setting) -> Convolution:
    kernel, stride, (top, bottom, left, right), dilation, *_ = setting
    padding = (top, left) if (top, left) == (bottom, right) else "same"  # nothing else pads unevenly
    return Convolution(tuple(kernel), tuple(stride), padding, tuple(dilation), 1)


def _fake_inference(x: Tensor, position: Tensor, knots: Tensor, base: Any, bias: Any, *setting: Any) -> Tensor:
    return _output_like(x, knots, setting)


def _fake_forward(
    x: Tensor, position: Tensor, knots: Tensor, base: Any, bias: Any, *setting: Any
) -> tuple[Tensor, Tensor]:
    rows, filters, _ = knots.shape
    row = kernels.row_length(int(x.shape[1]), setting[0], x.dtype)
    return _output_like(x, knots, setting), torch.empty(rows, filters, row, dtype=x.dtype, device=x.device)


def _fake_backward(grad: Tensor, x: Tensor, position: Tensor, arranged: Tensor, *rest: Any) -> Any:
    *setting, image_too, bias_too = rest
    rows, filters, _ = arranged.shape
    kernel = setting[0]
    image = torch.empty_like(x, memory_format=torch.channels_last) if image_too else x.new_empty(0)
    knots = position.new_empty(rows, filters, x.shape[1] * kernel[0] * kernel[1])
    return image, torch.empty_like(position), knots, position.new_empty(filters if bias_too else 0)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, position: Tensor, knots: Tensor, base: Any, bias: Any, setting: Setting) -> Tensor:
        forward = _forward if type(x) is Tensor else ops.conv2d_forward  # a graph wants the operator
        y, arranged = forward(x, position, knots, base, bias, *setting)
        ctx.save_for_backward(x, position, knots, base, bias, arranged)
        ctx.set_materialize_grads(False)
        ctx.setting = setting
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        *inputs, arranged = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants gradients of gradients, which only torch's own operations have
            return *_gradients(grad, inputs, ctx.setting), None
        x, position, _, base, bias = inputs
        wanted = (ctx.needs_input_grad[0], bias is not None)
        backward = _backward if type(grad) is Tensor else ops.conv2d_backward
        image, place, knots, biases = backward(grad, x, position, arranged, *ctx.setting, *wanted)
        # the basis sums to 1, so the knots' gradients sum to the base's
        bases = None if base is None else knots.sum(0).view(base.shape)
        return image if wanted[0] else None, place, knots, bases, biases if wanted[1] else None, None


def _gradients(grad: Tensor, inputs: list[Tensor | None], setting: Setting) -> list[Tensor | None]:
    """The same gradients, differentiable, from the strategy ``grouped``."""
    # views of their own: a position may depend on the image, and that way is not this operator's
    inputs = [None if t is None else t.view_as(t) for t in inputs]
    wanted = {i: t for i, t in enumerate(inputs) if t is not None and t.requires_grad}
    y = _composite(*inputs, *setting)
    found = torch.autograd.grad(y, list(wanted.values()), grad, create_graph=True, allow_unused=True)
    gradients = dict(zip(wanted, found, strict=True))
    return [gradients.get(i) for i in range(len(inputs))]


def _composite(x: Any, position: Any, knots: Any, base: Any, bias: Any, *setting: Any) -> Tensor:
    """The same, of torch's own operations."""
    *_, splines, dims, degree = setting
    return grouped(x, position, Curves(knots, base, splines, dims, degree), _operation(setting), bias)


def _under_autograd(x: Tensor, position: Any, knots: Any, base: Any, bias: Any, *setting: Any) -> Tensor:
    inputs, traced = (x, position, knots, base, bias), type(x) not in PLAIN
    serves = x.device.type == "cpu" and kernels.has_kernel(x.dtype) if traced else _serves(*inputs, *setting)
    return _Differentiable.apply(*inputs, setting) if serves else _composite(*inputs, *setting)  # type: ignore[no-untyped-call]


library.impl("conv2d", _under_autograd, "Autograd")
for _name in ("conv2d", "conv2d_inference"):
    library.impl(_name, _composite, "CompositeExplicitAutograd")  # on devices for which there is no kernel
for _name, _kernel, _fake in (
    ("conv2d", _inference, _fake_inference),
    ("conv2d_inference", _inference, _fake_inference),
    ("conv2d_forward", _forward, _fake_forward),
    ("conv2d_backward", _backward, _fake_backward),
):
    library.impl(_name, _kernel, "CPU")
    torch.library.register_fake(f"splinenets::{_name}", _fake, lib=library)
