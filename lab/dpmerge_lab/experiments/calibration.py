"""How much noise a recipe needs to meet a target."""

from __future__ import annotations

from dataclasses import replace

from dpmerge.profiles import run_profile
from dpmerge.records import Model
from dpmerge.training import Recipe


def least_noise(recipe: Recipe, examples: int, epsilon: float, delta: float, units: int = 1000) -> float:
    """The least noise multiplier, in so many units, with which a run has no more than this ε by loss distributions."""
    low, high = 0, units
    while _epsilon(recipe, examples, high / units, delta) > epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _epsilon(recipe, examples, middle / units, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high / units


def _epsilon(recipe: Recipe, examples: int, noise: float, delta: float) -> float:
    """Of a run by this recipe with other noise."""
    noisy = replace(recipe, noise_multiplier=noise)
    record = noisy.record(recipe.steps, examples, dataset="planned", run="planned", noise="noise", sampler="sampler")
    return run_profile(Model("planned", record)).profile.epsilon(delta)
