"""App. H.3 of Differentially Private Model Merging: random selection over checkpoints of one run, one an epoch, on MNIST.

Random selection needs no independence, so it applies (docs/theory.md §2). An average of checkpoints is post-processing of the
run up to the latest one and costs as much as that (§3.1): its accuracy is shown at that ε. The papers do not say with which
of their settings Fig. 6 was made; here it is all three of App. H.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpmerge.rules import Selection
from dpmerge_lab.experiments.mnist import papers
from dpmerge_lab.experiments.portfolio_pictures import frontier_numbers, frontier_panel, frontier_picture
from dpmerge_lab.experiments.portfolios import DELTA, Measured, alone, data_name, grid, measure
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed

EPOCHS = 3


def checkpoints(options: Options) -> Result:
    """Frontiers over the checkpoints of each of the three runs of App. H.1."""
    setting = replace(papers(), epochs=EPOCHS).sized(options)
    with timed(Result("checkpoints", {"mnist": setting.configuration(options)})) as result:
        runs = {
            name: measure(replace(setting, recipes={name: recipe}), grid(options), options, f"{name}: training")
            for name, recipe in setting.recipes.items()
        }
        show(result, "mnist", f"{data_name(options)}: checkpoints of one run", runs, options)
    return result


def show(result: Result, dataset: str, title: str, runs: Mapping[str, Measured], options: Options) -> None:
    """Add the numbers and the picture of one data set: `runs` are three checkpoints each, measured on the grid of weights."""
    panels = {name: over_checkpoints(measured, options, name) for name, measured in runs.items()}
    result.pictures[dataset] = frontier_picture(title, list(panels.values()), options)
    result.numbers[dataset] = {
        name: {
            "alone": alone(measured),
            "random selection": selections(measured),
            "frontier": frontier_numbers(panels[name]),
        }
        for name, measured in runs.items()
    }


def over_checkpoints(measured: Measured, options: Options, title: str) -> dict[str, Any]:
    """The frontier of one run's checkpoints: no formula applies to their averages, and the latest is their joint release."""
    panel = frontier_panel(measured, options, title)
    lines = [line for line in panel["lines"] if "formula" not in line["label"]]
    marks = [point for point in panel["points"] if point["mark"] == "model"]
    return {**panel, "x_scale": "linear", "lines": lines, "points": marks}


def selections(measured: Measured) -> list[dict[str, Any]]:
    """A few draws whose weights are chosen in advance: mostly the first checkpoint, even, mostly the last."""
    rows = []
    for point in ((0.8, 0.1, 0.1), (1 / 3, 1 / 3, 1 / 3), (0.1, 0.1, 0.8)):
        rule = Selection(measured.portfolio.weights_in_order(point))
        rows.append(
            {
                "weights": list(point),
                "epsilon by PLD": rule.guarantee(delta=DELTA, by="pld").epsilon,
                "epsilon by RDP": rule.guarantee(delta=DELTA, by="rdp").epsilon,
                "epsilon by RDP, papers' conversion": rule.guarantee(delta=DELTA, by="rdp", conversion="paper").epsilon,
                "expected test accuracy": mean_and_deviation(measured.drawn(point)),
            }
        )
    return rows
