"""A small denoiser that is told how much noise there is, beside networks that are not, or that know one level alone.

python -m benchmarks.denoise [--seeds 3] [--epochs 6]

CIFAR-10 in grey; what is done is kept in results/denoise.json and skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import splinenets as sn
from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.data import Batches, seeded
from splinenets.tables import text_table

FILE = RESULTS / "denoise.json"
LOWEST, HIGHEST = 0.0, 75.0  # deviations of the noise, in grey levels out of 255
LEVELS = (5.0, 20.0, 40.0, 60.0, 75.0)
WIDTH, TRAINED, TESTED, BATCH, RATE = 12, 10_000, 1_000, 50, 2e-3
SPEC = "D(5)-X-R4"
TOLD, CHANNEL, BLIND, ONE = "told, its curves", "told, a channel", "blind", "one network a level"


class Denoiser(nn.Module):
    """Four 3x3 convolutions that say what is noise."""

    def __init__(self, width: int = WIDTH, channels: int = 1) -> None:
        sizes = (channels, width, width, width, 1)
        layers = [nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes)]
        super().__init__()
        self.noise = nn.Sequential(*(part for layer in layers[:-1] for part in (layer, nn.ReLU())), layers[-1])

    def forward(self, noisy: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 1, H, W), the first channel without its noise."""
        return noisy[:, :1] - self.noise(noisy)


class ToldByChannel(nn.Module):
    """The level stands in a second channel."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        """(N, 1, H, W), (N,) -> (N, 1, H, W)."""
        told = (level / HIGHEST).view(-1, 1, 1, 1).expand_as(noisy)
        return self.net(torch.cat([noisy, told], 1))


def build(kind: str) -> nn.Module:
    """A network of one kind, called with noisy images and their levels."""
    if kind == CHANNEL:
        return ToldByChannel(Denoiser(channels=2))
    net = Denoiser()
    if kind == TOLD:
        return sn.condition(sn.convert(net, SPEC), LOWEST, HIGHEST, name="noise")
    return Ignoring(net)


class Ignoring(nn.Module):
    """A network that hears the level and does not listen."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, noisy: Tensor, level: Tensor) -> Tensor:
        """(N, 1, H, W), (N,) -> (N, 1, H, W)."""
        return self.net(noisy)


def images() -> tuple[Tensor, Tensor]:
    """Grey images in [0, 1]: to train on, and to test on."""
    data = sn.data.load("cifar10")
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    train, test = data.train.images[:TRAINED], data.test.images[:TESTED]
    return tuple((part.float() * weights).sum(1, keepdim=True) / 255 for part in (train, test))  # type: ignore[return-value]


def noisy(clean: Tensor, level: Tensor, generator: torch.Generator) -> Tensor:
    """(N, 1, H, W), (N,) -> (N, 1, H, W)."""
    return clean + torch.randn(clean.shape, generator=generator) * (level / 255).view(-1, 1, 1, 1)


def train(kind: str, level: float | None, seed: int, epochs: int, clean: Tensor) -> nn.Module:
    """Adam, one cycle; levels are drawn evenly unless there is only one."""
    torch.manual_seed(seed)
    net = build(kind)
    batches = Batches(samples=len(clean), batch=BATCH, seed=seed)
    steps = epochs * len(batches)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for step in range(steps):
        epoch, at = divmod(step, len(batches))
        generator = seeded("noise", seed, epoch, at)
        part = clean[batches.indices(epoch, at)]
        levels = torch.rand(len(part), generator=generator) * (HIGHEST - LOWEST) + LOWEST
        levels = levels if level is None else torch.full_like(levels, level)
        for group in optimizer.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        loss = F.mse_loss(net(noisy(part, levels, generator), levels), part)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


@torch.no_grad()
def quality(net: nn.Module, level: float, clean: Tensor) -> float:
    """Mean PSNR of test images in dB, always with the same noise."""
    generator = seeded("noise of tests", round(10 * level))
    levels = torch.full((len(clean),), level)
    seen = noisy(clean, levels, generator)
    errors = [(net(x, v).clamp(0, 1) - y).square().mean((1, 2, 3)) for x, v, y in zip(
        seen.split(100), levels.split(100), clean.split(100), strict=True)]  # fmt: skip
    return float((-10 * torch.cat(errors).log10()).mean())


def trial(kind: str, seed: int, epochs: int) -> dict[str, float]:
    """PSNR at each level, of one network or of one for each."""
    clean, tests = images()
    if kind != ONE:
        net = train(kind, None, seed, epochs, clean)
        return {str(level): quality(net, level, tests) for level in LEVELS}
    return {str(level): quality(train(BLIND, level, seed, epochs, clean), level, tests) for level in LEVELS}


def read() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {"about": {}, "trials": []}


def means() -> dict[str, list[dict[str, float]]]:
    """Kind -> what each seed came to."""
    found: dict[str, list[dict[str, float]]] = {}
    for each in read()["trials"]:
        found.setdefault(each["kind"], []).append(each["psnr"])
    return found


def denoised() -> str:
    """The table of the docs."""
    head = ["PSNR, dB", *(f"noise {level:g}" for level in LEVELS), "mean", "standard error", "seeds"]
    return markdown(head, [_row(kind, trials) for kind, trials in means().items()])


def _row(kind: str, trials: list[dict[str, float]]) -> list[str]:
    values = torch.tensor([[trial[str(level)] for level in LEVELS] for trial in trials])
    each = values.mean(1)
    error = f"{float(each.std() / len(each) ** 0.5):.3f}" if len(each) > 1 else ""
    return [kind, *(f"{v:.2f}" for v in values.mean(0).tolist()), f"{float(each.mean()):.2f}", error, str(len(each))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    results = read()
    for seed in range(options.seeds):
        for kind in (TOLD, BLIND, CHANNEL, ONE):
            if any(t["kind"] == kind and t["seed"] == seed for t in results["trials"]):
                continue
            began = time.perf_counter()
            psnr = trial(kind, seed, options.epochs)
            took = round(time.perf_counter() - began, 1)
            results["trials"].append({"kind": kind, "seed": seed, "psnr": psnr, "seconds": took})
            results["about"] = about("python -m benchmarks.denoise", epochs=options.epochs, spec=SPEC, width=WIDTH)
            write(FILE, results)
            print(kind, seed, {k: round(v, 2) for k, v in psnr.items()}, f"{took} s", flush=True)
    body = [_row(kind, trials) for kind, trials in means().items()]
    print(text_table(["", *map(str, LEVELS), "mean", "error", "seeds"], body))


if __name__ == "__main__":
    main()
