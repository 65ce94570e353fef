"""What a layer does with its weights: a convolution or a linear map, with one weight for all or one per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Operation(Protocol):
    """Weights are (filters, fan_in), flattened; ``bias`` is (filters,) or None."""

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One weight for all samples."""

    def per_sample(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """A weight for each sample: weights (N, filters, fan_in)."""

    def unfolded(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """The same as ``per_sample``, as one batch of matrix products."""

    def bank(self, x: Tensor, knots: Tensor) -> Tensor:
        """The response to every knot: (K, filters, fan_in) -> (N, K, filters, everything else)."""

    def restore(self, responses: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Mixed responses (N, filters, everything else) in the shape of the layer's output, bias added."""


class Convolution(NamedTuple):
    """A convolution of samples (N, C, ...), as ``torch.nn.functional`` describes it."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One weight for all samples."""
        return self._convolve(x, weight, bias, self.groups)

    def per_sample(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """A weight for each sample: the batch becomes groups of one large convolution."""
        samples, filters = weights.shape[:2]
        together = x.reshape(1, samples * x.shape[1], *x.shape[2:])
        biases = None if bias is None else bias.repeat(samples)
        y = self._convolve(together, weights.flatten(0, 1), biases, samples * self.groups)
        return y.reshape(samples, filters, *y.shape[2:])

    def unfolded(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """A weight for each sample: the patch around every place is laid out, then one batch of matrix products."""
        samples, filters, fan_in = weights.shape
        self.output_size(x.shape[2:])  # or it says that the kernel does not fit
        patches = self._patches(x).reshape(samples * self.groups, fan_in, -1).to(weights.dtype)
        y = weights.reshape(samples * self.groups, -1, fan_in) @ patches
        return self.restore(y.reshape(samples, filters, -1), x, bias)

    def _patches(self, x: Tensor) -> Tensor:
        """(N, C, *image) -> (N, C, *kernel, *output)."""
        spatial = len(self.kernel)
        x = F.pad(x, [side for margin in reversed(self.margins()) for side in margin])
        for axis, (k, s, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True), start=2):
            x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
        return x.movedim(tuple(range(-spatial, 0)), tuple(range(2, 2 + spatial)))

    def bank(self, x: Tensor, knots: Tensor) -> Tensor:
        """The response to every knot, from one convolution with all of them."""
        count, filters, _ = knots.shape
        # a grouped convolution wants the filters of a group together, whichever knot they belong to
        grouped = knots.unflatten(1, (self.groups, -1)).transpose(0, 1)
        y = self._convolve(x, grouped.flatten(0, 2), None, self.groups).flatten(2)
        responses = y.unflatten(1, (self.groups, count, filters // self.groups)).transpose(1, 2)
        return responses.flatten(2, 3)

    def restore(self, responses: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Unfold the last dimension into the output's height and width."""
        if bias is not None:
            responses = responses + bias.to(responses.dtype).unsqueeze(1)
        return responses.unflatten(2, self.output_size(x.shape[2:]))

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        self.output_size(x.shape[2:])  # or it says that the kernel does not fit
        convolve = CONVOLUTIONS[len(self.kernel)]
        weight = weight.unflatten(-1, (-1, *self.kernel))
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, groups)

    def margins(self) -> list[tuple[int, int]]:
        """Padding before and after the image, for each of its dimensions."""
        if not isinstance(self.padding, str):
            return [(p, p) for p in self.padding]
        total = [d * (k - 1) if self.padding == "same" else 0 for k, d in zip(self.kernel, self.dilation, strict=True)]
        return [(t // 2, t - t // 2) for t in total]

    def sides(self) -> tuple[int, ...]:
        """Padding on every side: (top, bottom, left, right)."""
        return tuple(side for margin in self.margins() for side in margin)

    def setting(self) -> tuple[tuple[int, ...], ...]:
        """What our operators are told of a 2d convolution."""
        return self.kernel, self.stride, self.sides(), self.dilation

    def output_size(self, size: torch.Size) -> tuple[int, ...]:
        """The size of what a convolution of an image of this size gives."""
        per_axis = zip(size, self.margins(), self.dilation, self.kernel, self.stride, strict=True)
        found = tuple((n + sum(p) - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in per_axis)
        if not torch.compiler.is_compiling() and min(*found, *size) < 1:
            raise ValueError(
                f"a kernel of size {self.kernel} with padding {self.padding} and dilation {self.dilation} "
                f"does not fit into an input of size {tuple(size)}"
            )
        return found


class LinearMap(NamedTuple):
    """A linear map of samples (N, ..., in)."""

    def plain(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One weight for all samples."""
        return F.linear(x, weight, bias)

    def per_sample(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """A weight for each sample, as a batch of matrix products."""
        rows = self._rows(x)
        y = rows @ weights.mT if bias is None else torch.baddbmm(bias.to(weights.dtype), rows, weights.mT)
        return y.reshape(*x.shape[:-1], weights.shape[1])

    def unfolded(self, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
        """The same: there is nothing to lay out."""
        return self.per_sample(x, weights, bias)

    def bank(self, x: Tensor, knots: Tensor) -> Tensor:
        """The response to every knot, from one matrix product with all of them."""
        y = F.linear(self._rows(x), knots.flatten(0, 1))
        return y.unflatten(2, knots.shape[:2]).permute(0, 2, 3, 1)

    def restore(self, responses: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Put the filters last again."""
        y = responses.transpose(1, 2).reshape(*x.shape[:-1], responses.shape[1])
        return y if bias is None else y + bias.to(y.dtype)

    @staticmethod
    def _rows(x: Tensor) -> Tensor:
        """(N, ..., in) -> (N, rows, in)."""
        return x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
