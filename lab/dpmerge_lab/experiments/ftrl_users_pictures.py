"""Pictures of ftrl_users.py: the table, accuracy over the last rounds, and the errors of trees and banded matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge_lab.experiments import aggregation_mnist_pictures
from dpmerge_lab.experiments.aggregation import LAST
from dpmerge_lab.experiments.aggregation_mnist_pictures import FREE, LABELS
from dpmerge_lab.experiments.aggregation_scores import CHOSEN
from dpmerge_lab.experiments.results import around, error_bars

OWN_RATE = f"{CHOSEN}, at a rate chosen for it"
COLUMNS = (*aggregation_mnist_pictures.COLUMNS, OWN_RATE)
_NAMES = {**aggregation_mnist_pictures.NAMES, OWN_RATE: "the same at its own rate"}

# Recycling Scraps, Table 2: test accuracy on StackOverflow in percent, mean of five runs; its EMA_tr and UTA_tr have inference
# aggregation on top (§4.2.1).
_COLUMNS = ("No Agg", "EMA tr + inf", "UTA tr + inf", "EMA baseline", "EMA inf", "UTA inf", "OPA", "OMV")
PAPER = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "epsinf": (25.24, 25.72, 25.98, 25.71, 25.79, 25.81, 25.79, 25.78),
        "eps18.9": (23.41, 23.56, 23.90, 23.55, 23.63, 23.84, 23.60, 23.57),
        "eps8.2": (22.28, 22.43, 22.74, 22.42, 22.54, 22.70, 22.57, 22.52),
        "shifting-epsinf": (23.89, 23.97, 24.26, 23.86, 23.92, 23.98, 23.87, 23.91),
        "shifting-eps18.9": (21.60, 21.90, 22.17, 21.80, 21.82, 22.04, 21.99, 21.95),
        "shifting-eps8.2": (20.24, 20.37, 20.81, 20.36, 20.36, 20.75, 20.67, 20.72),
    }.items()
}
ERRORS = "root mean squared error of prefix sums at μ = 1"


def pictures(numbers: Mapping[str, Any], data: str, runs: int) -> dict[str, Mapping[str, Any]]:
    """By name."""
    one = {"kind": "lines", "subtitle": f"users made of {data} images, δ = 1e-6, mean of {runs} runs each"}
    return {
        "table": {**one, **_table(numbers)},
        "rounds": {**one, **_over_rounds(numbers, shifting=False)},
        "rounds-shifting": {**one, **_over_rounds(numbers, shifting=True)},
        "errors": {"kind": "lines", **_errors(numbers[ERRORS])},
    }


def _title(name: str) -> str:
    epsilon = name.removeprefix("shifting-").removesuffix("-banded").removeprefix("eps").replace("inf", "∞")
    return f"{'even and odd in turns, ' if 'shifting' in name else ''}ε = {epsilon}"


def _table(numbers: Mapping[str, Any]) -> dict[str, Any]:
    panels = []
    for name in PAPER:
        lines = [{"label": "noise of a tree" if numbers[name]["noise multiplier"] else "no noise", **_cells(numbers[name])}]
        if f"{name}-banded" in numbers:
            lines.append({"label": "noise of a banded matrix", **_cells(numbers[f"{name}-banded"])})
        names = [_NAMES.get(column, column) for column in COLUMNS]
        axes = {"x_label": "aggregation", "y_label": "test accuracy", "categories": names}
        panels.append({"title": _title(name), **axes, "lines": lines})
    return {
        "title": "The last iterate of DP-FTRL and its aggregates",
        "caption": f"{FREE} Bars are ± one standard error. The server's learning rate is the best for the last iterate, in "
        "the last column the best for what stands there; EMA tr and UTA tr have rates of their own.",
        "panels": panels,
    }


def _cells(found: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table; a banded one has no training on aggregates."""
    shown = found["test accuracy"]
    places = [place for place, column in enumerate(COLUMNS) if column in shown]
    return {**error_bars([shown[COLUMNS[place]] for place in places]), "x": places}


def _over_rounds(numbers: Mapping[str, Any], shifting: bool) -> dict[str, Any]:
    panels = []
    for name in (*PAPER, *(f"{name}-banded" for name in PAPER)):
        if name in numbers and name.startswith("shifting") == shifting:
            kept = numbers[name]["test accuracy over the rounds"]
            shown = {method: label for method, label in LABELS.items() if method in kept}
            lines = [_line(label, numbers[name], method, method == LAST and not shifting) for method, label in shown.items()]
            title = f"{_title(name.removeprefix('shifting-'))}{', banded matrix' if name.endswith('banded') else ''}"
            panels.append({"title": title, "x_label": "rounds", "y_label": "test accuracy", "lines": lines})
    return {
        "title": f"The last rounds of DP-FTRL{', even and odd digits in turns' if shifting else ''}",
        "caption": f"{FREE} {'' if shifting else 'The band is ± one standard error of the mean. '}Averages have the "
        "parameters that each run's validation half chose at its end.",
        "panels": panels,
    }


def _line(label: str, found: Mapping[str, Any], method: str, with_band: bool) -> dict[str, Any]:
    history = found["test accuracy over the rounds"][method]
    errors = [std / history["runs"] ** 0.5 for std in history["std"]]
    heights = around(history["mean"], errors) if with_band else {"y": history["mean"]}
    return {"label": label, "x": found["rounds"], **heights, "standing": "measured", "markers": False}


def _errors(errors: Mapping[str, float]) -> dict[str, Any]:
    bands = {int(name.split()[0]): error for name, error in errors.items() if name.endswith("bands")}
    ends: Sequence[int] = [min(bands), max(bands)]
    lines: list[dict[str, Any]] = [
        {"label": "banded matrix", "x": list(bands), "y": list(bands.values()), "standing": "measured", "markers": True},
        *(
            {"label": name, "x": ends, "y": [errors[name]] * 2, "standing": "reference"}
            for name in ("tree", "tree, variance reduced")
        ),
    ]
    return {
        "title": "Noise of prefix sums at the same price",
        "subtitle": "root mean squared error over all rounds, 1-GDP for users of clip 1",
        "caption": "The tree is restarted with every pass over the users. One band is independent noise in every round.",
        "x_label": "bands",
        "x_scale": "log",
        "y_label": "root mean squared error",
        "lines": lines,
    }
