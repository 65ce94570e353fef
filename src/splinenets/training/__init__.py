"""Recipes, the loop that trains them, and runs that survive being killed."""

from .checkpoint import State
from .evaluation import Score, score
from .journal import Watcher
from .loop import DivergedError, Stopped
from .recipe import Recipe, load_recipe
from .run import Run, load_run
from .runner import train

__all__ = [
    "DivergedError",
    "Recipe",
    "Run",
    "Score",
    "State",
    "Stopped",
    "Watcher",
    "load_recipe",
    "load_run",
    "score",
    "train",
]
