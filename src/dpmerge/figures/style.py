"""How things look and what they are called, in every backend: colour says the rule, dashes and markers say it again.

The palette is Okabe and Ito's, which colour-blind readers can tell apart; nothing is told by colour alone. What is
conditional is grey or pale, dotted and hollow, and its label says so.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dpmerge.rules import significant

INK = "#1A1A1A"
QUIET = "#5A5A5A"
GRID = "#DDDDDD"
ALARM = "#A33B00"

Dashes = tuple[float, ...]


@dataclass(frozen=True)
class Look:
    """A line and its markers: matplotlib's name of the marker and dash lengths, and plotly's name of either."""

    colour: str
    marker: str
    symbol: str
    dashes: Dashes
    dash: str
    hollow: bool


@dataclass(frozen=True)
class Mark:
    """A single point that is not on a curve."""

    label: str
    colour: str
    marker: str
    symbol: str
    size: float


MODEL = Mark("input model alone", INK, "*", "star", 12)
JOINT = Mark("joint release", "#CC79A7", "P", "cross", 10)

_COLOURS = {
    ("selection", "proved"): "#0072B2",
    ("selection", "conditional"): "#7FB2D1",
    ("combination", "proved"): "#D55E00",
    ("combination", "conditional"): "#8A8A8A",
}
_OTHER_COLOURS = {"proved": "#009E73", "conditional": "#80C4AE"}
_MARKERS = {
    ("selection", "pld"): ("o", "circle"),
    ("selection", "rdp"): ("X", "x"),
    ("combination", "pld"): ("s", "square"),
    ("combination", "rdp"): ("^", "triangle-up"),
}
_CONDITIONAL_MARKERS = {"pld": ("D", "diamond"), "rdp": ("v", "triangle-down")}
_DASHES: dict[tuple[str, str], tuple[Dashes, str]] = {
    ("proved", "pld"): ((), "solid"),
    ("proved", "rdp"): ((6, 2.5), "dash"),
    ("conditional", "pld"): ((1, 1.4), "dot"),
    ("conditional", "rdp"): ((1, 3.2), "1px,5px"),
}


def look(rule: str, by: str, standing: str) -> Look:
    """The look of a curve; a rule or accountant that is not known here still gets one of its own."""
    marker, symbol = _MARKERS.get((rule, by), ("p", "pentagon"))
    if standing == "conditional":
        marker, symbol = _CONDITIONAL_MARKERS.get(by, ("p", "pentagon"))
    dashes, dash = _DASHES.get((standing, by), ((6, 2, 1.5, 2), "dashdot"))
    colour = _COLOURS.get((rule, standing), _OTHER_COLOURS[standing])
    hollow = standing == "conditional"
    return Look(colour, marker, f"{symbol}-open" if hollow else symbol, dashes, dash, hollow)


def label(title: str, by: str, standing: str) -> str:
    """The name of a curve in the legend."""
    return f"{title}, {by.upper()}" + (", conditional" if standing == "conditional" else "")


def epsilon_text(value: float | None) -> str:
    """A privacy parameter: rounded up, like everywhere.

    >>> epsilon_text(6.45801), epsilon_text(1e-5), epsilon_text(None)
    ('6.459', '1e-5', '∞')
    """
    return "∞" if value is None else significant(value, 4).replace("e-0", "e-")


def equals(value: float, kind: str | None) -> str:
    """A utility after its label."""
    return f"{'≈' if kind == 'interpolated' else '='} {value:.4g}"


def utility_text(value: float | None, kind: str | None = None) -> str:
    """A utility; interpolated ones are marked, because the utility of an average is not the average of utilities."""
    return "—" if value is None else f"{'≈ ' if kind == 'interpolated' else ''}{value:.4g}"


def weights_text(weights: Mapping[str, float] | None, most: int = 8) -> list[str]:
    """The weights above zero, the largest ones if they are many."""
    used = [(name, value) for name, value in (weights or {}).items() if value > 0]
    kept = sorted(used, key=lambda item: -item[1])[:most] if len(used) > most else used
    more = [f"and {len(used) - most} more"] if len(used) > most else []
    return [f"{name} = {value:.4g}" for name, value in kept] + more


def in_a_cell(weights: Iterable[str]) -> str:
    """Weights in a table, which may break between them but not within."""
    return ", ".join(text.replace(" ", "\u00a0") for text in weights)


def short(name: str, most: int = 28) -> str:
    """A long name with its middle left out: beginnings and ends of folder names tell them apart."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def plotly_text(text: str) -> str:
    """Text as plotly shows it: it reads tags, four entities by name and, where MathJax is loaded, formulas in dollars."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def hover_text(lines: Iterable[str]) -> str:
    """Lines for plotly's hover label. Pass them as `customdata`: within a template, a name would be read as part of it."""
    return "<br>".join(plotly_text(short(line, 60)) for line in lines)


def log_ticks(low: float, high: float, most: int = 9) -> list[float]:
    """Round numbers in [low, high] for a logarithmic axis: as many as possible, but not more than `most`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, math.ceil(len(decades) / most))
    densest = [float(f"1e{decade}") for decade in decades[::every] if low <= float(f"1e{decade}") <= high]
    for tenths in (
        (10, 30),
        (10, 20, 50),
        (10, 20, 30, 50),
        (10, 15, 20, 30, 40, 50, 60, 80),
        range(10, 100, 5),
        range(10, 100),
    ):
        ticks = [float(f"{tenth}e{decade - 1}") for decade in decades for tenth in tenths]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(densest) <= len(inside) <= most:
            densest = inside
    return densest


def linear_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers in [low, high] for a linear axis, not more than `most`."""
    finest = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(finest))
    step = next(unit * digit for digit in (1, 2, 5, 10) if unit * digit >= finest)
    return [float(f"{index * step:.12g}") for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
