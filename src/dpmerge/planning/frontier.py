"""What every target would give: the best utility against ε at one δ, for every rule and accountant.

Random selection is solved exactly at every target. Linear combinations are points: weights along the edges from the most
private model to each other one (or on a grid of the simplex, or as given), each with its own ε; the frontier is what no other
point beats. Where a scorer is given, every point is really merged and measured; otherwise its utility is interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from dpmerge.errors import AccountingError, TargetError, UtilityError
from dpmerge.jobs import run_all
from dpmerge.planning.optimum import Optimum, selection_frontier
from dpmerge.planning.points import (
    ACCOUNTANTS,
    Account,
    Accountant,
    Accounting,
    Mapper,
    Point,
    Scorer,
    assumed_by,
    combination_points,
    named,
    selection_assumptions,
)
from dpmerge.planning.simplex import simplex_grid
from dpmerge.planning.utility import Utilities
from dpmerge.profiles import Profile, run_profile
from dpmerge.records import Portfolio
from dpmerge.rules import Joint, Target, about_delta, round_up

Judge = Callable[[Sequence[Point]], list[dict[str, Any]]]
_FIRST_ROUND = 9
_TITLES: dict[Account, str] = {"proved": "linear combination", "formula": "linear combination (papers' formula)"}


def frontier(
    portfolio: Portfolio,
    *,
    accounting: Accounting,
    epsilons: Sequence[float],
    utility: Utilities | None = None,
    scorer: Scorer | None = None,
    scored: Literal["private", "stand-ins"] = "private",
    edge_points: int = 25,
    step: float | None = None,
    points: Sequence[Point] | None = None,
    run: Mapper = run_all,
    progress: Callable[[str], None] = lambda label: None,
) -> dict[str, Any]:
    """The frontier as plain data (docs/frontier.md describes it). A scorer's measurements take the place of `utility`."""
    targets = check_frontier(accounting, epsilons, utility, scorer, edge_points, step)
    progress("each model alone")
    models = _models(portfolio, accounting)
    accounts: tuple[Account, ...] = ("proved",) if accounting.assume_smoothness == 0 else ("proved", "formula")
    progress("")
    judge = partial(combination_points, portfolio, accounting=accounting, run=run, accounts=accounts, scorer=scorer)
    if points is None and step is not None:
        points = list(map(tuple, simplex_grid(len(portfolio.names), step).tolist()))
    results = _at(portfolio, points, judge) if points is not None else _on_edges(portfolio, models, edge_points, judge)
    tried, found = list(results), list(results.values())
    if scorer is not None:
        scores = dict(zip(tried, (result["score"] for result in found), strict=True))
        values = tuple(scores[_vertex(portfolio, name)] for name in portfolio.names)
        looked = scored == "private"
        whose = "the private models" if looked else "stand-ins"
        utility = Utilities(values, "after-looking" if looked else "a-priori", f"measured by an evaluator on {whose}")
    elif utility is None:
        known = {model["name"]: _smallest(model["epsilon"]) for model in models}
        utility = Utilities.less_private_is_more_useful(portfolio, known)
    progress("random selection")
    curves = [_selection(portfolio, utility, targets, accounting, by) for by in ACCOUNTANTS]
    for account in accounts:
        curves += [_combination(portfolio, utility, tried, found, account, by, accounting) for by in ACCOUNTANTS]
    for model, value in zip(models, utility.values, strict=True):
        model["utility"] = value
    joint, joint_assumes = _joint(portfolio, utility, accounting)
    titles: dict[Account, str] = _TITLES if len(accounts) == 2 else {"proved": _TITLES["formula"]}
    assumed = [("random selection", selection_assumptions(portfolio, accounting)), ("joint release", joint_assumes)]
    assumed += [(titles[account], result[account]["assumptions"]) for account in accounts for result in found]
    return {
        "kind": "frontier",
        "delta": accounting.delta,
        "adjacency": portfolio.adjacency,
        "provenance": utility.provenance,
        "utilities_source": utility.source,
        "utility_label": "score" if scorer is not None else "utility",
        "warning": _warning(utility, joint, about_delta(accounting.delta, portfolio.models, accounting.shuffle)),
        "assumptions": assumed_by(assumed),
        "models": models,
        "joint": joint,
        "curves": curves,
    }


def check_frontier(
    accounting: Accounting,
    epsilons: Sequence[float],
    utility: Utilities | None,
    scorer: Scorer | None,
    edge_points: int,
    step: float | None,
) -> tuple[float, ...]:
    """Refuse what cannot be drawn, before anything is written or computed; the targets in order."""
    Target(delta=accounting.delta)
    if scorer is not None and utility is not None:
        raise UtilityError("utilities are either given or measured by an evaluator, not both")
    if utility is not None and utility.validation is not None:
        raise UtilityError("a picture of scores on a private validation set would publish them; use dpmerge plan")
    if edge_points < 1:
        raise TargetError(f"{edge_points} points on an edge are none; give at least 1")
    if step is not None:
        simplex_grid(1, step)
    for epsilon in epsilons:
        Target(epsilon=epsilon)
    if not epsilons:
        raise TargetError("a frontier needs at least one target ε")
    return tuple(sorted(set(epsilons)))


def _models(portfolio: Portfolio, accounting: Accounting) -> list[dict[str, Any]]:
    rows = []
    for name in portfolio.names:
        rule = partial(Joint, portfolio.weights({name: 1.0}), accounting.shuffle)
        epsilon: dict[str, float] = {}
        for by in ACCOUNTANTS:
            try:
                epsilon[by] = rule().guarantee(delta=accounting.delta, by=by, conversion=accounting.conversion).epsilon
            except AccountingError:
                epsilon[by] = math.inf
        rows.append({"name": name, "epsilon": epsilon})
    return rows


def _smallest(epsilon: dict[str, float]) -> float:
    """The smallest ε known of a model; a model without any is as useful as can be."""
    return min(epsilon.values())


def _at(portfolio: Portfolio, points: Sequence[Point], judge: Judge) -> dict[Point, dict[str, Any]]:
    vertices = [_vertex(portfolio, name) for name in portfolio.names]
    every = list(dict.fromkeys([*vertices, *points]))
    return dict(zip(every, judge(every), strict=True))


def _on_edges(portfolio: Portfolio, models: list[dict[str, Any]], count: int, judge: Judge) -> dict[Point, dict[str, Any]]:
    """Every model alone, and `count` combinations on each edge from the most private one, close where ε moves fast.

    A few shares to begin with; then, in rounds, the middles (in log odds) of the widest gaps in log ε.
    """
    vertices = [_vertex(portfolio, name) for name in portfolio.names]
    start = vertices[min(range(len(models)), key=lambda index: _smallest(models[index]["epsilon"]))]
    ends = [vertex for vertex in vertices if vertex != start]
    odds = {end: np.linspace(-6.0, 3.0, min(count, _FIRST_ROUND)).tolist() for end in ends}
    fresh = vertices + [_between(start, end, o) for end in ends for o in odds[end]]
    results = dict(zip(fresh, judge(fresh), strict=True))
    while any(len(known) < count for known in odds.values()):
        fresh = []
        for end, known in odds.items():
            ladder = [-9.0, *known, 6.0]
            rungs = [start, *(_between(start, end, o) for o in known), end]
            judged = [results[point] for point in rungs]
            heights = [_step(low, high) for low, high in pairwise(judged)]
            widest = sorted(range(len(heights)), key=heights.__getitem__, reverse=True)
            room = min(max(1, len(known) // 2), count - len(known))
            middles = [(ladder[index] + ladder[index + 1]) / 2 for index in widest[:room]]
            odds[end] = sorted(known + middles)
            fresh += [_between(start, end, o) for o in middles]
        results.update(zip(fresh, judge(fresh), strict=True))
    return results


def _step(low: dict[str, Any], high: dict[str, Any]) -> float:
    """The larger step in log ε between two neighbours, of what is proved and what the formula says."""
    pairs = [(low[account]["pld"], high[account]["pld"]) for account in ("proved", "formula") if account in low]
    return max(abs(math.log(max(b, 1e-9) / max(a, 1e-9))) if max(a, b) < math.inf else 0.0 for a, b in pairs)


def _between(start: Point, end: Point, log_odds: float) -> Point:
    share = 1 / (1 + math.exp(-log_odds))
    return tuple(1 - share if a == 1 else share if b == 1 else 0.0 for a, b in zip(start, end, strict=True))


def _vertex(portfolio: Portfolio, name: str) -> Point:
    return tuple(1.0 if other == name else 0.0 for other in portfolio.names)


def _selection(
    portfolio: Portfolio, utility: Utilities, targets: tuple[float, ...], accounting: Accounting, by: Accountant
) -> dict[str, Any]:
    profiles: list[Profile] = []
    conditional = False
    found: list[Optimum | None] = [None] * len(targets)
    why = None
    try:
        for model in portfolio.models:
            known = run_profile(model, accounting.shuffle)
            conditional = conditional or known.conditional
            profiles.append(known.profile)
        found = selection_frontier(profiles, utility.values, targets, accounting.delta, by, accounting.conversion)
    except AccountingError as error:
        why = str(error)
    return {
        "rule": "selection",
        "by": by,
        "standing": "conditional" if conditional else "proved",
        "title": "random selection",
        "exact": True,
        "refused": why,
        "points": [
            {
                "epsilon": epsilon,
                "utility": None if best is None else best.utility,
                "weights": None if best is None else named(portfolio, best.weights),
            }
            for epsilon, best in zip(targets, found, strict=True)
        ],
    }


def _combination(
    portfolio: Portfolio,
    utility: Utilities,
    points: list[Point],
    found: list[dict[str, Any]],
    account: Account,
    by: Accountant,
    accounting: Accounting,
) -> dict[str, Any]:
    title = _TITLES["formula" if accounting.assume_smoothness == 0 else account]
    standings = {result[account]["standing"] for result in found}
    rows = []
    for point, result in zip(points, found, strict=True):
        worth, kind = result["score"], "measured"
        if worth is None:
            worth = math.fsum(w * u for w, u in zip(point, utility.values, strict=True))
            kind = "interpolated" if max(point) < 1 else "given"
        rows.append(
            {"epsilon": result[account][by], "utility": worth, "weights": named(portfolio, point), "utility_kind": kind}
        )
    rows.sort(key=lambda row: (row["epsilon"], -row["utility"]))
    best = -math.inf
    for row in rows:
        row["on_frontier"] = math.isfinite(row["epsilon"]) and row["utility"] > best
        best = max(best, row["utility"]) if math.isfinite(row["epsilon"]) else best
    standing = "conditional" if "conditional" in standings else "proved"
    return {"rule": "combination", "by": by, "standing": standing, "title": title, "exact": False, "points": rows}


def _joint(portfolio: Portfolio, utility: Utilities, accounting: Accounting) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Joint release of all models, and what it assumes."""
    everyone = portfolio.weights({name: 1 / len(portfolio.names) for name in portfolio.names})
    try:
        found = Joint(everyone, accounting.shuffle).guarantee(delta=accounting.delta, conversion=accounting.conversion)
    except AccountingError:
        return None, ()
    return {"epsilon": found.epsilon, "utility": max(utility.values), "standing": found.standing}, found.assumptions


def _warning(utility: Utilities, joint: dict[str, Any] | None, about: tuple[str, ...]) -> str | None:
    """What the picture does not cover, and a δ at which it promises little."""
    told = [f"{text}." for text in about]
    if utility.provenance != "a-priori":
        cost = "which no guarantee covers here" if joint is None else f"ε = {round_up(joint['epsilon'])}"
        told.append(
            "The utilities were measured on the private models, so weights read off this picture are a function of them: the "
            f"curves do not cover such a choice; joint release ({cost}) or tempered selection does (docs/theory.md §4)."
        )
    return " ".join(told) or None
