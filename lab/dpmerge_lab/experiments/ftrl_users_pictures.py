"""Pictures of ftrl_users.py: the table, accuracy over the last rounds, and the errors of trees and banded matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
_FREE = "An aggregate of iterates costs nothing beyond the run itself."


def pictures(numbers: Mapping[str, Any], data: str, runs: int) -> dict[str, Mapping[str, Any]]:
    """By name."""
    one = {"kind": "lines", "subtitle": f"users made of {data} images, δ = 1e-6, mean of {runs} runs each"}
    return {
        "table": {**one, **_table(numbers)},
        "rounds": {**one, **_over_rounds(numbers)},
        "errors": {"kind": "lines", **_errors(numbers[ERRORS])},
    }


def _title(name: str) -> str:
    epsilon = name.removeprefix("shifting-").removesuffix("-banded").removeprefix("eps").replace("inf", "∞")
    return f"{'even and odd in turns, ' if 'shifting' in name else ''}ε = {epsilon}"


def _table(numbers: Mapping[str, Any]) -> dict[str, Any]:
    panels = []
    for name, paper in PAPER.items():
        gains = numbers[name]["gain over no aggregation"]
        places, means = list(range(len(gains))), [100 * gain["mean"] for gain in gains.values()]
        around = [200 * (gain["standard error"] or 0.0) for gain in gains.values()]
        known = [place for place, method in zip(places, gains, strict=True) if method in paper]
        lines = [
            {
                "label": "measured here, ± two standard errors",
                "x": places,
                "y": means,
                "low": [mean - width for mean, width in zip(means, around, strict=True)],
                "high": [mean + width for mean, width in zip(means, around, strict=True)],
                "standing": "measured",
                "joined": False,
            },
            {
                "label": "the paper, on StackOverflow",
                "x": known,
                "y": [paper[method] - paper["No Agg"] for method in gains if method in paper],
                "standing": "reference",
                "joined": False,
            },
        ]
        axes = {"x_label": "aggregation", "y_label": "gain, percent points", "categories": list(gains)}
        panels.append({"title": _title(name), **axes, "lines": lines})
    return {"title": "What each aggregation gains over the last iterate of DP-FTRL", "caption": _FREE, "panels": panels}


def _over_rounds(numbers: Mapping[str, Any]) -> dict[str, Any]:
    labels = {"No Agg": "last iterate", "EMA inf": "EMA of the iterates", "UTA tr": "training on the UTA"}
    panels = []
    for name in PAPER:
        found = numbers[name]
        lines = [_line(label, found, method) for method, label in labels.items()]
        if f"{name}-banded" in numbers:
            lines.append(_line("last iterate, banded matrix", numbers[f"{name}-banded"], "No Agg"))
        panels.append({"title": _title(name), "x_label": "rounds", "y_label": "test accuracy", "lines": lines})
    return {
        "title": "Iterates of DP-FTRL and their aggregates over the last rounds",
        "caption": f"{_FREE} Bands are ± one standard deviation of a single run.",
        "panels": panels,
    }


def _line(label: str, found: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Every third round: more cannot be seen."""
    history = {key: values[::3] for key, values in found["test accuracy over the rounds"][method].items() if key != "runs"}
    low, high = ([mean + sign * std for mean, std in zip(history["mean"], history["std"], strict=True)] for sign in (-1, 1))
    return {"label": label, "x": found["rounds"][::3], "y": history["mean"], "low": low, "high": high, "standing": "measured"}


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
