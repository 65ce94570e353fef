"""The learning rate of a step, as a function of the step: nothing to store."""

from __future__ import annotations

import math

from .recipe import Recipe


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """For step 0 .. steps - 1."""
    done = (step + 1) / steps
    if done <= recipe.warmup:
        return recipe.learning_rate * done / recipe.warmup
    if recipe.anneal == "steps":
        return recipe.learning_rate * recipe.drop_factor ** sum(done > drop for drop in recipe.drops)
    left = (steps - step) / max(steps * (1 - recipe.warmup), 1)
    return recipe.learning_rate * (1 - math.cos(math.pi * min(left, 1))) / 2
