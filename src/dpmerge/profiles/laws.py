"""The laws that need no inversion of their own: Gaussian steps, revealed coins, (ε, δ) pairs, Rényi curves, no privacy.

Everything is normalised to unit noise, so nothing depends on the scale of gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit, logsumexp

from dpmerge.errors import UnsupportedMechanism
from dpmerge.profiles.grids import Direction, FloatArray, spend
from dpmerge.profiles.law import Law, LossPmf, connect_dots
from dpmerge.profiles.pairs import MixtureLaw, ShiftMixture


@dataclass(frozen=True)
class GaussianLaw(Law):
    """N(μ, 1) against N(0, 1). Compositions of these are again one of these."""

    mu: float

    def bounded(self) -> tuple[Law | None, float]:
        """A closed form needs no bound for a grid; values that would overflow count as no privacy."""
        return (self, 0.0) if self.mu < 1e100 else (None, 1.0)

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        return orders * (orders - 1) * self.mu**2 / 2

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """By the general construction, with the inverse in closed form."""
        return MixtureLaw((self.mu,), (1.0,)).pmf(direction, interval, tail)

    def loss_variance(self) -> float:
        return self.mu**2


class RevealedShiftLaw(ShiftMixture):
    """The pair (J, N(D_J, 1)) against (J, N(0, 1)): the coins are given away (theory "replace-one-window")."""

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """log Σ ρ_J e^{α(α−1)D_J²/2}, kept precise where it is small."""
        exponents = np.multiply.outer(orders * (orders - 1) / 2, np.square(self.shifts))
        plain = logsumexp(exponents, axis=1, b=np.array(self.probs))
        with np.errstate(over="ignore"):
            precise = np.log1p(np.expm1(exponents) @ np.array(self.probs))
        return np.asarray(np.where(plain < 0.5, precise, plain) * (1 + 1e-12))

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """The mixture of the Gaussians' own loss distributions, which are the same in both directions."""
        return _revealed_pmf(self, interval, tail)

    def loss_variance(self) -> float:
        """The law of total variance with means D²/2 and variances D²."""
        squares, probs = np.square(self.shifts), np.array(self.probs)
        return float(probs @ squares + probs @ (squares / 2) ** 2 - (probs @ squares / 2) ** 2)


@dataclass(frozen=True)
class ApproxDpLaw(Law):
    """The canonical pair of an (ε, δ)-DP mechanism (Kairouz, Oh and Viswanath 2015)."""

    epsilon: float
    delta: float

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """Infinite unless δ = 0; then randomised response's."""
        if self.delta > 0:
            return np.full(orders.shape, math.inf)
        return self.finite_log_moment(orders, direction)

    def finite_log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        keep, flip = -np.logaddexp(0, -self.epsilon), -np.logaddexp(0, self.epsilon)
        return np.asarray(np.logaddexp(keep + (orders - 1) * self.epsilon, flip - (orders - 1) * self.epsilon))

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """Losses ±ε, each split between its two neighbours on the grid."""
        likely, rare = (1 - self.delta) * float(expit(self.epsilon)), (1 - self.delta) * float(expit(-self.epsilon))
        reach = math.floor(self.epsilon / interval) + 1
        spend(2 * reach)
        upper_mass, lower_mass = np.zeros(2 * reach), np.zeros(2 * reach)
        for loss, up, down in ((self.epsilon, likely, rare), (-self.epsilon, rare, likely)):
            cell = min(max(math.floor(loss / interval) + reach, 0), 2 * reach - 1)
            upper_mass[cell] += up
            lower_mass[cell] += down
        slack = 4e-16 * (1 + self.epsilon)
        return connect_dots(interval, -reach, upper_mass, lower_mass, np.full(2 * reach, 1e-15), 0.0, self.delta, slack)

    def loss_variance(self) -> float:
        return self.epsilon**2


@dataclass(frozen=True)
class RenyiLaw(Law):
    """Only Rényi divergences are known: (α−1)·D_α at `orders`, the same in both directions."""

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """(α−1)D_α is convex in α and 0 at α = 1, so straight lines between known orders lie above it; ∞ beyond them."""
        known = np.concatenate(([1.0], self.orders))
        moments = np.concatenate(([0.0], (np.array(self.orders) - 1) * np.array(self.values)))
        return np.where(orders > known[-1], math.inf, np.interp(orders, known, moments))

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        raise UnsupportedMechanism(
            "only a Rényi curve is known, so there is no privacy loss distribution; use the accountant rdp"
        )

    def loss_variance(self) -> float:
        """Never used: this law has no grid."""
        return 0.0


@dataclass(frozen=True)
class NonPrivateLaw(Law):
    """No privacy: H_ε ≡ 1."""

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        return np.full(orders.shape, math.inf)

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        return LossPmf(interval, 0, np.zeros(1), 1.0)

    def loss_variance(self) -> float:
        """Never used: profiles that contain this law answer without a grid."""
        return 0.0


@lru_cache(maxsize=64)
def _revealed_pmf(law: RevealedShiftLaw, interval: float, tail: float) -> LossPmf:
    still = sum(prob for shift, prob in zip(law.shifts, law.probs, strict=True) if shift == 0)
    parts = [
        (prob, GaussianLaw(shift).pmf("remove", interval, tail))
        for shift, prob in zip(law.shifts, law.probs, strict=True)
        if shift > 0
    ]
    lower = min([0, *(part.lower for _, part in parts)])
    upper = max([0, *(part.lower + part.probs.size - 1 for _, part in parts)])
    probs = np.zeros(upper - lower + 1)
    probs[-lower] += still
    for prob, part in parts:
        start = part.lower - lower
        probs[start : start + part.probs.size] += prob * part.probs
    infinity = sum(prob * part.infinity for prob, part in parts)
    return LossPmf(interval, lower, probs, infinity, max([0.0, *(part.loss_slack for _, part in parts)]))
