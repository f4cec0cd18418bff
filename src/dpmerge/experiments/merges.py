"""Models that were merged and measured, beside what every rule guarantees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpmerge.experiments.results import Options
from dpmerge.jobs import run_all
from dpmerge.records import Portfolio
from dpmerge.rules import Combination, Joint, Selection
from dpmerge.weights.frontier import frontier
from dpmerge.weights.points import Accounting, Point

DELTA = 1e-5
CHOSEN_BY_TEST = "weights in this picture are chosen by test accuracy of the private models: only joint release covers that"


@dataclass(frozen=True)
class Measured:
    """The accuracies that were measured where the models were trained, as a scorer."""

    known: Mapping[Point, float]
    fingerprint: str

    def __call__(self, weights: Point) -> float:
        """The accuracy of this average."""
        return self.known[weights]


def alone(portfolio: Portfolio, known: Mapping[Point, float]) -> dict[str, Any]:
    """Each model by itself: ε by loss distributions, by Rényi divergences (tight, and converted as the papers do), accuracy."""
    found = {}
    for index, name in enumerate(portfolio.names):
        rule = Joint(portfolio.weights({name: 1.0}))
        found[name] = {
            "pld": rule.guarantee(delta=DELTA, by="pld").epsilon,
            "rdp": rule.guarantee(delta=DELTA, by="rdp").epsilon,
            "rdp, papers' conversion": rule.guarantee(delta=DELTA, by="rdp", conversion="paper").epsilon,
            "test accuracy": known[tuple(float(other == index) for other in range(len(portfolio.names)))],
        }
    return found


def side_by_side(portfolio: Portfolio, known: Mapping[Point, float], jobs: int = -1) -> list[dict[str, Any]]:
    """Every average that was measured: proved, papers' formula, random selection with the same weights, joint release."""
    points = [point for point in known if max(point) < 1]
    return run_all(partial(_row, portfolio, dict(known)), points, jobs=jobs)


def _row(portfolio: Portfolio, known: Mapping[Point, float], point: Point) -> dict[str, Any]:
    weights = portfolio.weights_in_order(point)
    corners = [tuple(float(other == index) for other in range(len(point))) for index in range(len(point))]
    return {
        "weights": list(point),
        "test accuracy": known[point],
        "mean test accuracy of a drawn model": float(np.dot(point, [known[corner] for corner in corners])),
        "linear combination, proved": Combination(weights).guarantee(delta=DELTA).epsilon,
        "linear combination, papers' formula": Combination(weights, 0.0).guarantee(delta=DELTA).epsilon,
        "random selection": Selection(weights).guarantee(delta=DELTA).epsilon,
        "joint release": Joint(weights).guarantee(delta=DELTA).epsilon,
    }


def measured_frontier(
    portfolio: Portfolio, known: Mapping[Point, float], epsilons: Sequence[float], source: str, options: Options
) -> dict[str, Any]:
    """The frontier through the points that were measured, labelled with who chose."""

    def run(function: Any, items: Sequence[Any], *, keys: Sequence[str]) -> list[Any]:
        return run_all(function, items, jobs=options.jobs, progress=options.bar("averages"))

    drawn = frontier(
        portfolio,
        accounting=Accounting(DELTA),
        epsilons=list(epsilons),
        scorer=Measured(dict(known), source),
        points=list(known),
        run=run,
    )
    return {**drawn, "utility_label": "test accuracy", "utilities_source": source, "warning": CHOSEN_BY_TEST}
