"""Moments of the density ratio of a Gaussian pair, for every real order, as one-dimensional integrals (docs/theory.md §3.5).

dp-accounting 0.6.0's Rényi divergences at fractional orders are upper bounds that can be 10 % above the true value (σ = 0.5,
q = 256/60000, α = 1.5), and Eq. (9) of *Differentially Private Model Merging* is a sum over astronomically many terms. The
trapezoid rule is exact to rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpmerge.profiles.grids import FloatArray, grid

if TYPE_CHECKING:
    from dpmerge.profiles.pairs import GaussianPair


def log_density(x: FloatArray, shifts: FloatArray, probs: FloatArray) -> FloatArray:
    exponents = [math.log(prob) - (x - shift) ** 2 / 2 for shift, prob in zip(shifts, probs, strict=True) if prob > 0]
    return np.asarray(np.logaddexp.reduce(exponents) - math.log(2 * math.pi) / 2)


_MAX_NODES = 60_000


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

    The grid ends 14 standard deviations beyond every peak, and the integrand falls there faster than a Gaussian: less than
    e^−98 of it is left out (docs/theory.md §3.5). Near 1 the moment is 1 + E_Q[(1+y)^s − 1 − s·y] with y = p/q − 1,
    E_Q y = 0: every term is ≥ 0, nothing cancels, and rates as small as 1e-12 keep their digits.
    """
    (upper_shifts, _), (lower_shifts, lower_probs) = pair.upper, pair.lower
    step = _step(pair, powers)
    # The slope of log p^s q^(1−s) at x is a mean of corners power·Δ + (1 − power)·γ, less x. Near 1 p and q are summed too.
    extreme = powers[[np.argmin(powers), np.argmax(powers)]]
    corners = (
        np.add.outer(np.multiply.outer(extreme, upper_shifts[[0, -1]]), np.zeros(2))
        + np.multiply.outer(1 - extreme, lower_shifts[[0, -1]])[:, None, :]
    )
    peaks = np.concatenate((corners.ravel(), upper_shifts[[0, -1]], lower_shifts[[0, -1]]))
    low, high = float(peaks.min()) - 14, float(peaks.max()) + 14
    nodes = math.ceil((high - low) / step) + 1
    if nodes > _MAX_NODES:
        return None
    x = grid(0, nodes - 1, step, low)
    y, losses = pair.excess_ratio(x), pair.loss(x)
    log_weight = log_density(x, lower_shifts, lower_probs) + math.log(step)
    precise_losses = np.where(np.abs(y) < 0.5, np.log1p(np.clip(y, -0.5, 0.5)), losses)
    result = np.empty(powers.shape)
    for index, power in enumerate(powers.tolist()):
        exponents = power * losses + log_weight
        top = int(exponents.argmax())
        plain = float(exponents[top]) + math.log(float(np.exp(exponents - exponents[top]).sum()))
        # The exponent is a difference, of large numbers if the peak is far out.
        rounding = 1e-12 * plain + 1e-13 + 1e-15 * abs(float(log_weight[top]))
        result[index] = plain + rounding if plain > 0.5 else _moment_near_one(power, y, precise_losses, log_weight)
    return result


def _step(pair: GaussianPair, powers: FloatArray) -> float:
    """A step with which the trapezoid rule errs by less than e^−35 of the integral (docs/theory.md §3.5).

    The integrand is analytic in |Im x| < π/spread. The density with a negative power may grow away from the real line, and
    then the integrand is narrow on it: the step falls with the root of that power.
    """
    (shifts, _), negative = (pair.lower, powers - 1) if powers[0] > 1 else (pair.upper, -powers)
    span = float(shifts[-1] - shifts[0])
    curvature = 0.5 + 0.18 * float(negative.max()) * span**2
    return min(0.25, 0.4 / pair.spread, 0.3 / span if span > 0 else math.inf, 0.45 / math.sqrt(curvature))


def _moment_near_one(power: float, y: FloatArray, losses: FloatArray, log_weight: FloatArray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        exponent, weight = power * losses, np.exp(log_weight)
        first, second = np.expm1(exponent), power * y
        # A relative rounding of both, which matters at orders within 1e-6 of 1.
        direct = first - second + 1e-15 * (np.abs(first) + np.abs(second))
        series = power * (power - 1) / 2 * y * y * (1 + (power - 2) / 3 * y * (1 + (power - 3) / 4 * y))
        tiny = np.abs(y) * (1 + abs(power)) < 1e-3
        # Where p/q or (p/q)^s overflows, the weight is what makes the product finite: p·((p/q)^(s−1) − s), or (p/q)^s alone.
        beyond = (power - 1) * losses
        many = np.exp(np.minimum(exponent + log_weight, 300.0))
        far = np.where(
            beyond < 30, np.exp(losses + log_weight) * (np.expm1(np.minimum(beyond, 30.0)) - (power - 1)) * (1 + 1e-12), many
        )
        terms = np.where(
            losses > 30,
            far + (power - 1) * weight,
            np.where(exponent > 300, many, np.where(tiny, series, direct) * weight),
        )
    # 1e-9 is above the series' remainder, 1e-40 above what the grid leaves out.
    return math.log1p(float(terms.sum()) * (1 + 1e-9) + 1e-40 * (1 + abs(power)))
