"""What changes while a network trains, to a checkpoint and back. Nothing random is in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoint import Checkpoint

# sums over the samples of the epoch so far: cross entropy, regulariser, right answers, samples
TOTALS = ("cross_entropy", "regularizer", "right", "samples")


@dataclass
class State:
    """Weights, momentum, the number of steps done, and what the metrics of later epochs depend on."""

    net: nn.Module
    optimizer: torch.optim.SGD
    step: int = 0
    totals: list[float] = field(default_factory=lambda: [0.0] * len(TOTALS))
    best: dict[str, Any] | None = None  # step and accuracy
    warned: list[str] = field(default_factory=list)  # layers of which health has warned
    quantiles: list[dict[str, Tensor]] = field(default_factory=list)  # of positions, in the last epochs

    def checkpoint(self, metrics_length: int) -> Checkpoint:
        """Everything, as tensors and plain values."""
        tensors = {f"model.{name}": tensor.clone() for name, tensor in self.net.state_dict().items()}
        for name, parameter in self.net.named_parameters():
            if (buffer := self.optimizer.state[parameter].get("momentum_buffer")) is not None:
                tensors[f"momentum.{name}"] = buffer
        for age, layers in enumerate(self.quantiles):
            tensors |= {f"quantiles.{age}.{name}": tensor for name, tensor in layers.items()}
        state = {"totals": self.totals, "best": self.best, "warned": self.warned, "metrics_length": metrics_length}
        return Checkpoint(self.step, tensors, state)

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> int:
        """Go back to a checkpoint; the length of the metrics at that time."""
        restore_weights(self.net, checkpoint)
        for name, parameter in self.net.named_parameters():
            if (buffer := checkpoint.tensors.get(f"momentum.{name}")) is not None:
                self.optimizer.state[parameter]["momentum_buffer"] = buffer.to(parameter.device)
        self.step, self.totals = checkpoint.step, list(checkpoint.state["totals"])
        self.best, self.warned = checkpoint.state["best"], list(checkpoint.state["warned"])
        self.quantiles = []
        for name, tensor in checkpoint.tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "quantiles":
                age, _, layer = rest.partition(".")
                while len(self.quantiles) <= int(age):
                    self.quantiles.append({})
                self.quantiles[int(age)][layer] = tensor
        return int(checkpoint.state["metrics_length"])


def restore_weights(net: nn.Module, checkpoint: Checkpoint) -> None:
    """Load a checkpoint's weights into the network it was made of."""
    start = "model."
    weights = {n.removeprefix(start): t for n, t in checkpoint.tensors.items() if n.startswith(start)}
    try:
        net.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"the checkpoint of step {checkpoint.step} is that of another network: {reason}") from None
