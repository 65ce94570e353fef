"""A network in one file: weights as safetensors, and beside them, as JSON, what it takes to build it again.

Nothing is pickled and, unless the reader trusts the writer, nothing that a file names is run: see ``constructors``.
The file tells by its digests whether it is whole, and is replaced whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from .constructors import Source, construct, source_of
from .conversion import Conversion, Row, copy_network
from .costs import cost
from .data import prepare
from .data.dataset import array_digest
from .files import DamagedError, Json, content_of, read_metadata, replacing, seal, unseal
from .layers import SplineLayer
from .loops import Regularized
from .structure import describe, rebuild
from .tracing import plain_name, uncompiled

FORMAT = 1
KEY = "splinenets"  # of our metadata in a safetensors file
NAME = "splinenets.safetensors"  # of the file in a folder that is shared
WRAPPERS = (DataParallel, DistributedDataParallel, AveragedModel, Regularized)

Where: TypeAlias = str | PathLike[str]


def save(
    net: nn.Module,
    path: Where,
    *,
    builder: str | None = None,
    arguments: Mapping[str, object] | None = None,
    classes: Sequence[str] | None = None,
    preparation: Mapping[str, object] | None = None,
    card: Mapping[str, object] | None = None,
    example: object = None,
) -> None:
    """Write a network to a file: converted, trained, folded, deployed, collapsed, with conditions, or plain.

    builder      "package.module:function" that builds the plain network, with ``arguments`` that JSON can hold; our
                 own networks and those of transformers need none. Without a builder, sn.load(path, net) reads the file
    classes      the names of its answers
    preparation  what to do with uint8 images, as ``sn.data.Augmentation.preparation`` has it
    card         whatever else there is to know, such as its accuracy, as JSON
    example      an input; then the card says what the network costs

    What you leave out is taken from the network, if it was loaded with it.

    Examples:
        >>> net = sn.convert(sn.models.lenet(4), "D(5)-C-R3").eval()
        >>> sn.save(net, "net.safetensors", classes=list("0123456789"))
        >>> images, again = torch.randn(2, 1, 28, 28), sn.load("net.safetensors")
        >>> again.classes[3], torch.equal(again(images), net(images))
        ('3', True)
    """
    path, net = Path(path), unwrapped(net)
    slots = _slots(net)
    first: dict[int, str] = {}
    tied = {name: home for name, t in slots.items() if (home := first.setdefault(id(t), name)) != name}
    tensors = {name: t.detach() for name, t in slots.items() if name not in tied}
    told = {"parameters": sum(p.numel() for p in net.parameters()), **getattr(net, "card", {}), **(card or {})}
    if example is not None:
        told["cost"] = {"parameters": (found := cost(net, example)).parameters, "macs": found.macs}
    source = source_of(net) if builder is None else Source(builder=builder, arguments=dict(arguments or {}))
    content = {
        **_described(net, slots, tied),
        "tensors": _digest(tensors),
        "source": source or _inner_source(net),
        "classes": list(found_classes) if (found_classes := classes or getattr(net, "classes", ())) else None,
        "preparation": dict(preparation) if preparation is not None else getattr(net, "preparation", None),
        "card": told,
    }
    _write(path, tensors, content)


def _described(net: nn.Module, slots: Mapping[str, Tensor], tied: Mapping[str, str]) -> Json:
    """What a file says of a network beside its tensors, which lie in ``slots``, some of them under several names."""
    return {
        "format": FORMAT,
        "structure": describe(net),
        "tied": tied,
        "strides": {n: t.stride() for n, t in slots.items() if n not in tied and _in_another_order(t)},
        "frozen": [n for n, t in slots.items() if isinstance(t, nn.Parameter) and not t.requires_grad],
        "conversions": _conversions(net),
    }


def load(path: Where, net: nn.Module | None = None, *, trust: bool = False) -> nn.Module:
    """A network from a file, in eval mode, bit for bit the one that was saved.

    path   a file, or a folder that holds ``splinenets.safetensors``
    net    the plain network, if the file does not say how to build it, or you do not want to run its builder; the
           result is a copy of it, whatever weights it has
    trust  run the builder that the file names, whoever wrote it

    ``net.classes``, ``net.preparation``, ``net.prepare(images)`` and ``net.card`` exist if they were saved.

    Examples:
        >>> sn.save(sn.models.lenet(4), "plain.safetensors", card={"made": "for show"})
        >>> sn.load("plain.safetensors").card["made"]
        'for show'
    """
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    tensors, content = _read(path)
    try:
        net = construct(_source(content), trust=trust) if net is None else copy_network(unwrapped(net))
        net = rebuild(net, content["structure"])
        _put_weights(net, tensors, content)
    except ValueError as error:
        raise ValueError(f"cannot load {path}: {error}") from None
    for name, rows in content["conversions"].items():
        net.get_submodule(name).conversion = Conversion(tuple(Row(**row) for row in rows))  # type: ignore[assignment]
    dress(net, content["classes"], content["preparation"], content["card"])
    return net.eval()


def dress(
    net: nn.Module,
    classes: Sequence[str] | None,
    preparation: Mapping[str, object] | None,
    card: Mapping[str, object],
) -> None:
    """Note on a network what its answers are called, what it wants to see, and what else there is to know."""
    noted: Any = net
    noted.card = dict(card)
    if classes is not None:
        noted.classes = tuple(classes)
    if preparation is not None:
        noted.preparation, noted.prepare = dict(preparation), partial(prepare, preparation=dict(preparation))


def read_card(path: Where) -> Json:
    """What a file says of its network: "card", "classes", "preparation", "source" and "structure"."""
    return _read(Path(path))[1]


def unwrapped(net: nn.Module) -> nn.Module:
    """The network itself, without what compiles, distributes or averages it."""
    while True:
        inner = uncompiled(net)
        inner = inner.module if isinstance(inner, WRAPPERS) else inner
        if inner is net:
            return net
        net = inner


def _slots(net: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a network's state by name: parameters and buffers themselves."""
    slots = {plain_name(name): value for name, value in net.state_dict(keep_vars=True).items()}
    for name, value in slots.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name!r} is a {type(value).__name__}, and a file holds tensors alone")
    return slots


def _in_another_order(tensor: Tensor) -> bool:
    """Whether a tensor lies in memory in another order than its dimensions, without holes, as channels_last does."""
    room = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != room:
            return False
        room *= size
    return tensor.stride() != torch.empty(tensor.shape, device="meta").stride()


def _inner_source(net: nn.Module) -> Source | None:
    """That of a network inside one that is told conditions."""
    inner = getattr(net, "net", None)
    return source_of(inner) if isinstance(inner, nn.Module) else None


def _conversions(net: nn.Module) -> dict[str, list[Json]]:
    found = {plain_name(n): getattr(m, "conversion", None) for n, m in net.named_modules()}
    return {name: [asdict(row) for row in c.rows] for name, c in found.items() if isinstance(c, Conversion)}


def _source(content: Json) -> Source:
    source: Source | None = content["source"]
    if source is None:
        raise ValueError("it does not say how the network is built: build it yourself and call sn.load(path, net)")
    return source


def _put_weights(net: nn.Module, tensors: Mapping[str, Tensor], content: Json) -> None:
    """Give a network of the right structure its numbers, their kinds and their order in memory."""
    for name, home in content["tied"].items():
        owner, _, attribute = name.rpartition(".")
        setattr(net.get_submodule(owner), attribute, _slots(net)[home])
    slots, tied = _slots(net), content["tied"]
    for name in (*slots, *sorted(tensors)):
        if name not in slots or (name not in tensors and name not in tied):
            raise ValueError(f"it is that of another network, {'which has' if name in tensors else 'without'} {name!r}")
    for name in (name for name in slots if name in tensors):
        slot, tensor = slots[name], tensors[name]
        if slot.shape != tensor.shape:
            sizes = f"{tuple(tensor.shape)} in the file and {tuple(slot.shape)} in the network"
            raise ValueError(f"it is that of another network: {name!r} is {sizes}")
        if name in content["strides"]:
            tensor = torch.empty_strided(tensor.shape, content["strides"][name], dtype=tensor.dtype).copy_(tensor)
        if isinstance(slot, nn.Parameter):
            slot.requires_grad_(name not in content["frozen"] and tensor.dtype.is_floating_point)
        slot.data = tensor.to(slot.device)
    for layer in net.modules():
        if isinstance(layer, SplineLayer) and layer.base is None and "knots" in layer._parameters:
            layer.weight = layer.weight.to(layer.knots.dtype)  # all that is left of it says what numbers the layer has


# The file


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        content = array_digest(tensor.reshape(-1).view(torch.uint8))
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {content}\n".encode())
    return digest.hexdigest()


def _write(path: Path, tensors: Mapping[str, Tensor], content: Json) -> None:
    from safetensors.torch import save as pack

    try:
        sealed = seal(content)
    except TypeError as error:
        raise ValueError(
            f"a file holds what JSON knows, and arguments, card or preparation have more: {error}"
        ) from None
    packed = pack({name: t.cpu().contiguous() for name, t in tensors.items()}, metadata={KEY: sealed})
    with replacing(path) as file:
        file.write(packed)


def _read(path: Path) -> tuple[dict[str, Tensor], Json]:
    from safetensors import SafetensorError
    from safetensors.torch import load as unpack

    packed = content_of(path)
    try:
        sealed = read_metadata(io.BytesIO(packed))[KEY]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} was not written by sn.save") from None
    content = unseal(sealed, path)
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} has format {content.get('format')}, this version of splinenets reads {FORMAT}")
    try:
        tensors = unpack(packed)
    except SafetensorError as error:
        raise DamagedError(f"{path} is damaged: {error}") from None
    if _digest(tensors) != content["tensors"]:
        raise DamagedError(f"{path} is damaged: its tensors do not have the SHA-256 that it names")
    return tensors, content
