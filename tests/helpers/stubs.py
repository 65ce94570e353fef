"""Stand-ins for packages that networks come from, and folders of random images for them."""

import importlib
import importlib.util
import sys
import warnings

import numpy
import pytest
import torch
from PIL import Image

NETWORK = '''
from torch import nn

def small(channels, classes, width=4):
    """Two stages of convolutions with batch norms, as image classifiers have them."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )
'''
PACKAGES = {
    "timm/__init__.py": NETWORK
    + """
def create_model(model_name, num_classes=1000, in_chans=3, **kwargs):
    if model_name not in ("tiny", "mobilenetv3_small_100"):
        raise RuntimeError(f"Unknown model ({model_name})")
    return small(in_chans, num_classes, **kwargs)
""",
    "torchvision/__init__.py": "",
    "torchvision/models.py": NETWORK
    + """
def get_model(name, weights=None, num_classes=1000, **kwargs):
    if name not in list_models():
        raise ValueError(f"Unknown model {name}")
    return small(3, num_classes, **kwargs)

def list_models():
    return ["tiny", "resnet18"]

def get_model_builder(name):
    return lambda **kwargs: get_model(name, **kwargs)
""",
    "mine/__init__.py": "",
    "mine/models.py": NETWORK
    + """
def build(num_classes, in_channels, width=4):
    return small(in_channels, num_classes, width)

def fixed():
    return small(3, 7)

def picky():
    raise KeyError("no such luck")

text = "no function"
""",
}


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Puts a stand-in for a package on the path, for one test."""
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))

    def install(package):
        for name, content in PACKAGES.items():
            if name.startswith(f"{package}/"):
                path = tmp_path / "packages" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision", "mine")]:
        if str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def real(package):
    """Whether the package itself is here; then it is imported.

    A torchvision that was built for other devices lacks its operators, of which classifiers need none.
    """
    if importlib.util.find_spec(package) is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision  # noqa: F401
        except ImportError:
            pass
        except RuntimeError:
            for name in ("nms", "qnms"):
                OPERATORS.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
        importlib.import_module(package)
    return True


def pictures(folder, classes=2, images=6, mode="RGB", sides=(20, 40)):
    """A folder of noisy images: columns in every other class, rows in the rest."""
    random = numpy.random.default_rng(0)
    for label in range(classes):
        place = folder / f"class{label:03d}"
        place.mkdir(parents=True)
        for number in range(images):
            height, width = random.integers(*sides, 2, endpoint=True)
            pixels = random.integers(0, 56, (height, width, 3)).astype(numpy.uint8)
            (pixels if label % 2 else pixels.swapaxes(0, 1))[::4] += 150
            Image.fromarray(pixels).convert(mode).save(place / f"{number}.png")
    return folder
