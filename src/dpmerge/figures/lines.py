"""Lines: one quantity against another, for several methods, in one or several panels.

    {
      "kind": "lines",
      "title": "ε of N models together",
      "subtitle": "Gaussian mechanisms, δ = 1e-5",           optional
      "caption": "How to read it, in a few sentences.",       optional
      "warning": "weights were chosen by test accuracy",      optional; shown in bold, in the colour of alarm
      "panels": [
        {
          "title": "ε = 1 each",                              optional
          "x_label": "number of models N", "y_label": "ε",
          "x_scale": "log", "y_scale": "linear",              optional: "linear" unless said
          "lines": [
            {
              "label": "joint release, PLD",                  lines with one label look alike in all panels
              "x": [1, 2, 4], "y": [1.0, 1.4, null],          null (or infinite): a gap
              "low": […], "high": […],                        optional: a band around y, as mean ± deviation
              "standing": "proved",                           proved (default), conditional, measured or reference
              "rule": "joint", "by": "pld",                   optional: the colour and dashes that all pictures give these
              "markers": true                                 optional: a marker on every point
            }
          ],
          "points": [{"name": "σ = 0.1", "x": 1.0, "y": 0.2, "mark": "model"}]    optional: model or joint
        }
      ]
    }

A document with one panel may have the fields of the panel beside its own, instead of "panels". What is conditional is dotted
and hollow and its label says so; references are thin and grey.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dpmerge.figures import chart as charts, ink, page as pages, style, web
from dpmerge.figures.chart import MARKS, Axis
from dpmerge.figures.documents import Chart, ChartPanel, Line, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_ROW = 3.6  # inches that another row of panels adds
_HOW_TO_READ = (
    "Lines with one name belong to one method, in every panel. What is dotted and hollow is conditional: it holds only under "
    "an assumption that fails in general. Thin grey lines are references to compare with; pale bands are mean ± standard "
    "deviation."
)


def figure(document: Mapping[str, Any]) -> Figure:
    """The lines for print."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chart = read(Chart, document)
    looks = charts.looks(chart)
    rows, columns = _grid(chart)
    drawn = Figure(figsize=(ink.WIDTH, ink.HEIGHT + _ROW * (rows - 1)))
    FigureCanvasAgg(drawn)
    height = drawn.get_size_inches()[1]
    top = ink.write_headings(drawn, style.short(chart.title, 95), chart.subtitle, chart.warning)
    bottom = ink.write_legend_and_notes(drawn, _legend(chart, looks), [chart.caption])
    for index, panel in enumerate(chart.panels):
        row, column = divmod(index, columns)
        cell = (top - bottom + 0.55 / height) / rows
        left, right = (column / columns + 0.85 / ink.WIDTH, (column + 1) / columns - 0.25 / ink.WIDTH)
        low = top - (row + 1) * cell + 0.55 / height
        high = top - row * cell - (0.25 / height if panel.title else 0.0)
        axes = drawn.add_axes((left, low, right - left, high - low))
        _draw_panel(axes, panel, looks)
    return drawn


def _grid(chart: Chart) -> tuple[int, int]:
    columns = 1 if len(chart.panels) == 1 else 2
    return math.ceil(len(chart.panels) / columns), columns


def _legend(chart: Chart, looks: dict[str, style.Look]) -> list[list[Line2D]]:
    """Up to three columns of lines, then the marks."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=style.short(text, 60), **_line_style(look), **ink.marker_style(look, 6))
        for text, look in looks.items()
    ]
    used = {point.mark for panel in chart.panels for point in panel.points}
    handles += [Line2D([], [], label=mark.label, **ink.mark_style(mark)) for key, mark in MARKS.items() if key in used]
    length = math.ceil(len(handles) / 3)
    return [handles[start : start + length] for start in range(0, len(handles), length)]


def _line_style(look: style.Look) -> dict[str, Any]:
    """References have no markers and are thinner."""
    return ink.line_style(look) | ({} if look.marker else {"linewidth": 1.2})


def _draw_panel(axes: Axes, panel: ChartPanel, looks: dict[str, style.Look]) -> None:
    across, up = charts.axes(panel)
    for name, axis in (("x", across), ("y", up)):
        ticks = axis.ticks()
        getattr(axes, f"set_{name}scale")("log" if axis.logarithmic else "linear")
        getattr(axes, f"set_{name}lim")(axis.low, axis.high)
        getattr(axes, f"set_{name}ticks")(ticks, [f"{tick:g}" for tick in ticks])
        getattr(axes, f"set_{name}ticks")([], minor=True)
        getattr(axes, f"set_{name}label")(style.short(axis.label, 60))
    axes.grid(color=style.GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.title:
        axes.set_title(style.short(panel.title, 60), loc="left", fontsize=11, fontweight="bold", color=style.INK)
    for index, line in enumerate(panel.lines):
        _draw_line(axes, line, looks[charts.label(line)], index)
    for point in panel.points:
        axes.plot([point.x], [point.y], **ink.mark_style(MARKS[point.mark]), zorder=6)
    frame = axes.get_window_extent()
    points = 72 / axes.figure.dpi
    placed = charts.place_names(panel, frame.width * points, frame.height * points)
    ink.write_names(axes, [((point.x, point.y), name) for point, name in placed])


def _draw_line(axes: Axes, line: Line, look: style.Look, index: int) -> None:
    layer = 2.0 if look.hollow or not look.marker else 3.0
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, _numbers(line.low), _numbers(line.high), color=look.colour, alpha=0.18, linewidth=0)
    every = 1 if line.markers else max(1, len(line.x) // 8)  # enough markers to tell the line by
    first = 0 if line.markers else index % every  # where lines coincide, their markers alternate
    axes.plot(
        line.x, _numbers(line.y), **_line_style(look), **ink.marker_style(look, 4.5), markevery=(first, every), zorder=layer
    )


def _numbers(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def web_figure(document: Mapping[str, Any]) -> dict[str, Any]:
    """What plotly.js draws, as plain JSON data: the same picture with hover texts."""
    chart = read(Chart, document)
    looks = charts.looks(chart)
    traces: list[dict[str, Any]] = []
    shown: set[str] = set()  # the legend names every label once
    for number, panel in enumerate(chart.panels, start=1):
        for trace in [*_line_traces(panel, looks), *_mark_traces(panel)]:
            legend = {"showlegend": trace.get("showlegend", True) and trace["name"] not in shown}
            traces.append({"legendgroup": trace["name"], **trace, **legend, "xaxis": f"x{number}", "yaxis": f"y{number}"})
            shown |= {trace["name"]} if legend["showlegend"] else set()
    return {"data": traces, "layout": _layout(chart)}


def page(document: Mapping[str, Any]) -> str:
    """The lines as a web page: the same picture with hover texts, and the same in tables."""
    chart = read(Chart, document)
    tables = [
        pages.table(panel.title or "The numbers", f"{panel.y_label} against {panel.x_label}", *charts.table(panel))
        for panel in chart.panels
    ]
    return pages.page(
        chart.title,
        chart.subtitle,
        chart.warning,
        web_figure(document),
        [pages.prose("How to read this", chart.caption, _HOW_TO_READ), *tables],
    )


def _layout(chart: Chart) -> dict[str, Any]:
    rows, columns = _grid(chart)
    layout: dict[str, Any] = {
        "height": 260 + 400 * rows,
        "margin": {"l": 70, "r": 20, "t": 40, "b": 20},
        "font": {"size": 13, "color": style.INK},
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "x": 0, "y": -0.14 / rows, "yanchor": "top"},
        "annotations": [],
    }
    for index, panel in enumerate(chart.panels):
        row, column = divmod(index, columns)
        left, right = column / columns + (0.04 if column else 0.0), (column + 1) / columns - (0.0 if column else 0.02)
        low, high = 1 - (row + 1) / rows + (0.14 / rows if row + 1 < rows else 0.0), 1 - row / rows - 0.02
        across, up = charts.axes(panel)
        number = index + 1
        layout[f"xaxis{number}"] = {**_axis(across), "domain": [left, right if columns > 1 else 1.0], "anchor": f"y{number}"}
        layout[f"yaxis{number}"] = {**_axis(up), "domain": [low, high], "anchor": f"x{number}"}
        where = {"xref": "paper", "yref": "paper", "x": left, "y": high, "xanchor": "left", "yanchor": "bottom"}
        if panel.title:
            layout["annotations"].append({"text": f"<b>{style.plotly_text(panel.title)}</b>", "showarrow": False, **where})
        layout["annotations"] += _name_notes(panel, number, 1050 / columns, 360)
    return layout


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = axis.ticks()
    return {
        "type": "log" if axis.logarithmic else "linear",
        "range": [axis.plotly(axis.low), axis.plotly(axis.high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
        "title": {"text": style.plotly_text(style.short(axis.label, 60))},
    }


def _line_traces(panel: ChartPanel, looks: dict[str, style.Look]) -> Iterator[dict[str, Any]]:
    """The band below, the line above; the legend shows and hides them together."""
    for line in panel.lines:
        look, name = looks[charts.label(line)], style.plotly_text(charts.label(line))
        same = {"type": "scatter", "name": name, "legendgroup": name}
        for x, y in _band_outlines(line):
            fill = {"fill": "toself", "fillcolor": look.colour, "opacity": 0.18, "mode": "none", "hoverinfo": "skip"}
            yield {**same, **fill, "x": x, "y": y, "showlegend": False}
        stroke = {"color": look.colour, "dash": look.dash, "width": 2 if look.marker else 1.2}
        every = 1 if line.markers else max(1, len(line.x) // 8)
        sizes = [7 if index % every == 0 else 0 for index in range(len(line.x))]
        marker = {"mode": "lines+markers", "marker": {"color": look.colour, "symbol": look.symbol, "size": sizes}}
        told = web.hover(charts.hover(panel, line, index) for index in range(len(line.x)))
        yield {**same, "x": line.x, "y": line.y, "line": stroke, **(marker if look.marker else {"mode": "lines"}), **told}


def _band_outlines(line: Line) -> Iterator[tuple[list[float], list[float]]]:
    """Each unbroken piece of the band as an outline: along the upper side and back along the lower."""
    corners = zip(line.x, line.low or (), line.high or (), strict=line.low is not None)
    for whole, piece in groupby(corners, key=lambda corner: None not in corner):
        if whole:
            xs, lows, highs = (list(values) for values in zip(*piece, strict=True))
            yield xs + xs[::-1], highs + lows[::-1]


def _mark_traces(panel: ChartPanel) -> Iterator[dict[str, Any]]:
    across, up = charts.axes(panel)
    for key, mark in MARKS.items():
        points = [point for point in panel.points if point.mark == key]
        texts = [[point.name, f"{across.label}: {across.text(point.x)}", f"{up.label}: {up.text(point.y)}"] for point in points]
        if points:
            yield web.mark_trace(mark, [point.x for point in points], [point.y for point in points], texts)


def _name_notes(panel: ChartPanel, number: int, width: float, height: float) -> Iterator[dict[str, Any]]:
    """Names beside points, where there is room on a screen of usual width; hovering tells the others."""
    across, up = charts.axes(panel)
    for point, name in charts.place_names(panel, width / web.SCALE, height / web.SCALE):
        if name is not None:
            x, y = across.plotly(point.x), up.plotly(point.y)
            yield {**web.name_note(name, x, y), "xref": f"x{number}", "yref": f"y{number}"}
