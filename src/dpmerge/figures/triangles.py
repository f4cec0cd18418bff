"""Triangles of weights for print: colours, and lines of equal ε with their values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpmerge.errors import FigureError
from dpmerge.figures import style
from dpmerge.figures.picture import Axis, Picture, Triangle
from dpmerge.profiles import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.tri import Triangulation

PEAK = math.sqrt(3) / 2  # the height of a triangle whose sides are 1
COLOURS = "viridis"  # even in lightness: for colour-blind readers, and for print without colours


def draw(drawn: Figure, picture: Picture, top: float, cell: float) -> None:
    """All triangles of a picture in two columns, and their common colour scale to the right."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    scale = picture.colours()
    norm = (LogNorm if scale.logarithmic else Normalize)(scale.low, scale.high)
    for index, triangle in enumerate(picture.triangles):
        row, column = divmod(index, 2)
        axes = drawn.add_axes((0.02 + 0.44 * column, top - (row + 1) * cell, 0.43, cell))
        _frame(axes, triangle)
        _fill(axes, triangle, scale, norm)
    if any(value is not None for triangle in picture.triangles for value in triangle.values):
        ticks = scale.ticks()
        bar = drawn.colorbar(ScalarMappable(norm, COLOURS), cax=drawn.add_axes((0.92, 0.2, 0.018, 0.6)))
        bar.set_ticks(list(ticks), labels=list(ticks.values()))
        bar.ax.minorticks_off()
        bar.set_label(scale.label)


def _frame(axes: Axes, triangle: Triangle) -> None:
    """The triangle, its corners' names and its headings."""
    axes.set_aspect("equal")
    axes.set_xlim(-0.1, 1.1)
    axes.set_ylim(-0.13, PEAK + 0.27)
    axes.set_axis_off()
    axes.plot([0, 1, 0.5, 0], [0, 0, PEAK, 0], color=style.INK, linewidth=1, zorder=4)
    top, left, right = (style.short(name, 22) for name in triangle.models)
    for name, x, y, side in ((top, 0.5, PEAK + 0.02, "center"), (left, -0.08, -0.07, "left"), (right, 1.08, -0.07, "right")):
        axes.text(x, y, name, ha=side, fontsize=9, color=style.INK)
    title = style.short(triangle.title, 44)
    axes.text(0.5, PEAK + 0.18, title, ha="center", fontsize=11, fontweight="bold", color=style.INK)
    axes.text(0.5, PEAK + 0.115, triangle.subtitle, ha="center", fontsize=9, color=style.QUIET)


def _fill(axes: Axes, triangle: Triangle, scale: Axis, norm: Normalize) -> None:
    """Colours, and labelled lines of equal ε; pieces with a corner that has no finite ε stay white."""
    values = np.array([math.nan if value is None else max(value, scale.low) for value in triangle.values])
    finite = np.isfinite(values)
    grid = _triangulate(np.array(triangle.points), finite)
    used = np.unique(grid.get_masked_triangles())
    lonely = finite & ~np.isin(np.arange(finite.size), used)
    axes.scatter(grid.x[lonely], grid.y[lonely], c=values[lonely], norm=norm, cmap=COLOURS, s=30, zorder=3)
    if used.size == 0:
        return
    space = np.geomspace if scale.logarithmic else np.linspace
    changes = space(scale.low * (1 - 1e-9), scale.high * (1 + 1e-9), 41)  # of the colour, with both ends inside
    filled = axes.tricontourf(grid, values, levels=changes, norm=norm, cmap=COLOURS, zorder=1)
    filled.set_edgecolor("face")  # else hairlines show between neighbouring colours
    levels = [level for level in scale.ticks() if values[used].min() < level < values[used].max()]
    colours = ["white" if norm(level) < 0.55 else style.INK for level in levels]
    if levels:
        lines = axes.tricontour(grid, values, levels=levels, colors=colours, linewidths=0.9, zorder=2)
        sizes = [np.ptp(path.vertices, axis=0).max(initial=0.0) for path in lines.get_paths()]
        long = [level for level, size in zip(levels, sizes, strict=True) if size > 0.2]  # others have no room for their value
        for text in axes.clabel(lines, long, fmt="%g", fontsize=8.5):
            text.set_rotation(0)  # a six that follows a steep line looks like a nine


def _triangulate(points: FloatArray, finite: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Triangulation:
    """The grid as triangles, without those that are degenerate by rounding or have a corner without a value."""
    from matplotlib.tri import TriAnalyzer, Triangulation

    try:
        grid = Triangulation(points[:, 2] + points[:, 0] / 2, points[:, 0] * PEAK)
    except (RuntimeError, ValueError):
        raise FigureError("this heatmap cannot be drawn: its points are all on one line") from None
    flat = TriAnalyzer(grid).circle_ratios() < 0.01
    grid.set_mask(flat | ~finite[grid.triangles].all(axis=1))
    return grid
