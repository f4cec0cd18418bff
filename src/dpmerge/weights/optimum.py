"""The best random selection for a target, exactly: linear programs, no grid over π (docs/theory.md §2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import linprog

from dpmerge.profiles.arrays import FloatArray
from dpmerge.profiles.profile import Profile
from dpmerge.profiles.renyi import ORDERS, Conversion, log_delta_from_renyi

_SAFETY = 1 - 1e-12  # constraints are met with this much to spare, so that rounding does not undo them


@dataclass(frozen=True)
class Optimum:
    """The best probabilities, what they are worth, and the accountant (with its order) they are feasible for."""

    weights: tuple[float, ...]
    utility: float
    by: Literal["pld", "rdp"]
    order: float | None = None


def selection_optimum(
    profiles: Sequence[Profile],
    utilities: Sequence[float],
    epsilon: float,
    delta: float,
    by: Literal["pld", "rdp"] = "pld",
    conversion: Conversion = "tight",
) -> Optimum | None:
    """Maximise Σ π_i u_i subject to (ε, δ)-DP of the draw; nothing if no draw satisfies it."""
    values = np.array(utilities, dtype=np.float64)
    if by == "pld":
        costs = np.array([profile.delta(epsilon) for profile in profiles]).T / delta
        return pld_optimum(costs, values)
    spent = [log_delta_from_renyi(ORDERS, profile.renyi(ORDERS), epsilon, conversion) for profile in profiles]
    return renyi_optimum(np.stack(spent) - math.log(delta), ORDERS, values)


def pld_optimum(costs: FloatArray, utilities: FloatArray) -> Optimum | None:
    """One linear program: Σ π_i c_i ≤ 1 in both directions, c_i = H_i(ε)/δ. Some optimum has at most three weights."""
    safest = int(np.argmin(costs.max(axis=0)))
    if costs[:, safest].max() > _SAFETY:
        # No single model fits; a mixture of models that fit in one direction each still may.
        found = linprog(
            np.concatenate((np.zeros(utilities.size), [1.0])),
            A_ub=np.hstack((costs, -np.ones((2, 1)))),
            b_ub=np.zeros(2),
            A_eq=np.concatenate((np.ones(utilities.size), [0.0]))[None, :],
            b_eq=[1.0],
        )
        if not found.success or found.fun > _SAFETY:
            return None
    result = linprog(-utilities, A_ub=costs, b_ub=np.full(2, _SAFETY), A_eq=np.ones((1, utilities.size)), b_eq=[1.0])
    if not result.success:
        return None
    weights = _polished(np.asarray(result.x, dtype=np.float64), costs, safest)
    return Optimum(tuple(weights.tolist()), float(weights @ utilities), "pld")


def _polished(weights: FloatArray, costs: FloatArray, safest: int) -> FloatArray:
    """The solver's vertex to full precision: solve for its support exactly, then step back from any rounding excess."""
    support = np.flatnonzero(weights > 1e-9)
    active = np.flatnonzero(costs @ weights > _SAFETY - 1e-6)
    rows = np.vstack((np.ones(support.size), costs[np.ix_(active, support)]))
    if rows.shape[0] == support.size and np.linalg.cond(rows) < 1e12:
        solved = np.linalg.solve(rows, np.concatenate(([1.0], np.full(active.size, _SAFETY))))
        if np.all(solved >= 0):
            weights = np.zeros_like(weights)
            weights[support] = solved
    weights = np.maximum(weights, 0.0)
    weights /= weights.sum()
    excess = costs @ weights
    for direction in np.flatnonzero(excess > 1):
        gap = excess[direction] - costs[direction, safest]
        step = (excess[direction] - _SAFETY) / gap if gap > 0 else 1.0
        weights = (1 - step) * weights
        weights[safest] += step
    weights[int(np.argmax(weights))] += 1 - math.fsum(weights.tolist())
    return weights


def renyi_optimum(log_costs: FloatArray, orders: FloatArray, utilities: FloatArray) -> Optimum | None:
    """One program per order with one constraint Σ π_i e^{c_i} ≤ 1: some optimum mixes at most two models; all pairs."""
    best: Optimum | None = None
    for column, order in enumerate(orders.tolist()):
        log_cost = log_costs[:, column]
        fits = np.flatnonzero(log_cost <= math.log(_SAFETY))
        if fits.size == 0:
            continue
        alone = int(fits[np.argmax(utilities[fits])])
        value, weights = float(utilities[alone]), {alone: 1.0}
        beyond = np.flatnonzero((log_cost > math.log(_SAFETY)) & (log_cost < 700) & (utilities > value))
        if beyond.size:
            low, high = np.exp(log_cost[fits])[:, None], np.exp(log_cost[beyond])[None, :]
            share = (_SAFETY - low) / (high - low)
            mixed = utilities[fits][:, None] + share * (utilities[beyond][None, :] - utilities[fits][:, None])
            i, j = np.unravel_index(int(np.argmax(mixed)), mixed.shape)
            if mixed[i, j] > value:
                value, part = float(mixed[i, j]), float(share[i, j])
                weights = {int(fits[i]): 1 - part, int(beyond[j]): part}
        if best is None or value > best.utility:
            full = tuple(weights.get(k, 0.0) for k in range(utilities.size))
            best = Optimum(full, value, "rdp", order)
    return best
