"""LeNet-s, modernised with ReLU and dropout as in the paper."""

from __future__ import annotations

from torch import Tensor, nn

from ..constructors import remembered


class LeNet(nn.Module):
    """5x5 convolutions with s and 2s filters, each with ReLU and 2x2 max pooling; dense layers with 4s and classes.

    Convolutions keep the image's size: with this reading a Spline-LeNet-32 with four knots has the 2.25 million
    parameters that the paper reports (see docs/results.md).
    """

    def __init__(self, s: int, in_channels: int, image_size: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, s, 5, padding=2)
        self.conv2 = nn.Conv2d(s, 2 * s, 5, padding=2)
        self.dense1 = nn.Linear(2 * s * (image_size // 4) ** 2, 4 * s)
        self.dense2 = nn.Linear(4 * s, classes)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        x = self.pool(self.relu(self.conv1(images)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.dropout(self.relu(self.dense1(x.flatten(1))))
        return self.dense2(x)


@remembered
def lenet(s: int = 32, *, in_channels: int = 1, image_size: int = 28, classes: int = 10, dropout: float = 0.5) -> LeNet:
    """LeNet-s for 28x28 grey or 32x32 colour images; ``s`` is the number of filters of the first convolution."""
    if s < 1:
        raise ValueError(f"LeNet-s needs s >= 1 filters, got {s}")
    if image_size < 4:
        raise ValueError(f"LeNet halves its images twice and needs image_size >= 4, got {image_size}")
    return LeNet(s, in_channels, image_size, classes, dropout)
