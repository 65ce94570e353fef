"""The same answer computed in several ways, and the rule that picks one. See README.md in this folder."""

from .choice import STRATEGIES, StrategyWarning, compute, out_of_memory
from .decision import Decision, decide, pool_beside, pooled_features
from .fused import fused, why_not
from .mixing import Curves, balanced, mix_weights
from .operation import Convolution, LinearMap, Operation
from .serving import readable, strategy, transformed

__all__ = [
    "STRATEGIES",
    "Convolution",
    "Curves",
    "Decision",
    "LinearMap",
    "Operation",
    "StrategyWarning",
    "balanced",
    "compute",
    "decide",
    "fused",
    "mix_weights",
    "out_of_memory",
    "pool_beside",
    "pooled_features",
    "readable",
    "strategy",
    "transformed",
    "why_not",
]
