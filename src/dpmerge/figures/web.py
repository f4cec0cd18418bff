"""Any description of a picture as plotly.js draws it: "data" and "layout" as plain JSON data, with hover texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from dpmerge.figures import style
from dpmerge.figures.labels import LETTER, Label, place_names
from dpmerge.figures.picture import Axis, Line, Panel, Picture, Triangle

_SCALE = 12 / LETTER  # names are written larger on a screen than the units of labels.py say
_WIDE, _HIGH = 1050, 480  # pixels of axes on a screen of usual width
_PIXELS, _ROW, _SIDE = 1100, 430, 370  # of triangles: the plot's width, the height of a row, the side of a triangle
_PEAK = math.sqrt(3) / 2


def web_figure(picture: Picture) -> dict[str, Any]:
    """The same picture as in print, with hover texts."""
    traces = list(_triangle_traces(picture) if picture.triangles else _panel_traces(picture))
    layout: dict[str, Any] = {
        "font": {"size": 13, "color": style.INK},
        "hoverlabel": {"align": "left"},
        **(_triangle_layout(picture) if picture.triangles else _panel_layout(picture)),
    }
    return {"data": traces, "layout": layout}


def _hover(texts: Iterable[Iterable[str]]) -> dict[str, Any]:
    """Hover texts, a list of lines for each point; inside the template itself a name could be parsed as markup."""
    told = ["<br>".join(style.plotly_text(style.short(line, 60)) for line in text) for text in texts]
    return {"customdata": told, "hovertemplate": "%{customdata}<extra></extra>"}


# --- panels -----------------------------------------------------------------------------------------------------------------


def _panel_traces(picture: Picture) -> Iterator[dict[str, Any]]:
    """The legend names everything once, and shows and hides all that has one name together."""
    looks = picture.looks()
    shown: set[str] = set()
    for number, panel in enumerate(picture.panels, start=1):
        traces: list[dict[str, Any]] = []
        for index, line in enumerate(panel.lines):
            traces += [*_band_traces(line, looks[line.name]), _line_trace(panel, line, looks[line.name], index)]
        for trace in (*traces, *_mark_traces(panel, picture.marks())):
            name = style.plotly_text(trace["name"])
            first = trace.get("showlegend", True) and name not in shown
            shown |= {name} if first else set()
            places = {"xaxis": _key("x", number), "yaxis": _key("y", number)}
            yield {"type": "scatter", **trace, "name": name, "legendgroup": name, "showlegend": first, **places}


def _key(axis: str, number: int) -> str:
    """Plotly's name of the panel's axis: the first one has no number."""
    return axis if number == 1 else f"{axis}{number}"


def _band_traces(line: Line, look: style.Look) -> Iterator[dict[str, Any]]:
    """Each unbroken piece of a band as an outline: along the upper side and back along the lower."""
    band = zip(line.x, line.band, strict=True) if line.band and line.joined else ()
    for whole, piece in groupby(band, key=lambda corner: None not in corner[1]):
        if whole:
            x, low, high = (list(values) for values in zip(*((x, *ends) for x, ends in piece), strict=True))
            fill = {"fill": "toself", "fillcolor": look.colour, "opacity": 0.18, "mode": "none", "hoverinfo": "skip"}
            yield {"name": line.name, **fill, "x": x + x[::-1], "y": high + low[::-1], "showlegend": False}


def _line_trace(panel: Panel, line: Line, look: style.Look, index: int) -> dict[str, Any]:
    told = [panel.hover(line, k) for k in range(len(line.x))]
    marked, size = line.marked(index), 10 if look.thin else 5 if line.faint else 7 if line.joined else 9
    sizes = [size if k in marked else 0 for k in range(len(line.x))]
    x, y = panel.places(index), line.y
    if line.steps:  # the last step goes on to the edge, without a marker there
        x, y, told, sizes = [*x, panel.across.high], [*y, y[-1]], [*told, told[-1]], [*sizes, 0]
    stroke = {"color": look.colour, "dash": look.dash, "width": 1.2 if look.thin else 2}
    trace = {
        "name": line.name,
        "x": x,
        "y": y,
        "mode": "markers" if not line.joined else "lines" if look.thin else "lines+markers",
        "line": {**stroke, "shape": "hv" if line.steps else "linear"},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": sizes, "opacity": 1},
        **_hover(told),
        **({"error_y": _bars(line)} if line.band and not line.joined else {}),
    }
    return {**trace, "opacity": 0.5, "showlegend": False} if line.faint else trace


def _bars(line: Line) -> dict[str, Any]:
    """A band around points that are not joined."""

    def apart(high: float | None, low: float | None) -> float:
        return 0.0 if high is None or low is None else high - low

    ends = [(low, y, high) for (low, high), y in zip(line.band, line.y, strict=True)]
    sides = {"array": [apart(high, y) for _, y, high in ends], "arrayminus": [apart(y, low) for low, y, _ in ends]}
    return {"type": "data", "symmetric": False, "width": 0, **sides}


def _mark_traces(panel: Panel, kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Single points that are not on a line."""
    for key in kinds:
        mark, points = style.MARKS[key], [point for point in panel.points if point.mark == key]
        x, y = panel.across, panel.up
        told = [p.hover or [p.name, f"{x.label}: {x.text(p.x)}", f"{y.label}: {y.text(p.y)}"] for p in points]
        marker = {"color": mark.colour, "symbol": mark.symbol, "size": mark.size + 1, "line": {"color": style.INK, "width": 1}}
        where = {"x": [point.x for point in points], "y": [point.y for point in points]}
        if points:
            yield {"name": mark.label, "mode": "markers", "marker": marker, **where, **_hover(told)}


def _panel_layout(picture: Picture) -> dict[str, Any]:
    rows, columns = picture.grid
    named = any(panel.categories for panel in picture.panels)  # names need room below; the legend goes above
    gap, headed = 0.3 if named else 0.14, columns > 1 or any(panel.targets for panel in picture.panels)
    layout: dict[str, Any] = {
        "height": 260 + 420 * rows,
        "margin": {"l": 70, "r": 20, "t": 90 if named else 40 if headed else 20, "b": 20},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, **({"y": 1.07} if named else {"y": -gap / rows, "yanchor": "top"})},
        "annotations": [],
        "shapes": [],
    }
    for index, panel in enumerate(picture.panels):
        row, column = divmod(index, columns)
        left, right = column / columns + 0.04 * (column > 0), (column + 1) / columns - 0.02 * (column + 1 < columns)
        low, high = 1 - (row + 1) / rows + gap / rows * (row + 1 < rows), 1 - row / rows - 0.02 * (rows > 1)
        x, y = _key("x", index + 1), _key("y", index + 1)
        layout[x.replace("x", "xaxis")] = {**_axis(panel.across), "domain": [left, right], "anchor": y}
        layout[y.replace("y", "yaxis")] = {**_axis(panel.up), "domain": [low, high], "anchor": x}
        if panel.title:
            heading = {"text": f"<b>{style.plotly_text(panel.title)}</b>", "x": left, "xanchor": "left"}
            layout["annotations"].append(_note(heading, y=high, yanchor="bottom"))
        layout["annotations"] += _notes(panel, x, y, columns)
        layout["shapes"] += _target_lines(panel, x, y)
    return layout


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = axis.ticks()
    return {
        "type": "log" if axis.logarithmic else "linear",
        "range": [axis.position(axis.low), axis.position(axis.high)],
        "tickvals": list(ticks),
        "ticktext": [style.plotly_text(text) for text in ticks.values()],
        "title": {"text": style.plotly_text(style.short(axis.label, 60))},
        **({"automargin": True, "tickangle": -40} if axis.categories else {}),
    }


def _note(note: dict[str, Any], **where: Any) -> dict[str, Any]:
    return {"xref": "paper", "yref": "paper", "showarrow": False, **note, **where}


def _notes(panel: Panel, x: str, y: str, columns: int) -> Iterator[dict[str, Any]]:
    """Names of points where there is room (hovering tells the others), names of targets, a word where nothing is drawn."""
    for point, label in place_names(panel, _WIDE / columns / _SCALE, _HIGH / _SCALE):
        if label is not None:
            where = {"xref": x, "yref": y, "x": panel.across.position(point.x), "y": panel.up.position(point.y)}
            yield {**_name_note(label), **where}
    for target in panel.targets:
        text = {"text": f"target ε = {style.epsilon_text(target)}", "font": {"size": 11, "color": style.QUIET}}
        where = {"xref": x, "yref": f"{y} domain", "x": panel.across.position(target), "y": 1}
        yield _note(text, **where, yanchor="bottom")
    if panel.nothing:
        yield _note({"text": style.plotly_text(panel.nothing)}, xref=f"{x} domain", yref=f"{y} domain", x=0.5, y=0.5)


def _name_note(label: Label) -> dict[str, Any]:
    """A name beside its point."""
    right, up = label.right * label.distance * _SCALE, label.up * label.distance * _SCALE
    shift = {"ax": right, "ay": -up, "arrowwidth": 1, "standoff": 6} if label.far else {"xshift": right, "yshift": up}
    return {
        "text": f"<b>{style.plotly_text(label.text)}</b>",
        "font": {"size": 12},
        "bgcolor": "rgba(255,255,255,0.75)",
        "showarrow": label.far,
        "arrowhead": 0,
        "xanchor": label.choose(0, "left", "center", "right"),
        "yanchor": label.choose(1, "bottom", "middle", "top"),
        **shift,
    }


def _target_lines(panel: Panel, x: str, y: str) -> list[dict[str, Any]]:
    stroke = {"color": style.QUIET, "width": 1.5, "dash": "longdash"}
    along = {"type": "line", "xref": x, "yref": f"{y} domain", "y0": 0, "y1": 1, "layer": "below", "line": stroke}
    return [{**along, "x0": target, "x1": target} for target in panel.targets]


# --- triangles --------------------------------------------------------------------------------------------------------------


def _triangle_traces(picture: Picture) -> Iterator[dict[str, Any]]:
    """The points with a finite ε as coloured tiles, the others as empty ones."""
    scale = picture.colours()
    size = max(2 / math.sqrt(3) * picture.step * _SIDE, 3.0)  # hexagons of this size tile the triangle
    for number, triangle in enumerate(picture.triangles, start=1):
        for empty in (False, True):
            tiles = [(k, value) for k, value in enumerate(triangle.values) if (value is None) is empty]
            paint: dict[str, Any] = {"color": "white", "line": {"color": style.GRID, "width": 1}}
            if not empty:
                paint = {"color": [scale.position(value or 0.0) for _, value in tiles], "coloraxis": "coloraxis"}
            yield {
                "type": "scatterternary",
                "subplot": f"ternary{number}",
                "mode": "markers",
                "marker": {"symbol": "hexagon", "size": size, **paint},
                **{side: [triangle.points[k][corner] for k, _ in tiles] for corner, side in enumerate("abc")},
                **_hover([f"ε = {style.epsilon_text(value)}", *triangle.weights(k)] for k, value in tiles),
            }


def _triangle_layout(picture: Picture) -> dict[str, Any]:
    """One ternary plot and one heading for each triangle, in two columns, and the common colour scale to their right."""
    rows, scale = picture.grid[0], picture.colours()
    ticks = scale.ticks()
    layout: dict[str, Any] = {
        "width": _PIXELS,
        "height": _ROW * rows,
        "margin": {"l": 0, "r": 0, "t": 10, "b": 10},
        "showlegend": False,
        "coloraxis": {
            "cmin": scale.position(scale.low),
            "cmax": scale.position(scale.high),
            "colorscale": "Viridis",
            "colorbar": {
                "title": {"text": scale.label, "side": "right"},
                "tickvals": [scale.position(tick) for tick in ticks],
                "ticktext": list(ticks.values()),
                "x": 0.92,
                "len": 0.7,
            },
        },
        "annotations": [],
    }
    for index, triangle in enumerate(picture.triangles):
        row, column = divmod(index, 2)
        left, top = 0.06 + 0.46 * column, 1 - row / rows
        right, peak, base = left + _SIDE / _PIXELS, top - 0.18 / rows, top - (0.18 + _SIDE * _PEAK / _ROW) / rows
        layout[f"ternary{index + 1}"] = {"sum": 1, "domain": {"x": [left, right], "y": [base, peak]}, **_sides(triangle)}
        heading = {"text": f"<b>{style.plotly_text(triangle.title)}</b><br>{triangle.subtitle}"}
        layout["annotations"].append(_note(heading, x=(left + right) / 2, xanchor="center", y=top, yanchor="top"))
    return layout


def _sides(triangle: Triangle) -> dict[str, Any]:
    same = {"showticklabels": False, "ticks": "", "showgrid": False, "linecolor": style.INK}
    names = [style.plotly_text(style.short(name, 22)) for name in triangle.models]
    return {
        f"{side}axis": {"title": {"text": name, "font": {"size": 13}}, **same} for side, name in zip("abc", names, strict=True)
    }
