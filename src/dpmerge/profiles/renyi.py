"""From Rényi divergences to (ε, δ), and the search for the best order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from dpmerge.profiles.arrays import FloatArray

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

    Every eighth order first, then all between the neighbours of the best; `known` are orders to try besides (those at
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
