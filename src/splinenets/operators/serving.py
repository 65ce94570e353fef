"""Which way of computing is asked for, and whether our kernels may serve: one list of reasons for all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .. import kernels
from .operation import Convolution, Operation

NAMES = ("auto", "bank", "fused", "grouped", "measure", "single", "unfold")
PLAIN, STRIDED = (Tensor, nn.Parameter), torch.strided
SHARES = 2**28  # bytes that the threads' shares of the knots' gradient may take together


class _Asked(threading.local):
    name = "auto"


class _AskedWhileTraced:
    """The same for torch.compile, which cannot look into a thread's own memory; a change compiles anew."""

    name = "auto"


_here, _traced = _Asked(), _AskedWhileTraced()
_interpreters = torch._C._functorch.peek_interpreter_stack


@contextmanager
def strategy(name: str) -> Iterator[None]:
    """Compute spline layers one way inside a with block, decisions included.

    "auto"     the rule: what is fastest for such a layer
    "measure"  time every way on the first call of a shape, and keep to the fastest
    "fused"    a kernel of our own; "grouped", "bank", "single" and "unfold" are made of torch's operations

    Examples:
        >>> net, images = sn.convert(sn.models.lenet(4), "D(5)-C-R3").eval(), torch.randn(4, 1, 28, 28)
        >>> with sn.strategy("grouped"):
        ...     slow = net(images)
        >>> torch.allclose(slow, net(images), atol=1e-5)
        True
    """
    if name not in NAMES:
        raise ValueError(f"unknown strategy {name!r}, choose from {', '.join(NAMES)}")
    before = _here.name
    _here.name = _traced.name = name
    try:
        yield
    finally:
        _here.name = _traced.name = before


def asked(*, compiling: bool) -> str:
    """The strategy that the user asked for."""
    return (_traced if compiling else _here).name


def obstacle(
    x: Tensor,
    numbers: torch.dtype,
    *others: Tensor | None,
    knots: Tensor | None = None,
    operation: Operation | None = None,
) -> str:
    """Why our kernels cannot serve, in words that follow "the strategy 'fused'"; empty if they can.

    x, others  what a kernel would read, ``numbers`` what it would compute with
    knots, operation  of a layer; without them the question is about what stands beside: pooling, and decisions
    """
    compiling = torch.compiler.is_compiling()
    if (name := (_traced if compiling else _here).name) not in ("auto", "fused", "measure"):
        return f"is not what was asked for, {name!r}"
    if compiling and operation is None:
        return "stands alone in graphs, where torch itself makes as good of what stands beside"
    if x.device.type != "cpu" if compiling else _interpreters() is not None or not readable(x, knots, *others):
        return _unreadable(x)
    plain = isinstance(operation, Convolution) and len(operation.kernel) == 2 and operation.groups == 1
    if operation is not None and not plain:
        return "computes 2d convolutions without groups"
    if not kernels.has_kernel(numbers) or (knots is not None and knots.dtype == torch.float64):
        return f"has no kernel for {numbers} here"
    if knots is not None and torch.is_grad_enabled() and 4 * _threads() * knots.numel() > SHARES:
        return f"needs more than {SHARES >> 20} MB for the gradients of {knots.numel():,} numbers"
    return ""


def readable(*tensors: Tensor | None) -> bool:
    """Whether a kernel finds the numbers of these tensors where their address says: on the CPU, one by one."""
    for t in tensors:  # asked several times a layer: a loop, as the quickest way
        if t is not None and (type(t) not in PLAIN or not t.is_cpu or t.layout is not STRIDED or t.is_neg()):
            return False
    return True


def _unreadable(x: Tensor) -> str:
    """Why a kernel cannot read a layer's input, or what else the layer is made of."""
    if not torch.compiler.is_compiling() and type(x) not in PLAIN:
        return f"needs plain tensors, got {type(x).__name__}"
    if not torch.compiler.is_compiling() and transformed():
        return "does not know the transforms of torch.func"
    if x.device.type != "cpu":
        return f"runs on the CPU, got {x.device.type}"
    return "needs plain tensors, whose numbers lie in the CPU's memory"


def _threads() -> int:
    return torch.get_num_threads()


# torch.compile asks these once, while it traces. The same as torch.compiler.assume_constant_result, which would import
# all of the compiler right now
for _asked_once in (kernels.has_kernel, _threads):
    _asked_once._dynamo_marked_constant = True  # type: ignore[union-attr]


def transformed() -> bool:
    """Whether torch.func is at work, whose tensors cannot be looked into."""
    return _interpreters() is not None
