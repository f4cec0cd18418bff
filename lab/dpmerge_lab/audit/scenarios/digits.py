"""DP-SGD as it ships: softmax regression on scikit-learn's digits, trained for real, with canaries in unused pixels.

A canary is an image with one bright pixel that is dark in all others. Its gradient is clipped, and its column of the weights
hears of nothing else but noise: the attack measures how far this column has moved along the canary's gradient. Where a canary
is left out, its row is blank and contributes nothing, so that the divisor of the updates, a constant, stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from dpmerge.audit import BoolArray, CanaryGame, Claim, Game
from dpmerge.datasets import bounded_features
from dpmerge.profiles import FloatArray
from dpmerge.records import Model
from dpmerge.rules import Joint
from dpmerge.training import Recipe, train
from dpmerge_lab.audit.scenarios.accounts import DATASET, claim, even
from dpmerge_lab.audit.scores import dot_product
from dpmerge_lab.tasks import digits

_NORM_BOUND = 10.0  # images have norm 1, canaries nearly this: their gradients are clipped at every step
_LABEL = 0
_DARK = 0  # the pixel in the corner, in which no digit has ink


@cache
def _features() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    examples, _ = digits.load()
    return bounded_features(examples.images, _NORM_BOUND), examples.labels


def _canaries(pixels: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.float32]:
    """Images with one bright pixel each."""
    images = np.zeros((pixels.size, width))
    images[np.arange(pixels.size), pixels] = _NORM_BOUND
    return bounded_features(images, _NORM_BOUND)


def _gradient() -> FloatArray:
    """Of a canary before training, in its pixel's column and up to length: p − y with p uniform."""
    gradient = np.full(digits.CLASSES, 1 / digits.CLASSES)
    gradient[_LABEL] -= 1
    return gradient


def _claims(recipe: Recipe, count: int, delta: float) -> list[Claim]:
    """By the record that such a training writes."""
    record = recipe.record(recipe.steps, count, dataset=DATASET, run="digits", noise="its own", sampler="its own")
    return [claim("DP-SGD, by its record", Joint(even(Model("digits", record))), delta, is_gdp=recipe.rate is None)]


@dataclass(frozen=True)
class DigitsSoftmax(Game):
    """Many trainings with and without one canary."""

    recipe: Recipe = Recipe(steps=8, learning_rate=2.0, clip=1.0, noise_multiplier=1.0, rate=0.5)  # noqa: RUF009 (frozen)
    name: str = "digits-softmax"
    about: str = "DP-SGD softmax regression on digits, trained for real, attacked by the dot product with a canary's gradient"
    delta: float = 1e-5
    trials: int = 5_000
    chunk: int = 100
    simulated: bool = False

    def claims(self, delta: float) -> list[Claim]:
        """Poisson-sampled Gaussian steps, composed."""
        return _claims(self.recipe, len(_features()[0]) + 1, delta)

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """How far each model has moved along the canary's gradient; the trainings draw their own randomness."""
        features, labels = _features()
        canary = _canaries(np.array([_DARK]), digits.PIXELS) * np.float32(with_record)
        given, told = np.vstack([features, canary]), np.append(labels, _LABEL)
        columns = np.empty((trials, digits.CLASSES))
        for trial in range(trials):
            (model,) = train(given, told, digits.CLASSES, self.recipe, norm_bound=_NORM_BOUND, dataset=DATASET)
            columns[trial] = model.tensors["weight"][:, _DARK]
        return dot_product(columns, _gradient())


@dataclass(frozen=True)
class DigitsCanaries(CanaryGame):
    """One training with many canaries: images have a further pixel for each, in which no digit has ink."""

    recipe: Recipe = Recipe(steps=8, learning_rate=1.0, clip=1.0, noise_multiplier=2.0)  # noqa: RUF009 (frozen)
    name: str = "digits-canaries"
    about: str = "One private softmax regression on digits with many canaries, each included by a fair coin"
    delta: float = 1e-5
    trials: int = 4_000
    simulated: bool = False

    def claims(self, delta: float) -> list[Claim]:
        """Full-batch Gaussian steps, composed; neither the number of records nor that of canaries matters."""
        return _claims(self.recipe, len(_features()[0]), delta)

    def play_once(self, generator: np.random.Generator, canaries: int) -> tuple[BoolArray, FloatArray]:
        """Fair coins, and how far each canary's column has moved along its gradient."""
        features, labels = _features()
        included = generator.random(canaries) < 0.5
        dark = np.zeros((len(features), canaries), dtype=np.float32)
        wide = np.hstack([features[:, :-1], dark, features[:, -1:]])
        inked = _canaries(np.arange(digits.PIXELS, digits.PIXELS + canaries), digits.PIXELS + canaries)
        given, told = np.vstack([wide, inked * included[:, None]]), np.append(labels, np.full(canaries, _LABEL))
        (model,) = train(given, told, digits.CLASSES, self.recipe, norm_bound=_NORM_BOUND, dataset=DATASET)
        return included, dot_product(model.tensors["weight"][:, digits.PIXELS :].T, _gradient())


def digits_softmax() -> DigitsSoftmax:
    """DP-SGD softmax regression on digits, trained for real many times, with and without a canary."""
    return DigitsSoftmax()


def digits_canaries() -> DigitsCanaries:
    """DP-SGD softmax regression on digits, trained for real once, with canaries included by coins."""
    return DigitsCanaries()
