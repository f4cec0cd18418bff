"""Lines of equal ε in a triangle of weights, for print: matplotlib finds the lines, and here is where their values go."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpmerge.errors import FigureError
from dpmerge.figures import style
from dpmerge.profiles import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.tri import Triangulation

PEAK = math.sqrt(3) / 2  # the height of a triangle whose sides are 1
COLOURS = "viridis"  # even in lightness: for colour-blind readers, and for print without colours


def triangulate(points: FloatArray, finite: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Triangulation:
    """The grid as triangles, without those that are degenerate by rounding or have a corner without a value."""
    from matplotlib.tri import TriAnalyzer, Triangulation

    try:
        grid = Triangulation(points[:, 2] + points[:, 0] / 2, points[:, 0] * PEAK)
    except (RuntimeError, ValueError):
        raise FigureError("this heatmap cannot be drawn: its points are all on one line") from None
    flat = TriAnalyzer(grid).circle_ratios() < 0.01
    grid.set_mask(flat | ~finite[grid.triangles].all(axis=1))
    return grid


def draw_lines(axes: Axes, grid: Triangulation, values: FloatArray, levels: list[float], norm: Normalize) -> None:
    """Lines of equal ε, each with its value; where they crowd together, the long ones.

    The values are upright: a six that follows a steep line looks like a nine.
    """
    from matplotlib import colormaps

    lines = []
    for level in levels:
        colour = "white" if norm(level) < 0.55 else style.INK
        line = axes.tricontour(grid, values, levels=[level], colors=[colour], linewidths=0.9, zorder=2)
        pieces = [np.asarray(piece) for path in line.get_paths() for piece in path.to_polygons(closed_only=False)]
        lines.append((max(pieces, key=_length, default=np.zeros((1, 2))), level, colour, line))
    kept: list[FloatArray] = []
    labelled: list[FloatArray] = []
    for piece, level, colour, line in sorted(lines, key=lambda item: -_length(item[0])):
        from_middle = np.argsort(abs(_travelled(piece) - _length(piece) / 2), kind="stable")
        free = [
            place
            for place in piece[from_middle]
            if _edge_distance(*place) > 0.04
            and all(np.hypot(*(place - other)) > 0.09 for other in labelled)
            and all(np.hypot(*(place - other).T).min() > 0.035 for other in kept)
        ]
        if not free or _length(piece) < 0.15:
            line.remove()
            continue
        x, y = free[0]
        labelled.append(free[0])
        kept.append(piece)
        behind = {"boxstyle": "square,pad=0.15", "facecolor": colormaps[COLOURS](norm(level)), "edgecolor": "none"}
        axes.text(x, y, f"{level:g}", ha="center", va="center", fontsize=8.5, color=colour, bbox=behind, zorder=3)


def _travelled(piece: FloatArray) -> FloatArray:
    """The way along a line up to each of its points."""
    return np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(piece, axis=0).T))))


def _edge_distance(x: float, y: float) -> float:
    """How far inside the triangle a place is."""
    return min(y, PEAK * x - y / 2, PEAK * (1 - x) - y / 2)


def _length(piece: FloatArray) -> float:
    return float(_travelled(piece)[-1])
