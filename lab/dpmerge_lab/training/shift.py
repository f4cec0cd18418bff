"""Periodic distribution shift: batches that swing between two parts of the data (Recycling Scraps §4.1.2).

At step t a batch of expected size B has B·p(t) examples of the first part and B·(1 − p(t)) of the second, with
p(t) = |2 (t mod T)/T − 1|. Here each example joins by a coin of its own, so the steps are Poisson sampled with rates that
differ between parts and steps, all known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.training import poisson_batch


def first_share(step: int, period: int) -> float:
    """p(t): the share of the first part in the batch of step t, counted from 0."""
    return abs(2 * (step % period) / period - 1)


@dataclass(frozen=True)
class PeriodicShift:
    """Two parts of the data by the indices of their examples, the period T in steps, and the expected batch."""

    parts: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    period: int
    expected_batch: float

    @classmethod
    def even_and_odd(cls, labels: npt.NDArray[Any], period: int, expected_batch: float) -> PeriodicShift:
        """The even classes and the odd ones, as the paper splits CIFAR-10."""
        odd = np.asarray(labels) % 2 == 1
        return cls((np.flatnonzero(~odd), np.flatnonzero(odd)), period, expected_batch)

    def __post_init__(self) -> None:
        if self.period < 2:
            raise TrainingError(f"a period of {self.period} steps is no shift; give at least 2")
        if min(map(len, self.parts)) == 0 or np.intersect1d(*self.parts).size:
            raise TrainingError("a shift needs two parts of the data, neither empty, with no example in both")
        worst = max(self.expected_batch / len(part) for part in self.parts)
        if not 0 < worst <= 1:
            raise TrainingError(
                f"a batch of {self.expected_batch:g} comes from one part alone at times, and the smaller has "
                f"{min(map(len, self.parts))} examples; use smaller batches"
            )

    def rates(self, step: int) -> tuple[float, float]:
        """The probability with which an example of each part joins the batch of step t, counted from 0."""
        share = first_share(step, self.period)
        return share * self.expected_batch / len(self.parts[0]), (1 - share) * self.expected_batch / len(self.parts[1])

    def batch(self, sampler: np.random.Generator, step: int) -> npt.NDArray[np.int64]:
        """The batch of step t, counted from 0."""
        drawn = [
            part[poisson_batch(sampler, len(part), rate)]
            for part, rate in zip(self.parts, self.rates(step), strict=True)
            if rate > 0
        ]
        return np.concatenate(drawn)

    def dominating_rate(self, step: int) -> float:
        """The rate that stands for step t, counted from 0, in a record: the falling part's, if it had the smaller part's size.

        In every first part of a run these rates, put in order, are at least those of either part put in order. A run alone is
        a composition, whose order does not matter, and a Poisson sampled step of larger rate dominates one of smaller rate: so
        the run costs an example of either part at most what these rates cost (docs/theory.md §7). For parts of one size and
        long periods next to nothing is lost.
        """
        share = first_share(step, self.period)
        falling = share if 2 * (step % self.period) < self.period else 1 - share
        return falling * self.expected_batch / min(map(len, self.parts))
