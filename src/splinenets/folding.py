"""Batch norms become part of the layers before them: by what modules are, then checked by numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .conditions import Conditioned
from .conversion import computes_as, copy_network
from .layers import SplineLayer
from .operators import strategy
from .path import Level
from .structure import BATCH_NORMS, SPLINES
from .tables import first_line
from .tracing import has_hooks, hooked, run_example

Net = TypeVar("Net", bound=nn.Module)
Pair = tuple[str, str]  # the names of a layer and the batch norm behind it


@torch.inference_mode(False)
def fold_batchnorm(net: Net, example: object = None) -> Net:
    """A copy in which batch norms that follow a convolution or linear layer, plain or spline, are part of its weights.

    Exact in eval mode: scaling every knot scales every mixture. What follows what is read from the network's code, or
    seen when an ``example`` passes. Networks that decide while they run need one, and so do linear layers, of which the
    code does not tell whether features come last. Only batch norms that compute what torch's do are folded.

    Examples:
        >>> net = sn.convert(sn.models.resnet(8), "D(5)-C-R3").eval()
        >>> folded, images = sn.fold_batchnorm(net), torch.randn(2, 3, 32, 32)
        >>> torch.allclose(folded(images), net(images), atol=1e-4)
        True
    """
    net = copy_network(net)
    pairs = pairs_of_graph(net) if example is None else pairs_of_example(net, example)
    for pair in pairs:
        fold(net, *pair)
    return net


def is_foldable(net: nn.Module, layer_name: str, norm_name: str) -> bool:
    """Whether both compute what their classes say, of plain parameters, and nobody listens or steps in."""
    layer, norm = net.get_submodule(layer_name), net.get_submodule(norm_name)
    kinds = computes_as(layer, (SplineLayer, *SPLINES)) and computes_as(norm, BATCH_NORMS)
    strangers = any(parametrize.is_parametrized(m) or has_hooks(m) for m in (layer, norm))
    return kinds and not strangers and getattr(norm, "running_var", None) is not None


# What follows what: from code


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, Level) or super().is_leaf_module(module, name)


def pairs_of_graph(net: nn.Module) -> list[Pair]:
    """Convolutions and the batch norms that alone read their outputs, as the network's code has them."""
    if isinstance(net, Conditioned):
        return [(f"net.{layer}", f"net.{norm}") for layer, norm in pairs_of_graph(net.net)]
    if not any(isinstance(module, BATCH_NORMS) for module in net.modules()):
        return []  # whatever its code does
    try:
        graph = _Tracer().trace(net)
    except Exception as error:
        raise ValueError(
            f"cannot read from its code what {type(net).__name__} does ({first_line(error)}): pass an example input"
        ) from error
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(str(node.target) for node in calls)
    times.update(str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr")  # of weights
    pairs = []
    for node in calls:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        pair = (str(before.target), str(node.target))
        linear = isinstance(net.get_submodule(pair[0]), nn.Linear)
        if times[pair[0]] == times[pair[1]] == 1 and not linear and is_foldable(net, *pair):
            pairs.append(pair)
    return pairs


# From an example


def pairs_of_example(net: nn.Module, example: object) -> list[Pair]:
    """Pairs that an example shows, each kept only if the network computes the same without it."""
    pairs = [pair for pair in Witness(net).watch(example) if is_foldable(net, *pair)]
    if not pairs:
        return []
    exact, given = in_float64(net, example)
    if not same(exact, pairs, given):
        pairs = [pair for pair in pairs if same(exact, [pair], given)]
        pairs = pairs if same(exact, pairs, given) else []
    return pairs


class Witness(TorchDispatchMode):
    """Sees what layers make, and which modules read it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.net = net
        self.inside: list[str] = []  # layers and batch norms that are at work
        self.calls: Counter[str] = Counter()
        self.made: dict[int, tuple[str, Tensor]] = {}  # by id; the tensors stay alive, so that none is used twice
        self.readers: defaultdict[int, set[str]] = defaultdict(set)
        self.seen: list[tuple[str, str, int]] = []

    def watch(self, example: object) -> list[Pair]:
        """Layers and the batch norms that alone read their outputs, each called once."""
        watched = [name for name, m in self.net.named_modules() if isinstance(m, (*SPLINES, *BATCH_NORMS))]
        handles = []
        for name in watched:
            module = self.net.get_submodule(name)
            handles.append(module.register_forward_pre_hook(partial(self.enter, name)))
            handles.append(module.register_forward_hook(partial(self.leave, name)))
        with hooked(handles), strategy("grouped"), self:  # kernels of our own would read unseen
            output = run_example(self.net, example)
        for tensor in tensors_of(output):
            self.readers[id(tensor)].add("")
        return [
            (layer, norm)
            for layer, norm, between in self.seen
            if self.readers[between] == {norm} and self.calls[layer] == self.calls[norm] == 1
        ]

    def enter(self, name: str, module: nn.Module, args: object) -> None:
        """A forward pre-hook."""
        self.calls[name] += 1
        self.inside.append(name)

    def leave(self, name: str, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        """A forward hook."""
        self.inside.pop()
        before = self.made.get(id(args[0])) if args else None
        if isinstance(module, BATCH_NORMS):
            if before is not None and self.features_are_second(*before):
                self.seen.append((before[0], name, id(args[0])))
        elif isinstance(output, Tensor):
            self.made[id(output)] = name, output
            self.readers[id(output)] = set()  # what was read of a tensor that had this id before

    def features_are_second(self, name: str, output: Tensor) -> bool:
        """Whether a layer's features are where a batch norm looks for them."""
        layer = self.net.get_submodule(name)
        spatial = len(layer.kernel_size) if isinstance(layer, nn.modules.conv._ConvNd) else 0
        return output.dim() == 2 + spatial

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import all of the compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note who reads, and go on."""
        reader = self.inside[-1] if self.inside else ""
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self.readers[id(tensor)].add(reader)
        return func(*args, **(kwargs or {}))


# Numbers that cannot hide: every folded layer by itself, in float64


def in_float64(net: nn.Module, example: object) -> tuple[nn.Module, Any]:
    """A network and its example in float64; as they are if the network itself says what numbers it computes with."""
    exact = copy_network(net).double()
    given = tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, example)
    try:
        run_example(exact, given)
    except Exception:
        return net, example
    return exact, given


def same(net: nn.Module, pairs: Sequence[Pair], example: object) -> bool:
    """Whether all outputs of these pairs, and the network's own, stay the same when they are folded."""
    folded = copy_network(net)
    for pair in pairs:
        fold(folded, *pair)
    expected = outputs_of(net, [norm for _, norm in pairs], example)
    found = outputs_of(folded, [layer for layer, _ in pairs], example)
    return len(found) == len(expected) and all(map(_close, found, expected))


def _close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    largest = expected.abs().max().item() if expected.numel() else 0.0
    tolerance = 1e4 * torch.finfo(expected.dtype).eps * (largest + 1e-3)
    return torch.allclose(found, expected, rtol=0, atol=tolerance, equal_nan=True)


def outputs_of(net: nn.Module, names: Sequence[str], example: object) -> list[Tensor]:
    """What some modules compute of an example, and then what the network does."""
    made: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: object, output: Tensor) -> None:
        made[name] = output.clone()  # what follows may write over it

    with hooked([net.get_submodule(name).register_forward_hook(partial(keep, name)) for name in names]):
        output = run_example(net, example)
    return [*(made[name] for name in names if name in made), *tensors_of(output)]


def tensors_of(output: object) -> list[Tensor]:
    """All tensors of numbers in what a network returns."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    return [t for part in output for t in tensors_of(part)] if isinstance(output, list | tuple) else []


@torch.no_grad()
def fold(net: nn.Module, layer_name: str, norm_name: str) -> None:
    """Make a batch norm part of the layer before it, in place.

    The layer gets parameters of its own, as others may share the old ones; the batch norm passes on what it gets,
    wherever the network keeps it.
    """
    layer: Any = net.get_submodule(layer_name)
    norm: Any = net.get_submodule(norm_name)
    scale = torch.rsqrt(norm.running_var + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    bias = 0 if layer.bias is None else layer.bias
    layer.bias = nn.Parameter((bias - norm.running_mean) * scale + (0 if norm.bias is None else norm.bias))
    if not isinstance(layer, SplineLayer) or layer.base is not None:
        layer.weight = scaled(layer.weight, scale.view(-1, *[1] * (layer.weight.dim() - 1)))
    if isinstance(layer, SplineLayer):
        layer.knots = scaled(layer.knots, scale.view(-1, 1))
    plain = nn.Identity().train(norm.training)
    norm.__class__, norm.__dict__ = nn.Identity, plain.__dict__


def scaled(parameter: Tensor, scale: Tensor) -> nn.Parameter:
    """A parameter of its own."""
    return nn.Parameter(parameter * scale, requires_grad=parameter.requires_grad)
