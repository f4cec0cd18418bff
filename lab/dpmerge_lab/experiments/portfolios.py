"""Portfolios of linear models on images, trained several times over: what averages of them score, and what they guarantee."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import bounded_features
from dpmerge.jobs import run_all
from dpmerge.planning import Point, simplex_grid
from dpmerge.records import Model, Portfolio, Record
from dpmerge.rules import Combination, Joint, Selection
from dpmerge.training import Loss, Recipe, Tensors, accuracy, train
from dpmerge_lab.experiments.results import Options, mean_and_deviation
from dpmerge_lab.tasks.images import digits_as_images, load_images

DELTA = 1e-5
CHOSEN_BY_TEST = "weights in this picture are chosen by test accuracy of the private models: only joint release covers that"
_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's training pixels, which are public statistics by now
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """One portfolio: the runs, and how an image becomes features of norm at most `norm_bound`, the bias included.

    With several epochs the models are checkpoints: one after each epoch of each run.

    As the papers do it, pixels are normalised by their mean and deviation. Otherwise every image is centred and stretched to
    the largest norm there is: the smaller the bias beside it, the better the model that a short training finds. Logistic
    regression tells even digits from odd ones.
    """

    recipes: Mapping[str, Recipe]
    norm_bound: float
    as_the_papers: bool = False
    epochs: int = 1
    loss: Loss = "softmax"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models."""
        if self.epochs == 1:
            return tuple(self.recipes)
        ends = [f"epoch {epoch + 1}" for epoch in range(self.epochs)]
        return tuple(ends) if len(self.recipes) == 1 else tuple(f"{name}, {end}" for name in self.recipes for end in ends)

    @property
    def classes(self) -> int:
        """How many are told apart."""
        return 2 if self.loss == "logistic" else 10

    @property
    def smoothness(self) -> float:
        """β: of softmax regression r²/2, of logistic regression r²/4 (docs/theory.md §3.3)."""
        return self.norm_bound**2 / (4 if self.classes == 2 else 2)

    def features(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Each image for itself: no other image has a say in it."""
        centred = images - np.float32(_MEAN)
        if self.as_the_papers:
            return bounded_features(centred / np.float32(_DEVIATION), self.norm_bound)
        norms = np.linalg.norm(centred, axis=1, keepdims=True)
        return bounded_features(centred * (self.norm_bound / np.maximum(norms, 1e-12)), self.norm_bound)

    def targets(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What is to be told."""
        return labels % 2 if self.classes == 2 else labels

    def sized(self, options: Options) -> Setting:
        """As it is, or for a quick run on 1,437 digits: larger batches, fewer of them."""
        if not options.quick:
            return self
        shorter = {name: replace(r, steps=30, rate=0.1) if r.rate else r for name, r in self.recipes.items()}
        return replace(self, recipes=shorter)

    def configuration(self, options: Options) -> dict[str, Any]:
        """T, η, β, σ and the rest; Σηβ is how far training goes, whatever the scale of the features."""
        return {
            "data": data_name(options),
            "repetitions": options.seeds,
            "delta": DELTA,
            "loss": self.loss,
            "recipes": {name: asdict(recipe) for name, recipe in self.recipes.items()},
            "norm_bound": self.norm_bound,
            "smoothness β": self.smoothness,
            "Σηβ": {name: sum(recipe.learning_rates()) * self.smoothness for name, recipe in self.recipes.items()},
            "features": "pixels normalised by mean and deviation" if self.as_the_papers else "centred images of equal norm",
            "task": "even or odd" if self.classes == 2 else "which digit",
        }


@dataclass(frozen=True)
class Measured:
    """The test accuracy of every average, in every repetition: rows are repetitions, columns are points."""

    portfolio: Portfolio
    points: tuple[Point, ...]
    scores: FloatArray
    fingerprint: str = "measured where the models were trained"

    def __call__(self, weights: Point) -> float:
        """As a scorer: the mean over the repetitions."""
        return float(self.of(weights).mean())

    def of(self, weights: Point) -> FloatArray:
        """The accuracy of one average, for each repetition."""
        return np.asarray(self.scores[:, self.points.index(weights)])

    def alone(self) -> FloatArray:
        """The accuracies of the models: one row for each repetition."""
        return np.stack([self.of(corner) for corner in corners(len(self.portfolio.names))], axis=1)

    def drawn(self, weights: Sequence[float]) -> FloatArray:
        """What random selection scores on average over the draw, for each repetition."""
        return np.asarray(self.alone() @ np.asarray(weights))


def data_name(options: Options) -> str:
    """What is trained on."""
    return "digits" if options.quick else "MNIST"


def grid_step(options: Options) -> float:
    """Of the weights of averages of three models."""
    return 0.5 if options.quick else 0.1


def grid(options: Options) -> list[Point]:
    """The averages of three models that frontiers look at."""
    return [tuple(row) for row in simplex_grid(3, grid_step(options)).tolist()]


def corners(models: int) -> list[Point]:
    """Every model alone."""
    return [tuple(1.0 if i == j else 0.0 for j in range(models)) for i in range(models)]


def measure(setting: Setting, points: Iterable[Point], options: Options, title: str) -> Measured:
    """Train the portfolio once for every seed, with fresh noise and batches each time, and score all averages.

    A seed is only a number of a repetition: randomness comes from the operating system.
    """
    wanted = tuple(dict.fromkeys([*corners(len(setting.names)), *points]))
    once = partial(_once, setting, wanted, None if options.quick else options.data, options.quick)
    found = run_all(once, range(options.seeds), jobs=options.jobs, progress=options.bar(title))
    models = tuple(Model(name, record) for name, record in zip(setting.names, found[0][0], strict=True))
    return Measured(Portfolio(models), wanted, np.array([scores for _, scores in found]))


def _once(
    setting: Setting, points: Sequence[Point], data: Path | None, quick: bool, repetition: int
) -> tuple[list[Record], list[float]]:
    images = digits_as_images() if quick else load_images(data, "mnist")
    dataset = f"{'sklearn-digits' if quick else 'mnist'}-train-{len(images.train)}"
    shown, labels = setting.features(images.train), setting.targets(images.train_labels)
    models = []
    for recipe in setting.recipes.values():
        ends = [recipe.steps * (epoch + 1) // setting.epochs for epoch in range(setting.epochs)]
        models += train(
            shown,
            labels,
            setting.classes,
            recipe,
            norm_bound=setting.norm_bound,
            dataset=dataset,
            loss=setting.loss,
            checkpoints=ends,
        )
    tested, answers = setting.features(images.test), setting.targets(images.test_labels)
    scores = [accuracy(average([model.tensors for model in models], point), tested, answers) for point in points]
    return [model.record for model in models], scores


def average(models: Sequence[Tensors], weights: Point) -> Tensors:
    """Σ λ_i θ_i."""
    return {
        key: np.asarray(sum(w * model[key].astype(np.float64) for w, model in zip(weights, models, strict=True)), np.float32)
        for key in models[0]
    }


def alone(measured: Measured) -> dict[str, Any]:
    """Each model's own ε by all accountants, and its test accuracy."""
    found = {}
    for name, column in zip(measured.portfolio.names, measured.alone().T, strict=True):
        rule = Joint(measured.portfolio.weights({name: 1.0}))
        found[name] = {
            "epsilon by PLD": rule.guarantee(delta=DELTA, by="pld").epsilon,
            "epsilon by RDP": rule.guarantee(delta=DELTA, by="rdp").epsilon,
            "epsilon by RDP, papers' conversion": rule.guarantee(delta=DELTA, by="rdp", conversion="paper").epsilon,
            "test accuracy": mean_and_deviation(column),
        }
    return found


def guarantees(portfolio: Portfolio, point: Point) -> dict[str, Any]:
    """One set of weights in every way: what is proved of the average and how, the formula, a draw, and joint release."""
    weights = portfolio.weights_in_order(point)
    # Whatever else of the runs is published, as the papers' formula; `last-iterate` has the other account.
    proved = Combination(weights, only_release=False).guarantee(delta=DELTA)
    return {
        "linear combination, proved": proved.epsilon,
        "linear combination, papers' formula": Combination(weights, 0.0).guarantee(delta=DELTA).epsilon,
        "random selection": Selection(weights).guarantee(delta=DELTA).epsilon,
        "joint release": Joint(weights).guarantee(delta=DELTA).epsilon,
        "theorem": proved.theorem,
        "window": proved.details.get("window"),
        "coupled": proved.details.get("coupled"),
    }


def restated(portfolio: Portfolio, change: Callable[[dict[str, Any]], None]) -> Portfolio:
    """The same runs with another statement about them in their records."""
    models = []
    for model in portfolio.models:
        content = json.loads(model.record.model_dump_json(by_alias=True))
        change(content)
        models.append(Model(model.name, Record.parse(json.dumps(content), source=model.name)))
    return Portfolio(tuple(models))


def replace_one(content: dict[str, Any]) -> None:
    """Neighbours of version 2: full batches have a public size, so the divisor is the same for both."""
    content["adjacency"] = "replace-one"
