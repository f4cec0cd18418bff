"""Exact laws of small releases: what a proved guarantee must cover (docs/theory.md §2, §3.3, §5).

Hidden runs in one dimension, θ ← f(θ) + νξ with step maps f that are not linear, have no closed form; but their densities are
smooth, and Gauss–Legendre quadrature between the kinks of f is exact to rounding. What is released, Σ λ_i θ_i, is a sum of
independent variables with Gaussian noise on top: the product of their characteristic functions, which vanishes beyond
frequency 9.5/s_λ, so that its Fourier series on a period that holds all of the mass *is* its density (up to 1e-19).

δ is then summed over a partition of the line, Σ (P(I) − e^ε Q(I))₊, which is never above the true divergence, whatever the
partition. What could still be above it is the error of the quadrature and of rounding: `tests/test_violations.py` measures
both against closed forms and a finer quadrature (1e-13 and 1e-9, the latter by another partition), and `ALLOWANCE` covers them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.special import gammainc, ndtr
from scipy.stats import binom

from dpmerge.profiles import FloatArray

ComplexArray = np.ndarray[tuple[int, ...], np.dtype[np.complex128]]
ALLOWANCE = 1e-8  # by which a computed δ may be above the true one
_NEGLIGIBLE = 1e-18  # mass of a component that is left out
_REACH = 9.0  # standard deviations of noise that are kept; 1e-19 lies beyond
_PANEL, _ORDER = 3.0, 12  # width of a panel in scales of what is integrated, and points in it
_POINTS_PER_DEVIATION = 64
_JUMP = 1e-6


@dataclass(frozen=True)
class Ramp:
    """A piecewise linear function, constant beyond its knots. Two knots that nearly coincide are a jump."""

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, x: FloatArray) -> FloatArray:
        return np.interp(x, self.knots, self.values)

    @property
    def jumps(self) -> bool:
        """Whether two knots nearly coincide."""
        return any(y - x < _JUMP for x, y in pairwise(self.knots))

    @property
    def steepest(self) -> float:
        """The largest slope that is not a jump's."""
        pieces = zip(pairwise(self.knots), pairwise(self.values), strict=True)
        return max((abs(b - a) / (y - x) for (x, y), (a, b) in pieces if y - x >= _JUMP), default=0.0)

    @classmethod
    def constant(cls, value: float) -> Ramp:
        return cls((0.0,), (value,))

    @classmethod
    def jump(cls, at: float, below: float, above: float) -> Ramp:
        return cls((at - 1e-12, at + 1e-12), (below, above))


@dataclass(frozen=True)
class Step:
    """θ ← θ − Σ_batch gradient(θ) + νξ in update units: every gradient is multiplied by η/B already.

    The batch holds each of `others` equal common records, and the record in question if there is one, with probability
    `rate`, independently. `record` and `replacement` are what it contributes under D and under D′ (nothing: absent).
    """

    gradient: Ramp
    record: Ramp
    replacement: Ramp | None
    others: int
    rate: float
    noise: float

    def moved(self, points: FloatArray, masses: FloatArray, changed: bool) -> tuple[FloatArray, FloatArray]:
        """Where atoms of these masses go before the noise, for each batch: under D, or under D′ (`changed`)."""
        own = self.replacement if changed else self.record
        coins = [(self.rate, own), (1 - self.rate, None)] if own is not None and self.rate < 1 else [(1.0, own)]
        sizes = range(self.others + 1) if self.rate < 1 else [self.others]
        gradient = self.gradient(points)
        places, probabilities = [], []
        for size in sizes:
            chance = float(binom.pmf(size, self.others, self.rate))
            for coin, contribution in coins:
                places.append(points - size * gradient - (0.0 if contribution is None else contribution(points)))
                probabilities.append(chance * coin * masses)
        return np.concatenate(places), np.concatenate(probabilities)

    @property
    def breaks(self) -> tuple[float, ...]:
        """Where the step map is not smooth."""
        return tuple(k for f in (self.gradient, self.record, self.replacement) if f is not None for k in f.knots)

    @property
    def stretch(self) -> float:
        """The largest slope of the step map, at most."""
        own = max((f.steepest for f in (self.record, self.replacement) if f is not None), default=0.0)
        return 1 + self.others * self.gradient.steepest + own


@dataclass(frozen=True)
class HiddenRun:
    """A run that starts at 0 and is seen only through weight × its last state."""

    weight: float
    steps: tuple[Step, ...]

    def before_last_noise(self, changed: bool, merged_noise: float, finer: float = 1.0) -> tuple[FloatArray, FloatArray]:
        """Atoms and masses of weight × state, to which the merged noise is still to be added."""
        points, masses = np.zeros(1), np.ones(1)
        for step, following in pairwise(self.steps):
            means, probabilities = _kept(*step.moved(points, masses, changed))
            seen_through = following.noise if following is not self.steps[-1] else merged_noise / self.weight
            width = min(step.noise, seen_through / following.stretch)
            points, masses = _quadrature(means, probabilities, step.noise, _PANEL * width / finer, following.breaks)
        means, probabilities = _kept(*self.steps[-1].moved(points, masses, changed))
        return self.weight * means, probabilities


@dataclass(frozen=True)
class ReleaseLaws:
    """The laws of Σ λ_i θ_i under D (first row of `spectra`) and under D′, as Fourier series on one period."""

    start: float
    period: float
    noise: float
    spectra: ComplexArray

    @classmethod
    def of(cls, runs: Sequence[HiddenRun], finer: float = 1.0) -> ReleaseLaws:
        """By quadrature; `finer` divides the width of its panels."""
        noise = math.sqrt(math.fsum((run.weight * run.steps[-1].noise) ** 2 for run in runs))
        parts = [[run.before_last_noise(changed, noise, finer) for run in runs] for changed in (False, True)]
        lowest = min(math.fsum(float(atoms.min()) for atoms, _ in row) for row in parts)
        highest = max(math.fsum(float(atoms.max()) for atoms, _ in row) for row in parts)
        period = highest - lowest + 2 * _REACH * noise
        frequencies = 2 * math.pi / period * np.arange(1 + math.ceil(9.5 / noise * period / (2 * math.pi)))
        spectra = np.empty((2, frequencies.size), dtype=np.complex128)
        for row, own in enumerate(parts):
            spectra[row] = np.exp(-((noise * frequencies) ** 2) / 2)
            for atoms, masses in own:
                spectra[row] *= np.exp(-1j * np.multiply.outer(frequencies, atoms)) @ masses
        return cls(lowest - _REACH * noise, period, noise, spectra)

    def delta(self, epsilon: float) -> tuple[float, float]:
        """H_ε in both directions, from below: the law under D first, then the law under D′ first."""
        present, changed = self.spectra
        return self._divergence(present - math.exp(epsilon) * changed), self._divergence(changed - math.exp(epsilon) * present)

    def distribution(self, row: int, points: FloatArray) -> FloatArray:
        """P(release ≤ point) under D (row 0) or D′ (row 1)."""
        return self._primitive(self.spectra[row], points) - self._primitive(self.spectra[row], np.array([self.start]))

    @cached_property
    def _frequencies(self) -> FloatArray:
        return np.asarray(2 * math.pi / self.period * np.arange(self.spectra.shape[1]))

    def _divergence(self, excess: ComplexArray) -> float:
        """Σ (mass of the excess)₊ between its sign changes."""
        size = math.ceil(_POINTS_PER_DEVIATION * self.period / self.noise)
        phased = excess * np.exp(1j * self._frequencies * self.start)
        padded = np.zeros(size // 2 + 1, dtype=np.complex128)
        padded[: phased.size] = phased
        values = np.fft.irfft(padded, size)
        x = self.start + self.period / size * np.arange(size)
        turns = np.flatnonzero(values[:-1] * values[1:] < 0)
        share = values[turns] / (values[turns] - values[turns + 1])
        edges = np.concatenate(([self.start], x[turns] + share * (x[1] - x[0]), [self.start + self.period]))
        return float(np.maximum(np.diff(self._primitive(excess, edges)), 0.0).sum())

    def _primitive(self, spectrum: ComplexArray, points: FloatArray) -> FloatArray:
        """The integral of a series up to these points, but for a constant."""
        waves = np.exp(1j * np.multiply.outer(points, self._frequencies[1:])) @ (spectrum[1:] / (1j * self._frequencies[1:]))
        return np.asarray((spectrum[0].real * points + 2 * waves.real) / self.period)


def _kept(means: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray]:
    heavy = masses > _NEGLIGIBLE
    return means[heavy], masses[heavy]


def _quadrature(
    means: FloatArray, masses: FloatArray, noise: float, width: float, breaks: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """Points and masses that integrate functions, smooth but at the breaks, against the density Σ m_j N(mean_j, noise²)."""
    if noise == 0:
        return means, masses
    low, high = float(means.min()) - _REACH * noise, float(means.max()) + _REACH * noise
    even = np.linspace(low, high, 1 + math.ceil((high - low) / width))
    edges = np.unique(np.concatenate((even, [b for b in breaks if low < b < high])))
    nodes, shares = np.polynomial.legendre.leggauss(_ORDER)
    half = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + half * (1 + nodes)).ravel()
    density = np.exp(-(np.subtract.outer(points, means) ** 2) / (2 * noise**2)) @ masses / (noise * math.sqrt(2 * math.pi))
    return _kept(points, (half * shares).ravel() * density)


# --- laws in closed form ----------------------------------------------------------------------------------------------


def gaussian_delta(mu: float, epsilon: float) -> float:
    """H_ε of N(μ, 1) from N(0, 1)."""
    if mu == 0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def discrete_delta(upper: FloatArray, lower: FloatArray, epsilon: float) -> float:
    """H_ε of two laws on finitely many outcomes."""
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


def observed_mu(observations: FloatArray, shift: FloatArray, covariance: FloatArray) -> float:
    """μ of seeing `observations` @ x, where x is Gaussian and its mean moves by `shift`.

    In white coordinates: the part of the shift that lies in the span of what is observed.
    """
    root = np.linalg.cholesky(covariance)
    _, singular, basis = np.linalg.svd(observations @ root, full_matrices=False)
    return float(np.linalg.norm(basis[singular > 1e-9 * singular[0]] @ np.linalg.solve(root, shift)))


def selected_mean_delta(
    weights: Sequence[float], deviations: Sequence[float], shift: float, dimension: int, epsilon: float
) -> float:
    """H_ε of Σ π_i N(0, σ_i² I) from the same moved by `shift`, from below: over cells of (x₁, ‖x_⊥‖) with exact masses."""
    sigmas = np.array(deviations)[:, None]
    x = np.unique([np.linspace(c - 8 * s, c + 8 * s, 400) for s in deviations for c in (0.0, shift)])
    radii = np.unique([s * np.linspace(0.0, math.sqrt(dimension) + 8, 400) for s in deviations])
    here, there = np.diff(ndtr(x / sigmas)), np.diff(ndtr((x - shift) / sigmas))
    across = np.diff(gammainc((dimension - 1) / 2, (radii / sigmas) ** 2 / 2)) if dimension > 1 else np.ones((len(weights), 1))
    excess = (np.array(weights)[:, None] * (here - math.exp(epsilon) * there)).T @ across
    return float(np.maximum(excess, 0.0).sum())
