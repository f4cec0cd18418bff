"""The report: the explorer's tables and figures as one document. Needs no server."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dpmerge
from dpmerge.errors import AccountingError
from dpmerge.explorer.plans import PLANNED
from dpmerge.explorer.portfolio_state import PortfolioState
from dpmerge.explorer.releases import Releases
from dpmerge.explorer.telling import plan_answer
from dpmerge.figures import describe
from dpmerge.planning import Mapper, Plan, Utilities, edge, frontier, heatmap, simplex_grid
from dpmerge.records import Portfolio
from dpmerge.rules import DEFAULT_ACCOUNTING, GLOSSARY, Accounting, Target, about_delta, round_down, significant

_ON_THE_FRONTIER = 100  # additional targets at which random selection is solved
_GIVEN = "These targets were requested."
_OUR_OWN = (
    "No targets were requested. These are half of the smallest ε of a single model, rounded down; the largest such ε, rounded "
    "up; and their midpoint on a logarithmic scale."
)
_NO_FINITE = "No targets were requested, and no model has a finite ε: these are round numbers."
_LOOKED = (
    "The utilities on this page were measured on the private models, and weights were chosen by them. Both depend on the "
    "private data, and no guarantee on this page covers them: share it only with people who may see the models."
)


@dataclass(frozen=True)
class ReportScope:
    """The report's targets (default: chosen from the models) and the resolution of its figures."""

    delta: float
    epsilons: tuple[float, ...] = ()
    points: int | None = None
    step: float = 0.05

    def __post_init__(self) -> None:
        Target(delta=self.delta)
        for epsilon in self.epsilons:
            Target(epsilon=epsilon)
        simplex_grid(1, self.step)  # raises if the step does not divide 1


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
        portfolio,
        epsilon=0.0,
        delta=asked.delta,
        utility=utility,
        rules=PLANNED,
        accounting=accounting,
        search=(),
        ledger=ledger,
    )
    targets, chosen = _targets(asked.epsilons, known)
    plans = []
    for epsilon in targets:
        progress(f"plans for ε = {epsilon:g}")
        plans.append(plan_answer(known.at(epsilon)))
    drawn = frontier(
        portfolio,
        delta=asked.delta,
        accounting=accounting,
        epsilons=[*targets, *known.targets(_ON_THE_FRONTIER, around=targets)],
        utility=known.question.utility,
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
        "aloud": [f"For ε = {plans[len(plans) // 2]['target']['epsilon']:g}:", *plans[len(plans) // 2]["aloud"]],
        "glossary": GLOSSARY,
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
    """The budget, what still fits, and every entry, with names instead of paths."""
    releases = Releases(state, Path(os.devnull), ledger)  # no folder: a report releases nothing
    return {"budget": releases.budget(), "entries": releases.listing()["entries"]}


def _targets(given: Sequence[float], known: Plan) -> tuple[list[float], str]:
    """The report's targets in increasing order, and how they were chosen."""
    if given:
        return sorted(set(given)), _GIVEN
    smallest, largest = known.span()
    low, high = round_down(smallest, 2), float(significant(largest, 3))
    return sorted({low, round_down(math.sqrt(low * high), 2), high}), _OUR_OWN if known.question.finite_alone else _NO_FINITE


def _weights(
    portfolio: Portfolio, asked: ReportScope, accounting: Accounting, targets: Sequence[float], run: Mapper
) -> dict[str, Any]:
    """A figure of ε over all weights of two or three models, or the reason why there is none."""
    how: dict[str, Any] = {"delta": asked.delta, "step": asked.step, "accounting": accounting, "run": run}
    try:
        if len(portfolio.names) == 2:
            picture = describe(replace(edge(portfolio, **how), targets=tuple(targets))).as_dict()
        elif len(portfolio.names) == 3:
            picture = heatmap(portfolio, **how).as_dict()
        else:
            raise AccountingError(_no_picture(len(portfolio.names)))
    except AccountingError as error:
        return {"picture": None, "why": f"No figure of ε over all weights: {error}."}
    return {"picture": picture, "why": None}


def _no_picture(models: int) -> str:
    return "one model has no weights to choose" if models == 1 else f"the weights of {models} models cannot be drawn in a plane"
