"""Random selection between Gaussian means, by the law of what is really released (docs/theory.md §3.4).

If all models estimate the same mean, the release is a draw from Σ π_i N(·, σ_i²I), which hides the index a little. Tighter
than §2, and only for releases that do not say which model was drawn. In dimension d > 1 the norm of the part orthogonal
to the shift tells the components apart, so the divergence is averaged over it. Integrals are bounded from above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit, gammainc, gammaincc, ndtr

from dpmerge.profiles import Conversion, FloatArray, smallest_epsilon
from dpmerge.records import Gaussian, Weights
from dpmerge.rules import By, Guarantee, Selection, Target, answer, ask

_REACH = 14.0  # standard deviations kept; what lies beyond (1e-44) is added
_POINTS = 2001


class HiddenSelection(Selection):
    """Random selection that never says which model it drew; for other models than Gaussian means it is random selection."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        mechanisms = [(weight / weights.total, model.mechanism) for model, weight in weights.used]
        means = [(weight, mechanism) for weight, mechanism in mechanisms if isinstance(mechanism, Gaussian)]
        self._means = GaussianSelection.of(means) if len(means) == len(mechanisms) else None

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        if self._means is not None and by in ("best", "pld"):
            exact = answer(target, "pld", self._means.epsilon, self._means.delta)
            if exact.size < ask(self.bound, target, by, conversion).size:
                return self._build(exact, "mean-estimation-selection", self._assumptions, self._conditional, conversion)
        return super()._guarantee(target, by, conversion)


@dataclass(frozen=True)
class GaussianSelection:
    """P = Σ π_i N(0, σ_i²I_d) against the same mixture moved by Δ."""

    sensitivity: float
    dimension: int
    deviations: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, parts: list[tuple[float, Gaussian]]) -> GaussianSelection | None:
        """The selection these records describe, or nothing where §2 is all we have.

        Needs one sensitivity and one stated dimension; beyond dimension 1, at most two different noise levels.
        """
        dimensions = {mechanism.dimension for _, mechanism in parts}
        sensitivities = {mechanism.sensitivity for _, mechanism in parts}
        dimension = dimensions.pop()
        if dimensions or dimension is None or len(sensitivities) != 1:
            return None
        merged: dict[float, float] = {}
        for weight, mechanism in parts:
            merged[mechanism.noise_std] = merged.get(mechanism.noise_std, 0.0) + weight
        if dimension > 1 and len(merged) > 2:
            return None
        deviations = tuple(sorted(merged))
        return cls(sensitivities.pop(), dimension, deviations, tuple(merged[s] for s in deviations))

    def delta(self, epsilon: float) -> float:
        """H_ε(P, Q) for ε ≥ 0, from above. P and Q are mirror images, so both directions agree; smaller shifts cost less."""
        mixtures, masses = self._slices
        values = self._slice_delta(mixtures, min(epsilon, 700.0))  # δ falls with ε; e^700 is still a number
        return min(1.0, float(masses @ values) * (1 + 1e-9) + 1e-40)

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 at δ."""
        worst = self.sensitivity / self.deviations[0]
        upper = worst**2 / 2 + worst * math.sqrt(2 * math.log(1 / delta))
        return smallest_epsilon(self.delta, delta, upper)

    @cached_property
    def _slices(self) -> tuple[FloatArray, FloatArray]:
        """Mixture weights (rows) and the masses with which they occur, given the orthogonal part.

        The weight of the narrow component falls with r = ‖x_⊥‖², and the divergence is convex in it: replacing it within
        a slice of r by its two ends, mean preserved, can only raise the average.
        """
        weights = np.array(self.weights)
        if self.dimension == 1 or len(self.weights) == 1:
            return weights[None, :], np.ones(1)
        narrow, wide = self.deviations
        half = (self.dimension - 1) / 2
        rate = (1 / narrow**2 - 1 / wide**2) / 2
        at_zero = math.log(weights[0] / weights[1]) + (self.dimension - 1) * math.log(wide / narrow)
        logits = np.linspace(min(at_zero, 45.0), -45.0, 361) if at_zero > -45 else np.array([at_zero])
        edges = np.concatenate(((at_zero - logits) / rate, [math.inf]))
        edges[0] = 0.0
        ends = np.concatenate((expit(at_zero - rate * edges[:-1]), [0.0]))
        slice_mass = np.stack(
            [w * _gamma_mass(half, edges / (2 * s * s)) for w, s in zip(weights, (narrow, wide), strict=True)]
        )
        total = slice_mass.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(total > 0, slice_mass[0] / total, 0.0)
            share = np.clip(np.where(ends[:-1] > ends[1:], (mean - ends[1:]) / (ends[:-1] - ends[1:]), 1.0), 0.0, 1.0)
        masses = np.zeros(ends.size)
        masses[:-1] += total * share
        masses[1:] += total * (1 - share)
        return np.stack([ends, 1 - ends], axis=1), masses

    @cached_property
    def _grid(self) -> FloatArray:
        offsets = np.linspace(-_REACH, _REACH, _POINTS)
        parts = [centre + s * offsets for s in self.deviations for centre in (0.0, self.sensitivity)]
        return np.unique(np.concatenate(parts))

    def _slice_delta(self, mixtures: FloatArray, epsilon: float) -> FloatArray:
        """∫ (p − e^ε q)₊ over the line for each row of mixture weights, from above.

        With g = p − e^ε q, a cell where g provably keeps its sign contributes exactly; near a sign change g₊ is at most
        its larger end value plus width²/8 · sup|g″|.
        """
        x, scale = self._grid, math.exp(epsilon)
        width = np.diff(x)
        mass, edge, bend = [], [], []
        for s in self.deviations:
            upper, lower = x / s, (x - self.sensitivity) / s
            mass.append(_normal_mass(upper) - scale * _normal_mass(lower))
            edge.append((np.exp(-(upper**2) / 2) - scale * np.exp(-(lower**2) / 2)) / (s * math.sqrt(2 * math.pi)))
            bend.append((_curvature(upper) + scale * _curvature(lower)) / s**3)
        cells = mixtures @ np.stack(mass)
        values = mixtures @ np.stack(edge)
        slack = width**2 / 8 * (mixtures @ np.stack(bend))
        top = np.maximum(values[:, :-1], values[:, 1:])
        bottom = np.minimum(values[:, :-1], values[:, 1:])
        unsure = np.maximum(cells, width * (np.maximum(top, 0.0) + slack))
        total = np.where(bottom > slack, cells, np.where(top < -slack, 0.0, unsure))
        return np.asarray(np.maximum(total, 0.0).sum(axis=1))


def _normal_mass(z: FloatArray) -> FloatArray:
    """Standard normal masses between consecutive points, precise in both tails."""
    flipped = z[:-1] > 0
    low, high = np.where(flipped, -z[1:], z[:-1]), np.where(flipped, -z[:-1], z[1:])
    return np.asarray(ndtr(high) - ndtr(low))


def _curvature(z: FloatArray) -> FloatArray:
    """An upper bound on |φ″| = |z²−1|φ(z) in each cell."""
    near = np.where(z[:-1] * z[1:] < 0, 0.0, np.minimum(np.abs(z[:-1]), np.abs(z[1:])))
    far = np.maximum(np.abs(z[:-1]), np.abs(z[1:]))
    return np.asarray((1 + far**2) * np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi))


def _gamma_mass(shape: float, edges: FloatArray) -> FloatArray:
    """Gamma(shape) masses between consecutive points, each from the side where the tail is small."""
    below, above = gammainc(shape, edges), gammaincc(shape, edges)
    return np.asarray(np.where(edges[:-1] > shape, above[:-1] - above[1:], below[1:] - below[:-1]))
