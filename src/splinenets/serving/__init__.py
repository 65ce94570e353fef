"""An exported network behind HTTP."""

from .server import Server

__all__ = ["Server"]
