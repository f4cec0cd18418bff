"""Composition of privacy loss distributions in one Fourier transform, precise at any δ.

A composition is the convolution of its steps' loss distributions. An FFT finds it to about 1e-16 of the *largest* mass,
so a plain one knows nothing about δ = 1e-14; dp-accounting 0.6.0's ε is then too small. Here every step is first
tilted, p_θ(l) ∝ p(l)·e^{θl}, with θ from the Chernoff bound so that the composed law is centred where the question is;
after the inverse transform the tilt is taken back. Rounding errors shrink with it, and a bound on them (componentwise
over the transform, carried through the powers) is added to every mass. What leaves the window at its top is added to δ;
what wraps around only adds mass. So δ(ε) is never below the true value (docs/theory.md, "composition").

Different phases cost one transform each, multiplied in the Fourier domain, instead of a growing convolution each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft
from scipy.special import logsumexp

from dpmerge.profiles.curves import Curve
from dpmerge.profiles.grids import FloatArray, grid, spend
from dpmerge.profiles.law import LossPmf

_UNIT = 2.0**-53
_WRAPPED = 1e-13


@dataclass(frozen=True)
class ComposedLoss(Curve):
    """The loss of a whole composition in one direction: an upper bound on δ(ε) for every ε ≥ `lowest`.

    `masses` are what the transform gave, taken back by `untilt`; each tilted mass may be off by `largest_error`, and all
    together by `error_norm` in the Euclidean norm. With probability `failure` anything may happen.
    """

    losses: FloatArray
    masses: FloatArray
    infinity: float
    loss_slack: float = 0.0
    safety: float = 1.0
    untilt: FloatArray | None = None
    largest_error: float = 0.0
    error_norm: float = 0.0
    failure: float = 0.0

    @property
    def lowest(self) -> float:
        """Below this the window holds no information, and δ is only known to be at most 1."""
        return float(self.losses[0]) + self.loss_slack

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at ε, or more."""
        if epsilon - self.loss_slack < self.losses[0]:
            return 1.0
        tail, share = self._above(epsilon)
        value = self.infinity + float(self.masses[tail] @ share) + self._noise(tail, share)
        return min(1.0, value * self.safety + self.failure)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """The same for many ε at once: δ(ε) = ∫_ε^∞ e^{ε−t} P(L > t) dt, of which all grid points are one cumulative sum."""
        at = np.asarray(epsilons, dtype=np.float64) - self.loss_slack
        if self.losses.size < 2 or self.losses[-1] - self.losses[0] > 500:  # e^{loss} would leave the floating-point range
            return np.array([self.delta(float(epsilon)) for epsilon in np.atleast_1d(epsilons)]).reshape(at.shape)
        value = self.infinity + self._sums(self._mass_table, at)
        if self.untilt is not None:
            # The shares 1 − e^{ε−l} are at most 1, so their squares are at most themselves.
            in_norm = self.error_norm * np.sqrt(self._sums(self._square_table, at))
            value += np.minimum(self.largest_error * self._sums(self._untilt_table, at), in_norm)
        return np.where(at < self.losses[0], 1.0, np.minimum(1.0, value * self.safety * (1 + 1e-12) + self.failure))

    @cached_property
    def _mass_table(self) -> tuple[FloatArray, FloatArray]:
        return self._table(self.masses)

    @cached_property
    def _untilt_table(self) -> tuple[FloatArray, FloatArray]:
        assert self.untilt is not None
        return self._table(self.untilt)

    @cached_property
    def _square_table(self) -> tuple[FloatArray, FloatArray]:
        assert self.untilt is not None
        return self._table(np.square(self.untilt))

    def _table(self, masses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """At every loss: Σ masses from there on, and Σ masses·(1 − e^{ε−loss})₊ for ε there; nothing cancels."""
        interval = float(self.losses[1] - self.losses[0])
        above = np.cumsum(masses[::-1])[::-1]
        terms = -math.expm1(-interval) * above * np.exp(self.losses[0] - self.losses)
        beyond = np.append(np.cumsum(terms[:0:-1])[::-1], 0.0)
        return above, beyond * np.exp(self.losses - self.losses[0] + interval)

    def _sums(self, table: tuple[FloatArray, FloatArray], epsilons: FloatArray) -> FloatArray:
        """Σ masses·(1 − e^{ε−loss})₊ at any ε: between two losses it is linear in e^ε."""
        above, at_losses = table
        following = np.searchsorted(self.losses, epsilons, side="right")
        inside = np.minimum(following, self.losses.size - 1)
        kept = np.exp(np.minimum(epsilons - self.losses[inside], 0.0))
        value = (1 - kept) * above[inside] + kept * at_losses[inside]
        return np.where(following < self.losses.size, value, 0.0)

    def noise(self, epsilon: float) -> float:
        """How much of δ(ε) is allowance for rounding errors of the transform."""
        return self._noise(*self._above(epsilon))

    def _above(self, epsilon: float) -> tuple[slice, FloatArray]:
        epsilon -= self.loss_slack
        tail = slice(int(np.searchsorted(self.losses, epsilon, side="right")), None)
        return tail, np.asarray(-np.expm1(epsilon - self.losses[tail]))

    def _noise(self, tail: slice, share: FloatArray) -> float:
        """Both bounds hold; the first is good where the spectrum decays, the second where it is flat (rare events)."""
        if self.untilt is None:
            return 0.0
        weights = self.untilt[tail] * share
        return min(self.largest_error * float(weights.sum()), self.error_norm * math.sqrt(float(weights @ weights)))


def compose(factors: Sequence[tuple[LossPmf, int]], theta: float, tail: float, lowest: float, top_theta: float) -> ComposedLoss:
    """Compose `factors` (law, how often) tilted by θ ≥ 0, on a window that begins at or below the loss `lowest`.

    `tail` is how much mass may be cut off at the top of the window; it is added to δ. `top_theta` is where the Chernoff
    bound on that tail is good; any positive value is valid.
    """
    if any(pmf.probs.sum() <= 0 for pmf, _ in factors):
        return ComposedLoss(np.zeros(1), np.zeros(1), 1.0)
    steps = _Steps(factors)
    if steps.repetitions == 1:
        (only, _) = factors[0]
        losses = grid(only.lower, only.lower + only.probs.size - 1, only.interval)
        return ComposedLoss(losses, only.probs, only.infinity, only.loss_slack, 1 + 1e-10)
    theta, first, last, cut = _window(steps, theta, tail, lowest, top_theta)
    composed, largest_error, error_norm = _convolved(steps, theta, first, last)
    losses = grid(first, last, steps.interval)
    with np.errstate(over="ignore"):
        untilt = np.minimum(np.exp(steps.log_moment(theta) - theta * losses), 1e150)
    masses = np.minimum(np.maximum(composed, 0.0) * untilt, 1.0)
    survive = sum(count * math.log1p(-min(pmf.infinity, 1.0)) if pmf.infinity < 1 else -math.inf for pmf, count in factors)
    slack = sum(pmf.loss_slack * count for pmf, count in factors)
    # Above the relative rounding errors of masses, moments and sums.
    safety = 1 + 1e-10 + 1e-13 * steps.repetitions
    infinity = -math.expm1(survive) + cut
    return ComposedLoss(losses, masses, infinity, slack, safety, untilt, largest_error, error_norm)


def _window(steps: _Steps, theta: float, tail: float, lowest: float, top_theta: float) -> tuple[float, int, int, float]:
    """The tilt, the window's first and last grid points, and how much mass may lie above it."""
    top = (steps.log_moment(top_theta) - math.log(tail)) / top_theta
    theta, tilted_top = _bearable_tilt(steps, theta, 1.5 * top + 1)
    mean, deviation = steps.mean_and_deviation(theta)
    top = max(top, min(tilted_top, 1.5 * top + 1))
    bottom = min(max(_window_bottom(steps, theta, deviation), mean - 40 * deviation), lowest)
    first = max(steps.least, math.floor(bottom / steps.interval) - 1)
    last = min(steps.most, math.ceil(top / steps.interval) + 1)
    # The question lies above every loss: a window of one point shows that.
    return theta, min(first, last), last, tail if last < steps.most else 0.0


def _convolved(steps: _Steps, theta: float, first: int, last: int) -> tuple[FloatArray, float, float]:
    """The tilted composition's masses from `first` to `last`, and how far off each and all in norm may be."""
    size = fft.next_fast_len(max(last - first + 1, 2), real=True)
    spend(size)
    log_spectrum = np.zeros(size // 2 + 1, dtype=np.complex128)
    log_inflated = np.zeros(size // 2 + 1)
    transform_error = 8 * _UNIT * max(1.0, math.log2(size))
    norms = 0.0
    for pmf, count in steps.factors:
        spend()
        tilted = _folded(steps.tilted(pmf, theta), size)
        norms += count * math.sqrt(float(tilted @ tilted))
        spectrum = fft.rfft(tilted, size)
        spectrum[spectrum == 0] = 1e-300  # its logarithm must be a number, and its error allowance is far larger
        log_spectrum += count * np.log(spectrum)
        # |f̂| is known to ± transform_error (‖f‖₁ = 1), and log and power lose at most a few units of their argument.
        log_inflated += count * (np.log(np.abs(spectrum) + transform_error) + 8 * _UNIT)
    magnitude = np.exp(log_spectrum.real)
    phase_error = 4 * _UNIT * math.pi * steps.repetitions + transform_error
    # Half the spectrum is stored; the other half is its mirror image. The inverse transform divides by `size`.
    error = np.maximum(np.exp(log_inflated) - magnitude, 0.0) + phase_error * magnitude
    largest_error = 2 * float(error.sum()) / size
    # In norm: an FFT errs by transform_error of its result (Higham 2002, Thm 24.2), and |f̂| ≤ 1 carries errors through
    # powers and products at most as a sum.
    composed_norm = math.sqrt(2 * float(magnitude @ magnitude) / size)
    error_norm = (transform_error * norms + phase_error * composed_norm) * (1 + 1e-6)
    with np.errstate(invalid="ignore"):
        spectrum = np.where(magnitude > 0, np.exp(log_spectrum), 0.0)
    circular = fft.irfft(spectrum, size)
    start = (first - steps.least) % size
    return np.concatenate((circular[start:], circular[:start]))[: last - first + 1], largest_error, error_norm


class _Steps:
    """The laws to compose, on their common grid, and their moments log Σ p(l)·e^{θl}."""

    def __init__(self, factors: Sequence[tuple[LossPmf, int]]) -> None:
        self.factors = factors
        self.interval = factors[0][0].interval
        self.repetitions = sum(count for _, count in factors)
        self.least = sum(pmf.lower * count for pmf, count in factors)
        self.most = sum((pmf.lower + pmf.probs.size - 1) * count for pmf, count in factors)
        self._low = min(pmf.lower for pmf, _ in factors)
        self.points = grid(self._low, max(pmf.lower + pmf.probs.size - 1 for pmf, _ in factors), self.interval)
        self._weights: dict[float, FloatArray] = {}

    def _span(self, pmf: LossPmf) -> slice:
        start = pmf.lower - self._low
        return slice(start, start + pmf.probs.size)

    def _tilt(self, pmf: LossPmf, theta: float) -> tuple[FloatArray, float]:
        """e^{θ(l − anchor)} on the law's grid and the anchor: the common one, or its own if that would underflow."""
        span = self._span(pmf)
        common = float(self.points[-1] if theta > 0 else self.points[0])
        own = float(self.points[span][-1] if theta > 0 else self.points[span][0])
        if abs(theta * (common - own)) > 300:
            return np.exp(theta * (self.points[span] - own)), own
        if theta not in self._weights:
            self._weights = {theta: np.exp(theta * (self.points - common))}
        return self._weights[theta][span], common

    def log_moment(self, theta: float) -> float:
        total = 0.0
        for pmf, count in self.factors:
            weights, anchor = self._tilt(pmf, theta)
            moment = float(pmf.probs @ weights)
            if moment < 1e-280:  # the end of the grid that θ prefers is empty
                with np.errstate(divide="ignore"):
                    total += count * float(logsumexp(np.log(pmf.probs) + theta * self.points[self._span(pmf)]))
            else:
                total += count * (math.log(moment) + theta * anchor)
        return total

    def tilted(self, pmf: LossPmf, theta: float) -> FloatArray:
        product = pmf.probs * self._tilt(pmf, theta)[0]
        return np.asarray(product / product.sum())

    def mean_and_deviation(self, theta: float) -> tuple[float, float]:
        mean = variance = 0.0
        for pmf, count in self.factors:
            tilted, losses = self.tilted(pmf, theta), self.points[self._span(pmf)]
            one = float(tilted @ losses)
            mean += count * one
            variance += count * max(float(tilted @ (losses * losses)) - one * one, 0.0)
        return mean, math.sqrt(variance) + 1e-300


def _bearable_tilt(steps: _Steps, theta: float, room: float) -> tuple[float, float]:
    """θ or the next smaller tilt whose law fits under the loss `room`, and a loss that law hardly ever exceeds.

    Past a critical tilt, a subsampled law is ruled by losses of thousands that never matter. If none fits, the narrowest.
    """
    best = (math.inf, theta)
    for _ in range(12):
        best = min(best, (_tilted_top(steps, theta), theta))
        if best[0] <= room or theta == 0:
            break
        theta *= 0.8
    return best[1], best[0]


def _tilted_top(steps: _Steps, theta: float) -> float:
    """A loss that the tilted composition hardly ever exceeds (Chernoff): what lies beyond wraps around, and would show."""
    here = steps.log_moment(theta)
    _, deviation = steps.mean_and_deviation(theta)
    best = math.inf
    # The right shift is a few deviations' inverse where the law is near normal, a part of θ where its tail is heavy.
    for shift in (1 / deviation, 2 / deviation, 4 / deviation, 8 / deviation, 0.1 * theta, 0.25 * theta, 0.5 * theta, theta):
        if shift > 0:
            best = min(best, (steps.log_moment(theta + shift) - here - math.log(_WRAPPED)) / shift)
    return best


def _window_bottom(steps: _Steps, theta: float, deviation: float) -> float:
    """A loss below which the tilted composition has next to nothing."""
    here = steps.log_moment(theta)
    best = -math.inf
    for scale in (0.5, 1.0, 2.0, 4.0, 7.0):
        shift = scale / deviation
        best = max(best, (math.log(_WRAPPED) + here - steps.log_moment(theta - shift)) / shift)
    return best


def _folded(values: FloatArray, size: int) -> FloatArray:
    """The values wrapped around a circle of `size` points."""
    if values.size <= size:
        return values
    padded = np.zeros(-(-values.size // size) * size)
    padded[: values.size] = values
    return np.asarray(padded.reshape(-1, size).sum(axis=0))
