"""ε over the edge between two models: random selection and linear combination against the weight of the second."""

from __future__ import annotations

import math
from typing import Any

from dpmerge.errors import AccountingError, TargetError
from dpmerge.jobs import run_all
from dpmerge.planning.points import ACCOUNTANTS, Accounting, Mapper, combination_points
from dpmerge.planning.simplex import simplex_grid
from dpmerge.profiles import run_profile
from dpmerge.records import Portfolio
from dpmerge.rules import Target, selection_epsilons, significant


def edge(portfolio: Portfolio, *, accounting: Accounting, step: float = 0.02, run: Mapper = run_all) -> dict[str, Any]:
    """ε of every merge of two models as lines, by each rule and accountant; what `heatmap` is for three."""
    Target(delta=accounting.delta)
    if len(portfolio.names) != 2:
        raise TargetError(f"a curve over one weight needs two models; this portfolio has {len(portfolio.names)}")
    first, second = portfolio.names
    grid = simplex_grid(2, step)[::-1]
    runs = [run_profile(model, accounting.shuffle) for model in portfolio.models]
    points = combination_points(portfolio, [tuple(row) for row in grid.tolist()], accounting, run, ("proved",))
    combined = [point["proved"] for point in points]
    assumed = any(one.conditional for one in runs)
    conditional = any(point["standing"] == "conditional" for point in combined)
    lines = []
    for by in ACCOUNTANTS:
        try:
            selected = selection_epsilons([one.profile for one in runs], grid, accounting.delta, by, accounting.conversion)
            lines.append(_line("selection", "random selection", by, assumed, grid[:, 1].tolist(), selected.tolist()))
        except AccountingError:  # an accountant that does not apply draws nothing
            continue
    for by in ACCOUNTANTS:
        epsilons = [point[by] for point in combined]
        lines.append(_line("combination", "linear combination", by, conditional, grid[:, 1].tolist(), epsilons))
    lines = [line for line in lines if any(math.isfinite(epsilon) for epsilon in line["y"])]
    if not lines:
        raise AccountingError("no weights have a finite ε")
    at = f"δ = {significant(accounting.delta, 4).replace('e-0', 'e-')}"
    return {
        "kind": "lines",
        "title": f"ε of every merge of two models at {at}",
        "subtitle": f"{portfolio.adjacency} neighbours, weights in steps of {step:g}",
        "caption": "A guarantee is known at the markers; the lines between them only guide the eye.",
        "x_label": f"weight of {second}, the rest on {first}",
        "y_label": f"ε at {at}",
        "lines": lines,
    }


def _line(rule: str, title: str, by: str, conditional: bool, shares: list[float], epsilons: list[float]) -> dict[str, Any]:
    return {
        "label": f"{title}, {by.upper()}",
        "rule": rule,
        "by": by,
        "standing": "conditional" if conditional else "proved",
        "x": shares,
        "y": epsilons,
        "markers": True,
    }
