"""Linear heads on public features: one portfolio with noise at release, beside every other way to a model for each ε.

CIFAR-10 through EfficientNet-Lite0, which was trained on ImageNet; and hashed words. How much noise a target needs depends on
records alone, and no setting was chosen for a target: the recipe is one for all. Everything is repeated with fresh randomness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dpmerge import Accounting, Portfolio, plan
from dpmerge.jobs import run_all
from dpmerge.profiles import gaussian_delta
from dpmerge.rules import least_noise
from dpmerge.training import LinearSetting, Recipe, Tensors, accuracy, calibrated, fresh_generator, train
from dpmerge_lab.experiments.calibration import least_noise as noise_of_training
from dpmerge_lab.experiments.heads_pictures import (
    DIGITS,
    DRAWN as DRAWN,
    FORMULA as FORMULA,
    IMAGES,
    WORDS,
    kept_beside,
    pictures,
)
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed, with_error
from dpmerge_lab.tasks.docstrings import docstring_features
from dpmerge_lab.tasks.features import Features, cifar10_features, digits_features

T = TypeVar("T")
DELTA = 1e-5
TARGETS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
THREE = (0.25, 2.0, 8.0)  # the models trained anew that make the papers' portfolio
BOUND = 3.0
AVERAGE, SINGLE = "average of {}, noise at release", "one model, noise at release"
COMPOSED, HIDDEN = "trained anew, composition", "trained anew, last iterate only"
BOLT_ON = "output perturbation (Wu et al. 2017)"


@dataclass(frozen=True)
class Size:
    """How large the experiment is: the batches are Poisson with this expected size."""

    steps: int = 300
    batch: int = 512
    noise_multiplier: float = 0.4
    targets: tuple[float, ...] = TARGETS
    models: int = 8


QUICK = Size(20, 256, 0.7, (2.0, 8.0), 2)


@dataclass(frozen=True)
class Asked:
    """What the targets ask of every way: all of it is known before anything is trained."""

    setting: LinearSetting
    targets: tuple[float, ...]
    models: int
    averaged: list[float]  # the noise at release of the average, by target
    alone: list[float]
    composed: list[float]  # the noise multiplier of a model trained anew
    hidden: list[tuple[float, float]]  # the same, and its noise at release
    formula: list[tuple[float, ...] | None]  # the weights of three models
    drawn: list[tuple[float, ...] | None]
    bolt_on: list[float]


def heads(options: Options) -> Result:
    """On images."""
    held = digits_features(BOUND) if options.quick else cifar10_features(options.data, BOUND)
    return _measured("heads", held, IMAGES, options)


def heads_text(options: Options) -> Result:
    """On hashed words."""
    held = digits_features(BOUND) if options.quick else docstring_features(BOUND)
    return _measured("heads-text", held, WORDS, options)


def _measured(name: str, held: Features, what: str, options: Options) -> Result:
    """Test accuracy at every target by every way."""
    size = QUICK if options.quick else Size()
    setting = fitting(size, len(held.train), BOUND)
    with timed(Result(name, _configuration(setting, size, options))) as result:
        asked = _asked(setting, size, options)
        repeat = partial(_repetition, held, asked)
        scores = run_all(repeat, range(options.seeds), jobs=options.jobs, progress=options.bar("repetitions"))
        plain = [one.pop("without privacy")[0] for one in scores]
        result.numbers = {
            "without privacy": mean_and_deviation(plain),
            "accuracy": {name: mean_and_deviation([one[name] for one in scores]) for name in scores[0]},
            "targets": list(size.targets),
            "noise": {name: value for name, value in vars(asked).items() if name not in ("setting", "targets", "models")},
        }
        result.numbers["composition of one model of the portfolio"] = _composed_epsilon(setting)
    result.table = _table(result.numbers, size.targets)
    # What is kept of diffprivlib is not of the digits.
    shown, beside = (DIGITS, None) if options.quick else (what, kept_beside(options.folder))
    result.pictures = pictures(result.numbers, shown, beside, DELTA)
    return result


def fitting(size: Size, examples: int, bound: float) -> LinearSetting:
    """Softmax regression with the least clip that never binds, and nearly the largest rate at which no step drives apart."""
    recipe = Recipe(
        steps=size.steps,
        learning_rate=0.1,
        clip=bound,
        noise_multiplier=size.noise_multiplier,
        rate=size.batch / examples,
    )
    setting = LinearSetting(recipe, "softmax", examples, bound)
    recipe = replace(recipe, clip=setting.least_clip(), learning_rate=0.98 * setting.largest_learning_rate(size.models, DELTA))
    return replace(setting, recipe=recipe)


def _configuration(setting: LinearSetting, size: Size, options: Options) -> dict[str, Any]:
    return {
        "delta": DELTA,
        "models": size.models,
        "recipe": vars(setting.recipe),
        "norm bound": setting.norm_bound,
        "examples": setting.examples,
        "repetitions": options.seeds,
    }


def _asked(setting: LinearSetting, size: Size, options: Options) -> Asked:
    targets = size.targets
    found = run_all(partial(_for_target, setting, size.models), targets, jobs=options.jobs, progress=options.bar("accounting"))
    rows = list(zip(*found, strict=True))
    composed: list[float] = list(rows[2])
    others = [_of_three(setting, _three(composed, targets), epsilon) for epsilon in targets]
    return Asked(
        setting,
        targets,
        size.models,
        list(rows[0]),
        list(rows[1]),
        composed,
        list(rows[3]),
        [one for one, _ in others],
        [one for _, one in others],
        list(rows[4]),
    )


def _for_target(setting: LinearSetting, models: int, epsilon: float) -> tuple[float, float, float, tuple[float, float], float]:
    many, one = setting.alike(models), setting.alike(1)
    even = many.weights(dict.fromkeys(many.names, 1 / models))
    recipe = setting.recipe
    hidden = calibrated(setting, epsilon=epsilon, delta=DELTA)
    return (
        least_noise(even, epsilon=epsilon, delta=DELTA)[0],
        least_noise(one.weights({one.names[0]: 1.0}), epsilon=epsilon, delta=DELTA)[0],
        noise_of_training(recipe, setting.examples, epsilon, DELTA),
        (hidden.setting.recipe.noise_multiplier, hidden.release_noise),
        output_noise(setting, epsilon),
    )


def output_noise(setting: LinearSetting, epsilon: float) -> float:
    """Gaussian noise on a non-private model: passes over fixed batches, of which one record is in one (Wu et al. 2017).

    Convex, smooth, learning rate at most 2/β: each pass moves two copies apart by η·L/B at most, where the record's gradient is
    there in one and 0 in the other.
    """
    recipe = setting.recipe
    batch = recipe.expected_batch(setting.examples)
    passes = math.ceil(recipe.steps * batch / setting.examples)
    moved = passes * recipe.learning_rate * recipe.clip / batch
    low, high = 1e-3, 1e3  # of the noise, in units of what one record moves
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_delta(1 / middle, epsilon) <= DELTA else (middle, high)
    return high * moved


def _three(composed: Sequence[T], targets: Sequence[float]) -> list[T]:
    """Of what belongs to models trained anew, that of the papers' portfolio."""
    return [one for one, epsilon in zip(composed, targets, strict=True) if epsilon in THREE or len(targets) < 3]


def _of_three(
    setting: LinearSetting, noises: Sequence[float], epsilon: float
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The best weights by the papers' formula, and the best draw; nothing where none meets the target."""
    models = [replace(setting, recipe=replace(setting.recipe, noise_multiplier=noise)) for noise in noises]
    named = [
        replace(one.alike(len(models)).models[place], name=f"sigma-{noise:g}")
        for place, (one, noise) in enumerate(zip(models, noises, strict=True))
    ]
    portfolio = Portfolio(tuple(named))
    formula = Accounting(assume_smoothness=0.0, only_release=False)
    averaged = plan(portfolio, epsilon=epsilon, delta=DELTA, rules=("combination",), accounting=formula).best
    drawn = plan(portfolio, epsilon=epsilon, delta=DELTA, rules=("selection",), accounting=Accounting(only_release=False)).best
    return (averaged.weights.values if averaged else None), (drawn.weights.values if drawn else None)


def _composed_epsilon(setting: LinearSetting) -> float:
    portfolio = setting.alike(1)
    rule = Accounting(only_release=False)
    found = plan(portfolio, epsilon=100.0, delta=DELTA, rules=("single",), accounting=rule).best
    assert found is not None
    return found.epsilon


def trained(held: Features, recipe: Recipe) -> Tensors:
    """One private head."""
    return train(held.train, held.train_labels, held.classes, recipe, norm_bound=held.bound, dataset=held.identity)[-1].tensors


def _repetition(held: Features, asked: Asked, _: int) -> dict[str, list[float]]:
    recipe, generator = asked.setting.recipe, fresh_generator()

    def score(tensors: Mapping[str, Any]) -> float:
        return accuracy(dict(tensors), held.test, held.test_labels)

    def again(noise_multiplier: float) -> Tensors:
        return trained(held, replace(recipe, noise_multiplier=noise_multiplier))

    models = [trained(held, recipe) for _ in range(asked.models)]
    average = mean(models)
    composed = [again(noise) for noise in asked.composed]
    three = (
        [composed[asked.targets.index(one)] for one in THREE if one in asked.targets] if len(asked.targets) > 2 else composed
    )
    plain = passes_over_batches(held, recipe)
    own = [score(model) for model in three]
    return {
        "without privacy": [score(plain)],
        AVERAGE.format(asked.models): [score(noisy(average, noise, generator)) for noise in asked.averaged],
        SINGLE: [score(noisy(models[0], noise, generator)) for noise in asked.alone],
        COMPOSED: [score(model) for model in composed],
        HIDDEN: [score(noisy(again(noise), tau, generator)) for noise, tau in asked.hidden],
        FORMULA: [math.nan if w is None else score(mean(three, w)) for w in asked.formula],
        DRAWN: [math.nan if w is None else float(np.dot(w, own)) for w in asked.drawn],
        BOLT_ON: [score(noisy(plain, noise, generator)) for noise in asked.bolt_on],
    }


def noisy(tensors: Mapping[str, Any], noise: float, generator: np.random.Generator) -> Tensors:
    """With noise at release, rounded as it would be stored."""
    return {k: (v + noise * generator.standard_normal(v.shape)).astype(np.float32) for k, v in tensors.items()}


def mean(models: Sequence[Tensors], weights: Sequence[float] | None = None) -> Tensors:
    """The average in double precision."""
    return {
        name: np.average([model[name].astype(np.float64) for model in models], axis=0, weights=weights) for name in models[0]
    }


def passes_over_batches(held: Features, recipe: Recipe) -> Tensors:
    """The same training without privacy, by passes over fixed batches of a random order."""
    examples = len(held.train)
    batch = round(recipe.expected_batch(examples))
    order = fresh_generator().permutation(examples)
    weights = np.zeros((held.classes, held.train.shape[1]), np.float32)
    for _ in range(math.ceil(recipe.steps * batch / examples)):
        for start in range(0, examples, batch):
            rows = held.train[chosen := order[start : start + batch]]
            scores = rows @ weights.T
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
            scores[np.arange(len(rows)), held.train_labels[chosen]] -= 1
            weights -= np.float32(recipe.learning_rate / batch) * (scores.T @ rows)
    return {"weight": weights[:, :-1], "bias": weights[:, -1]}


def _table(numbers: Mapping[str, Any], targets: Sequence[float]) -> tuple[str, list[str], list[list[str]]]:
    rows = []
    for name, of in numbers["accuracy"].items():
        cells = ({"mean": m, "std": s, "runs": of["runs"]} for m, s in zip(of["mean"], of["std"], strict=True))
        rows.append([name, *("—" if math.isnan(cell["mean"]) else with_error(cell) for cell in cells)])
    plain = numbers["without privacy"]
    title = f"test accuracy (mean ± standard error); without privacy {plain['mean']:.4f}"
    return title, ["", *(f"ε = {epsilon:g}" for epsilon in targets)], rows
