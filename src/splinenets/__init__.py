"""SplineNets: continuous neural decision graphs (Keskin & Izadi, NeurIPS 2018)."""

from . import data, models
from .analysis import health
from .basis import bspline_basis
from .convert import Conversion, convert
from .layers import SplineConv1d, SplineConv2d, SplineConv3d, SplineLayer, SplineLinear
from .operators import strategy
from .path import Positions, connect, trace
from .regularizer import MutualInformation
from .spec import SplineSpec, Tree

__version__ = "0.1.0"

__all__ = [
    "Conversion",
    "MutualInformation",
    "Positions",
    "SplineConv1d",
    "SplineConv2d",
    "SplineConv3d",
    "SplineLayer",
    "SplineLinear",
    "SplineSpec",
    "Tree",
    "bspline_basis",
    "connect",
    "convert",
    "data",
    "health",
    "models",
    "strategy",
    "trace",
]
