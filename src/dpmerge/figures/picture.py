"""The description of a picture: made once from a result, then drawn by png.py and web.py; page.py adds tables.

It is checked once, here, so that the renderers need not. Documents of kind "lines" are descriptions already; docs/frontier.md
says how they are written. What is conditional is dotted and hollow and its label says so; references are thin and grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpmerge.figures import style
from dpmerge.files import finite_or_null
from dpmerge.rules import Standing


def plain(value: Any) -> Any:
    """Plain data that every picture format can hold.

    Infinite numbers become None, as they are null in JSON. A model's name is a folder's name and may contain anything: control
    characters, line breaks and broken code points become their escapes. No-break spaces (of `style.in_a_cell`) stay.
    """
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c == style.NO_BREAK else c.encode("unicode_escape").decode() for c in value)
    return finite_or_null(value)


def fault(error: ValidationError) -> str:
    """The first thing wrong with a document, and where."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{f'field {where}: ' if where else ''}{first['msg'].removeprefix('Value error, ')}"


LineStanding = Literal[Standing, "measured", "reference"]
Positive = Annotated[float, Field(gt=0)]


class Form(BaseModel):
    """Immutable data that every format can hold; fields that no picture needs are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        return plain(given)


@dataclass(frozen=True)
class Axis:
    """A range with a margin at both ends; also the colour scale of triangles."""

    label: str
    logarithmic: bool
    low: float
    high: float
    categories: Sequence[str] = ()

    @classmethod
    def over(cls, values: Sequence[float], label: str, scale: str, air: float) -> Axis:
        """The axis that shows all values; a single one is put in the middle."""
        low, high = min(values), max(values)
        if scale == "log":
            factor = (high / low) ** air if high > low else 2.0
            return cls(label, True, low / factor, high * factor)
        margin = air * (high - low) or 0.05 * (abs(low) or 1.0)
        return cls(label, False, low - margin, high + margin)

    def ticks(self, most: int = 8) -> dict[float, str]:
        """Round numbers on it, or the categories, and what is written there."""
        if self.categories:
            return {float(place): style.short(name, 26) for place, name in enumerate(self.categories)}
        round_numbers = style.log_ticks if self.logarithmic else style.linear_ticks
        return {tick: f"{tick:g}" for tick in round_numbers(self.low, self.high, most)}

    def share(self, value: float) -> float:
        """How far along a value is, from 0 to 1."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def position(self, value: float) -> float:
        """Where plotly puts ranges, notes and colours: at logarithms, on a logarithmic axis."""
        return math.log10(max(value, self.low)) if self.logarithmic else value

    def text(self, value: float | None) -> str:
        """A value of this axis in words: privacy parameters are rounded up."""
        if value is None or self.categories:
            return "—" if value is None else self.categories[round(value)]
        return style.epsilon_text(value) if self.label.startswith(("ε", "δ")) else f"{value:.4g}"


class Line(Form):
    """One method: y against x, with a gap where y is None, and perhaps a band around it.

    What is proved or conditional is a guarantee; what is measured is not; a reference is there to compare with.
    """

    label: str
    x: Annotated[list[float], Field(min_length=1)]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    standing: LineStanding = "proved"
    rule: str | None = None
    by: str | None = None
    markers: bool = False
    joined: bool = True
    steps: bool = False  # a y holds up to the next x, and the last one to the right edge
    faint: bool = False  # small, pale, and not in the legend
    hover: list[list[str]] | None = None

    @model_validator(mode="after")
    def _one_y_for_every_x(self) -> Self:
        for name, values in (("y", self.y), ("low", self.low), ("high", self.high), ("hover", self.hover)):
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"line {self.label!r} has {len(values)} values of {name} for {len(self.x)} of x")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"line {self.label!r} has only one side of its band; give low and high")
        return self

    @property
    def name(self) -> str:
        """The label in the legend; what is conditional always says so."""
        conditional = self.standing == "conditional" and "conditional" not in self.label
        return self.label + (", conditional" if conditional else "")

    @property
    def band(self) -> list[tuple[float | None, float | None]]:
        """Its lower and upper end at every x; empty if there is none."""
        return list(zip(self.low or (), self.high or (), strict=True))

    def marked(self, index: int) -> range:
        """The points with a marker: enough to tell the line by. Where lines coincide, their markers alternate."""
        every = 1 if self.markers or not self.joined else max(1, len(self.x) // 8)
        return range(index % every, len(self.x), every)

    def corners(self) -> list[tuple[float, float]]:
        """Where its drawing bends."""
        found: list[tuple[float, float]] = []
        for x, y in zip(self.x, self.y, strict=True):
            if y is not None:
                found += [*([(x, found[-1][1])] if self.steps and found else []), (x, y)]
        return found


class NamedPoint(Form):
    """A single mark, and perhaps its name beside it."""

    name: str = ""
    x: float
    y: float
    mark: Literal["model", "joint"] = "model"
    hover: list[str] | None = None


Scale = Literal["linear", "log"]


class Panel(Form):
    """One pair of axes."""

    title: str = ""
    x_label: str
    y_label: str
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    categories: list[str] = []
    lines: list[Line]
    points: list[NamedPoint] = []
    targets: list[Positive] = []  # vertical lines
    nothing: str = ""  # said in the middle if no line can be drawn

    @model_validator(mode="after")
    def _drawable(self) -> Self:
        for axis, scale, values in (("x", self.x_scale, self.widths()), ("y", self.y_scale, self.heights())):
            if not values and not self.nothing:
                raise ValueError(f"panel {self.title!r} has no point that could be drawn")
            if scale == "log" and min(values, default=1.0) <= 0:
                raise ValueError(f"panel {self.title!r} has {axis} = {min(values):g}, which a logarithmic axis cannot show")
        if self.categories and not {*self.widths()} <= {*range(len(self.categories))}:
            raise ValueError(
                f"panel {self.title!r} has an x that is not the position of one of its {len(self.categories)} categories"
            )
        return self

    def places(self, index: int) -> list[float]:
        """Where the points of a line are drawn: on names, lines with bars stand side by side, as bars hide each other."""
        line, barred = self.lines[index], [k for k, one in enumerate(self.lines) if one.band and not one.joined]
        if not self.categories or index not in barred:
            return line.x
        aside = (barred.index(index) - (len(barred) - 1) / 2) * min(0.2, 0.7 / len(barred))
        return [x + aside for x in line.x]

    def widths(self) -> list[float]:
        """Every x that has a y."""
        drawn = [x for line in self.lines for x, y in zip(line.x, line.y, strict=True) if y is not None]
        return drawn + [point.x for point in self.points]

    def heights(self) -> list[float]:
        """Every y, with those of bands."""
        values = [value for line in self.lines for side in (line.y, line.low, line.high) for value in side or ()]
        return [y for y in values if y is not None] + [point.y for point in self.points]

    @cached_property
    def across(self) -> Axis:
        """The x axis; it reaches every target, and has room for names."""
        if self.categories:
            return Axis(self.x_label, False, -0.5, len(self.categories) - 0.5, self.categories)
        shown = [*self.widths(), *self.targets] or [0.1, 10.0]
        return Axis.over(shown, self.x_label, self.x_scale, 0.08 if self.points else 0.03)

    @cached_property
    def up(self) -> Axis:
        return Axis.over(self.heights() or [0.0, 1.0], self.y_label, self.y_scale, 0.11 if self.points else 0.06)

    def hover(self, line: Line, index: int) -> list[str]:
        """The hover text of a point."""
        if line.hover is not None:
            return line.hover[index]
        x, y = self.across, self.up
        told = [line.name, f"{x.label}: {x.text(line.x[index])}", f"{y.label}: {y.text(line.y[index])}"]
        return told + [f"from {y.text(low)} to {y.text(high)}" for low, high in line.band[index : index + 1]]

    def table(self, most: int = 15) -> Table:
        """The numbers: a row for each x if all lines share them, else one for each point."""
        across, up = self.across, self.up

        def cell(line: Line, index: int) -> str:
            around = [f" ({up.text(low)} to {up.text(high)})" for low, high in line.band[index : index + 1]]
            return "".join([up.text(line.y[index]), *around])

        if self.lines and all(line.x == self.lines[0].x for line in self.lines):
            columns = [across.label, *(f"{up.label}: {line.name}" for line in self.lines)]
            places = thinned(range(len(self.lines[0].x)), most)
            rows = [[across.text(self.lines[0].x[k]), *(cell(line, k) for line in self.lines)] for k in places]
        else:
            columns = ["line", across.label, up.label]
            spots = [(line, k) for line in self.lines for k in thinned(range(len(line.x)), most)]
            rows = [[line.name, across.text(line.x[k]), cell(line, k)] for line, k in spots]
            rows += [[point.name, across.text(point.x), up.text(point.y)] for point in self.points]
        return Table(
            heading=self.title or "The numbers", caption=f"{up.label} against {across.label}", columns=columns, rows=rows
        )


Thing = TypeVar("Thing")


def thinned(values: Sequence[Thing], most: int) -> list[Thing]:
    """At most `most` values, evenly spaced, including both ends."""
    count = len(values)
    return list(values) if count <= most else [values[round(k * (count - 1) / (most - 1))] for k in range(most)]


class Triangle(Form):
    """An ε for weights of three models; None where it is not finite."""

    title: str
    subtitle: str
    models: Annotated[list[str], Field(min_length=3, max_length=3)]
    points: Annotated[list[tuple[float, float, float]], Field(min_length=3)]
    values: list[Annotated[float, Field(ge=0)] | None]

    @model_validator(mode="after")
    def _one_value_for_every_point(self) -> Self:
        if len(self.values) != len(self.points):
            raise ValueError(f"triangle {self.title!r} has {len(self.values)} values for {len(self.points)} points")
        return self

    def weights(self, index: int) -> list[str]:
        """The weights of a point, in words."""
        return style.weights_text(dict(zip(self.models, self.points[index], strict=True)))


class Table(Form):
    """For readers who cannot see the picture; the first column names the rows."""

    heading: str
    caption: str
    columns: list[str]
    rows: list[list[str]]


class Picture(Form):
    """Headings, panels or triangles, and the texts of the page."""

    title: str
    subtitle: str = ""
    caption: str = ""
    warning: str | None = None
    panels: list[Panel] = []
    triangles: list[Triangle] = []
    colour_label: str = ""
    colour_reach: list[Positive] = []  # the scale of colours goes at least so far
    step: Positive = 0.05  # between neighbouring points of a triangle
    how_to_read: str = (
        "Lines with one name belong to one method, in every panel. What is dotted and hollow is conditional: it holds only "
        "under an assumption that fails in general. Thin grey lines are references to compare with; pale bands and bars are "
        "the spread that the heading or the caption names."
    )
    more: dict[str, list[str]] = {}  # headings and paragraphs
    tables: list[Table] = []

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of panels."""
        count = len(self.panels) or len(self.triangles)
        columns = 1 if len(self.panels) == 1 else 2
        return math.ceil(count / columns), columns

    def looks(self) -> dict[str, style.Look]:
        """A look for every line by its name, the same in all panels, in the order of the legend."""
        lines = (line for panel in self.panels for line in panel.lines)
        return style.looks({line.name: (line.rule, line.by, line.standing) for line in lines})

    def marks(self) -> list[str]:
        """The kinds of single marks."""
        used = {point.mark for panel in self.panels for point in panel.points}
        return [key for key in style.MARKS if key in used]

    def colours(self) -> Axis:
        """The common colour scale of all triangles, logarithmic if the values span more than a factor of ten."""
        shown = [value for triangle in self.triangles for value in triangle.values if value is not None]
        values = [*shown, *self.colour_reach] or [0.0, 1.0]
        low, high = min(values), max(values)
        positive = min((value for value in values if value > 0), default=1.0)
        if high > 10 * positive:  # an ε of 0 has the lowest colour
            return Axis(self.colour_label, True, positive, high)
        low, high = (low, high) if low < high else (0.9 * low, 1.1 * high or 1.0)
        return Axis(self.colour_label, False, low, high)

    def as_dict(self) -> dict[str, Any]:
        """Its document, of kind "lines", with what was given; the fields of a single panel are beside its own."""
        told = self.model_dump(exclude_unset=True)
        alone = told.pop("panels")[0] if len(self.panels) == 1 else {}
        return {"kind": "lines", **alone, **told}

    def numbers(self, most: int = 15) -> list[Table]:
        """The picture in tables."""
        return self.tables or [panel.table(most) for panel in self.panels]


class Chart(Picture):
    """A document of kind "lines"; a single panel may be given by its fields."""

    kind: Literal["lines"]
    panels: Annotated[list[Panel], Field(min_length=1, max_length=8)]

    @model_validator(mode="before")
    @classmethod
    def _panel_of_its_own(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "panels" in given:
            return given
        return {**given, "panels": [{key: value for key, value in given.items() if key != "title"}]}
