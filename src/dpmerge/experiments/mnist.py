"""M1 App. H.1 (Fig. 2 and 3), M2's full-batch setting, and its Poisson twin: softmax regressions, merged and measured.

`mnist` is the paper's: images normalised by mean and deviation, clipping binds, so the proved bound on averages is near joint
release. The other two bound the features, so that smoothness is small and clipping provably never binds: there the transport
theorem pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.experiments.results import Options, Result, mean_and_deviation, timed
from dpmerge.jobs import run_all
from dpmerge.records import Model, Portfolio
from dpmerge.rules import Combination, Joint, Selection
from dpmerge.tasks.images import Images, digits_as_images, load_images
from dpmerge.training.linear import Recipe, accuracy, bounded_features, train
from dpmerge.weights.frontier import frontier
from dpmerge.weights.heatmap import heatmap
from dpmerge.weights.points import Accounting, Point
from dpmerge.weights.simplex import simplex_grid

DELTA = 1e-5
_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's training pixels, which are public statistics by now
_CHOSEN_BY_TEST = "weights in this picture are chosen by test accuracy of the private models: only joint release covers that"


@dataclass(frozen=True)
class Setting:
    """One portfolio: how images become features, and the runs."""

    dataset: str
    norm_bound: float
    normalise: bool
    recipes: dict[str, Recipe]


@dataclass(frozen=True)
class _Measured:
    """The accuracies that were measured where the models were trained, as a scorer."""

    known: dict[Point, float]
    fingerprint: str

    def __call__(self, weights: Point) -> float:
        return self.known[weights]


def papers() -> Setting:
    """M1 App. H.1: (C, σ) = (1, 0.5), (2, 0.5), (1, 2), learning rate 0.1, batches of 256, three epochs."""
    rate = 256 / 60000
    named = {"C=1 σ=0.5": (1.0, 0.5), "C=2 σ=0.5": (2.0, 0.5), "C=1 σ=2": (1.0, 2.0)}
    recipes = {name: Recipe(705, 0.1, clip, sigma, rate) for name, (clip, sigma) in named.items()}
    return Setting("mnist-train-60000", 80.0, True, recipes)


def full_batch() -> Setting:
    """Full batches, warm-up and decay; images of norm at most 1, so smoothness 1 and gradients of norm at most 2."""
    common = {"steps": 100, "learning_rate": 1.0, "clip": 2.001, "warmup": 10, "decay": True}
    recipes = {f"σ={sigma:g}": Recipe(noise_multiplier=sigma, **common) for sigma in (8.0, 15.0, 60.0)}  # type: ignore[arg-type]
    return Setting("mnist-train-60000", math.sqrt(2), False, recipes)


def poisson_twin() -> Setting:
    """Poisson batches of 256 with the noise of M1's portfolio, on the same bounded images: the coupled-run law applies."""
    common = {"steps": 705, "learning_rate": 1.2, "clip": 2.001, "rate": 256 / 60000}
    recipes = {f"σ={sigma:g}": Recipe(noise_multiplier=sigma, **common) for sigma in (0.5, 0.8, 2.0)}  # type: ignore[arg-type]
    return Setting("mnist-train-60000", math.sqrt(2), False, recipes)


def mnist(options: Options) -> Result:
    """Heatmaps and frontiers of M1's three softmax regressions."""
    return _run("mnist", papers(), options, heatmaps=True)


def mnist_full_batch(options: Options) -> Result:
    """M2's setting where the transport theorem pays, and its Poisson twin."""
    result = _run("mnist-full-batch", full_batch(), options)
    twin = _run("twin", poisson_twin(), options)
    result.numbers["poisson twin"] = {**twin.numbers, "configuration": twin.configuration}
    result.pictures |= {f"poisson-{name}": picture for name, picture in twin.pictures.items()}
    result.seconds += twin.seconds
    return result


def _run(name: str, setting: Setting, options: Options, heatmaps: bool = False) -> Result:
    images = digits_as_images() if options.quick else load_images(options.data, "mnist")
    if options.quick:
        setting = _quick(setting)
    configuration = {
        "recipes": {key: vars(recipe) for key, recipe in setting.recipes.items()},
        "norm_bound": setting.norm_bound,
        "smoothness": setting.norm_bound**2 / 2,
        "delta": DELTA,
        "seeds": options.seeds,
        "data": "digits" if options.quick else "mnist",
    }
    with timed(Result(name, configuration)) as result:
        grid = simplex_grid(3, 0.25 if options.quick else 0.1)
        measured = run_all(partial(_one_seed, images, setting, grid.tolist()), list(range(options.seeds)), jobs=options.jobs)
        portfolio = Portfolio(
            tuple(Model(key, record) for key, record in zip(setting.recipes, measured[0]["records"], strict=True))
        )
        scores = mean_and_deviation([one["scores"] for one in measured])
        points = [tuple(row) for row in grid.tolist()]
        known = dict(zip(points, scores["mean"], strict=True))
        corners = [known[tuple(1.0 if i == j else 0.0 for j in range(3))] for i in range(3)]
        result.numbers = {
            "weights": grid.tolist(),
            "test accuracy of averages": scores,
            "alone": _alone(portfolio, corners),
            "merges": _merges(portfolio, points, known),
        }
        accounting = Accounting(DELTA)
        here = partial(run_all, jobs=options.jobs)
        step = 0.25 if options.quick else 0.1
        targets = np.geomspace(0.15, 12, 60).tolist()
        scorer = _Measured(known, name)
        drawn = frontier(portfolio, accounting=accounting, epsilons=targets, scorer=scorer, step=step, run=_keyed(here))
        source = f"mean test accuracy over {options.seeds} seeds"
        labels = {"utility_label": "test accuracy", "utilities_source": source, "warning": _CHOSEN_BY_TEST}
        result.pictures["frontier"] = {**drawn, **labels}
        if heatmaps:
            for label, assumed in (("proved", None), ("formula", 0.0)):
                result.pictures[f"heatmap-{label}"] = heatmap(
                    portfolio, accounting=Accounting(DELTA, assumed), step=0.25 if options.quick else 0.05, run=_keyed(here)
                )
    return result


def _keyed(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda function, items, *, keys: run(function, items)


def _quick(setting: Setting) -> Setting:
    """The same with fewer steps and larger batches, for 1,437 digits."""
    recipes = {
        key: Recipe(30, r.learning_rate, r.clip, r.noise_multiplier, None if r.rate is None else 0.1, r.warmup // 4, r.decay)
        for key, r in setting.recipes.items()
    }
    return Setting("sklearn-digits-train-1437", setting.norm_bound, False, recipes)


def _one_seed(images: Images, setting: Setting, grid: Sequence[Sequence[float]], seed: int) -> dict[str, Any]:
    """Three runs with fresh noise (a seed here is only a number), and the test accuracy of every average."""
    shown, hidden = (
        bounded_features((part - _MEAN) / _DEVIATION if setting.normalise else _within_one(part), setting.norm_bound)
        for part in (images.train, images.test)
    )
    models = [
        train(shown, images.train_labels, 10, recipe, norm_bound=setting.norm_bound, dataset=setting.dataset)[-1]
        for recipe in setting.recipes.values()
    ]
    scores = []
    for weights in grid:
        merged = {
            key: np.sum([w * model.tensors[key].astype(np.float64) for w, model in zip(weights, models, strict=True)], axis=0)
            for key in ("weight", "bias")
        }
        scores.append(accuracy({key: value.astype(np.float32) for key, value in merged.items()}, hidden, images.test_labels))
    return {"scores": scores, "records": [model.record for model in models]}


def _within_one(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12))


def _alone(portfolio: Portfolio, scores: Sequence[float]) -> dict[str, Any]:
    found = {}
    for name, score in zip(portfolio.names, scores, strict=True):
        rule = Joint(portfolio.weights({name: 1.0}))
        found[name] = {by: rule.guarantee(delta=DELTA, by=by).epsilon for by in ("pld", "rdp")} | {"test accuracy": score}
    return found


def _merges(
    portfolio: Portfolio, points: Sequence[tuple[float, ...]], known: dict[tuple[float, ...], float]
) -> list[dict[str, Any]]:
    """A few averages side by side: proved, formula, random selection with the same weights, joint release."""
    rows = []
    last = len(portfolio.names) - 1
    for point in points:
        if point[last] < 0.5 or point[last] == 1:
            continue
        weights = portfolio.weights_in_order(point)
        rows.append(
            {
                "weights": list(point),
                "test accuracy": known[point],
                "linear combination, proved": Combination(weights).guarantee(delta=DELTA).epsilon,
                "linear combination, papers' formula": Combination(weights, 0.0).guarantee(delta=DELTA).epsilon,
                "random selection": Selection(weights).guarantee(delta=DELTA).epsilon,
                "joint release": Joint(weights).guarantee(delta=DELTA).epsilon,
            }
        )
    return rows
