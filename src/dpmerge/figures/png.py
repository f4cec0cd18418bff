"""Any description of a picture as a PNG file, drawn by matplotlib.

The same description always gives the same bytes: no dates, no random identifiers, no settings of the machine's own.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

from dpmerge.figures import style, triangles
from dpmerge.figures.labels import LETTER, place_names
from dpmerge.figures.picture import Axis, Line, Panel, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTINGS: Any = {
    "figure.dpi": 110,
    "savefig.dpi": "figure",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # a dollar sign in a model's name is literal
    "axes.unicode_minus": True,
}
_WIDTH, _HEIGHT, _ROW = 10.0, 6.4, 3.6  # inches; every further row of panels adds _ROW
_LEFT, _RIGHT, _BELOW, _ABOVE = 0.85, 0.25, 0.55, 0.25  # inches around the axes of a panel
_TILT = 40  # degrees, of names on an axis that are too long to be written along it


def png(picture: Picture) -> bytes:
    """The file. Drawn with matplotlib's defaults and the settings above, whatever the user's own are; those stay untouched."""
    import matplotlib
    from PIL import Image

    drawn, file = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # scripts that the font lacks are boxes
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure(picture).savefig(drawn, format="png", metadata={"Software": None})
    with Image.open(drawn) as image:
        palette = image.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        palette.save(file, "PNG", optimize=True)  # a third of the size, and no difference that is seen
    return file.getvalue()


def figure(picture: Picture) -> Figure:
    """Headings above, legend and caption below, and between them the panels or triangles in one or two columns."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = picture.grid
    drawn = Figure(figsize=(_WIDTH, _HEIGHT + _ROW * (rows - 1)))
    FigureCanvasAgg(drawn)
    height = drawn.get_size_inches()[1]
    top, bottom = _write_headings(drawn, picture), _write_legend(drawn, picture)
    cell = (top - bottom) / rows
    if picture.triangles:
        triangles.draw(drawn, picture, top, cell)
        return drawn
    looks = picture.looks()
    below = max(_BELOW + _slant(panel) for panel in picture.panels) / height
    for index, panel in enumerate(picture.panels):
        row, column = divmod(index, columns)
        left, right = column / columns + _LEFT / _WIDTH, (column + 1) / columns - _RIGHT / _WIDTH
        low, high = top - (row + 1) * cell + below, top - row * cell - (_ABOVE / height if panel.title else 0.0)
        _draw_panel(drawn.add_axes((left, low, right - left, high - low)), panel, looks)
    return drawn


def _slant(panel: Panel) -> float:
    """Inches that names on the axis need below it beyond a line of text."""
    longest = max(map(len, panel.across.ticks().values())) if panel.categories else 0
    return 0.07 * longest * math.sin(math.radians(_TILT))


def _write_headings(drawn: Figure, picture: Picture) -> float:
    """Title, subtitle and warning; returns where the axes may end, as a share of the height."""
    width, height = drawn.get_size_inches()
    y = height - 0.38
    _write(drawn, y / height, style.short(picture.title, 110), fontsize=14, fontweight="bold", color=style.INK)
    if picture.subtitle:
        y -= 0.25
        _write(drawn, y / height, style.short(picture.subtitle, 160), fontsize=9.5, color=style.QUIET)
    for line in textwrap.wrap(picture.warning or "", 125, max_lines=4, placeholder=" …"):
        y -= 0.22
        drawn.text(_RIGHT / width, y / height, line, fontsize=9.5, fontweight="bold", color=style.ALARM)
    return float((y - 0.2) / height)


def _write(drawn: Figure, y: float, text: str, *, fontsize: float, **look: Any) -> None:
    """One line of the headings, in smaller letters where it would not fit."""
    shown = drawn.text(_RIGHT / _WIDTH, y, text, fontsize=fontsize, **look)
    room = drawn.bbox.width * (1 - 2 * _RIGHT / _WIDTH)
    while fontsize > 6 and shown.get_window_extent().width > room:  # widths of letters are rounded: there is no shorter way
        fontsize -= 0.5
        shown.set_fontsize(fontsize)


def _write_legend(drawn: Figure, picture: Picture) -> float:
    """The caption at the bottom and the legend above it; returns where that ends, as a share of the height."""
    from matplotlib.lines import Line2D

    width, height = drawn.get_size_inches()
    y = 0.15
    for text in reversed(textwrap.wrap(picture.caption, 150, max_lines=3, placeholder=" …")):
        drawn.text(_RIGHT / width, y / height, text, fontsize=8, color=style.QUIET)
        y += 0.17
    lines = {line.name: line for panel in picture.panels for line in panel.lines if not line.faint}
    handles = [
        Line2D([], [], label=style.short(name, 60), **_line_style(look, lines[name]), **_marker_style(look, lines[name], 6))
        for name, look in picture.looks().items()
        if name in lines
    ]
    handles += [Line2D([], [], label=style.MARKS[key].label, **_mark_style(style.MARKS[key])) for key in picture.marks()]
    for columns in (3, 2, 1) if handles else ():
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, y / height), "ncols": columns, "columnspacing": 2}
        legend = drawn.legend(handles=handles, fontsize=9, frameon=False, handlelength=4, **place)  # type: ignore[arg-type]
        box = legend.get_window_extent()
        if box.width <= drawn.bbox.width * (1 - 2 * _RIGHT / width) or columns == 1:
            return float(box.y1 / drawn.bbox.height)
        legend.remove()  # too wide: fewer columns
    return float(y / height)


def _draw_panel(axes: Axes, panel: Panel, looks: dict[str, style.Look]) -> None:
    _prepare(axes, "x", panel.across)
    _prepare(axes, "y", panel.up)
    if panel.categories:
        axes.tick_params("x", labelsize=9, labelrotation=_TILT)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axes.grid(color=style.GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.title:
        axes.set_title(style.short(panel.title, 60), loc="left", fontsize=11, fontweight="bold", color=style.INK)
    for index, line in enumerate(panel.lines):
        _draw_line(axes, line, looks[line.name], index, panel.places(index))
    for point in panel.points:
        axes.plot([point.x], [point.y], **_mark_style(style.MARKS[point.mark]), zorder=6)
    for target in panel.targets:
        axes.axvline(target, color=style.QUIET, linewidth=1.2, linestyle=(0, (8, 3)), zorder=1)
        beside: Any = {"xytext": (2, -2), "textcoords": "offset points", "rotation": 90, "va": "top", "fontsize": 8.5}
        axes.annotate(f"target ε = {style.epsilon_text(target)}", (target, panel.up.high), color=style.QUIET, **beside)
    if panel.nothing:
        axes.text(0.5, 0.5, panel.nothing, transform=axes.transAxes, ha="center", va="center", color=style.QUIET)
    _write_names(axes, panel)


def _prepare(axes: Axes, name: str, axis: Axis) -> None:
    ticks = axis.ticks()
    getattr(axes, f"set_{name}scale")("log" if axis.logarithmic else "linear")
    getattr(axes, f"set_{name}lim")(axis.low, axis.high)
    getattr(axes, f"set_{name}ticks")(list(ticks), list(ticks.values()))
    getattr(axes, f"set_{name}ticks")([], minor=True)
    getattr(axes, f"set_{name}label")(style.short(axis.label, 60))


def _draw_line(axes: Axes, line: Line, look: style.Look, index: int, x: list[float]) -> None:
    """The band below, the line above; proved lines are above those that are conditional or references."""
    layer = 2.0 if look.hollow or look.thin else 3.0
    y = _numbers(line.y)
    if line.band:
        low, high = _numbers(line.low or []), _numbers(line.high or [])
        if line.joined:
            axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
        else:
            axes.vlines(x, low, high, color=look.colour, linewidth=1.4, alpha=0.6, zorder=layer)
    size = 2.7 if line.faint else 4.5 if line.joined else 6.0
    drawn: dict[str, Any] = {**_line_style(look, line), **_marker_style(look, line, size)}
    if line.steps:
        x, y, drawn["drawstyle"] = [*x, axes.get_xlim()[1]], [*y, y[-1]], "steps-post"
    axes.plot(x, y, **drawn, markevery=list(line.marked(index)), alpha=0.45 if line.faint else 1.0, zorder=layer)


def _line_style(look: style.Look, line: Line) -> dict[str, Any]:
    dashes: Any = (0, look.dashes) if look.dashes else "solid"
    return {"color": look.colour, "linewidth": 1.2 if look.thin else 1.8, "linestyle": dashes if line.joined else "none"}


def _marker_style(look: style.Look, line: Line, size: float) -> dict[str, Any]:
    """References that are lines have none; those that are points have large thin ones."""
    if look.thin and line.joined:
        return {}
    shape: dict[str, Any] = {"marker": look.marker, "markersize": 10 if look.thin else size}
    return {**shape, "markerfacecolor": "white" if look.hollow else look.colour, "markeredgecolor": look.colour}


def _mark_style(mark: style.Mark) -> dict[str, Any]:
    shape = {"marker": mark.marker, "markersize": mark.size}
    return {"linestyle": "none", "color": mark.colour, "markeredgecolor": style.INK, "markeredgewidth": 0.8, **shape}


def _write_names(axes: Axes, panel: Panel) -> None:
    """Names beside their points; those without a place are counted."""
    frame, points = axes.get_window_extent(), 72 / axes.figure.dpi
    placed = place_names(panel, frame.width * points, frame.height * points)
    for point, label in placed:
        if label is not None:
            axes.annotate(
                label.text,
                (point.x, point.y),
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
    if lost := sum(label is None for point, label in placed if point.name):
        axes.set_title(f"{lost} input models are not named, for lack of room", loc="right", fontsize=8, color=style.QUIET)


def _numbers(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
