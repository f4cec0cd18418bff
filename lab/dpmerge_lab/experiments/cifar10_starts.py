"""What private steps make of public networks, run by run: Merging v1, Fig. 5, v2, Fig. 3, and Recycling Scraps §4.4.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge_lab.experiments.cifar10_settings import MERGES, PRETRAININGS, RUNS
from dpmerge_lab.experiments.results import counted, error_bars, mean_and_deviation, read

# Groups of models that were tuned from public networks; the last two in steps of all images.
TUNED = ("pretrained", "pretrained-views", "pretrained-views-ema", "full-batch", "full-batch-ema")
BEGUN_AT = "public network of each group, in its repetitions"
PRIVATE_STEPS, FROM_AVERAGE, BEST_AVERAGE = (
    "gain of private steps",
    "gain from a moving average as a start",
    "gain of the best average over the best input",
)
_LABELS = dict(zip(PRETRAININGS, ("images as they are", "images moved and mirrored", "its moving average"), strict=True))
# Each model that began at a moving average, and its like that began at the last iterate.
_AVERAGED = dict(zip((*MERGES[TUNED[2]], *MERGES[TUNED[4]]), (*MERGES[TUNED[1]], *MERGES[TUNED[3]]), strict=True))
Scores = npt.NDArray[np.float64]  # of one model, in each repetition


def compared(kept: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Differences within repetitions: these folders have all runs of these groups."""
    folders = {name: runs for group, runs in kept.items() for name in MERGES[group]}
    public = {name: str(RUNS[name].pretrained) for name in folders}
    for network in PRETRAININGS:  # which are where models are that were tuned from them
        folders[network] = sorted({one for name, over in public.items() if over == network for one in folders[name]})

    def gained(name: str, over: str) -> dict[str, Any]:
        both = [one for one in folders[name] if one in folders[over]]
        return mean_and_deviation(_scores(both, name) - _scores(both, over))

    averaged = {"pretraining-views-ema": "pretraining-views", **_AVERAGED}
    return {
        "public networks": {name: mean_and_deviation(_scores(folders[name], name)) for name in PRETRAININGS},
        BEGUN_AT: {group: mean_and_deviation(_scores(runs, public[MERGES[group][0]])) for group, runs in kept.items()},
        PRIVATE_STEPS: {name: gained(name, over) for name, over in public.items()},
        FROM_AVERAGE: {name: gained(name, last) for name, last in averaged.items() if name in folders},
        BEST_AVERAGE: {group: _best(runs, group) for group, runs in kept.items()},
    }


def _scores(runs: Sequence[Path], name: str) -> Scores:
    return np.array([_accuracy(read(one / f"{name}.json")) for one in runs])


def _accuracy(content: Mapping[str, Any]) -> float:
    """Of what a run, or a public training, left."""
    if "checkpoints" in content:
        return float(content["checkpoints"][-1]["accuracy"])
    last = content["history"][-1]
    return float((last["moving average"] if "moving average" in content.get("kept", "") else last)["accuracy"])


def _best(runs: Sequence[Path], group: str) -> dict[str, Any]:
    """Of the average and the input with the largest means."""
    alone = [_scores(runs, name) for name in MERGES[group]]
    points = [read(one / f"{group}.json")["points"] for one in runs]
    averages = {
        tuple(point["weights"]): np.array([one[index]["accuracy"] for one in points])
        for index, point in enumerate(points[0])
        if max(point["weights"]) < 1
    }
    weights = max(averages, key=lambda point: float(averages[point].mean()))
    gained = averages[weights] - max(alone, key=lambda scores: float(scores.mean()))
    return {"weights": list(weights), "averages": len(averages), **mean_and_deviation(gained)}


def picture(title: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Every public network and what was tuned from it, by name."""
    panels, repetitions = [], set()
    for how, groups in (("batches of 256, three epochs", TUNED[:3]), ("full batches, 30 steps", TUNED[3:])):
        lines = []
        for group in (one for one in groups if one in numbers):
            public = RUNS[MERGES[group][0]].pretrained
            assert public is not None
            alone = [numbers[group]["alone"][name]["test accuracy"] for name in MERGES[group]]
            repetitions |= {one["runs"] for one in alone}
            lines.append({"label": f"from {_LABELS[public]}", **error_bars([numbers[BEGUN_AT][group], *alone])})
        settings = [RUNS[name] for name in MERGES[groups[0]]]
        names = ["public", *(f"η={one.learning_rate:g} σ={one.noise_multiplier:g}" for one in settings)]
        axes = {"x_label": "the public network, and what private steps made of it", "y_label": "test accuracy"}
        panels.append({"title": how, **axes, "categories": names, "lines": lines})
    return {
        "kind": "lines",
        "title": title,
        "subtitle": "each trained once" if repetitions == {1} else f"mean of {counted(repetitions, 'repetition')}",
        "caption": "" if repetitions == {1} else "Bars: ± one standard error of the mean.",
        "panels": panels,
    }
