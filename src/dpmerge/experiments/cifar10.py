"""Private ResNet-18s on CIFAR-10: from scratch (M1 Fig. 4), fine-tuned (M1 Fig. 5, M2 Fig. 3), checkpoints of one (M1 Fig. 6).

From scratch: 20 epochs in batches of 256, learning rates and clips swept, σ for Rényi ε below 10 or 9. Fine-tuned: 100 epochs
of plain SGD on one half of the data, then 3 private epochs on the other. Every setting is trained once. What the folder of
results holds already is not trained again, so numbers and pictures can be made again without a GPU.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import TrainingError
from dpmerge.experiments.cifar10_settings import MERGES, PRETRAINING, QUICK, RUNS, Size, wanted
from dpmerge.experiments.merges import DELTA, alone, measured_frontier, side_by_side
from dpmerge.experiments.results import Options, Result, timed
from dpmerge.records import Model, Portfolio, Record


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
            from dpmerge.experiments.cifar10_training import make

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
    portfolio = Portfolio(tuple(models))
    known = {tuple(point["weights"]): point["accuracy"] for point in runs[group]["points"]}
    single = alone(portfolio, known)
    result.numbers[group] = {
        "models": list(portfolio.names),
        "alone": single,
        "averages": side_by_side(portfolio, known, options.jobs),
        "training_seconds": sum(runs[model.partition("@")[0]]["training_seconds"] for model in MERGES[group]),
    }
    least = min(one["pld"] for one in single.values())
    targets = np.geomspace(least / 2, 2 * max(one["rdp"] for one in single.values()), 60)
    source = "test accuracy, each model trained once"
    result.pictures[group] = measured_frontier(portfolio, known, targets.tolist(), source, options)


def _configuration(content: dict[str, Any]) -> dict[str, Any]:
    left_out = {"checkpoints", "history", "points"}
    return {key: value for key, value in content.items() if key not in left_out}


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise TrainingError(f"{path}: cannot be read: {fault}; remove it to make it again") from None
    return content
