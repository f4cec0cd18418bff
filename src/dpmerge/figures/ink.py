"""What the pictures drawn by matplotlib have in common: headings, a legend with notes below, styles, names beside points."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dpmerge.figures import style
from dpmerge.figures.labels import LETTER, Label, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH, HEIGHT = 10.0, 900 / 140  # inches: 1400 × 900 pixels
_LEFT = 0.25


def write_headings(drawn: Figure, title: str, subtitle: str, warning: str | None) -> float:
    """Title, subtitle and warning; returns where the axes may end, as a share of the height."""
    width, height = drawn.get_size_inches()
    y = height - 0.38
    drawn.text(_LEFT / width, y / height, title, fontsize=14, fontweight="bold", color=style.INK)
    if subtitle:
        y -= 0.25
        drawn.text(_LEFT / width, y / height, style.short(subtitle, 140), fontsize=9.5, color=style.QUIET)
    for line in textwrap.wrap(warning or "", 125, max_lines=4, placeholder=" …"):
        y -= 0.22
        drawn.text(_LEFT / width, y / height, line, fontsize=9.5, fontweight="bold", color=style.ALARM)
    return float((y - 0.2) / height)


def write_legend_and_notes(drawn: Figure, columns: list[list[Line2D]], notes: Iterable[str]) -> float:
    """What is below the axes, from the bottom up; returns where the axes may begin, as a share of the height.

    Each column of the legend stays one, unless that makes it wider than the picture.
    """
    from matplotlib.lines import Line2D

    width, height = drawn.get_size_inches()
    y = 0.15
    for line in reversed(textwrap.wrap(" ".join(notes), 150, max_lines=3, placeholder=" …")):
        drawn.text(_LEFT / width, y / height, line, fontsize=8, color=style.QUIET)
        y += 0.17
    length = max(len(column) for column in columns)
    blank = Line2D([], [], linestyle="none", label=" ")
    aligned = [handle for column in columns for handle in [*column, *[blank] * (length - len(column))]]
    packed = [handle for column in columns for handle in column]
    for count, handles in ((len(columns), aligned), (2, packed), (1, packed)):
        legend = drawn.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, y / height),
            ncols=count,
            fontsize=9,
            frameon=False,
            handlelength=4,
            columnspacing=2,
        )
        box = legend.get_window_extent()
        if box.width <= drawn.bbox.width * (1 - 2 * _LEFT / width) or count == 1:
            break
        legend.remove()  # too wide: fewer columns
    return float(box.y1 / drawn.bbox.height + 0.5 / height)


def line_style(look: style.Look) -> dict[str, Any]:
    """matplotlib's words for a line."""
    return {"color": look.colour, "linewidth": 1.8, "linestyle": (0, look.dashes) if look.dashes else "solid"}


def marker_style(look: style.Look, size: float) -> dict[str, Any]:
    """matplotlib's words for the markers on a line."""
    face = "white" if look.hollow else look.colour
    return {"marker": look.marker, "markersize": size, "markerfacecolor": face, "markeredgecolor": look.colour}


def mark_style(mark: style.Mark) -> dict[str, Any]:
    """matplotlib's words for a single point."""
    shape = {"marker": mark.marker, "markersize": mark.size}
    return {"linestyle": "none", "color": mark.colour, "markeredgecolor": style.INK, "markeredgewidth": 0.8, **shape}


def write_names(axes: Axes, placed: list[tuple[Place, Label | None]]) -> None:
    """Names beside their points; those without a place are counted."""
    for spot, label in placed:
        if label is not None:
            axes.annotate(
                label.text,
                spot,
                xytext=(label.right * label.distance, label.up * label.distance),
                textcoords="offset points",
                ha=label.choose(0, "left", "center", "right"),
                va=label.choose(1, "bottom", "center", "top"),
                fontsize=LETTER,
                fontweight="bold",
                color=style.INK,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
                arrowprops={"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5} if label.far else None,
                zorder=8,
            )
    lost = sum(label is None for _, label in placed)
    if lost:
        axes.set_title(f"{lost} input models are not named, for lack of room", loc="right", fontsize=8, color=style.QUIET)
