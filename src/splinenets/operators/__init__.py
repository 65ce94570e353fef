"""The same answer computed in several ways, and the rule that picks one. See README.md in this folder."""

from .choice import STRATEGIES, StrategyWarning, compute, strategy
from .mixing import Curves, mix_weights
from .operation import Convolution, LinearMap, Operation

__all__ = [
    "STRATEGIES",
    "Convolution",
    "Curves",
    "LinearMap",
    "Operation",
    "StrategyWarning",
    "compute",
    "mix_weights",
    "strategy",
]
