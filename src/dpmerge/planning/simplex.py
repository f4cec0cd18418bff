"""ε over all weights of two or three models: random selection and linear combination, by each accountant."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from dpmerge.errors import AccountingError, TargetError
from dpmerge.jobs import run_all
from dpmerge.notebook import Drawn
from dpmerge.planning.points import (
    Epsilon,
    Mapper,
    combination_points,
    selection_assumptions,
    warned,
)
from dpmerge.profiles import FloatArray, grids_of_accuracy, run_profile
from dpmerge.records import Adjacency, Portfolio
from dpmerge.rules import (
    DEFAULT_ACCOUNTING,
    MIXTURE_ACCOUNTANTS,
    Accounting,
    GridRule,
    Guarantee,
    MixtureAccountant,
    Standing,
    Target,
    assumed_by,
    placed_profiles,
    selection_epsilons,
    selections,
    significant,
)

GRID_RULES: tuple[GridRule, ...] = get_args(GridRule)
Account = Callable[[GridRule, Mapping[str, float]], Guarantee]
_STEPS = {2: 0.02, 3: 0.05}  # 51 points on the edge between two models, 231 in the triangle of three


def simplex_grid(models: int, step: float) -> FloatArray:
    """All weight vectors whose entries are multiples of `step` (a divisor of 1), one a row; each sums to 1.

    >>> simplex_grid(2, 0.5).tolist()
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    """
    cells = round(1 / step) if step > 0 else 0
    if cells < 1 or abs(cells * step - 1) > 1e-9:
        raise TargetError(f"a step of {step} does not divide 1")
    rows = []
    for cuts in itertools.combinations(range(cells + models - 1), models - 1):
        edges = (-1, *cuts, cells + models - 1)
        rows.append([(b - a - 1) / cells for a, b in itertools.pairwise(edges)])
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True)
class Surface:
    """ε at every point of a grid, under one rule by one accountant."""

    rule: str
    by: MixtureAccountant
    standing: Standing
    title: str
    epsilons: list[Epsilon]


@dataclass(frozen=True, repr=False)
class Heatmap(Drawn):
    """ε over the simplex of three models' weights: `points` of the simplex, and ε there in every panel.

    A picture without a `title` says only what it shows. Its colours also reach the ε in `reach`, so that pictures can share
    one scale.
    """

    delta: float
    adjacency: Adjacency
    step: float
    assumptions: dict[str, list[str]]
    models: tuple[str, ...]
    points: list[list[float]]
    panels: tuple[Surface, ...]
    warning: str | None = None
    title: str = ""
    reach: tuple[float, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "heatmap", **asdict(self), "models": list(self.models), "reach": list(self.reach)}

    def __repr__(self) -> str:
        return f"Heatmap of {', '.join(self.models)} at δ = {significant(self.delta)}, {len(self.points)} points"


@dataclass(frozen=True, repr=False)
class Edge(Drawn):
    """ε of merges of two models, by the weight of the second; `targets` are marked in a picture."""

    delta: float
    adjacency: Adjacency
    step: float
    models: tuple[str, ...]
    points: list[list[float]]
    panels: tuple[Surface, ...]
    targets: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return f"Edge from {' to '.join(self.models)} at δ = {significant(self.delta)}, {len(self.points)} points"


def heatmap(
    portfolio: Portfolio,
    *,
    delta: float,
    step: float = 0.05,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    run: Mapper = run_all,
) -> Heatmap:
    """The four pictures of Fig. 2 of "Differentially Private Model Merging": ε at δ under each rule by each accountant.

    Combinations are accounted by what is proved, unless a smoothness is assumed: 0 gives the papers' formula.
    """
    grid = heatmap_grid(portfolio, delta, step)
    selected = _selections(portfolio, grid, delta, accounting, ("rdp", "pld"))
    title = "papers' formula" if accounting.assume_smoothness == 0 else "linear combination"
    combined, assumptions = _combinations(portfolio, grid, delta, accounting, ("rdp", "pld"), title, run)
    drawn = selection_assumptions(portfolio, delta, accounting)
    return Heatmap(
        delta,
        portfolio.adjacency,
        step,
        assumed_by([("random selection", drawn), *((title, texts) for texts in assumptions)]),
        portfolio.names,
        grid.tolist(),
        (*selected, *combined),
        warned(delta, portfolio, accounting),
    )


def heatmap_grid(portfolio: Portfolio, delta: float, step: float) -> FloatArray:
    """The points of the picture; refuses what cannot be drawn, before anything is written or computed."""
    Target(delta=delta)
    if len(portfolio.names) != 3:
        raise TargetError(f"a picture of the simplex needs three models; this portfolio has {len(portfolio.names)}")
    return simplex_grid(3, step)


def edge(
    portfolio: Portfolio,
    *,
    delta: float,
    step: float = 0.02,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    run: Mapper = run_all,
) -> Edge:
    """ε of every merge of two models, by each rule and accountant: the counterpart of `heatmap`, which is for three."""
    Target(delta=delta)
    if len(portfolio.names) != 2:
        raise TargetError(f"a curve over one weight needs two models; this portfolio has {len(portfolio.names)}")
    grid = simplex_grid(2, step)[::-1]
    selected: list[Surface] = []
    for by in MIXTURE_ACCOUNTANTS:
        try:
            selected += _selections(portfolio, grid, delta, accounting, (by,))
        except AccountingError:  # an accountant that does not apply draws nothing
            continue
    combined, _ = _combinations(portfolio, grid, delta, accounting, MIXTURE_ACCOUNTANTS, "linear combination", run)
    panels = tuple(panel for panel in (*selected, *combined) if any(map(math.isfinite, panel.epsilons)))
    if not panels:
        raise AccountingError("no weights have a finite ε")
    return Edge(delta, portfolio.adjacency, step, portfolio.names, grid.tolist(), panels)


def _selections(
    portfolio: Portfolio, grid: FloatArray, delta: float, accounting: Accounting, accountants: Sequence[MixtureAccountant]
) -> list[Surface]:
    runs = [run_profile(model, accounting.shuffle) for model in portfolio.models]
    standing: Standing = "conditional" if any(one.conditional for one in runs) else "proved"
    panels = []
    groups = placed_profiles(portfolio.models, accounting.shuffle)
    for by in accountants:
        placed = [
            ([one for _, own in group for one in own], np.hstack([share * grid for share, _ in group])) for group in groups
        ]
        found = np.max([selection_epsilons(*one, delta, by, accounting.conversion) for one in placed], axis=0)
        panels.append(Surface("selection", by, standing, f"random selection, {by.upper()}", found.tolist()))
    return panels


def _combinations(
    portfolio: Portfolio,
    grid: FloatArray,
    delta: float,
    accounting: Accounting,
    accountants: Sequence[MixtureAccountant],
    title: str,
    run: Mapper,
) -> tuple[list[Surface], list[list[str]]]:
    """A panel for every accountant, and what is assumed at each point."""
    points = [tuple(row) for row in grid.tolist()]
    results = combination_points(portfolio, points, delta, accounting, run, ("proved",), accountants)
    found = [result.accounts["proved"] for result in results]
    standing: Standing = "conditional" if any(one.standing == "conditional" for one in found) else "proved"
    panels = [
        Surface("combination", by, standing, f"{title}, {by.upper()}", [one.epsilon[by] for one in found]) for by in accountants
    ]
    return panels, [one.assumptions for one in found]


class Landscape:
    """ε on a grid over the weights of two or three models, coarse points first. Nothing is interpolated between the points.

    With `twice` every point is asked for a quick bound first, and again when all have one: some theorems take long.
    """

    def __init__(self, portfolio: Portfolio, models: tuple[str, ...], twice: bool = False) -> None:
        for name in models:
            portfolio.weights({name: 1.0})  # refuses a name that is not in the portfolio
        if len(set(models)) != len(models) or len(models) not in _STEPS:
            raise TargetError(f"a picture of weights needs two or three different models, not {len(models)}")
        self.models, self._portfolio = models, portfolio
        self.step = _STEPS[len(models)]
        self.points: list[list[float]] = simplex_grid(len(models), self.step).tolist()
        cells = round(1 / self.step)
        coarseness = [math.gcd(*(round(weight * cells) for weight in point)) for point in self.points]
        self.order = sorted(range(len(self.points)), key=coarseness.__getitem__, reverse=True)
        # By the point's index; None where the rule is refused.
        self.found: dict[GridRule, dict[int, Guarantee | None]] = {rule: {} for rule in GRID_RULES}
        self.done, self.total = 0, len(GRID_RULES) * len(self.points) * (1 + twice)

    @property
    def in_view(self) -> bool:
        """Whether every point has an answer."""
        return all(len(known) == len(self.points) for known in self.found.values())

    def draw(self, delta: float, accounting: Accounting) -> list[Guarantee]:
        """Account random selection at every point at once, by loss distributions; not at all where these do not apply."""
        draws = [self._portfolio.weights(self._named(point)) for point in self.points]
        try:
            with grids_of_accuracy(accounting.accuracy):
                found = selections(draws, delta, accounting.shuffle)
        except AccountingError:
            return []
        self.found["selection"].update(enumerate(found))
        self.done = len(self.points)
        return found

    def _named(self, point: Sequence[float]) -> dict[str, float]:
        return {name: weight for name, weight in zip(self.models, point, strict=True) if weight > 0}

    def advance(self, account: Account) -> tuple[GridRule, Guarantee | None]:
        """Account one more point: the quick rule first, and last where all are asked again, because it gains least.

        It counts once it is known: others read meanwhile, and ask no more when all are done.
        """
        place, at = divmod(self.done, len(self.points))
        rule = (*GRID_RULES, *reversed(GRID_RULES))[place]
        known, index = self.found[rule], self.order[at]
        try:
            known[index] = account(rule, self._named(self.points[index]))
        except AccountingError:
            known[index] = None
        self.done += 1
        return rule, known[index]
