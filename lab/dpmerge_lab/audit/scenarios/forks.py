"""Runs that start from one private checkpoint: it counts once, and it does count (docs/theory.md §10)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Joint
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, even


@dataclass(frozen=True)
class Forks(Game):
    """Three full-batch runs from one checkpoint, which is not released; the record adds a clipping norm to every step."""

    noise_multiplier: float = 4.0
    prefix: int = 9
    own: int = 1
    forks: int = 3
    name: str = "forks"
    about: str = "Three runs that start from one private checkpoint, attacked by the likelihood ratio of their last models"
    delta: float = 1e-3
    trials: int = 1_000_000
    chunk: int = 100_000

    def portfolio(self, with_starts: bool = True) -> Weights:
        """As recorded; or by records that leave out what was run before the forks."""
        said = dp_sgd("body", self.noise_multiplier, self.prefix).record.as_dict()["mechanism"]
        start = {"run": "body", "step": self.prefix, "digest": 64 * "0", "mechanism": said} if with_starts else None
        names = [f"fork-{number}" for number in range(self.forks)]
        return even(*(dp_sgd(name, self.noise_multiplier, self.own, starts_from=start) for name in names))

    def claims(self, delta: float) -> list[Claim]:
        """With the start once; and by who counts what the forks did themselves."""
        return [
            claim("forks' own steps alone", Joint(self.portfolio(with_starts=False)), delta, "refuted"),
            claim("the start once, and every fork", Joint(self.portfolio()), delta, is_gdp=True),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio: the models share the noise of their start, so their sum is all that counts."""
        sigma, shift = self.noise_multiplier, float(with_record)
        start = self.prefix * shift + sigma * math.sqrt(self.prefix) * generator.standard_normal((trials, 1))
        added = self.own * shift + sigma * math.sqrt(self.own) * generator.standard_normal((trials, self.forks))
        mean = self.prefix + self.own
        variance = sigma**2 * (self.forks * self.prefix + self.own)
        return np.asarray((mean * (start + added).sum(axis=1) - self.forks * mean**2 / 2) / variance)


def forks() -> Forks:
    """Three runs that start from one private checkpoint, against counting it once, and not at all."""
    return Forks()
