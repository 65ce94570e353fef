"""Other ways to give each image weights of its own, on the same hosts: what SplineNets are measured against.

Squeeze-and-excite (Hu et al. 2018) scales channels, CondConv (Yang et al. 2019) mixes experts, and ODConv (Li et al.
2022) mixes experts and scales them along filters, channels and places. Each in its published form, as far as a host has
room for it, and as there the first layer stays plain. For comparisons, not for users.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..functional import conv2d_per_sample
from ..models import build

EXPERTS = 4  # of CondConv and ODConv; their papers use 4 and 8


class Excited(nn.Module):
    """A convolution, and a squeeze-and-excite block after it."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        channels = conv.out_channels
        hidden = max(channels // 4, 4)
        self.conv = conv
        self.excite = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, out, H, W)."""
        y = self.conv(x)
        return y * self.excite(y.mean((2, 3)))[..., None, None]


class CondConv(nn.Module):
    """Experts that are mixed by a sigmoid of the mean of each channel."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.padding, self.bias = conv.padding, conv.bias
        self.route, self.knots = nn.Linear(conv.in_channels, EXPERTS), experts(conv)
        self.shape = conv.weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, out, H, W)."""
        shares = self.route(x.mean((2, 3))).sigmoid()
        filters = torch.einsum("nk,kof->nof", shares, self.knots).reshape(-1, *self.shape)
        return conv2d_per_sample(x, filters, self.bias, padding=self.padding)


class CondLinear(nn.Module):
    """The same for a matrix product."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self.route, self.knots = nn.Linear(linear.in_features, EXPERTS), experts(linear)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) -> (N, out)."""
        weights = torch.einsum("nk,koi->noi", self.route(x).sigmoid(), self.knots)
        return (weights @ x.unsqueeze(2)).squeeze(2) + self.bias


class ODConv(nn.Module):
    """Experts that are mixed by a softmax, their filters, channels and places scaled by sigmoids."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.padding, self.bias = conv.padding, conv.bias
        hidden, self.kernel = max(conv.in_channels // 16, 16), conv.kernel_size
        self.squeeze = nn.Sequential(nn.Linear(conv.in_channels, hidden), nn.ReLU())
        sizes = EXPERTS, conv.out_channels, conv.in_channels, self.kernel[0] * self.kernel[1]
        self.heads = nn.ModuleList(nn.Linear(hidden, size) for size in sizes)
        self.knots, self.shape = experts(conv), conv.weight.shape

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, out, H, W)."""
        squeezed = self.squeeze(x.mean((2, 3)))
        shares, filters, channels, places = (head(squeezed) for head in self.heads)
        weights = torch.einsum("nk,kof->nof", shares.softmax(1), self.knots).reshape(-1, *self.shape)
        weights = weights * filters.sigmoid()[:, :, None, None, None] * channels.sigmoid()[:, None, :, None, None]
        weights = weights * places.sigmoid().reshape(-1, 1, 1, *self.kernel)
        return conv2d_per_sample(x, weights, self.bias, padding=self.padding)


# what becomes of convolutions, and of linear layers
Change = Callable[[nn.Conv2d], nn.Module]
RIVALS: dict[str, tuple[Change, Callable[[nn.Linear], nn.Module] | None]] = {
    "SE": (Excited, None),
    "CondConv": (CondConv, CondLinear),
    "ODConv": (ODConv, None),
}


def rival(kind: str, host: str, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """A network of ours by name, such as "lenet4", without dropout, whose layers but the first are of this kind."""
    options = {"dropout": 0.0} if host.startswith("lenet") else {}
    net = build(host, in_channels=in_channels, image_size=image_size, classes=classes, **options)
    convolution, linear = RIVALS[kind]
    layers = [(name, module) for name, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for name, layer in layers[1:]:
        if isinstance(layer, nn.Conv2d):
            net.set_submodule(name, convolution(layer))
        elif linear is not None:
            net.set_submodule(name, linear(layer))
    return net


def experts(layer: nn.Conv2d | nn.Linear) -> nn.Parameter:
    """Weights for each expert, as torch draws a layer's; filters that hand channels on stay: (K, filters, fan_in).

    They are laid out, and called, as knots are, so that every optimizer treats them alike.
    """
    weight = layer.weight.detach().flatten(1)
    drawn = [nn.init.kaiming_uniform_(torch.empty_like(layer.weight), a=5**0.5).flatten(1) for _ in range(EXPERTS)]
    handing_on = (weight != 0).sum(1, keepdim=True) == 1
    return nn.Parameter(torch.stack([torch.where(handing_on, weight, d) for d in drawn]))
