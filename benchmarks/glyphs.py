"""``python -m benchmarks.glyphs``: 400 Chinese characters as many typefaces write them, a folder of images.

Fonts come from the system, for example from Debian's packages whose names begin with ``fonts-`` (docs/when.md lists
those that we had). What is learned from some folders of fonts is tested on others. ``splinenets reproduce regimes``
trains on the images.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fontTools.ttLib import TTCollection, TTFont
from PIL import Image, ImageDraw, ImageFont

FONTS, FOLDER = Path("/usr/share/fonts"), Path("runs/glyphs")
CLASSES, SIDE, LARGE = 400, 32, 28
FACES = 4  # of a folder: many weights of one design teach little
TESTED = 5  # one folder of so many is for testing
ENDINGS = {".ttf", ".ttc", ".otf", ".otc"}
FEWEST = 10  # folders


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
            complete[place.name] = some
    if len(complete) < FEWEST:
        raise ValueError(f"{fonts} has {len(complete)} folders of fonts with these {CLASSES} characters, not {FEWEST}")
    for number, (name, some) in enumerate(complete.items()):
        part = "train" if number % TESTED else "test"
        for which, (path, index) in enumerate(some):
            font = ImageFont.truetype(path, LARGE, index=index)
            for character in wanted:
                place = folder / part / f"U+{ord(character):04X}"
                place.mkdir(parents=True, exist_ok=True)
                if image := drawn(font, character):
                    image.save(place / f"{name}-{which}.png")
                    counts[part] += 1
        print(f"{part}: {name}, {len(some)}", flush=True)
    return counts


def main() -> None:
    """Draw the folder, unless it is there."""
    parser = argparse.ArgumentParser(description="Draw 400 Chinese characters in every font that has them.")
    parser.add_argument("--fonts", type=Path, default=FONTS, help="a folder of fonts (default: %(default)s)")
    options = parser.parse_args()
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is there already")
    print(draw(options.fonts, FOLDER))


if __name__ == "__main__":
    main()
