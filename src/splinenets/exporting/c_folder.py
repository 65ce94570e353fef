"""A network as a folder that needs no Python: the file, the runtime's source, a Makefile and an example."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ..kernels.build import SOURCE as KERNELS
from .checked import export
from .formats import Exported

NATIVE = Path(__file__).with_name("native")
NETWORK = "network.native"

NORMALISE = """\
static void prepare(const unsigned char* bytes, float* image, int64_t channels, int64_t pixels) {{
  static const float scale[] = {{{scale}}}, offset[] = {{{offset}}};
  for (int64_t i = 0; i < pixels; i++)
    for (int64_t c = 0; c < channels; c++) image[c * pixels + i] = bytes[i * channels + c] * scale[c] - offset[c];
}}
"""
WHITEN = """\
static void prepare(const unsigned char* bytes, float* image, int64_t channels, int64_t pixels) {
  double count = (double)(channels * pixels), mean = 0, variance = 0;
  for (int64_t i = 0; i < channels * pixels; i++) mean += bytes[i] / count;
  for (int64_t i = 0; i < channels * pixels; i++) variance += (bytes[i] - mean) * (bytes[i] - mean) / count;
  double deviation = sqrt(variance > 1 / count ? variance : 1 / count);
  for (int64_t i = 0; i < pixels; i++)
    for (int64_t c = 0; c < channels; c++)
      image[c * pixels + i] = (float)((bytes[i * channels + c] - mean) / deviation);
}
"""


def export_c(
    net: torch.nn.Module, example: torch.Tensor | Sequence[object], folder: str | PathLike[str], **options: Any
) -> Exported:
    """Write a network and all that is needed to run it in C; ``options`` are those of ``export``.

    The folder is whole or not there. ``make`` in it builds an example that classifies a picture.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} is there already: an export to c makes a new folder")
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"cannot write {folder}: there is no folder {folder.parent}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        made = Path(name) / folder.name
        made.mkdir()
        exported = export(net, example, made / NETWORK, to="native", **options)
        for source in sources():
            shutil.copyfile(source, made / source.name)
        (made / "preparation.h").write_text(preparation(exported.metadata))
        made.replace(folder)
    return exported


def sources() -> list[Path]:
    """The files that a C program needs."""
    own = [path for part in ("*.h", "*.cpp", "c/*") for path in sorted(NATIVE.glob(part)) if path.is_file()]
    return [*own, KERNELS.with_name("splines.h")]


def preparation(metadata: Mapping[str, Any]) -> str:
    """A function that makes an image of bytes, as the network wants it: C source."""
    about = metadata.get("preparation") or {"kind": "normalise", "mean": [0.0], "std": [1.0]}
    head = "/* What the network wants to be done with the bytes of a picture, (height, width, channels). */\n"
    if about["kind"] == "whiten":
        return f"{head}#include <math.h>\n#include <stdint.h>\n\n{WHITEN}"
    channels = metadata["input"][0]
    mean, std = (torch.tensor(_each(about[name], channels)) for name in ("mean", "std"))
    scale, offset = (_numbers(values) for values in (1 / (255 * std), mean / std))
    return f"{head}#include <stdint.h>\n\n{NORMALISE.format(scale=scale, offset=offset)}"


def _each(values: Sequence[float], channels: int) -> list[float]:
    return list(values) * channels if len(values) == 1 else list(values)


def _numbers(values: torch.Tensor) -> str:
    """Floats in C, to the bit."""
    return ", ".join(f"{value!r}f" for value in values.tolist())
