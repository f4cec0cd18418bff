"""Moments of the density ratio of a Gaussian pair, for every real order, as one-dimensional integrals (docs/theory.md §3.5).

dp-accounting 0.6.0's Rényi divergences at fractional orders are upper bounds that can be 10 % above the true value (σ = 0.5,
q = 256/60000, α = 1.5), and M1's Eq. (9) is a sum over astronomically many terms. The trapezoid rule is exact to rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpmerge.profiles.arrays import FloatArray, grid

if TYPE_CHECKING:
    from dpmerge.profiles.pairs import GaussianPair


def log_density(x: FloatArray, shifts: FloatArray, probs: FloatArray) -> FloatArray:
    """The log density of a mixture of unit Gaussians."""
    exponents = [math.log(prob) - (x - shift) ** 2 / 2 for shift, prob in zip(shifts, probs, strict=True) if prob > 0]
    return np.asarray(np.logaddexp.reduce(exponents) - math.log(2 * math.pi) / 2)


_MAX_NODES = 40_000


def log_power_moments(pair: GaussianPair, powers: FloatArray) -> FloatArray:
    """log E_Q[(p/q)^s] for each power s > 1 or s < 0, by the trapezoid rule on grids that neighbouring powers share.

    D_α of a mixture is at most that of its farthest component (quasi-convexity), which also bounds what a grid of
    reasonable size cannot hold.
    """
    orders = np.where(powers > 1, powers, 1 - powers)
    bound = orders * (orders - 1) * pair.spread**2 / 2
    result: FloatArray = bound.copy()
    ranked = np.argsort(orders, kind="stable")
    start = 0
    while start < ranked.size:
        base = orders[ranked[start]]
        stop = int(np.searchsorted(orders[ranked], max(3 * base, base + 12 / pair.spread), side="right"))
        chunk = ranked[start:stop]
        values = _chunk_moments(pair, powers[chunk])
        if values is None:
            break  # larger orders only need larger grids
        result[chunk] = np.minimum(values, bound[chunk])
        start = stop
    return result


def _chunk_moments(pair: GaussianPair, powers: FloatArray) -> FloatArray | None:
    """The moments on one grid, or nothing if it would be too long.

    The integrand is analytic in |Im x| < π/spread, so with step 0.4/spread the rule's error is below e^−49 of it. Near
    1 the moment is 1 + E_Q[(1+y)^s − 1 − s·y] with y = p/q − 1, E_Q y = 0: every term is ≥ 0, nothing cancels, and
    rates as small as 1e-12 keep their digits.
    """
    (upper_shifts, _), (lower_shifts, lower_probs) = pair.upper, pair.lower
    step = min(0.25, 0.4 / pair.spread)
    # The integrand's peaks lie where one component rules: at power·Δ + (1 − power)·γ.
    extreme = powers[[np.argmin(powers), np.argmax(powers)]]
    corners = (
        np.add.outer(np.multiply.outer(extreme, upper_shifts[[0, -1]]), np.zeros(2))
        + np.multiply.outer(1 - extreme, lower_shifts[[0, -1]])[:, None, :]
    )
    low, high = min(-14.0, float(corners.min()) - 14), max(14.0, float(corners.max()) + 14)
    nodes = math.ceil((high - low) / step) + 1
    if nodes > _MAX_NODES:
        return None
    x = grid(0, nodes - 1, step, low)
    y, losses = pair.excess_ratio(x), pair.loss(x)
    log_weight = log_density(x, lower_shifts, lower_probs) + math.log(step)
    precise_losses = np.where(np.abs(y) < 0.5, np.log1p(np.clip(y, -0.5, 0.5)), losses)
    result = np.empty(powers.shape)
    for index, power in enumerate(powers.tolist()):
        plain = _log_sum_exp(power * losses + log_weight)
        result[index] = plain * (1 + 1e-12) + 1e-13 if plain > 0.5 else _moment_near_one(power, y, precise_losses, log_weight)
    return result


def _moment_near_one(power: float, y: FloatArray, losses: FloatArray, log_weight: FloatArray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = power * losses
        direct = np.expm1(exponent) - power * y
        series = power * (power - 1) / 2 * y * y * (1 + (power - 2) / 3 * y * (1 + (power - 3) / 4 * y))
        tiny = np.abs(y) * (1 + abs(power)) < 1e-3
        # Where e^{sℓ} overflows, the weight is what makes the product finite.
        terms = np.where(
            exponent > 300,
            np.exp(np.minimum(exponent + log_weight, 300.0)),
            np.where(tiny, series, direct) * np.exp(log_weight),
        )
    # 1e-9 is above the series' remainder and the rounding of `direct` where it is used.
    return math.log1p(float(terms.sum()) * (1 + 1e-9))


def _log_sum_exp(values: FloatArray) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
