"""The law of a random shift: a sum of independent coins, each worth a known amount (docs/theory.md, "coupled-coins").

Rounding a shift *up* makes the mixture of Gaussians it drives easier to tell from N(0, 1) in both directions, so every
simplification here goes up: coarsening to a grid, and dropping a rare tail into `excess`, which is then simply lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, gammaln

from dpmerge.profiles.grids import FloatArray, grid

MAX_ATOMS = 512
EXACT_SUBSETS = 12


@dataclass(frozen=True)
class ShiftLaw:
    """Atoms `values` (ascending, ≥ 0) with `probs`; `excess` is probability given up, to be added to δ."""

    values: FloatArray
    probs: FloatArray
    excess: float = 0.0

    @classmethod
    def zero(cls) -> ShiftLaw:
        return cls(np.zeros(1), np.ones(1))

    @classmethod
    def coin(cls, value: float, rate: float) -> ShiftLaw:
        """`value` with probability `rate`, else 0."""
        if rate >= 1:
            return cls(np.array([value]), np.ones(1))
        return cls(np.array([0.0, value]), np.array([1 - rate, rate]))

    @classmethod
    def binomial(cls, value: float, rate: float, count: int, tail: float) -> ShiftLaw:
        """`count` equal coins; the upper tail of at most `tail` is given up."""
        if rate >= 1:
            return cls(np.array([value * count]), np.ones(1))
        if count == 1:
            return cls.coin(value, rate)
        high = binomial_quantile(count, rate, tail)
        if count * rate < 600:
            # P(K = 0) and the ratios of neighbours are precise to a few units each.
            k = np.arange(1, high + 1)
            ratios = (count - k + 1) / k * (rate / (1 - rate))
            probs = math.exp(count * math.log1p(-rate)) * np.cumprod(np.concatenate(([1.0], ratios)))
        else:
            k = np.arange(high + 1)
            log_choose = gammaln(count + 1) - gammaln(k + 1) - gammaln(count - k + 1)
            probs = np.exp(log_choose + k * math.log(rate) + (count - k) * math.log1p(-rate))
        return cls(grid(0, high, value), np.asarray(probs, dtype=np.float64), binomial_survival(count, rate, high))

    def plus(self, other: ShiftLaw) -> ShiftLaw:
        values = (self.values[:, None] + other.values[None, :]).ravel()
        probs = (self.probs[:, None] * other.probs[None, :]).ravel()
        return ShiftLaw(*_merge(values, probs), self.excess + other.excess)

    def shifted(self, drift: float) -> ShiftLaw:
        return ShiftLaw(self.values + drift, self.probs, self.excess)

    def trimmed(self, tail: float) -> ShiftLaw:
        """Give up the largest shifts as long as their probability stays within `tail`."""
        above = np.cumsum(self.probs[::-1])
        drop = int(np.searchsorted(above, tail, side="right"))
        if drop == 0 or drop >= self.values.size:
            return self
        kept = self.values.size - drop
        return ShiftLaw(self.values[:kept], self.probs[:kept], self.excess + float(above[drop - 1]))

    def coarsened(self, atoms: int = MAX_ATOMS) -> ShiftLaw:
        """At most `atoms` atoms: neighbours joined upwards where that moves little probability a little way.

        A join costs probability × distance; with n groups, groups of equal Σ√(probability × gap) have the least in all.
        """
        if self.values.size <= atoms:
            return self
        price = np.cumsum(np.sqrt(self.probs[:-1] * np.diff(self.values)))
        price /= price[-1]
        few, many = 1.0, 2.0
        while many < 2**40 and _group_starts(price, many).size <= atoms:  # isolated atoms take several units each
            few, many = many, 2 * many
        for _ in range(12):
            middle = math.sqrt(few * many)
            few, many = (middle, many) if _group_starts(price, middle).size <= atoms else (few, middle)
        starts = _group_starts(price, few)
        ends = np.append(starts[1:], self.values.size) - 1
        return ShiftLaw(self.values[ends], np.add.reduceat(self.probs, starts), self.excess)


def binomial_quantile(count: int, rate: float, tail: float) -> int:
    """The smallest m that a Binomial(count, rate) exceeds with probability at most `tail`, by doubling then bisection."""
    low, high = -1, 1
    while high < count and binomial_survival(count, rate, high) > tail:
        low, high = high, min(2 * high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_survival(count, rate, middle) > tail else (low, middle)
    return high


def binomial_survival(count: int, rate: float, m: int) -> float:
    """P(K > m) = I_rate(m + 1, count − m) of a Binomial(count, rate), raised above its rounding."""
    return float(betainc(m + 1, count - m, rate)) * (1 + 1e-12) if m < count else 0.0


def _group_starts(price: FloatArray, units: float) -> npt.NDArray[np.int64]:
    """Where groups begin if each holds one unit of the price; always at least the first."""
    group = np.floor(np.concatenate(([0.0], price)) * units)
    return np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1))


def sum_of_coins(coins: Iterable[ShiftLaw], tail: float) -> ShiftLaw:
    """The law of a sum of independent shifts; at most `tail` is given up in all.

    Up to 2^12 subsets are enumerated. Beyond, every atom is rounded up on one fine grid and the sums are convolved there:
    non-negative additions only, so small probabilities keep their relative precision, and the cost is linear in the
    number of coins (200 models, or 100,000 steps of one).
    """
    parts = [part for part in coins if part.values[-1] > 0 or part.excess > 0]
    subsets = 1
    for part in parts:
        subsets = min(subsets * part.values.size, 2**EXACT_SUBSETS + 1)
    if subsets <= 2**EXACT_SUBSETS:
        total = ShiftLaw.zero()
        for part in parts:
            total = total.plus(part)
        return total.trimmed(tail).coarsened()
    mean = sum(float(part.values @ part.probs) for part in parts)
    cells = 16_384 if sum(part.values.size for part in parts) <= 2_000 else 4_096
    width = max(mean, *(float(part.values[-1]) for part in parts)) / cells
    while True:
        total = _grid_convolution(parts, width, 4 * cells)
        if total.excess - sum(part.excess for part in parts) <= tail:
            return total.trimmed(tail).coarsened()
        width *= 2


def _grid_convolution(parts: list[ShiftLaw], width: float, size: int) -> ShiftLaw:
    masses = np.zeros(size)
    masses[0] = 1.0
    top = 0
    excess = 0.0
    for part in parts:
        cells = np.ceil(part.values / width * (1 - 1e-12)).astype(np.int64)
        fresh = np.zeros_like(masses)
        for cell, prob in zip(cells.tolist(), part.probs.tolist(), strict=True):
            kept = max(0, min(top + 1, masses.size - cell))
            fresh[cell : cell + kept] += prob * masses[:kept]
            excess += prob * float(masses[kept : top + 1].sum())
        excess += part.excess
        masses = fresh
        top = min(top + int(cells[-1]), masses.size - 1)
    keep = np.flatnonzero(masses > 0)
    return ShiftLaw(np.asarray(keep * (width * (1 + 1e-12)), dtype=np.float64), masses[keep] * (1 + 1e-14 * len(parts)), excess)


def _merge(values: FloatArray, probs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sort, and join atoms that differ by rounding alone (upwards)."""
    order = np.argsort(values, kind="stable")
    values, probs = values[order], probs[order]
    new_group = np.empty(values.size, dtype=bool)
    new_group[0] = True
    new_group[1:] = np.diff(values) > 1e-12 * values[1:]
    starts = np.flatnonzero(new_group)
    ends = np.append(starts[1:], values.size) - 1
    return values[ends], np.add.reduceat(probs, starts)
