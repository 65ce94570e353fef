"""The paper's experiments as data, what trains them, and tables of what came out."""

from .experiments import EXPERIMENTS, SCALES, Experiment, Row, Trial, find, trials
from .outcome import collect, draw, table
from .record import Result, read_result, record, reuse

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
