"""Averages with noise at release, at every noise: ε falls continuously as the noise grows (docs/theory.md §9).

Each point is a guarantee of its own: ε is computed at the noise, not the noise for an ε.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpmerge.cache import code_fingerprint, without_cache
from dpmerge.errors import AccountingError
from dpmerge.planning.noising import candidates
from dpmerge.planning.points import Mapper, NoisyScorer, Point
from dpmerge.planning.worth import Worth
from dpmerge.profiles import grids_of_accuracy
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, Combination, Standing, build, of_many

DRAWS = 10  # of the noise, where an average is measured
_FIRST = (1.0, 8.0, 64.0)  # noise in units of what one record does to the average in one step
_BETWEEN = 6
_ACCURACY = 1e-4


@dataclass(frozen=True)
class Noised:
    """One average at one noise: ε, its utility, and, where it was measured, the least and the largest score of the draws."""

    weights: Point
    noise: float
    epsilon: float
    utility: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class NoisedAverages:
    points: tuple[Noised, ...]
    standing: Standing
    assumptions: tuple[str, ...]


def noised_averages(
    portfolio: Portfolio,
    worth: Worth,
    delta: float,
    targets: Sequence[float],
    accounting: Accounting,
    run: Mapper,
    scorer: NoisyScorer | None = None,
) -> NoisedAverages | None:
    """The best model and averages at many noises, those that no other one beats, from private to useful; if noise pays."""
    asked = replace(accounting, by="best", accuracy=_ACCURACY)
    tried = [weights.values for weights in candidates(portfolio, worth, asked)]
    if not tried:
        return None
    work = partial(_at_many_noises, portfolio, delta, asked, (min(targets), max(targets)))
    records = [model.record.model_dump_json() for model in portfolio.models]
    whole = hashlib.sha256(repr((records, portfolio.names, *work.args[1:], code_fingerprint())).encode()).hexdigest()[:32]
    found = run(work, tried, keys=[f"noised:{whole}:{','.join(value.hex() for value in point)}" for point in tried])
    points = [
        Noised(point, noise, epsilon, worth.averaged(point, noise))
        for point, one in zip(tried, found, strict=True)
        for noise, epsilon in one["points"]
        if epsilon < math.inf
    ]
    kept = _unbeaten(points)
    if not kept:
        return None
    if scorer is not None:
        kept = _measured(kept, scorer, run)
    conditional = any(one["conditional"] for one in found)
    assumed = dict.fromkeys(text for one in found for text in one["assumptions"])
    return NoisedAverages(tuple(kept), "conditional" if conditional else "proved", tuple(assumed))


def _unbeaten(points: Sequence[Noised]) -> list[Noised]:
    """From private to useful: no point below another one, nor below the line between two of another average."""
    lines: dict[Point, list[Noised]] = {}
    for point in sorted(points, key=lambda one: one.epsilon):
        lines.setdefault(point.weights, []).append(point)
    kept: list[Noised] = []
    for point in sorted(points, key=lambda one: (one.epsilon, -one.utility)):
        below = any(_reached(line, point.epsilon) > point.utility for name, line in lines.items() if name != point.weights)
        if not below and (not kept or point.utility > kept[-1].utility):
            kept.append(point)
    return kept


def _reached(line: Sequence[Noised], epsilon: float) -> float:
    """What is released between two noises is between their utilities, too."""
    x, y = [one.epsilon for one in line], [one.utility for one in line]
    return float(np.interp(epsilon, x, y, left=-math.inf))


def _at_many_noises(
    portfolio: Portfolio, delta: float, accounting: Accounting, wanted: tuple[float, float], point: Point
) -> dict[str, Any]:
    """(noise, ε) where ε is near the targets, as plain data, and what is assumed; no points where noise does not pay."""
    weights = portfolio.weights_in_order(point)
    nothing: dict[str, Any] = {"points": [], "conditional": False, "assumptions": []}

    def rule(noise: float) -> Combination:
        made = build("combination", weights, accounting, noise=noise)
        assert isinstance(made, Combination)
        return made

    def epsilon(noise: float) -> float:
        with grids_of_accuracy(accounting.accuracy):
            return rule(noise).hidden_epsilon(delta, accounting.by, accounting.conversion)

    try:
        with without_cache():
            unit = rule(0.0).record_effect
            known = {noise: epsilon(noise) for noise in (0.0, *(unit * times for times in _FIRST))}
            for _ in range(12):
                most = max(known)
                if known[most] <= wanted[0] or not known[most] < 0.99 * known[sorted(known)[-2]]:
                    break
                known[8 * most] = epsilon(8 * most)
            known |= {noise: epsilon(noise) for noise in _between(known, *wanted)}
            told = accounting.guarantee(rule(max(known)), delta=delta)
    except AccountingError:
        return nothing
    if told.theorem != "hidden-run":
        return nothing
    inside = sorted(noise for noise, spent in known.items() if 0.5 * wanted[0] <= spent <= 2 * wanted[1])
    assumptions = [of_many(text) for text in told.assumptions]
    points = [[noise, known[noise]] for noise in inside]
    return {"points": points, "conditional": told.standing == "conditional", "assumptions": assumptions}


def _between(known: dict[float, float], low: float, high: float) -> list[float]:
    """Noises at which ε should be evenly spread over the targets, by power laws between known ones."""
    pairs = sorted((spent, noise) for noise, spent in known.items() if noise > 0 and 0 < spent < math.inf)
    ends = [spent for spent in known.values() if 0 < spent < math.inf]
    low, high = max(low, min(ends, default=low)), min(high, max(ends, default=high))
    if len(pairs) < 2 or not low < high:
        return []
    targets = np.linspace(math.log(low), math.log(high), _BETWEEN)
    spents, noises = np.log(np.array(pairs)).T
    found = np.exp(np.interp(targets, spents, noises)).tolist()
    return [noise for noise in dict.fromkeys(found) if noise not in known]


def _measured(points: Sequence[Noised], scorer: NoisyScorer, run: Mapper) -> list[Noised]:
    """The mean score over several draws of the noise, and its range; without noise there is nothing to draw."""
    items = [(one.weights, one.noise, draw) for one in points for draw in range(DRAWS if one.noise > 0 else 1)]
    prefix = hashlib.sha256(f"{scorer.fingerprint}{code_fingerprint()}".encode()).hexdigest()[:32]
    keys = [f"draw:{prefix}:{','.join(w.hex() for w in point)}:{noise.hex()}:{draw}" for point, noise, draw in items]
    scores: dict[tuple[Point, float], list[float]] = {}
    for (point, noise, _), score in zip(items, run(partial(_score, scorer), items, keys=keys), strict=True):
        scores.setdefault((point, noise), []).append(score)
    drawn = [scores[one.weights, one.noise] for one in points]
    return [
        replace(one, utility=min(max(math.fsum(found) / len(found), min(found)), max(found)), low=min(found), high=max(found))
        for one, found in zip(points, drawn, strict=True)
    ]


def _score(scorer: NoisyScorer, item: tuple[Point, float, int]) -> float:
    point, noise, _ = item
    return float(scorer.noised(point, noise) if noise > 0 else scorer(point))
