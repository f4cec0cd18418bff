"""Who chose the weights? Two private means, of which public data picks one (docs/theory.md §4).

Fixed weights would cost no more than one mean. Weights that come from a look at both are a function of both, and cost more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from dpmerge.audit import BoolArray, Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Joint, Selection, Tempered
from dpmerge_lab.audit.scenarios.accounts import claim, even, gaussian


@dataclass(frozen=True)
class ChosenByAccuracy(Game):
    """Two private sums of values in [−1, 1]; the one that is more accurate on public data is released (add-remove).

    A model θ calls a public point positive if it lies above θ, and all of them are: the lower model is the better one. The
    record in question is 1. Seen from above, both models must have been high for a high one to be released.
    """

    noise_multiplier: float = 2 / 3
    public: tuple[float, ...] = tuple(np.linspace(-5.0, 5.0, 1001).tolist())
    name: str = "chosen-by-accuracy"
    about: str = "Two private means, the better one on public data released: the price of fixed weights against the choice"
    delta: float = 0.01
    trials: int = 1_000_000
    chunk: int = 50_000

    def claims(self, delta: float) -> list[Claim]:
        """Selection with fixed weights, and joint release of what was looked at."""
        return [self._fixed(delta), self._joint(delta)]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The released models, with which their likelihood ratio increases."""
        models = float(with_record) + self.noise_multiplier * generator.standard_normal((trials, 2))
        second = self._takes_second(generator, self.accuracy(models))
        return np.where(second, models[:, 1], models[:, 0])

    def accuracy(self, models: FloatArray) -> FloatArray:
        """The share of public points above a model."""
        return np.asarray(1 - np.searchsorted(np.sort(self.public), models, side="right") / len(self.public))

    def _takes_second(self, generator: np.random.Generator, accuracies: FloatArray) -> BoolArray:
        return np.asarray(accuracies[:, 1] > accuracies[:, 0])

    def _fixed(self, delta: float) -> Claim:
        """As private as one mean, since both are equally private: μ-GDP, whatever the weights."""
        return claim("random selection, fixed weights", Selection(self._recorded()), delta, "refuted", is_gdp=True)

    def _joint(self, delta: float) -> Claim:
        return claim("joint release (after-looking)", Joint(self._recorded()), delta, is_gdp=True)

    def _recorded(self) -> Weights:
        return even(*(gaussian(name, self.noise_multiplier, dimension=1) for name in ("first", "second")))


@dataclass(frozen=True)
class ChosenByTempering(ChosenByAccuracy):
    """The same two sums, one drawn with probability ∝ e^{κ·accuracy}. All public points lie where they tell worlds apart."""

    kappa: float = 1.0
    public: tuple[float, ...] = (1 / 3,)
    name: str = "chosen-by-tempering"
    about: str = "Two private means, one drawn by an exponential tilt of its public accuracy: tempered selection"

    def claims(self, delta: float) -> list[Claim]:
        """As for the better one, and tempered selection in between."""
        tempered = claim("tempered selection", Tempered(self._recorded(), self.kappa), delta)
        return [self._fixed(delta), tempered, self._joint(delta)]

    def _takes_second(self, generator: np.random.Generator, accuracies: FloatArray) -> BoolArray:
        odds = self.kappa * (accuracies[:, 1] - accuracies[:, 0])
        return np.asarray(generator.random(len(accuracies)) < expit(odds))


def chosen_by_accuracy() -> ChosenByAccuracy:
    """Two private means, the better one on public data released: the price of fixed weights against the choice."""
    return ChosenByAccuracy()


def chosen_by_tempering() -> ChosenByTempering:
    """Two private means, one drawn by an exponential tilt of its public accuracy: tempered selection."""
    return ChosenByTempering()
