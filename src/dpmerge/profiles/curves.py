"""δ as a function of ε in one direction: what a profile answers with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpmerge.profiles.formulas import gaussian_delta, log_delta_from_renyi, root
from dpmerge.profiles.grids import Direction, FloatArray


class Curve(ABC):
    """An upper bound on δ as a function of ε ≥ 0; below `lowest` it only says 1."""

    @property
    def lowest(self) -> float:
        return 0.0

    @abstractmethod
    def delta(self, epsilon: float) -> float: ...

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons])

    def noise(self, epsilon: float) -> float:
        """How much of the bound is allowance for rounding."""
        return 0.0

    def around(self, delta: float) -> tuple[float, float] | None:
        """An ε below and one above where the bound is this δ, very near, if they are known without a search."""
        return None


@dataclass(frozen=True)
class GaussianCurve(Curve):
    """μ-GDP in closed form; with μ = 0 only the failure is left."""

    mu: float
    failure: float

    def delta(self, epsilon: float) -> float:
        return min(1.0, float(gaussian_delta(self.mu, epsilon)) + self.failure)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        return np.minimum(1.0, gaussian_delta(self.mu, epsilons) + self.failure)


@dataclass(frozen=True)
class ShiftCurve(Curve):
    """Σ ρ_j N(Δ_j, 1) against N(0, 1), once, in closed form: the best event is a half-line, where the loss exceeds ε."""

    shifts: FloatArray
    probs: FloatArray
    direction: Direction
    failure: float

    def delta(self, epsilon: float) -> float:
        if self.direction == "remove":
            edge = self._edge(epsilon)
            whole = float(self.probs @ ndtr(self.shifts - edge))
            found = whole - math.exp(epsilon + float(log_ndtr(-edge)))
        elif self.shifts[0] == 0 and math.log(self.probs[0]) >= -epsilon:
            return min(1.0, self.failure)  # the loss never falls below −ε
        else:
            edge = self._edge(-epsilon)
            whole = float(ndtr(edge))
            found = whole - float(np.sum(np.exp(epsilon + np.log(self.probs) + log_ndtr(edge - self.shifts))))
        # Above the error of the edge, whose effect is of second order, and of the two sums, which may nearly cancel.
        return min(1.0, max(found, 0.0) * (1 + 1e-10) + whole * 1e-14 * (1 + epsilon) + self.failure)

    def around(self, delta: float) -> tuple[float, float] | None:
        """The edge of the best event gives both ε and δ in closed form, so an edge is searched for."""
        if self.direction != "remove" or delta <= self.failure:
            return None
        constants = np.log(self.probs) - self.shifts**2 / 2

        def loss(edge: float) -> float:
            exponents = self.shifts * edge + constants
            top = float(exponents.max())
            return top + math.log(float(np.exp(exponents - top).sum()))

        def gap(edge: float) -> float:
            found = float(self.probs @ ndtr(self.shifts - edge)) - math.exp(loss(edge) + float(log_ndtr(-edge)))
            return math.log(found / (delta - self.failure)) if found > 0 else -800.0

        low, high = 0.0, float(self.shifts[-1]) + 40.0
        if gap(low) <= 0:
            return None
        epsilon = loss(root(gap, low, high, 1e-13))
        return (epsilon * (1 - 1e-10), epsilon * (1 + 1e-10)) if epsilon > 0 else None

    def _edge(self, loss: float) -> float:
        """Where the loss is this: it is convex in x, so Newton's steps descend to it from any point above."""
        moving = self.shifts > 0
        shifts, log_probs = self.shifts[moving], np.log(self.probs[moving])
        x = float(np.min((loss - log_probs + shifts**2 / 2) / shifts))
        constants = np.log(self.probs) - self.shifts**2 / 2
        for _ in range(200):
            exponents = self.shifts * x + constants
            top = float(exponents.max())
            parts = np.exp(exponents - top)
            total = float(parts.sum())
            step = (top + math.log(total) - loss) * total / float(self.shifts @ parts)
            x -= step
            if abs(step) <= 1e-13 * (1 + abs(x)):
                break
        return x


@dataclass(frozen=True)
class RevealedCurve(Curve):
    """Σ ρ_j H_ε(N(Δ_j, 1), N(0, 1)): which shift occurred is given away; the same in both directions."""

    shifts: FloatArray
    probs: FloatArray
    failure: float

    def delta(self, epsilon: float) -> float:
        moved = self.shifts > 0
        still = float(self.probs[~moved].sum()) * float(gaussian_delta(0.0, epsilon))
        found = float(self.probs[moved] @ gaussian_delta(self.shifts[moved], epsilon)) + still
        return min(1.0, found * (1 + 1e-12) + self.failure)


@dataclass(frozen=True)
class PairCurve(Curve):
    """All that (ε, δ)-DP alone says, in closed form, alike in both directions. At its own ε and above it is δ, not rounded."""

    epsilon: float
    loss: float
    failure: float

    def delta(self, epsilon: float) -> float:
        found = self.loss + self.failure
        if epsilon < self.epsilon:  # (e^ε₀ − e^ε)/(1 + e^ε₀), and above the rounding of all of it
            found += (1 - self.loss) * -math.expm1(epsilon - self.epsilon) / (1 + math.exp(-self.epsilon))
            found *= 1 + 1e-14
        return min(1.0, found)

    def around(self, delta: float) -> tuple[float, float] | None:
        """The ε of a δ: above it as far as rounding goes, and never above the pair's own ε, where the search would end too."""
        spare = delta - self.failure - self.loss
        if spare < 0:
            return None
        share = spare / (1 - self.loss) * (1 + math.exp(-self.epsilon))
        if share >= 1:
            return None
        found = self.epsilon + math.log1p(-share)
        return (found * (1 - 1e-10), min(found * (1 + 1e-10), self.epsilon)) if found > 0 else None


class RenyiCurve(Curve):
    """δ from Rényi divergences at a fixed set of orders, for laws without a loss distribution."""

    def __init__(self, renyi: Callable[[FloatArray], FloatArray], failure: float) -> None:
        self._orders = 1 + np.geomspace(0.01, 4000, 160)
        self._renyi = renyi(self._orders)
        self._failure = failure

    def delta(self, epsilon: float) -> float:
        log_delta = float(np.min(log_delta_from_renyi(self._orders, self._renyi, epsilon, "tight")))
        return min(1.0, math.exp(min(log_delta, 0.0)) + self._failure)


@dataclass(frozen=True)
class LeastCurve(Curve):
    """The least of several bounds on the same law."""

    curves: tuple[Curve, ...]

    @property
    def lowest(self) -> float:
        return min(curve.lowest for curve in self.curves)

    def delta(self, epsilon: float) -> float:
        return min(curve.delta(epsilon) for curve in self.curves)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        return np.asarray(np.min([curve.deltas(epsilons) for curve in self.curves], axis=0))

    def noise(self, epsilon: float) -> float:
        return min((curve.delta(epsilon), curve.noise(epsilon)) for curve in self.curves)[1]


@dataclass(frozen=True)
class MixtureCurve(Curve):
    """Σ π_i δ_i(ε): the curve of a random selection whose index is published."""

    parts: Sequence[tuple[float, Curve]]

    def around(self, delta: float) -> tuple[float, float] | None:
        return self.parts[0][1].around(delta / self.parts[0][0]) if len(self.parts) == 1 else None

    @property
    def lowest(self) -> float:
        return max(curve.lowest for _, curve in self.parts)

    def delta(self, epsilon: float) -> float:
        """Rounding must not put the sum above what every part stays below: (ε, δ) pairs are asked about at their own δ."""
        deltas = [curve.delta(epsilon) for _, curve in self.parts]
        return min(sum(weight * delta for (weight, _), delta in zip(self.parts, deltas, strict=True)), max(deltas))

    def noise(self, epsilon: float) -> float:
        return sum(weight * curve.noise(epsilon) for weight, curve in self.parts)
