"""Networks as files for other runtimes, each checked against the network it came from before it is written."""

from .c_folder import export_c
from .checked import PURPOSES, export
from .formats import FORMATS, Exported, load_export

__all__ = ["FORMATS", "PURPOSES", "Exported", "export", "export_c", "load_export"]
