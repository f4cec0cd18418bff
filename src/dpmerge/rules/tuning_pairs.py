"""What the price of tuning asks of one run: its hockey-stick divergences, and how likely its events can become.

One direction of a dominating pair (P, Q) of the base mechanism, for all real ε. Both answers are upper bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from dpmerge.profiles import DIRECTIONS, ApproxDpLaw, Direction, FloatArray, Profile, gaussian_delta

_TAIL = 1e-12  # curves are tabulated up to an ε where δ is this small (or as small as it becomes)
_KNOTS = 2000
_AT_ONCE = 400


class Pair(Protocol):
    """(P, Q), seen from P."""

    @property
    def reach(self) -> float:
        """An ε beyond which H_ε(P, Q) no longer matters."""

    def hockey_stick(self, epsilons: FloatArray) -> FloatArray:
        """At least H_ε(P, Q)."""

    def largest(self, share: FloatArray) -> FloatArray:
        """At least T(x) = sup Q(E) over events with P(E) ≤ x."""


@dataclass(frozen=True)
class GaussianPair:
    """N(μ, 1) against N(0, 1), the same in both directions."""

    mu: float

    @property
    def reach(self) -> float:
        """From the bound Φ(−z) ≤ e^{−z²/2}."""
        return self.mu**2 / 2 + self.mu * math.sqrt(-2 * math.log(_TAIL))

    def hockey_stick(self, epsilons: FloatArray) -> FloatArray:
        """In closed form; capped where it is 0 or 1 to every digit."""
        return gaussian_delta(self.mu, np.clip(epsilons, -1e4, self.reach + 1e4))

    def largest(self, share: FloatArray) -> FloatArray:
        """Φ(Φ⁻¹(x) + μ), by Neyman and Pearson."""
        return np.asarray(np.minimum(1.0, ndtr(ndtri(share) + self.mu) * (1 + 1e-13)))


@dataclass(frozen=True)
class ProfilePair:
    """One direction of any profile, from its δ(ε) at finitely many ε.

    H is convex in e^ε, so chords in e^ε lie above it; and Q(E) ≤ e^ε P(E) + H_ε(Q, P) for every ε (docs/theory.md §7).
    """

    profile: Profile
    direction: Direction

    @cached_property
    def reach(self) -> float:
        """Through Rényi moments; an (ε, δ) pair has all its finite losses within its ε."""
        pairs = [(law, count) for law, count in self.profile.factors if isinstance(law, ApproxDpLaw)]
        others = Profile(tuple(factor for factor in self.profile.factors if not isinstance(factor[0], ApproxDpLaw)))
        return sum(law.epsilon * count for law, count in pairs) + others.epsilon_by_renyi(_TAIL)

    def hockey_stick(self, epsilons: FloatArray) -> FloatArray:
        """Chords between the knots; beyond the last one, its value."""
        ratios, values = self._table[0]
        return np.asarray(np.interp(np.exp(np.minimum(epsilons, self.reach)), ratios, values))

    def largest(self, share: FloatArray) -> FloatArray:
        """The least of all lines e^ε x + H_ε(Q, P)."""
        ratios, values = self._table[1]
        pieces = [share[start : start + _AT_ONCE] for start in range(0, share.size, _AT_ONCE)]
        lines = [np.min(np.multiply.outer(piece, ratios) + values, axis=1) for piece in pieces]
        return np.asarray(np.minimum(1.0, np.concatenate(lines)))

    @cached_property
    def _table(self) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """(e^ε, H_ε) over real ε, of (P, Q) and of (Q, P)."""
        knots = np.linspace(0.0, self.reach, _KNOTS)
        there, back = (
            self.profile.wide_curve(direction, 0.0, self.reach, _TAIL).deltas(knots)
            for direction in (self.direction, DIRECTIONS[1 - DIRECTIONS.index(self.direction)])
        )
        return _over_reals(knots, there, back), _over_reals(knots, back, there)


def _over_reals(knots: FloatArray, there: FloatArray, back: FloatArray) -> tuple[FloatArray, FloatArray]:
    """H_{−ε}(P, Q) = 1 − e^{−ε} + e^{−ε} H_ε(Q, P), and H_{−∞} = 1."""
    ratios = np.exp(-knots[:0:-1])
    negative = 1 - ratios + ratios * back[:0:-1]
    return np.concatenate(([0.0], ratios, np.exp(knots))), np.concatenate(([1.0], negative, there))


def pairs_of(profile: Profile) -> tuple[Pair, ...]:
    """The directions that have to be looked at: one for a Gaussian, whose directions are the same."""
    if profile.mu is not None:
        return (GaussianPair(profile.mu),)
    return tuple(ProfilePair(profile, direction) for direction in DIRECTIONS)
