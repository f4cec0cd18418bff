"""Private ResNet-18s on CIFAR-10: from scratch, fine-tuned, and checkpoints of one (Differentially Private Model Merging).

From scratch: 20 epochs in batches of 256, learning rates and clips swept, σ for Rényi ε below 10 or 9. Fine-tuned: 100 epochs
of plain SGD on one half of the data, then 3 private epochs on the other. Every setting is trained once. What the folder of
results holds already is not trained again, so numbers and pictures can be made again without a GPU.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import TrainingError
from dpmerge.jobs import run_all
from dpmerge.planning import Point, frontier
from dpmerge.records import Model, Portfolio, Record
from dpmerge_lab.experiments.cifar10_settings import MERGES, PRETRAINING, QUICK, RUNS, Size, wanted
from dpmerge_lab.experiments.portfolio_pictures import targets
from dpmerge_lab.experiments.portfolios import CHOSEN_BY_TEST, DELTA, Measured, alone, guarantees
from dpmerge_lab.experiments.results import Options, Result, timed


def cifar10(options: Options) -> Result:
    """Three models from scratch, twice."""
    return _experiment("cifar10", ("scratch-a", "scratch-b"), options)


def cifar10_pretrained(options: Options) -> Result:
    """Four models fine-tuned from one public network."""
    return _experiment("cifar10-pretrained", ("pretrained",), options)


def cifar10_checkpoints(options: Options) -> Result:
    """One run after 12, 16 and 20 epochs."""
    return _experiment("cifar10-checkpoints", ("checkpoints",), options)


def _experiment(name: str, groups: tuple[str, ...], options: Options) -> Result:
    size = QUICK if options.quick else Size()
    with tempfile.TemporaryDirectory() as scratch, timed(Result(name, {"delta": DELTA, "seeds": 1})) as result:
        folder = options.folder if options.folder is not None else Path(scratch)
        needed = wanted(",".join(groups))
        missing = [piece for piece in needed if not (folder / f"{piece}.json").exists()]
        if missing:
            from dpmerge_lab.experiments.cifar10_training import make

            make(needed, options.data, options.device, size, folder)
        runs = {piece: _read(folder / f"{piece}.json") for piece in needed}
        result.configuration |= {
            "runs": {piece: _configuration(content) for piece, content in runs.items() if piece in RUNS or piece == PRETRAINING}
        }
        for group in groups:
            _account(group, runs, options, result)
    return result


def _account(group: str, runs: dict[str, Any], options: Options, result: Result) -> None:
    """The models of one group as a portfolio, with every average that was measured."""
    models = []
    for model in MERGES[group]:
        run, _, epoch = model.partition("@")
        points = runs[run]["checkpoints"]
        # Quick runs are shorter: their checkpoints are counted as the papers' are.
        point = points[Size().keep.index(int(epoch)) if epoch else -1]
        models.append(Model(model.replace("@", " after "), Record.parse(json.dumps(point["record"]), source=model)))
    points = tuple(tuple(point["weights"]) for point in runs[group]["points"])
    scores = np.array([[point["accuracy"] for point in runs[group]["points"]]])
    measured = Measured(Portfolio(tuple(models)), points, scores)
    inside = [point for point in points if max(point) < 1]
    result.numbers[group] = {
        "alone": alone(measured),
        "averages": run_all(partial(_average, measured), inside, jobs=options.jobs, progress=options.bar(f"{group}: averages")),
        "training_seconds": sum(runs[run]["training_seconds"] for run in {model.partition("@")[0] for model in MERGES[group]}),
    }
    result.pictures[group] = _frontier(measured, options, group)


def _average(measured: Measured, point: Point) -> dict[str, Any]:
    accuracies = {"test accuracy": measured(point), "expected test accuracy of a draw": float(measured.drawn(point).mean())}
    return {"weights": list(point), **accuracies, **guarantees(measured.portfolio, point)}


def _frontier(measured: Measured, options: Options, group: str) -> dict[str, Any]:
    """Through the averages that were measured, labelled with who chose."""

    def run(function: Any, items: Sequence[Any], *, keys: Sequence[str]) -> list[Any]:
        return run_all(function, items, jobs=options.jobs, progress=options.bar(f"{group}: frontier"))

    drawn = frontier(
        measured.portfolio,
        delta=DELTA,
        epsilons=targets(measured.portfolio, 60),
        scorer=measured,
        points=measured.points,
        run=run,
    )
    source = "test accuracy, each model trained once"
    return replace(drawn, utility_label="test accuracy", utilities_source=source, warning=CHOSEN_BY_TEST).as_dict()


def _configuration(content: dict[str, Any]) -> dict[str, Any]:
    left_out = {"checkpoints", "history", "points"}
    return {key: value for key, value in content.items() if key not in left_out}


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise TrainingError(f"{path}: cannot be read: {fault}; remove it to make it again") from None
    return content
