"""Plain networks by name: ours, those of other packages, and what a function of a user's own builds."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..constructors import noted
from ..models import build
from ..path import outside_graphs
from ..tables import first_line
from ..tracing import evaluating, logits_of
from .recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a network must fit: images of ``channels`` x ``size`` x ``size``, and so many classes."""

    channels: int
    size: int
    classes: int


def build_plain(recipe: Recipe, shape: Shape) -> nn.Module:
    """The network of a recipe before any layer becomes a spline, from its own random weights."""
    if recipe.ours:
        options = {"dropout": recipe.dropout} if recipe.network == "lenet" else {}
        name, size = recipe.network_name, shape.size
        return build(name, in_channels=shape.channels, image_size=size, classes=shape.classes, **options)
    source, _, name = recipe.network.partition(":")
    try:
        with from_here():
            net = SOURCES.get(source, from_function(source))(name, recipe.arguments, shape)
    except Exception as error:  # what strangers' code raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        reason = f"there is no module {missing!r}: is it installed?" if missing else first_line(error)
        raise ValueError(f"network {recipe.network!r} cannot be built: {reason}") from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"network {recipe.network!r} is no nn.Module but {type(net).__name__}")
    net.register_forward_hook(only_logits)
    return net


def in_colour(recipe: Recipe) -> bool:
    """Whether grey images become RGB for a network: those of other packages are made for that."""
    channels = [recipe.arguments[key] for key in ("in_chans", "num_channels") if key in recipe.arguments]
    return recipe.network.partition(":")[0] in SOURCES and 1 not in channels


# Networks from elsewhere: name, arguments of the recipe, what to fit -> network

Builder = Callable[[str, Mapping[str, object], Shape], nn.Module]


def from_timm(name: str, arguments: Mapping[str, object], shape: Shape) -> nn.Module:
    """``timm.create_model``."""
    create = importlib.import_module("timm").create_model
    chosen = {"num_classes": shape.classes, "in_chans": shape.channels, **arguments}
    return noted(create(name, **chosen), "timm:create_model", {"model_name": name, **chosen})


def from_torchvision(name: str, arguments: Mapping[str, object], shape: Shape) -> nn.Module:
    """``torchvision.models.get_model``."""
    get = importlib.import_module("torchvision.models").get_model
    chosen = {"num_classes": shape.classes, **arguments}
    return noted(get(name, **{"weights": None, **chosen}), f"torchvision.models:{name}", chosen)


def from_transformers(name: str, arguments: Mapping[str, object], shape: Shape) -> nn.Module:
    """A classifier of a type such as "resnet", or one whose configuration lies in a folder."""
    package = importlib.import_module("transformers")
    fitting = {"num_labels": shape.classes, "num_channels": shape.channels}
    if Path(name).is_dir():
        config = package.AutoConfig.from_pretrained(name, local_files_only=True, **{**fitting, **arguments})
    else:
        if isinstance(getattr(package.AutoConfig.for_model(name), "image_size", None), int):
            fitting["image_size"] = shape.size
        config = package.AutoConfig.for_model(name, **{**fitting, **arguments})
    return package.AutoModelForImageClassification.from_config(config)


def from_function(module: str) -> Builder:
    """Calls a function of a module with the recipe's arguments, and with what it has parameters for.

    These are ``classes`` or ``num_classes``, ``in_channels`` and ``image_size``.
    """

    def build(name: str, arguments: Mapping[str, object], shape: Shape) -> nn.Module:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        known = {"classes": shape.classes, "num_classes": shape.classes}
        known |= {"in_channels": shape.channels, "image_size": shape.size}
        wanted = inspect.signature(function).parameters
        chosen = {key: value for key, value in known.items() if key in wanted} | dict(arguments)
        return noted(function(**chosen), f"{module}:{name}", chosen)

    return build


SOURCES: dict[str, Builder] = {
    "timm": from_timm,
    "torchvision": from_torchvision,
    "transformers": from_transformers,
}


@contextmanager
def from_here() -> Iterator[None]:
    """Let modules in the current folder be imported, as ``python`` does and commands do not."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def only_logits(module: nn.Module, args: object, output: object) -> Any:
    """A forward hook: of networks that answer with more than logits, the logits."""
    answer = logits_of(output)
    return answer if isinstance(answer, Tensor) else answer[0]


outside_graphs(only_logits)


def check_answer(recipe: Recipe, net: nn.Module, images: Tensor, classes: int) -> None:
    """Raise unless a network takes such images and has a logit for each class."""
    size = " x ".join(map(str, images.shape[1:]))
    try:
        with evaluating(net), torch.no_grad():
            answer = net(images)
    except Exception as error:
        raise ValueError(f"network {recipe.network!r} does not take images of {size}: {first_line(error)}") from error
    if not isinstance(answer, Tensor) or answer.shape != (len(images), classes):
        found = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        raise ValueError(
            f"network {recipe.network!r} answers {len(images)} images with {found}, "
            f"and should answer with {(len(images), classes)}, a logit for each class"
        )


# Which layers become splines, where nobody says

LARGE = 1_000_000  # parameters, above which splines everywhere cost too much


def first_convolution(net: nn.Module) -> tuple[str, ...]:
    """Its name, if there is one."""
    names = (name for name, module in net.named_modules() if isinstance(module, nn.modules.conv._ConvNd))
    return tuple(name for name, _ in zip(names, range(1), strict=False))


def later_stages(net: nn.Module) -> tuple[str, ...]:
    """Patterns of the layers in the second half of a network's stages; of all in a small network."""
    if sum(parameter.numel() for parameter in net.parameters()) <= LARGE:
        return ("*",)
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    layers = [name for name, module in net.named_modules() if isinstance(module, kinds)]
    stages = list(dict.fromkeys(map(stage_of, layers)))
    return tuple(stage if stage in layers else f"{stage}.*" for stage in stages[len(stages) // 2 :])


def stage_of(layer: str) -> str:
    """A layer's name up to its first number: layer4.1.conv2 -> layer4, encoder.layer.11.output -> encoder.layer.11."""
    parts = layer.split(".")
    numbered = next((at for at, part in enumerate(parts) if part[-1:].isdigit()), len(parts))
    return ".".join(parts[: numbered + 1])
