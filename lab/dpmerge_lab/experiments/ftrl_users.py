"""Recycling Scraps Table 2 in small: aggregates of a user-level DP-FTRL run, on users made of MNIST images.

ε = ∞, 18.9 and 8.2 at δ = 1e-6, plain and with users who show even digits and odd ones in turns. Noise is a tree's, restarted
with every pass over the users; at ε = 8.2 a banded matrix stands beside it. The server's learning rate is the best for the last
iterate, parameters of training on aggregates are tuned by Alg. 3 with τ = 0, and those of inference aggregations by Alg. 4: all
on one half of the public test images, and the other half is reported. As aggregates like larger steps than the last iterate,
both rates and parameters are also chosen for what an inference aggregation makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from dpmerge.jobs import Finished, run_all
from dpmerge.profiles import run_profile
from dpmerge.records import Model, Record
from dpmerge_lab.experiments import ftrl_users_runs as runs_of
from dpmerge_lab.experiments.aggregation import LAST, ON_TOP, TRAINED
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, gain, parameters, scores as scores_of
from dpmerge_lab.experiments.aggregation_tuning import ALONE, WAYS, WITH_INFERENCE, Point, Tuned, price, tune
from dpmerge_lab.experiments.calibration import least_noise_of
from dpmerge_lab.experiments.ftrl_users_pictures import COLUMNS, ERRORS, OWN_RATE, PAPER, pictures
from dpmerge_lab.experiments.ftrl_users_runs import QUICK, Case, Design, Work
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed
from dpmerge_lab.training.banded_noise import BandedNoise
from dpmerge_lab.training.ftrl_recipe import FtrlRecipe

DELTA = 1e-6
CASES = tuple(Case(epsilon, shifting) for shifting in (False, True) for epsilon in (math.inf, 18.9, 8.2))
RATE = "server learning rate"
_Run = Callable[[bool, Point], dict[str, Any]]  # whether it is followed on the way, and where it is in the grid
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
        "parameter of EMA tr": "the weight of the new iterate, as in Eq. (3)",
        "learning rate of EMA tr and UTA tr": "that of plain runs times a factor that is tuned; for UTA tr times (k + 1)/2 as "
        "well, which is how much slower the mean of k iterates moves",
        "inference aggregation on top": "of the aggregates that steps start from",
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
    searches: dict[str, Tuned] = {}

    def tuned(what: str, run: _Run, points: Iterable[Point], at: str = "") -> dict[str, Any]:
        """Fresh runs at both choices, by the way of choosing; one set of runs where these agree."""
        title = f"{name}: {what}{at}"
        searches[what] = search = tune(
            partial(run, False),
            points,
            design.trials,
            name=f"{design}: {title}: trial",
            progress=options.bar(f"tuning {title}"),
            **how,
        )
        found: dict[Point, Any] = {}
        for point in (search.best(way) for way in WAYS):
            if point not in found:
                keys = [f"{design}: {title}: {point}: {index}" for index in range(options.seeds)]
                named: dict[str, Any] = {"keys": None if finished is None else keys, "progress": options.bar(title)}
                found[point] = run_all(partial(run, True), [point] * options.seeds, **named, **how)
        return {way: found[search.best(way)] for way in WAYS}

    plain = tuned(RATE, partial(runs_of.plain_run, work), map(Point, design.server_learning_rates))
    work = replace(work, learning_rate=searches[RATE].best(ALONE).parameter)
    scores = {**scores_of(plain[ALONE]), OWN_RATE: scores_of(plain[WITH_INFERENCE])[CHOSEN]}
    paired = {*scores} - {OWN_RATE}
    history = {line: [run["history"][line] for run in plain[ALONE]] for line in plain[ALONE][0]["history"]}
    of_iterates = {}
    if not work.case.banded:
        for method, on_top, values in zip(TRAINED, ON_TOP, (design.weights, design.tails), strict=True):
            points = [Point(value, rate=factor) for value in values for factor in design.factors]
            # Another rate may win if the plain runs are made again: runs at this one are not found then.
            at = f" at {RATE} {work.learning_rate!r}"
            runs = tuned(method, partial(runs_of.aggregated_run, work, method), points, at)
            scores[method] = scores_of(runs[ALONE])[LAST]
            scores[on_top] = scores_of(runs[WITH_INFERENCE])[CHOSEN]
            scores[f"{on_top}, tuned {ALONE}"] = scores_of(runs[ALONE])[CHOSEN]
            of_iterates[on_top] = [run["on top of the iterates"]["test"] for run in runs[WITH_INFERENCE]]
            history[method] = [run["history"] for run in runs[ALONE]]
    others = [column for column in scores if column not in COLUMNS]
    shown = [column for column in (*COLUMNS, *others) if column in scores]
    return {
        "epsilon": math.inf if not work.noise else _epsilon(design, work.banded, work.noise),
        "noise multiplier": work.noise,
        "test accuracy": {column: mean_and_deviation(scores[column]) for column in shown},
        "gain over no aggregation": {
            column: gain(scores[column], scores[LAST], paired=column in paired) for column in shown if column != LAST
        },
        "gain over the best inference aggregation of plain runs at their own rate": {
            on_top: gain(scores[on_top], scores[OWN_RATE], paired=False) for on_top in ON_TOP if on_top in scores
        },
        "test accuracy, inference aggregation of the iterates": {
            on_top: mean_and_deviation(values) for on_top, values in of_iterates.items()
        },
        "chosen on the validation half": parameters(plain[ALONE]),
        "tuning": {what: found.as_dict() for what, found in searches.items()},
        "the paper's StackOverflow accuracy, percent": PAPER.get(name),
        "price of tuning": None if not work.noise else price(searches.values(), DELTA),
        "rounds": list(runs_of.looks(design)),
        "test accuracy over the rounds": {line: mean_and_deviation(runs) for line, runs in history.items()},
        "spread over the rounds": {line: float(np.std(runs, axis=1).mean()) for line, runs in history.items()},
    }
