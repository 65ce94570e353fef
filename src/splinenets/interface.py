"""What ``import splinenets`` offers. It is read when a name is first asked for, and torch with it."""

from . import data, models
from .basis import bspline_basis
from .calibration import calibrate
from .conditions import Condition, Conditioned, condition
from .conversion import Conversion, convert
from .costs import Cost, cost
from .deployment import collapse, deploy
from .exporting import export, load_export
from .folding import fold_batchnorm
from .functional import conv2d_per_sample, spline_conv1d, spline_conv2d, spline_conv3d, spline_linear
from .health_check import health
from .layers import SplineConv1d, SplineConv2d, SplineConv3d, SplineLayer, SplineLinear
from .loops import HealthMetric, Regularized
from .muon import Muon
from .operators import strategy
from .regularizer import MutualInformation
from .saving import load, save
from .shipped import pretrained
from .spec import SplineSpec, Tree
from .tracing import Positions, connect, steer, trace

__all__ = [
    "Condition",
    "Conditioned",
    "Conversion",
    "Cost",
    "HealthMetric",
    "Muon",
    "MutualInformation",
    "Positions",
    "Regularized",
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
    "condition",
    "connect",
    "conv2d_per_sample",
    "convert",
    "cost",
    "data",
    "deploy",
    "export",
    "fold_batchnorm",
    "health",
    "load",
    "load_export",
    "models",
    "pretrained",
    "save",
    "spline_conv1d",
    "spline_conv2d",
    "spline_conv3d",
    "spline_linear",
    "steer",
    "strategy",
    "trace",
]
