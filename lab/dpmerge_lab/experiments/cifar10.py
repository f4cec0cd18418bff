"""Private ResNet-18s on CIFAR-10: from scratch, fine-tuned, and checkpoints of one (Differentially Private Model Merging).

From scratch: 20 epochs in batches of 256, learning rates and clips swept, σ for Rényi ε below 10 or 9. Fine-tuned: 100 epochs
of plain SGD on one half of the data, then 3 private epochs on the other. Each repetition is a folder of results. What it holds
already is not trained again, so numbers and pictures can be made again without a GPU, and other repetitions be added.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.jobs import run_all
from dpmerge.planning import Point, frontier
from dpmerge.records import Model, Portfolio, Record
from dpmerge_lab.experiments import cifar10_from_scratch, cifar10_starts, merge_pictures
from dpmerge_lab.experiments.cifar10_from_scratch import repetition_folders
from dpmerge_lab.experiments.cifar10_settings import MERGES, PRETRAININGS, QUICK, RUNS, SMALL, Size, wanted
from dpmerge_lab.experiments.cifar10_starts import TUNED
from dpmerge_lab.experiments.portfolio_pictures import AVERAGE, DRAW, targets
from dpmerge_lab.experiments.portfolios import CHOSEN_BY_TEST, DELTA, Measured, alone, guarantees, replace_one, restated
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, read, timed

_STARTS = {"scratch-b": "one start", "apart": "three starts"}
_DATA = {"cifar10": "CIFAR-10", "digits": "digits"}
_NETWORKS = {  # one, and several
    "resnet18": ("a ResNet-18", "ResNet-18s"),
    "cnn": ("a CNN of 25,578 parameters", "networks of 25,578 parameters"),
    "small-cnn": ("a CNN of 5,226 parameters", "networks of 5,226 parameters"),
}
SHOWN = (  # weights in the table of cifar10-small
    *((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    *((0.9, 0.1, 0.0), (0.8, 0.2, 0.0), (0.5, 0.5, 0.0), (0.4, 0.3, 0.3)),
)


def cifar10(options: Options) -> Result:
    """Three models from scratch, twice, and where they are kept, from different starts; every setting that is kept, alone."""
    result = _experiment("cifar10", ("scratch-a", "scratch-b"), options, ("apart",))
    if options.folder is not None:
        _add_settings(result, options.folder)
        result.pictures |= pictures_of_settings(options.folder, result.numbers)
    return result


def cifar10_pretrained(options: Options) -> Result:
    """Four models fine-tuned from one public network; and where they are kept, from others, and three with full batches."""
    result = _experiment("cifar10-pretrained", TUNED[:1], options, TUNED[1:])
    _compare_starts(result, options)
    return result


def cifar10_pretrained_small(options: Options) -> Result:
    """The same of small networks, on a CPU, several times: public trainings too have batches of their own each time."""
    result = _experiment("cifar10-pretrained-small", TUNED, options, size=SMALL)
    _compare_starts(result, options)
    return result


def cifar10_checkpoints(options: Options) -> Result:
    """One run after 12, 16 and 20 epochs."""
    return _experiment("cifar10-checkpoints", ("checkpoints",), options)


def cifar10_small(options: Options) -> Result:
    """Three small networks, from one start and from three: on a CPU, so several times."""
    result = _experiment("cifar10-small", ("scratch-b", "apart"), options, size=SMALL)
    if options.folder is not None:
        _add_settings(result, options.folder)
        result.pictures |= small_pictures(options.folder, result.numbers)
    return result


def _experiment(
    name: str, groups: tuple[str, ...], options: Options, others: tuple[str, ...] = (), size: Size | None = None
) -> Result:
    """Of these groups, trained if they are not kept, and of others that are."""
    size = QUICK if options.quick else size or Size()
    with tempfile.TemporaryDirectory() as scratch, timed(Result(name, {"delta": DELTA})) as result:
        folder = options.folder if options.folder is not None else Path(scratch)
        if not _whole(folder, groups):
            from dpmerge_lab.experiments.cifar10_training import make

            for number in range(1, options.seeds + 1):
                make(wanted(",".join(groups)), options.data, options.device, size, folder / str(number))
        kept = (*groups, *(group for group in others if _whole(folder, (group,))))
        result.configuration["repetitions"] = {}
        for group in kept:
            repetitions = _whole(folder, (group,))
            runs = [{piece: read(one / f"{piece}.json") for piece in wanted(group)} for one in repetitions]
            result.configuration["repetitions"][group] = {
                one.name: {
                    piece: _configuration(content) for piece, content in held.items() if piece in RUNS or piece in PRETRAININGS
                }
                for one, held in zip(repetitions, runs, strict=True)
            }
            _account(group, runs, options, result)
    return result


def _whole(folder: Path, groups: tuple[str, ...]) -> list[Path]:
    """The repetitions that have all of these groups' runs and merges."""
    needed = wanted(",".join(groups))
    return [one for one in repetition_folders(folder) if all((one / f"{piece}.json").exists() for piece in needed)]


def _size(folder: Path, group: str = "scratch-b") -> Size:
    """What was run: kept runs say it themselves, and may be others than those asked for."""
    return Size(**read(_whole(folder, (group,))[0] / f"{group}.json")["size"])


def _add_settings(result: Result, folder: Path) -> None:
    """Every setting from scratch that is kept: what its models score, and draws over the checkpoints of its runs."""
    result.numbers["settings"] = cifar10_from_scratch.settings(folder)
    result.numbers["checkpoints"] = cifar10_from_scratch.drawn_over_checkpoints(folder)


def pictures_of_settings(folder: Path, numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Of these two."""
    size = _size(folder)
    what = f"{_NETWORKS[size.network][1]} from scratch on {_DATA[size.data]}"
    return {
        "settings": cifar10_from_scratch.picture(what, numbers["settings"]),
        "checkpoints": cifar10_from_scratch.picture_of_checkpoints(what, numbers["checkpoints"]),
    }


def repeated(folder: Path, group: str, models: Sequence[str]) -> list[dict[str, Any]]:
    """Of networks that were trained several times: what every average scored, and a draw with its weights, from the runs."""
    runs = [read(one / f"{group}.json")["points"] for one in _whole(folder, (group,))]
    scores = [{tuple(point["weights"]): point["accuracy"] for point in run} for run in runs]
    alone = [[one[tuple(float(k == j) for k in range(len(models)))] for j in range(len(models))] for one in scores]
    return [
        {
            "weights": dict(zip(models, point, strict=True)),
            AVERAGE: mean_and_deviation([one[point] for one in scores]),
            DRAW: mean_and_deviation([sum(w * a for w, a in zip(point, own, strict=True)) for own in alone]),
        }
        for point in scores[0]
    ]


def small_pictures(folder: Path, numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Of the small networks: averages and draws of both groups, each at its ε, and the table."""
    groups, size = {}, _size(folder)
    found = pictures_of_settings(folder, numbers)
    what = f"{_DATA[size.data]}, {_NETWORKS[size.network][0]}"
    for group, start in _STARTS.items():
        of = numbers[group]
        names = [f"{k}: η={RUNS[name].learning_rate:g} C={RUNS[name].clip:g}" for k, name in enumerate(of["alone"], 1)]
        rows = repeated(folder, group, names)
        accounts = {tuple(row["weights"]): row for row in of["averages"]}
        inner = [{**accounts[tuple(row["weights"].values())], **row} for row in rows if max(row["weights"].values()) < 1]
        alone = dict(zip(names, of["alone"].values(), strict=True))
        subtitle = f"mean of {rows[0][AVERAGE]['runs']} repetitions; the models of scratch-b, the third with more noise"
        found[group] = merge_pictures.at_their_epsilon(f"{what}: averages and draws, {start}", subtitle, alone, inner)
        groups[start] = rows
    title = f"{what}: averages from one start and from three"
    repetitions = dict.fromkeys(str(rows[0][AVERAGE]["runs"]) for rows in groups.values())  # in the order of the panels
    found["weights"] = merge_pictures.on_weights(title, f"mean of {' and '.join(repetitions)} repetitions", groups, SHOWN)
    return found


def _compare_starts(result: Result, options: Options) -> None:
    """Add what private steps made of public networks, and a picture of it, if those of version 1 and 2 are kept."""
    if options.folder is None:
        return
    kept = {group: runs for group in TUNED if (runs := _whole(options.folder, (group,)))}
    if not {*TUNED[:4]} <= set(kept):
        return
    result.numbers |= cifar10_starts.compared(kept)
    size = _size(options.folder, TUNED[0])
    title = f"Private {_NETWORKS[size.network][1]} from public ones on {_DATA[size.data]}"
    result.pictures["starts"] = cifar10_starts.picture(title, result.numbers)


def _account(group: str, repetitions: Sequence[dict[str, Any]], options: Options, result: Result) -> None:
    """The models of one group as a portfolio, with every average that was measured."""
    runs = repetitions[0]  # records are alike but for their randomness
    models = []
    for model in MERGES[group]:
        run, _, epoch = model.partition("@")
        points = runs[run]["checkpoints"]
        # Quick runs are shorter: their checkpoints are counted as the papers' are.
        point = points[Size().keep.index(int(epoch)) if epoch else -1]
        models.append(Model(model.replace("@", " after "), Record.parse(json.dumps(point["record"]), source=model)))
    points = tuple(tuple(point["weights"]) for point in runs[group]["points"])
    scores = np.array([[point["accuracy"] for point in one[group]["points"]] for one in repetitions])
    portfolio = Portfolio(tuple(models))
    if RUNS[MERGES[group][0].partition("@")[0]].full_batches:
        portfolio = restated(portfolio, replace_one)
    measured = Measured(portfolio, points, scores)
    inside = [point for point in points if max(point) < 1]
    trained = {model.partition("@")[0] for model in MERGES[group]}
    result.numbers[group] = {
        "alone": alone(measured),
        "averages": run_all(partial(_average, measured), inside, jobs=options.jobs, progress=options.bar(f"{group}: averages")),
        "training_seconds": math.fsum(runs[run]["training_seconds"] for run in trained),
    }
    result.pictures[group] = _frontier(measured, options, f"{runs[group]['size']['network']}, {group}")


def _average(measured: Measured, point: Point) -> dict[str, Any]:
    accuracies = {"test accuracy": measured(point), "expected test accuracy of a draw": float(measured.drawn(point).mean())}
    if len(measured.scores) > 1:
        accuracies["standard error"] = float(measured.of(point).std(ddof=1) / math.sqrt(len(measured.scores)))
    return {"weights": list(point), **accuracies, **guarantees(measured.portfolio, point)}


def _frontier(measured: Measured, options: Options, what: str) -> dict[str, Any]:
    """Through the averages that were measured, labelled with what they are of and who chose."""

    def run(function: Any, items: Sequence[Any], *, keys: Sequence[str]) -> list[Any]:
        return run_all(function, items, jobs=options.jobs, progress=options.bar(f"{what}: frontier"))

    drawn = frontier(
        measured.portfolio,
        delta=DELTA,
        epsilons=targets(measured.portfolio, 60),
        scorer=measured,
        points=measured.points,
        run=run,
    )
    count = len(measured.scores)
    source = f"test accuracy, {'each model trained once' if count == 1 else f'mean of {count} repetitions'}"
    return replace(drawn, utility_label=f"test accuracy ({what})", utilities_source=source, warning=CHOSEN_BY_TEST).as_dict()


def _configuration(content: dict[str, Any]) -> dict[str, Any]:
    left_out = {"checkpoints", "history", "points"}
    return {key: value for key, value in content.items() if key not in left_out}
