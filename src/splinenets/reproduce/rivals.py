"""Other ways to give each image weights of its own, on the same host: what SplineNets are measured against.

Squeeze-and-excite (Hu et al. 2018) scales channels, CondConv (Yang et al. 2019) mixes experts, and ODConv (Li et al.
2022) mixes experts and scales each of them along filters, channels and places. Each in its published form, as far as
this host has room for it; for comparisons, not for users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..functional import conv2d_per_sample
from ..models import Air, air

EXPERTS = 4  # of CondConv and ODConv; both papers use 4 and 8


class Excited(nn.Module):
    """A convolution, and a squeeze-and-excite block after it."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.excite = nn.Sequential(*squeeze(conv.out_channels, conv.out_channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, out, H, W)."""
        y = self.conv(x)
        return y * self.excite(y.mean((2, 3)))[..., None, None]


class CondConv(nn.Module):
    """Experts that are mixed by a sigmoid of the mean of each channel."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.padding = conv.padding
        self.route = nn.Linear(conv.in_channels, EXPERTS)
        self.experts = experts(conv)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, out, H, W)."""
        shares = self.route(x.mean((2, 3))).sigmoid()
        return conv2d_per_sample(x, torch.einsum("nk,koihw->noihw", shares, self.experts), padding=self.padding)


class ODConv(nn.Module):
    """Experts that are mixed by a softmax, their filters, channels and places scaled by sigmoids."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.padding, places = conv.padding, conv.kernel_size[0] * conv.kernel_size[1]
        hidden = max(conv.in_channels // 16, 16)
        self.squeeze = nn.Sequential(nn.Linear(conv.in_channels, hidden), nn.ReLU())
        sizes = (EXPERTS, conv.out_channels, conv.in_channels, places)
        self.heads = nn.ModuleList(nn.Linear(hidden, size) for size in sizes)
        self.experts = experts(conv)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, out, H, W)."""
        squeezed = self.squeeze(x.mean((2, 3)))
        shares, filters, channels, places = (head(squeezed) for head in self.heads)
        place = places.sigmoid().unflatten(1, self.experts.shape[-2:])
        weights = torch.einsum("nk,koihw->noihw", shares.softmax(1), self.experts)
        weights = weights * place[:, None, None] * channels.sigmoid()[:, None, :, None, None]
        y = conv2d_per_sample(x, weights, padding=self.padding)
        return y * filters.sigmoid()[..., None, None]


RIVALS: dict[str, Callable[[nn.Conv2d], nn.Module]] = {"SE": Excited, "CondConv": CondConv, "ODConv": ODConv}


def rival(kind: str, widths: Sequence[int], in_channels: int, classes: int) -> Air:
    """Air whose convolutions, all but the whitening one, are of this kind."""
    net = air(widths, in_channels=in_channels, classes=classes)
    for group in net.groups:
        for name in ("conv1", "conv2"):
            setattr(group, name, RIVALS[kind](getattr(group, name)))
    return net


def squeeze(channels: int, answers: int, reduction: int = 4) -> tuple[nn.Module, ...]:
    """Two linear layers with a ReLU between them."""
    hidden = max(channels // reduction, 4)
    return nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, answers)


def experts(conv: nn.Conv2d) -> nn.Parameter:
    """Experts that start as the convolution does, each with noise of its own: (EXPERTS, out, in, kh, kw)."""
    fresh = torch.stack([nn.init.kaiming_uniform_(torch.empty_like(conv.weight), a=5**0.5) for _ in range(EXPERTS)])
    identity = min(conv.in_channels, conv.out_channels)
    fresh[:, :identity] = conv.weight.detach()[:identity]  # the filters that hand channels on
    return nn.Parameter(fresh)
