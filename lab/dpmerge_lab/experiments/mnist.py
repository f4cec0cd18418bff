"""Differentially Private Model Merging on MNIST: App. H.1 of version 1, and full batches and Poisson twins after version 2.

`mnist` is version 1's own: clipping binds and steps are long, so the proved bound on averages is near joint release.
`mnist-full-batch` bounds the features, so that smoothness is known and clipping provably never binds: there the transport
theorem pays. How much depends on the schedule: with a learning rate that decays to nothing, on Σηβ, the length of training;
with a constant one, on nothing but ηβ ≤ 2 and the number of steps (docs/theory.md §3.3). `mnist-replace-one` has the setting
of version 2, three models, full batches and replace-one neighbours, with the papers' images and with bounded ones; steps,
learning rates and noise are ours, as version 2's are missing from our copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dpmerge.jobs import run_all
from dpmerge.planning import Point
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, Combination
from dpmerge.training import Recipe
from dpmerge_lab.experiments.merge_pictures import on_weights
from dpmerge_lab.experiments.portfolio_pictures import (
    AVERAGE,
    DRAW,
    LAST_ONLY,
    MERELY_SMOOTH,
    against_length,
    against_weights,
    frontier_numbers,
    frontier_panel,
    frontier_picture,
    heatmaps_of_accounts,
    kept_frontier_panel,
    whole_heatmap,
)
from dpmerge_lab.experiments.portfolios import (
    DELTA,
    Measured,
    Setting,
    alone,
    data_name,
    grid,
    guarantees,
    measure,
    replace_one,
    restated,
)
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed

EPOCH, RATE = 235, 256 / 60000
_NORM = math.sqrt(10)  # of centred images stretched to norm 3, and the bias
_CLIP = 4.48  # above √2 times that: gradients of softmax regression are shorter
_SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.3, 0.5, 0.7, 0.9)
SHOWN = ((0.0, 0.1, 0.9), (0.1, 0.0, 0.9), (0.5, 0.0, 0.5), (0.3, 0.3, 0.4))  # weights of three models in a picture
LONGEST = 78.0  # Σηβ of forty steps with ηβ just below 2


def papers() -> Setting:
    """App. H.1: (C, σ) = (1, 0.5), (2, 0.5), (1, 2), learning rate 0.1, batches of 256, three epochs."""
    named = {"C=1 σ=0.5": (1.0, 0.5), "C=2 σ=0.5": (2.0, 0.5), "C=1 σ=2": (1.0, 2.0)}
    recipes = {
        name: Recipe(steps=3 * EPOCH, learning_rate=0.1, clip=clip, noise_multiplier=sigma, rate=RATE)
        for name, (clip, sigma) in named.items()
    }
    return Setting(recipes, norm_bound=50.0, as_the_papers=True)


def full_batch(total: float, decay: bool) -> Setting:
    """Forty full batches with Σηβ = `total`; with decay, the rate climbs for four steps and falls for 36."""
    shape = Recipe(steps=40, learning_rate=1.0, clip=_CLIP, noise_multiplier=1.0, warmup=4 if decay else 0, decay=decay)
    peak = total / (sum(shape.learning_rates()) * _NORM**2 / 2)
    return _with_noise(replace(shape, learning_rate=peak), 50.0, 1000.0)


def three_full_batches() -> dict[str, Setting]:
    """Version 2, §8.2 and App. E.1: a model, one with another setting that costs no privacy, and one with more noise.

    Full batches, and a learning rate that climbs and falls linearly, are the paper's. The numbers are ours, but for the clips,
    which are version 1's: version 2 lost its own in our copy.
    """

    def recipes(*settings: tuple[str, float, float, float], decay: bool = True) -> dict[str, Recipe]:
        return {
            name: Recipe(steps=40, learning_rate=rate, clip=clip, noise_multiplier=sigma, warmup=4 if decay else 0, decay=decay)
            for name, rate, clip, sigma in settings
        }

    clipped = (("C=1 σ=50", 0.5, 1.0, 50.0), ("C=2 σ=50", 0.5, 2.0, 50.0), ("C=1 σ=1000", 0.5, 1.0, 1000.0))
    free = (("η=0.39 σ=50", 0.39, _CLIP, 50.0), ("η=0.2 σ=50", 0.2, _CLIP, 50.0), ("η=0.39 σ=1000", 0.39, _CLIP, 1000.0))
    return {
        "as the paper": Setting(recipes(*clipped), norm_bound=50.0, as_the_papers=True),
        "never clipped": Setting(recipes(*free), _NORM),
        "never clipped, constant rate": Setting(recipes(*free, decay=False), _NORM),
    }


def poisson_twin() -> Setting:
    """Batches, epochs and noise of App. H.1: ηβ = 1.2, so no batch up to 1.6 times the expected makes a step expand."""
    return _with_noise(Recipe(steps=3 * EPOCH, learning_rate=0.24, clip=_CLIP, noise_multiplier=1.0, rate=RATE), 0.5, 2.0)


def logistic_twin() -> Setting:
    """The same for even against odd: one slope to clip, so clipping may bind and steps still do not expand."""
    recipe = Recipe(steps=3 * EPOCH, learning_rate=0.48, clip=1.5, noise_multiplier=1.0, rate=RATE)
    return replace(_with_noise(recipe, 0.5, 2.0), loss="logistic")


def two_models() -> dict[str, Setting]:
    """What `mnist_full_batch` trains."""
    return {
        "warm-up and decay": full_batch(1.0, decay=True),
        "constant rate": full_batch(LONGEST, decay=False),
        "Poisson twin": poisson_twin(),
        "logistic twin": logistic_twin(),
    }


def _with_noise(recipe: Recipe, *sigmas: float) -> Setting:
    return Setting({f"σ={sigma:g}": replace(recipe, noise_multiplier=sigma) for sigma in sigmas}, _NORM)


def mnist(options: Options) -> Result:
    """Heatmaps and frontiers of the three softmax regressions of App. H.1."""
    setting = papers().sized(options)
    with timed(Result("mnist", setting.configuration(options))) as result:
        measured = measure(setting, grid(options), options, "training")
        panel = frontier_panel(measured, options)
        title = f"{data_name(options)}: three softmax regressions, merged"
        result.pictures["frontier"] = frontier_picture(title, [panel], options)
        averages = _averages(measured, grid(options), options)
        result.numbers = {"alone": alone(measured), "averages": averages, "frontier": frontier_numbers(panel)}
        result.pictures["heatmap"] = whole_heatmap(measured.portfolio, options, data_name(options)).as_dict()
    return result


def mnist_full_batch(options: Options) -> Result:
    """Where the transport theorem pays, what that depends on, and the Poisson twins: two models each, add-remove neighbours.

    Full batches and schedule are after version 2, which has three models and replace-one neighbours: `mnist_replace_one`.
    """
    settings = {name: setting.sized(options) for name, setting in two_models().items()}
    configuration = {name: setting.configuration(options) for name, setting in settings.items()}
    with timed(Result("mnist-full-batch", configuration)) as result:
        for name, setting in settings.items():
            points = [(share, 1 - share) for share in ((0.02, 0.1, 0.5) if options.quick else _SHARES)]
            measured = measure(setting, points, options, f"{name}: training")
            result.numbers[name] = {"alone": alone(measured), "averages": _averages(measured, points, options)}
        lengths = {"warm-up and decay": _lengths(True, options), "constant rate": _lengths(False, options)}
        result.numbers["length of training"] = lengths
        result.pictures = full_batch_pictures(settings, result.numbers, data_name(options))
    return result


def full_batch_pictures(settings: Mapping[str, Setting], numbers: Mapping[str, Any], data: str) -> dict[str, Mapping[str, Any]]:
    """Of each setting, and of longer training."""
    found = {}
    for name, setting in settings.items():
        title = f"{data}, {name}: averages of {' and '.join(setting.names)}"
        found[name.lower().replace(" ", "-")] = against_weights(title, setting, **numbers[name])
    return {**found, "length-of-training": against_length(f"{data}, full batches", numbers["length of training"])}


def mnist_replace_one(options: Options) -> Result:
    """Heatmaps and frontiers of three full-batch models under replace-one, in every account of an average."""
    settings = {name: setting.sized(options) for name, setting in three_full_batches().items()}
    configuration = {name: {**setting.configuration(options), "adjacency": "replace-one"} for name, setting in settings.items()}
    with timed(Result("mnist-replace-one", configuration)) as result:
        portfolios = {}
        for name, setting in settings.items():
            measured = measure(setting, grid(options), options, f"{name}: training")
            measured = replace(measured, portfolio=restated(measured.portfolio, replace_one))
            panel = frontier_panel(measured, options, name, Accounting(only_release=False))
            rows = _averages(measured, grid(options), options)
            for row in rows:
                hidden = Combination(measured.portfolio.weights(row["weights"])).guarantee(delta=DELTA)
                row |= {LAST_ONLY: hidden.epsilon, "its theorem": hidden.theorem}
            result.numbers[name] = {"alone": alone(measured), "averages": rows, "frontier": frontier_numbers(panel)}
            portfolios[name] = measured.portfolio
        result.pictures = {
            **replace_one_heatmaps(portfolios, options),
            **replace_one_pictures(result.numbers, data_name(options), options),
        }
    return result


def replace_one_heatmaps(portfolios: Mapping[str, Portfolio], options: Options) -> dict[str, Mapping[str, Any]]:
    """ε over the weights, which depends on records alone."""
    found = heatmaps_of_accounts(portfolios, options, data_name(options))
    return {f"heatmap-{name.replace(',', '').replace(' ', '-')}": document for name, document in found.items()}


def replace_one_pictures(numbers: Mapping[str, Any], data: str, options: Options) -> dict[str, Mapping[str, Any]]:
    """Frontiers, and averages beside draws."""
    title = f"{data}: three full-batch softmax regressions, replace-one"
    repeated = f"mean of {options.seeds} repetitions with fresh noise and batches"
    rows = {name: of["averages"] for name, of in numbers.items()}
    return {
        "frontier": frontier_picture(title, [kept_frontier_panel(name, of) for name, of in numbers.items()], options),
        "averages": on_weights(f"{title}: averages and draws", repeated, rows, SHOWN),
    }


def _averages(measured: Measured, points: Iterable[Point], options: Options) -> list[dict[str, Any]]:
    """Every average with what it scores, beside a draw with the same weights, and all guarantees."""
    points = [point for point in points if max(point) < 1]
    account = partial(guarantees, measured.portfolio)
    found = run_all(account, points, jobs=options.jobs, progress=options.bar("averages"))
    return [
        {
            "weights": dict(zip(measured.portfolio.names, point, strict=True)),
            AVERAGE: mean_and_deviation(measured.of(point)),
            DRAW: mean_and_deviation(measured.drawn(point)),
            **known,
        }
        for point, known in zip(points, found, strict=True)
    ]


def _lengths(decay: bool, options: Options) -> list[dict[str, Any]]:
    """What longer training brings and costs: averages with weight 0.1 on the less private model."""
    rows = []
    for total in (1.0, 40.0) if options.quick else (0.25, 1.0, 4.0, 16.0, 40.0 if decay else LONGEST):
        measured = measure(full_batch(total, decay), [(0.1, 0.9)], options, f"Σηβ = {total:g}: training")
        row = _averages(measured, [(0.1, 0.9)], options)[0]
        weights = restated(measured.portfolio, _merely_smooth).weights_in_order((0.1, 0.9))
        smooth = Combination(weights, only_release=False).guarantee(delta=DELTA)
        rows.append({"Σηβ": total, **row, MERELY_SMOOTH: smooth.epsilon, "alone": alone(measured)})
    return rows


def _merely_smooth(content: dict[str, Any]) -> None:
    """If it were not known that clipping never binds."""
    content["mechanism"]["convex"] = None
