"""The best utility at every target ε, at one δ, for every rule and accountant.

The main line is the best average with noise at release, at many noises (`noised.py`). Random selection is solved exactly at
every target. Linear combinations without noise are points: weights along the edges from the most private model to each other
one (or on a grid of the simplex, or as given), each with its own ε; the frontier is what no other point beats. Where a scorer
is given, every point is really merged and measured; otherwise its utility is interpolated, or predicted from records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpmerge.errors import AccountingError, TargetError, UtilityError
from dpmerge.jobs import run_all
from dpmerge.notebook import Drawn, frame, tells
from dpmerge.planning.noised import NoisedAverages, noised_averages
from dpmerge.planning.optimum import Optimum, selection_frontier
from dpmerge.planning.points import (
    Account,
    Combined,
    Epsilon,
    Mapper,
    NoisyScorer,
    Point,
    Scorer,
    combination_points,
    named,
    selection_assumptions,
    warned,
)
from dpmerge.planning.simplex import simplex_grid
from dpmerge.planning.utility import Utilities
from dpmerge.planning.worth import Worth
from dpmerge.profiles import Profile, run_profile
from dpmerge.records import Adjacency, Portfolio
from dpmerge.rules import (
    DEFAULT_ACCOUNTING,
    MIXTURE_ACCOUNTANTS,
    Accounting,
    MixtureAccountant,
    Standing,
    Target,
    assumed_by,
    build,
    placed_profiles,
    round_up,
    significant,
)

if TYPE_CHECKING:
    from pandas import DataFrame

Judge = Callable[[Sequence[Point]], list[Combined]]
PointKind = Literal["measured", "interpolated", "given", "predicted"]
_MEASURED: PointKind = "measured"
_FIRST_ROUND = 9
_NOISED = "average with noise at release"
_TITLES: dict[Account, str] = {"proved": "linear combination", "formula": "linear combination (papers' formula)"}


@dataclass(frozen=True)
class ModelAlone:
    name: str
    epsilon: dict[MixtureAccountant, Epsilon]
    utility: float = 0.0

    @property
    def smallest(self) -> float:
        return min(self.epsilon.values(), default=math.inf)


@dataclass(frozen=True)
class JointPoint:
    epsilon: Epsilon
    utility: float
    standing: Standing


@dataclass(frozen=True)
class FrontierPoint:
    """Weights with their ε and utility: the optimum for a target, if there is one, or weights that were tried.

    A point that was tried is `on_frontier` if no other one with a smaller ε is as useful. `noise` is added at release; `low`
    and `high` are the least and the largest score over several draws of it.
    """

    epsilon: Epsilon
    utility: float | None
    weights: dict[str, float] | None
    utility_kind: PointKind | None = None
    on_frontier: bool | None = None
    noise: float = 0.0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curve:
    """One rule by one accountant: the optimum at every target (`exact`), or points tried; `refused` says why there are none.

    Between points of a `continuous` curve lie others: of averages with noise.
    """

    rule: str
    by: MixtureAccountant
    standing: Standing
    title: str
    exact: bool
    points: tuple[FrontierPoint, ...]
    refused: str | None = None
    continuous: bool = False

    def as_dict(self) -> dict[str, Any]:
        tried = () if self.exact else ("utility_kind", "on_frontier")
        fields = ("epsilon", "utility", "weights", *tried, *(("noise", "low", "high") if self.continuous else ()))
        points = [{name: getattr(point, name) for name in fields} for point in self.points]
        told = {"rule": self.rule, "by": self.by, "standing": self.standing, "title": self.title, "exact": self.exact}
        told |= {"continuous": True} if self.continuous else {}
        return {**told, **({"refused": self.refused} if self.exact else {}), "points": points}


@dataclass(frozen=True, repr=False)
class Frontier(Drawn):
    """Utility against ε at one δ (docs/frontier.md describes the document); `targets` are those a picture marks."""

    delta: float
    adjacency: Adjacency
    provenance: str
    utilities_source: str
    utility_label: str
    warning: str | None
    assumptions: dict[str, list[str]]
    models: tuple[ModelAlone, ...]
    joint: JointPoint | None
    curves: tuple[Curve, ...]
    targets: tuple[float, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        told = {"kind": "frontier", **asdict(self), "models": [asdict(model) for model in self.models]}
        marked = told.pop("targets")
        told["curves"] = [curve.as_dict() for curve in self.curves]
        return told if marked is None else {**told, "targets": list(marked)}

    def __repr__(self) -> str:
        lines = ", ".join(dict.fromkeys(curve.title for curve in self.curves))
        return f"Frontier of {len(self.models)} models at δ = {significant(self.delta)}: {lines}"

    def to_frame(self) -> DataFrame:
        """A row for each point of each curve."""
        kinds = ("title", "by", "standing")
        return frame(
            {**{kind: getattr(curve, kind) for kind in kinds}, **asdict(point)}
            for curve in self.curves
            for point in curve.points
        )


@tells
def frontier(
    portfolio: Portfolio,
    *,
    delta: float,
    epsilons: Sequence[float],
    utility: Utilities | Mapping[str, float] | None = None,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    scorer: Scorer | None = None,
    scored: Literal["private", "stand-ins"] = "private",
    edge_points: int | None = None,
    step: float | None = None,
    points: Sequence[Point] | None = None,
    run: Mapper = run_all,
    progress: Callable[[str], None] = lambda label: None,
) -> Frontier:
    """The best releases at δ for every target ε. A scorer's measurements replace `utility`.

    `edge_points` are averages without noise on each edge; by default none where noise at release pays, which then is better.
    """
    Portfolio.require(portfolio)
    utility = Utilities.of(portfolio, utility)
    targets = check_frontier(delta, epsilons, utility, scorer, edge_points, step)
    progress("each model alone")
    models = _models(portfolio, delta, accounting)
    formula = accounting.assume_smoothness == 0
    accounts: tuple[Account, ...] = ("proved",) if formula else ("proved", "formula")
    titles = {account: _TITLES["formula" if formula else account] for account in accounts}
    worth = Worth.of(portfolio, utility, {model.name: model.smallest for model in models})
    progress("averages with noise")
    noised = None
    if not formula and (scorer is None or isinstance(scorer, NoisyScorer)):
        noised = noised_averages(portfolio, worth, delta, targets, accounting, run, scorer)
    progress("")
    if points is None and step is not None:
        points = list(map(tuple, simplex_grid(len(portfolio.names), step).tolist()))
    if edge_points is None and noised is not None and points is None:
        points, accounts = [], ()
    judge = partial(
        combination_points, portfolio, delta=delta, accounting=accounting, run=run, accounts=accounts, scorer=scorer
    )
    results: dict[Point, Combined] = {}
    if accounts or scorer is not None:
        results = _on_edges(portfolio, models, edge_points or 25, judge) if points is None else _at(portfolio, points, judge)
    if scorer is not None:
        worth = replace(worth, utilities=_measured(portfolio, results, scored), predicted=False)
    utility = worth.utilities
    progress("random selection")
    curves = [] if noised is None else [_with_noise(portfolio, noised, worth, scorer)]
    curves += [_selection(portfolio, worth, targets, delta, accounting, by) for by in MIXTURE_ACCOUNTANTS]
    if "formula" in accounts and all(one.accounts["formula"].standing == "proved" for one in results.values()):
        accounts = ("proved",)  # the formula does not apply, as to checkpoints of one run, or says no more
    for account in accounts:
        curves += [_combination(portfolio, worth, results, account, by, titles[account]) for by in MIXTURE_ACCOUNTANTS]
    joint, joint_assumes = _joint(portfolio, worth, delta, accounting)
    drawn = selection_assumptions(portfolio, delta, accounting)
    assumed: list[tuple[str, Sequence[str]]] = [("random selection", drawn), ("joint release", joint_assumes)]
    assumed += [] if noised is None else [(_NOISED, noised.assumptions)]
    assumed += [(titles[account], one.accounts[account].assumptions) for account in accounts for one in results.values()]
    return Frontier(
        delta,
        portfolio.adjacency,
        utility.provenance,
        utility.source,
        "utility" if scorer is None else "score",
        _warning(utility, joint, warned(delta, portfolio, accounting)),
        assumed_by(assumed),
        tuple(ModelAlone(m.name, m.epsilon, value) for m, value in zip(models, utility.values, strict=True)),
        joint,
        tuple(curves),
    )


def _measured(portfolio: Portfolio, results: dict[Point, Combined], scored: Literal["private", "stand-ins"]) -> Utilities:
    scores = [results[_vertex(portfolio, name)].score for name in portfolio.names]
    values = tuple(score for score in scores if score is not None)
    looked = scored == "private"
    whose = "the private models" if looked else "stand-ins"
    return Utilities(values, "after-looking" if looked else "a-priori", f"measured by an evaluator on {whose}")


def check_frontier(
    delta: float,
    epsilons: Sequence[float],
    utility: Utilities | None,
    scorer: Scorer | None,
    edge_points: int | None,
    step: float | None,
) -> tuple[float, ...]:
    """Check the arguments before anything is computed or written; return the targets in order."""
    Target(delta=delta)
    if scorer is not None and utility is not None:
        raise UtilityError("utilities are either given or measured by an evaluator, not both")
    if utility is not None and utility.validation is not None:
        raise UtilityError("a picture of scores on a private validation set would publish them; a plan does not show them")
    if edge_points is not None and edge_points < 1:
        raise TargetError(f"{edge_points} points on an edge: give at least 1")
    if step is not None:
        simplex_grid(1, step)
    for epsilon in epsilons:
        Target(epsilon=epsilon)
    if not epsilons:
        raise TargetError("a frontier needs at least one target ε")
    return tuple(sorted(set(epsilons)))


def _models(portfolio: Portfolio, delta: float, accounting: Accounting) -> list[ModelAlone]:
    rows = []
    for name in portfolio.names:
        epsilon: dict[MixtureAccountant, float] = {}
        for by in MIXTURE_ACCOUNTANTS:
            try:
                asked = replace(accounting, by=by, assume_smoothness=None)
                rule = build("combination", portfolio.weights({name: 1.0}), asked)
                epsilon[by] = asked.guarantee(rule, delta=delta).epsilon
            except AccountingError:
                epsilon[by] = math.inf
        rows.append(ModelAlone(name, epsilon))
    return rows


def _at(portfolio: Portfolio, points: Sequence[Point], judge: Judge) -> dict[Point, Combined]:
    vertices = [_vertex(portfolio, name) for name in portfolio.names]
    every = list(dict.fromkeys([*vertices, *points]))
    return dict(zip(every, judge(every), strict=True))


def _on_edges(portfolio: Portfolio, models: Sequence[ModelAlone], count: int, judge: Judge) -> dict[Point, Combined]:
    """Every model alone, and `count` combinations on each edge from the most private one, denser where ε changes fast.

    Starts with a few shares; then, in rounds, adds the middles (in log odds) of the widest gaps in log ε.
    """
    vertices = [_vertex(portfolio, name) for name in portfolio.names]
    start = vertices[min(range(len(models)), key=lambda index: models[index].smallest)]
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


def _step(low: Combined, high: Combined) -> float:
    """The gap in log ε between two neighbours: the proved one or the formula's, whichever is larger."""
    pairs = [(low.accounts[account].epsilon["pld"], high.accounts[account].epsilon["pld"]) for account in low.accounts]
    return max(abs(math.log(max(b, 1e-9) / max(a, 1e-9))) if max(a, b) < math.inf else 0.0 for a, b in pairs)


def _between(start: Point, end: Point, log_odds: float) -> Point:
    share = 1 / (1 + math.exp(-log_odds))
    return tuple(1 - share if a == 1 else share if b == 1 else 0.0 for a, b in zip(start, end, strict=True))


def _vertex(portfolio: Portfolio, name: str) -> Point:
    return tuple(1.0 if other == name else 0.0 for other in portfolio.names)


def _with_noise(portfolio: Portfolio, noised: NoisedAverages, worth: Worth, scorer: Scorer | None) -> Curve:
    kind: PointKind = "measured" if scorer is not None else "predicted" if worth.predicted else "interpolated"
    points = tuple(
        FrontierPoint(one.epsilon, one.utility, named(portfolio, one.weights), kind, True, one.noise, one.low, one.high)
        for one in noised.points
    )
    return Curve("noised", "pld", noised.standing, _NOISED, False, points, continuous=True)


def _selection(
    portfolio: Portfolio,
    worth: Worth,
    targets: tuple[float, ...],
    delta: float,
    accounting: Accounting,
    by: MixtureAccountant,
) -> Curve:
    profiles: list[Profile] = []
    standing: Standing = "proved"
    found: list[Optimum | None] = [None] * len(targets)
    why = None
    try:
        for model in portfolio.models:
            known = run_profile(model, accounting.shuffle)
            standing = "conditional" if known.conditional else standing
            profiles.append(known.profile)
        groups = placed_profiles(portfolio.models, accounting.shuffle)
        found = selection_frontier(profiles, worth.linear, targets, delta, replace(accounting, by=by), groups)
    except AccountingError as error:
        why = str(error)
    points = tuple(
        FrontierPoint(epsilon, *((None, None) if best is None else (worth.drawn(best.weights), named(portfolio, best.weights))))
        for epsilon, best in zip(targets, found, strict=True)
    )
    return Curve("selection", by, standing, "random selection", True, points, why)


def _combination(
    portfolio: Portfolio,
    worth: Worth,
    results: dict[Point, Combined],
    account: Account,
    by: MixtureAccountant,
    title: str,
) -> Curve:
    tried: list[tuple[float, float, Point, PointKind]] = []
    for point, result in results.items():
        value, kind = result.score, _MEASURED
        if value is None:
            value = worth.averaged(point)
            kind = "predicted" if worth.predicted else "interpolated" if max(point) < 1 else "given"
        tried.append((result.accounts[account].epsilon[by], value, point, kind))
    best = -math.inf
    points = []
    for epsilon, value, point, kind in sorted(tried, key=lambda one: (one[0], -one[1])):
        better = math.isfinite(epsilon) and value > best
        best = value if better else best
        points.append(FrontierPoint(epsilon, value, named(portfolio, point), kind, better))
    conditional = any(result.accounts[account].standing == "conditional" for result in results.values())
    standing: Standing = "conditional" if conditional else "proved"
    return Curve("combination", by, standing, title, False, tuple(points))


def _joint(
    portfolio: Portfolio, worth: Worth, delta: float, accounting: Accounting
) -> tuple[JointPoint | None, tuple[str, ...]]:
    """Joint release of all models, and what it assumes."""
    everyone = portfolio.weights({name: 1 / len(portfolio.names) for name in portfolio.names})
    asked = replace(accounting, by="best", assume_smoothness=None)
    try:
        found = asked.guarantee(build("joint", everyone, asked), delta=delta)
    except AccountingError:
        return None, ()
    return JointPoint(found.epsilon, worth.best_merge[0], found.standing), found.assumptions


def _warning(utility: Utilities, joint: JointPoint | None, about: str | None) -> str | None:
    """Warnings: choices that the curves do not cover, and a δ at which guarantees promise little."""
    told = [] if about is None else [about]
    if utility.provenance != "a-priori":
        cost = "which no guarantee covers here" if joint is None else f"ε = {round_up(joint.epsilon)}"
        told.append(
            "The utilities were measured on the private models, so weights read off this picture are a function of them: the "
            f"curves do not cover such a choice; joint release ({cost}) or tempered selection does (theory.md §4)."
        )
    return " ".join(told) or None
