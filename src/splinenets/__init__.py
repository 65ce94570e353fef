"""SplineNets: continuous neural decision graphs (Keskin & Izadi, NeurIPS 2018)."""

from . import data, models
from .basis import bspline_basis
from .calibrate import calibrate
from .convert import Conversion, convert
from .cost import Cost, cost
from .deploy import deploy
from .export import export, load_export
from .fold import collapse, fold_batchnorm
from .health import health
from .layers import SplineConv1d, SplineConv2d, SplineConv3d, SplineLayer, SplineLinear
from .operators import strategy
from .path import Positions, connect, steer, trace
from .pretrained import pretrained
from .regularizer import MutualInformation
from .spec import SplineSpec, Tree

__version__ = "0.1.0"

__all__ = [
    "Conversion",
    "Cost",
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
    "calibrate",
    "collapse",
    "connect",
    "convert",
    "cost",
    "data",
    "deploy",
    "export",
    "fold_batchnorm",
    "health",
    "load_export",
    "models",
    "pretrained",
    "steer",
    "strategy",
    "trace",
]
