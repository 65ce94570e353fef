"""Recipes, the loop that trains them, and runs that survive being killed."""

from .checkpoint import State
from .draft import Draft, draft_recipe, load_recipe
from .evaluation import Score, score
from .journal import Watcher
from .loop import DivergedError, Stopped
from .recipe import Recipe
from .run import Run, load_run
from .runner import train

__all__ = [
    "DivergedError",
    "Draft",
    "Recipe",
    "Run",
    "Score",
    "State",
    "Stopped",
    "Watcher",
    "draft_recipe",
    "load_recipe",
    "load_run",
    "score",
    "train",
]
