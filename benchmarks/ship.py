"""``python -m benchmarks.ship RUN NAME``: a trained run's last weights become ``sn.pretrained(NAME)``."""

from __future__ import annotations

import sys
from pathlib import Path

from splinenets.data import statistics
from splinenets.pretrained import save
from splinenets.reproduce.record import summarize
from splinenets.training.restore import load_run


def main(run: str, name: str) -> None:
    net, task, recipe, _ = load_run(run)
    images = task.data.train.images
    mean, std = statistics(images)
    result = summarize(recipe, Path(run), "")
    card = {
        "name": name,
        "network": f"{recipe.network}{recipe.width if recipe.network == 'lenet' else recipe.depth}",
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
        "test_accuracy": result.accuracy,
        "parameters": result.parameters,
        "macs": result.macs,
    }
    path = save(card, {name: tensor.contiguous() for name, tensor in net.state_dict().items()})
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, test accuracy {result.accuracy:.2%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
