"""``python -m benchmarks.ship RUN NAME``: a trained run's last weights become ``sn.pretrained(NAME)``."""

from __future__ import annotations

import sys
from pathlib import Path

from accelerate import Accelerator
from torch import Tensor

from splinenets.data import statistics
from splinenets.reproduce.record import summarize
from splinenets.shipped import save
from splinenets.training import score
from splinenets.training.run import load_run

LARGE = 100_000  # numbers; tensors with more are stored in float16


def main(run: str, name: str) -> None:
    net, task, recipe, _ = load_run(run)
    weights = {key: smaller(tensor) for key, tensor in net.state_dict().items()}
    net.load_state_dict(weights)
    accuracy = score(net, task, Accelerator(cpu=True)).accuracy
    images = task.data.train.images
    mean, std = statistics(images)
    result = summarize(recipe, Path(run), "")
    card = {
        "name": name,
        "network": recipe.network_name,
        "model": "static" if recipe.spec is None else str(recipe.spec),
        "plain": list(recipe.plain),
        "channels": images.shape[1],
        "image_size": images.shape[2],
        "classes": list(task.data.classes),
        "augment": recipe.augment,
        "mean": mean,
        "std": std,
        "data": recipe.data,
        "epochs": recipe.epochs,
        "seed": recipe.seed,
        "test_accuracy": accuracy,
        "parameters": result.parameters,
        "macs": result.macs,
    }
    path = save(card, weights)
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    print(f"{path}: {size}, test accuracy {accuracy:.2%} as stored, {result.accuracy:.2%} in the run")


def smaller(tensor: Tensor) -> Tensor:
    """As it is stored."""
    large = tensor.is_floating_point() and tensor.numel() > LARGE
    return (tensor.half() if large else tensor).contiguous()


if __name__ == "__main__":
    main(*sys.argv[1:])
