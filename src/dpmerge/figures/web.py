"""What the pictures drawn by plotly have in common: marks with hover texts, and names beside points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dpmerge.figures import style
from dpmerge.figures.labels import LETTER, Label

SCALE = 12 / LETTER  # names are written larger on a screen than the units of labels.py say


def hover(texts: Iterable[Iterable[str]]) -> dict[str, Any]:
    """What points tell, as lines of text for each."""
    return {"customdata": [style.hover_text(text) for text in texts], "hovertemplate": "%{customdata}<extra></extra>"}


def mark_trace(mark: style.Mark, x: Sequence[float], y: Sequence[float], texts: Iterable[Iterable[str]]) -> dict[str, Any]:
    """Single points that are not on a curve."""
    marker = {"color": mark.colour, "symbol": mark.symbol, "size": mark.size + 1, "line": {"color": style.INK, "width": 1}}
    return {"type": "scatter", "name": mark.label, "mode": "markers", "marker": marker, "x": x, "y": y, **hover(texts)}


def name_note(label: Label, x: float, y: float) -> dict[str, Any]:
    """A name beside its point, which is at (x, y) in the units of annotations: logarithms on a logarithmic axis."""
    right, up = label.right * label.distance * SCALE, label.up * label.distance * SCALE
    shift = {"ax": right, "ay": -up, "arrowwidth": 1, "standoff": 6} if label.far else {"xshift": right, "yshift": up}
    return {
        "x": x,
        "y": y,
        "text": f"<b>{style.plotly_text(label.text)}</b>",
        "font": {"size": 12},
        "bgcolor": "rgba(255,255,255,0.75)",
        "showarrow": label.far,
        "arrowhead": 0,
        "xanchor": label.choose(0, "left", "center", "right"),
        "yanchor": label.choose(1, "bottom", "middle", "top"),
        **shift,
    }
