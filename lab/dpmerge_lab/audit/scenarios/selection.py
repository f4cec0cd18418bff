"""Random selection with fixed weights: for the pair (index, model) the theorem is an equality, and the attack comes close."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Selection
from dpmerge_lab.audit.scenarios import poisson
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, gaussian, weighted
from dpmerge_lab.audit.scores import gaussian_log_ratio


@dataclass(frozen=True)
class FixedSelection(Game):
    """A private mean, a run of DP-SGD and a run of DP-GD; one is drawn, and published with its name and all its iterates.

    The record adds the clipping norm to every sum that it takes part in, along one axis, whatever the state. Then the sum of
    all updates of DP-GD says as much as all of them, a Gaussian with μ = √T/σ.
    """

    weights: tuple[float, float, float] = (0.1, 0.3, 0.6)
    mean_noise: float = 0.7
    rate: float = 0.1
    noise_multiplier: float = 0.8
    steps: int = 20
    quiet_noise: float = 12.0
    name: str = "selection"
    about: str = "Random selection with fixed weights among a mean, DP-SGD and DP-GD, attacked by the likelihood ratio"
    delta: float = 1e-3
    trials: int = 1_000_000
    chunk: int = 50_000

    def portfolio(self) -> Weights:
        """What is drawn from, and how likely."""
        models = (
            gaussian("mean", self.mean_noise),
            dp_sgd("sampled", self.noise_multiplier, self.steps, rate=self.rate),
            dp_sgd("full", self.quiet_noise, self.steps),
        )
        return weighted(*zip(models, self.weights, strict=True))

    def claims(self, delta: float) -> list[Claim]:
        """By hockey-stick divergences (Thm 5.2 of Differentially Private Model Merging), the index published."""
        return [claim("random selection", Selection(self.portfolio()), delta)]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio of the model drawn."""
        drawn = generator.choice(3, size=trials, p=self.weights)
        counts = np.bincount(drawn, minlength=3)
        scores = np.empty(trials)
        scores[drawn == 0] = _gaussian(generator, int(counts[0]), 1 / self.mean_noise, with_record)
        batches = poisson.coins(generator, int(counts[1]), self.steps, self.rate, with_record)
        shift = 1 / self.noise_multiplier
        scores[drawn == 1] = poisson.log_ratio(shift * batches + generator.standard_normal(batches.shape), self.rate, shift)
        scores[drawn == 2] = _gaussian(generator, int(counts[2]), math.sqrt(self.steps) / self.quiet_noise, with_record)
        return scores


def _gaussian(generator: np.random.Generator, trials: int, mu: float, with_record: bool) -> FloatArray:
    return gaussian_log_ratio(mu * with_record + generator.standard_normal(trials), mu, 0.0, 1.0)


def selection() -> FixedSelection:
    """Random selection with fixed weights among a private mean, DP-SGD and DP-GD."""
    return FixedSelection()
