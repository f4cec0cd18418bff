"""Shuffled batches, accounted as if they were Poisson ones: Chua et al. 2024, "How private are DP-SGD implementations?"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from dpmerge.audit import Claim, Game
from dpmerge.errors import UnsupportedMechanism
from dpmerge.profiles import FloatArray, ShuffleAsPoisson
from dpmerge.records import Model
from dpmerge.rules import Joint
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, even, unless_refused


@dataclass(frozen=True)
class Shuffled(Game):
    """One epoch of noisy batch sums over a shuffled dataset, every sum released (adaptive batch linear queries).

    All other records contribute −1 and the one in question +1, or nothing (zero-out). Beside the −b of every other batch of b
    records, the batch that has it stands out by 2, or by 1 where it is blank: the shuffle hides which batch, not that there
    is one. A Poisson batch would leave the record out more often than not, and its size would vary unseen.
    """

    batches: int = 50
    noise_multiplier: float = 0.7
    name: str = "shuffled"
    about: str = "Shuffled batches, accounted as Poisson batches; attacked by the likelihood ratio of all noisy sums"
    delta: float = 1e-5
    trials: int = 500_000

    def run(self) -> Model:
        """The record of the run, as a training with a shuffling loader has it."""
        shuffle: dict[str, Any] = {"sampling": {"scheme": "shuffle"}, "expected_batch": 10_000.0 / self.batches}
        return dp_sgd("shuffled", self.noise_multiplier, self.batches, adjacency="zero-out", **shuffle)

    def claims(self, delta: float) -> list[Claim]:
        """On request dpmerge accounts shuffled batches as Poisson ones, and calls that conditional. It fails here.

        Where the order is given away, the record is in one known batch: a Gaussian step, once an epoch.
        """
        as_poisson = Joint(even(self.run()), ShuffleAsPoisson(1 / self.batches))
        revealed = dp_sgd("order", self.noise_multiplier, 1, adjacency="zero-out")
        return [
            claim("as if Poisson: conditional in dpmerge", as_poisson, delta, "refuted"),
            claim("the order given away: one step an epoch", Joint(even(revealed)), delta, is_gdp=True),
            *unless_refused(UnsupportedMechanism, lambda: Joint(even(self.run())), delta),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio of the sums, −b subtracted, in units of the noise."""
        sums = generator.standard_normal((trials, self.batches))
        own = generator.integers(self.batches, size=trials)
        unit = 1 / self.noise_multiplier
        sums[np.arange(trials), own] += (2 if with_record else 1) * unit
        there, blank = (logsumexp(k * unit * sums - (k * unit) ** 2 / 2, axis=1) for k in (2, 1))
        return np.asarray(there - blank)


def shuffled() -> Shuffled:
    """Shuffled batches accounted as Poisson ones: refused by dpmerge, or conditional on request; the attack breaks it."""
    return Shuffled()
