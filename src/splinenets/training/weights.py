"""Weights from a file, or of a run, for a plain network to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..tables import first_line
from . import checkpoint


def load_weights(net: nn.Module, path: str, classes: int) -> list[str]:
    """Give a plain network the weights in a file, or of a run; the names of those it keeps, of an output layer.

    An output layer for other classes than ours stays as it is; everything else must fit.
    """
    own = net.state_dict()
    found = unwrapped(read_weights(Path(path).expanduser()), set(own))
    optional = {name for name in own if name.endswith("num_batches_tracked")}
    if odd := sorted((set(own) ^ set(found)) - optional):
        where = "but the network does not" if odd[0] in found else "which the network has"
        has = "has" if odd[0] in found else "does not have"
        raise ValueError(f"the weights in {path} are those of another network: it {has} {odd[0]!r}, {where}")
    other = [name for name in found if found[name].shape != own[name].shape]
    for name in other:
        ours, theirs = own[name].shape, found[name].shape
        if not ours or ours[0] != classes or ours[1:] != theirs[1:]:
            raise ValueError(
                f"the weights in {path} are those of another network: {name!r} is {tuple(theirs)} there, "
                f"{tuple(ours)} here"
            )
    fitting = {name: tensor for name, tensor in found.items() if name not in other}
    net.load_state_dict(checkpoint.with_versions(fitting, net), strict=False)
    return other


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a safetensors file, in one by ``torch.save``, or in the last checkpoint of a run."""
    if (path / "checkpoints").is_dir():
        found = checkpoint.read_last(path / "checkpoints", lambda text: None)
        if found is None:
            raise ValueError(f"{path} has no checkpoint yet")
        return {name: tensor for name, tensor in found.tensors.items() if name.startswith("model.")}
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}: neither a file nor a run")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or unsafe file brings about
        raise ValueError(f"{path} cannot be read as weights: {first_line(error)}") from None
    return state_dict_in(content, path)


def state_dict_in(content: object, path: Path) -> dict[str, Tensor]:
    """A state dict, or the one that lies in a training checkpoint of somebody's under "state_dict" or "model"."""
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ValueError(f"{path} holds no state dict, but {type(content).__name__}")
    return dict(content)


def unwrapped(tensors: dict[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """Tensors by the names that a network has for them: what wrappers put before all names is taken away."""
    while tensors and not names & tensors.keys():
        heads = {name.partition(".")[0] for name in tensors}
        if len(heads) > 1 or not all("." in name for name in tensors):
            break
        tensors = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
    return tensors
