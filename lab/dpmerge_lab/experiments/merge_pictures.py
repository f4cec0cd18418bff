"""Averages beside draws with the same weights, with bars of standard errors: on names of weights, and each at its ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge_lab.experiments.portfolio_pictures import AVERAGE, DRAW, FORMULA, PROVED, SELECTION
from dpmerge_lab.experiments.portfolios import DELTA
from dpmerge_lab.experiments.results import error_bars

_LOOKS = {AVERAGE: {"rule": "combination", "by": "pld"}, DRAW: {"rule": "selection", "by": "pld"}}
_AXIS = f"ε at δ = {DELTA:g}, by PLD".replace("e-0", "e-")
BARS = "Bars: ± one standard error of the mean."
Row = Mapping[str, Any]
Weights = tuple[float, ...]


def named(weights: Sequence[float]) -> str:
    """As a table has them.

    >>> named((0.1, 0.0, 0.9))
    '(0.1, 0, 0.9)'
    """
    return f"({', '.join(f'{round(weight, 9):g}' for weight in weights)})"


def on_weights(title: str, subtitle: str, groups: Mapping[str, Sequence[Row]], shown: Sequence[Weights]) -> dict[str, Any]:
    """A panel for each portfolio: these weights by name, with what their average and a draw with them score."""
    panels = []
    for group, rows in groups.items():
        found = {tuple(round(weight, 9) for weight in row["weights"].values()): row for row in rows}
        kept = [point for point in shown if point in found]
        lines = [{**error_bars([found[point][key] for point in kept]), "label": key, **look} for key, look in _LOOKS.items()]
        axes = {"x_label": "weights", "y_label": "test accuracy", "categories": [named(point) for point in kept]}
        panels.append({"title": group, **axes, "lines": lines})
    return {"kind": "lines", "title": title, "subtitle": subtitle, "caption": BARS, "panels": panels}


def at_their_epsilon(title: str, subtitle: str, alone: Mapping[str, Row], rows: Sequence[Row]) -> dict[str, Any]:
    """Every average at the ε that is proved and at the papers' formula's, every draw at its own, and the models by name."""
    shown = {
        "average, proved": (AVERAGE, PROVED, {}),
        "average, papers' formula": (AVERAGE, FORMULA, {"standing": "conditional"}),
        "draw, expected": (DRAW, SELECTION, {}),
    }
    lines = []
    for label, (score, account, standing) in shown.items():
        bars = error_bars([row[score] for row in rows])
        lines.append({**bars, "label": label, **_LOOKS[score], **standing, "x": [row[account] for row in rows]})
    marks = [{"name": name, "x": one["epsilon by PLD"], "y": one["test accuracy"]["mean"]} for name, one in alone.items()]
    return {
        "kind": "lines",
        "title": title,
        "subtitle": subtitle,
        "caption": f"{BARS} The weights are a grid: none was chosen by looking at the models.",
        "x_label": _AXIS,
        "x_scale": "log",
        "y_label": "test accuracy",
        "lines": lines,
        "points": marks,
    }
