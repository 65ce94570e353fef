"""Data sets, in memory as uint8: where they come from, how they are checked, batched and augmented."""

from .augment import Augmentation, augmentation, prepare, statistics
from .batches import Batches, in_order
from .dataset import Dataset, Split
from .datasets import load
from .fetch import Status, get, status
from .folders import load_folder
from .seeding import seeded

__all__ = [
    "Augmentation",
    "Batches",
    "Dataset",
    "Split",
    "Status",
    "augmentation",
    "get",
    "in_order",
    "load",
    "load_folder",
    "prepare",
    "seeded",
    "statistics",
    "status",
]
