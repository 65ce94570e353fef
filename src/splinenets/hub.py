"""The Hugging Face hub: folders that ``from_pretrained`` reads, and networks of transformers that keep their splines.

``import splinenets.hub`` also teaches transformers, where it is installed, to rebuild the splines that a configuration
of one of its networks tells of; see ``structure.Mark``. It needs huggingface_hub, which comes with transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
from torch import nn

from .files import Json, replacing
from .layers import SplineLayer
from .saving import NAME, load, read_card, save
from .structure import METHOD, mark, rebuild


class Shared(nn.Module, ModelHubMixin):
    """A network that can be shared: ``sn.hub.Shared(net).push_to_hub("me/my-net")``.

    ``sn.hub.Shared.from_pretrained("me/my-net").net`` is the network again; a folder does as well as a name.
    ``options`` are those of ``sn.save``; those of ``sn.load`` go to ``from_pretrained``.
    """

    def __init__(self, net: nn.Module, **options: Any) -> None:
        super().__init__()
        self.net, self.options = net, options

    def forward(self, *inputs: object, **named: object) -> Any:
        """What the network answers."""
        return self.net(*inputs, **named)

    def _save_pretrained(self, save_directory: Path) -> None:
        save(self.net, save_directory / NAME, **self.options)
        content = read_card(save_directory / NAME)
        layers = {name: layer["spec"] for name, layer in content["structure"]["layers"].items()}
        keys = ("source", "classes", "preparation", "card")
        config = {"layers": layers, **{key: content[key] for key in keys}}
        with replacing(save_directory / "config.json") as file:
            file.write(json.dumps({"splinenets": config}, indent=1).encode())
        ModelCard(model_card(self.net, config)).save(save_directory / "README.md")

    @classmethod
    def _from_pretrained(  # type: ignore[override]  # anything else that is asked for is a mistake
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        net: nn.Module | None = None,
        trust: bool = False,
        splinenets: object = None,  # what config.json holds, which the file itself knows better
    ) -> Shared:
        where = {"revision": revision, "cache_dir": cache_dir, "force_download": force_download}
        options: Any = {**where, "local_files_only": local_files_only, "token": token}
        path = Path(model_id) if Path(model_id).is_dir() else hf_hub_download(model_id, NAME, **options)
        return cls(load(path, net, trust=trust))


def model_card(net: nn.Module, config: Json) -> str:
    """A page about a network: what it is, what it costs, how good it is, and how to load it."""
    told = config["card"]
    head = ModelCardData(library_name="splinenets", tags=["splinenets", "conditional-computation"])
    numbers = [(key, value) for key, value in told.items() if isinstance(value, int | float | str)]
    numbers += [(f"cost, {key}", value) for key, value in told.get("cost", {}).items()]
    layers = [(name, f"`{spec}`") for name, spec in config["layers"].items()]
    parts = [f"---\n{head.to_yaml()}\n---", f"# {type(net).__name__} with weights on splines"]
    parts.append("Each sample picks its own filters from B-spline curves (SplineNets, Keskin & Izadi, NeurIPS 2018).")
    parts.append(
        '```python\nimport splinenets as sn\n\nnet = sn.hub.Shared.from_pretrained("THIS-REPOSITORY").net\n```'
    )
    parts += [_table(("", ""), numbers), _table(("layer", "spec"), layers)]
    if config["classes"]:
        parts.append("Classes: " + ", ".join(config["classes"]) + ".")
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, str], rows: Sequence[tuple[str, object]]) -> str:
    shown = [f"| {name} | {f'{value:,}' if isinstance(value, int) else value} |" for name, value in rows]
    return "\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *shown])


def _own_modules(net: nn.Module) -> list[nn.Module]:
    """Spline layers and what is in them."""
    return list({part: None for m in net.modules() if isinstance(m, SplineLayer) for part in m.modules()})


def teach_transformers() -> None:
    """Let ``from_pretrained`` of transformers rebuild splines before it loads weights.

    The place where it changes layers before weights come is that for quantised networks.
    """
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    @register_quantization_config(METHOD)
    class Splines(QuantizationConfigMixin):
        """What a configuration tells of splines."""

        def __init__(self, structure: Json, quant_method: Any = METHOD) -> None:
            self.structure, self.quant_method = structure, quant_method

    @register_quantizer(METHOD)
    class Rebuilding(HfQuantizer):
        """Rebuilds splines; afterwards the network is one like any other."""

        is_trainable = True

        def is_serializable(self) -> bool:
            return True

        def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: object) -> None:
            config: Any = self.quantization_config
            rebuild(model, config.structure)
            for module in _own_modules(model):
                module._is_hf_initialized = True  # type: ignore[assignment]  # all they have is in the file

        def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: object) -> nn.Module:
            self.remove_quantization_config(model)  # type: ignore[no-untyped-call]
            for module in _own_modules(model):
                del module._is_hf_initialized
            mark(model)
            return model


if find_spec("transformers") is not None:
    teach_transformers()
