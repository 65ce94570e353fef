"""What happens in fresh processes: one with torch and the standard library alone, and one with every package."""

import re
import subprocess
import sys

import splinenets as sn
from splinenets.training.recipe import recipe_types

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


def fresh(code):
    """What a process prints."""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_torch_alone():
    """The others are kept out indeed, and nobody misses them: images that ship are verified, batched and augmented."""
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
    *imported, shape, complaint, augmented = fresh(ALONE + code).splitlines()
    expected = [*(f"no {name}" for name in OTHERS), "splinenets", "splinenets.data", "splinenets.files"]
    assert imported == [*expected, "splinenets.kernels.build"]
    assert shape == "6000 1 28 28 27000"
    assert complaint.startswith("this is damaged or is not embedded: the SHA-256 of its test_images is ")
    assert augmented == "50 1 28 28"


def test_every_package(tmp_path):
    """Exports need neither numpy nor a format before they are asked for; loading a network cannot unpickle; help."""
    sn.save(sn.convert(sn.models.lenet(1, image_size=8), "H(2)-C-R3"), tmp_path / "net")
    code = f"""
import pickle, sys, torch
def refuse(*args, **kwargs): raise AssertionError("unpickled")
kept = pickle.Unpickler
pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse
import splinenets, splinenets.exporting
mine = {{n: vars(m) for n, m in sys.modules.items() if n.startswith("splinenets.exporting")}}
print([n for n, names in mine.items() if {{"np", "numpy", "NDArray"}} & names.keys()], len(mine) > 3)
print([n for n in ("splinenets.exporting.native", "safetensors", "onnx", "accelerate") if n in sys.modules])
print(type(splinenets.load({str(tmp_path / "net")!r})).__name__)
pickle.Unpickler = kept  # Accelerate derives from it
help(splinenets.training.Recipe)  # as docs/training.md has it; the module need not be imported first
"""
    numpy, imported, loaded, *text = fresh(code).splitlines()
    assert (numpy, imported, loaded) == ("[] True", "[]", "LeNet")
    explained = re.findall(r"^ \|  ([a-z_, ]+?)  +\S", "\n".join(text), flags=re.MULTILINE)
    obvious = {"name", "epochs", "learning_rate", "momentum", "drop_factor", "seed"}
    assert {name for names in explained for name in names.split(", ")} >= set(recipe_types()) - obvious
