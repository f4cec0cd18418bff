"""The best random selection for a target, exactly: linear programs, no grid over π (docs/theory.md §2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dpmerge.cache import code_fingerprint, remembered
from dpmerge.profiles import DIRECTIONS, ORDERS, Conversion, FloatArray, Profile, grids_of_accuracy, log_delta_from_renyi
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, MixtureAccountant, Placed

_SAFETY = 1 - 1e-12  # constraints are met with this much to spare, so that rounding does not undo them


@dataclass(frozen=True)
class Optimum:
    """The best probabilities, what they are worth, and the accountant (with its order) they are feasible for."""

    weights: tuple[float, ...]
    utility: float
    by: MixtureAccountant
    order: float | None = None


def selection_optimum(
    profiles: Sequence[Profile],
    utilities: Sequence[float],
    epsilon: float,
    delta: float,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    groups: Sequence[Placed] = (),
) -> Optimum | None:
    """Maximise Σ π_i u_i subject to (ε, δ)-DP of the draw, by Rényi if asked for; nothing if no draw satisfies it.

    Models of parts of the data are given in `groups`: each is a constraint, averaged over its places (docs/theory.md §10).
    """
    by, conversion = _asked(accounting)
    values = np.array(utilities, dtype=np.float64)
    placed = groups or [[(1.0, list(profiles))]]

    def solve() -> list[Any] | None:
        if by == "pld":
            with grids_of_accuracy(accounting.accuracy):
                known = {one: np.array(one.delta(epsilon)) for group in placed for _, own in group for one in own}
                costs = [sum(share * np.stack([known[one] for one in own]) for share, own in group) for group in placed]
                with np.errstate(over="ignore"):  # by a δ at the end of floats: no model of such a cost has weight
                    shares = np.minimum(np.hstack([np.asarray(cost) for cost in costs]).T / delta, 1e300)
                found = pld_optimum(shares, values)
        else:
            curves = np.stack([_renyi(profile) for profile in profiles])
            found = _renyi_optimum_at(curves, values, epsilon, delta, conversion)
        return None if found is None else [found.weights, found.utility, found.by, found.order]

    question = {
        "selection optimum": [[[share, [repr(one) for one in own]] for share, own in group] for group in placed],
        "utilities": [value.hex() for value in values.tolist()],
        "asked": [float(epsilon).hex(), float(delta).hex(), by, conversion, accounting.accuracy, code_fingerprint("planning")],
    }
    answer = remembered(question, solve)
    return None if answer is None else Optimum(tuple(answer[0]), *answer[1:])


def selection_frontier(
    profiles: Sequence[Profile],
    utilities: Sequence[float],
    epsilons: Sequence[float],
    delta: float,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    groups: Sequence[Placed] = (),
) -> list[Optimum | None]:
    """The exact optimum at every target ε. It is concave in δ but not in ε, so each target is solved for itself."""
    by, conversion = _asked(accounting)
    values = np.array(utilities, dtype=np.float64)
    targets = np.array(epsilons, dtype=np.float64)
    if by == "rdp":
        curves = np.stack([_renyi(profile) for profile in profiles])
        return [_renyi_optimum_at(curves, values, epsilon, delta, conversion) for epsilon in targets.tolist()]
    low, high = float(targets.min()), float(targets.max())
    placed = groups or [[(1.0, list(profiles))]]
    known = {
        one: [one.wide_curve(d, low, high, delta).deltas(targets) for d in DIRECTIONS]
        for group in placed
        for _, own in group
        for one in own
    }
    spent = [
        sum((share * np.array([known[one][d] for one in own]) for share, own in group), np.zeros(1))
        for group in placed
        for d in range(len(DIRECTIONS))
    ]
    return [pld_optimum(costs, values) for costs in np.moveaxis(np.array(spent) / delta, 2, 0)]


@lru_cache(maxsize=64)  # the targets of a plan and of a page share these
def _renyi(profile: Profile) -> FloatArray:
    return profile.renyi(ORDERS)


def _asked(accounting: Accounting) -> tuple[MixtureAccountant, Conversion]:
    """Loss distributions, the tightest, unless Rényi is asked for."""
    return "rdp" if accounting.by == "rdp" else "pld", accounting.conversion


def _renyi_optimum_at(
    curves: FloatArray, utilities: FloatArray, epsilon: float, delta: float, conversion: Conversion
) -> Optimum | None:
    return renyi_optimum(log_delta_from_renyi(ORDERS, curves, epsilon, conversion) - math.log(delta), ORDERS, utilities)


def pld_optimum(costs: FloatArray, utilities: FloatArray) -> Optimum | None:
    """One linear program: Σ π_i c_i ≤ 1 in both directions, c_i = H_i(ε)/δ. Some optimum has at most three weights.

    Rows are directions, two for each group of places.
    """
    from scipy.optimize import linprog  # slow to import, and a cached answer needs no program

    safest = int(np.argmin(costs.max(axis=0)))
    if costs[:, safest].max() > _SAFETY:
        # No single model fits; a mixture of models that fit in one direction each still may.
        found = linprog(
            np.concatenate((np.zeros(utilities.size), [1.0])),
            A_ub=np.hstack((costs, -np.ones((len(costs), 1)))),
            b_ub=np.zeros(len(costs)),
            A_eq=np.concatenate((np.ones(utilities.size), [0.0]))[None, :],
            b_eq=[1.0],
        )
        if not found.success or found.fun > _SAFETY:
            return None
    result = linprog(-utilities, A_ub=costs, b_ub=np.full(len(costs), _SAFETY), A_eq=np.ones((1, utilities.size)), b_eq=[1.0])
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
    limit = math.log(_SAFETY)
    useful = np.flatnonzero((log_costs <= limit).any(axis=0))  # orders at which something fits
    best: Optimum | None = None
    at_once = max(1, 400_000 // utilities.size**2)
    for start in range(0, useful.size, at_once):
        chunk = useful[start : start + at_once]
        log_cost = log_costs[:, chunk].T
        fits, cost = log_cost <= limit, np.exp(np.minimum(log_cost, 700.0))
        safe, risky = fits[:, :, None], (~fits & (log_cost < 700))[:, None, :]
        gap = np.where(safe & risky, cost[:, None, :] - cost[:, :, None], 1.0)
        share = np.where(safe & risky, (_SAFETY - cost[:, :, None]) / gap, 0.0)
        mixed = np.where(safe, utilities[:, None] + share * (utilities[None, :] - utilities[:, None]), -math.inf)
        k, i, j = np.unravel_index(int(np.argmax(mixed)), mixed.shape)
        if best is None or mixed[k, i, j] > best.utility:
            weights = np.zeros(utilities.size)
            weights[j] += share[k, i, j]
            weights[i] += 1 - share[k, i, j]
            best = Optimum(tuple(weights.tolist()), float(mixed[k, i, j]), "rdp", float(orders[chunk[k]]))
    return best
