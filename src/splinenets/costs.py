"""What a network costs: parameters, multiply-accumulates and bytes, for each layer and in total."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .layers import SplineLayer
from .operators import strategy
from .projection import Projection
from .storage import stored
from .tables import html_table, text_table
from .tracing import hooked, run_example, uncompiled

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
PARTS = ("projection", "decision", "weights", "operator")


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Counts for one sample. The parts are those of the paper's complexity formulas.

    parameters  of the deployed network, the base of centred knots folded into the knots
    trained     what an optimizer holds while training, the base counted too
    active      parameters read for one sample: d + 1 knots of each spline
    projection  multiply-accumulates of the projections: M a position; conv projections also add up their input once
    decision    of generating decision parameters: (d + 1) M a position, on decision splines
    weights     of generating weights: (d + 1) times their number, in each dimension of a surface
    operator    of convolutions and linear maps, as in a plain network
    other       operations of batch norm and activations (one a value) and pooling (one a value read)
    bytes_read  active parameters, in bytes
    grouped     multiply-accumulates of one training step (forward and backward: three forward passes) when weights are
                mixed for each sample: all K knots are mixed, one operator runs
    bank        the same in the paper's way: K operators run, and their responses are mixed
    """

    parameters: int = 0
    trained: int = 0
    active: int = 0
    projection: int = 0
    decision: int = 0
    weights: int = 0
    operator: int = 0
    other: int = 0
    bytes_read: int = 0
    grouped: int = 0
    bank: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates for one sample."""
        return self.projection + self.decision + self.weights + self.operator

    def __add__(self, more: Amounts) -> Amounts:
        return Amounts(**{f.name: getattr(self, f.name) + getattr(more, f.name) for f in fields(Amounts)})


@dataclass(frozen=True)
class LayerCost:
    """The counts of one layer."""

    name: str
    layer: str
    amounts: Amounts


@dataclass(frozen=True)
class Cost:
    """The cost of a network; prints as a table. ``cost.macs`` and all other counts of ``Amounts`` are totals."""

    layers: tuple[LayerCost, ...]
    total: Amounts

    def __getattr__(self, name: str) -> int:
        if name in {"macs", *(f.name for f in fields(Amounts))}:
            return int(getattr(self.total, name))
        raise AttributeError(f"Cost has no attribute {name!r}")

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The headings and the rows of the table."""
        head = ("layer", "type", "parameters", "active", *PARTS, "MACs", "other")
        named = [(c.name, c.layer, c.amounts) for c in self.layers] + [("total", "", self.total)]
        body = [
            (
                name,
                layer,
                *(f"{n:,}" for n in (a.parameters, a.active, *(getattr(a, p) for p in PARTS), a.macs, a.other)),
            )
            for name, layer, a in named
        ]
        return head, body

    def table(self) -> str:
        """One line a layer, the total last."""
        return text_table(*self.rows())

    def to_json(self) -> str:
        """Everything, as JSON."""
        layers = [{"name": c.name, "type": c.layer, **asdict(c.amounts), "macs": c.amounts.macs} for c in self.layers]
        return json.dumps({"total": {**asdict(self.total), "macs": self.macs}, "layers": layers}, indent=1)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return html_table(*self.rows())


def cost(net: nn.Module, example: object) -> Cost:
    """What one sample costs, measured on an example batch: ``print(sn.cost(net, images[:1]))``.

    Examples:
        >>> image = torch.zeros(1, 1, 28, 28)
        >>> plain, net = sn.models.lenet(4), sn.convert(sn.models.lenet(4), "D(5)-C-R4")
        >>> sn.cost(plain, image).macs, sn.cost(net, image).macs
        (241632, 265609)
    """
    samples = _first_tensor(example).shape[0]
    if samples < 1:
        raise ValueError("cost needs an example with at least one sample, got an empty batch")
    net = uncompiled(net)
    names = {module: name for name, module in net.named_modules()}
    inside = {m for k in names if _is_known(k) for m in k.modules() if m is not k}
    watched = [m for m in names if m not in inside]
    found = _watch(net, watched, example, samples)
    rows, seen = [], set[int]()
    for module in watched:
        amounts = found.get(module, Amounts()) + _parameters(module, seen, recurse=_is_known(module))
        if amounts != Amounts():
            rows.append(LayerCost(names[module] or type(net).__name__, type(module).__name__, amounts))
    return Cost(tuple(rows), sum((r.amounts for r in rows), Amounts()))


def _watch(net: nn.Module, watched: Sequence[nn.Module], example: object, samples: int) -> dict[nn.Module, Amounts]:
    """What each of these modules does while the network sees an example."""
    found: dict[nn.Module, Amounts] = {}
    counter = FlopCounterMode(display=False)
    # of the modules being called: the counter at their start, and what their children counted
    stack: list[list[int]] = []

    def enter(module: nn.Module, args: object) -> None:
        stack.append([counter.get_total_flops(), 0])

    def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        start, children = stack.pop()
        flops = counter.get_total_flops() - start
        if stack:
            stack[-1][1] += flops
        x = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
        if _is_known(module) and x is not None and isinstance(output, Tensor):
            amounts = _operations(module, x, output, samples)
        else:
            macs = (flops - children) // 2 // samples  # what torch's counter saw here and not further down
            amounts = Amounts(operator=macs, grouped=3 * macs, bank=3 * macs)
        found[module] = found.get(module, Amounts()) + amounts

    handles = [m.register_forward_pre_hook(enter) for m in watched]
    handles += [m.register_forward_hook(leave, with_kwargs=True) for m in watched]
    with hooked(handles), counter, strategy("bank"):
        run_example(net, example)
    return found


def _is_known(module: nn.Module) -> bool:
    kinds = (nn.Linear, nn.modules.conv._ConvNd, *NORMS)
    return isinstance(module, kinds) or _is_activation(module) or _is_pooling(module)


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ == nn.ReLU.__module__ and not isinstance(module, nn.MultiheadAttention)


def _is_pooling(module: nn.Module) -> bool:
    return type(module).__module__ == nn.MaxPool2d.__module__


def _operations(module: nn.Module, x: Tensor, output: Tensor, samples: int) -> Amounts:
    values, read = output.numel() // samples, x.numel() // samples
    if isinstance(module, SplineLayer):
        return _spline_operations(module, x, output, samples)
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
        macs = (read if transposed else values) * module.weight[0].numel()
        return Amounts(operator=macs, grouped=3 * macs, bank=3 * macs)
    if _is_pooling(module):
        kernel = getattr(module, "kernel_size", None)
        if kernel is None:
            return Amounts(other=read)  # adaptive: every value is read once
        spatial = x.dim() - 2
        return Amounts(other=values * (kernel**spatial if isinstance(kernel, int) else prod(kernel)))
    return Amounts(other=values)


def _spline_operations(layer: SplineLayer, x: Tensor, output: Tensor, samples: int) -> Amounts:
    calls = x.shape[0] // samples  # of a network that cuts samples into parts
    spec, projection = layer.spec, layer.projection
    theta, weights = projection.coordinates * projection.features, layer.filters * layer.fan_in
    operator = output.numel() // samples * layer.fan_in
    active = spec.spline_degree + 1
    pooled = x.numel() // samples if spec.projection == "conv" and x[0].numel() > projection.features else 0
    decisions = spec.knots if projection.hierarchical else 1
    in_training = calls * theta * decisions + pooled
    knots = spec.dims * spec.knots
    return Amounts(
        projection=calls * theta + pooled,
        decision=calls * theta * active if projection.hierarchical else 0,
        weights=calls * spec.dims * active * weights,
        operator=operator,
        grouped=3 * (in_training + calls * knots * weights + operator),
        bank=3 * (in_training + knots * operator + knots * output.numel() // samples),
    )


def _parameters(module: nn.Module, seen: set[int], recurse: bool) -> Amounts:
    """Parameters that no layer before has counted."""
    new = [p for p in module.parameters(recurse=recurse) if id(p) not in seen]
    seen.update(map(id, new))
    trained = sum(p.numel() for p in new)
    bases: set[int] = set()
    idle: dict[int, float] = {}  # which share of a parameter one sample does not read
    if isinstance(module, SplineLayer):
        bases = {id(p) for p in _bases(module)}
        idle = _idle(module)
    kept = [p for p in new if id(p) not in bases]
    active = [p.numel() - round(p.numel() * idle.get(id(p), 0)) for p in kept]
    bytes_read = sum(count * p.element_size() for count, p in zip(active, kept, strict=True))
    parameters = sum(p.numel() for p in kept)
    return Amounts(parameters=parameters, trained=trained, active=sum(active), bytes_read=bytes_read)


def _bases(layer: SplineLayer) -> list[Tensor]:
    """What knots are offsets from, and disappears when a network is deployed."""
    projection = layer.projection
    decision = projection.weight if isinstance(projection, Projection) and projection.hierarchical else None
    return [p for p in (layer.base, decision) if p is not None]


def _idle(layer: SplineLayer) -> dict[int, float]:
    """Which share a sample leaves alone of parameters that lie on splines, as they are stored."""
    projection, active = layer.projection, layer.spec.spline_degree + 1
    decision = "knots" if isinstance(projection, Projection) else "weight"
    found = [stored(layer, "knots"), *([stored(projection, decision)] if projection.hierarchical else [])]
    counts = (layer.curves.knots_per_dim, layer.spec.knots)
    return {id(p): 1 - active / k for parts, k in zip(found, counts, strict=False) for p in parts if p is not None}


def _first_tensor(example: object) -> Tensor:
    if isinstance(example, Tensor):
        return example
    parts = example.values() if isinstance(example, dict) else example if isinstance(example, tuple | list) else ()
    for part in parts:
        if isinstance(part, Tensor) and part.dim():
            return part
    raise ValueError(f"cost needs an example with a tensor in it, got {type(example).__name__}")
