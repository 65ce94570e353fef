"""When a network cannot be exported: which of its layers is in the way."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from torch import fx, nn


class Obstacles:
    """What is known during an export: the layers entered and not yet left, and the graph once there is one."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.graph: fx.Graph | None = None

    def layer(self, error: BaseException) -> str:
        """The layer that an error is about."""
        if self.inside:
            return self.inside[-1]
        nodes = {node.name: node for node in self.graph.nodes} if self.graph else {}
        each: BaseException | None = error
        while each is not None:
            for place, word in enumerate(re.findall(r"%(\w+)", str(each))):
                if (
                    word in nodes
                ):  # the first is the operation itself; where it has another name by now, its argument tells
                    return module_of(nodes[word] if place == 0 else next(iter(nodes[word].users)))
            each = each.__cause__
        return ""


def module_of(node: fx.Node) -> str:
    """The name of the layer that an operation belongs to."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    names = [path.removeprefix("L['self'].").removeprefix("L['self']") for path, _ in stack.values()]
    return names[-1] if names else ""


@contextmanager
def naming_layers(net: nn.Module) -> Iterator[Obstacles]:
    """Turn whatever goes wrong inside into one sentence that names the layer."""
    obstacles = Obstacles()
    handles = []
    for name, module in net.named_modules():

        def enter(_: nn.Module, args: Any, name: str = name) -> None:
            obstacles.inside.append(name)

        def leave(_: nn.Module, args: Any, output: Any) -> None:
            obstacles.inside.pop()

        handles += [module.register_forward_pre_hook(enter, prepend=True), module.register_forward_hook(leave)]
    try:
        with _quietly():
            yield obstacles
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        name = obstacles.layer(error)
        kind = type(net.get_submodule(name)).__name__.removeprefix("Parametrized")
        where = f"layer {name!r} ({kind})" if name else kind
        raise ValueError(f"{where} cannot be exported: {_reason(error)}") from error
    finally:
        for handle in handles:
            handle.remove()


def _reason(error: BaseException) -> str:
    """The first line of what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"^%\w+: ", "", lines[0]) if lines else type(error).__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """Torch's exporters tell about packages they do not find, warn of their own future and print graphs that fail."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
