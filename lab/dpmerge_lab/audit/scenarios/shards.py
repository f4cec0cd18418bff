"""Models of parts of the data: averages over a record's secret part are taken last (docs/theory.md §10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray, GaussianLaw, Profile, mixture_epsilon
from dpmerge.records import Portfolio
from dpmerge.rules import Exposure, Releases
from dpmerge_lab.audit.scenarios.accounts import claim, gaussian


@dataclass(frozen=True)
class Shards(Game):
    """Four parts, drawn in secret; two models of one of them are released one by one, then the key. The record shifts both."""

    parts: int = 4
    mu: float = 1.0
    releases: int = 2
    name: str = "shards"
    about: str = "Two releases of models of one part in four, attacked by the likelihood ratio of models and key"
    delta: float = 1e-3
    trials: int = 1_000_000
    chunk: int = 100_000

    def portfolio(self) -> Portfolio:
        """The models that are released, as recorded."""
        shard = {"partition": "p", "part": 1, "of": self.parts, "assignment": "keyed-hash"}
        return Portfolio([gaussian(f"model-{number}", 1 / self.mu, shard=shard) for number in range(self.releases)])

    def claims(self, delta: float) -> list[Claim]:
        """Composed within the part, then averaged; and by who composes averages, as if parts were drawn for each release."""
        portfolio = self.portfolio()
        every = Releases(portfolio, [Exposure.whole([name]) for name in portfolio.names])
        return [
            Claim("averages over parts, composed", "refuted", self._averages_composed),
            claim("composed within parts, then averaged", every, delta),
        ]

    def _averages_composed(self, delta: float) -> float:
        share = 1 / self.parts
        one, both = (Profile.of([(GaussianLaw(self.mu), count)]) for count in (1, 2))
        nothing = Profile.of(())
        return mixture_epsilon([((1 - share) ** 2, nothing), (2 * share * (1 - share), one), (share**2, both)], delta)

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The logarithm of the likelihood ratio: nothing is learnt of a record that the key puts elsewhere."""
        here = generator.integers(self.parts, size=trials) == 0
        models = generator.standard_normal((trials, self.releases)) + self.mu * (here & with_record)[:, None]
        return np.asarray(here * (self.mu * models.sum(axis=1) - self.releases * self.mu**2 / 2))


def shards() -> Shards:
    """Models of one part of the data released one by one, against averages that are composed."""
    return Shards()
