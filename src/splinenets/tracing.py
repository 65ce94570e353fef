"""Positions through a whole network: connect its layers, see where samples travel, and choose where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .path import Level, Path, State, Visit, has_graphs
from .tables import bars, html_table

Net = TypeVar("Net", bound=nn.Module)


@torch.inference_mode(False)  # what is made inside could never be trained
def connect(net: nn.Module, *example: object, **kwargs: object) -> nn.Module:
    """Let positions travel from layer to layer: join all layers of a network to one path, in place, and return it.

    Layers follow each other in the order in which an example passes them or, without an example, in the order of
    their definition. The first one gets plain decision parameters, and where sizes differ a learned matrix is added:
    connect before you give the parameters to an optimizer. ``convert`` does this for you.
    """
    order = list(levels_of(net).values())
    if example or kwargs:
        with evaluating(net), torch.no_grad(), _recording(net, order) as visits:
            net(*example, **kwargs)
        order = [level for level, _, _ in visits]
    join(net, order)
    return net


def join(net: nn.Module, order: list[Level]) -> None:
    """Give a network one path, which passes its levels in this order; a level may come several times."""
    net = uncompiled(net)
    remove_path(net)
    path = Path()
    levels = [m for m in net.modules() if isinstance(m, Level)]
    for level in levels:
        before = [order[i - 1].coordinates for i, other in enumerate(order) if other is level and i > 0]
        level.attach(path, sorted(set(before)))
        if order and level is order[0] and not before:
            level.become_first()
    if levels:
        path.follow(net)


def remove_path(net: nn.Module) -> None:
    """Take away the hooks that begin and end runs, wherever in a network they are."""
    for module in net.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if _is_of_a_path(hook):
                    del hooks[key]


def has_hooks(module: nn.Module) -> bool:
    """Whether anybody but a path listens to a module's calls, or changes what goes in and out."""
    return not all(map(_is_of_a_path, [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]))


def _is_of_a_path(hook: Callable[..., object]) -> bool:
    return isinstance(getattr(hook, "__self__", None), Path)


def logits_of(output: object) -> Any:
    """What a network answers; of one that answers with more, as those of transformers do, the logits."""
    return getattr(output, "logits", output)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Put a network into eval mode inside a with block; afterwards every module is as it was."""
    training = [m for m in net.modules() if m.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks that end with a with block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_example(net: nn.Module, example: object) -> Any:
    """Call a network with an example, in eval mode and without gradients."""
    with evaluating(net), torch.no_grad():
        return call(net, example)


def call(net: nn.Module, example: object) -> Any:
    """Call a network with an example."""
    if isinstance(example, Mapping):
        return net(**example)
    return net(*example) if isinstance(example, tuple | list) else net(example)


def describe(example: object) -> str:
    """An example in a few words, for messages."""
    if isinstance(example, Tensor):
        return f"of shape {tuple(example.shape)}"
    if isinstance(example, Mapping):
        return "with " + ", ".join(f"{k} {describe(v)}" for k, v in example.items())
    if isinstance(example, tuple | list):
        return "with " + ", ".join(describe(v) for v in example)
    return f"of type {type(example).__name__}"


class Positions(dict[str, Tensor]):
    """{layer name: positions (N, S)}, and (N, S, dims) on surfaces. A layer called again is listed as "name#2".

    ``local`` holds the same numbers with a gradient for the projections alone: features and parents are detached.
    ``given`` names the layers whose positions came from outside, which are neither judged nor regularised.
    """

    local: dict[str, Tensor]
    given: frozenset[str]

    def __init__(
        self, positions: dict[str, Tensor], local: dict[str, Tensor] | None = None, given: Iterable[str] = ()
    ) -> None:
        super().__init__(positions)
        self.local, self.given = dict(positions if local is None else local), frozenset(given)

    def inferred(self) -> Positions:
        """The positions that the network itself chose."""
        if not self.given:
            return self
        own, local = ({n: p for n, p in part.items() if n not in self.given} for part in (self, self.local))
        return Positions(own, local)

    def _repr_html_(self) -> str:
        """For notebooks: how many there are, and how they are spread from 0 to 1."""
        return html_table(
            ("layer", "images", "curves", "mean", "deviation", "from 0 to 1"),
            [(name, *_summary(position)) for name, position in self.items()],
            notes=[f"told, not chosen: {', '.join(sorted(self.given))}"] if self.given else (),
        )


def _summary(position: Tensor) -> tuple[str, ...]:
    """Sizes of positions (N, S) or (N, S, dims), and their histogram as small bars."""
    numbers = position.detach().float().flatten()
    numbers = numbers[numbers.isfinite()].cpu()
    sizes = (f"{len(position):,}", " x ".join(map(str, position.shape[1:])))
    if not len(numbers):
        return (*sizes, "-", "-", "")
    counts = torch.histc(numbers, 20, 0, 1)
    shares = (counts / counts.max().clamp_min(1)).tolist()
    return (*sizes, f"{numbers.mean():.2f}", f"{numbers.std(correction=0):.2f}", bars(shares))


def join_positions(parts: Sequence[Positions]) -> Positions:
    """The positions of several batches, one after the other."""
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Positions(joined, given=parts[0].given)


def trace(net: nn.Module, *args: object, **kwargs: object) -> tuple[Any, Positions]:
    """Call a network and see where the samples travelled: ``logits, positions = sn.trace(net, images)``.

    ``positions`` is a dict from a layer's name to (N, S): a number from 0 to 1 for each sample and each of the layer's
    S curves. Layers are in the order in which the samples reached them.

    Examples:
        >>> net = sn.convert(sn.models.lenet(4), "D(5)-C-R3")
        >>> logits, positions = sn.trace(net, torch.randn(10, 1, 28, 28))
        >>> {name: tuple(each.shape) for name, each in positions.items()}
        {'conv1': (10, 4), 'conv2': (10, 8), 'dense1': (10, 1), 'dense2': (10, 1)}
    """
    levels = levels_of(net)
    with _recording(net, levels.values()) as visits:
        output = net(*args, **kwargs)
    names = {level: name for name, level in levels.items()}
    positions: dict[str, Tensor] = {}
    local: dict[str, Tensor] = {}
    calls: dict[str, int] = {}
    given = []
    for layer, position, local_position in visits:
        name = names[layer]
        calls[name] = calls.get(name, 0) + 1
        key = name if calls[name] == 1 else f"{name}#{calls[name]}"
        shape = layer.position_shape
        positions[key] = position.unflatten(1, shape)
        local[key] = local_position.unflatten(1, shape)
        if layer.external:
            given.append(key)
    return output, Positions(positions, local, given)


def levels_of(net: nn.Module) -> dict[str, Level]:
    """The spline layers of a network by name, the same names whether it or a part of it is compiled or not."""
    return {plain_name(name): m for name, m in net.named_modules() if isinstance(m, Level)}


def plain_name(name: str) -> str:
    """A name in a network as it was before torch.compile wrapped the network or a part of it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def uncompiled(net: Net) -> Net:
    """The network that torch.compile wraps; any other network itself."""
    return getattr(net, "_orig_mod", net)


@contextmanager
def steer(net: nn.Module, positions: Mapping[str, Tensor]) -> Iterator[None]:
    """Choose positions by hand inside a with block: {layer name: (S,) or (N, S), like those of ``trace``}.

    NaN leaves the choice to the sample. Later layers inherit what was chosen. Other threads are not steered,
    unless they call the network as torch.compile has compiled it.

    Examples:
        >>> net = sn.convert(sn.models.lenet(4), "D(5)-C-R4")
        >>> with sn.steer(net, {"conv1": torch.tensor([0.25])}):
        ...     _, positions = sn.trace(net, torch.randn(10, 1, 28, 28))
        >>> bool((positions["conv1"] == 0.25).all())
        True
    """
    levels = levels_of(net)
    for name, chosen in positions.items():
        if name not in levels:
            raise ValueError(f"no spline layer {name!r}, choose from {', '.join(levels) or 'none: there are none'}")
        _check_chosen(name, chosen, levels[name].position_shape)
    steered = {levels[name]: chosen.reshape(-1, levels[name].coordinates) for name, chosen in positions.items()}
    with saying(_states(levels.values(), compiled=True), "steered", steered):
        yield


def _check_chosen(name: str, chosen: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(chosen.shape[-len(shape) :]) != shape or not len(shape) <= chosen.dim() <= len(shape) + 1:
        raise ValueError(f"positions of {name!r} have shape {shape} a sample, got {tuple(chosen.shape)}")
    if not bool(((chosen >= 0) & (chosen <= 1) | chosen.isnan()).all()):
        raise ValueError(f"positions of {name!r} must lie between 0 and 1, or be NaN to be left alone")


@contextmanager
def _recording(net: nn.Module, levels: Iterable[Level]) -> Iterator[list[Visit]]:
    visits: list[Visit] = []
    states = _states(levels, compiled=not torch.compiler.is_compiling() and has_graphs(net))
    with saying(states, "visits", visits):
        yield visits


@contextmanager
def saying(states: Sequence[State], what: str, value: object) -> Iterator[None]:
    """Tell paths something inside a with block: who watches, who steers, what was given."""
    before = [getattr(state, what) for state in states]
    try:
        for state in states:
            setattr(state, what, value)
        yield
    finally:
        for state, outer in zip(states, before, strict=True):
            setattr(state, what, outer)


def _states(levels: Iterable[Level], *, compiled: bool) -> list[State]:
    """Where calls of a network find out that somebody watches or steers."""
    paths = dict.fromkeys(level.path for level in levels)
    if torch.compiler.is_compiling():
        return [path.traced for path in paths]
    return [path.of_thread.state for path in paths] + ([path.traced for path in paths] if compiled else [])
