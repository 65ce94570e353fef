"""A SplineNet in Lightning: the loss is one line, and the health of positions is logged. Needs ``lightning``."""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import splinenets as sn


class Module(lightning.LightningModule):  # type: ignore[misc]  # where it is not installed
    def __init__(self, net: torch.nn.Module, classes: int) -> None:
        super().__init__()
        self.model, self.health = sn.Regularized(net, classes), sn.HealthMetric()

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        *inputs, labels = batch  # images, and conditions where a network is told any
        return self.model(*inputs, labels=labels)[0]

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        logits, positions = sn.trace(self.model.module, *batch[:-1])
        self.health.update(positions, batch[-1])
        self.log("accuracy", (logits.argmax(1) == batch[-1]).float().mean())

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.health.compute())
        self.health.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


if __name__ == "__main__":
    data = sn.data.load("embedded")
    train, test = (TensorDataset((s.images.float() - 73) / 90, s.labels) for s in (data.train, data.test))
    module = Module(sn.convert(sn.models.lenet(8), "D(5)-D-R3", example=train[:100][0]), 10)
    trainer = lightning.Trainer(max_epochs=1 if "--quick" in sys.argv else 4)
    trainer.fit(module, DataLoader(train, 100, shuffle=True), DataLoader(test, 100))
    print(module.health.history[-1])
