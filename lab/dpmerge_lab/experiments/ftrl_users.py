"""Recycling Scraps Table 2 in small: aggregates of a user-level DP-FTRL run, on users made of MNIST images.

ε = ∞, 18.9 and 8.2 at δ = 1e-6, plain and with users who show even digits and odd ones in turns. Noise is a tree's, restarted
with every pass over the users; at ε = 8.2 a banded matrix stands beside it. The server's learning rate is the best of a few for
the last iterate, parameters of training on aggregates are tuned by Alg. 3 with τ = 0, and those of inference aggregations by
Alg. 4: all on one half of the public test images, and the other half is reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from dpmerge.jobs import Finished, run_all
from dpmerge.profiles import run_profile
from dpmerge.records import Model, Record
from dpmerge_lab.experiments import ftrl_users_runs as runs_of
from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST, ON_TOP, TRAINED
from dpmerge_lab.experiments.aggregation_scores import gain, parameters, scores as scores_of
from dpmerge_lab.experiments.calibration import least_noise_of
from dpmerge_lab.experiments.ftrl_users_pictures import ERRORS, PAPER, pictures
from dpmerge_lab.experiments.ftrl_users_runs import QUICK, Case, Design, Work
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed
from dpmerge_lab.training.banded_noise import BandedNoise
from dpmerge_lab.training.ftrl_recipe import FtrlRecipe
from dpmerge_lab.training.tuning import TunedTraining, tune_training

DELTA = 1e-6
METHODS = (LAST, *TRAINED, *ON_TOP, *AFTERWARDS)
CASES = tuple(Case(epsilon, shifting) for shifting in (False, True) for epsilon in (math.inf, 18.9, 8.2))
BANDED = tuple(Case(8.2, shifting, True) for shifting in (False, True))


def ftrl_users(options: Options) -> Result:
    """The table with what each aggregation gains, the tree beside the banded matrix, and accuracy over the last rounds."""
    design, folder = (QUICK, None) if options.quick else (Design(), options.data)
    users = runs_of.loaded(design, folder).users
    configuration = {
        **asdict(design),
        "rounds": design.rounds,
        "delta": DELTA,
        "adjacency": "zero-out, of users",
        "repetitions": options.seeds,
        "model": "softmax regression on pixels from 0 to 1, begun at 0",
        "classes a user knows, on average": float(
            np.mean([len(set(users.examples(u, 0)[1].tolist())) for u in range(len(users))])
        ),
        "who takes part": "with a tree all users once in every pass, in a fresh random order; with a banded matrix in one "
        "random order, repeated",
        "learning rate of UTA tr": "(k + 1)/2 times the others', which is how much slower the mean of k iterates moves",
        "test images": "those with even numbers choose parameters, those with odd numbers are reported",
    }
    with ExitStack() as stack, timed(Result("ftrl", configuration)) as result:
        kept = options.folder
        finished = None if kept is None else stack.enter_context(Finished(kept / "runs.jsonl"))
        strategies = {bands: BandedNoise.best(design.rounds, bands, design.epoch) for bands in design.bands}
        for case in (*CASES, *BANDED):
            banded = strategies[max(strategies)] if case.banded else None
            noise = 0.0 if math.isinf(case.epsilon) else least_noise_of(partial(_epsilon, design, banded), case.epsilon)
            result.numbers[case.name] = _case(Work(design, folder, case, noise, banded, options.device), options, finished)
        result.numbers[ERRORS] = {
            "tree": _error(replace(design.recipe(None), variance_reduced=False)),
            "tree, variance reduced": _error(design.recipe(None)),
            **{f"{bands} bands": _error(design.recipe(banded)) for bands, banded in strategies.items()},
        }
        result.pictures = pictures(result.numbers, "digits" if options.quick else "MNIST", options.seeds)
    return result


def _epsilon(design: Design, banded: BandedNoise | None, noise: float) -> float:
    return run_profile(Model("planned", _planned(design.recipe(banded, noise=noise)))).profile.epsilon(DELTA)


def _planned(recipe: FtrlRecipe) -> Record:
    return recipe.record(recipe.rounds, "planned", "planned", "noise", "order")


def _error(recipe: FtrlRecipe) -> float:
    """Of the sums of updates with clip 1, over all rounds, where noise is such that the run is 1-GDP."""
    noisy = replace(recipe, noise_multiplier=1.0)
    mu = run_profile(Model("planned", _planned(noisy))).profile.mu
    assert mu is not None
    drawn = iter(np.eye(2 * recipe.rounds, dtype=np.float32))  # the weight of each draw in a sum
    sums = np.cumsum(list(recipe.increments(lambda: next(drawn))), axis=0)
    return float(mu * np.sqrt((sums**2).sum(axis=1).mean()))


def _case(work: Work, options: Options, finished: Finished | None) -> dict[str, Any]:
    design, name = work.design, work.case.name
    how: dict[str, Any] = {"finished": finished, "jobs": options.jobs}

    def keys(what: str, count: int) -> dict[str, Any]:
        made = [f"{design}: {name}: {what}: {index}" for index in range(count)]
        return {"keys": None if finished is None else made, "progress": options.bar(f"{name}: {what}"), **how}

    def tune(what: str, train: Any, values: Sequence[float]) -> TunedTraining:
        return tune_training(
            train, values, (0,), name=f"{design}: {name}: {what}", progress=options.bar(f"{name}: {what}"), **how
        )

    rates = tune("server learning rate", partial(runs_of.rate_trial, work), design.server_learning_rates)
    work = replace(work, learning_rate=rates.best.parameter)
    trials = {"server learning rate": rates}
    plain = run_all(partial(runs_of.plain_run, work), range(options.seeds), **keys("runs", options.seeds))
    scores = scores_of(plain)
    history = {line: [run["history"][line] for run in plain] for line in plain[0]["history"]}
    if not work.case.banded:
        for method, on_top, values in zip(TRAINED, ON_TOP, (design.weights, design.tails), strict=True):
            trials[method] = tune(method, partial(runs_of.aggregate_trial, work, method), values)
            again = [(method, trials[method].best.parameter)] * options.seeds
            runs = run_all(partial(runs_of.aggregated_run, work), again, **keys(method, options.seeds))
            scores[method] = [run["alone"]["test"] for run in runs]
            scores[on_top] = [run["on top"]["test"] for run in runs]
            history[method] = [run["history"] for run in runs]
    return {
        "epsilon": math.inf if not work.noise else _epsilon(design, work.banded, work.noise),
        "noise multiplier": work.noise,
        "test accuracy": {method: mean_and_deviation(scores[method]) for method in METHODS if method in scores},
        "gain over no aggregation": {
            method: gain(scores[method], scores[LAST], paired=method in AFTERWARDS)
            for method in METHODS
            if method in scores and method != LAST
        },
        "chosen on the validation half": parameters(plain),
        "tuning": {what: found.as_dict() for what, found in trials.items()},
        "the paper's StackOverflow accuracy, percent": PAPER.get(name),
        "price of tuning": None if not work.noise else _together(trials).price(DELTA, by="pld"),
        "rounds": list(runs_of.looks(design)),
        "test accuracy over the rounds": {line: mean_and_deviation(runs) for line, runs in history.items()},
        "spread over the rounds": {line: float(np.std(runs, axis=1).mean()) for line, runs in history.items()},
    }


def _together(trials: Mapping[str, TunedTraining]) -> TunedTraining:
    """All trials of a case as one search: what they cost is their joint release, whichever of them chose what."""
    every = [
        replace(trial, start=index) for index, found in enumerate(trials.values()) for trial in found.trials
    ]  # their names tell them apart by p and τ, and τ is 0 in all
    return TunedTraining(tuple(every))
