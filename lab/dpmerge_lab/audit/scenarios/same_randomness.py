"""Two runs that share their noise, or their batches: what holds for independent runs is broken (docs/theory.md §0)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.errors import DependentRuns
from dpmerge.profiles import FloatArray
from dpmerge.records import Model
from dpmerge.rules import Joint
from dpmerge_lab.audit.scenarios import poisson
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, even, gaussian, unless_refused


@dataclass(frozen=True)
class SameNoise(Game):
    """Two private means of one statistic, from one noise seed at two scales; the merge extrapolates from one to the other.

    With noise σ₁ξ and σ₂ξ, the merged (σ₂θ₁ − σ₁θ₂)/(σ₂ − σ₁) is the statistic itself.
    """

    noise: tuple[float, float] = (1.0, 2.0)
    name: str = "same-noise"
    about: str = "Two private means with the same noise seed, extrapolated from one to the other: the noise cancels"
    delta: float = 1e-5
    trials: int = 1_000_000
    chunk: int = 50_000

    def runs(self, **shared: Any) -> tuple[Model, ...]:
        """The records, with fingerprints of their own or a shared one."""
        return tuple(gaussian(name, noise, **shared) for name, noise in zip("ab", self.noise, strict=True))

    def claims(self, delta: float) -> list[Claim]:
        """Joint release covers every merge, of independent runs."""
        alike = self.runs(noise_fingerprint="seed 42")
        independent = claim("joint release, as if independent", Joint(even(*self.runs())), delta, "refuted", is_gdp=True)
        return [independent, *unless_refused(DependentRuns, lambda: Joint(even(*alike)), delta)]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The merged value: large is "with"."""
        noise = generator.standard_normal(trials)
        first, second = (float(with_record) + scale * noise for scale in self.noise)
        return (self.noise[1] * first - self.noise[0] * second) / (self.noise[1] - self.noise[0])


@dataclass(frozen=True)
class SameBatches(Game):
    """Two runs of DP-SGD with fresh noise and the same Poisson batches, released with all their iterates.

    Given the batches, the mean of two updates is one update with noise σ/√2: that run says everything (docs/theory.md §0).
    """

    noise_multiplier: float = 0.7
    rate: float = 0.05
    steps: int = 20
    name: str = "same-batches"
    about: str = "Two runs of DP-SGD on the same Poisson batches, their noise independent, attacked by the likelihood ratio"
    delta: float = 1e-2
    trials: int = 500_000

    def runs(self, **shared: Any) -> tuple[Model, ...]:
        """The records, with fingerprints of their own or a shared one."""
        return tuple(dp_sgd(name, self.noise_multiplier, self.steps, rate=self.rate, **shared) for name in "ab")

    def claims(self, delta: float) -> list[Claim]:
        """As if independent; and as what they are together: one run with less noise."""
        alike = self.runs(sampler_fingerprint="seed 42")
        together = dp_sgd("together", self.noise_multiplier / math.sqrt(2), self.steps, rate=self.rate)
        return [
            claim("joint release, as if independent", Joint(even(*self.runs())), delta, "refuted"),
            claim("one run with noise σ/√2", Joint(even(together)), delta),
            *unless_refused(DependentRuns, lambda: Joint(even(*alike)), delta),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio of both runs' updates, through their mean in units of its noise."""
        batches = poisson.coins(generator, trials, self.steps, self.rate, with_record)
        runs = [batches + self.noise_multiplier * generator.standard_normal(batches.shape) for _ in "ab"]
        noise = self.noise_multiplier / math.sqrt(2)
        return poisson.log_ratio((runs[0] + runs[1]) / 2 / noise, self.rate, 1 / noise)


def same_noise() -> SameNoise:
    """Two private means with the same noise seed: in a merge the noise cancels, and dpmerge refuses the portfolio."""
    return SameNoise()


def same_batches() -> SameBatches:
    """Two runs of DP-SGD with the same batches: more than joint release of independent runs, and dpmerge refuses them."""
    return SameBatches()
