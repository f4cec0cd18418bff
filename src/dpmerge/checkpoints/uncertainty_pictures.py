"""Widths as a histogram, and accuracy against coverage, as documents that dpmerge.figures draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.checkpoints.abstention import Abstention

_MOST_BINS = 60
_STANDINGS = {
    "heuristic": "From checkpoints it is a heuristic: its theorem is about strongly convex losses (docs/theory.md §7).",
    "estimate": "From independent runs it is an estimate without bias.",
}


def histogram_line(widths: npt.NDArray[np.float64], label: str) -> dict[str, Any]:
    """The share of examples in bins of equal width, as steps."""
    shares, edges = np.histogram(widths, bins=min(_MOST_BINS, math.ceil(math.sqrt(len(widths)))))
    heights = np.repeat(shares / len(widths), 2)
    x = np.repeat(edges, 2).tolist()
    return {"label": label, "x": x, "y": [0.0, *heights.tolist(), 0.0], "standing": "measured"}


def abstention_line(curve: Abstention, label: str) -> dict[str, Any]:
    """Accuracy against coverage, at a hundred shares at most."""
    thin = curve.thinned()
    return {"label": label, "x": thin.coverage.tolist(), "y": thin.accuracy.tolist(), "standing": "measured"}


def widths_picture(lines: Sequence[dict[str, Any]], subtitle: str, confidence: float, standing: str) -> dict[str, Any]:
    """How wide the intervals are; `standing` is what may be said of them."""
    return {
        "kind": "lines",
        "title": "How uncertain the predictions are",
        "subtitle": subtitle,
        "caption": "The spread of scores that the noise and batches of private training cause. "
        f"{_STANDINGS[standing]} It says nothing of errors that all models share.",
        "x_label": f"width of the {100 * confidence:g} % interval of the predicted label's score",
        "y_label": "share of examples",
        "lines": list(lines),
    }


def abstention_picture(lines: Sequence[dict[str, Any]], subtitle: str) -> dict[str, Any]:
    """What abstaining brings."""
    return {
        "kind": "lines",
        "title": "Accuracy where the model answers",
        "subtitle": subtitle,
        "caption": "The model answers where the width is at most, or the score at least, a threshold, and abstains elsewhere. "
        "A threshold chosen by looking at this curve is chosen by the labels used for it.",
        "x_label": "coverage: share of examples answered",
        "y_label": "accuracy on those",
        "lines": list(lines),
    }
