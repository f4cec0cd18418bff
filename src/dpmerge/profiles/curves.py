"""δ as a function of ε in one direction: what a profile answers with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpmerge.profiles.arrays import FloatArray
from dpmerge.profiles.compose import ComposedLoss
from dpmerge.profiles.gaussian import gaussian_delta
from dpmerge.profiles.renyi import log_delta_from_renyi


class Curve(Protocol):
    """An upper bound on δ as a function of ε ≥ 0; below `lowest` it only says 1."""

    @property
    def lowest(self) -> float:
        """Where its knowledge begins."""

    def delta(self, epsilon: float) -> float:
        """The bound."""

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """The bound at many ε."""

    def noise(self, epsilon: float) -> float:
        """How much of the bound is allowance for rounding."""


class _NoiselessCurve:
    """Known everywhere, and nothing in it is allowance for rounding."""

    lowest = 0.0

    def noise(self, epsilon: float) -> float:
        """None."""
        return 0.0


@dataclass(frozen=True)
class ConstantCurve(_NoiselessCurve):
    """The same at every ε."""

    value: float

    def delta(self, epsilon: float) -> float:
        """The bound."""
        return self.value

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """The bound at many ε."""
        return np.full(epsilons.shape, self.value)


@dataclass(frozen=True)
class GaussianCurve(_NoiselessCurve):
    """μ-GDP, in closed form."""

    mu: float
    failure: float

    def delta(self, epsilon: float) -> float:
        """The bound."""
        return min(1.0, float(gaussian_delta(self.mu, epsilon)) + self.failure)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """The bound at many ε."""
        return np.minimum(1.0, gaussian_delta(self.mu, epsilons) + self.failure)


class RenyiCurve(_NoiselessCurve):
    """δ from Rényi divergences at a fixed set of orders, for laws without a loss distribution."""

    def __init__(self, renyi: Callable[[FloatArray], FloatArray], failure: float) -> None:
        self._orders = 1 + np.geomspace(0.01, 4000, 160)
        self._renyi = renyi(self._orders)
        self._failure = failure

    def delta(self, epsilon: float) -> float:
        """The bound."""
        log_delta = float(np.min(log_delta_from_renyi(self._orders, self._renyi, epsilon, "tight")))
        return min(1.0, math.exp(min(log_delta, 0.0)) + self._failure)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """The bound at many ε."""
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons])


@dataclass(frozen=True)
class LossCurve:
    """From a composed privacy loss distribution."""

    composed: ComposedLoss
    failure: float

    @property
    def lowest(self) -> float:
        """Where its knowledge begins."""
        return self.composed.lowest

    def delta(self, epsilon: float) -> float:
        """The bound."""
        return min(1.0, self.composed.delta(epsilon) + self.failure)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """The bound at many ε."""
        return np.minimum(1.0, self.composed.deltas(epsilons) + self.failure)

    def noise(self, epsilon: float) -> float:
        """What of it is allowance for rounding."""
        return self.composed.noise(epsilon)


@dataclass(frozen=True)
class LeastCurve:
    """The least of several bounds on the same law."""

    curves: tuple[Curve, ...]

    @property
    def lowest(self) -> float:
        """Where the first of them begins to know something."""
        return min(curve.lowest for curve in self.curves)

    def delta(self, epsilon: float) -> float:
        """The bound."""
        return min(curve.delta(epsilon) for curve in self.curves)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """The bound at many ε."""
        return np.asarray(np.min([curve.deltas(epsilons) for curve in self.curves], axis=0))

    def noise(self, epsilon: float) -> float:
        """What of it is allowance for rounding."""
        return min((curve.delta(epsilon), curve.noise(epsilon)) for curve in self.curves)[1]
