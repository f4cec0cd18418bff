"""The explorer's pictures as one document: what `dpmerge report` writes as a page to send to someone. Needs no server."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dpmerge
from dpmerge.errors import AccountingError
from dpmerge.explorer.ladder import PLANNED
from dpmerge.explorer.portfolio_state import PortfolioState
from dpmerge.explorer.releases import Releases
from dpmerge.explorer.telling import told_plan
from dpmerge.figures import describe
from dpmerge.planning import Mapper, Plan, Utilities, edge, frontier, heatmap, simplex_grid
from dpmerge.records import Portfolio
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Target, about_delta, round_down, significant

_ON_THE_FRONTIER = 100  # targets at which random selection is solved, besides those that are reported
_GIVEN = "These targets were asked for."
_OUR_OWN = (
    "No targets were asked for. These are half of the smallest ε that a model has alone, rounded down; the largest such ε, "
    "rounded up; and the middle between the two on a logarithmic scale."
)
_NO_FINITE = "No targets were asked for, and no model has a finite ε to go by: these are round numbers."
_LOOKED = (
    "The utilities on this page were measured on the private models, and weights were searched by them: both are functions of "
    "those models, and no guarantee on this page covers showing them. It is for those who may see the models themselves."
)


@dataclass(frozen=True)
class ReportScope:
    """What a report is about: targets (none: sensible ones), and how fine the pictures are."""

    delta: float
    epsilons: tuple[float, ...] = ()
    points: int = 25
    step: float = 0.05

    def __post_init__(self) -> None:
        Target(delta=self.delta)
        for epsilon in self.epsilons:
            Target(epsilon=epsilon)
        simplex_grid(1, self.step)  # refuses a step that does not divide 1


def report(
    portfolio: Portfolio,
    asked: ReportScope,
    *,
    run: Mapper,
    utility: Utilities | None = None,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    ledger: str | None = None,
    progress: Callable[[str], None] = lambda label: None,
) -> dict[str, Any]:
    """The whole report as plain data (docs/report.md describes it)."""
    state = PortfolioState(portfolio, utility, accounting)
    opened = None if ledger is None else _ledger(state, ledger)
    progress("each model alone")
    cards = state.models(asked.delta)
    accounting = state.accounting
    known = dpmerge.plan(
        portfolio, epsilon=0.0, delta=asked.delta, utility=utility, rules=PLANNED, accounting=accounting, search=()
    )
    targets, chosen = _targets(asked.epsilons, known)
    plans = []
    for epsilon in targets:
        progress(f"plans for ε = {epsilon:g}")
        plans.append(told_plan(known.at(epsilon)))
    drawn = frontier(
        portfolio,
        delta=asked.delta,
        accounting=accounting,
        epsilons=[*targets, *known.targets(_ON_THE_FRONTIER, around=targets)],
        utility=known.question.shown,
        edge_points=asked.points,
        run=run,
        progress=progress,
    )
    looked = () if known.provenance == "a-priori" else (_LOOKED,)
    warning = " ".join([*(f"{text}." for text in about_delta(asked.delta, portfolio.models)), *looked])
    progress("all weights")
    found = {
        "kind": "report",
        "version": dpmerge.__version__,
        "dataset": portfolio.models[0].record.dataset,
        "adjacency": portfolio.adjacency,
        "delta": asked.delta,
        "provenance": known.provenance,
        "utilities_source": known.source,
        "warning": warning or None,
        "models": [{**card, "utility": known.utilities[card["name"]]} for card in cards],
        "targets_chosen": chosen,
        "plans": [{**plan["target"], "options": plan["options"]} for plan in plans],
        "frontier": replace(drawn, targets=tuple(epsilon for epsilon in targets if epsilon > 0)).as_dict(),
        "weights": _weights(portfolio, asked, accounting, targets, run),
        "ledger": opened,
    }
    progress("")
    return found


def _ledger(state: PortfolioState, ledger: str) -> dict[str, Any]:
    """The budget, what of it is left for this portfolio, and every entry: names, no paths."""
    releases = Releases(state, Path(os.devnull), ledger)  # there is no folder of releases here, and nothing is released
    return {"budget": releases.budget(), "entries": releases.listing()["entries"]}


def _targets(given: Sequence[float], known: Plan) -> tuple[list[float], str]:
    """The targets of the report from small to large, and who chose them."""
    if given:
        return sorted(set(given)), _GIVEN
    smallest, largest = known.span()
    low, high = round_down(smallest, 2), float(significant(largest, 3))
    return sorted({low, round_down(math.sqrt(low * high), 2), high}), _OUR_OWN if known.question.finite_alone else _NO_FINITE


def _weights(
    portfolio: Portfolio, asked: ReportScope, accounting: Accounting, targets: Sequence[float], run: Mapper
) -> dict[str, Any]:
    """A picture of ε over all weights of two or three models, or why there is none."""
    how: dict[str, Any] = {"delta": asked.delta, "step": asked.step, "accounting": accounting, "run": run}
    try:
        if len(portfolio.names) == 2:
            picture = describe(replace(edge(portfolio, **how), targets=tuple(targets))).as_dict()
        elif len(portfolio.names) == 3:
            picture = heatmap(portfolio, **how).as_dict()
        else:
            raise AccountingError(_no_picture(len(portfolio.names)))
    except AccountingError as error:
        return {"picture": None, "why": f"There is no picture of ε over all weights: {error}."}
    return {"picture": picture, "why": None}


def _no_picture(models: int) -> str:
    return "one model has no weights to choose" if models == 1 else f"the weights of {models} models do not fit a plane"
