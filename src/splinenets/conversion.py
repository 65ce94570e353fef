"""Any nn.Module -> SplineNet, starting from the weights it has."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .calibration import calibrate
from .layers import SplineLayer
from .path import Level
from .spec import SplineSpec, check_memory
from .structure import SPLINES, mark, spline_class
from .tables import first_line, html_table, some, text_table
from .tracing import describe, hooked, join, levels_of, run_example, steer, uncompiled

WIDEST = 100  # standard deviations by which knots may start apart
# they read the weights of their layers themselves, so a spline there would be bypassed
READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

Specs: TypeAlias = "str | SplineSpec | Mapping[str, str | SplineSpec | None]"
Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class Row:
    """What became of one layer; ``reason`` says why it was left as it is, or is empty."""

    name: str
    layer: str
    spec: str
    reason: str


@dataclass(frozen=True)
class Conversion:
    """What ``convert`` did to each layer; prints as a table."""

    rows: tuple[Row, ...]

    @property
    def converted(self) -> tuple[str, ...]:
        """Names of the layers that have become splines."""
        return tuple(row.name for row in self.rows if not row.reason)

    @property
    def left(self) -> dict[str, str]:
        """Names of the layers that were left as they are, and why."""
        return {row.name: row.reason for row in self.rows if row.reason}

    def __str__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        done = f"{len(self.converted)} of {len(self.rows)} layers are splines"
        return html_table(*self._table(), notes=[done])

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        body = [(r.name, r.layer, r.spec or "-", r.reason or "converted") for r in self.rows]
        return ("layer", "type", "spec", "result"), body


@dataclass
class Reach:
    """What an example showed of a network: the order of its layers, and the sizes of their inputs."""

    known: bool
    order: list[nn.Module] = field(default_factory=list)
    sizes: dict[nn.Module, set[tuple[int, ...]]] = field(default_factory=dict)


@torch.inference_mode(False)  # what is made inside could never be trained
def convert(model: Net, spec: Specs, *, example: object = None, skip: Iterable[str] = (), spread: float = 0.0) -> Net:
    """A copy of ``model`` in which every convolution and linear layer is a spline layer.

    Each curve starts around the weight that it replaces. With ``spread=0`` all its knots are that weight, so the copy
    gives the model's answers; otherwise knots start ``spread`` standard deviations of the weight away from it.

    spec     such as "D(5)-C-R3", for all layers; or a mapping from name patterns to specs; the first pattern that
             matches a layer's name decides. A layer that matches none, or whose spec is None, stays plain
    example  an input of the model: a tensor, a tuple of arguments or a dict of keyword arguments, without conditions
             (``sn.condition``). Dot projections, as in D-R3, need it to learn the sizes of their inputs. It also
             shows in which order layers are called, and which are never called: those stay plain
    skip     name patterns of layers to leave as they are, for example ("stem.*", "head")

    ``net.conversion`` lists what became of each layer. Layers that cannot be converted are left as they are.

    Examples:
        >>> model, images = sn.models.resnet(8), torch.randn(4, 3, 32, 32)
        >>> net = sn.convert(model, "D(5)-C-R3", example=images, skip=("dense",))
        >>> len(net.conversion.converted), net.conversion.left
        (7, {'dense': 'skipped'})
        >>> torch.allclose(net.eval()(images), model.eval()(images), atol=1e-4)
        True
    """
    if not 0 <= spread <= WIDEST:
        raise ValueError(f"spread must lie between 0 and {WIDEST} standard deviations, got {spread}")
    net = copy_network(model)
    names = _names(net)
    specs = _assign(names, spec, tuple([skip] if isinstance(skip, str) else skip))
    reach = _follow(net, [m for m in names if specs[m][0]], example)
    _check_memory(specs)
    rows: list[Row] = []
    tied: dict[tuple[object, ...], nn.Parameter] = {}
    for module, layer_names in names.items():
        wanted, reason = specs[module]
        before = type(module).__name__
        reason = (
            reason or _obstacle(net, module, layer_names[0]) or (_unreached(module, wanted, reach) if wanted else "")
        )
        if not reason and wanted is not None:
            _make_spline(module, wanted, reach, layer_names[0], spread, tied)
        rows.append(Row(layer_names[0], before, str(wanted or ""), reason))
    conversion = Conversion(tuple(rows))
    if not conversion.converted:
        raise ValueError(f"{type(model).__name__} has nothing to convert{_because(conversion)}")
    levels = [m for m in (reach.order if reach.known else net.modules()) if isinstance(m, Level)]
    join(net, levels)
    if reach.known:
        outside = {n: level for n, level in levels_of(net).items() if level.external}
        with steer(net, {n: level.like().new_full(level.position_shape, 0.5) for n, level in outside.items()}):
            calibrate(net, [example])
    net.conversion = conversion  # type: ignore[assignment]
    mark(net)
    return net


def _check_memory(specs: Mapping[nn.Module, tuple[SplineSpec | None, str]]) -> None:
    """Raise if there is no room for all knots, before the first are made."""
    size, kinds = 0, set[str]()
    for module, (spec, _) in specs.items():
        weight = module._parameters.get("weight")
        if spec is not None and weight is not None and weight.is_cpu:
            size += spec.dims * spec.knots * weight.nbytes
            kinds.add(str(spec))
    check_memory(size, f"the knots of {' and '.join(sorted(kinds))}")


@torch.inference_mode(False)
def copy_network(net: Net) -> Net:
    """A deep copy, also of a network that keeps tensors of an earlier call, with their history, on its modules."""
    net, memo = uncompiled(net), dict[int, Any]()

    def note(value: object) -> None:
        if isinstance(value, Tensor) and value.grad_fn is not None:
            memo[id(value)] = value.detach().clone()
        elif isinstance(value, dict | list | tuple):
            for part in value.values() if isinstance(value, dict) else value:
                note(part)

    for module in net.modules():
        for name, value in module.__dict__.items():
            if name not in ("_parameters", "_modules"):
                note(value)
    return copy.deepcopy(net, memo)


def _names(net: nn.Module) -> dict[nn.Module, list[str]]:
    """Every layer that is, or looks like, a convolution or linear layer, with all names it goes by."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in net.named_modules(remove_duplicate=False):
        if isinstance(module, (*SPLINES, nn.modules.conv._ConvNd)) or _is_quantized(module):
            names.setdefault(module, []).append(name)
    return names


def _is_quantized(module: nn.Module) -> bool:
    return "quantized" in type(module).__module__ and any(type(module).__name__.startswith(t.__name__) for t in SPLINES)


def _assign(
    names: Mapping[nn.Module, list[str]], spec: Specs, skip: tuple[str, ...]
) -> dict[nn.Module, tuple[SplineSpec | None, str]]:
    """For each layer the spec it should have, or the reason why it has none."""
    patterns = {"*": spec} if isinstance(spec, str | SplineSpec) else dict(spec)
    parsed = {p: None if s is None else SplineSpec.parse(s) for p, s in patterns.items()}
    everything = [name for layer in names.values() for name in layer]
    for pattern in (*skip, *(parsed if not isinstance(spec, str | SplineSpec) else ())):
        if not any(fnmatchcase(name, pattern) for name in everything):
            raise ValueError(f"the pattern {pattern!r} fits no layer; layers are {some(everything, 6)}")
    result: dict[nn.Module, tuple[SplineSpec | None, str]] = {}
    for module, layer_names in names.items():

        def fits(pattern: str, layer_names: list[str] = layer_names) -> bool:
            return any(fnmatchcase(name, pattern) for name in layer_names)

        first = next((p for p in parsed if fits(p)), None)
        if any(map(fits, skip)):
            result[module] = None, "skipped"
        elif first is None:
            result[module] = None, "no pattern fits its name"
        elif parsed[first] is None:
            result[module] = None, f"the pattern {first!r} has no spec"
        else:
            result[module] = parsed[first], ""
    return result


def computes_as(module: nn.Module, kinds: Iterable[type[nn.Module]]) -> bool:
    """Whether a module computes what the first of these classes that it belongs to computes, and not in its own way."""
    kind = next((k for k in kinds if isinstance(module, k)), None)
    ways = ("__call__", "forward", "_conv_forward")
    own = any(hasattr(kind, way) and getattr(type(module), way) is not getattr(kind, way) for way in ways)
    return kind is not None and not own and "forward" not in module.__dict__


def _obstacle(net: nn.Module, module: nn.Module, name: str) -> str:
    """Why a layer cannot be a spline layer, or nothing."""
    if isinstance(module, SplineLayer):
        return "is a spline layer already"
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "lazy: run the model once first"
    if parametrize.is_parametrized(module):
        return "parametrised: its weight is computed from other parameters"
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return "transposed convolution"
    torch_type = next((t for t in SPLINES if isinstance(module, t)), None)
    if torch_type is None or "quantized" in type(module).__module__ or ".qat." in type(module).__module__:
        return "quantised"
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is computed from other parameters"
    if type(weight.data) is not Tensor or not weight.is_floating_point():
        return f"its weight is {type(weight.data).__name__} of {weight.dtype}, not plain floats"
    if not computes_as(module, (torch_type,)):
        return f"{type(module).__name__} has a forward of its own"
    parent = net.get_submodule(name.rpartition(".")[0])
    if isinstance(parent, READERS):
        return f"{type(parent).__name__} reads its weight directly"
    return ""


def _unreached(module: nn.Module, spec: SplineSpec, reach: Reach) -> str:
    sizes = reach.sizes.get(module, set())
    if reach.known and not sizes:
        return "the example never calls it: nobody asks it, or others read its weight"
    if spec.projection != "dot":
        return ""
    if not reach.known:
        kind = "a convolution" if not isinstance(module, nn.Linear) else "a linear layer"
        raise ValueError(
            f"{spec} has dot projections, which need an example to know the input size of {kind}: pass example=images"
        )
    if len(sizes) > 1:
        return f"called with inputs of several sizes, {some(sorted(map(str, sizes)), 6)}: a dot projection fits one"
    return ""


def _make_spline(
    module: nn.Module,
    spec: SplineSpec,
    reach: Reach,
    name: str,
    spread: float,
    tied: dict[tuple[object, ...], nn.Parameter],
) -> None:
    """Turn a torch layer into a spline layer where it stands, so that everybody who knows it knows the new one."""
    weight = module.get_parameter("weight")
    size = next(iter(reach.sizes.get(module, ())), None) if spec.projection == "dot" else None
    module.__class__ = spline_class(module)
    assert isinstance(module, SplineLayer)
    try:
        module.become_spline(spec, size)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None
    with torch.no_grad():
        module.knots.add_(torch.randn_like(module.knots) * weight.std(correction=0), alpha=spread)
    # layers that share a weight share its knots
    module.knots = tied.setdefault((id(weight), spec.dims, spec.knots, spec.centered), module.knots)


def _follow(net: nn.Module, layers: list[nn.Module], example: object) -> Reach:
    """Run an example and watch in which order it passes the layers, and with which sizes."""
    reach = Reach(known=example is not None)
    if not reach.known:
        return reach

    def watch(module: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else next(iter(kwargs.values()))
        inner = x.shape[1:-1] if isinstance(module, nn.Linear) else x.shape[x.dim() - len(module.kernel_size) :]  # type: ignore[arg-type]
        reach.order.append(module)
        reach.sizes.setdefault(module, set()).add(tuple(inner))

    with hooked([layer.register_forward_pre_hook(watch, with_kwargs=True) for layer in layers]):
        try:
            run_example(net, example)
        except Exception as error:
            raise ValueError(
                f"the example {describe(example)} does not pass through {type(net).__name__}: {first_line(error)}"
            ) from error
    return reach


def _because(conversion: Conversion) -> str:
    reasons = sorted({f"{row.reason}" for row in conversion.rows})
    return f": {some(reasons, 6)}" if reasons else ": it holds no convolution and no linear layer"
