"""Numbers: layers and networks in every setting, compared with a slow and obvious reference in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from tests.helpers.problems import LAYERS, make, reference, with_parent
from torch import Tensor, nn

import splinenets as sn
from campaign.harness import Kind, Trial, or_a_sentence

TITLE = "numbers"
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-2}
STRATEGIES = ("auto", "auto", "single", "grouped", "unfold", "bank", "fused", "measure")
MODES = ("grad", "no_grad", "inference")
PLACES = ("input", "knots", "bias", "parent", "weight")


def prepare(shared: Path) -> None:
    """Nothing is needed."""


# Settings that the dice choose


def random_spec(dice: random.Random) -> str:
    """A spec that fits every layer of ``LAYERS``, which have four filters."""
    knots = dice.randrange(2, 8)
    degree = dice.randrange(1, min(knots, 5))
    head = f"{dice.choice('DH')}({knots})-{dice.choice('CD')}-{dice.choice(('R3', 'R4', 'G2'))} degree={degree}"
    more = [f"diffusion={dice.choice((1, 0.75, 0.1))}", f"dims={dice.choice((1, 1, 2))}"]
    return " ".join([head, *more, *(flag for flag in ("raw", "independent") if dice.random() < 0.25)])


def rearranged(tensor: Tensor, dice: random.Random) -> Tensor:
    """The same numbers, lying in memory in another order, with gaps, or at an odd address."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor
    how = dice.randrange(5)
    if how == 0:
        return tensor
    if how == 1:
        order = dice.sample(range(tensor.dim()), tensor.dim())
        back = [order.index(place) for place in range(tensor.dim())]
        return tensor.permute(order).contiguous().permute(back)
    if how == 2:
        return torch.stack([tensor, tensor], -1)[..., dice.randrange(2)]
    if how == 3:
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)
    return tensor.flip(0).contiguous().flip(0) if tensor.dim() != 4 else tensor.to(memory_format=torch.channels_last)


def scatter(layer: nn.Module, dice: random.Random) -> None:
    """Let parameters and buffers lie in memory anyhow."""
    for module in layer.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(rearranged(parameter.detach(), dice)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, rearranged(buffer, dice))


# Trials; each has several layers, because a process's first layer takes ten times as long as its second


def several(run: Callable[[random.Random], None], count: int) -> Callable[[Trial], None]:
    """A trial of so many layers or networks."""

    def trials(trial: Trial) -> None:
        for _ in range(count):
            run(trial.dice)

    return trials


def layer(dice: random.Random) -> None:
    """Outputs and gradients of a layer, in one strategy and one setting, beside the reference."""
    name, dtype, mode = dice.choice(sorted(LAYERS)), dice.choice(list(TOLERANCES)), dice.choice(MODES)
    spline, shape = make(name, random_spec(dice))
    samples = dice.choice((1, 2, 3, 9))
    spline.train(dice.random() < 0.3 and samples > 1)
    x, parent = torch.randn(samples, *shape).double(), torch.rand(samples, spline.coordinates).double()
    strategy = dice.choice(STRATEGIES)
    settings = f"{name} {spline.spec} {dtype} {mode} {strategy} samples={samples} training={spline.training}"
    spline.to(dtype).double()  # numbers that both have
    exactly = x.to(dtype).double()
    expected = outcome(spline, exactly, parent, None, mode)
    slack = unsteady(spline, exactly, parent, mode, expected, torch.finfo(dtype).eps)
    spline.to(dtype)
    scatter(spline, dice)
    exact = torch.promote_types(dtype, torch.float32)  # positions never have fewer bits than that
    given = rearranged(x.to(dtype), dice), rearranged(parent.to(exact), dice)
    with or_a_sentence("the strategy 'fused'"):  # alone does not serve everywhere, and says so
        agree(outcome(spline, *given, strategy, mode), expected, slack, TOLERANCES[dtype], settings)


def outcome(layer: sn.SplineLayer, x: Tensor, parent: Tensor, strategy: str | None, mode: str) -> dict[str, Tensor]:
    """Output, and in the mode "grad" all gradients, by a strategy or by the reference."""
    learning = mode == "grad"
    layer.zero_grad()
    state = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    with torch.inference_mode(mode == "inference"), torch.set_grad_enabled(learning):
        x, parent = x.detach().requires_grad_(learning), parent.detach().requires_grad_(learning)
        if strategy is None:
            y, _ = reference(layer, x, parent, layer.spec.diffusion_at(2))
        else:
            with sn.strategy(strategy):
                y = with_parent(layer, parent)(x)
        found = {"output": y}
        if learning:
            (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).cos().view_as(y)).sum().backward()
            found |= {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
            found |= {"input": x.grad} if x.grad is not None else {}
    for name, buffer in layer.named_buffers():
        buffer.detach().copy_(state[name])
    return {name: tensor.detach().double() for name, tensor in found.items()}


def unsteady(
    layer: sn.SplineLayer, x: Tensor, parent: Tensor, mode: str, expected: dict[str, Tensor], rounding: float
) -> dict[str, float]:
    """By how much rounding moves the reference itself: much where two samples are normalised, or a curve has kinks."""
    moved = dict.fromkeys(expected, 0.0)
    for seed, size in enumerate((1, 1, 1, 1, 4, 4)):
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(seed)
            kept = [p.clone() for p in layer.parameters()]
            for p in layer.parameters():
                p.mul_(1 + size * rounding * (torch.rand_like(p) - 0.5))
            other = outcome(layer, x * (1 + size * rounding * (torch.rand_like(x) - 0.5)), parent, None, mode)
            for p, before in zip(layer.parameters(), kept, strict=True):
                p.copy_(before)
        moved |= {n: max(moved[n], (other[n] - t).abs().max().item()) for n, t in expected.items() if t.numel()}
    return moved


def agree(
    found: dict[str, Tensor], expected: dict[str, Tensor], slack: dict[str, float], tolerance: float, settings: str
) -> None:
    """Every tensor as near as its numbers allow."""
    for name, tensor in found.items():
        assert tensor.shape == expected[name].shape, f"{settings}: {name} has shape {tuple(tensor.shape)}"
        scale = max(1.0, expected[name].abs().max().item()) if tensor.numel() else 1.0
        error = (tensor - expected[name]).abs().max().item() if tensor.numel() else 0.0
        allowed = tolerance * (1 if name == "output" else 10)
        assert error <= allowed * scale + 2 * slack[name], f"{settings}: {name} is off by {error:.2g} of {scale:.2g}"


def not_a_number(dice: random.Random) -> None:
    """What is not a number in one sample stays there; in a parameter it is never lost."""
    place = dice.choice(PLACES)
    layer, shape = make(dice.choice(sorted(LAYERS)), random_spec(dice))
    layer.eval().to(dice.choice((torch.float32, torch.float64)))
    like = next(layer.parameters())
    x, parent = torch.randn(5, *shape).to(like), torch.rand(5, layer.coordinates).to(like)
    strategy = dice.choice([name for name in STRATEGIES if name != "fused"])
    with torch.no_grad(), sn.strategy(strategy):
        expected = with_parent(layer, parent)(x)
        everywhere = spoil(layer, x, parent, place, dice)
        found = with_parent(layer, parent)(x)
    others = [n for n in range(5) if n != 2]
    what = f"{layer.spec} {type(layer).__name__} {strategy} NaN in {place}"
    if everywhere:
        assert found.isnan().any(), f"{what}: lost"
        return
    assert found[2].isnan().any(), f"{what}: lost"
    torch.testing.assert_close(found[others], expected[others], msg=lambda text: f"{what}: {text}")


def spoil(layer: sn.SplineLayer, x: Tensor, parent: Tensor, place: str, dice: random.Random) -> bool:
    """Put a NaN somewhere: into the third sample, or into a parameter, and then it is everywhere."""
    parameters = {"knots": layer.knots, "bias": layer.bias, "weight": layer.base}
    if place == "parent" and (layer.spec.hierarchical or layer.spec.diffusion_at(2) < 1):
        parent[2] = float("nan")
        return False
    chosen = parameters.get(place)
    if chosen is None or chosen.numel() == 0:
        x[2].view(-1)[dice.randrange(x[2].numel())] = float("nan")
        return False
    chosen.fill_(float("nan"))
    return True


class Residual(nn.Module):
    """A block around which its input goes too."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """X + inner(x)."""
        return x + self.inner(x)


def random_network(dice: random.Random) -> tuple[nn.Module, Tensor]:
    """A plain network that nobody designed, with batch norms that have seen its images."""
    channels, layers = dice.randrange(1, 4), []
    images = torch.randn(6, channels, dice.randrange(8, 15), dice.randrange(8, 15))
    for _ in range(dice.randrange(1, 5)):
        width = dice.choice((2, 4, 6))
        layers += [block(dice, channels, width)]
        channels = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3))
    with torch.no_grad():
        net(images)
    return net.eval(), images


def block(dice: random.Random, channels: int, width: int) -> nn.Module:
    """A convolution of some kind and what stands behind it."""
    kernel = dice.choice((1, 3, (3, 1)))
    padding = kernel // 2 if isinstance(kernel, int) else (1, 0)
    groups = dice.choice((1, 2)) if channels % 2 == 0 else 1
    first = nn.Conv2d(channels, width, kernel, dice.choice((1, 1, 2)), padding, 1, groups, dice.random() < 0.5)
    parts = [first, nn.BatchNorm2d(width), nn.ReLU()]
    if dice.random() < 0.4:
        parts.append(Residual(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()))
    if dice.random() < 0.2:
        parts.insert(1, nn.Conv2d(width, width, 1))
    return nn.Sequential(*parts)


def network(dice: random.Random) -> None:
    """Converted, a network is its twin; with knots apart every way of computing gives one answer, deployed too."""
    net, images = random_network(dice)
    spec = random_spec(dice)
    with torch.no_grad():
        twin = net(images)
        torch.testing.assert_close(sn.convert(net, spec, example=images)(images), twin, rtol=1e-3, atol=1e-4)
        spline = sn.convert(net, spec, example=images, spread=0.3).eval()
        with sn.strategy("bank"):
            expected = sn.conversion.copy_network(spline).double()(images.double()).float()
            own = 30 * (spline(images) - expected).abs().max().item()  # some divide by almost nothing
        for strategy in ("auto", "grouped", "single"):
            with sn.strategy(strategy):
                torch.testing.assert_close(spline(images), expected, rtol=1e-3, atol=2e-4 + own)
        deployed = sn.deploy(spline, images)
        torch.testing.assert_close(deployed(images), expected, rtol=2e-3, atol=1e-3 + own)
        torch.testing.assert_close(deployed(images[:1]), expected[:1], rtol=2e-3, atol=1e-3 + own)


KINDS = {
    "layers, 20 in each": Kind(run=several(layer, 20), trials=5_000, seconds=120),
    "NaN in layers, 20 in each": Kind(run=several(not_a_number, 20), trials=500, seconds=120),
    "random networks, 5 in each": Kind(run=several(network, 5), trials=1_000, seconds=120),
}
