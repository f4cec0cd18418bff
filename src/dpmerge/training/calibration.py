"""The noise with which a linear model meets a target if only its last iterate is released, with noise (docs/theory.md §9).

Noise in the training and noise at release add up in the parameters; the variance of both together is what a target costs. With
full batches every division costs the same. With Poisson batches the last steps need noise at release to hide them, so a few
divisions are tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpmerge.errors import TargetError
from dpmerge.planning import training_variance
from dpmerge.rules import DEFAULT_ACCOUNTING, Combination, Target, build
from dpmerge.training.advice import LinearSetting

_CLOSE = 2e-3  # by how much, relatively, the noise may exceed the least
_LEAST, _MOST = 1e-4, 1e6  # noise multipliers that are tried
_SHARES = (0.5, 1.0, 2.0)  # of the deviation at release in that of the training


@dataclass(frozen=True)
class Calibrated:
    """A setting whose last iterate, released with this noise, meets the target; and the variance of a parameter."""

    setting: LinearSetting
    release_noise: float
    variance: float


def calibrated(setting: LinearSetting, *, epsilon: float, delta: float) -> Calibrated:
    """The noise multiplier and the noise at release with the least variance. The setting's own noise does not matter."""
    Target(epsilon=epsilon)
    Target(delta=delta)
    full = setting.recipe.rate is None or setting.recipe.rate == 1
    found = [_with_share(setting, share, epsilon, delta) for share in (_SHARES[:1] if full else _SHARES)]
    return min(found, key=lambda one: one.variance)


def _with_share(setting: LinearSetting, share: float, epsilon: float, delta: float) -> Calibrated:
    def at(multiplier: float) -> tuple[LinearSetting, float]:
        moved = replace(setting, recipe=replace(setting.recipe, noise_multiplier=multiplier))
        return moved, share * math.sqrt(training_variance(moved.alike(1).models[0]) or 0.0)

    def told(multiplier: float) -> float:
        moved, noise = at(multiplier)
        rule = build("combination", moved.alike(1).weights({"run-0": 1.0}), noise=noise)
        assert isinstance(rule, Combination)
        return rule.hidden_epsilon(delta, DEFAULT_ACCOUNTING.by, DEFAULT_ACCOUNTING.conversion)

    low, high = _LEAST, 1.0
    while told(high) > epsilon:
        low, high = high, 4 * high
        if high > _MOST:
            raise TargetError(f"no noise gives ε = {epsilon:g} at δ = {delta:g} here; use more examples, or fewer steps")
    while high / low > 1 + _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if told(middle) <= epsilon else (middle, high)
    moved, noise = at(high)
    return Calibrated(moved, noise, (1 + share**-2) * noise**2)
