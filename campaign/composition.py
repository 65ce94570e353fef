"""Composition: networks in every state, inside whatever torch does with them: it works, or a sentence says why not."""

from __future__ import annotations

import copy
import io
import os
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.helpers.runs import fork, free_port, outcome
from tests.helpers.states import ACTIONS, IMAGES, LABELS, REFUSED, STATES, Net
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import splinenets as sn
from campaign.harness import Kind, Skipped, Trial, or_a_sentence

TITLE = "composition"
SPECS = ("D(5)-C-R3", "H(5)-D-R4", "H(4)-C-G2 degree=3 diffusion=0.75 dims=2", "D(3)-D-R3 independent", "H(3)-C-R3 raw")


def after(work: Callable[[nn.Module], object]) -> Callable[[nn.Module], nn.Module]:
    """The network itself, to which something was done."""

    def change(net: nn.Module) -> nn.Module:
        work(net)
        return net

    return change


STEPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "trace": after(ACTIONS["trace"]),
    "copy": copy.deepcopy,
    "calibrate": after(lambda net: sn.calibrate(net, IMAGES)),
    "connect": lambda net: sn.connect(net, IMAGES),
    "fold": lambda net: sn.fold_batchnorm(net, IMAGES),
    "deploy": lambda net: sn.deploy(net, IMAGES),
    "deploy int8": lambda net: sn.deploy(net, IMAGES, knots="int8"),
    "collapse": lambda net: sn.collapse(net, 0.4),
    "convert": lambda net: sn.convert(net, "D(3)-C-R3", example=IMAGES, spread=0.2),
    "learn": after(ACTIONS["learn"]),
    "half": lambda net: net.bfloat16().float(),
    "channels last": lambda net: net.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    "load": after(lambda net: net.load_state_dict(copy.deepcopy(net.state_dict()))),
}
SAME = ("trace", "copy", "connect", "fold", "deploy", "channels last", "load")  # steps that change no answer


def prepare(shared: Path) -> None:
    """Nothing is needed."""


def converted(dice: random.Random) -> nn.Module:
    """A network with splines."""
    return sn.convert(Net(), dice.choice(SPECS), example=IMAGES, spread=0.3)


# Public functions


def states(trial: Trial) -> None:
    """Every function in every state, in turn."""
    pairs = [
        (state, action) for state in STATES for action in ACTIONS if not (state == "compiled" or action == "compile")
    ]
    state, action = pairs[trial.number % len(pairs)]
    complaint = REFUSED.get((action, state))
    with or_a_sentence(complaint or "", (ValueError, RuntimeError) if complaint else ()):
        act(ACTIONS[action], STATES[state])


def act(action: Callable[[nn.Module], object], make: Callable[[], nn.Module]) -> None:
    """Do something to a network in some state."""
    action(make())


def chains(trial: Trial) -> None:
    """Several functions, one on the result of the other, in any order."""
    net, done = trial.dice.choice((Net, partial(converted, trial.dice)))(), []
    for _ in range(trial.dice.randrange(2, 7)):
        name = trial.dice.choice(sorted(STEPS))
        done.append(name)
        with or_a_sentence(kinds=(ValueError, RuntimeError)):
            net = step(net, name, " > ".join(done))


def step(net: nn.Module, name: str, done: str) -> nn.Module:
    """One function; those that promise it change no answer."""
    with torch.no_grad():
        before = net.eval()(IMAGES)
    changed = STEPS[name](net)
    with torch.no_grad():
        after = changed.eval()(IMAGES)
    assert after.isfinite().all(), f"{done}: not finite"
    if name in SAME:
        error = (after - before).abs().max().item()
        assert error < 1e-3 * max(1, before.abs().max().item()), f"{done}: answers move by {error:.2g}"
    return changed


# What torch does with a network


def gradients(net: nn.Module) -> dict[str, Tensor]:
    """Of all parameters, by name."""
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def alike(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    """Equal but for rounding."""
    assert left.keys() == right.keys(), sorted(left.keys() ^ right.keys())
    for name in left:
        error = (left[name] - right[name]).abs().max().item()
        assert error <= tolerance * max(1.0, right[name].abs().max().item()), f"{name} is off by {error:.2g}"


def learned(net: nn.Module, call: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
    """Gradients of a loss."""
    net.zero_grad()
    F.cross_entropy((call or net)(IMAGES), LABELS).backward()
    return gradients(net)


def averaged(net: nn.Module, dice: random.Random) -> None:
    """torch.optim.swa_utils.AveragedModel, and the batch norms of the average."""
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    torch.testing.assert_close(average.eval()(IMAGES), net.eval()(IMAGES))


def pickled(net: nn.Module, dice: random.Random) -> None:
    """A state_dict through torch.save, into a network that was made anew."""
    file, twin = io.BytesIO(), copy.deepcopy(net)
    torch.save(net.state_dict(), file)
    file.seek(0)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(twin.eval()(IMAGES), net.eval()(IMAGES))


class Checkpointed(nn.Module):
    """Recomputes a part of its network on the way back; several calls of it may be under way."""

    def __init__(self, net: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = net, reentrant

    def forward(self, images: Tensor) -> Tensor:
        """As the network, whose body is recomputed."""
        stem, body, head = (self.net.get_submodule(name) for name in ("stem", "body", "head"))
        inner = torch.relu(stem(images))
        return head(checkpoint(body, inner, use_reentrant=self.reentrant).mean((2, 3)))


def recomputed(net: nn.Module, dice: random.Random) -> None:
    """Gradient checkpointing, with two forward passes before the way back; the reentrant kind may be refused."""
    reentrant, plain = dice.random() < 0.3, copy.deepcopy(net)
    wrapped = sn.connect(Checkpointed(copy.deepcopy(net), reentrant))

    def twice(model: nn.Module) -> dict[str, Tensor]:
        first, second = model(IMAGES), model(IMAGES.flip(0))
        (F.cross_entropy(first, LABELS) + F.cross_entropy(second, LABELS)).backward()
        return gradients(model)

    with or_a_sentence("set use_reentrant=False", (RuntimeError,) if reentrant else ()):
        alike({f"net.{name}": value for name, value in twice(plain).items()}, twice(wrapped))


def functional(net: nn.Module, dice: random.Random) -> None:
    """torch.func.functional_call with other parameters."""
    twin = copy.deepcopy(net.eval())
    given = {name: parameter / 2 for name, parameter in net.named_parameters()}
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.div_(2)
    torch.testing.assert_close(torch.func.functional_call(net, given, (IMAGES,)), twin(IMAGES))


def transformed(net: nn.Module, dice: random.Random) -> None:
    """torch.func.grad and vmap: gradients of each sample, or a sentence."""
    parameters = {name: parameter.detach() for name, parameter in net.eval().named_parameters()}

    def loss(given: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        found = torch.func.functional_call(net, given, (image.unsqueeze(0),))
        return F.cross_entropy(found, label.unsqueeze(0))

    each = [torch.func.grad(loss)(parameters, IMAGES[n], LABELS[n]) for n in range(2)]
    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, IMAGES[:2], LABELS[:2])
    for name, values in together.items():
        torch.testing.assert_close(values, torch.stack([one[name] for one in each]), rtol=1e-3, atol=1e-4)


def on_meta(net: nn.Module, dice: random.Random) -> None:
    """Shapes without numbers."""
    assert net.to("meta")(IMAGES.to("meta")).shape == (6, 3)


def in_half(net: nn.Module, dice: random.Random) -> None:
    """float16 or bfloat16 all the way."""
    dtype = dice.choice((torch.float16, torch.bfloat16))
    expected = net.eval()(IMAGES)
    found = net.to(dtype)(IMAGES.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.15)


def autocast(net: nn.Module, dice: random.Random) -> None:
    """Mixed precision, forwards and backwards."""
    with torch.autocast("cpu", torch.bfloat16):
        found = learned(net)
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in found.values())


def in_threads(net: nn.Module, dice: random.Random) -> None:
    """Several threads call one network at once; each has its own answer."""
    net.eval()
    batches = [torch.randn(dice.randrange(1, 5), 3, 8, 8) for _ in range(4)]
    expected = [net(batch).detach() for batch in batches]
    found: dict[int, Tensor] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: net(batches[n]).detach()})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, answer in enumerate(expected):
        torch.testing.assert_close(found[number], answer)


def forked(net: nn.Module, dice: random.Random) -> None:
    """A child of a process whose network has computed, with one thread or two: works, or raises."""
    torch.set_num_threads(dice.choice((1, 2)))
    expected = net.eval()(IMAGES.repeat(20, 1, 1, 1)).detach()

    def work() -> None:
        with or_a_sentence(kinds=(RuntimeError, ValueError)):
            torch.testing.assert_close(net(IMAGES.repeat(20, 1, 1, 1)).detach(), expected)

    assert outcome(fork(work)) == 0


def spawned(net: nn.Module, dice: random.Random) -> None:
    """A process of its own, which gets a state_dict."""
    file = Path("weights.pt").resolve()
    torch.save(net.state_dict(), file)
    code = f"import torch; d = torch.load({str(file)!r}, weights_only=True); import splinenets; print(len(d))"
    import subprocess

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == str(len(net.state_dict())), found.stderr


class Positions(torch.utils.data.Dataset[Tensor]):
    """Images whose positions are computed by whoever loads them."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.net(IMAGES[index : index + 1])[0]


def loaded_by_workers(net: nn.Module, dice: random.Random) -> None:
    """A network inside the worker processes of a DataLoader."""
    expected = torch.cat([net.eval()(IMAGES[n : n + 1]) for n in range(len(IMAGES))]).detach()
    loader = torch.utils.data.DataLoader(Positions(net), batch_size=3, num_workers=2)
    torch.testing.assert_close(torch.cat(list(loader)), expected)


# Several ranks


def on_two_ranks(work: Callable[[], None]) -> None:
    """Do ``work`` on two ranks of this machine."""
    port = free_port()

    def rank_of(number: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=number, world_size=2)
        work()
        dist.destroy_process_group()

    children = [fork(partial(rank_of, number)) for number in range(2)]
    assert [outcome(child) for child in children] == [0, 0]


def distributed(net: nn.Module, dice: random.Random) -> None:
    """DistributedDataParallel, with a static graph or without: gradients of the whole batch."""
    static = dice.random() < 0.5
    net.eval()  # batch statistics are those of a rank, so nothing depends on them here
    expected = learned(copy.deepcopy(net))

    def work() -> None:
        wrapped = nn.parallel.DistributedDataParallel(net, static_graph=static, find_unused_parameters=not static)
        own = slice(dist.get_rank(), None, 2)
        for _ in range(2):
            wrapped.zero_grad()
            F.cross_entropy(wrapped(IMAGES[own]), LABELS[own]).backward()
        alike(gradients(net), expected)

    on_two_ranks(work)


def sharded(net: nn.Module, dice: random.Random) -> None:
    """FSDP2: parameters in two halves, the same answers and gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net.eval()
    expected = net(IMAGES).detach()
    wanted = learned(copy.deepcopy(net))

    def work() -> None:
        fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
        torch.testing.assert_close(net(IMAGES).detach(), expected)
        alike({name: grad.full_tensor() for name, grad in learned(net).items()}, wanted, 1e-3)  # type: ignore[attr-defined]

    on_two_ranks(work)


FRAMEWORKS: dict[str, tuple[Callable[[nn.Module, random.Random], None], int]] = {
    "AveragedModel": (averaged, 20),
    "pickle of a state_dict": (pickled, 20),
    "checkpointing, several forwards": (recomputed, 40),
    "functional_call": (functional, 20),
    "torch.func": (transformed, 20),
    "meta device": (on_meta, 20),
    "float16 and bfloat16": (in_half, 20),
    "autocast": (autocast, 20),
    "threads": (in_threads, 40),
    "fork": (forked, 20),
    "spawn": (spawned, 5),
    "DataLoader workers": (loaded_by_workers, 10),
    "DDP, static graph or not": (distributed, 10),
    "FSDP2 on two ranks": (sharded, 10),
}
ON_TWO_RANKS = ("DDP, static graph or not", "FSDP2 on two ranks")
MAY_REFUSE = ("torch.func", "float16 and bfloat16", "meta device")


def framework(name: str, trial: Trial) -> None:
    """A converted network inside something of torch's."""
    kinds = (ValueError, RuntimeError, NotImplementedError) if name in MAY_REFUSE else ()
    if name in ON_TWO_RANKS and not dist.is_available():
        raise Skipped("torch was built without torch.distributed")
    with or_a_sentence(kinds=kinds):
        FRAMEWORKS[name][0](converted(trial.dice), trial.dice)


KINDS = {
    "functions x states": Kind(run=states, trials=len(STATES) * len(ACTIONS), seconds=120),
    "chains of functions": Kind(run=chains, trials=500, seconds=120),
    **{name: Kind(run=partial(framework, name), trials=count, seconds=120) for name, (_, count) in FRAMEWORKS.items()},
}
