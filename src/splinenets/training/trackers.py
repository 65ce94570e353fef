"""TensorBoard, or any other tracker that Accelerate knows by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from torch import Tensor

from .parsing import nearest
from .recipe import Recipe

PACKAGES = {"tensorboard": "pip install 'splinenets[tensorboard]'"}


def check_trackers(names: Sequence[str]) -> None:
    """Raise unless every tracker is known and installed."""
    known = sorted(str(name) for name in LOGGER_TYPE_TO_CLASS)
    there = {str(getattr(name, "value", name)) for name in get_available_trackers()}
    for name in names:
        if name not in known:
            raise ValueError(f"--tracker: unknown tracker {name!r}{nearest(name, known)}")
        if name not in there:
            raise ValueError(f"--tracker {name} is not installed: {PACKAGES.get(name, f'install the package {name}')}")


class Trackers:
    """Sends numbers to the trackers of a run; there may be none."""

    def __init__(self, accelerator: Accelerator, names: Sequence[str], recipe: Recipe, step: int) -> None:
        self.accelerator, self.names = accelerator, names
        if names:
            # what TensorBoard saw of steps that a resumed run does again is taken back
            options = {"tensorboard": {"purge_step": step}} if "tensorboard" in names else {}
            config = {k: str(v) if isinstance(v, list) else v for k, v in recipe.as_dict().items()}
            accelerator.init_trackers("splinenets", config=config, init_kwargs=options)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of a step."""
        if self.names:
            self.accelerator.log(dict(values), step=step)

    def histograms(self, positions: Mapping[str, Tensor], step: int) -> None:
        """The paper's own view: how positions of each layer are spread, over time."""
        if "tensorboard" in self.names and self.accelerator.is_main_process:
            writer: Any = self.accelerator.get_tracker("tensorboard", unwrap=True)
            for name, position in positions.items():
                writer.add_histogram(f"positions/{name}", position.float().flatten().cpu(), step, bins=50)

    def images(self, images: Mapping[str, Tensor], step: int) -> None:
        """Pictures of bytes, {name: (H, W, 3)}."""
        if "tensorboard" in self.names and self.accelerator.is_main_process:
            writer: Any = self.accelerator.get_tracker("tensorboard", unwrap=True)
            for name, image in images.items():
                writer.add_image(f"figures/{name}", image, step, dataformats="HWC")

    def close(self) -> None:
        """Let trackers finish."""
        if self.names:
            self.accelerator.end_training()
