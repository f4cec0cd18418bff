"""From Rényi divergences to (ε, δ), and the search for the best order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from dpmerge.profiles.arrays import FloatArray

Conversion = Literal["tight", "paper"]

# (α−1) from 0.01 to 4000, evenly on a log scale; the search below refines around the best of them.
COARSE_ORDERS: FloatArray = 1 + np.geomspace(0.01, 4000, 40)


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


def best_order(objective: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
    """The order with the smallest objective, and the objective there. Every order is valid; this is only a search."""
    orders = COARSE_ORDERS
    values = objective(orders)
    for _ in range(2):
        best = int(np.argmin(np.nan_to_num(values, nan=math.inf, posinf=math.inf)))
        low, high = orders[max(best - 1, 0)], orders[min(best + 1, orders.size - 1)]
        finer = 1 + np.geomspace(low - 1, high - 1, 13)
        orders = np.concatenate(([orders[best]], finer))
        values = np.concatenate(([values[best]], objective(finer)))
        by_order = np.argsort(orders, kind="stable")
        orders, values = orders[by_order], values[by_order]
    best = int(np.argmin(values))
    return float(orders[best]), float(values[best])
