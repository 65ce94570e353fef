"""Calls of public functions with arguments of all kinds, and what torch's own function would say to them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.helpers.grammars import specs
from torch import Tensor, nn

import splinenets as sn
from campaign.jobs import network


class Made(NamedTuple):
    """A tensor that has not been made yet: it reads well in a list of failures."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    fill: str = "noise"


def made(value: Any) -> Any:
    """The tensors of an argument."""
    if isinstance(value, dict):
        return {key: made(each) for key, each in value.items()}
    if not isinstance(value, Made):
        return value
    tensor = torch.rand(value.shape) if value.fill == "noise" else torch.full(value.shape, float(value.fill))
    return tensor.to(value.dtype)


def raises(twin: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether torch's own function refuses such arguments too."""
    try:
        twin(**given)
    except Exception:
        return True
    return False


class Call(NamedTuple):
    """A function, the one of torch that it stands beside, arguments by name, and how many trials."""

    function: Callable[..., Any]
    twin: Callable[..., Any] | None
    cases: SearchStrategy[dict[str, Any]]
    trials: int


small = st.integers(-1, 6)
size = st.one_of(st.integers(1, 6), small, st.sampled_from([0, 10**6, 10**12, 2**63]))
pair = st.one_of(st.integers(1, 3), small, st.tuples(small, small), st.sampled_from([(), (1, 2, 3), 10**9]))
dtype = st.sampled_from([torch.float32] * 5 + [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
fill = st.sampled_from(["noise"] * 6 + ["nan", "inf", "-1", "2"])
spec = st.one_of(st.sampled_from(["D(5)-C-R3", "H(3)-D-R4", "D(3)-C-G2"]), specs)


def tensors(*dims: SearchStrategy[int]) -> SearchStrategy[Made]:
    """Tensors of about this shape."""
    right = st.tuples(*dims)
    wrong = st.lists(st.integers(0, 4), max_size=6).map(tuple)
    return st.builds(Made, st.one_of(right, right, right, wrong), dtype, fill)


def often(strategy: SearchStrategy[Any], default: Any) -> SearchStrategy[Any]:
    """Mostly the default."""
    return st.one_of(st.just(default), st.just(default), strategy)


few = st.integers(1, 4)
images = tensors(st.integers(0, 3), few, st.integers(1, 8), st.integers(1, 8))
SETTINGS = {
    "stride": often(pair, 1),
    "padding": often(pair | st.sampled_from(["same", "valid", "full"]), 0),
    "dilation": often(pair, 1),
    "groups": often(size, 1),
}


# Layers


def layer_of(kind: type[nn.Module], plain: type[nn.Module]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make a spline layer and call it; and the same with torch's."""

    def ours(x: Tensor, spec: Any, input_size: Any = None, **given: Any) -> None:
        y = kind(**given, spec=spec, input_size=input_size)(x)
        y.float().sum().backward()

    def theirs(x: Tensor, spec: Any, input_size: Any = None, **given: Any) -> None:
        plain(**given)(x).float().sum().backward()

    return ours, theirs


CONV2D = st.fixed_dictionaries(
    {
        "x": images,
        "spec": spec,
        "input_size": st.one_of(st.none(), st.tuples(st.integers(1, 8), st.integers(1, 8)), pair),
        "in_channels": often(size, 3),
        "out_channels": often(size, 4),
        "kernel_size": often(pair, 3),
        "bias": st.booleans(),
        "padding_mode": often(st.sampled_from(["reflect", "circular", "replicate", "x"]), "zeros"),
        **SETTINGS,
    }
)
LINEAR = st.fixed_dictionaries(
    {
        "x": tensors(st.integers(0, 3), few),
        "spec": spec,
        "in_features": often(size, 3),
        "out_features": often(size, 4),
        "bias": st.booleans(),
    }
)


# Functions


def conv2d(x: Tensor, position: Any, knots: Tensor, base: Any = None, bias: Any = None, **given: Any) -> Tensor:
    """Torch's convolution with the first knot; what is no tensor, it refuses too."""
    given = {name: given[name] for name in SETTINGS}
    return F.conv2d(x, knots[0] + position.sum(), bias, **given)


def per_sample(x: Tensor, weights: Tensor, bias: Any = None, **given: Any) -> list[Tensor]:
    """Torch's convolution of each image."""
    return [F.conv2d(image.unsqueeze(0), weight, bias, **given) for image, weight in zip(x, weights, strict=True)]


CONV_FUNCTION = st.fixed_dictionaries(
    {
        "x": images,
        "position": tensors(st.integers(0, 3)) | tensors(st.integers(0, 3), few),
        "knots": tensors(few, few, few, few, few),
        "base": often(tensors(few, few, few, few), None),
        "bias": often(tensors(few), None),
        "degree": often(size, None),
        "closed": st.booleans(),
        **SETTINGS,
    }
)
PER_SAMPLE = st.fixed_dictionaries(
    {
        "x": images,
        "weights": tensors(st.integers(0, 3), few, few, few, few),
        "bias": often(tensors(few), None),
        **SETTINGS,
    }
)
BASIS = st.fixed_dictionaries({"position": tensors(few), "knots": size, "degree": size})


# Whole networks


def with_network(work: Callable[..., Any]) -> Callable[..., Any]:
    """Do something to a small network, which is there already."""

    def run(**given: Any) -> None:
        net, example = network()
        work(copy.deepcopy(net), example, **given)

    return run


def convert(net: nn.Module, example: Tensor, spec: Any, images: Any, skip: Any, spread: Any) -> None:
    """Convert a plain network and call it."""
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))
    sn.convert(plain, spec, example=images, skip=skip, spread=spread)(example)


def steer(net: nn.Module, example: Tensor, positions: Any) -> None:
    """Choose positions by hand."""
    with sn.steer(net, positions):
        net(example)


def regularize(positions: Any, labels: Any, classes: Any, **given: Any) -> None:
    """The regulariser, and its gradient."""
    term = sn.MutualInformation(classes=classes, **given)
    positions = {
        name: p.requires_grad_() if isinstance(p, Tensor) and p.is_floating_point() else p
        for name, p in positions.items()
    }
    term(positions, labels).backward()


WHOLE = st.one_of(st.just(Made((4, 1, 12, 12))), images)
POSITIONS = st.dictionaries(st.sampled_from(["0", "4", "9", ""]), tensors(few) | tensors(few, few), max_size=2)
CALLS = {
    "SplineConv2d": Call(*layer_of(sn.SplineConv2d, nn.Conv2d), CONV2D, 400),
    "SplineLinear": Call(*layer_of(sn.SplineLinear, nn.Linear), LINEAR, 200),
    "spline_conv2d": Call(sn.spline_conv2d, conv2d, CONV_FUNCTION, 300),
    "conv2d_per_sample": Call(sn.conv2d_per_sample, per_sample, PER_SAMPLE, 150),
    "bspline_basis": Call(sn.bspline_basis, None, BASIS, 100),
    "convert": Call(
        with_network(convert),
        None,
        st.fixed_dictionaries(
            {
                "spec": spec,
                "images": WHOLE,
                "skip": often(st.lists(st.sampled_from(["0", "x", "*", ""]), max_size=2), ()),
                "spread": often(st.floats(), 0.1),
            }
        ),
        150,
    ),
    "deploy": Call(
        with_network(lambda net, example, images, knots: sn.deploy(net, images, knots=knots)),
        None,
        st.fixed_dictionaries({"images": WHOLE, "knots": st.sampled_from(["float32", "bf16", "int8", "x", None, 3])}),
        50,
    ),
    "collapse": Call(
        with_network(lambda net, example, at: sn.collapse(net, at)),
        None,
        st.fixed_dictionaries({"at": st.floats() | POSITIONS}),
        50,
    ),
    "steer": Call(with_network(steer), None, st.fixed_dictionaries({"positions": POSITIONS}), 50),
    "MutualInformation": Call(
        regularize,
        None,
        st.fixed_dictionaries(
            {
                "positions": st.dictionaries(st.just("a"), tensors(st.just(6)) | tensors(st.just(6), few), max_size=1),
                "labels": st.one_of(st.just(Made((6,), torch.int64)), tensors(few)),
                "classes": often(size, 3),
                "bins": often(size, 50),
            }
        ),
        50,
    ),
}
