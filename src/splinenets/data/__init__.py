"""Data sets, in memory as uint8: where they come from, how they are checked, batched and augmented."""

from .augment import Augmentation, augmentation, prepare, statistics
from .batches import Batches, in_order, seeded
from .dataset import Dataset, Split
from .download import DownloadWatcher
from .folders import load_csv, load_folder
from .sources import Status, get, status
from .store import load

__all__ = [
    "Augmentation",
    "Batches",
    "Dataset",
    "DownloadWatcher",
    "Split",
    "Status",
    "augmentation",
    "get",
    "in_order",
    "load",
    "load_csv",
    "load_folder",
    "prepare",
    "seeded",
    "statistics",
    "status",
]
