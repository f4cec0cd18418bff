"""The explorer's pictures as one document: what `dpmerge report` writes as a page to send to someone. Needs no server."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dpmerge
from dpmerge.errors import AccountingError
from dpmerge.explorer.portfolio_state import PortfolioState
from dpmerge.explorer.releases import Releases
from dpmerge.explorer.wording import option_words
from dpmerge.files import finite_or_null
from dpmerge.planning import Mapper, Option, OptionRule, Plan, Utilities, edge, frontier, heatmap, simplex_grid
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, Target, about_delta, round_down, significant

_RULES: tuple[OptionRule, ...] = ("single", "selection", "combination", "joint")
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
class Question:
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
    asked: Question,
    *,
    run: Mapper,
    utility: Utilities | None = None,
    shuffle: dpmerge.ShuffleAsPoisson | None = None,
    ledger: str | None = None,
    progress: Callable[[str], None] = lambda label: None,
) -> dict[str, Any]:
    """The whole report as plain data (docs/report.md describes it); infinities are null."""
    state = PortfolioState(portfolio, utility, shuffle)
    opened = None if ledger is None else _ledger(state, ledger)
    progress("each model alone")
    cards = state.models(asked.delta)
    alone = _alone(cards)
    targets, chosen = _targets(asked.epsilons, alone)
    accounting = Accounting(shuffle=shuffle, any_delta=True)  # whoever asks the question was asked for it
    plans = []
    for epsilon in targets:
        progress(f"plans for ε = {epsilon:g}")
        plans.append(
            dpmerge.plan(
                portfolio,
                epsilon=epsilon,
                delta=asked.delta,
                utility=utility,
                rules=_RULES,
                accounting=accounting,
            )
        )
    known = plans[0]
    by_privacy = Utilities(tuple(known.utilities[name] for name in portfolio.names), "a-priori", known.source)
    drawn = frontier(
        portfolio,
        delta=asked.delta,
        accounting=accounting,
        epsilons=_axis(targets, alone),
        utility=utility or by_privacy,
        edge_points=asked.points,
        run=run,
        progress=progress,
    )
    about = about_delta(asked.delta, portfolio.models)
    looked = () if known.provenance == "a-priori" else (_LOOKED,)
    progress("all weights")
    found: dict[str, Any] = finite_or_null(
        {
            "kind": "report",
            "version": dpmerge.__version__,
            "dataset": portfolio.models[0].record.dataset,
            "adjacency": portfolio.adjacency,
            "delta": asked.delta,
            "provenance": known.provenance,
            "utilities_source": known.source,
            "warning": " ".join([*(f"{text}." for text in about), *looked]) or None,
            "models": [{**card, "utility": known.utilities[card["name"]]} for card in cards],
            "targets_chosen": chosen,
            "plans": [_plan(portfolio, plan) for plan in plans],
            "frontier": {**drawn.as_dict(), "targets": [epsilon for epsilon in targets if epsilon > 0]},
            "weights": _weights(portfolio, asked.delta, accounting, targets, asked.step, run),
            "ledger": opened,
        }
    )
    progress("")
    return found


def _ledger(state: PortfolioState, ledger: str) -> dict[str, Any]:
    """The budget, what of it is left for this portfolio, and every entry: names, no paths."""
    releases = Releases(state, Path(os.devnull), ledger)  # there is no folder of releases here, and nothing is released
    return {"budget": releases.budget(), "entries": releases.history()}


def _alone(cards: Sequence[dict[str, Any]]) -> list[float]:
    """The finite ε of the models alone, each by the accountant that gives less."""
    known = [[epsilon for epsilon in card["epsilon"].values() if epsilon is not None] for card in cards]
    smallest = [min(epsilons) for epsilons in known if epsilons]
    return [epsilon for epsilon in smallest if 0 < epsilon < math.inf]


def _targets(given: Sequence[float], alone: Sequence[float]) -> tuple[list[float], str]:
    """The targets of the report from small to large, and who chose them."""
    if given:
        return sorted(set(given)), _GIVEN
    if not alone:
        return [0.1, 1.0, 10.0], _NO_FINITE
    low, high = round_down(0.5 * min(alone), 2), float(significant(max(alone), 3))
    return sorted({low, round_down(math.sqrt(low * high), 2), high}), _OUR_OWN


def _axis(targets: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Where random selection is solved: evenly in log ε over all that is of interest, and at the targets themselves."""
    shown = [epsilon for epsilon in (*targets, *alone, *(0.5 * epsilon for epsilon in alone)) if epsilon > 0] or [0.1, 10.0]
    low, high = min(shown), max(shown)
    return [*targets, *(low * (high / low) ** (k / (_ON_THE_FRONTIER - 1)) for k in range(_ON_THE_FRONTIER))]


# --- plans ------------------------------------------------------------------------------------------------------------------


def _plan(portfolio: Portfolio, plan: Plan) -> dict[str, Any]:
    return {"epsilon": plan.epsilon, "delta": plan.delta, "options": [_option(portfolio, one) for one in plan.options]}


def _option(portfolio: Portfolio, option: Option) -> dict[str, Any]:
    return {**option.as_dict(), **option_words(option)}


# --- ε over all weights -----------------------------------------------------------------------------------------------------


def _weights(
    portfolio: Portfolio, delta: float, accounting: Accounting, targets: Sequence[float], step: float, run: Mapper
) -> dict[str, Any]:
    """A picture of ε over all weights of two or three models, or why there is none."""
    count = len(portfolio.names)
    if count not in (2, 3):
        there_are = "one model has no weights to choose" if count == 1 else f"the weights of {count} models do not fit a plane"
        return {"picture": None, "why": f"There is no picture of ε over all weights: {there_are}."}
    try:
        if count == 3:
            found = heatmap(portfolio, delta=delta, step=step, accounting=accounting, run=run)
            return {"picture": found.as_dict(), "why": None}
        picture = edge(portfolio, delta=delta, step=step, accounting=accounting, run=run).as_dict()
    except AccountingError as error:
        return {"picture": None, "why": f"There is no picture of ε over all weights: {error}."}
    marked = [
        {"label": f"target ε = {epsilon:g}", "standing": "reference", "x": [0.0, 1.0], "y": [epsilon, epsilon]}
        for epsilon in targets
    ]
    return {"picture": {**picture, "lines": [*picture["lines"], *marked]}, "why": None}
