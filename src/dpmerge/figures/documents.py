"""What can be drawn: the documents as plain data, checked once, so that the drawing code need not.

A document is what a JSON file says. Infinite numbers are null there; in memory they may also be infinities, and both become
None here. Text is made readable here as well: a model's name is a folder's name, and may contain anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dpmerge.errors import FigureError


def _readable(text: Any) -> Any:
    """Control characters, line breaks and broken code points as their escapes: no picture format can hold them."""
    if not isinstance(text, str):
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


Text = Annotated[str, BeforeValidator(_readable)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Epsilon = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(_finite_or_none)]
Utility = Annotated[float | None, BeforeValidator(_finite_or_none)]
Standing = Literal["proved", "conditional"]


class Form(BaseModel):
    """Immutable data; fields that no picture needs are welcome and ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Model(Form):
    """An input model: what it is worth, and its own ε by each accountant (None: no finite one, or does not apply)."""

    name: Text
    utility: Finite
    epsilon: dict[str, Epsilon]

    @property
    def own_epsilon(self) -> float | None:
        """Where the model is drawn: its ε by loss distributions, or else the smallest another accountant gives."""
        known = [value for value in self.epsilon.values() if value is not None]
        exact = self.epsilon.get("pld")
        return exact if exact is not None else min(known, default=None)


class Joint(Form):
    """Joint release: any function of all models."""

    epsilon: Epsilon
    utility: Utility
    standing: Standing


class Point(Form):
    """One release: weights, their ε, and what they are worth (None: infeasible)."""

    epsilon: Epsilon
    utility: Utility = None
    weights: dict[Text, Finite] | None = None
    utility_kind: str | None = None
    on_frontier: bool = True


class Curve(Form):
    """The releases of one rule by one accountant: an optimum for every target if exact, else the weights that were tried."""

    rule: str
    by: str
    standing: Standing
    title: Text
    exact: bool = False
    points: list[Point]

    def drawable(self) -> list[Point]:
        """The points that have a place in the picture, from left to right."""
        kept = [point for point in self.points if point.epsilon is not None and point.utility is not None]
        return sorted(kept, key=lambda point: point.epsilon or 0.0)


class Frontier(Form):
    """Utility against ε at a fixed δ, perhaps with some targets ε to be marked."""

    kind: Literal["frontier"]
    delta: Finite
    adjacency: Text
    provenance: Text
    utilities_source: Text
    utility_label: Text = "utility"
    warning: Text | None = None
    models: list[Model]
    joint: Joint | None = None
    curves: list[Curve]
    targets: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = []


class Panel(Form):
    """One rule by one accountant: an ε for every weight vector of the heatmap."""

    rule: str
    by: str
    standing: Standing
    title: Text
    epsilons: list[Epsilon]


class Heatmap(Form):
    """ε over the weights of three models at a fixed δ."""

    kind: Literal["heatmap"]
    delta: Finite
    adjacency: Text
    step: Annotated[float, Field(gt=0, le=1)]
    models: Annotated[list[Text], Field(min_length=3, max_length=3)]
    points: Annotated[list[tuple[Finite, Finite, Finite]], Field(min_length=3)]
    panels: Annotated[list[Panel], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_epsilon_for_every_point(self) -> Heatmap:
        for panel in self.panels:
            if len(panel.epsilons) != len(self.points):
                raise ValueError(f"panel {panel.title!r} has {len(panel.epsilons)} values for {len(self.points)} points")
        return self


class Line(Form):
    """One method: y against x, with a gap where y is None, and perhaps a band around it.

    What is proved or conditional is a guarantee; what is measured is not; a reference is there to compare with.
    """

    label: Text
    x: Annotated[list[Finite], Field(min_length=1)]
    y: list[Utility]
    low: list[Utility] | None = None
    high: list[Utility] | None = None
    standing: Standing | Literal["measured", "reference"] = "proved"
    rule: str | None = None
    by: str | None = None
    markers: bool = False

    @model_validator(mode="after")
    def _one_y_for_every_x(self) -> Line:
        for name, values in (("y", self.y), ("low", self.low), ("high", self.high)):
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"line {self.label!r} has {len(values)} values of {name} for {len(self.x)} of x")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"line {self.label!r} has only one side of its band; give low and high")
        return self

    def heights(self) -> list[float]:
        """Every y that is drawn, the band's included."""
        return [y for values in (self.y, self.low, self.high) for y in values or () if y is not None]


class NamedPoint(Form):
    """A single mark with its name beside it."""

    name: Text
    x: Finite
    y: Finite
    mark: Literal["model", "joint"] = "model"


Scale = Literal["linear", "log"]


class ChartPanel(Form):
    """One pair of axes."""

    title: Text = ""
    x_label: Text
    y_label: Text
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    lines: list[Line]
    points: list[NamedPoint] = []

    @model_validator(mode="after")
    def _drawable(self) -> ChartPanel:
        for axis, scale, values in (("x", self.x_scale, self.widths()), ("y", self.y_scale, self.heights())):
            if not values:
                raise ValueError(f"panel {self.title!r} has no point that could be drawn")
            if scale == "log" and min(values) <= 0:
                raise ValueError(f"panel {self.title!r} has {axis} = {min(values):g}, which a logarithmic axis cannot show")
        return self

    def widths(self) -> list[float]:
        """Every x that has a y."""
        drawn = [x for line in self.lines for x, y in zip(line.x, line.y, strict=True) if y is not None]
        return drawn + [point.x for point in self.points]

    def heights(self) -> list[float]:
        """Every y."""
        return [y for line in self.lines for y in line.heights()] + [point.y for point in self.points]


class Chart(Form):
    """Lines in one or several panels; a single panel may be given by its fields."""

    kind: Literal["lines"]
    title: Text
    subtitle: Text = ""
    caption: Text = ""
    warning: Text | None = None
    panels: Annotated[list[ChartPanel], Field(min_length=1, max_length=8)]

    @model_validator(mode="before")
    @classmethod
    def _panel_of_its_own(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "panels" in given:
            return given
        return {**given, "panels": [{key: value for key, value in given.items() if key != "title"}]}


AnyForm = TypeVar("AnyForm", bound=Form)


def read(form: type[AnyForm], document: Mapping[str, Any]) -> AnyForm:
    """Check a document; the first fault is one line."""
    try:
        return form.model_validate(dict(document))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        what = fault["msg"].removeprefix("Value error, ")
        raise FigureError(
            f"this {form.__name__.lower()} cannot be drawn: {f'field {where}: ' if where else ''}{what}"
        ) from None
