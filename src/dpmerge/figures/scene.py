"""What is where in a frontier's picture: worked out once, then drawn by either backend."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpmerge.figures import style
from dpmerge.figures.documents import Curve, Frontier, Point
from dpmerge.figures.labels import Label, place


@dataclass(frozen=True)
class Spot:
    """A place, whether the frontier goes through it, and what hovering over it tells."""

    x: float
    y: float
    on_frontier: bool
    text: tuple[str, ...]


@dataclass(frozen=True)
class Stroke:
    """A curve: its line, and its spots. Spots of an exact curve are its optima; otherwise they are the weights tried."""

    label: str
    look: style.Look
    exact: bool
    line: list[tuple[float, float]]
    spots: list[Spot]


@dataclass(frozen=True)
class Scene:
    """Everything in the axes, and their range."""

    low: float
    high: float
    bottom: float
    top: float
    strokes: list[Stroke]
    models: list[Spot]
    names: list[str]
    joint: Spot | None

    @property
    def empty(self) -> bool:
        """Whether no merge is in it."""
        return not any(stroke.spots for stroke in self.strokes)

    def labels(self, width: float, height: float) -> list[tuple[Spot, Label | None]]:
        """The models with their names, for axes of this size in the units of labels.py."""

        def at(x: float, y: float) -> tuple[float, float]:
            right = math.log(x / self.low) / math.log(self.high / self.low)
            return width * right, height * (y - self.bottom) / (self.top - self.bottom)

        spots = [at(spot.x, spot.y) for spot in self.models]
        lines = [[at(x, y) for x, y in stroke.line] for stroke in self.strokes]
        lines += [[at(spot.x, spot.y)] for stroke in self.strokes if not stroke.exact for spot in stroke.spots]
        lines += [[at(self.joint.x, self.joint.y)]] * 5 if self.joint else []  # rather on a line than on this
        return list(zip(self.models, place(self.names, spots, lines, (width, height)), strict=True))


def epsilons(frontier: Frontier) -> list[float]:
    """Every ε in the picture."""
    found = [point.epsilon for curve in frontier.curves for point in curve.drawable()]
    found += [model.own_epsilon for model in frontier.models]
    found += [frontier.joint.epsilon] if frontier.joint else []
    return [epsilon for epsilon in found if epsilon is not None]


def arrange(frontier: Frontier) -> Scene:
    """Work out the scene. The axis is logarithmic, so an ε of 0 is moved to its left edge."""
    shown = epsilons(frontier)
    positive = [epsilon for epsilon in shown if epsilon > 0] or [0.1, 10.0]
    zero = min(positive) / 2
    low, high = (zero if 0 in shown else min(positive)) / 1.25, max(positive) * 1.4
    what = frontier.utility_label

    def spot(epsilon: float, utility: float, *text: str, kind: str | None = None, on_frontier: bool = True) -> Spot:
        numbers = (f"ε = {style.epsilon_text(epsilon)}", f"{what} {style.equals(utility, kind)}")
        return Spot(max(epsilon, zero), utility, on_frontier, (text[0], *numbers, *text[1:]))

    def of_point(label: str, point: Point) -> Spot:
        kind, weights = point.utility_kind, style.weights_text(point.weights)
        return spot(point.epsilon or 0.0, point.utility or 0.0, label, *weights, kind=kind, on_frontier=point.on_frontier)

    def of_curve(curve: Curve) -> Stroke:
        label = style.label(curve.title, curve.by, curve.standing)
        spots = [of_point(label, point) for point in curve.drawable()]
        corners = [(spot.x, spot.y) for spot in spots if curve.exact or spot.on_frontier]
        line = corners if curve.exact else _steps(corners, high)
        return Stroke(label, style.look(curve.rule, curve.by, curve.standing), curve.exact, line, spots)

    strokes = [of_curve(curve) for curve in frontier.curves]
    placed = [(model, model.own_epsilon) for model in frontier.models if model.own_epsilon is not None]
    models = [spot(epsilon, model.utility, f"{model.name}, alone") for model, epsilon in placed]
    joint = frontier.joint
    together = None
    if joint is not None and joint.epsilon is not None and joint.utility is not None:
        together = spot(joint.epsilon, joint.utility, f"{style.JOINT.label}, {joint.standing}")
    everything = [*models, *(spot for stroke in strokes for spot in stroke.spots), *([together] if together else [])]
    heights = [spot.y for spot in everything] or [0.0, 1.0]
    margin = 0.11 * (max(heights) - min(heights)) or 0.05 * (abs(heights[0]) or 1.0)
    bottom, top = min(heights) - margin, max(heights) + margin
    return Scene(low, high, bottom, top, strokes, models, [model.name for model, _ in placed], together)


def _steps(corners: list[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Steps up at each corner, and on to the edge: what is attainable at one ε is so at every larger one."""
    if not corners:
        return []
    line = [corners[0]]
    for x, y in corners[1:]:
        line += [(x, line[-1][1]), (x, y)]
    return [*line, (end, line[-1][1])]
