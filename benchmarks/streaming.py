"""``python -m benchmarks.streaming --write``: images on disk, beside images in memory and a plain loop over files.

A folder of JPEG files is read batch by batch, in memory, as a stream and by a plain ``DataLoader`` over a data set that
opens, scales and cuts one file at a time, as torchvision's folders do. All rows take turns. Then a Spline-ResNet-32
trains on the stream, and its run says which share of its time it waited for images.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.timing import RESULTS, about, interleaved, markdown, write
from splinenets.data import Batches, in_batches, load
from splinenets.data.decoding import Place
from splinenets.training import Recipe, train

FILE = RESULTS / "streaming.json"
CLASSES, SIDE, SIZE, BATCH, WORKERS = 4, 256, 32, 100, 2


def make(folder: Path, count: int) -> Path:
    """So many JPEG files of SIDE x SIDE, smooth with some noise, about as large as photographs of that size."""
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        target = folder / f"class{number % CLASSES}" / f"{number:05d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        coarse = torch.randint(0, 256, (16, 16, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(coarse.numpy()).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(target, quality=90)
    return folder


class PlainFolder(Dataset[Tensor]):
    """What one would write without this package."""

    def __init__(self, files: list[Place]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(str(self.files[index])) as file:
            image = ImageOps.fit(file.convert("RGB"), (SIZE, SIZE), Image.Resampling.BILINEAR)
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(SIZE, SIZE, 3).permute(2, 0, 1)


def rates(folder: Path, repeats: int) -> dict[str, float]:
    """Images a second of each way to have them."""
    memory, disk = (load(f"folder:{folder}", size=SIZE, stream=how).train.images for how in ("never", "always"))
    batches = Batches(samples=len(memory), batch=BATCH)
    files = list(disk.files)  # type: ignore[attr-defined]

    def chosen() -> Iterator[Tensor]:
        return (batches.indices(0, step) for step in range(len(batches)))

    def through(images: Tensor, workers: int) -> int:
        return sum(len(batch) for batch in in_batches(images, chosen(), workers))

    rows = {
        "in memory": lambda: through(memory, 0),
        "stream, no workers": lambda: through(disk, 0),
        "stream, two workers": lambda: through(disk, WORKERS),
        "plain loop, two workers": lambda: sum(map(len, DataLoader(PlainFolder(files), BATCH, num_workers=WORKERS))),
    }
    return {name: len(memory) / seconds for name, seconds in interleaved(rows, repeats).items()}


def waiting(folder: Path, run: Path, epochs: int) -> dict[str, float]:
    """Seconds of all epochs but the first, and how many of them were spent on waiting for images."""
    recipe = Recipe(
        name="streaming", data=f"folder:{folder}", image_size=SIZE, stream="always", workers=WORKERS, network="resnet",
        model="D(5)-C-R3", augment="crop-flip", batch=BATCH, epochs=epochs, precision="float32", learning_rate=0.01,
    )  # fmt: skip
    train(recipe, run)
    lines = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()][1:]
    return {name: sum(line[name] for line in lines) for name in ("seconds", "waited_for_data", "samples")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    with TemporaryDirectory() as place:
        folder = make(Path(place) / "images", options.images)
        found = {
            "rates": rates(folder, options.repeats),
            "waiting": waiting(folder, Path(place) / "run", options.epochs),
        }
    settings = " ".join(f"--{name} {getattr(options, name)}" for name in ("images", "repeats", "epochs"))
    command = f"python -m benchmarks.streaming {settings} --write"
    content = {**about(command, load_average=[load_before, os.getloadavg()[0]]), **found}
    print(json.dumps(content, indent=1))
    if options.write:
        write(FILE, content)


def table() -> str:
    """The table of docs/data.md."""
    found = json.loads(FILE.read_text())
    plain = found["rates"]["plain loop, two workers"]
    rows = [[name, f"{rate:,.0f}", f"{rate / plain:.2f}"] for name, rate in found["rates"].items()]
    return markdown(("images from", "images/s", "times the plain loop"), rows)


if __name__ == "__main__":
    main()
