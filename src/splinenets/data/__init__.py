"""Data sets, in memory as uint8."""

from .datasets import Dataset, Split, load

__all__ = ["Dataset", "Split", "load"]
