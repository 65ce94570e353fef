"""SplineLinear and SplineConv1d/2d/3d: torch's layers with weights on B-splines, a position for each sample."""

from __future__ import annotations

from math import prod
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .functional import Size
from .operators import Convolution, Curves, LinearMap, Operation, balanced, compute, mix_weights, pool_beside
from .path import Level, State, diffuse
from .projection import External, Projection, Proposer
from .repeats import recomputing
from .spec import SplineSpec, check_memory, check_sides

Device: TypeAlias = torch.device | str | int | None


class SplineLayer(Level):
    """What all spline layers share; beside it stands torch's own layer, whose ``weight`` is the base of the curves.

    position = diffuse(parent, projection(features, parent))  # the paper's phi = (1 - delta) parent + delta D(x)
    weights = weight + sum_k B_k(position) knots_k  # S(phi) = sum_k C_k B_k(phi), for each spline
    output = operation(x, weights) + bias
    """

    torch_layer: type[nn.Module]  # whose place this layer takes
    weight: Tensor
    bias: Tensor | None
    projection: Proposer
    channel_dim: int
    input_size: tuple[int, ...] | None
    balanced = True  # offsets have balanced gradients; False: plain ones, as before version 0.2

    def become_spline(self, spec: SplineSpec, input_size: Size | None) -> None:
        """Add knots and projection to a torch layer; its weight becomes their base."""
        splines, features = self.shape_of(spec, input_size)
        weight = self.weight
        if weight.is_cpu:
            check_memory(spec.dims * spec.knots * weight.nbytes, f"the knots of {spec}")
        self.spec, self.filters, self.fan_in = spec, weight.shape[0], weight[0].numel()
        self.begin(splines, spec.dims)
        self.knots = nn.Parameter(weight.new_zeros(spec.dims * spec.knots, self.filters, self.fan_in))
        proposer = External(self.coordinates) if spec.external else Projection(features, self.coordinates, spec)
        self.projection = proposer.to(weight.device, weight.dtype).train(self.training)
        if not spec.centered:
            self.stand_alone(self.curves.control_points())

    def stand_alone(self, knots: Tensor) -> None:
        """Take knots that need no shared weight; what is left of that tells numbers and device alone."""
        self.knots = knots if isinstance(knots, nn.Parameter) else nn.Parameter(knots.detach())
        del self.weight
        self.register_buffer("weight", knots.detach().new_empty(0), persistent=False)

    @property
    def base(self) -> Tensor | None:
        """The weight that knots are offsets from; None where they stand alone."""
        return None if "weight" in self._buffers else self.weight

    @torch.no_grad()
    def reset_knots(self, spread: float = 0.1) -> None:
        """Start knots as torch starts its layer, or normal with the spec's variance; offsets smaller by ``spread``."""
        if self.spec.variance is None:
            bound = self.fan_in**-0.5  # torch starts linear layers and convolutions uniformly within it
            nn.init.uniform_(self.knots, -bound, bound)
        else:
            deviation = (self.spec.variance / self.fan_in) ** 0.5
            nn.init.normal_(self.knots, std=deviation)
            if self.base is not None:
                nn.init.normal_(self.base, std=deviation)
        if self.base is not None:
            self.knots.mul_(spread)

    def become_first(self) -> None:
        """The first level has no parent to choose its decision parameters: they become plain."""
        super().become_first()
        self.projection.forget_parent()

    def like(self) -> Tensor:
        """A tensor with this layer's numbers and device."""
        return self.knots

    @property
    def external(self) -> bool:
        """Whether positions come from whoever calls the network."""
        return self.spec.external

    @property
    def needs_parent(self) -> bool:
        """Whether a decision spline or diffusion looks at the parent's position."""
        return self.spec.hierarchical or self.spec.diffusion != 1

    def control_points(self) -> Tensor:
        """The knots themselves, base included: (dims * K, *weight.shape)."""
        return self.curves.control_points().unflatten(2, self.weight_shape)

    @property
    def curves(self) -> Curves:
        """The layer's splines."""
        given, base, spec = self.knots, self.base, self.spec
        closed = spec.closed and len(given) == self.dims * spec.knots  # and not opened for inference
        knots = balanced(given) if self.balanced and base is not None else given
        return Curves(knots, base, self.splines, self.dims, spec.spline_degree, closed)

    def weights_at(self, position: Tensor) -> Tensor:
        """The weights that samples at these positions receive: (N, S) or (N, S, dims) -> (N, *weight.shape)."""
        return mix_weights(position.flatten(1), self.curves).unflatten(2, self.weight_shape)

    def forward(self, input: Tensor) -> Tensor:
        """The same shapes as torch's layer: (N, ...) -> (N, ...)."""
        if input.dtype is not self.weight.dtype or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            self.check_numbers(input)
        x = self.check_input(input)
        state = self.path.state
        self.path.recognize(self, x, state)
        x, features = self.read(x, state)
        y = self.operate(x, self.locate(features, state))
        return y.squeeze(0) if input.dim() < x.dim() else y

    def check_numbers(self, x: Tensor) -> None:
        """Raise unless autocast brings input and weights together, or weights are stored in fewer bits."""
        self.refuse_symbols(x)
        full = self.weight.dtype == torch.float32 or torch.float64 in (x.dtype, self.weight.dtype)
        if full and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"{type(self).__name__} has {self.weight.dtype} weights and got {x.dtype} input: "
                f"convert one of them, for example input.to({self.weight.dtype})"
            )

    def read(self, x: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The input, and what projections read of it: (N, ...) -> (N, ...), (N, ...)."""
        kind = self.spec.projection
        if kind == "dot":
            return x, x
        if kind == "external":
            assert isinstance(self.projection, External)
            return x, self.path.condition(self, self.projection.conditions, x.shape[0], state)
        return pool_beside(x, self.channel_dim)

    def locate(self, features: Tensor, state: State) -> Tensor:
        """Choose a position for each sample: (N, ...) -> (N, S * dims)."""
        parent, level = self.inherit(features.shape[0], state)
        position, local = self.projection(features, parent, update=not recomputing(), local=state.recording)
        if parent is not None:
            diffusion, closed = self.spec.diffusion_at(level), self.spec.closed
            position = diffuse(parent, position, diffusion, closed=closed)
            local = None if local is None else diffuse(parent.detach(), local, diffusion, closed=closed)
        return self.path.visit(self, position, local, state)

    def operate(self, x: Tensor, position: Tensor) -> Tensor:
        """Apply to each sample the weights at its position: (N, ...), (N, S * dims) -> (N, ...).

        What ``spline_conv2d`` and its kin do, for shapes that are known to fit.
        """
        return compute(x, position, self.curves, self.operation, self.bias)

    @property
    def operation(self) -> Operation:
        """What this layer does with weights."""
        raise TypeError(f"{type(self).__name__} is not a layer by itself")

    def shape_of(self, spec: SplineSpec, input_size: Size | None) -> tuple[int, int]:
        """How many splines this spec asks for here, and how many features its projections read."""
        raise TypeError(f"{type(self).__name__} is not a layer by itself")

    def check_input(self, x: Tensor) -> Tensor:
        """The input with a batch dimension, or an error that says what would fit."""
        raise TypeError(f"{type(self).__name__} is not a layer by itself")

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of one filter."""
        raise TypeError(f"{type(self).__name__} is not a layer by itself")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()}, spec={self.spec})"


class SplineLinear(SplineLayer, nn.Linear):  # type: ignore[misc]  # torch's hints have no layer without a bias
    """A linear layer whose weight matrix lies on a spline; takes the place of ``nn.Linear``.

    spec        as a string or ``SplineSpec``; a linear layer has one spline, whatever the rank
    input_size  the dimensions between samples and features, () for (N, in); only dot projections need it
    """

    torch_layer = nn.Linear
    channel_dim = -1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        spec: str | SplineSpec = "D(5)-D-R4",
        input_size: Size = (),
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        spec = SplineSpec.parse(spec)
        check_sides(in_features, out_features)
        nn.Linear.__init__(self, in_features, out_features, bias, device=device, dtype=dtype)
        self.become_spline(spec, input_size)
        self.reset_knots()

    def shape_of(self, spec: SplineSpec, input_size: Size | None) -> tuple[int, int]:
        """One spline; dot projections read all rows of a sample, conv projections their mean."""
        self.input_size = (input_size,) if isinstance(input_size, int) else tuple(input_size or ())
        return 1, self.in_features * (prod(self.input_size) if spec.projection == "dot" else 1)

    def check_input(self, x: Tensor) -> Tensor:
        """(in,), (N, in) or (N, ..., in)."""
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(
                f"SplineLinear wants {self.in_features} features last, got input of shape {tuple(x.shape)}"
            )
        x = x.unsqueeze(0) if x.dim() == 1 else x
        if self.spec.projection == "dot" and tuple(x.shape[1:-1]) != self.input_size:
            raise ValueError(
                f"SplineLinear's dot projection was built for input_size={self.input_size}, the sizes between samples "
                f"and features, got {tuple(x.shape[1:-1])}; a conv projection takes any size"
            )
        return x

    @property
    def operation(self) -> Operation:
        """A linear map."""
        return LinearMap()

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(in,)."""
        return (self.in_features,)


class SplineConv(SplineLayer, nn.modules.conv._ConvNd):
    """What spline convolutions of any dimension share."""

    spatial: int  # 1, 2 or 3
    channel_dim = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: str | Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        spec: str | SplineSpec = "D(5)-C-R3",
        input_size: Size | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        spec = SplineSpec.parse(spec)
        check_sides(in_channels, out_channels)
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        self.torch_layer.__init__(self, *shape, device=device, dtype=dtype)
        self.become_spline(spec, input_size)
        self.reset_knots()

    def shape_of(self, spec: SplineSpec, input_size: Size | None) -> tuple[int, int]:
        """As many splines as the rank says; dot projections read the whole input, conv projections its channels."""
        name, spatial = type(self).__name__, self.spatial
        if min(self.kernel_size) < 1:
            raise ValueError(f"{name} needs a kernel of size 1 or more, got {self.kernel_size}")
        size = (input_size,) * spatial if isinstance(input_size, int) else input_size
        if spec.projection == "dot" and size is None:
            raise ValueError(
                f"{name} with a dot projection needs input_size, its input's size after the channels, for example "
                f"input_size={(32,) * spatial}; a conv projection such as D(5)-C-R3 needs none"
            )
        if size is not None and (len(size) != spatial or min(size) < 1):
            raise ValueError(f"input_size of {name} must be {spatial} positive numbers, got {tuple(size)}")
        self.input_size = None if size is None else tuple(size)
        features = self.in_channels * (prod(size or ()) if spec.projection == "dot" else 1)
        return spec.splines(self.out_channels), features

    def check_input(self, x: Tensor) -> Tensor:
        """(C, ...) or (N, C, ...)."""
        name = type(self).__name__
        if x.dim() not in (self.spatial + 1, self.spatial + 2):
            raise ValueError(
                f"{name} wants input with {self.spatial + 2} dimensions (or {self.spatial + 1}, one sample), "
                f"got shape {tuple(x.shape)}"
            )
        x = x.unsqueeze(0) if x.dim() == self.spatial + 1 else x
        if x.shape[1] != self.in_channels:
            raise ValueError(f"{name} wants {self.in_channels} input channels, got input of shape {tuple(x.shape)}")
        if self.spec.projection == "dot" and tuple(x.shape[2:]) != self.input_size:
            raise ValueError(
                f"{name}'s dot projection was built for input_size={self.input_size}, got {tuple(x.shape[2:])}; "
                f"a conv projection takes any size"
            )
        return x

    @property
    def operation(self) -> Operation:
        """A convolution, of an input that is padded already if not with zeros."""
        padding = self.padding if self.padding_mode == "zeros" else (0,) * self.spatial
        return Convolution(self.kernel_size, self.stride, padding, self.dilation, self.groups)

    def operate(self, x: Tensor, position: Tensor) -> Tensor:
        """The same, after padding with anything but zeros."""
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        return super().operate(x, position)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(channels a group, *kernel)."""
        return (self.in_channels // self.groups, *self.kernel_size)


class SplineConv1d(SplineConv, nn.Conv1d):
    """A convolution whose filters lie on splines; takes the place of ``nn.Conv1d``. See ``SplineConv2d``."""

    torch_layer, spatial = nn.Conv1d, 1


class SplineConv2d(SplineConv, nn.Conv2d):
    """A convolution whose filters lie on splines; takes the place of ``nn.Conv2d`` and has all its arguments.

    spec        as a string or ``SplineSpec``: R4 has one spline for the filter bank, R3 one per filter, G8 eight
    input_size  (height, width) of the input; only dot projections need it

    Examples:
        >>> sn.SplineConv2d(3, 8, 5, padding=2, spec="D(5)-C-R3")(torch.randn(4, 3, 32, 32)).shape
        torch.Size([4, 8, 32, 32])
    """

    torch_layer, spatial = nn.Conv2d, 2


class SplineConv3d(SplineConv, nn.Conv3d):
    """A convolution whose filters lie on splines; takes the place of ``nn.Conv3d``. See ``SplineConv2d``."""

    torch_layer, spatial = nn.Conv3d, 3
