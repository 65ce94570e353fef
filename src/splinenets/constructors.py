"""How a plain network was built: noted on the network, written into its file, and done again by whoever loads it.

A builder is a function, "package.module:function", with arguments that JSON knows. Importing what a file names is
running what its writer chose. So only these are built without being trusted: our own networks, torchvision's models by
their names, timm's by ``create_model``, and the model classes of transformers; none of them may fetch anything.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypedDict, TypeVar

from torch import nn

from .files import Json

P = ParamSpec("P")
Net = TypeVar("Net", bound=nn.Module)

OURS = "splinenets.models"
FETCHING = {  # arguments that bring weights from elsewhere, or more than weights; a file has its own
    *("weights", "weights_backbone", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"),
    *("checkpoint_path", "cache_dir"),
}
ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")  # others name code to fetch


class Source(TypedDict):
    """How a network is built."""

    builder: str
    arguments: Json


def remembered(build: Callable[P, Net]) -> Callable[P, Net]:
    """A function of ``splinenets.models`` that notes on a network how it was built."""
    signature = inspect.signature(build)

    @wraps(build)
    def remember(*args: P.args, **kwargs: P.kwargs) -> Net:
        net = build(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return noted(net, f"{OURS}:{build.__name__}", given.arguments)

    return remember


def noted(net: Net, builder: str, arguments: Json) -> Net:
    """The same network, on which is noted how it was built, unless it has something of that name."""
    if isinstance(net, nn.Module) and not hasattr(net, "source"):
        net.source = Source(builder=builder, arguments=arguments)  # type: ignore[assignment]
    return net


def source_of(net: nn.Module) -> Source | None:
    """How a network was built, where it is known."""
    noted: Any = getattr(net, "source", None)
    if isinstance(noted, dict):
        return Source(builder=noted["builder"], arguments=noted["arguments"])
    config: Any = getattr(net, "config", None)
    if not type(net).__module__.startswith("transformers.models.") or not hasattr(config, "to_json_string"):
        return None
    settings = json.loads(config.to_json_string(use_diff=False))
    arguments = {"config": _own(settings), "attention": getattr(config, "_attn_implementation", None)}
    return Source(builder=f"transformers:{type(net).__name__}", arguments=arguments)


def _own(settings: Any) -> Any:
    """Settings of a configuration without those that say where it came from, or name code to fetch."""
    if isinstance(settings, list):
        return [_own(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    foreign = ("auto_map", "quantization_config", "attn_implementation", "experts_implementation", "custom_pipelines")
    return {k: _own(v) for k, v in settings.items() if not k.startswith("_") and k not in foreign}


def construct(source: Source, *, trust: bool = False) -> nn.Module:
    """Build a network again, with weights that are yet to come."""
    builder, arguments = source["builder"], source["arguments"]
    package, _, name = builder.partition(":")
    for known, build in KNOWN.items():
        if package == known:
            return build(name, {k: v for k, v in arguments.items() if k not in FETCHING})
    if not trust:
        raise ValueError(
            f"it is built by {builder!r}, which would run code that the file names: build the network yourself and "
            f"call sn.load(path, net), or say trust=True if you trust whoever wrote the file"
        )
    return _checked(_import(package, name)(**arguments), builder)


def _import(package: str, name: str) -> Any:
    try:
        return getattr(import_module(package), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"its builder {package}:{name} is not here ({error}): install it, or build the network "
            f"yourself and call sn.load(path, net)"
        ) from None


def _checked(net: object, builder: str) -> nn.Module:
    if not isinstance(net, nn.Module):
        raise ValueError(f"its builder {builder!r} builds a {type(net).__name__}, not a network")
    return net


def _ours(name: str, arguments: Mapping[str, object]) -> nn.Module:
    if name not in ("air", "build", "lenet", "resnet"):
        raise ValueError(f"splinenets builds air, lenet, resnet and what build names, not {name!r}")
    return _import(f"{__package__}.models", name)(**arguments)


def _torchvision(name: str, arguments: Mapping[str, object]) -> nn.Module:
    models = _import("torchvision", "models")
    if name not in models.list_models():
        raise ValueError(f"torchvision has no model {name!r}")
    return models.get_model_builder(name)(**arguments)


def _timm(name: str, arguments: Mapping[str, object]) -> nn.Module:
    model = arguments.get("model_name")
    if name != "create_model" or not isinstance(model, str) or not model.replace(".", "_").isidentifier():
        raise ValueError(f"timm's models are built by timm:create_model and a model_name of its own, not {model!r}")
    return _import("timm", "create_model")(**arguments)


def _transformers(name: str, arguments: Mapping[str, object]) -> nn.Module:
    kind, base = _import("transformers", name), _import("transformers", "PreTrainedModel")
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ValueError(f"transformers has no model class {name!r}")
    config = kind.config_class.from_dict(_own(arguments["config"]))  # type: ignore[attr-defined]
    if arguments.get("attention") in ATTENTION:
        config._attn_implementation = arguments["attention"]
    return kind(config)


KNOWN: dict[str, Callable[[str, Mapping[str, object]], nn.Module]] = {
    OURS: _ours,
    "torchvision.models": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}
