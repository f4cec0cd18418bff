"""The Gaussian mechanism on a clipped mean: the attack knows the exact law, so it comes as close as counting allows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from dpmerge.audit import BoolArray, CanaryGame, Claim, Game
from dpmerge.profiles import FloatArray, gaussian_epsilon
from dpmerge_lab.audit.scores import gaussian_log_ratio


@dataclass(frozen=True)
class GaussianMean(Game):
    """A sum of values clipped to [−1, 1] with noise of this multiplier; the record in question adds 1 (add-remove)."""

    noise_multiplier: float = 1.0
    name: str = "gaussian-mean"
    about: str = "A private mean: the Gaussian mechanism, attacked by its likelihood ratio"
    delta: float = 1e-5

    def claims(self, delta: float) -> list[Claim]:
        """The theorem."""
        return [_gaussian(self.noise_multiplier)]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio of the released sum."""
        released = float(with_record) + self.noise_multiplier * generator.standard_normal(trials)
        return gaussian_log_ratio(released, 1.0, 0.0, self.noise_multiplier)


@dataclass(frozen=True)
class GaussianCanaries(CanaryGame):
    """One private sum in many dimensions; every canary is a record along an axis of its own, there or not (add-remove)."""

    noise_multiplier: float = 0.5
    name: str = "gaussian-one-run"
    about: str = "A private mean in many dimensions, released once, with a canary along every axis"
    delta: float = 1e-5

    def claims(self, delta: float) -> list[Claim]:
        """The theorem, which is about each canary alone."""
        return [_gaussian(self.noise_multiplier)]

    def play_once(self, generator: np.random.Generator, canaries: int) -> tuple[BoolArray, FloatArray]:
        """The released sum along each canary's axis."""
        included = generator.random(canaries) < 0.5
        return included, included + self.noise_multiplier * generator.standard_normal(canaries)


def _gaussian(noise_multiplier: float) -> Claim:
    """μ-GDP with μ = 1/σ, exactly (docs/theory.md §3.4)."""
    mu = 1 / noise_multiplier
    return Claim("Gaussian mechanism", "proved", partial(gaussian_epsilon, mu), mu)


def gaussian_mean() -> GaussianMean:
    """A private mean: the Gaussian mechanism, attacked by its likelihood ratio."""
    return GaussianMean()


def gaussian_one_run() -> GaussianCanaries:
    """A private mean in many dimensions, released once, with a canary along every axis."""
    return GaussianCanaries()
