"""The paper's experiments as data, what trains them, and tables of what came out."""

from .experiments import EXPERIMENTS, SCALES, Experiment, Row, Trial, find, trials
from .figure import draw
from .record import Result, read_result, record, reuse
from .table import collect, table

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Experiment",
    "Result",
    "Row",
    "Trial",
    "collect",
    "draw",
    "find",
    "read_result",
    "record",
    "reuse",
    "table",
    "trials",
]
