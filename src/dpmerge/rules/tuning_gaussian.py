"""The Gaussian mechanism under tuning: its noise for a target, and an ε that no theorem about the best of K can go below.

The lower bounds are probabilities of single events in closed form, so each is valid whatever the search for the best event
finds (docs/theory.md §7, "tuning-lower").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.special import ndtr

from dpmerge.errors import TargetError
from dpmerge.profiles import FloatArray, GaussianLaw, Profile, gaussian_delta
from dpmerge.rules.tuning_trials import Trials

Calibration = Literal["exact", "rdp"]

# A region in terms of two places a ≤ b on the line: the share of runs under P that beat it, and its own, then both under Q.
_Region = Callable[[FloatArray, FloatArray, float], tuple[FloatArray, FloatArray]]
LARGEST_MU = 30.0  # where one run has an ε of hundreds, and likelihood ratios begin to overflow
_SMALLEST_MU = 1e-6
_POINTS, _ZOOMS = 400, 6
_ROUNDING = 1e-7


def calibrated_mu(epsilon: float, delta: float, by: Calibration) -> float:
    """The largest μ with which a Gaussian mechanism is (ε, δ)-DP: by its exact curve, or by Rényi and the tight conversion."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise TargetError(f"epsilon is {epsilon:g}; the base mechanism needs a finite ε above 0")

    def excess(mu: float) -> float:
        if by == "exact":
            return math.log(float(gaussian_delta(mu, epsilon)) / delta)
        return Profile.of([(GaussianLaw(mu), 1)]).epsilon_by_renyi(delta) - epsilon

    if excess(_SMALLEST_MU) > 0 or excess(LARGEST_MU) < 0:
        raise TargetError(
            f"no Gaussian mechanism with a noise multiplier from {1 / LARGEST_MU:.2g} to {1 / _SMALLEST_MU:g} has just "
            f"ε = {epsilon:g} at δ = {delta:g}; ask for another target, or give mu"
        )
    from scipy.optimize import brentq  # slow to import, and few need it

    mu = float(brentq(excess, _SMALLEST_MU, LARGEST_MU, xtol=1e-15, rtol=1e-13))
    while excess(mu) > 0:
        mu *= 1 - 1e-13
    return mu


def worst_score_epsilon(mu: float, trials: Trials, delta: float) -> float:
    """At least this ε at δ for the best of K runs of a Gaussian mechanism, if scores may rank its outcomes in any order.

    The best are those below a, which the other dataset makes likelier; next come those above b; then all others. The event
    is "above b": the first group hides it from whoever draws often, more so on the other dataset.
    """

    def region(low: FloatArray, high: FloatArray, shift: float) -> tuple[FloatArray, FloatArray]:
        return ndtr(low - shift), ndtr(shift - high)

    return _largest_epsilon(region, mu, trials, delta)


def own_score_epsilon(mu: float, trials: Trials, delta: float) -> float:
    """The same if the score of a run is its own outcome, by intervals of outcomes: smaller is better, or larger is."""

    def smaller_wins(low: FloatArray, high: FloatArray, shift: float) -> tuple[FloatArray, FloatArray]:
        return ndtr(low - shift), _between(low - shift, high - shift)

    def larger_wins(low: FloatArray, high: FloatArray, shift: float) -> tuple[FloatArray, FloatArray]:
        return ndtr(shift - high), _between(low - shift, high - shift)

    return max(_largest_epsilon(region, mu, trials, delta) for region in (smaller_wins, larger_wins))


def _between(low: FloatArray, high: FloatArray) -> FloatArray:
    """Φ(high) − Φ(low), on the side where neither is close to 1."""
    return np.asarray(np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)))


def _largest_epsilon(region: _Region, mu: float, trials: Trials, delta: float) -> float:
    """The largest log((A(S) − δ)/A′(S)) over regions S: (ε, δ)-DP says A(S) ≤ e^ε A′(S) + δ."""
    farthest = math.sqrt(2 * math.log(max(1.0, trials.mean) / delta)) + 1  # beyond it even the best of K is rarer than δ
    places = np.linspace(-farthest, farthest, _POINTS) + mu
    lows, highs = np.concatenate(([-np.inf], places)), np.concatenate((places, [np.inf]))
    best = 0.0
    for _ in range(_ZOOMS):
        values = _epsilons(region, lows[:, None], highs[None, :], mu, trials, delta)
        row, column = np.unravel_index(int(np.argmax(values)), values.shape)
        best = max(best, float(values[row, column]))
        lows, highs = _around(lows, int(row)), _around(highs, int(column))
    return max(0.0, best * (1 - _ROUNDING) - _ROUNDING)


def _epsilons(region: _Region, low: FloatArray, high: FloatArray, mu: float, trials: Trials, delta: float) -> FloatArray:
    with np.errstate(all="ignore"):
        log_here, log_there = (trials.log_mass(*region(low, high, shift)) for shift in (mu, 0.0))
        values = log_here + np.log1p(-np.exp(math.log(delta) - log_here)) - log_there
    allowed = (low < high) & (log_here > math.log(delta)) & np.isfinite(values)
    return np.where(allowed, values, -np.inf)


def _around(places: FloatArray, index: int) -> FloatArray:
    """A finer grid between the neighbours of a place, the place itself and infinite ones among them."""
    near = places[max(0, index - 3) : index + 4]
    inner = near[np.isfinite(near)]
    finer = np.linspace(inner[0], inner[-1], 49) if inner.size > 1 else inner
    return np.unique(np.concatenate((near, finer)))
