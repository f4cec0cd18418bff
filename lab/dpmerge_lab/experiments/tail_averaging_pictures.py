"""Excess risks of DP-GD's last iterate and of averages of its iterates, and ratios of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge_lab.experiments.results import around, band

LAST, TAIL = "last iterate", "mean of the last half"
RATIO = f"{LAST} / {TAIL}"  # of their excess risks
Row = Mapping[str, Any]


def pictures(configuration: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Risks at the bound's learning rate and at the best, and ratios of risks."""
    rows, runs = numbers["rows"], configuration["runs"]
    setting = f"ρ = {configuration['ρ']:g}, p = {configuration['dimension']} (worst case: T + 1), unit ball"
    risks = {"risk": _picture(rows, runs, setting, False), "risk-tuned": _picture(rows, runs, setting, True)}
    return {**risks, "ratios": _ratios(rows, runs, setting)}


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By loss, and without noise for themselves."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["loss"] if row["private"] else f"{row['loss']}, no noise", []).append(row)
    return found


def _ratios(rows: Sequence[Row], runs: int, setting: str) -> dict[str, Any]:
    panels = []
    for at, title in (("excess risk", "learning rate D/(G√t)"), ("excess risk at the best", "each at its best of six rates")):
        lines: list[dict[str, Any]] = []
        for label, some in _groups(rows).items():
            found = [row[RATIO][at] for row in some]
            heights = around([one["ratio"] for one in found], [one["standard error"] for one in found])
            lines.append({"label": label, "x": list(range(len(some))), **heights, "standing": "measured", "joined": False})
        sizes = [f"T = {row['T']}" for row in some]
        equal = {"label": "equal risks", "x": list(range(len(sizes))), "y": [1.0] * len(sizes), "standing": "reference"}
        axes = {"x_label": "steps", "y_label": "risk of the last iterate / of the mean of the last half", "categories": sizes}
        panels.append({"title": title, **axes, "lines": [*lines, equal]})
    return {
        "kind": "lines",
        "title": "DP-GD: the last iterate's excess risk over that of the mean of the last half",
        "subtitle": f"{setting}; {runs} runs, without noise one",
        "caption": "Bars: ± one standard error, to first order.",
        "panels": panels,
    }


def _picture(rows: Sequence[Row], runs: int, setting: str, tuned: bool) -> dict[str, Any]:
    panels = []
    for name, some in _groups(rows).items():
        steps = [row["T"] for row in some]
        lines = [_line(way, steps, [row["ways"][way] for row in some], tuned) for way in (LAST, TAIL, "PDA, γ = 3")]
        for way in () if tuned else (LAST, TAIL):
            heights = [row["ways"][way]["its bound"] for row in some]
            lines.append({"label": f"{way}: bound", "x": steps, "y": heights, "standing": "proved"})
        stated = {"label": "L‖C‖√p/(nρ)", "x": steps, "y": [row["L‖C‖√p/(nρ)"] for row in some], "standing": "reference"}
        title = f"{name}: {'one run' if some[0]['ways'][LAST]['excess risk']['runs'] == 1 else f'{runs} runs'}"
        scales = {"x_scale": "log", "y_scale": "log", "x_label": "T = nρ", "y_label": "excess empirical risk"}
        panels.append({"title": title, **scales, "lines": [*lines, stated]})
    rate = "the best of six learning rates for each" if tuned else "learning rate D/(G√t)"
    return {
        "kind": "lines",
        "title": "DP-GD on convex losses: the last iterate and averages (Recycling Scraps, Thm 3.2)",
        "subtitle": f"{setting}, {rate}",
        "caption": "Bands: mean ± one standard error, where there are several runs.",
        "panels": panels,
    }


def _line(way: str, steps: list[int], found: Sequence[Mapping[str, Any]], tuned: bool) -> dict[str, Any]:
    shown = [one["excess risk at the best" if tuned else "excess risk"] for one in found]
    return {"label": way, "x": steps, **band(shown), "standing": "measured", "markers": True}
