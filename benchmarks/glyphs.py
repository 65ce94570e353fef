"""``python -m benchmarks.glyphs``: thin networks read 400 Chinese characters as many typefaces write them.

Fonts come from the system, for example from Debian's packages whose names begin with ``fonts-``; images of the
characters go into the folder runs/glyphs, unless it is there. What is learned from some folders of fonts is tested on
others. Then one image is timed on one thread, in our runtime.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import mean

import torch
from fontTools.ttLib import TTCollection, TTFont
from PIL import Image, ImageDraw, ImageFont

import splinenets as sn
from benchmarks.timing import RESULTS, about, interleaved, markdown, write
from splinenets.reproduce import read_result, record
from splinenets.reproduce.experiments import LINE, THIN_AIR, slug
from splinenets.reproduce.outcome import Found, spread
from splinenets.training import Recipe, load_recipe
from splinenets.training.build import build_network, load_task
from splinenets.training.recipe import STATIC

FONTS, FOLDER = Path("/usr/share/fonts"), Path("runs/glyphs")
CLASSES, SIDE, LARGE = 400, 32, 28
FACES = 4  # of a folder: many weights of one design teach little
TESTED = 5  # one folder of so many is for testing
ENDINGS = {".ttf", ".ttc", ".otf", ".otc"}
FEWEST = 10  # folders
COMMAND = "python -m benchmarks.glyphs"
FILES, TIMES = RESULTS / "glyphs", RESULTS / "glyphs.json"
AIR = {**THIN_AIR, "optimizer": "muon", "weight_decay": 0.05}
HOSTS = {"LeNet-4": {}, "Air 8-16-16": AIR}  # and what each sets in the recipe turned-lenet
MODELS = (STATIC, LINE)
CALLS, ROUNDS = 50, 41


def characters() -> list[str]:
    """The first of JIS X 0208, level 1, which every Japanese and nearly every Chinese font has."""
    return [bytes((0xB0 + n // 94, 0xA1 + n % 94)).decode("euc_jp") for n in range(CLASSES)]


def faces(path: Path) -> Iterator[tuple[int, set[int]]]:
    """The typefaces of a file by number, with the characters that each has."""
    collection = path.suffix.lower() in (".ttc", ".otc")
    for number, font in enumerate(TTCollection(path).fonts if collection else [TTFont(path, lazy=True)]):
        yield number, set(font.getBestCmap() or ())


def drawn(font: ImageFont.FreeTypeFont, character: str) -> Image.Image | None:
    """A character in the middle of an image, white on black; None if there is nothing to see."""
    left, top, right, bottom = font.getbbox(character)
    if right <= left or bottom <= top:
        return None
    image = Image.new("L", (SIDE, SIDE))
    place = ((SIDE - right - left) / 2, (SIDE - bottom - top) / 2)
    ImageDraw.Draw(image).text(place, character, fill=255, font=font)
    return image if image.getbbox() else None


def draw(fonts: Path, folder: Path) -> dict[str, int]:
    """Images in train/CLASS and test/CLASS, and how many there are of each part."""
    wanted, counts = characters(), {"train": 0, "test": 0}
    places = sorted({path.parent for path in fonts.rglob("*") if path.suffix.lower() in ENDINGS})
    complete = {}
    for place in places:
        files = sorted(path for path in place.iterdir() if path.suffix.lower() in ENDINGS)
        found = ((path, n) for path in files for n, has in faces(path) if all(ord(c) in has for c in wanted))
        if some := list(islice(found, FACES)):
            complete["-".join(place.relative_to(fonts).parts)] = some
    if len(complete) < FEWEST:
        raise ValueError(f"{fonts} has {len(complete)} folders of fonts with these {CLASSES} characters, not {FEWEST}")
    parts = {name: "train" if number % TESTED else "test" for number, name in enumerate(complete)}
    seen = set()  # fonts share characters: nothing that is trained on may be tested, nor anything twice
    for name in sorted(complete, key=lambda name: parts[name] == "test"):
        part = parts[name]
        for which, (path, index) in enumerate(complete[name]):
            font = ImageFont.truetype(path, LARGE, index=index)
            for character in wanted:
                place = folder / part / f"U+{ord(character):04X}"
                place.mkdir(parents=True, exist_ok=True)
                image = drawn(font, character)
                if image and (bits := image.tobytes()) not in seen:
                    seen.add(bits)
                    image.save(place / f"{name}-{which}.png")
                    counts[part] += 1
        print(f"{part}: {name}, {len(complete[name])}", flush=True)
    return counts


def recipe_of(host: str, model: str, seed: int) -> Recipe:
    """What a training is."""
    rate = 0.08 if (host, model) == ("LeNet-4", STATIC) else 0.04  # what training fonts that were held out prefer
    own = {**HOSTS[host], "data": f"folder:{FOLDER}", "condition": "", "told": "nobody", "learning_rate": rate}
    return load_recipe("turned-lenet", model=model, seed=seed, **own)


def file_of(host: str, model: str, seed: int) -> Path:
    """Where its result is."""
    return FILES / f"{slug(f'{host} {model}')}-seed{seed}.json"


def caller(host: str, model: str, folder: Path) -> Callable[[], object]:
    """One image through a network with random weights, ``CALLS`` times."""
    recipe, path = recipe_of(host, model, 0), folder / f"{slug(f'{host} {model}')}.native"
    task = load_task(recipe)
    sn.export(build_network(recipe, task).eval(), tuple(part[:8] for part in task.example()), path)
    exported, inputs = sn.load_export(path, threads=1), tuple(part[:1].contiguous() for part in task.example())

    def call() -> None:
        for _ in range(CALLS):
            exported(*inputs)

    return call


def time() -> None:
    """How long one image takes in each network, all in turn."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        calls = {f"{host} {model}": caller(host, model, Path(folder)) for host in HOSTS for model in MODELS}
        seconds = {name: taken / CALLS for name, taken in interleaved(calls, ROUNDS).items()}
    write(TIMES, {"about": about(COMMAND, calls=CALLS, rounds=ROUNDS), "seconds": seconds})


def glyphs() -> str:
    """A table: each SplineNet over its plain twin."""
    seconds = json.loads(TIMES.read_bytes())["seconds"]
    head = ["", "plain, %", "SplineNet, %", "gain", "test loss", "seeds", "time", "MACs", "parameters"]
    lines = []
    for host in HOSTS:
        plain, own = (found(host, model) for model in MODELS)
        shared = sorted(set(plain) & set(own))
        accuracies = [[100 * some[seed].accuracy for seed in shared] for some in (plain, own)]
        losses = [mean(some[seed].epochs[-1]["test_loss"] for seed in shared) for some in (plain, own)]
        gained = [b - a for a, b in zip(*accuracies, strict=True)]
        first, second = plain[shared[0]], own[shared[0]]
        times = seconds[f"{host} {LINE}"] / seconds[f"{host} {STATIC}"]
        lines.append(
            [
                *(f"{host} {LINE}", *(f"{mean(some):.2f}" for some in accuracies), spread(gained, "+")),
                *(f"{losses[0]:.3f} -> {losses[1]:.3f}", str(len(shared)), f"x {times:.2f}"),
                *(f"x {second.macs / first.macs:.2f}", f"x {second.parameters / first.parameters:.1f}"),
            ]
        )
    return markdown(head, lines)


def found(host: str, model: str) -> Found:
    """Results by seed."""
    results = map(read_result, FILES.glob(f"{slug(f'{host} {model}')}-seed*.json"))
    return {result.seed: result for result in results if (result.recipe["model"] == STATIC) == (model == STATIC)}


def main() -> None:
    """Draw the folder unless it is there, train what is not trained, and time."""
    parser = argparse.ArgumentParser(description="Thin networks on 400 Chinese characters in every font that has them.")
    parser.add_argument("--fonts", type=Path, default=FONTS, help="a folder of fonts (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of each training (default: %(default)s)")
    options = parser.parse_args()
    if not FOLDER.exists():
        part = FOLDER.with_suffix(".part")
        print(draw(options.fonts, part))
        part.rename(FOLDER)
    for seed in range(options.seeds):
        for host in HOSTS:
            for model in MODELS:
                file = file_of(host, model, seed)
                result = record(recipe_of(host, model, seed), Path("runs/reproduce/glyphs") / file.stem, file, COMMAND)
                print(f"{host} {model}, seed {seed}: {result.accuracy:.2%}", flush=True)
    time()
    print(glyphs())


if __name__ == "__main__":
    main()
