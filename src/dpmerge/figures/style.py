"""How things look and what they are called, in every picture: colour says the rule, dashes and markers say it again.

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
NO_BREAK = "\u00a0"

Dashes = tuple[float, ...]


@dataclass(frozen=True)
class Look:
    """A line and its markers: matplotlib's name of the marker and dash lengths, and plotly's name of either.

    References are thin.
    """

    colour: str
    marker: str
    symbol: str
    dashes: Dashes
    dash: str
    hollow: bool
    thin: bool = False


@dataclass(frozen=True)
class Mark:
    """A single point that is not on a curve."""

    label: str
    colour: str
    marker: str
    symbol: str
    size: float


MARKS = {
    "model": Mark("input model alone", INK, "*", "star", 12),
    "joint": Mark("joint release", "#CC79A7", "P", "cross", 10),
}

_RULE_COLOURS = {
    ("selection", "proved"): "#0072B2",
    ("selection", "conditional"): "#7FB2D1",
    ("combination", "proved"): "#D55E00",
    ("combination", "conditional"): "#8A8A8A",
}
_RULE_MARKERS = {
    ("selection", "pld"): ("o", "circle"),
    ("selection", "rdp"): ("X", "x"),
    ("combination", "pld"): ("s", "square"),
    ("combination", "rdp"): ("^", "triangle-up"),
    ("joint", "pld"): ("P", "cross"),
    ("joint", "rdp"): ("8", "octagon"),
    ("conditional", "pld"): ("D", "diamond"),
    ("conditional", "rdp"): ("v", "triangle-down"),
}
_RULE_DASHES: dict[tuple[str, str], tuple[Dashes, str]] = {
    ("proved", "pld"): ((), "solid"),
    ("proved", "rdp"): ((6, 2.5), "dash"),
    ("conditional", "pld"): ((1, 1.4), "dot"),
    ("conditional", "rdp"): ((1, 3.2), "1px,5px"),
}
# For methods that have no look of their own above: Okabe and Ito's other colours. Colour, dashes and marker change together,
# and dashes move on by one when the colours are used up, so that 25 lines differ in more than colour.
_COLOURS = ("#009E73", "#E69F00", "#56B4E9", INK, "#CC79A7")
_DASHES: tuple[tuple[Dashes, str], ...] = (
    ((), "solid"),
    ((6, 2, 1.5, 2), "dashdot"),
    ((9, 3), "longdash"),
    ((3, 2), "4px,3px"),
    ((9, 2, 1.5, 2, 1.5, 2), "longdashdot"),
)
_MARKERS = (
    ("p", "pentagon"),
    (">", "triangle-right"),
    ("<", "triangle-left"),
    ("d", "diamond-tall"),
    ("h", "hexagon"),
    ("*", "star"),
    ("H", "hexagon2"),
)
_REFERENCE_DASHES: tuple[tuple[Dashes, str], ...] = (((4, 2, 1, 2), "dashdot"), ((), "solid"), ((8, 3), "longdash"))
_REFERENCE_MARKERS = (("_", "line-ew-open"), ("x", "x-thin-open"), ("+", "cross-thin-open"))


def looks(lines: Mapping[str, tuple[str | None, str | None, str]]) -> dict[str, Look]:
    """A look for every name, given its rule, accountant and standing."""
    found: dict[str, Look] = {}
    others = references = 0
    for name, (rule, by, standing) in lines.items():
        if standing == "reference":
            kind = references % len(_REFERENCE_DASHES)
            found[name] = Look(QUIET, *_REFERENCE_MARKERS[kind], *_REFERENCE_DASHES[kind], hollow=False, thin=True)
            references += 1
        elif rule in ("selection", "combination", "joint"):
            found[name] = _of_rule(rule, by or "", "conditional" if standing == "conditional" else "proved")
        else:
            colour, marker = _COLOURS[others % len(_COLOURS)], _MARKERS[others % len(_MARKERS)]
            dashes = _DASHES[(others + others // len(_COLOURS)) % len(_DASHES)]
            hollow = standing == "conditional"
            found[name] = _look(colour, marker, ((1, 1.4), "dot") if hollow else dashes, hollow)
            others += 1
    return found


def _of_rule(rule: str, by: str, standing: str) -> Look:
    """The look that the rule and the accountant have in every picture."""
    hollow = standing == "conditional"
    marker = _RULE_MARKERS.get(("conditional" if hollow and rule != "joint" else rule, by), ("h", "hexagon"))
    dashes = _RULE_DASHES.get((standing, by), ((6, 2, 1.5, 2), "dashdot"))
    return _look(_RULE_COLOURS.get((rule, standing), MARKS["joint"].colour), marker, dashes, hollow)


def _look(colour: str, marker: tuple[str, str], dashes: tuple[Dashes, str], hollow: bool) -> Look:
    shape, symbol = marker
    return Look(colour, shape, f"{symbol}-open" if hollow else symbol, *dashes, hollow)


def epsilon_text(value: float | None) -> str:
    """A privacy parameter: rounded up, like everywhere.

    >>> epsilon_text(6.45801), epsilon_text(1e-5), epsilon_text(math.inf)
    ('6.459', '1e-5', '∞')
    """
    return "∞" if value is None or value == math.inf else significant(value, 4).replace("e-0", "e-")


def utility_text(value: float | None, kind: str | None = None) -> str:
    """A utility; interpolated ones are marked, because the utility of an average is not the average of utilities."""
    return "—" if value is None else f"{'≈ ' if kind in ('interpolated', 'extrapolated') else ''}{value:.4g}"


def weights_text(weights: Mapping[str, float] | None, most: int = 8) -> list[str]:
    """The weights above zero, the largest ones if they are many."""
    used = [(name, value) for name, value in (weights or {}).items() if value > 0]
    kept = sorted(used, key=lambda item: -item[1])[:most] if len(used) > most else used
    more = [f"and {len(used) - most} more"] if len(used) > most else []
    return [f"{name} = {value:.4g}" for name, value in kept] + more


def in_a_cell(weights: Iterable[str]) -> str:
    """Weights in a table, which may break between them but not within."""
    return ", ".join(text.replace(" ", NO_BREAK) for text in weights)


def short(name: str, most: int = 28) -> str:
    """A long name with its middle left out: beginnings and ends of folder names tell them apart."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def plotly_text(text: str) -> str:
    """Text as plotly shows it: it reads tags, four entities by name and, where MathJax is loaded, formulas in dollars."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def log_ticks(low: float, high: float, most: int = 9) -> list[float]:
    """Round numbers in [low, high] for a logarithmic axis: as many as possible, but not more than `most`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, math.ceil(len(decades) / most))
    densest = [float(f"1e{decade}") for decade in decades[::every] if low <= float(f"1e{decade}") <= high]
    few = ((10, 30), (10, 20, 50), (10, 20, 30, 50), (10, 15, 20, 30, 40, 50, 60, 80))
    for tenths in (*few, range(10, 100, 5), range(10, 100)):
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
