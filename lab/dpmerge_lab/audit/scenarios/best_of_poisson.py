"""The best of a Poisson number of private runs, against the number of *Recycling Scraps*, Fig. 1 (docs/theory.md §7).

Its caption says Poisson trials, its numbers are those of geometric ones. Poisson trials are concentrated, and cost more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy.special import ndtr, ndtri

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.rules import Base, Poisson, Trials, pairs_of, renyi_epsilon, trials, tuning_cost
from dpmerge_lab.audit.scores import gaussian_log_ratio


@dataclass(frozen=True)
class BestOfPoisson(Game):
    """K ~ Poisson runs of a Gaussian mechanism of one number, scored on public data; the best one is released.

    One run is (1, 1e-5)-DP, its noise calibrated as in the paper. The score is the worst one known ("tuning-lower"): best are
    outcomes below `first_below`, which are likelier without the record; next those above `next_above`; then the rest.
    A high outcome is released only if no run was low.
    """

    expected_runs: float = 72.0
    epsilon_of_one_run: float = 1.0
    delta_of_one_run: float = 1e-5
    first_below: float = -1.1
    next_above: float = 2.55
    name: str = "best-of-poisson"
    about: str = "The best of Poisson(72) private runs: Recycling Scraps' Fig. 1 against the law of the best"
    delta: float = 1e-5
    trials: int = 4_000_000
    chunk: int = 250_000

    def claims(self, delta: float) -> list[Claim]:
        """The figure's number as its authors get it, from geometric trials; and what is proved of Poisson trials."""
        base, runs = self._base, Poisson(self.expected_runs)
        cost = tuning_cost(base, runs, delta)  # takes a quarter of a second for each δ: a number, not a curve
        papers = partial(_by_renyi, base, trials("geometric", self.expected_runs))
        return [
            Claim("Recycling Scraps, Fig. 1", "refuted", papers),
            Claim("Poisson trials", cost.standing, cost.epsilon),
            Claim("Poisson trials, by RDP", cost.standing, partial(_by_renyi, base, runs)),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """log of the likelihood ratio of the best; 0 where no run was made.

        The shares of runs that beat each of a Poisson number of runs are a Poisson process on [0, 1], so the best one's is
        exponential with mean 1/m, and K = 0 if that exceeds 1.
        """
        share = generator.standard_exponential(trials) / self.expected_runs
        best = self.outcome(np.clip(share, 1e-300, 1.0), self.mu * with_record)
        return np.where(share < 1, self.log_ratio(best), 0.0)

    def log_ratio(self, best: FloatArray) -> FloatArray:
        """The best of Poisson runs around s has density m·φ(y − s)·e^{−m·better(y)}."""
        hidden = self.expected_runs * (self.better(best, self.mu) - self.better(best, 0.0))
        return gaussian_log_ratio(best, self.mu, 0.0, 1.0) - hidden

    @property
    def mu(self) -> float:
        """Of one run: its mean with the record, in units of its noise."""
        return float(self._base.details["mu"])

    @property
    def _base(self) -> Base:
        return _calibrated(self.epsilon_of_one_run, self.delta_of_one_run)

    def better(self, outcome: FloatArray, mean: float) -> FloatArray:
        """The share of runs that are better than this outcome."""
        low, high = ndtr(self.first_below - mean), ndtr(mean - self.next_above)
        below, above = ndtr(outcome - mean), ndtr(mean - outcome)
        rest = np.where(outcome > self.next_above, low + above, below + high)
        return np.asarray(np.where(outcome < self.first_below, below, rest))

    def outcome(self, share: FloatArray, mean: float) -> FloatArray:
        """The outcome that just this share of runs beats: the inverse of `better`."""
        low, high = ndtr(self.first_below - mean), ndtr(mean - self.next_above)
        places = np.where(share < low, ndtri(share), -ndtri(np.clip(share - low, 0.0, 1.0)))
        return np.asarray(mean + np.where(share < low + high, places, ndtri(np.clip(share - high, 0.0, 1.0))))


@cache
def _calibrated(epsilon: float, delta: float) -> Base:
    """By Rényi divergences and the tight conversion: so the paper's number comes out."""
    return Base.calibrated(epsilon, delta, "rdp")


def _by_renyi(base: Base, runs: Trials, delta: float) -> float:
    """By Papernot and Steinke's theorems."""
    profile = base.run.profile
    return renyi_epsilon(profile, pairs_of(profile), runs, delta)


def best_of_poisson() -> BestOfPoisson:
    """The best of Poisson(72) private runs: Recycling Scraps' Fig. 1 against the law of the best."""
    return BestOfPoisson()
