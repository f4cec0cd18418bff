"""Aggregates of private networks on CIFAR-10 (Recycling Scraps Tables 1, 3, 7, Fig. 5): seven against none, also under shift.

WRN-16-4, clip 1, batches of 4096. At ε = 1 with standardised weights and four views of every image; at ε = 8, where the paper
takes thousands of steps, fewer steps on images and weights as they are. The same in small, for a CPU. Every run that the folder
of results holds is counted, and none is trained again: numbers and pictures can be made again without a GPU, and another day
with one adds runs.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmerge.profiles import Law, Profile, dp_sgd_steps, run_profile
from dpmerge.records import DpSgd, Model, Record
from dpmerge_lab.experiments.aggregation import LAST, METHODS, ON_TOP, TRAINED
from dpmerge_lab.experiments.aggregation_cifar10_pictures import INFERENCE, PLAIN, papers, pictures, small_pictures
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, RATES, chosen, gain, parameters, scores
from dpmerge_lab.experiments.aggregation_settings import (
    AT_LENGTH,
    EVERY_RATE,
    EVERY_TAIL,
    OTHERWISE,
    QUICK,
    SETTINGS,
    SMALL,
    Size,
    tail,
)
from dpmerge_lab.experiments.aggregation_tuning import TUNING, Point, Tuned
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, read, timed

DELTA = 1e-5
BESIDE_BEST = "gain over the best inference aggregation of the same plain runs"
OTHER_RUNS = "runs with other parameters"  # those of OTHERWISE


def aggregation_cifar10(options: Options) -> Result:
    """WRN-16-4s: the tables, what each run guarantees, and accuracy as training goes on; beside the paper's."""
    result = _experiment("aggregation-cifar10", options, Size())
    for name, found in result.numbers.items():
        found["the paper's test accuracy, percent"] = dict(zip(METHODS, papers(name), strict=True))
    result.pictures = pictures(result.numbers)
    return result


def aggregation_cifar10_small(options: Options) -> Result:
    """The same of small networks, for a CPU; with plain runs at several learning rates, and Alg. 3 for k and τ of UTA_tr."""
    result = _experiment("aggregation-cifar10-small", options, SMALL)
    if options.folder is not None:
        for name, found in result.numbers.items():
            found |= _tried(options.folder, name)
    result.pictures = small_pictures(result.numbers)
    return result


def _tried(folder: Path, name: str) -> dict[str, Any]:
    """Beside the runs of a setting: what other learning rates, k and τ score, if runs with them are kept."""
    names = (called for called in EVERY_RATE | EVERY_TAIL | OTHERWISE if called.rpartition("-")[0] == name)
    found: dict[str, Any] = {}
    for called, runs in ((called, [read(path) for path in _kept(folder, called)]) for called in names):
        if not runs:
            continue
        if called in EVERY_RATE:
            found.setdefault(RATES, {})[f"{EVERY_RATE[called].learning_rate:g}"] = _plain([_of(run, "plain") for run in runs])
        elif called in EVERY_TAIL:
            tails = runs[0]["size"]["tails"]
            grid = {Point(count, start): [_of(run, tail(count, start)) for run in runs] for count, start in tails}
            plain = mean_and_deviation(scores([_of(run, "plain") for run in runs])[CHOSEN])
            found[TUNING] = {TRAINED[1]: {**Tuned(grid).as_dict(), PLAIN: plain, "price": _price(runs)}}
        else:
            numbers = _numbers(called, runs)
            found[OTHER_RUNS] = {key: numbers[key] for key in ("test accuracy", "gain over no aggregation", BESIDE_BEST)}
    return found


def _of(run: Mapping[str, Any], which: str) -> dict[str, Any]:
    return {"measured": run["measured"][which]}


def _plain(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What plain runs at one learning rate score."""
    found = [run["measured"] for run in runs]
    return {
        "test accuracy": {method: mean_and_deviation(values) for method, values in scores(runs).items()},
        "on the validation half": {
            LAST: mean_and_deviation([one[LAST]["validation"] for one in found]),
            CHOSEN: mean_and_deviation([chosen(one)["validation"] for one in found]),
        },
    }


def _experiment(called: str, options: Options, size: Size) -> Result:
    """Of all settings, trained if they are not kept."""
    size = QUICK if options.quick else size
    with tempfile.TemporaryDirectory() as scratch, timed(Result(called, {"delta": DELTA})) as result:
        folder = options.folder if options.folder is not None else Path(scratch)
        missing = [name for name in SETTINGS if not _kept(folder, name)]
        if missing:
            from dpmerge_lab.experiments.aggregation_cifar10_training import make

            make(missing, range(1, options.seeds + 1), options.data, options.device, size, folder)
        kept = {name: _kept(folder, name) for name in SETTINGS | AT_LENGTH}
        held = {name: [read(path) for path in paths] for name, paths in kept.items() if paths}
    result.configuration["runs"] = {
        name: [{key: run[key] for key in ("number", "setting", "size", "started", "seconds", "software")} for run in runs]
        for name, runs in held.items()
    }
    result.numbers = {name: _numbers(name, runs) for name, runs in held.items()}
    return result


def _kept(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}-[0-9]*.json"))


def _price(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all branches together: the steps before a branch are those of its plain run, and count once."""
    model = Model("plain", Record.parse(json.dumps(runs[0]["record"]), source="a run with branches"))
    assert isinstance(model.mechanism, DpSgd)
    steps: Counter[Law] = Counter()
    for start in (0, *(start for _, start in runs[0]["size"]["tails"])):
        for law, count in dp_sgd_steps(model, model.mechanism, None):
            steps[law] += count * len(runs)
        for law, count in dp_sgd_steps(model, model.mechanism, None, start):
            steps[law] -= count * len(runs)
    trials = len(runs) * len(runs[0]["size"]["tails"])
    return {"trials": trials, "epsilon of all trials together": Profile.of(steps.items()).epsilon(DELTA)}


def _numbers(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    profile = run_profile(Model(name, Record.parse(json.dumps(runs[0]["record"]), source=name))).profile
    plain = _those(runs, "plain")
    found = scores(plain)
    pairs = {method: (values, found[LAST]) for method, values in found.items()}
    beside_best = {}
    for method, on_top in zip(TRAINED, ON_TOP, strict=True):
        if branches := _those(runs, method):
            pairs[method] = [one["measured"][LAST]["test"] for one in branches], [one["last"] for one in branches]
        if branches := [one for one in branches if len(one["measured"]) > 1]:  # some were scored alone
            pairs[on_top] = scores(branches)[CHOSEN], [one["last"] for one in branches]
            beside_best[on_top] = gain(pairs[on_top][0], [one["best"] for one in branches])
    every = [run["measured"]["plain"]["every parameter"] for run in runs]
    tables = {
        INFERENCE[kind]: {
            parameter: mean_and_deviation([one[kind][parameter]["test"] for one in every]) for parameter in every[0][kind]
        }
        for kind in INFERENCE
    }
    steps = [point["step"] for point in runs[0]["history"]]
    series = [label for label in runs[0]["history"][0] if label != "step"]
    return {
        "epsilon": {"pld": profile.epsilon(DELTA), "rdp": profile.epsilon_by_renyi(DELTA)},
        "test accuracy": {method: mean_and_deviation(values) for method, (values, _) in pairs.items()},
        "gain over no aggregation": {method: gain(*pair) for method, pair in pairs.items() if method != LAST},
        BESIDE_BEST: beside_best,
        "chosen on the validation half": parameters(plain),
        "test accuracy by parameter": tables,
        "steps": steps,
        "test accuracy over the steps": {
            label: mean_and_deviation([[point[label]["test"] for point in run["history"]] for run in runs]) for label in series
        },
    }


def _those(runs: Sequence[Mapping[str, Any]], which: str) -> list[dict[str, Any]]:
    """What was measured of them, beside the last iterate and the best inference aggregation of the same plain run."""
    return [
        {"measured": run["measured"][which], "last": plain[LAST]["test"], "best": chosen(plain)["test"]}
        for run in runs
        if which in run["measured"]
        for plain in [run["measured"]["plain"]]
    ]
