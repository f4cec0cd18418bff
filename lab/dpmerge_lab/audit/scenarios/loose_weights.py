"""Weights that do not sum to 1: whoever renormalises them accounts for another release than the one that is made."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.errors import WeightsError
from dpmerge.profiles import FloatArray
from dpmerge.records import Portfolio
from dpmerge.rules import Exposure, Releases, Selection
from dpmerge_lab.audit.scenarios.accounts import claim, even, gaussian, unless_refused


@dataclass(frozen=True)
class LooseWeights(Game):
    """Three private means, each published with probability 0.8 by a coin of its own: "weights" 0.8, 0.8 and 0.8.

    Scaled to ⅓ each they describe the draw of one model, which is not what happens. dpmerge never scales: it refuses.
    """

    chance: float = 0.8
    noise: float = 2.0
    name: str = "loose-weights"
    about: str = "Three private means, each published with probability 0.8: weights that sum to 2.4, scaled to 1 or refused"
    delta: float = 1e-3
    trials: int = 1_000_000
    chunk: int = 50_000

    def portfolio(self) -> Portfolio:
        """The means."""
        return Portfolio(tuple(gaussian(name, self.noise) for name in "abc"))

    def claims(self, delta: float) -> list[Claim]:
        """A draw of one of them; and what really happens, by the law of what is exposed (docs/theory.md §5)."""
        means = self.portfolio()
        chance = Fraction(self.chance)
        coins = [Exposure(((chance, frozenset(name)), (1 - chance, frozenset()))) for name in means.names]
        stated = dict.fromkeys(means.names, self.chance)
        return [
            claim("scaled to sum to 1", Selection(even(*means.models)), delta, "refuted"),
            claim("every subset with its probability", Releases(means, coins), delta),
            *unless_refused(WeightsError, lambda: Selection(means.weights(stated)), delta),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio of what is published."""
        mu = 1 / self.noise
        means = mu * with_record + generator.standard_normal((trials, 3))
        published = generator.random((trials, 3)) < self.chance
        return np.asarray(np.sum(published * (mu * means - mu**2 / 2), axis=1))


def loose_weights() -> LooseWeights:
    """Weights that sum to 2.4, scaled to 1: the claim is broken, and dpmerge refuses such weights."""
    return LooseWeights()
