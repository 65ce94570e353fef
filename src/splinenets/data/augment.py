"""Batched augmentation: uint8 images in, float32 images out. What is random comes from the generator given, alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Distort = Callable[[Tensor, Generator], Tensor]
Prepare = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to images before a network sees them. In training they are distorted first."""

    name: str
    distort: Distort
    prepare: Prepare
    alternates: bool = False  # whoever calls ``train`` mirrors each image in every other epoch

    @property
    def preparation(self) -> dict[str, object]:
        """What ``prepare`` does, in words and numbers, for whoever serves a network elsewhere."""
        if isinstance(self.prepare, partial):
            return {"kind": "normalise", **{name: list(values) for name, values in self.prepare.keywords.items()}}
        return {"kind": "whiten"}

    def train(self, images: Tensor, generator: Generator) -> Tensor:
        """(N, C, H, W), uint8 -> the same, float32; the generator is ``seeded("augment", seed, epoch, step, rank)``."""
        check_images(images)
        return self.prepare(self.distort(images, generator))

    def evaluate(self, images: Tensor) -> Tensor:
        """(N, C, H, W), uint8 -> the same, float32; nothing is random."""
        check_images(images)
        return self.prepare(images)


def augmentation(name: str, *, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,)) -> Augmentation:
    """An augmentation by name.

    "none" only normalises; "crop-flip" shifts by up to 4 pixels, flips and whitens each image (CIFAR-10 in the paper);
    "shift-flip" shifts by up to 2 pixels, reflecting, mirrors each image in every other epoch, and normalises;
    "affine-flip" rotates, scales, shears, shifts, flips and whitens (small folders of photographs);
    "affine-elastic" rotates, scales, shears, shifts and bends (MNIST in the paper), then normalises. ``mean`` and
    ``std``, one per channel or one for all, in units of full brightness, serve to normalise; whitening needs none.

    Examples:
        >>> images = sn.data.load("embedded").train.images[:4]
        >>> augment = sn.data.augmentation("crop-flip")
        >>> augment.train(images, torch.Generator().manual_seed(0)).shape, augment.evaluate(images).dtype
        (torch.Size([4, 1, 28, 28]), torch.float32)
    """
    normalise_all: Prepare = partial(normalise, mean=tuple(mean), std=tuple(std))
    choices: dict[str, tuple[Distort, Prepare]] = {
        "none": (keep, normalise_all),
        "crop-flip": (crop_and_flip, whiten),
        "shift-flip": (shift, normalise_all),
        "affine-flip": (affine_and_flip, whiten),
        "affine-elastic": (affine_and_elastic, normalise_all),
    }
    if name not in choices:
        raise ValueError(f"unknown augmentation {name!r}, choose from {', '.join(sorted(choices))}")
    distort, prepare = choices[name]
    return Augmentation(name=name, distort=distort, prepare=prepare, alternates=name == "shift-flip")


def check_images(images: Tensor) -> None:
    """Raise unless the images are a batch of bytes."""
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise ValueError(
            f"images must be uint8 of shape (N, C, H, W), got {images.dtype} of shape {tuple(images.shape)}"
        )


# Preparing: always done, nothing random


def prepare(images: Tensor, preparation: Mapping[str, object]) -> Tensor:
    """What ``Augmentation.preparation`` describes: (N, C, H, W), uint8 -> float32."""
    numbers = dict(preparation)
    kinds: dict[str, Callable[..., Tensor]] = {"normalise": normalise, "whiten": whiten}
    kind = numbers.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"unknown preparation {kind!r}, choose from {', '.join(sorted(kinds))}")
    check_images(images)
    return kinds[kind](images, **numbers)


def statistics(images: Tensor | Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images (N, C, H, W), in units of full brightness.

    The images are one tensor, or some at a time.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    parts = [_brightness(some) for some in ([images] if isinstance(images, Tensor) else images)]
    for counts in torch.stack(parts).sum(0):
        share = counts.double() / counts.sum()
        means.append(float(share @ levels))
        deviations.append(math.sqrt(float(share @ (levels - means[-1]) ** 2)))
    return tuple(means), tuple(deviations)


def _brightness(images: Tensor) -> Tensor:
    """How many pixels of each channel have each brightness: (N, C, H, W), uint8 -> (C, 256)."""
    return torch.stack([channel.flatten().bincount(minlength=256).cpu() for channel in images.unbind(1)])


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(images / 255 - mean) / std per channel, float32."""
    channels = images.shape[1]
    if len(mean) not in (1, channels) or len(std) not in (1, channels) or min(std) <= 0:
        raise ValueError(f"mean and std > 0 must be 1 number or {channels}, one per channel, got {mean} and {std}")
    scale = 1 / (255 * torch.tensor(std, device=images.device))
    offset = torch.tensor(mean, device=images.device) / torch.tensor(std, device=images.device)
    return images.float().mul_(scale.view(-1, 1, 1)).sub_(offset.view(-1, 1, 1))


def whiten(images: Tensor) -> Tensor:
    """(image - mean) / max(deviation, 1 / sqrt(size)), mean and deviation over each image: (N, C, H, W), float32."""
    pixels = images.float()
    deviation, mean = torch.std_mean(pixels, dim=(1, 2, 3), correction=0, keepdim=True)
    floor = images[0].numel() ** -0.5  # an image of one colour becomes 0
    return pixels.sub_(mean).div_(deviation.clamp(min=floor))


# Distorting: the numbers are drawn first, then handed to plain functions of them


def keep(images: Tensor, generator: Generator) -> Tensor:
    """No distortion."""
    return images


def crop_and_flip(images: Tensor, generator: Generator, pad: int = 4) -> Tensor:
    """Random crops of the images with a black margin of ``pad`` pixels, half of them mirrored."""
    rows, columns = torch.randint(0, 2 * pad + 1, (2, len(images)), generator=generator).to(images.device)
    mirrored = torch.rand(len(images), generator=generator).to(images.device) < 0.5
    return flip(crop(images, rows, columns, pad), mirrored)


def shift(images: Tensor, generator: Generator, pad: int = 2) -> Tensor:
    """Images moved by up to ``pad`` pixels; what comes in is reflected."""
    rows, columns = torch.randint(0, 2 * pad + 1, (2, len(images)), generator=generator).to(images.device)
    return crop(images.float(), rows, columns, pad, mode="reflect")


def crop(images: Tensor, rows: Tensor, columns: Tensor, pad: int, mode: str = "constant") -> Tensor:
    """Pad each image by ``pad``, then cut its own size out of it at its row and column (N,)."""
    height, width = images.shape[2:]
    # (N, C, 2 pad + 1, 2 pad + 1, H, W): all crops of all images, a view that costs nothing
    crops = F.pad(images, (pad, pad, pad, pad), mode=mode).unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(len(images), device=images.device), :, rows, columns]


def flip(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror left and right where ``mirrored`` (N,) says so."""
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


@dataclass(frozen=True, kw_only=True)
class Deformation:
    """How far images are deformed. The elastic part is that of Simard, Steinkraus and Platt (2003)."""

    rotation: float = 10.0  # degrees, both ways, as are all of these
    scale: float = 0.1
    shear: float = 0.1  # columns per row
    shift: float = 1.5  # pixels
    strength: float = 24.0  # pixels by which a displacement of 1 moves
    smoothness: float = 4.0  # standard deviation, in pixels, of the Gaussian that smooths uniform noise in [-1, 1]


def affine_and_elastic(images: Tensor, generator: Generator, how: Deformation = Deformation()) -> Tensor:  # noqa: B008
    """Randomly rotated, scaled, sheared, shifted and bent images: (N, C, H, W), uint8 -> float32."""
    count, _, height, width = images.shape
    angle, scale, shear, *shift = (2 * torch.rand(5, count, generator=generator) - 1).to(images.device)
    noise = 2 * torch.rand(2, count, height, width, generator=generator) - 1
    bend = smooth(noise.to(images.device), how.smoothness).mul_(how.strength)
    matrix = affine_matrix(angle * math.radians(how.rotation), 1 + scale * how.scale, shear * how.shear)
    return deform(images.float(), matrix, torch.stack(shift) * how.shift, bend)


def affine_and_flip(
    images: Tensor,
    generator: Generator,
    rotation: float = 20.0,
    scale: float = 0.2,
    shear: float = 0.1,
    shift: float = 0.1,
) -> Tensor:
    """Randomly rotated, scaled, sheared and shifted images, half of them mirrored, in their mean colour outside.

    (N, C, H, W), uint8 -> float32; ``rotation`` in degrees, ``shift`` in shares of a side.
    """
    count, _, height, width = images.shape
    drawn = (2 * torch.rand(6, count, generator=generator) - 1).to(images.device)
    matrix = affine_matrix(drawn[0] * math.radians(rotation), 1 + drawn[1] * scale, drawn[2] * shear)
    moved = drawn[3:5] * torch.tensor([[shift * width], [shift * height]], device=images.device)
    pixels = flip(images.float(), drawn[5] < 0)
    mean = pixels.mean((2, 3), keepdim=True)
    return deform(pixels - mean, matrix, moved) + mean


def affine_matrix(angle: Tensor, scale: Tensor, shear: Tensor) -> Tensor:
    """Rotation times scale times shear: (N,) each -> (2, 2, N)."""
    cosine, sine = scale * angle.cos(), scale * angle.sin()
    return torch.stack((torch.stack((cosine, cosine * shear - sine)), torch.stack((sine, sine * shear + cosine))))


def deform(images: Tensor, matrix: Tensor, shift: Tensor, bend: Tensor | float = 0.0) -> Tensor:
    """Each pixel becomes what is found at matrix @ (x, y) + shift + bend, bilinearly, black outside.

    Images (N, C, H, W), matrix (2, 2, N), shift (2, N) and bend (2, N, H, W), x before y, in pixels from the centre.
    """
    height, width = images.shape[2:]
    half = torch.tensor(((width - 1) / 2, (height - 1) / 2), device=images.device)
    x = torch.arange(width, device=images.device) - half[0]
    y = (torch.arange(height, device=images.device) - half[1]).unsqueeze(1)
    across, down = matrix[..., None, None].unbind(1)  # (2, N, 1, 1) each
    found = across * x + down * y + shift[..., None, None] + bend
    # grid_sample counts from -1 at the first pixel's centre to 1 at the last one's
    grid = (found / half.clamp(min=0.5).view(2, 1, 1, 1)).permute(1, 2, 3, 0)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=True)


def smooth(fields: Tensor, deviation: float) -> Tensor:
    """Gaussian smoothing of (..., H, W), zero outside, as one matrix product along each dimension."""
    height, width = fields.shape[-2:]
    rows, columns = (gaussian_matrix(length, deviation).to(fields.device) for length in (height, width))
    return rows @ (fields @ columns)


@lru_cache(maxsize=8)
def gaussian_matrix(length: int, deviation: float) -> Tensor:
    """(length, length), symmetric: row i holds the weights, summing to 1 over the whole line, around i."""
    reach = max(length, math.ceil(8 * deviation))
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / deviation) ** 2)
    at = torch.arange(length)
    return (weights / weights.sum())[at - at.unsqueeze(1) + reach].float()
