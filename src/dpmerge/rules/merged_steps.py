"""The laws of merged steps: a window of them, or the last one with every coin that coupled runs ever tossed (§3.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from dpmerge.profiles import (
    FloatArray,
    GaussianLaw,
    Law,
    MixtureLaw,
    NonPrivateLaw,
    Profile,
    RevealedShiftLaw,
    ShiftLaw,
    sum_of_coins,
)
from dpmerge.records import Adjacency
from dpmerge.rules.transport import Candidate, Trajectories, candidate_sets, drifts, windows

_DRIFT_LEVELS = 160
_UNHIDDEN = ShiftLaw(np.array([math.inf]), np.ones(1))  # a step without noise
Ranked = tuple[float, Candidate, FloatArray | None]  # a score, what it is of, and the drift in its window


@lru_cache(maxsize=2)  # noise at release changes nothing here, and a search asks for many
def ranked_candidates(runs: Trajectories) -> tuple[list[Ranked], float]:
    """Windows and coupled sets by their Rényi divergence of order 2, the smallest first; and that of revealing every run."""
    reveal = np.array([_order_two(_own_step(runs, i)) * run.steps for i, run in enumerate(runs.runs)])
    ranked = [*_coupled(runs, reveal), *_windows(runs, reveal)]
    ranked.sort(key=lambda entry: (math.isnan(entry[0]), entry[0]))
    return ranked, float(reveal.sum())


def _coupled(runs: Trajectories, reveal: FloatArray) -> Iterable[Ranked]:
    """Only the last step is merged: some runs are coupled up to it, the others revealed before it."""
    shifts = np.maximum(np.sum(runs.weights[:, None] * runs.rate * runs.effect, axis=1), 1e-300)
    for coupled in candidate_sets(np.nan_to_num(reveal / shifts, posinf=1e300), len(runs.runs)):
        score = float(sum(reveal[i] for i in range(len(runs.runs)) if i not in coupled))
        yield score + _order_two(last_step_shift(runs, coupled)), Candidate(1, coupled), None


def _windows(runs: Trajectories, reveal: FloatArray) -> Iterable[Ranked]:
    """Longer windows with their drift, and nothing coupled; inside, a sample of the steps is looked at."""
    longer = [Candidate(k, ()) for k in windows(runs.steps, few=True) if k > 1]
    looks = 8 if len(runs.runs) <= 6 else 3  # each look at a step enumerates or convolves its coins
    rows = drifts(runs, longer) if longer else ()
    for candidate, drift in zip(longer, rows, strict=True):
        before = [(cost, r.steps, r.steps - candidate.window) for cost, r in zip(reveal.tolist(), runs.runs, strict=True)]
        score = sum(cost * left / steps for cost, steps, left in before if left > 0)
        sample = np.unique(np.linspace(-candidate.window, -1, looks).astype(int))
        inside = [_order_two(_coins(runs, t, float(drift[t]))) for t in sample.tolist()]
        yield score + float(np.mean(inside)) * candidate.window, candidate, drift


def last_step_shift(runs: Trajectories, coupled: tuple[int, ...]) -> ShiftLaw:
    """W / s_λ: fresh coins of the last step, and for coupled runs every coin they ever tossed, grown by Γ."""
    noise = float(runs.merged_noise[-1])
    if noise == 0:
        return _UNHIDDEN
    parts: list[ShiftLaw] = []
    for i, run in enumerate(runs.runs):
        if i not in coupled:
            parts.append(ShiftLaw.coin(run.weight * runs.effect[i, -1] / noise, float(runs.rate[i, -1])))
            continue
        growth = np.where(runs.tame[i], 1.0, 1 + runs.pull[i])
        with np.errstate(over="ignore", invalid="ignore"):
            later = np.append(np.cumprod(growth[:0:-1])[::-1], 1.0)  # Γ_t = Π_{τ>t}
            values = np.where(runs.effect[i] > 0, run.weight * runs.effect[i] * later / noise, 0.0)
        if not np.all(np.isfinite(values)):
            return _UNHIDDEN
        parts.extend(_grouped_coins(values, runs.rate[i], runs.shift_tail))
    return sum_of_coins(parts, runs.shift_tail)


def window_profile(runs: Trajectories, drift: FloatArray, start: int = 0) -> Profile:
    """The laws of the steps from `start` on, equal ones gathered; drifts are rounded up to a few levels."""
    merged, lam = runs.merged_noise, runs.weights
    rounded = _round_up(drift)
    with np.errstate(divide="ignore", invalid="ignore"):
        nobody = np.where(runs.effect > 0, math.inf, 0.0)  # without noise: nothing is hidden, or nothing happens
        scaled = np.where(merged > 0, lam[:, None] * runs.effect / merged, nobody)[:, start:]
        pushed = np.where(rounded > 0, rounded / merged[start:], 0.0)
    key = np.vstack([scaled, runs.rate[:, start:], pushed[None, :]])
    # Steps that agree to 1e-9 are the same step; the largest of them stands for all.
    digits = np.where(np.isfinite(key) & (key > 0), np.round(np.log(np.maximum(key, 1e-300)), 9), key)
    _, first, inverse = np.unique(digits, axis=1, return_index=True, return_inverse=True)
    counts = np.bincount(inverse.ravel())
    factors: list[tuple[Law, int]] = []
    excess = 0.0
    for group, count in enumerate(counts.tolist()):
        column = key[:, first[group]] * (1 + 2e-9)
        if not np.all(np.isfinite(column)):
            return Profile.of([(NonPrivateLaw(), 1)])
        coins = [ShiftLaw.coin(v, min(r, 1.0)) for v, r in zip(column[: len(lam)], column[len(lam) : -1], strict=True)]
        law = sum_of_coins(coins, runs.shift_tail).shifted(float(column[-1]))
        excess += count * law.excess
        factors.append((shift_law(law, runs.adjacency), count))
    return Profile.of(factors, excess)


def shift_law(law: ShiftLaw, adjacency: Adjacency) -> Law:
    if not math.isfinite(law.values[-1]):
        return NonPrivateLaw()
    if law.values.size == 1:
        return GaussianLaw(float(law.values[0]))
    if adjacency == "replace-one":
        return RevealedShiftLaw.of(law)
    return MixtureLaw.of(law)


def squared_ratio(effect: FloatArray, noise: FloatArray) -> FloatArray:
    """(s/ν)², 0 where there is no effect, infinite where there is one and no noise."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.where(effect > 0, np.square(effect / noise), 0.0))


def _own_step(runs: Trajectories, i: int) -> ShiftLaw:
    """The last step of one run alone."""
    ratio = float(np.sqrt(squared_ratio(runs.effect[i, -1:], runs.noise[i, -1:]))[0])
    return ShiftLaw.coin(ratio, float(runs.rate[i, -1]))


def _coins(runs: Trajectories, t: int, drift: float) -> ShiftLaw:
    noise = float(runs.merged_noise[t])
    if noise == 0 or not math.isfinite(drift):
        return _UNHIDDEN
    parts = [ShiftLaw.coin(run.weight * runs.effect[i, t] / noise, float(runs.rate[i, t])) for i, run in enumerate(runs.runs)]
    return sum_of_coins(parts, runs.shift_tail).shifted(drift / noise)


def _order_two(law: ShiftLaw) -> float:
    """log E[e^{SS′}]: the Rényi divergence of order 2 of the mixture with shifts S from N(0, 1). Only for ranking."""
    if not np.all(np.isfinite(law.values)):
        return math.inf
    with np.errstate(over="ignore"):
        excess = law.probs @ np.expm1(np.multiply.outer(law.values, law.values)) @ law.probs
        return math.log1p(min(float(excess), 1e300))


def _grouped_coins(values: FloatArray, rates: FloatArray, tail: float) -> Iterable[ShiftLaw]:
    """Equal coins as binomials, in few groups: a coin's value is rounded up by at most a part in a thousand."""
    positive = values > 0
    pairs = np.stack([_round_up(values[positive], 1e-3, levels=4000), rates[positive]])
    groups, counts = np.unique(pairs, axis=1, return_counts=True)
    for (value, rate), count in zip(groups.T.tolist(), counts.tolist(), strict=True):
        yield ShiftLaw.binomial(value, rate, count, tail / max(1, counts.size))


def _round_up(values: FloatArray, ratio: float | None = None, levels: int = _DRIFT_LEVELS) -> FloatArray:
    """Round positive values up to a geometric grid below their maximum; few distinct values are left as they are."""
    distinct = np.unique(values[values > 0])
    if (distinct.size <= levels and (ratio is None or distinct.size <= 64)) or not np.all(np.isfinite(distinct)):
        return values
    top = float(distinct[-1])
    step = math.log1p(ratio) if ratio is not None else math.log(100) / levels
    level = np.floor((math.log(top) - np.log(np.maximum(values, 1e-300))) / step)
    rounded = top * np.exp(-np.clip(level, 0, levels) * step) * (1 + 1e-12)
    return np.asarray(np.where(values > 0, np.minimum(np.maximum(rounded, values), top), 0.0))
