"""How often intervals hold what they are for: over the separation of checkpoints, and for one price, with their widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpmerge_lab.experiments.results import around

COUNTS = (5, 10)
MEAN, LAST, RUNS = "mean of the checkpoints", "last checkpoint", "mean of independent runs"
EVERY, SHORT = "mean of all checkpoints after the burn-in", "mean of independent runs of its length"
ONE = "for the privacy of one run"  # where results have these two
SOLUTION, TRUTH = "least squares solution", "truth behind the data"
SLOW, FAST, PREDICTION = "slowest direction", "fastest direction", "a prediction"
_LEVEL = "0.95"
_BARS = "Bars: ± one binomial standard error."
Numbers = Mapping[str, Mapping[str, Any]]


def pictures(numbers: Numbers) -> dict[str, Mapping[str, Any]]:
    """At 95 %."""
    return {"coverage": _apart(numbers), "price": _for_one_price(numbers)}


def _apart(numbers: Numbers) -> dict[str, Any]:
    """From ten checkpoints so many steps apart, and from ten independent runs."""
    panels = []
    for name, found in numbers.items():
        lines: list[dict[str, Any]] = []
        for direction in (SLOW, FAST):
            own = [row for row in found["rows"] if (row["direction"], row["k"]) == (direction, COUNTS[-1])]
            apart = [row for row in own if MEAN in row]
            means = [row[MEAN] for row in apart] + [row[RUNS] for row in own if RUNS in row]
            lines.append(_held(f"around the mean, {direction}", means))
            lines.append(_held(f"around the last checkpoint, {direction}", [row[LAST] for row in apart]))
        names = [f"{row['separation']} step{'s' * (row['separation'] > 1)} apart" for row in apart] + ["independent runs"]
        axes = {"x_label": "checkpoints", "y_label": "coverage of the solution", "categories": names}
        panels.append({"title": f"{name}: {found['runs']} runs", **axes, "lines": [*lines, _nominal(len(names))]})
    return {
        "kind": "lines",
        "title": "Intervals at 95 % from ten checkpoints of one private linear regression",
        "subtitle": "how often they hold the least squares solution, and those from ten independent runs",
        "caption": f"{_BARS} Directions are eigenvectors of the curvature.",
        "panels": panels,
    }


def _for_one_price(numbers: Numbers) -> dict[str, Any]:
    """From ten runs of the burn-in's length, and from all checkpoints of one run as long as they are together."""
    names, ways = [], dict[str, list[Mapping[str, Any]]]()
    for name, found in numbers.items():
        for row in found[ONE]:
            if row["direction"] != SLOW:
                continue
            if SHORT in row:
                names.append(f"{name}, {row['burn-in']}")
            label = "ten runs" if SHORT in row else f"checkpoints {row['separation']} steps apart"
            if row.get("separation", 20) >= 20:  # nearer ones hold too little
                ways.setdefault(label, []).append(row.get(SHORT, row.get(EVERY)))
    of_runs = [one[_LEVEL]["mean width"] for one in ways["ten runs"]]
    ratios = [
        {
            "label": label,
            "x": list(range(len(names))),
            "y": [one[_LEVEL]["mean width"] / width for one, width in zip(found, of_runs, strict=True)],
            "standing": "measured",
            "joined": False,
        }
        for label, found in ways.items()
    ]
    axes = {"x_label": "regression, and steps of the burn-in", "categories": names}
    lines = [*(_held(label, found) for label, found in ways.items()), _nominal(len(names))]
    return {
        "kind": "lines",
        "title": "Intervals at 95 % for the privacy of one run",
        "subtitle": f"of a private linear regression, {SLOW}: ten runs as long as the burn-in, or all checkpoints after it",
        "caption": _BARS,
        "panels": [
            {"title": "what they hold", "y_label": "coverage of the solution", **axes, "lines": lines},
            {"title": "how wide they are", "y_label": "mean width over that from ten runs", **axes, "lines": ratios},
        ],
    }


def _nominal(count: int) -> dict[str, Any]:
    return {"label": "nominal", "x": list(range(count)), "y": [float(_LEVEL)] * count, "standing": "reference"}


def _held(label: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    held = [one[_LEVEL][SOLUTION] for one in found]
    heights = around([one["share"] for one in held], [one["error"] for one in held])
    return {"label": label, "x": list(range(len(held))), **heights, "standing": "measured", "joined": False}
