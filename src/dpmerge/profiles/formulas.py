"""Formulas from divergences to (ε, δ): μ-GDP in closed form (docs/theory.md, "gaussian"), Rényi divergences, and root finding.

Full-batch DP-GD needs no grid: T steps with noise multiplier σ are exactly μ-GDP with μ = a√T/σ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from dpmerge.profiles.grids import FloatArray

Conversion = Literal["tight", "paper"]

# dp-accounting's and Opacus' customary orders, closer below and above: small ε at small δ is decided at orders of hundreds.
ORDERS: FloatArray = np.concatenate(
    (
        1 + np.geomspace(0.005, 0.08, 5),
        1 + np.arange(1, 100) / 10,
        np.arange(11, 64),
        np.geomspace(64, 20_000, 90),
    )
)
_STRIDE = 8
TILTS: FloatArray = np.geomspace(0.02, 3000, 28)  # at which the moments of losses are known


def smallest_epsilon(delta_at: Callable[[float], float], delta: float, upper: float, lower: float = 0.0) -> float:
    """The smallest ε ≥ lower with delta_at(ε) ≤ δ, for a non-increasing bound; infinite if none is found.

    Whatever the root finder returns is moved up until the bound really holds there: an ε is never rounded down.
    """
    if delta_at(lower) <= delta:
        return lower
    upper = max(upper, lower * (1 + 1e-12), 1e-12)
    while delta_at(upper) > delta:
        if upper > 1e6:
            return math.inf
        upper = 2 * upper
    if upper - lower <= 1e-9 * upper:
        return upper

    def gap(epsilon: float) -> float:
        value = delta_at(epsilon)
        if value <= 0:
            return -800.0
        return math.log(value / delta) or -1e-300  # where the bound is flat at δ, the search goes on to the left

    found = root(gap, lower, upper, 1e-11 * max(1e-3, upper))
    step = 1e-12 * max(1e-3, found)
    while delta_at(found) > delta:
        found += step
        step *= 2
    return min(found, upper)


def root(gap: Callable[[float], float], low: float, high: float, close: float) -> float:
    """Where a function changes its sign, by Chandrupatla (1997): parabolas where they can be trusted, else halves.

    scipy's root finders lie in a module that takes 0.16 s to import, a sixth of what the command line needs for an answer.
    """
    a, b, share = high, low, 0.5
    at_a, at_b = gap(a), gap(b)
    for _ in range(200):
        x = a + share * (b - a)
        at_x = gap(x)
        c, at_c = a, at_a
        if (at_x > 0) != (at_a > 0):
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, at_x
        best, at_best = (a, at_a) if abs(at_a) < abs(at_b) else (b, at_b)
        edge = (close + 1e-12 * abs(best)) / abs(b - a)
        if edge > 0.5 or at_best == 0:
            return best
        xi, phi = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b) if at_c != at_b else 2.0
        share = 0.5
        if 1 - math.sqrt(1 - xi) < phi < math.sqrt(xi):
            share = at_a / (at_b - at_a) * at_c / (at_b - at_c)
            share += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        share = min(max(share, edge), 1 - edge)
    return best


def gaussian_delta(mu: FloatArray | float, epsilon: FloatArray | float) -> FloatArray:
    """H_ε(N(μ,1), N(0,1)) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), to full relative precision.

    >>> round(float(gaussian_delta(1.0, 4.377)), 7)
    1e-05
    """
    eps = np.asarray(epsilon, dtype=np.float64)
    if np.ndim(mu) == 0 and mu == 0:
        return np.maximum(0.0, -np.expm1(np.minimum(eps, 1.0)))  # 0 above 0; no overflow at a large ε
    near, far = eps / mu - mu / 2, eps / mu + mu / 2
    # Since e^ε φ(far) = φ(near), the difference is φ(near)·(R(near) − R(far)) with Mills' ratio R: no cancellation of tails.
    with np.errstate(over="ignore", invalid="ignore"):
        mills = math.sqrt(math.pi / 2) * (erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2)))
        tail = np.exp(-near * near / 2) / math.sqrt(2 * math.pi) * mills
        bulk = ndtr(-near) - np.exp(eps + log_ndtr(-far))
    # Above the rounding of either branch, so the value is never below the true one: near² from the exponential, 1/μ from
    # the difference of nearly equal ratios; the other branch is a difference of numbers of order 1.
    rounding = 1e-15 * (1 + near * near + (2 + np.abs(near)) / mu)
    value = np.where(near > 0, tail * (1 + rounding), bulk + 1e-15)
    return np.asarray(np.clip(value + 1e-300, 0.0, 1.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 at which μ-GDP gives (ε, δ)-DP.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if mu == 0:
        return 0.0
    upper = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return smallest_epsilon(lambda eps: float(gaussian_delta(mu, eps)), delta, upper)


def epsilon_from_renyi(orders: FloatArray, renyi: FloatArray, delta: float, conversion: Conversion) -> FloatArray:
    """ε at δ for each order, given D_α there.

    "paper": ε_α + log(1/δ)/(α−1) (Mironov 2017). "tight": ε_α + log(1−1/α) − (log δ + log α)/(α−1)
    (Canonne, Kamath and Steinke 2020, Prop. 12; dp-accounting's).
    """
    if conversion == "paper":
        return renyi - math.log(delta) / (orders - 1)
    return renyi + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)


def log_delta_from_renyi(orders: FloatArray, renyi: FloatArray, epsilon: float, conversion: Conversion) -> FloatArray:
    """log δ at ε for each order: the same conversions, solved for δ."""
    if conversion == "paper":
        return (orders - 1) * (renyi - epsilon)
    return (orders - 1) * (renyi - epsilon + np.log1p(-1 / orders)) - np.log(orders)


def best_order(objective: Callable[[FloatArray], FloatArray], known: FloatArray | None = None) -> tuple[float, float]:
    """The order with the smallest objective, and the objective there. Every order is valid; this is only a search.

    Every eighth order first, then all between the neighbours of the best; `known` are further orders to try (those at
    which a record states its curve).
    """
    orders = ORDERS[::_STRIDE]
    best = int(np.argmin(np.nan_to_num(objective(orders), nan=math.inf, posinf=math.inf)))
    near = ORDERS[max(0, (best - 1) * _STRIDE) : (best + 1) * _STRIDE + 1]
    if known is not None:
        near = np.concatenate((near, known))
    values = np.nan_to_num(objective(near), nan=math.inf, posinf=math.inf)
    index = int(np.argmin(values))
    return float(near[index]), float(values[index])
