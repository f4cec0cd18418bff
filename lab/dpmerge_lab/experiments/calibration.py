"""How much noise a recipe needs to meet a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpmerge.profiles import run_profile
from dpmerge.records import Model
from dpmerge.training import Recipe


def least_noise(recipe: Recipe, examples: int, epsilon: float, delta: float, units: int = 1000) -> float:
    """The least noise multiplier, in so many units, with which a run has no more than this ε by loss distributions."""
    return least_noise_of(lambda noise: _epsilon(recipe, examples, noise, delta), epsilon, units)


def least_noise_of(found: Callable[[float], float], epsilon: float, units: int = 1000) -> float:
    """The same of any ε that falls as noise grows."""
    low, high = 0, units
    while found(high / units) > epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if found(middle / units) > epsilon:
            low = middle
        else:
            high = middle
    return high / units


def _epsilon(recipe: Recipe, examples: int, noise: float, delta: float) -> float:
    """Of a run by this recipe with other noise."""
    noisy = replace(recipe, noise_multiplier=noise)
    record = noisy.record(recipe.steps, examples, dataset="planned", run="planned", noise="noise", sampler="sampler")
    return run_profile(Model("planned", record)).profile.epsilon(delta)
