"""Pairs of Gaussian mixtures whose privacy loss increases along one line: sampled steps, and merged ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from dpmerge.profiles.cells import monotone_pmfs
from dpmerge.profiles.grids import DIRECTIONS, Direction, FloatArray
from dpmerge.profiles.law import MAX_SHIFT, Law, LossPmf
from dpmerge.profiles.moments import log_density, log_power_moments
from dpmerge.profiles.shifts import ShiftLaw


class GaussianPair(Law):
    """P and Q are mixtures of unit Gaussians whose log density ratio ℓ(x) increases in x."""

    upper: tuple[FloatArray, FloatArray]  # shifts and probabilities of P
    lower: tuple[FloatArray, FloatArray]  # shifts and probabilities of Q
    least_loss: float  # the infimum of ℓ, at x → −∞

    @abstractmethod
    def excess_ratio(self, x: FloatArray) -> FloatArray:
        """y = p(x)/q(x) − 1, without cancellation where it is small."""

    @abstractmethod
    def loss(self, x: FloatArray) -> FloatArray:
        """ℓ(x) = log p(x)/q(x)."""

    @abstractmethod
    def inverse(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """The points where ℓ takes these values (−∞ where it never falls so low), and the largest error in ℓ."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """The distance between the outermost means: ℓ is analytic and free of zeros within π/spread of the real line."""

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """log E_Q[(p/q)^s] with s = α (remove) or 1 − α (add), as one integral for each real order (theory.md §3.5)."""
        powers = orders if direction == "remove" else 1 - orders
        return log_power_moments(self, powers)

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        return monotone_pmfs(self, interval, tail)[DIRECTIONS.index(direction)]

    def loss_variance(self) -> float:
        """By quadrature under P."""
        shifts, probs = self.upper
        mean = float(probs @ shifts)
        deviation = math.sqrt(1 + float(probs @ (shifts - mean) ** 2))
        x = np.linspace(mean - 12 * deviation, max(mean + 12 * deviation, float(shifts[-1]) + 8), 2049)
        weights = np.exp(log_density(x, shifts, probs))
        weights /= weights.sum()
        losses = self.loss(x)
        centre = float(weights @ losses)
        return float(weights @ (losses - centre) ** 2)


@dataclass(frozen=True)
class ShiftMixture(Law):
    """Unit Gaussians with these shifts, ascending, and their probabilities."""

    shifts: tuple[float, ...]
    probs: tuple[float, ...]

    @classmethod
    def of(cls, law: ShiftLaw) -> Self:
        """The pair of mixtures that a random shift gives. The caller adds the shift law's `excess` to δ."""
        return cls(tuple(law.values.tolist()), tuple((law.probs / law.probs.sum()).tolist()))

    def bounded(self) -> tuple[Law | None, float]:
        """The atoms up to MAX_SHIFT, renormalised to the event that one of them occurs."""
        atoms = list(zip(self.shifts, self.probs, strict=True))
        kept = [(shift, prob) for shift, prob in atoms if shift <= MAX_SHIFT]
        lost = math.fsum(prob for shift, prob in atoms if shift > MAX_SHIFT)
        if not kept:
            return None, 1.0
        if lost == 0:
            return self, 0.0
        total = math.fsum(prob for _, prob in kept)
        return type(self)(tuple(shift for shift, _ in kept), tuple(prob / total for _, prob in kept)), lost


class MixtureLaw(ShiftMixture, GaussianPair):
    """Σ_j ρ_j N(Δ_j, 1) against N(0, 1): one Poisson-sampled step (shifts 0 and 1/σ), or a merged one."""

    @classmethod
    def poisson(cls, rate: float, shift: float) -> MixtureLaw:
        """One step with Poisson sampling: the record's shift with probability `rate`."""
        return cls((shift,), (1.0,)) if rate >= 1 else cls((0.0, shift), (1 - rate, rate))

    @cached_property
    def upper(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        return np.array(self.shifts), np.array(self.probs)

    @property
    def lower(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        return np.zeros(1), np.ones(1)

    @property
    def least_loss(self) -> float:  # type: ignore[override]
        """log ρ_∅ if the step may leave no trace, else −∞."""
        return math.log(self.probs[0]) if self.shifts[0] == 0 else -math.inf

    @property
    def spread(self) -> float:
        return self.shifts[-1]

    def excess_ratio(self, x: FloatArray) -> FloatArray:
        shifts, probs = self.upper
        total = np.zeros_like(x)
        with np.errstate(over="ignore"):
            for shift, prob in zip(shifts, probs, strict=True):
                total += prob * np.expm1(shift * x - shift * shift / 2)
        return total

    def loss(self, x: FloatArray) -> FloatArray:
        return self._loss_and_slope(x)[0]

    def _loss_and_slope(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        shifts, probs = self.upper
        losses, slopes = np.empty_like(x), np.empty_like(x)
        block = max(1, 2_000_000 // shifts.size)
        constants = np.log(probs) - shifts * shifts / 2
        for start in range(0, x.size, block):
            part = slice(start, start + block)
            exponents = np.multiply.outer(shifts, x[part])
            exponents += constants[:, None]
            top = exponents.max(axis=0)
            np.exp(exponents - top, out=exponents)
            total = exponents.sum(axis=0)
            losses[part] = top + np.log(total)
            slopes[part] = (shifts @ exponents) / total
        return losses, slopes

    def inverse(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """In closed form for one shift (with or without a zero one), else by safeguarded Newton steps on the whole grid."""
        rounding = 4e-16 * (1 + float(np.abs(losses).max()))
        x = np.full(losses.shape, -math.inf)
        reached = losses > self.least_loss
        target = losses[reached]
        if len(self.shifts) == 1:
            (shift,) = self.shifts
            x[reached] = target / shift + shift / 2
            return x, rounding
        if len(self.shifts) == 2 and self.shifts[0] == 0:
            shift, rate = self.shifts[1], self.probs[1]
            # log((e^ε − (1−q))/q) = log1p((e^ε − 1)/q); for large ε as ε + log((1 − (1−q)e^−ε)/q).
            with np.errstate(over="ignore", divide="ignore"):
                small = np.log1p(np.expm1(np.minimum(target, 1.0)) / rate)
                large = target + np.log1p(-(1 - rate) * np.exp(-np.maximum(target, 1e-3))) - math.log(rate)
            x[reached] = np.where(target < 1, small, large) / shift + shift / 2
            residual = self.loss(x[reached][np.isfinite(x[reached])]) - target[np.isfinite(x[reached])]
            return x, rounding + float(np.abs(residual).max(initial=0.0))
        x[reached], residual_size = self._newton(target)
        return x, rounding + residual_size

    def _newton(self, target: FloatArray) -> tuple[FloatArray, float]:
        shifts, probs = self.upper
        moving = shifts > 0
        # Each component alone bounds ℓ from below, hence x from above; ℓ ≥ ε there, and ℓ is convex, so Newton's
        # steps descend to the root from there. A table of ℓ brings the start close.
        top = float(np.min((target[-1] - np.log(probs[moving]) + shifts[moving] ** 2 / 2) / shifts[moving])) + 1e-9
        low = -8.0
        while float(self.loss(np.array([low]))[0]) > target[0] and low > -1e8:
            low *= 2
        table = np.linspace(low, top, 4097)
        table_loss = np.maximum.accumulate(self.loss(table))
        index = np.clip(np.searchsorted(table_loss, target), 1, table.size - 1)
        left, right = table[index - 1].copy(), table[index].copy()
        x = np.clip(np.interp(target, table_loss, table), left, right)
        error = np.full(x.shape, math.inf)
        tolerance = 1e-13 * (1 + np.abs(target))
        active = np.arange(x.size)
        for _ in range(100):
            losses, slopes = self._loss_and_slope(x[active])
            error[active] = losses - target[active]
            over = error[active] > 0
            right[active[over]] = x[active[over]]
            left[active[~over]] = x[active[~over]]
            with np.errstate(divide="ignore", invalid="ignore"):
                step = x[active] - error[active] / slopes
            inside = (step > left[active]) & (step < right[active])
            settled = (np.abs(error[active]) <= tolerance[active]) | (right[active] - left[active] < 1e-15)
            x[active] = np.where(settled, x[active], np.where(inside, step, (left[active] + right[active]) / 2))
            active = active[~settled]
            if active.size == 0:
                break
        return x, float(np.abs(error).max())


@dataclass(frozen=True)
class ReplaceOnePoissonLaw(GaussianPair):
    """(1−q)N(0,1) + qN(s,1) against (1−q)N(0,1) + qN(−s,1): a record replaced, Poisson sampling (theory "replace-one")."""

    rate: float
    shift: float

    def bounded(self) -> tuple[Law | None, float]:
        """Beyond MAX_SHIFT a sampled record gives everything away, and an unsampled one nothing."""
        return (self, 0.0) if self.shift <= MAX_SHIFT else (None, self.rate)

    @property
    def upper(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        return np.array([0.0, self.shift]), np.array([1 - self.rate, self.rate])

    @property
    def lower(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        return np.array([-self.shift, 0.0]), np.array([self.rate, 1 - self.rate])

    @property
    def least_loss(self) -> float:  # type: ignore[override]
        return -math.inf

    @property
    def spread(self) -> float:
        return 2 * self.shift

    def _side(self, x: FloatArray) -> FloatArray:
        return np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + self.shift * x - self.shift**2 / 2)

    def loss(self, x: FloatArray) -> FloatArray:
        return np.asarray(self._side(x) - self._side(-x))

    def excess_ratio(self, x: FloatArray) -> FloatArray:
        """2q e^{−s²/2} sinh(sx) over q's density ratio."""
        with np.errstate(over="ignore"):
            log_scale = math.log(self.rate) - self.shift**2 / 2 - self._side(-x)
            return np.exp(log_scale + self.shift * x) - np.exp(log_scale - self.shift * x)

    def inverse(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """The positive root of c·y² − b(e^ε − 1)·y − e^ε·c = 0 with y = e^{sx}, b = 1−q, c = q e^{−s²/2}; ℓ is odd."""
        size = np.abs(losses)
        half = size / 2
        # Divide by e^{ε/2}: c·z² − 2b·sinh(ε/2)·z − c = 0 with z = y·e^{−ε/2}, so x = (ε/2 + asinh(b·sinh(ε/2)/c))/s.
        log_sinh = half + np.log1p(-np.exp(-size) * (size > 0)) - math.log(2)
        log_argument = math.log1p(-self.rate) - math.log(self.rate) + self.shift**2 / 2 + log_sinh
        with np.errstate(over="ignore"):
            small = np.arcsinh(np.exp(np.minimum(log_argument, 20.0)))
        asinh = np.where(log_argument < 20, small, log_argument + math.log(2))
        x = np.sign(losses) * (half + asinh) / self.shift
        return x, 4e-15 * (1 + float(size.max())) + float(np.abs(self.loss(x) - losses).max())
