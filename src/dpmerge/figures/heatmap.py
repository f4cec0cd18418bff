"""The heatmap: ε over all weights of three models, one triangle for each rule and accountant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmerge.figures import contours, page as pages, style
from dpmerge.figures.contours import COLOURS, PEAK
from dpmerge.figures.documents import Heatmap, Panel, read
from dpmerge.profiles import FloatArray
from dpmerge.rules import RECORD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_WIDTH, _TOP, _ROW = 10.0, 0.85, 4.1  # inches: 1400 × 1267 pixels for four panels

HOW_TO_READ = (
    "Every point of a triangle is a choice of weights: a corner is that model alone, and the side opposite leaves it out. "
    "Colour is the ε of a release with these weights, on one scale for all triangles; darker is more private. White has no "
    "finite ε. What is conditional holds only under an assumption that fails in general."
    f" Every ε assumes that {RECORD}; and what the theorems of its rule assume besides (dpmerge account)."
)


@dataclass(frozen=True)
class Scale:
    """The common colour scale, logarithmic if the values span more than a factor of ten."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, heatmap: Heatmap) -> Scale:
        """The scale that all finite values fit; an ε of 0 has the lowest colour of a logarithmic one."""
        values = [value for panel in heatmap.panels for value in panel.epsilons if value is not None] or [0.0, 1.0]
        low, high = min(values), max(values)
        positive = min((value for value in values if value > 0), default=1.0)
        if high > 10 * positive:
            return cls(positive, high, True)
        return cls(low, high, False) if low < high else cls(0.9 * low, 1.1 * high or 1.0, False)

    def ticks(self, most: int = 8) -> list[float]:
        """Round values on the scale."""
        return (style.log_ticks if self.logarithmic else style.linear_ticks)(self.low, self.high, most)

    def colour_levels(self) -> FloatArray:
        """The values at which the colour changes, with both ends inside."""
        space = np.geomspace if self.logarithmic else np.linspace
        return np.asarray(space(self.low * (1 - 1e-9), self.high * (1 + 1e-9), 41), dtype=np.float64)

    def position(self, value: float) -> float:
        """Where a value is on the scale, for a backend that knows linear scales only."""
        return math.log10(max(value, self.low)) if self.logarithmic else value


def _ordered(heatmap: Heatmap) -> list[Panel]:
    """Random selection above linear combination, what is proved before what is conditional, RDP left of PLD."""
    return sorted(heatmap.panels, key=lambda panel: (panel.rule != "selection", panel.standing != "proved", panel.by != "rdp"))


def title(heatmap: Heatmap) -> str:
    """The heading."""
    return f"ε of every merge of three models at δ = {style.epsilon_text(heatmap.delta)}"


def _subtitle(heatmap: Heatmap) -> str:
    return f"{heatmap.adjacency} neighbours · weights in steps of {heatmap.step:g}"


def _panel_title(panel: Panel) -> str:
    conditional = panel.standing == "conditional" and "conditional" not in panel.title
    return panel.title + (" (conditional)" if conditional else "")


def _range_text(panel: Panel) -> str:
    values = [value for value in panel.epsilons if value is not None]
    if not values:
        return "no finite ε"
    low, high = (style.epsilon_text(value) for value in (min(values), max(values)))
    known = f"ε = {low}" if low == high else f"ε from {low} to {high}"
    return known if len(values) == len(panel.epsilons) else f"{known}, white where it is not finite"


def figure(document: Mapping[str, Any]) -> Figure:
    """The heatmap for print."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    heatmap = read(Heatmap, document)
    scale = Scale.of(heatmap)
    norm = (LogNorm if scale.logarithmic else Normalize)(scale.low, scale.high)
    height = _TOP + _ROW * math.ceil(len(heatmap.panels) / 2)
    drawn = Figure(figsize=(_WIDTH, height))
    FigureCanvasAgg(drawn)
    drawn.text(0.25 / _WIDTH, 1 - 0.38 / height, title(heatmap), fontsize=14, fontweight="bold", color=style.INK)
    drawn.text(0.25 / _WIDTH, 1 - 0.63 / height, _subtitle(heatmap), fontsize=9.5, color=style.QUIET)
    for index, panel in enumerate(_ordered(heatmap)):
        row, column = divmod(index, 2)
        axes = drawn.add_axes((0.02 + 0.44 * column, 1 - (_TOP + _ROW * (row + 1)) / height, 0.43, _ROW / height))
        _frame(axes, heatmap, panel)
        _fill(axes, heatmap, panel, scale, norm)
    if any(value is not None for panel in heatmap.panels for value in panel.epsilons):
        ticks = scale.ticks()
        bar = drawn.colorbar(ScalarMappable(norm, COLOURS), cax=drawn.add_axes((0.92, 0.2, 0.018, 0.6)))
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.ax.minorticks_off()
        bar.set_label(f"ε at δ = {style.epsilon_text(heatmap.delta)}")
    return drawn


def _frame(axes: Axes, heatmap: Heatmap, panel: Panel) -> None:
    """The triangle, its corners' names and the panel's title."""
    axes.set_aspect("equal")
    axes.set_xlim(-0.1, 1.1)
    axes.set_ylim(-0.13, PEAK + 0.27)
    axes.set_axis_off()
    axes.plot([0, 1, 0.5, 0], [0, 0, PEAK, 0], color=style.INK, linewidth=1, zorder=4)
    top, left, right = (style.short(name, 22) for name in heatmap.models)
    for name, x, y, side in ((top, 0.5, PEAK + 0.02, "center"), (left, -0.08, -0.07, "left"), (right, 1.08, -0.07, "right")):
        axes.text(x, y, name, ha=side, fontsize=9, color=style.INK)
    axes.text(
        0.5, PEAK + 0.18, style.short(_panel_title(panel), 44), ha="center", fontsize=11, fontweight="bold", color=style.INK
    )
    axes.text(0.5, PEAK + 0.115, _range_text(panel), ha="center", fontsize=9, color=style.QUIET)


def _fill(axes: Axes, heatmap: Heatmap, panel: Panel, scale: Scale, norm: Normalize) -> None:
    """Colours, and labelled lines of equal ε; triangles with a corner that has no finite ε stay white."""
    values = np.array([math.nan if value is None else max(value, scale.low) for value in panel.epsilons])
    finite = np.isfinite(values)
    grid = contours.triangulate(np.array(heatmap.points), finite)
    used = np.unique(grid.get_masked_triangles())
    lonely = finite & ~np.isin(np.arange(finite.size), used)
    axes.scatter(grid.x[lonely], grid.y[lonely], c=values[lonely], norm=norm, cmap=COLOURS, s=30, zorder=3)
    if used.size == 0:
        return
    filled = axes.tricontourf(grid, values, levels=scale.colour_levels(), norm=norm, cmap=COLOURS, zorder=1)
    filled.set_edgecolor("face")  # else hairlines show between neighbouring colours
    inner = [level for level in scale.ticks(15) if values[used].min() < level < values[used].max()]
    contours.draw_lines(axes, grid, values, inner, norm)


def web_figure(document: Mapping[str, Any]) -> dict[str, Any]:
    """What plotly.js draws, as plain JSON data: every point of the grid with its weights and ε."""
    heatmap = read(Heatmap, document)
    scale, panels = Scale.of(heatmap), _ordered(heatmap)
    traces = [
        trace | {"type": "scatterternary", "subplot": f"ternary{index + 1}"}
        for index, panel in enumerate(panels)
        for trace in _traces(heatmap, panel, scale)
    ]
    return {"data": traces, "layout": _layout(heatmap, scale, panels)}


def page(document: Mapping[str, Any]) -> str:
    """The heatmap as a web page: every point of the grid with its weights and ε, and the extremes in a table."""
    heatmap = read(Heatmap, document)
    return pages.page(
        title(heatmap),
        _subtitle(heatmap),
        None,
        web_figure(document),
        [
            pages.prose("How to read this", HOW_TO_READ),
            pages.table("The extremes", "of each triangle", *extremes(heatmap)),
        ],
    )


_PIXELS, _PANEL, _SIDE = 1100, 430, 370  # the plot's width, the height of a row, the side of a triangle


def _layout(heatmap: Heatmap, scale: Scale, panels: list[Panel]) -> dict[str, Any]:
    """One ternary plot and one heading for each panel, in two columns, and the common colour scale to their right."""
    rows, ticks = math.ceil(len(panels) / 2), scale.ticks()
    axes = {
        f"{side}axis": {
            "title": {"text": style.plotly_text(style.short(name, 22)), "font": {"size": 13}},
            "showticklabels": False,
            "ticks": "",
            "showgrid": False,
            "linecolor": style.INK,
        }
        for side, name in zip("abc", heatmap.models, strict=True)
    }
    layout: dict[str, Any] = {
        "width": _PIXELS,
        "height": _PANEL * rows,
        "margin": {"l": 0, "r": 0, "t": 10, "b": 10},
        "font": {"size": 13, "color": style.INK},
        "showlegend": False,
        "hoverlabel": {"align": "left"},
        "coloraxis": {
            "cmin": scale.position(scale.low),
            "cmax": scale.position(scale.high),
            "colorscale": COLOURS.capitalize(),
            "colorbar": {
                "title": {"text": f"ε at δ = {style.epsilon_text(heatmap.delta)}", "side": "right"},
                "tickvals": [scale.position(tick) for tick in ticks],
                "ticktext": [f"{tick:g}" for tick in ticks],
                "x": 0.92,
                "len": 0.7,
            },
        },
        "annotations": [],
    }
    for index, panel in enumerate(panels):
        row, column = divmod(index, 2)
        left, top = 0.06 + 0.46 * column, 1 - row / rows
        right, peak, base = left + _SIDE / _PIXELS, top - 0.18 / rows, top - (0.18 + _SIDE * PEAK / _PANEL) / rows
        layout[f"ternary{index + 1}"] = {"sum": 1, "domain": {"x": [left, right], "y": [base, peak]}, **axes}
        heading = f"<b>{style.plotly_text(_panel_title(panel))}</b><br>{_range_text(panel)}"
        where = {"x": (left + right) / 2, "xref": "paper", "xanchor": "center", "y": top, "yref": "paper", "yanchor": "top"}
        layout["annotations"].append({"text": heading, "showarrow": False, **where})
    return layout


def _traces(heatmap: Heatmap, panel: Panel, scale: Scale) -> list[dict[str, Any]]:
    """The points with a finite ε as coloured tiles, the others as empty ones."""
    size = max(2 / math.sqrt(3) * heatmap.step * _SIDE, 3.0)  # hexagons of this size tile the triangle
    tiles = list(zip(heatmap.points, panel.epsilons, strict=True))
    colours = [scale.position(value) for _, value in tiles if value is not None]
    coloured: dict[str, Any] = {"color": colours, "coloraxis": "coloraxis"}
    empty: dict[str, Any] = {"color": "white", "line": {"color": style.GRID, "width": 1}}
    traces = []
    for marker in (coloured, empty):
        some = [(weights, value) for weights, value in tiles if (value is None) is (marker is empty)]
        texts = [[f"ε = {style.epsilon_text(value)}", *_weights(heatmap, weights)] for weights, value in some]
        trace: dict[str, Any] = {side: [weights[index] for weights, _ in some] for index, side in enumerate("abc")}
        trace["mode"] = "markers"
        trace["marker"] = {"symbol": "hexagon", "size": size} | marker
        trace["customdata"] = [style.hover_text(text) for text in texts]
        trace["hovertemplate"] = "%{customdata}<extra></extra>"
        traces.append(trace)
    return traces


def _weights(heatmap: Heatmap, weights: tuple[float, float, float]) -> list[str]:
    return style.weights_text(dict(zip(heatmap.models, weights, strict=True)))


def extremes(heatmap: Heatmap) -> tuple[list[str], list[list[str]]]:
    """Columns and rows for who cannot see the triangles: where each is most and least private."""
    columns = ["triangle", "standing", "smallest ε", "at", "largest finite ε", "at", "points without finite ε"]
    return columns, [_extremes(heatmap, panel) for panel in _ordered(heatmap)]


def _extremes(heatmap: Heatmap, panel: Panel) -> list[str]:
    """The row of one panel in the table."""
    known = [(value, weights) for value, weights in zip(panel.epsilons, heatmap.points, strict=True) if value is not None]
    cells = [_panel_title(panel), panel.standing]
    for found in (min(known, default=None), max(known, default=None)):
        cells += ["—", "—"] if found is None else [style.epsilon_text(found[0]), style.in_a_cell(_weights(heatmap, found[1]))]
    return [*cells, str(len(panel.epsilons) - len(known))]
