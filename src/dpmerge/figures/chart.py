"""What is where in a picture of lines, and how it is told: worked out once, then drawn by either backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpmerge.figures import style
from dpmerge.figures.documents import Chart, ChartPanel, Line, NamedPoint
from dpmerge.figures.labels import Label, Place, place

MARKS = {"model": style.MODEL, "joint": style.JOINT}

# For methods that have no look of their own in style.py: Okabe and Ito's other colours. Colour, dashes and marker change
# together, and dashes move on by one when the colours are used up, so that 25 lines differ in more than colour.
_COLOURS = ("#009E73", "#E69F00", "#56B4E9", style.INK, "#CC79A7")
_DASHES: tuple[tuple[style.Dashes, str], ...] = (
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
_JOINT_MARKERS = {"pld": ("P", "cross"), "rdp": ("8", "octagon")}
_REFERENCE_DASHES: tuple[tuple[style.Dashes, str], ...] = (((4, 2, 1, 2), "dashdot"), ((), "solid"), ((8, 3), "longdash"))


@dataclass(frozen=True)
class Axis:
    """A range with a little air at both ends."""

    label: str
    logarithmic: bool
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float], label: str, scale: str, air: float) -> Axis:
        """The axis that shows all values; a single one is put in the middle."""
        low, high = min(values), max(values)
        if scale == "log":
            factor = (high / low) ** air if high > low else 2.0
            return cls(label, True, low / factor, high * factor)
        margin = air * (high - low) or 0.05 * (abs(low) or 1.0)
        return cls(label, False, low - margin, high + margin)

    def ticks(self) -> list[float]:
        """Round numbers on it."""
        return (style.log_ticks if self.logarithmic else style.linear_ticks)(self.low, self.high)

    def share(self, value: float) -> float:
        """How far along a value is, from 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def plotly(self, value: float) -> float:
        """Where plotly puts ranges and names: at logarithms, on a logarithmic axis."""
        return math.log10(value) if self.logarithmic else value

    def text(self, value: float | None) -> str:
        """A value of this axis in words: privacy parameters are rounded up."""
        private = self.label.startswith(("ε", "δ"))
        return "—" if value is None else style.epsilon_text(value) if private else f"{value:.4g}"


def axes(panel: ChartPanel) -> tuple[Axis, Axis]:
    """The panel's two axes."""
    return (
        Axis.over(panel.widths(), panel.x_label, panel.x_scale, 0.03),
        Axis.over(panel.heights(), panel.y_label, panel.y_scale, 0.06),
    )


def label(line: Line) -> str:
    """The name of a line in the legend; what is conditional always says so."""
    conditional = line.standing == "conditional" and "conditional" not in line.label
    return line.label + (", conditional" if conditional else "")


def looks(chart: Chart) -> dict[str, style.Look]:
    """A look for every label, the same in all panels, in the order of the legend."""
    found: dict[str, style.Look] = {}
    others = references = 0
    for line in (line for panel in chart.panels for line in panel.lines):
        if label(line) in found:
            continue
        if line.standing == "reference":
            dashes, dash = _REFERENCE_DASHES[references % len(_REFERENCE_DASHES)]
            found[label(line)] = style.Look(style.QUIET, "", "", dashes, dash, False)
            references += 1
        elif line.rule in ("selection", "combination", "joint"):
            found[label(line)] = _known(line)
        else:
            found[label(line)] = _other(others, line.standing == "conditional")
            others += 1
    return found


def _known(line: Line) -> style.Look:
    """The look that the rule and the accountant have in every picture."""
    by = line.by or ""
    standing = "conditional" if line.standing == "conditional" else "proved"
    look = style.look(line.rule or "", by, standing)
    if line.rule != "joint":
        return look
    marker, symbol = _JOINT_MARKERS.get(by, ("h", "hexagon"))
    return replace(look, colour=style.JOINT.colour, marker=marker, symbol=f"{symbol}-open" if look.hollow else symbol)


def _other(index: int, conditional: bool) -> style.Look:
    colour = _COLOURS[index % len(_COLOURS)]
    marker, symbol = _MARKERS[index % len(_MARKERS)]
    dashes, dash = _DASHES[(index + index // len(_COLOURS)) % len(_DASHES)]
    if conditional:
        return style.Look(colour, marker, f"{symbol}-open", (1, 1.4), "dot", True)
    return style.Look(colour, marker, symbol, dashes, dash, False)


def place_names(panel: ChartPanel, width: float, height: float) -> list[tuple[NamedPoint, Label | None]]:
    """The named points with their names, for axes of this size in the units of labels.py."""
    across, up = axes(panel)

    def at(x: float, y: float) -> Place:
        return width * across.share(x), height * up.share(y)

    spots = [at(point.x, point.y) for point in panel.points]
    drawn = [[at(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None] for line in panel.lines]
    names = [point.name for point in panel.points]
    return list(zip(panel.points, place(names, spots, drawn, (width, height)), strict=True))


def hover(panel: ChartPanel, line: Line, index: int) -> list[str]:
    """What a point of a line tells."""
    across, up = axes(panel)
    said = [label(line), f"{across.label}: {across.text(line.x[index])}", f"{up.label}: {up.text(line.y[index])}"]
    if line.low is not None and line.high is not None:
        said.append(f"from {up.text(line.low[index])} to {up.text(line.high[index])}")
    return said


def table(panel: ChartPanel, most: int = 15) -> tuple[list[str], list[list[str]]]:
    """Columns and rows for who cannot see the plot: one row for each x if all lines share them, else one for each point."""
    across, up = axes(panel)
    if panel.lines and all(line.x == panel.lines[0].x for line in panel.lines):
        rows = [
            [across.text(panel.lines[0].x[index]), *(_with_band(up, line, index) for line in panel.lines)]
            for index in _thinned(len(panel.lines[0].x), most)
        ]
        return [across.label, *(f"{up.label}: {label(line)}" for line in panel.lines)], rows
    rows = [
        [label(line), across.text(line.x[index]), _with_band(up, line, index)]
        for line in panel.lines
        for index in _thinned(len(line.x), most)
    ]
    rows += [[point.name, across.text(point.x), up.text(point.y)] for point in panel.points]
    return ["line", across.label, up.label], rows


def _with_band(axis: Axis, line: Line, index: int) -> str:
    text = axis.text(line.y[index])
    if line.low is None or line.high is None:
        return text
    return f"{text} ({axis.text(line.low[index])} to {axis.text(line.high[index])})"


def _thinned(count: int, most: int) -> list[int]:
    """Indices of at most so many, both ends among them."""
    return list(range(count)) if count <= most else [round(k * (count - 1) / (most - 1)) for k in range(most)]
