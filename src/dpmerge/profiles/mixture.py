"""A random selection of profiles whose index is published, or one profile alone: ε(δ) and δ(ε) of Σ π_i H_ε(i)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from dpmerge.profiles.curves import MixtureCurve
from dpmerge.profiles.formulas import (
    TILTS,
    Conversion,
    best_order,
    epsilon_from_renyi,
    log_delta_from_renyi,
    smallest_epsilon,
)
from dpmerge.profiles.grids import DIRECTIONS, Direction, FloatArray

if TYPE_CHECKING:
    from dpmerge.profiles.profile import Profile

Parts = Sequence[tuple[float, "Profile"]]


def mixture_epsilon(parts: Parts, delta: float, interval: float | None = None) -> float:
    """The smallest ε ≥ 0 with Σ π_i H_ε(i) ≤ δ in both directions."""
    remove, add = DIRECTIONS
    epsilon = _one_direction(parts, delta, remove, interval)
    if any(part.is_one_shift for _, part in parts):  # its curve is at hand, and its moments are not
        curve = MixtureCurve([(weight, part.curve(add, epsilon, 1e-8 * delta, interval)) for weight, part in parts])
        enough = math.isfinite(epsilon) and epsilon >= curve.lowest and curve.delta(epsilon) <= delta
        return epsilon if enough else max(epsilon, _one_direction(parts, delta, add, interval))
    if math.isfinite(epsilon) and sum(weight * part.chernoff(epsilon, add) for weight, part in parts) <= delta:
        return epsilon  # this ε is enough for the other direction too
    return max(epsilon, _one_direction(parts, delta, add, interval))


def _one_direction(parts: Parts, delta: float, direction: Direction, interval: float | None) -> float:
    if sum(weight * part.lost for weight, part in parts) >= delta:
        return math.inf
    private = [(weight, part) for weight, part in parts if part.is_private and part.factors]
    if not private:
        return 0.0
    guess = 1.0 if any(part.is_one_shift for _, part in private) else _first_guess(private, delta, direction)
    best, question = math.inf, 0.85 * guess
    for _ in range(5):
        curve = MixtureCurve([(weight, part.curve(direction, question, 1e-8 * delta, interval)) for weight, part in parts])
        start = max(0.0, curve.lowest)
        if start > 0 and curve.delta(start) <= delta:
            question = start / 4  # the answer lies below what these curves know: ask there
            continue
        low, high = curve.around(delta) or (start, max(guess, start))
        found = smallest_epsilon(curve.delta, delta, high, low)
        improved = best - found
        best = min(best, found)
        centred = found >= 0.5 * question and curve.noise(found) <= 1e-6 * delta
        if not 0 < found < math.inf or centred or improved < 1e-6 * found:
            return best
        question = found  # far from what was asked, or rounding noise shows: centre tilt and grid on the answer
    return best


def _first_guess(private: Parts, delta: float, direction: Direction) -> float:
    """By the Rényi conversion: Σ π_i e^{K_i(θ)} bounds the mixture's moments as well."""
    with np.errstate(over="ignore"):  # SciPy 1.12 warns where one moment is infinite and another large
        cumulants = logsumexp([math.log(weight) + part.cumulants(direction) for weight, part in private], axis=0)
    guesses = epsilon_from_renyi(TILTS + 1, cumulants / TILTS, delta, "tight")
    return max(0.0, float(np.min(np.nan_to_num(guesses, nan=1e3, posinf=1e3))))


def mixture_renyi(parts: Parts, orders: FloatArray) -> FloatArray:
    """log Σ π_i e^{(α−1)ε_α,i} / (α−1), per direction, then the larger; without what failures cover."""
    weights = np.array([[weight] for weight, _ in parts])
    moments = [np.stack([part.log_moment(orders, direction) for _, part in parts]) for direction in DIRECTIONS]
    with np.errstate(over="ignore"):
        return np.asarray(np.maximum(*(logsumexp(moment, axis=0, b=weights) for moment in moments)) / (orders - 1))


def mixture_epsilon_by_renyi(parts: Parts, delta: float, conversion: Conversion) -> float:
    """ε at δ through the best Rényi order."""
    delta -= _failure(parts)
    if delta <= 0 or not all(part.is_private for _, part in parts):
        return math.inf
    known = _stated_orders(parts)
    return max(0.0, best_order(lambda a: epsilon_from_renyi(a, mixture_renyi(parts, a), delta, conversion), known)[1])


def mixture_delta_by_renyi(parts: Parts, epsilon: float, conversion: Conversion) -> float:
    """δ at ε through the best Rényi order."""
    if not all(part.is_private for _, part in parts):
        return 1.0
    known = _stated_orders(parts)
    log_delta = best_order(lambda a: log_delta_from_renyi(a, mixture_renyi(parts, a), epsilon, conversion), known)[1]
    return min(1.0, math.exp(min(log_delta, 0.0)) + _failure(parts))


def _failure(parts: Parts) -> float:
    return sum(weight * part.failure for weight, part in parts)


def _stated_orders(parts: Parts) -> FloatArray | None:
    known = [orders for _, part in parts if (orders := part.stated_orders) is not None]
    return np.unique(np.concatenate(known)) if known else None
