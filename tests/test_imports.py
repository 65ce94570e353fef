"""What works with torch and the standard library alone. Every other package is kept out of a fresh process."""

import subprocess
import sys

OTHERS = (
    "numpy", "PIL", "safetensors", "rich", "typer", "accelerate", "onnx", "onnxruntime", "onnxscript", "matplotlib",
    "huggingface_hub", "tensorboard", "transformers", "scipy", "tomli",
)  # fmt: skip
ALONE = f"""
import sys, warnings
OTHERS = {OTHERS}
for name in OTHERS:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that numpy is missing
    import torch
warnings.simplefilter("error")
"""


def alone(code):
    """What a process prints that has torch alone."""
    found = subprocess.run([sys.executable, "-c", ALONE + code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_importing():
    """The others are kept out indeed, and nobody misses them."""
    code = """
import importlib
for name in OTHERS:
    try:
        importlib.import_module(name)
    except ImportError:
        print("no", name)
import splinenets
assert all(hasattr(splinenets, name) for name in splinenets.__all__)
for name in ("splinenets", "splinenets.data", "splinenets.files", "splinenets.kernels.build"):
    print(importlib.import_module(name).__name__)
"""
    expected = [*(f"no {name}" for name in OTHERS), "splinenets", "splinenets.data", "splinenets.files"]
    assert alone(code).splitlines() == [*expected, "splinenets.kernels.build"]


def test_images_that_ship_are_verified_batched_and_augmented():
    code = """
from splinenets.data import Batches, augmentation, dataset, load, seeded
data = load("embedded")
print(*data.train.images.shape, int(data.train.labels.sum()))
changed = {"train_images": data.train.images, "train_labels": data.train.labels.byte(),
           "test_images": data.test.images.flip(0), "test_labels": data.test.labels.byte()}
try:
    dataset.verify(dataset.EMBEDDED, changed, "this")
except ValueError as error:
    print(error)
images = data.train.images[Batches(samples=6000, batch=50).indices(0, 0)]
print(*augmentation("affine-elastic").train(images, seeded("augment", 0)).shape)
"""
    shape, complaint, augmented = alone(code).splitlines()
    assert shape == "6000 1 28 28 27000"
    assert complaint.startswith("this is damaged or is not embedded: the SHA-256 of its test_images is ")
    assert augmented == "50 1 28 28"
