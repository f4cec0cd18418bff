"""The frontier: what can be released at each ε, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpmerge.figures import ink, page as pages, style, summary, web
from dpmerge.figures.documents import Frontier, read
from dpmerge.figures.scene import Scene, Spot, Stroke, arrange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def figure(document: Mapping[str, Any]) -> Figure:
    """The frontier for print."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    frontier = read(Frontier, document)
    scene = _with_room(arrange(frontier), frontier.targets)
    drawn = Figure(figsize=(ink.WIDTH, ink.HEIGHT))
    FigureCanvasAgg(drawn)
    top = ink.write_headings(drawn, summary.title(frontier), summary.subtitle(frontier), frontier.warning)
    bottom = ink.write_legend_and_notes(drawn, _legend_columns(scene), summary.notes(frontier))
    axes = drawn.add_axes((0.85 / ink.WIDTH, bottom, 1 - 1.1 / ink.WIDTH, top - bottom))
    _prepare(axes, frontier, scene)
    for stroke in scene.strokes:
        _draw_stroke(axes, stroke)
    axes.plot(*_columns(scene.models), **ink.mark_style(style.MODEL), zorder=6)
    axes.plot(*_columns([scene.joint] if scene.joint else []), **ink.mark_style(style.JOINT), zorder=7)
    for target in frontier.targets:
        axes.axvline(target, color=style.QUIET, linewidth=1.2, linestyle=(0, (8, 3)), zorder=1)
        beside: dict[str, Any] = {
            "xytext": (2, -2),
            "textcoords": "offset points",
            "rotation": 90,
            "va": "top",
            "fontsize": 8.5,
        }
        axes.annotate(_target_text(target), (target, scene.top), color=style.QUIET, **beside)
    if scene.empty:
        axes.text(0.5, 0.5, summary.NOTHING, transform=axes.transAxes, ha="center", va="center", color=style.QUIET)
    _write_names(axes, scene)
    return drawn


def _with_room(scene: Scene, targets: Sequence[float]) -> Scene:
    """The scene with an axis that reaches every target; steps go on to its edge."""
    low, high = (min([scene.low, *(t / 1.1 for t in targets)]), max([scene.high, *(t * 1.1 for t in targets)]))
    strokes = [
        stroke if stroke.exact or not stroke.line else replace(stroke, line=[*stroke.line[:-1], (high, stroke.line[-1][1])])
        for stroke in scene.strokes
    ]
    return replace(scene, low=low, high=high, strokes=strokes)


def _target_text(target: float) -> str:
    return f"target ε = {style.epsilon_text(target)}"


def _legend_columns(scene: Scene) -> list[list[Line2D]]:
    """One column for each rule and standing, with the single marks below the first ones."""
    from matplotlib.lines import Line2D

    groups: dict[str, list[Line2D]] = {}
    for stroke in scene.strokes:
        handle = Line2D([], [], label=stroke.label, **ink.line_style(stroke.look), **ink.marker_style(stroke.look, 6))
        groups.setdefault(stroke.look.colour, []).append(handle)
    columns = list(groups.values()) or [[]]
    marks = [style.MODEL] * bool(scene.models) + [style.JOINT] * (scene.joint is not None)
    for index, mark in enumerate(marks):
        columns[index % len(columns)].append(Line2D([], [], label=mark.label, **ink.mark_style(mark)))
    return columns


def _prepare(axes: Axes, frontier: Frontier, scene: Scene) -> None:
    ticks = style.log_ticks(scene.low, scene.high)
    axes.set_xscale("log")
    axes.set_xlim(scene.low, scene.high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(scene.bottom, scene.top)
    axes.set_xlabel(f"ε at δ = {style.epsilon_text(frontier.delta)}")
    axes.set_ylabel(style.short(frontier.utility_label, 60))
    axes.grid(color=style.GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_stroke(axes: Axes, stroke: Stroke) -> None:
    look, line = stroke.look, ([x for x, _ in stroke.line], [y for _, y in stroke.line])
    layer = 2.0 if look.hollow else 3.0
    if stroke.exact:
        every = max(1, len(stroke.line) // 10)  # enough markers to tell the curve by, not one per target
        first = every // 2 if look.dashes else 0  # where curves coincide, their markers alternate
        axes.plot(*line, **ink.line_style(look), **ink.marker_style(look, 5), markevery=(first, every), zorder=layer)
        return
    axes.plot(*line, **ink.line_style(look), zorder=layer)
    for on_frontier, size, alpha in ((False, 2.7, 0.45), (True, 4.0, 1.0)):
        spots = [spot for spot in stroke.spots if spot.on_frontier is on_frontier]
        axes.plot(*_columns(spots), linestyle="none", alpha=alpha, **ink.marker_style(look, size), zorder=layer)


def _write_names(axes: Axes, scene: Scene) -> None:
    frame = axes.get_position()
    labels = scene.labels(frame.width * ink.WIDTH * 72, frame.height * ink.HEIGHT * 72)
    ink.write_names(axes, [((spot.x, spot.y), label) for spot, label in labels])


def _columns(spots: Sequence[Spot]) -> tuple[list[float], list[float]]:
    return [spot.x for spot in spots], [spot.y for spot in spots]


def web_figure(document: Mapping[str, Any]) -> dict[str, Any]:
    """What plotly.js draws, as plain JSON data: the same picture with hover texts."""
    frontier = read(Frontier, document)
    scene = _with_room(arrange(frontier), frontier.targets)
    traces = [trace for stroke in scene.strokes for trace in _stroke_traces(scene, stroke)]
    traces.append(_mark_trace(style.MODEL, scene.models))
    if scene.joint:
        traces.append(_mark_trace(style.JOINT, [scene.joint]))
    return {"data": traces, "layout": _layout(frontier, scene)}


def page(document: Mapping[str, Any]) -> str:
    """The frontier as a web page: the same picture with hover texts, and the same in tables."""
    frontier = read(Frontier, document)
    what = frontier.utility_label
    columns, rows = summary.target_table(frontier)
    return pages.page(
        summary.title(frontier),
        summary.subtitle(frontier),
        frontier.warning,
        web_figure(document),
        [
            pages.prose("How to read this", summary.HOW_TO_READ, *summary.notes(frontier)),
            pages.prose("Who chose the weights", *summary.provenance(frontier)),
            pages.table("The best releases", f"{what} within a target ε, ≈ where it is interpolated", columns, rows),
            pages.table("The models", "each alone", ["model", what, "ε by PLD", "ε by RDP"], summary.model_rows(frontier)),
        ],
    )


def _layout(frontier: Frontier, scene: Scene) -> dict[str, Any]:
    ticks = style.log_ticks(scene.low, scene.high)
    shapes, notes = _target_lines(frontier.targets)
    return {
        "height": 680,
        "margin": {"l": 70, "r": 20, "t": 30 if frontier.targets else 20, "b": 20},
        "font": {"size": 13, "color": style.INK},
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top"},
        "annotations": _name_notes(scene) + _nothing(scene) + notes,
        "shapes": shapes,
        "xaxis": {
            "type": "log",
            "range": [math.log10(scene.low), math.log10(scene.high)],
            "tickvals": ticks,
            "ticktext": [f"{tick:g}" for tick in ticks],
            "title": {"text": f"ε at δ = {style.epsilon_text(frontier.delta)}"},
        },
        "yaxis": {
            "range": [scene.bottom, scene.top],
            "title": {"text": style.plotly_text(style.short(frontier.utility_label, 60))},
        },
    }


def _stroke_traces(scene: Scene, stroke: Stroke) -> list[dict[str, Any]]:
    """The line with its markers, and what is below it; the legend shows and hides them together."""
    look, name = stroke.look, style.plotly_text(stroke.label)
    on = [spot for spot in stroke.spots if stroke.exact or spot.on_frontier]
    below = [spot for spot in stroke.spots if not (stroke.exact or spot.on_frontier)]
    if on and not stroke.exact:
        on.append(replace(on[-1], x=scene.high))  # the last step goes on to the edge, without a marker there
    sizes = [6] * len(on) if stroke.exact else [8] * (len(on) - 1) + [0]
    line = {"color": look.colour, "dash": look.dash, "width": 2, "shape": "linear" if stroke.exact else "hv"}
    marker = {"color": look.colour, "symbol": look.symbol}
    same = {"type": "scatter", "name": name, "legendgroup": name}
    through = {"mode": "lines+markers", "line": line, "marker": {**marker, "size": sizes}, **_hover(on)}
    others = {"mode": "markers", "marker": {**marker, "size": 5}, "opacity": 0.5, "showlegend": False, **_hover(below)}
    return [{**same, **through}, {**same, **others}] if below else [{**same, **through}]


def _mark_trace(mark: style.Mark, spots: list[Spot]) -> dict[str, Any]:
    return web.mark_trace(mark, *_columns(spots), [spot.text for spot in spots])


def _name_notes(scene: Scene) -> list[dict[str, Any]]:
    """The models' names, where there is room on a screen of usual width; hovering tells the others."""
    placed = scene.labels(1050 / web.SCALE, 480 / web.SCALE)
    return [web.name_note(label, math.log10(spot.x), spot.y) for spot, label in placed if label is not None]


def _target_lines(targets: Sequence[float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A vertical line for each target, and its name above it."""
    stroke = {"color": style.QUIET, "width": 1.5, "dash": "longdash"}
    along = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below", "line": stroke}
    shapes = [{**along, "x0": target, "x1": target} for target in targets]
    same = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "font": {"size": 11, "color": style.QUIET}}
    notes = [{**same, "x": math.log10(target), "text": _target_text(target)} for target in targets]
    return shapes, notes


def _nothing(scene: Scene) -> list[dict[str, Any]]:
    """A word where there would be an empty frame."""
    where = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    return [{"text": summary.NOTHING, "showarrow": False, **where}] if scene.empty else []


def _hover(spots: Sequence[Spot]) -> dict[str, Any]:
    xs, ys = _columns(spots)
    return {"x": xs, "y": ys, **web.hover(spot.text for spot in spots)}
