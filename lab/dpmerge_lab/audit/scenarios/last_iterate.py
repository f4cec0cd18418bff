"""The last iterate of a private logistic regression, alone or with noise at release (docs/theory.md §9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Combination, Joint
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, weighted

_RECORDS = 10_000  # all with label 1 and the feature (0, 1)
_FEATURE = 10.0  # of the record in question: (10, 0), so that its gradient of about 5 is clipped at every step
_CLIP = 1.0


@dataclass(frozen=True)
class LastIterate(Game):
    """Poisson batches, two features, label 1 throughout; only the parameters after the last step are seen.

    The common records have no gradient in the first parameter, so that it holds nothing but the record's participations and
    the noise of all steps: no step makes anything of the record be forgotten. `release_noise` counts the largest change that
    one record makes in one step.
    """

    name: str
    about: str
    release_noise: float
    rate: float = 0.05
    steps: int = 200
    learning_rate: float = 0.05
    noise_multiplier: float = 0.7
    delta: float = 1e-5
    trials: int = 100_000
    chunk: int = 10_000

    @property
    def unit(self) -> float:
        """By how much one record moves the parameters in one step, at most."""
        return self.learning_rate * _CLIP / (self.rate * _RECORDS)

    def trained(self) -> Weights:
        """The record of the run."""
        known: dict[str, Any] = {"clip": _CLIP, "smoothness": _FEATURE**2 / 4, "convex": "glm"}
        known["expected_batch"] = self.rate * _RECORDS
        phases = [{"steps": self.steps, "learning_rate": self.learning_rate}]
        return weighted((dp_sgd("logistic", self.noise_multiplier, self.steps, rate=self.rate, phases=phases, **known), 1.0))

    def claims(self, delta: float) -> list[Claim]:
        """The theorem about hidden runs, and the price of publishing every iterate."""
        hidden = Combination(self.trained(), noise=self.release_noise * self.unit)
        return [claim("hidden run", hidden, delta), claim("every iterate", Joint(self.trained()), delta)]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """How far the parameters have moved along the record's gradient: the first of them."""
        state = np.zeros((2, trials))
        rate, noise = self.learning_rate / (self.rate * _RECORDS), self.noise_multiplier * _CLIP
        for _ in range(self.steps):
            total = noise * generator.standard_normal((2, trials))
            total[1] -= generator.binomial(_RECORDS, self.rate, trials) * expit(-state[1])  # below the clip
            if with_record:
                sampled = generator.random(trials) < self.rate
                total[0] -= sampled * np.minimum(_FEATURE * expit(-_FEATURE * state[0]), _CLIP)
            state -= rate * total
        return np.asarray(state[0] + self.release_noise * self.unit * generator.standard_normal(trials))


def last_iterate() -> LastIterate:
    """The last iterate of a logistic regression on Poisson batches: cheaper than all iterates, and still proved."""
    return LastIterate("last-iterate", "The last iterate of a logistic regression, attacked through its parameters", 0.0)


def last_iterate_noised() -> LastIterate:
    """The last iterate of a logistic regression with noise at release, six steps' worth of a record."""
    return LastIterate("last-iterate-noised", "The same with noise at release, of six steps' worth of a record", 6.0)
