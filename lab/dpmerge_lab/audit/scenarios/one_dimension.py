"""Random selection between two private means in ten dimensions, accounted as if there were one (docs/theory.md §3.4).

A draw from two Gaussians hides which of them it came from, a little. In many dimensions the length of the part orthogonal to
the record's shift gives it away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Selection
from dpmerge_lab.audit.scenarios.accounts import claim, gaussian, weighted
from dpmerge_lab.audit.scores import mixture_log_ratio
from dpmerge_lab.hidden_selection import HiddenSelection


@dataclass(frozen=True)
class OneDimensionalSelection(Game):
    """One of two sums of vectors of length ≤ 1 is released, which one is not told; the record is a unit vector (add-remove)."""

    probabilities: tuple[float, float] = (0.1, 0.9)
    deviations: tuple[float, float] = (0.5, 3.0)
    dimension: int = 10
    name: str = "one-dimensional-selection"
    about: str = "Random selection in ten dimensions: the exact law of one dimension against that of ten"
    delta: float = 0.01
    trials: int = 400_000

    def claims(self, delta: float) -> list[Claim]:
        """The same law in one dimension, in the true one, and the theorem that needs none (§2)."""
        true = self._recorded(self.dimension)
        line, exact = (HiddenSelection(recorded).guarantee(delta=delta) for recorded in (self._recorded(1), true))
        return [  # numbers, where a curve would take long
            Claim("random selection in one dimension", "refuted", line.epsilon),
            Claim(f"random selection in {self.dimension} dimensions", exact.standing, exact.epsilon),
            claim("random selection, index published", Selection(true), delta),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """log of the likelihood ratio of the released vector."""
        narrow = generator.random(trials) < self.probabilities[0]
        deviation = np.where(narrow, *self.deviations)
        released = deviation[:, None] * generator.standard_normal((trials, self.dimension))
        shift = np.eye(1, self.dimension)
        released += float(with_record) * shift
        means = np.zeros((2, self.dimension))
        law = (self.probabilities, means + shift, self.deviations), (self.probabilities, means, self.deviations)
        return mixture_log_ratio(released, *law)

    def _recorded(self, dimension: int) -> Weights:
        parts = zip(("narrow", "wide"), self.probabilities, self.deviations, strict=True)
        return weighted(*((gaussian(name, noise, dimension=dimension), p) for name, p, noise in parts))


def one_dimensional_selection() -> OneDimensionalSelection:
    """Random selection in ten dimensions: the exact law of one dimension against that of ten."""
    return OneDimensionalSelection()
