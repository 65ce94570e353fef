"""Data sets as uint8, in memory or on disk: where they come from, how they are checked, batched and augmented."""

from .augment import Augmentation, augmentation, flip, prepare, statistics
from .batches import Batches, in_order, mirrored, seeded
from .dataset import Dataset, Split
from .download import DownloadWatcher
from .folders import load_csv, load_folder
from .sources import Status, get, status
from .store import load
from .streams import Stream, in_batches

__all__ = [
    "Augmentation",
    "Batches",
    "Dataset",
    "DownloadWatcher",
    "Split",
    "Status",
    "Stream",
    "augmentation",
    "flip",
    "get",
    "in_batches",
    "in_order",
    "load",
    "load_csv",
    "load_folder",
    "mirrored",
    "prepare",
    "seeded",
    "statistics",
    "status",
]
