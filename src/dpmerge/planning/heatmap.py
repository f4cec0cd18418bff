"""ε over the simplex of three models' weights: random selection and linear combination, by Rényi and loss distributions."""

from __future__ import annotations

from typing import Any

from dpmerge.errors import TargetError
from dpmerge.jobs import run_all
from dpmerge.planning.points import Accountant, Accounting, Mapper, assumed_by, combination_points, selection_assumptions
from dpmerge.planning.simplex import simplex_grid
from dpmerge.profiles import FloatArray, run_profile
from dpmerge.records import Portfolio
from dpmerge.rules import Target, about_delta, selection_epsilons


def heatmap(portfolio: Portfolio, *, accounting: Accounting, step: float = 0.05, run: Mapper = run_all) -> dict[str, Any]:
    """The four pictures of M1 Fig. 2 as plain data: points of the simplex, and ε at δ there under each rule and accountant.

    Combinations are accounted by what is proved, unless a smoothness is assumed: 0 gives the papers' formula.
    """
    grid = heatmap_grid(portfolio, accounting, step)
    profiles = [run_profile(model, accounting.shuffle) for model in portfolio.models]
    assumed = any(profile.conditional for profile in profiles)
    accountants: tuple[Accountant, Accountant] = ("rdp", "pld")
    panels = []
    for by in accountants:
        found = selection_epsilons([run.profile for run in profiles], grid, accounting.delta, by, accounting.conversion)
        panels.append(_panel("selection", "random selection", by, assumed, found.tolist()))
    points = combination_points(portfolio, [tuple(row) for row in grid.tolist()], accounting, run, ("proved",), accountants)
    formula = accounting.assume_smoothness == 0
    title = "papers' formula" if formula else "linear combination"
    conditional = any(point["proved"]["standing"] == "conditional" for point in points)
    for by in accountants:
        panels.append(_panel("combination", title, by, conditional, [point["proved"][by] for point in points]))
    return {
        "kind": "heatmap",
        "delta": accounting.delta,
        "adjacency": portfolio.adjacency,
        "step": step,
        "assumptions": assumed_by(
            [("random selection", selection_assumptions(portfolio, accounting))]
            + [(title, point["proved"]["assumptions"]) for point in points]
        ),
        "models": list(portfolio.names),
        "points": grid.tolist(),
        "panels": panels,
        "warning": " ".join(f"{text}." for text in about_delta(accounting.delta, portfolio.models, accounting.shuffle)) or None,
    }


def heatmap_grid(portfolio: Portfolio, accounting: Accounting, step: float) -> FloatArray:
    """The points of the picture; refuses what cannot be drawn, before anything is written or computed."""
    Target(delta=accounting.delta)
    if len(portfolio.names) != 3:
        raise TargetError(f"a picture of the simplex needs three models; this portfolio has {len(portfolio.names)}")
    return simplex_grid(3, step)


def _panel(rule: str, title: str, by: Accountant, conditional: bool, epsilons: list[float]) -> dict[str, Any]:
    return {
        "rule": rule,
        "by": by,
        "standing": "conditional" if conditional else "proved",
        "title": f"{title}, {by.upper()}",
        "epsilons": epsilons,
    }
