"""Uncertainty as files: a table with one row for each example, a summary, and two figures, in a folder written atomically."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.checkpoints.abstention import Abstention, abstention_curve
from dpmerge.checkpoints.predictor import Inputs
from dpmerge.checkpoints.spread import Spread
from dpmerge.checkpoints.uncertainty import Uncertainty
from dpmerge.errors import DataError
from dpmerge.figures import Line, Panel, Picture, render
from dpmerge.files import write_json, write_whole
from dpmerge.rules import Guarantee
from dpmerge.tensors import new_folder

SUFFIXES = (".png", ".html")
_MOST_BINS = 60
_STANDINGS = {
    "heuristic": "From checkpoints it is a heuristic: its theorem needs strongly convex losses (theory.md §7).",
    "estimate": "From independent runs it is an unbiased estimate.",
}
_SHARES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)


def summary(found: Uncertainty, spread: Spread, inputs: Inputs, guarantee: Guarantee) -> dict[str, Any]:
    """Everything but the table, as plain data."""
    quantiles = {f"{100 * share:g} %": float(np.quantile(found.widths, share)) for share in (0.05, 0.5, 0.95)}
    return {
        "standing": spread.standing,
        "from": spread.what,
        "models": [model.name for model in spread.models],
        "inputs": inputs.source,
        "confidence": found.confidence,
        "mean_width": found.mean_width,
        "quantiles_of_widths": quantiles,
        "accuracy": None if inputs.labels is None else float(np.mean(found.labels == _truth(inputs, found))),
        "accuracy_where_answered": None if inputs.labels is None else _where_answered(found, inputs),
        "notes": list(spread.notes),
        "guarantee": guarantee.as_dict(),
    }


def write(found: Uncertainty, inputs: Inputs, about: dict[str, Any], folder: Path) -> list[Path]:
    """Write `table.csv`, `summary.json`, and figures of the widths and, if labels are known, of abstention."""
    subtitle = f"{about['from']}; {inputs.source}"
    widths = histogram_line(found.widths, "widths")
    pictures = {"widths": widths_picture([widths], subtitle, found.confidence, about["standing"])}
    if inputs.labels is not None:
        curves = {f"by {name}": curve for name, curve in _curves(found, _truth(inputs, found)).items()}
        pictures["abstention"] = abstention_picture(curves, subtitle)
    drawn = {f"{name}{suffix}": render(picture, suffix) for name, picture in pictures.items() for suffix in SUFFIXES}
    with new_folder(folder) as made:
        _table(found, inputs, made / "table.csv")
        write_json(about, made / "summary.json")
        for name, content in drawn.items():
            write_whole(content, made / name)
    return sorted(folder.iterdir())


def _table(found: Uncertainty, inputs: Inputs, path: Path) -> None:
    columns = [np.arange(len(found.labels)), found.labels, found.scores, found.widths]
    header = ["example", "label", "score", "width"]
    if inputs.labels is not None:
        truth = _truth(inputs, found)
        columns += [truth, (found.labels == truth).astype(np.int64)]
        header += ["truth", "correct"]
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(header)
        rows.writerows(zip(*(column.tolist() for column in columns), strict=True))


def _where_answered(found: Uncertainty, inputs: Inputs) -> dict[str, Any]:
    curves = _curves(found, _truth(inputs, found))
    return {
        f"by {name}": [{"coverage": share, "accuracy": curve.at(share)} for share in _SHARES] for name, curve in curves.items()
    }


def _curves(found: Uncertainty, truth: npt.NDArray[np.int64]) -> dict[str, Abstention]:
    """Abstention by width; for comparison by score alone; and by both, the lower end of the interval."""
    doubts = {
        "width": found.widths,
        "top score": -found.scores,
        "lower end": found.widths / 2 - found.scores,
    }
    return {name: abstention_curve(doubt, found.labels == truth) for name, doubt in doubts.items()}


def _truth(inputs: Inputs, found: Uncertainty) -> npt.NDArray[np.int64]:
    if inputs.labels is None or len(inputs.labels) != len(found.labels):
        raise DataError(f"{inputs.source}: the number of labels differs from the {len(found.labels)} predictions")
    return inputs.labels


def histogram_line(widths: npt.NDArray[np.float64], label: str) -> Line:
    """A histogram: the share of examples in bins of equal width."""
    shares, edges = np.histogram(widths, bins=min(_MOST_BINS, math.ceil(math.sqrt(len(widths)))))
    heights = np.repeat(shares / len(widths), 2)
    return Line(label=label, x=np.repeat(edges, 2).tolist(), y=[0.0, *heights.tolist(), 0.0], standing="measured")


def widths_picture(lines: Sequence[Line], subtitle: str, confidence: float, standing: str) -> Picture:
    """A figure of the intervals' widths; `standing` selects the caption."""
    x_label = f"width of the {100 * confidence:g} % interval of the predicted label's score"
    return Picture(
        title="How uncertain the predictions are",
        subtitle=subtitle,
        caption="The spread of scores that the noise and batches of private training cause. "
        f"{_STANDINGS[standing]} It does not measure errors that all models share.",
        panels=[Panel(x_label=x_label, y_label="share of examples", lines=list(lines))],
    )


def abstention_picture(curves: Mapping[str, Abstention], subtitle: str) -> Picture:
    """Accuracy against coverage, at most a hundred points of each."""
    thin = {label: curve.thinned() for label, curve in curves.items()}
    lines = [
        Line(label=label, x=curve.coverage.tolist(), y=curve.accuracy.tolist(), standing="measured")
        for label, curve in thin.items()
    ]
    return Picture(
        title="Accuracy where the model answers",
        subtitle=subtitle,
        caption="The model answers where the width is at most, or the score at least, a threshold, and abstains elsewhere. "
        "A threshold chosen by looking at this curve is chosen by the labels used for it.",
        panels=[Panel(x_label="coverage: share of examples answered", y_label="accuracy on those", lines=lines)],
    )
