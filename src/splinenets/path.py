"""Path: hands positions from layer to layer inside a network; diffusion; size matching."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, fx, nn

from .repeats import Call, Memory, recomputing


def diffuse(parent: Tensor, proposal: Tensor, diffusion: float, *, closed: bool = False) -> Tensor:
    """Blend inherited and proposed positions: (N, C), (N, C) -> (N, C); the paper's (1 - delta) parent + delta D(x).

    On a closed curve the shorter way round is taken.
    """
    if diffusion == 1:
        return proposal
    if not closed:
        return torch.lerp(parent, proposal, diffusion)
    nearest = proposal - (proposal - parent).detach().round()
    return around(torch.lerp(parent, nearest, diffusion))


def around(turns: Tensor) -> Tensor:
    """Positions on a closed curve: whole turns make no difference, (...,) -> (...,) in [0, 1]."""
    return turns - turns.detach().floor()


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


class Visit(NamedTuple):
    """Where a layer's samples went: positions (N, C), and the same for regularisers, see ``Positions``."""

    layer: Level
    position: Tensor
    local: Tensor


class Run(Call):
    """One call of a network: the last position, and how many levels have been passed."""

    def __init__(self, outer: Run | None) -> None:
        super().__init__()
        self.outer = outer
        self.position: Tensor | None = None
        self.level = 0


class State:
    """What is going on on a path."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.entered = 0  # runs that were begun and not yet ended
        self.shared = False  # some layers of this run are compiled, and others are not
        self.last: Call | None = None  # the call that a backward pass repeats
        self.visits: list[Visit] | None = None  # somebody wants to know where samples go
        self.steered: dict[Level, Tensor] | None = None  # somebody says where they go
        self.given: dict[str, Tensor] | None = None  # positions from outside by name, (N, dims) each

    @property
    def recording(self) -> bool:
        """Whether somebody wants positions for a regulariser, with gradients of their own."""
        return self.visits is not None and torch.is_grad_enabled()


class ThreadState(threading.local):
    """One for each thread."""

    def __init__(self) -> None:
        self.state = State()


class Path:
    """Shared by the spline layers of one network; each thread has runs of its own.

    ``enter`` and ``leave`` are the network's forward hooks, so a run is as long as a call of the network. A layer that
    is called outside any run has no parent.

    torch.compile cannot look into a thread's own memory, so what it traces has a state apart. The hooks of an outermost
    module stay out of its graph: there a level that always comes first begins the run, without a look at what another
    thread may have left behind. Where only parts of a network are compiled, both states share one run.
    """

    def __init__(self) -> None:
        self.of_thread, self.traced = ThreadState(), State()
        self.memory = Memory()

    @property
    def state(self) -> State:
        """What is going on, as seen from here."""
        return self.traced if torch.compiler.is_compiling() else self.of_thread.state

    def follow(self, net: nn.Module) -> None:
        """Begin a run with every call of a network, and end it."""
        net.register_forward_pre_hook(self.enter)
        net.register_forward_hook(self.leave, always_call=True)

    def enter(self, module: nn.Module, args: object) -> None:
        """Begin a run: a forward pre-hook."""
        state = self.state
        state.run, state.entered = Run(state.run), state.entered + 1
        if not torch.compiler.is_compiling():
            state.shared = has_graphs(module)
            self.traced.run = state.run if state.shared else None

    def leave(self, module: nn.Module, args: object, output: object) -> None:
        """End a run: a forward hook, called also when the network failed."""
        state = self.state
        assert state.run is not None
        if state.run.read:
            state.run.given, state.run.position = state.given, None
            self.memory.past.append(state.run)
        state.run, state.entered = state.run.outer, state.entered - 1
        if not torch.compiler.is_compiling():
            self.traced.run = state.run if state.shared else None  # and not what a graph left behind

    def current(self, layer: Level, state: State) -> Run | None:
        """The run that is going on, as far as it got inside graphs and outside."""
        run, traced = state.run, self.traced.run
        if run is None or traced is None or traced is run or state is self.traced:
            return run
        if state.shared or (run.position is None and not layer.begins):  # a graph began anew, and came before
            run.position, run.level = traced.position, traced.level
            self.traced.run = run
        return run

    def parent(self, layer: Level, state: State) -> tuple[Tensor | None, int]:
        """The position inherited by a layer, None for the first, and the layer's level, from 1."""
        if layer.begins and not state.entered and torch.compiler.is_compiling():
            state.run = Run(None)
        run = self.current(layer, state)
        if run is None:
            return state.last.parents.get(layer, (None, 1)) if state.last and recomputing() else (None, 1)
        level = run.level + 1
        if layer in run.read:
            value = run.position
            if value is not None:  # a leaf with the same flag saves the same tensors, and keeps no graph alive
                value = value.detach().requires_grad_(value.requires_grad)
            run.parents[layer] = (value, level)
        return run.position, level

    def recognize(self, layer: Level, x: Tensor, state: State) -> None:
        """A layer is given something: by a call of the network, or once more, one by one, in a backward pass."""
        if state.run is not None:
            self.memory.note(layer, x, state.run)
        elif recomputing():
            state.last = self.memory.find(layer, x, matters=layer.needs_parent or layer.external)

    def condition(self, layer: Level, names: tuple[str, ...], samples: int, state: State) -> Tensor:
        """The positions that were given from outside under these names: (N, dims)."""
        given = state.last.given if state.last and state.given is None and recomputing() else state.given
        if given is None and state.steered is not None and layer in state.steered:
            return state.steered[layer].to(layer.like()).expand(samples, -1)
        if given is None or any(name not in given for name in names):
            raise ValueError(
                f"a layer's position comes from outside (X in its spec), and nobody gave {' and '.join(names)}: "
                f"call what sn.condition(net) returned last, as net(images, condition)"
            )
        position = given[names[0]] if len(names) == 1 else torch.cat([given[name] for name in names], 1)
        if position.shape[0] == samples:
            return position
        matched = match_samples(position, samples)
        if matched is None:
            raise ValueError(f"got conditions for {position.shape[0]} samples, and a layer's batch has {samples}")
        return matched

    def visit(self, layer: Level, position: Tensor, local: Tensor | None, state: State) -> Tensor:
        """Tell where a layer's samples went, the parent of the next layer; where they are to be, if somebody steers."""
        if state.steered is not None and layer in state.steered:
            chosen = state.steered[layer].to(position)
            if chosen.shape[0] not in (1, position.shape[0]):
                raise ValueError(f"steered for {chosen.shape[0]} samples, and a layer's batch has {position.shape[0]}")
            position = torch.where(chosen.isnan(), position, chosen)
            local = position.detach()
        run = self.current(layer, state)
        if run is not None:
            run.position = position
            run.level += 1
        if state.visits is not None:
            state.visits.append(Visit(layer, position, position if local is None else local))
        return position

    def __reduce__(self) -> tuple[type[Path], tuple[()]]:
        return Path, ()  # a copy of a network begins with no runs


_frames = torch._C._dynamo.eval_frame


class Compiler:
    """Whether torch.compile has been called in this process; most processes never do."""

    used = False

    def was_used(self) -> bool:
        """Asked with every call of a network, so the answer must be quick."""
        loaded = sys.modules.get("torch._dynamo.eval_frame")  # every optimizer imports it
        if loaded is not None and not self.used:
            backends = loaded.cached_backends  # {None: None} until something is compiled; empty after a reset
            self.used = not backends or any(map(callable, backends.values()))
        return self.used


COMPILER = Compiler()


def has_graphs(net: nn.Module) -> bool:
    """Whether torch.compile has compiled this network or a part of it."""
    if not COMPILER.was_used():
        return False
    parts = ("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in net.modules())
    return "forward" in net.__dict__ or any(parts)


def outside_graphs(function: Callable[..., object]) -> None:
    """Let a hook run as it is if it is called from outside a graph, and be traced if it is called inside one.

    ``torch.compiler.disable`` would forbid the latter, and import all of the compiler right now.
    """
    as_it_is = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)
    _frames.set_code_exec_strategy(function.__code__, as_it_is)


for _function in (Path.enter, Path.leave, has_graphs):
    outside_graphs(_function)


class Level(nn.Module):
    """A module that moves its samples along splines: what a layer must know of the path it belongs to."""

    path: Path
    splines: int
    dims: int
    matching: nn.ParameterDict
    begins: bool  # it always comes first

    def begin(self, splines: int, dims: int) -> None:
        """Start without a path: until ``connect``, this level has no parent."""
        self.splines, self.dims = splines, dims
        self.matching = nn.ParameterDict()
        self.path, self.begins = Path(), False

    def refuse_symbols(self, x: object) -> None:
        """Raise for what is no tensor with numbers."""
        if isinstance(x, fx.Proxy) or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            self.__prepare_scriptable__()

    def __prepare_scriptable__(self) -> NoReturn:
        """What torch.jit.script asks for, and what tracing comes to: a path cannot be written down that way."""
        raise ValueError(
            "TorchScript and torch.fx cannot follow positions from layer to layer: use sn.export(net, example, path), "
            "torch.export or torch.compile"
        )

    @property
    def coordinates(self) -> int:
        """C = S * dims, the number of positions a sample has here."""
        return self.splines * self.dims

    @property
    def position_shape(self) -> tuple[int, ...]:
        """The shape of one sample's positions, as users see it."""
        return (self.splines,) if self.dims == 1 else (self.splines, self.dims)

    @property
    def external(self) -> bool:
        """Whether positions come from whoever calls the network."""
        return False

    @property
    def needs_parent(self) -> bool:
        """Whether this level looks at its parent's position at all."""
        return True

    def attach(self, path: Path, parents: list[int]) -> None:
        """Join a path on which parents with these many coordinates come before this level."""
        self.path, self.begins = path, False
        for inherited in parents if self.needs_parent else ():
            if inherited != self.coordinates and str(inherited) not in self.matching:
                like = self.like()
                logits = peaked_logits(self.coordinates, inherited).to(like.device, like.dtype)
                self.matching[str(inherited)] = nn.Parameter(logits)

    def become_first(self) -> None:
        """Drop what only a level with a parent needs."""
        self.begins = True

    def like(self) -> Tensor:
        """A tensor with this level's numbers and device."""
        return next(self.parameters())

    def inherit(self, samples: int, state: State) -> tuple[Tensor | None, int]:
        """The parent's positions in this level's size, (N, C), or None; and the level's number."""
        parent, level = self.path.parent(self, state)
        if parent is None or not self.needs_parent:
            return None, level
        if parent.shape[0] != samples:
            parent = match_samples(parent, samples)
        if parent is None or parent.shape[1] == self.coordinates:
            return parent, level
        key = str(parent.shape[1])
        if key in self.matching:
            return match_size(parent, self.matching[key]), level
        return nearest_positions(parent, self.coordinates), level
