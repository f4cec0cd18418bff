"""Several draws from one portfolio: what leaks is the set of models drawn, and the ledger adds up exactly that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Exposure, Releases, Selection
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, weighted


@dataclass(frozen=True)
class RepeatedDraws(Game):
    """Random selection again and again from three full-batch runs under replace-one; the models drawn are published by name.

    The record is exchanged for its opposite: it moves every sum by two clipping norms. A model that is drawn twice tells
    nothing new.
    """

    weights: tuple[float, float, float] = (0.1, 0.3, 0.6)
    noise_multipliers: tuple[float, float, float] = (4.0, 8.0, 16.0)
    steps: int = 4
    draws: int = 4
    name: str = "repeated-draws"
    about: str = "Four random selections from one portfolio under replace-one, attacked by the likelihood ratio of all drawn"
    delta: float = 1e-3
    trials: int = 1_000_000
    chunk: int = 50_000

    def portfolio(self) -> Weights:
        """What is drawn from, and how likely."""
        models = [dp_sgd(f"noise-{noise:g}", noise, self.steps, adjacency="replace-one") for noise in self.noise_multipliers]
        return weighted(*zip(models, self.weights, strict=True))

    def claims(self, delta: float) -> list[Claim]:
        """What the ledger says of all draws together, and what is claimed by who forgets the earlier ones."""
        given = self.portfolio()
        every = Releases(given.portfolio, [Exposure.drawn(given)] * self.draws)
        return [
            claim("each draw by itself", Selection(given), delta, "refuted"),
            claim("all draws together: the ledger", every, delta),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio of the models drawn, each counted once, in units of their noise."""
        mu = 2 * math.sqrt(self.steps) / np.array(self.noise_multipliers)
        models = (mu if with_record else 0) + generator.standard_normal((trials, 3))
        drawn = generator.choice(3, size=(trials, self.draws), p=self.weights)
        seen = (drawn[:, :, None] == np.arange(3)).any(axis=1)
        return np.asarray(np.sum(seen * (mu * models - mu**2 / 2), axis=1))


def repeated_draws() -> RepeatedDraws:
    """Repeated random selections from one portfolio, against what the ledger says of all of them together."""
    return RepeatedDraws()
