"""Recipes, the loop that trains them, and runs that survive being killed."""

from .evaluation import Score, score
from .recipe import Recipe
from .recipes import load_recipe
from .run import Run
from .runner import train
from .state import State
from .watcher import Watcher

__all__ = ["Recipe", "Run", "Score", "State", "Watcher", "load_recipe", "score", "train"]
