"""Recycling Scraps Table 3 in small: seven aggregations of the iterates of a private softmax regression on MNIST, against none.

Plain and with batches that swing between even and odd digits, ε = 1 and 8, each repeated. Parameters of inference aggregations
are chosen by Alg. 4 on one half of the public test images, (p, τ) of training on aggregates by Alg. 3 on the same half with
runs of their own; the other half is reported. Runs on aggregates are measured alone and, as the paper's are, with an inference
aggregation on top, and (p, τ) are chosen for either. The learning rate is constant, as in the paper. It decides how noisy the
last iterate is, and so what there is to gain: the table is for a large one, and other rates are shown beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from dpmerge.jobs import run_all
from dpmerge.profiles import run_profile
from dpmerge.records import Model, Record
from dpmerge_lab.experiments import aggregation_mnist_runs as runs_of
from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST, ON_TOP, TRAINED
from dpmerge_lab.experiments.aggregation_mnist_pictures import COLUMNS, pictures, tuned_for
from dpmerge_lab.experiments.aggregation_mnist_runs import DELTA, NORM, QUICK, Case, Design, Work
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, RATES, clear, gain, parameters, scores
from dpmerge_lab.experiments.aggregation_tuning import ALONE, TUNING, WAYS, WITH_INFERENCE, Point, Tuned, price, tune
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed

CASES = {
    "eps8": Case(8, False),
    "eps1": Case(1, False),
    "shifting-eps8": Case(8, True),
    "shifting-eps1": Case(1, True),
}


def aggregation_mnist(options: Options) -> Result:
    """The table with what each aggregation gains over the last iterate, the price of tuning, and accuracy over the steps."""
    design, folder = (QUICK, None) if options.quick else (Design(), options.data)
    loaded = runs_of.loaded(design.data, folder)
    trials = len(CASES) * len(design.starts) * design.trials
    configuration = {
        **asdict(design),
        "delta": DELTA,
        "adjacency": "add-remove",
        "repetitions": options.seeds,
        "norm_bound": NORM,
        "learning rate of the table": "set by hand after a look at test accuracy at several rates, such that the last iterate "
        "is noisy at ε = 1; it is larger than the best one for the last iterate",
        "features": "pixels from 0 to 1, shortened to the norm bound",
        "examples": len(loaded.images.train),
        "test images": "those with even numbers choose parameters, those with odd numbers are reported",
        "checkpoints of a run on aggregates": "the iterates up to step τ, then the aggregates that its steps start from",
        "parameter of EMA tr": "the weight of the new iterate, as in Eq. (3)",
        "runs to tune training on aggregates": {"EMA tr": trials * len(design.weights), "UTA tr": trials * len(design.tails)},
    }
    with timed(Result("aggregation-mnist", configuration)) as result:
        calibrate = partial(runs_of.noise, design, folder)
        noise = run_all(calibrate, list(CASES.values()), jobs=options.jobs, progress=options.bar("noise for ε"))
        for (name, case), sigma in zip(CASES.items(), noise, strict=True):
            result.numbers[name] = _case(name, Work(design, folder, case, sigma), options)
        result.numbers["outside two standard errors"] = {
            name: [method for method, found in result.numbers[name]["gain over no aggregation"].items() if clear(found)]
            for name in CASES
        }
        shown = "digits" if options.quick else "MNIST"
        result.pictures = pictures(result.numbers, list(CASES), shown, options.seeds, design.learning_rate)
    return result


def _case(name: str, work: Work, options: Options) -> dict[str, Any]:
    design, repeated = work.design, range(options.seeds)

    def bar(what: str) -> Any:
        return options.bar(f"{name}: {what}")

    tuned = {
        method: tune(
            partial(runs_of.trained, work, method, False),
            [Point(value, start) for value in values for start in design.starts],
            design.trials,
            jobs=options.jobs,
            progress=bar(f"tuning {method}"),
        )
        for method, values in zip(TRAINED, (design.weights, design.tails), strict=True)
    }
    plain = run_all(partial(runs_of.plain, work, design.learning_rate, True), repeated, jobs=options.jobs, progress=bar("runs"))
    trained = {
        (method, point): run_all(
            partial(runs_of.trained, work, method, True),
            [point] * options.seeds,
            jobs=options.jobs,
            progress=bar(f"{method}, {point}"),
        )
        for method, found in tuned.items()
        for point in dict.fromkeys(found.best(way) for way in WAYS)
    }
    by_choice = {(method, way): trained[method, found.best(way)] for method, found in tuned.items() for way in WAYS}
    measured = scores(plain)
    columns = (
        measured
        | {method: scores(by_choice[method, ALONE])[LAST] for method in TRAINED}
        | {top: scores(by_choice[method, WITH_INFERENCE])[CHOSEN] for method, top in zip(TRAINED, ON_TOP, strict=True)}
    )
    history = {line: [run["history"][line] for run in plain] for line in plain[0]["history"]}
    history |= {method: [run["history"] for run in by_choice[method, ALONE]] for method in TRAINED}
    profile = run_profile(Model(name, Record.parse(json.dumps(plain[0]["record"]), source=name))).profile
    return {
        "epsilon": {"pld": profile.epsilon(DELTA), "rdp": profile.epsilon_by_renyi(DELTA)},
        "noise multiplier": work.noise,
        "test accuracy": {method: mean_and_deviation(columns[method]) for method in COLUMNS},
        "gain over no aggregation": {
            method: gain(columns[method], measured[LAST], paired=method in measured) for method in COLUMNS[1:]
        },
        "gain over the best inference aggregation of plain runs": {
            top: gain(columns[top], measured[CHOSEN], paired=False) for top in ON_TOP
        },
        "inference aggregation on top": {
            LAST: _on_top(plain),
            **{tuned_for(method, way): _on_top(runs) for (method, way), runs in by_choice.items()},
        },
        TUNING: {method: _tuning(found) for method, found in tuned.items()},
        **_sweep(work, plain, options, bar),
        "steps": list(runs_of.looks(design)),
        "test accuracy over the steps": {line: mean_and_deviation(runs) for line, runs in history.items()},
    }


def _on_top(runs: Sequence[Any]) -> dict[str, Any]:
    """The last checkpoint of runs, and every inference aggregation of their checkpoints."""
    found = scores(runs)
    return {
        "test accuracy": {name: mean_and_deviation(values) for name, values in found.items()},
        "gain over its own last checkpoint": {name: gain(found[name], found[LAST]) for name in (*AFTERWARDS, CHOSEN)},
        "chosen on the validation half": parameters(runs),
    }


def _sweep(work: Work, plain: Sequence[Any], options: Options, bar: Any) -> dict[str, Any]:
    """What the last iterate and its aggregates score at other learning rates; and at the one that is best for the former."""
    found, validation = {}, {}
    for rate in work.design.learning_rates:
        runs = plain
        if rate != work.design.learning_rate:
            alone = partial(runs_of.plain, work, rate, False)
            runs = run_all(alone, range(options.seeds), jobs=options.jobs, progress=bar(f"learning rate {rate:g}"))
        measured = scores(runs)
        validation[f"{rate:g}"] = float(np.mean([run["measured"][LAST]["validation"] for run in runs]))
        found[f"{rate:g}"] = {
            "test accuracy": {method: mean_and_deviation(values) for method, values in measured.items()},
            "gain over no aggregation": {m: gain(values, measured[LAST]) for m, values in measured.items() if m != LAST},
        }
    best = max(validation, key=validation.__getitem__)
    return {RATES: found, "best learning rate for the last iterate": best}


def _tuning(found: Tuned) -> dict[str, Any]:
    return {**found.as_dict(), "price": price([found], DELTA)}
