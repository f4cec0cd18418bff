"""Private networks on CIFAR-10, every setting that is kept for itself: as it ended, and over the checkpoints of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.profiles import run_profile
from dpmerge.records import Model, Portfolio, Record
from dpmerge_lab.experiments.checkpoints import selections
from dpmerge_lab.experiments.cifar10_settings import RUNS, SEED
from dpmerge_lab.experiments.portfolios import DELTA, Measured, alone, corners
from dpmerge_lab.experiments.results import counted, error_bars, mean_and_deviation, read

EVEN_DRAW = "test accuracy of the even draw, less that of the second checkpoint"
_ORDER = ("first", "second", "third")


def repetition_folders(folder: Path) -> list[Path]:
    """The folders of kept runs."""
    return sorted((one for one in folder.glob("*") if one.is_dir() and one.name.isdigit()), key=lambda one: int(one.name))


def _kept(folder: Path) -> dict[str, list[Any]]:
    """Of every setting the checkpoints of its runs."""
    named = [name for name, setting in RUNS.items() if setting.pretrained is None and setting.seed == SEED]
    paths = {name: [one / f"{name}.json" for one in repetition_folders(folder)] for name in named}
    found = {name: [read(path)["checkpoints"] for path in some if path.exists()] for name, some in paths.items()}
    return {name: held for name, held in found.items() if held}


def _model(name: str, point: Mapping[str, Any]) -> Model:
    return Model(name, Record.parse(json.dumps(point["record"]), source=name))


def settings(folder: Path) -> dict[str, Any]:
    """What every model guarantees, and its test accuracy."""
    return {
        name: {
            "epsilon": run_profile(_model(name, held[0][-1])).profile.epsilon(DELTA),
            "test accuracy": mean_and_deviation([run[-1]["accuracy"] for run in held]),
        }
        for name, held in _kept(folder).items()
    }


def drawn_over_checkpoints(folder: Path) -> dict[str, Any]:
    """Draws over the three checkpoints of a run, for every setting; and the even draw beside the second checkpoint."""
    found: dict[str, Any] = {}
    for name, held in _kept(folder).items():
        models = tuple(_model(f"after {point['epoch']}", point) for point in held[0])
        scores = np.array([[point["accuracy"] for point in run] for run in held])
        measured = Measured(Portfolio(models), tuple(corners(len(models))), scores)
        found[name] = {
            "alone": alone(measured),
            "random selection": selections(measured),
            EVEN_DRAW: mean_and_deviation(measured.drawn([1 / len(models)] * len(models)) - scores[:, 1]),
        }
    return found


def picture(what: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Of all settings."""
    bars = [one["test accuracy"] for one in found.values()]
    panel = {"x_label": "setting", "y_label": "test accuracy", "categories": list(found)}
    return {
        "kind": "lines",
        "title": f"Private {what}, one by one",
        "subtitle": f"{counted((one['runs'] for one in bars), 'run')} each",
        "caption": "Bars are ± one standard error, where there are several runs.",
        "panels": [{**panel, "lines": [{"label": "measured", **error_bars(bars)}]}],
    }


def picture_of_checkpoints(what: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Of all settings: each checkpoint alone, and what the even draw gains over the second."""
    columns = zip(*(of["alone"].values() for of in found.values()), strict=True)
    scores = [[one["test accuracy"] for one in column] for column in columns]
    lines = [{"label": f"the {which} checkpoint", **error_bars(one)} for which, one in zip(_ORDER, scores, strict=True)]
    even = [of[EVEN_DRAW] for of in found.values()]
    level = {"label": "no difference", "x": list(range(len(found))), "y": [0.0] * len(found), "standing": "reference"}
    axes = {"x_label": "setting", "categories": list(found)}
    apart = {"title": "the even draw of the three", "y_label": "accuracy less that of the second checkpoint"}
    return {
        "kind": "lines",
        "title": f"Checkpoints of one run: private {what}",
        "subtitle": f"{counted((one['runs'] for one in even), 'run')} each",
        "caption": "Bars: ± one standard error. The even draw costs more than the second checkpoint.",
        "panels": [
            {"title": "each alone", "y_label": "test accuracy", **axes, "lines": lines},
            {**apart, **axes, "lines": [{"label": "the even draw", **error_bars(even)}, level]},
        ],
    }
