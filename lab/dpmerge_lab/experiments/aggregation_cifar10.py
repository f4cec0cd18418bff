"""Aggregates of private WRN-16-4s on CIFAR-10 (Recycling Scraps Table 3): seven against none, plain and with periodic shift.

Clip 1, batches of 4096, ε = 1 and 8; as many steps as GPU time allowed, every image used as it is (augmentation multiplicity
1). What the folder of results holds already is not trained again, so numbers and pictures can be made again without a GPU.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from dpmerge.profiles import run_profile
from dpmerge.records import Model, Record
from dpmerge_lab.experiments.aggregation_settings import QUICK, SETTINGS, Size
from dpmerge_lab.experiments.results import Options, Result, timed

DELTA = 1e-5
METHODS = ("No Agg", "EMA tr", "UTA tr", "EMA baseline", "EMA inf", "UTA inf", "OPA", "OMV")
# Recycling Scraps, Table 3: test accuracy in percent, mean of five runs; WRN-16-4 with augmentation multiplicity 16, tuned.
PAPER = {
    "eps8": (77.18, 78.98, 79.96, 79.16, 79.41, 79.39, 79.40, 79.34),
    "eps1": (52.83, 56.24, 57.51, 56.00, 56.61, 56.62, 56.68, 56.40),
    "shifting-eps8": (60.74, 78.18, 79.19, 77.99, 78.24, 77.92, 78.27, 77.99),
    "shifting-eps1": (47.13, 54.11, 55.01, 54.04, 54.04, 54.35, 54.58, 54.03),
}
_TITLES = {
    "eps8": "CIFAR-10, ε = 8",
    "eps1": "CIFAR-10, ε = 1",
    "shifting-eps8": "periodic shift, ε = 8",
    "shifting-eps1": "periodic shift, ε = 1",
}


def aggregation_cifar10(options: Options) -> Result:
    """The table, what each run guarantees, and accuracy as training goes on."""
    size = QUICK if options.quick else Size()
    with tempfile.TemporaryDirectory() as scratch, timed(Result("aggregation-cifar10", {"delta": DELTA, "seeds": 1})) as result:
        folder = options.folder if options.folder is not None else Path(scratch)
        if not all((folder / f"{name}.json").exists() for name in SETTINGS):
            from dpmerge_lab.experiments.aggregation_cifar10_training import make

            make(list(SETTINGS), options.data, options.device, size, folder)
        held = {name: json.loads((folder / f"{name}.json").read_text()) for name in SETTINGS}
    result.configuration["runs"] = {
        name: {key: content[key] for key in ("setting", "size", "started", "seconds", "software")}
        for name, content in held.items()
    }
    result.numbers = {name: _numbers(name, content) for name, content in held.items()}
    result.pictures = {"steps": _over_steps(held), "table": _table(result.numbers)}
    return result


def _numbers(name: str, content: dict[str, Any]) -> dict[str, Any]:
    profile = run_profile(Model(name, Record.parse(json.dumps(content["record"]), source=name))).profile
    measured = content["measured"]
    return {
        "epsilon": {"pld": profile.epsilon(DELTA), "rdp": profile.epsilon_by_renyi(DELTA)},
        "test accuracy": {method: measured[method]["test"] for method in METHODS},
        "chosen on the validation half": {
            method: measured[method]["parameter"] for method in METHODS if "parameter" in measured[method]
        },
        "gain over no aggregation": {method: measured[method]["test"] - measured["No Agg"]["test"] for method in METHODS[1:]},
        "the paper's test accuracy, percent": dict(zip(METHODS, PAPER[name], strict=True)),
    }


def _over_steps(held: dict[str, Any]) -> dict[str, Any]:
    panels = []
    for name, content in held.items():
        history = content["history"]
        lines = [
            {
                "label": label,
                "x": [point["step"] for point in history],
                "y": [point[key]["test"] for point in history],
                "standing": "measured",
            }
            for label, key in (("last iterate", "last"), ("moving average, decay 0.95", "ema 0.95"))
        ]
        panels.append({"title": _TITLES[name], "x_label": "steps", "y_label": "test accuracy", "lines": lines})
    return {
        "kind": "lines",
        "title": "Private iterates, and their moving average, as training goes on",
        "subtitle": "WRN-16-4, clip 1, batches of 4096, one run each",
        "caption": "An average of iterates costs nothing beyond the run itself.",
        "panels": panels,
    }


def _table(numbers: dict[str, Any]) -> dict[str, Any]:
    panels = []
    for name, found in numbers.items():
        places = list(range(len(METHODS)))
        ours = [found["gain over no aggregation"].get(method, 0.0) * 100 for method in METHODS]
        paper = [value - PAPER[name][0] for value in PAPER[name]]
        lines = [
            {"label": "measured here, one run", "x": places, "y": ours, "standing": "measured", "joined": False},
            {"label": "the paper, mean of five runs", "x": places, "y": paper, "standing": "reference", "joined": False},
        ]
        axes = {"x_label": "aggregation", "y_label": "gain in percent points", "categories": list(METHODS)}
        panels.append({"title": _TITLES[name], **axes, "lines": lines})
    return {
        "kind": "lines",
        "title": "What each aggregation gains over the last iterate",
        "subtitle": "parameters of inference aggregations chosen on one half of the public test images, scored on the other",
        "panels": panels,
    }
