"""Path: hands positions from layer to layer inside a network; diffusion; size matching; trace."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn


def diffuse(parent: Tensor, proposal: Tensor, diffusion: float) -> Tensor:
    """Blend inherited and proposed positions: (N, C), (N, C) -> (N, C); the paper's (1 - delta) parent + delta D(x)."""
    return proposal if diffusion == 1 else torch.lerp(parent, proposal, diffusion)


def match_size(parent: Tensor, logits: Tensor) -> Tensor:
    """Inherited positions of another size, as convex combinations: (N, P), (C, P) -> (N, C) in [0, 1]."""
    # not a matmul, which autocast would make imprecise
    return (parent.unsqueeze(1) * logits.softmax(1).to(parent.dtype)).sum(2)


def peaked_logits(coordinates: int, inherited: int, peak: float = 0.9) -> Tensor:
    """A start for ``match_size``, (C, P): every row puts the weight ``peak`` on one position.

    Uniform rows would average all inherited positions, and an average of many barely moves.
    """
    logits = torch.zeros(coordinates, inherited)
    nearest = (torch.arange(coordinates) * 2 + 1) * inherited // (2 * coordinates)
    if inherited > 1:
        logits[torch.arange(coordinates), nearest] = math.log(peak / (1 - peak) * (inherited - 1))
    return logits


def nearest_positions(parent: Tensor, coordinates: int) -> Tensor:
    """Size matching without parameters, for a size that nobody foresaw: (N, P) -> (N, C)."""
    inherited = parent.shape[1]
    return parent[:, (torch.arange(coordinates, device=parent.device) * 2 + 1) * inherited // (2 * coordinates)]


Visit: TypeAlias = "tuple[Level, Tensor, Tensor]"  # where, the position, and the position for regularisers


def match_samples(parent: Tensor, samples: int) -> Tensor | None:
    """Positions for a batch that a network has cut into parts, or put together again: (N, C) -> (samples, C).

    A part of a sample inherits the sample's position, a sample made of parts their mean. Otherwise there is no parent.
    """
    before = parent.shape[0]
    if before and samples % before == 0:
        return parent.repeat_interleave(samples // before, 0)
    if samples and before % samples == 0:
        return parent.unflatten(0, (samples, -1)).mean(1)
    return None


class Run:
    """One call of a network: the last position, and how many levels have been passed."""

    def __init__(self, outer: Run | None) -> None:
        self.outer = outer
        self.position: Tensor | None = None
        self.level = 0
        self.parents: dict[Level, tuple[Tensor | None, int]] = {}


class Path(threading.local):
    """Shared by the spline layers of one network; each thread sees its own runs.

    ``enter`` and ``leave`` are the network's forward hooks, so a run is as long as a call of the network. A layer that
    is called outside any run has no parent.
    """

    def __init__(self) -> None:  # once in every thread
        self.run: Run | None = None
        self.last: Run | None = None
        self.visits: list[Visit] | None = None
        self.steered: dict[Level, Tensor] | None = None

    def enter(self, module: nn.Module, args: Any) -> None:
        """Begin a run: a forward pre-hook."""
        self.run = Run(self.run)

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """End a run: a forward hook, called also when the network failed."""
        assert self.run is not None
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            self.last = self.run
        self.run = self.run.outer

    def parent(self, layer: Level) -> tuple[Tensor | None, int]:
        """The position inherited by a layer, None for the first, and the layer's level, from 1."""
        run = self.run
        if run is None:
            # gradient checkpointing calls layers again, one by one, during the backward pass
            return self.last.parents.get(layer, (None, 1)) if self.last and recomputing() else (None, 1)
        level = run.level + 1
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            value = run.position
            if value is not None:  # a leaf with the same flag saves the same tensors, and keeps no graph alive
                value = value.detach().requires_grad_(value.requires_grad)
            run.parents[layer] = (value, level)
        return run.position, level

    def visit(self, layer: Level, position: Tensor, local: Callable[[], Tensor]) -> Tensor:
        """Tell where a layer's samples went, the parent of the next layer; where they are to be, if somebody steers."""
        if self.steered is not None and layer in self.steered:
            chosen = self.steered[layer].to(position)
            position = torch.where(chosen.isnan(), position, chosen)
            local = position.detach
        if self.run is not None:
            self.run.position = position
            self.run.level += 1
        if self.visits is not None:
            self.visits.append((layer, position, local() if torch.is_grad_enabled() else position))
        return position

    def __reduce__(self) -> tuple[type[Path], tuple[()]]:
        return Path, ()  # a copy of a network begins with no runs


def recomputing() -> bool:
    """Whether this is a backward pass, where layers are called only to be computed once more."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Level(nn.Module):
    """A module that moves its samples along splines: what a layer must know of the path it belongs to."""

    path: Path
    splines: int
    dims: int
    matching: nn.ParameterDict

    def begin(self, splines: int, dims: int) -> None:
        """Start without a path: until ``connect``, this level has no parent."""
        self.splines, self.dims = splines, dims
        self.matching = nn.ParameterDict()
        self.path = Path()

    @property
    def coordinates(self) -> int:
        """C = S * dims, the number of positions a sample has here."""
        return self.splines * self.dims

    @property
    def position_shape(self) -> tuple[int, ...]:
        """The shape of one sample's positions, as users see it."""
        return (self.splines,) if self.dims == 1 else (self.splines, self.dims)

    @property
    def needs_parent(self) -> bool:
        """Whether this level looks at its parent's position at all."""
        return True

    def attach(self, path: Path, parents: list[int]) -> None:
        """Join a path on which parents with these many coordinates come before this level."""
        self.path = path
        for inherited in parents if self.needs_parent else ():
            if inherited != self.coordinates and str(inherited) not in self.matching:
                like = next(self.parameters())
                logits = peaked_logits(self.coordinates, inherited).to(like.device, like.dtype)
                self.matching[str(inherited)] = nn.Parameter(logits)

    def become_first(self) -> None:
        """Drop what only a level with a parent needs."""

    def inherit(self, samples: int) -> tuple[Tensor | None, int]:
        """The parent's positions in this level's size, (N, C), or None; and the level's number."""
        parent, level = self.path.parent(self)
        if parent is not None and parent.shape[0] != samples:
            parent = match_samples(parent, samples)
        if parent is None or not self.needs_parent or parent.shape[1] == self.coordinates:
            return parent if self.needs_parent else None, level
        key = str(parent.shape[1])
        if key in self.matching:
            return match_size(parent, self.matching[key]), level
        return nearest_positions(parent, self.coordinates), level


def connect(net: nn.Module, *example: Any, **kwargs: Any) -> nn.Module:
    """Let positions travel through a network: join all its levels to one path, in place, and return it.

    Levels follow each other in the order in which an example passes them, or, without an example, in the order of
    their definition. The first becomes a plain one, and where sizes differ a learned matrix appears: connect before
    you hand the parameters to an optimizer. ``convert`` does this for you.
    """
    order = [m for m in net.modules() if isinstance(m, Level)]
    if example or kwargs:
        with evaluating(net), torch.no_grad(), _recording({m.path for m in order}) as visits:
            net(*example, **kwargs)
        order = [level for level, _, _ in visits]
    join(net, order)
    return net


def join(net: nn.Module, order: list[Level]) -> None:
    """Give a network one path, which passes its levels in this order; a level may come several times."""
    remove_path(net)
    path = Path()
    levels = [m for m in net.modules() if isinstance(m, Level)]
    for level in levels:
        before = [order[i - 1].coordinates for i, other in enumerate(order) if other is level and i > 0]
        level.attach(path, sorted(set(before)))
        if order and level is order[0] and not before:
            level.become_first()
    if levels:
        net.register_forward_pre_hook(path.enter)
        net.register_forward_hook(path.leave, always_call=True)


def remove_path(net: nn.Module) -> None:
    """Take away the hooks that begin and end runs, wherever in a network they are."""
    for module in net.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(getattr(hook, "__self__", None), Path):
                    del hooks[key]


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


class Positions(dict[str, Tensor]):
    """{layer name: positions (N, S)}, and (N, S, dims) on surfaces. A layer called again is listed as "name#2".

    ``local`` holds the same numbers with a gradient for the projections alone: features and parents are detached.
    """

    local: dict[str, Tensor]

    def __init__(self, positions: dict[str, Tensor], local: dict[str, Tensor] | None = None) -> None:
        super().__init__(positions)
        self.local = dict(positions if local is None else local)


def trace(net: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Positions]:
    """Call a network and see where the samples travelled: ``logits, positions = sn.trace(net, images)``."""
    names = {m: name for name, m in net.named_modules() if isinstance(m, Level)}
    with _recording({m.path for m in names}) as visits:
        output = net(*args, **kwargs)
    positions: dict[str, Tensor] = {}
    local: dict[str, Tensor] = {}
    calls: dict[str, int] = {}
    for layer, position, local_position in visits:
        name = names[layer]
        calls[name] = calls.get(name, 0) + 1
        key = name if calls[name] == 1 else f"{name}#{calls[name]}"
        shape = layer.position_shape
        positions[key] = position.unflatten(1, shape)
        local[key] = local_position.unflatten(1, shape)
    return output, Positions(positions, local)


@contextmanager
def steer(net: nn.Module, positions: Mapping[str, Tensor]) -> Iterator[None]:
    """Choose positions by hand inside a with block: {layer name: (S,) or (N, S), like those of ``trace``}.

    NaN leaves a position as the sample chooses it. Later layers inherit what was chosen. Other threads are not steered.
    """
    levels = {name: m for name, m in net.named_modules() if isinstance(m, Level)}
    steered: dict[Level, Tensor] = {}
    for name, chosen in positions.items():
        if name not in levels:
            raise ValueError(f"no spline layer {name!r}, choose from {list(levels)}")
        shape = levels[name].position_shape
        if tuple(chosen.shape[-len(shape) :]) != shape or not len(shape) <= chosen.dim() <= len(shape) + 1:
            raise ValueError(f"positions of {name!r} have shape {shape} a sample, got {tuple(chosen.shape)}")
        if not bool(((chosen >= 0) & (chosen <= 1) | chosen.isnan()).all()):
            raise ValueError(f"positions of {name!r} must lie between 0 and 1, or be NaN to be left alone")
        steered[levels[name]] = chosen.reshape(-1, levels[name].coordinates)
    before = [(path, path.steered) for path in {level.path for level in levels.values()}]
    try:
        for path, _ in before:
            path.steered = steered
        yield
    finally:
        for path, outer in before:
            path.steered = outer


@contextmanager
def _recording(paths: set[Path]) -> Iterator[list[Visit]]:
    visits: list[Visit] = []
    before = [(path, path.visits) for path in paths]
    try:
        for path in paths:
            path.visits = visits
        yield visits
    finally:
        for path, outer in before:
            path.visits = outer
