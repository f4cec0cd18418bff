"""Where to write names beside points: both renderers write text where they are told, also onto other text.

Lengths are in points of a picture whose names are written in 9 point letters; a renderer with other letters scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpmerge.figures import style
from dpmerge.figures.picture import NamedPoint, Panel
from dpmerge.profiles import FloatArray

LETTER = 9.0
_WIDTH, _HEIGHT = 6.6, 12.0  # of one letter and of a line, with a little air
_CLEAR = 10.0  # from the middle of a point: no other name comes closer
# Directions to try, the most usual first, near and then far with a thin line to the point.
_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_NEAR, *_FAR = 9, 30, 60

Place = tuple[float, float]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Label:
    """A name, and where it goes from its point: a direction (−1, 0 or 1 to the right and up) and a distance."""

    text: str
    right: int
    up: int
    distance: int

    @property
    def far(self) -> bool:
        """Whether a line should connect it to its point."""
        return self.distance > _NEAR

    def choose(self, axis: int, low: str, middle: str, high: str) -> str:
        """The name of the text's anchor on one axis: text to the right of its point is anchored at its left."""
        return {1: low, 0: middle, -1: high}[(self.right, self.up)[axis]]


def place_names(panel: Panel, width: float, height: float) -> list[tuple[NamedPoint, Label | None]]:
    """The panel's points with their names, for axes of this size."""

    def at(x: float, y: float) -> Place:
        return width * panel.across.share(x), height * panel.up.share(y)

    drawn: list[list[Place]] = []
    for line in panel.lines:
        corners = [at(*corner) for corner in line.corners()]
        drawn += [corners] if line.joined else [[corner] for corner in corners]
    names, spots = [point.name for point in panel.points], [at(point.x, point.y) for point in panel.points]
    return list(zip(panel.points, place(names, spots, drawn, (width, height)), strict=True))


def place(names: Sequence[str], spots: Sequence[Place], lines: Sequence[Sequence[Place]], frame: Place) -> list[Label | None]:
    """A label for each name, clear of all points and other names and on as little of the lines as possible.

    `frame` is the size of the axes; an empty name, and one that finds no place at all, gets None.
    """
    marks = [(x - _CLEAR, y - _CLEAR, x + _CLEAR, y + _CLEAR) for x, y in spots]
    covered = np.concatenate([np.empty((0, 2)), *(_sampled(line) for line in lines)])
    written: list[Box] = []
    labels: list[Label | None] = []
    for index, (name, spot) in enumerate(zip(names, spots, strict=True)):
        others = marks[:index] + marks[index + 1 :] + written
        choices = [Label(style.short(name), *where, distance) for distance in (_NEAR, *_FAR) for where in _DIRECTIONS]
        costs = []
        for rank, label in enumerate(choices):
            box = _box(label, spot)
            if _fits(box, frame) and not any(_overlap(box, other) for other in others):
                costs.append((rank + 10 * _inside(covered, box), rank))
        best = choices[min(costs)[1]] if costs and name else None
        if best is not None:
            written.append(_box(best, spot))
        labels.append(best)
    return labels


def _box(label: Label, spot: Place) -> Box:
    width, height = _WIDTH * len(label.text), _HEIGHT
    left = spot[0] + label.right * label.distance + (label.right - 1) * width / 2
    low = spot[1] + label.up * label.distance + (label.up - 1) * height / 2
    return left, low, left + width, low + height


def _fits(box: Box, frame: Place) -> bool:
    return box[0] >= 0 and box[1] >= 0 and box[2] <= frame[0] and box[3] <= frame[1]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _inside(points: FloatArray, box: Box) -> int:
    return int(np.count_nonzero(np.all((points >= box[:2]) & (points <= box[2:]), axis=1)))


def _sampled(line: Sequence[Place], spacing: float = 6.0) -> FloatArray:
    """Points along a line, close enough that no name fits between them."""
    corners = np.array(line, dtype=np.float64).reshape(-1, 2)
    if len(corners) < 2:
        return corners
    along = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))))
    stops = np.arange(0.0, along[-1] + spacing, spacing)
    return np.column_stack([np.interp(stops, along, corners[:, axis]) for axis in (0, 1)])
