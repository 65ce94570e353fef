"""Looking at what a network does with its splines."""

from .health import Health, LayerHealth, PositionWarning, Watch, health

__all__ = ["Health", "LayerHealth", "PositionWarning", "Watch", "health"]
