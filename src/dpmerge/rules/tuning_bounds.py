"""The two proved prices of releasing the best of K runs: by Rényi divergences, and by the whole curve of one run.

docs/theory.md §7, "tuning-rdp" (Papernot and Steinke 2022, Thm 2 and 6) and "tuning-profile". Of one run both ask its
hockey-stick divergences and how likely its events can become, in one direction of a dominating pair (P, Q), for all real ε.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from dpmerge.profiles import (
    DIRECTIONS,
    ORDERS,
    ApproxDpLaw,
    Direction,
    FloatArray,
    Profile,
    best_order,
    epsilon_from_renyi,
    gaussian_delta,
    smallest_epsilon,
)
from dpmerge.rules.tuning_trials import Poisson, Trials, TruncatedNegativeBinomial

_TAIL = 1e-12  # curves are tabulated up to an ε where δ is this small (or as small as it becomes)
_KNOTS = 2000
_AT_ONCE = 400
_FINE, _COARSE = 20_000, 1_500
_NEGLIGIBLE = 1e-8  # of δ: shares of runs beyond which all are lumped together
_CHARGES = 11  # tried at once, in three rounds
_LARGEST_EXPONENT = 690.0
_ROUNDING = 1e-9  # relative, far above what sums of positive numbers lose


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
    """One pair for each direction; a single one for a Gaussian, whose directions agree."""
    if profile.mu is not None:
        return (GaussianPair(profile.mu),)
    return tuple(ProfilePair(profile, direction) for direction in DIRECTIONS)


def renyi_epsilon(profile: Profile, pairs: Sequence[Pair], trials: Trials, delta: float) -> float:
    """ε at δ by Papernot and Steinke's theorems and the tight conversion; infinite where one run has no Rényi divergence."""
    if not profile.is_private or not profile.has_renyi or profile.failure > 0:
        return math.inf

    def objective(orders: FloatArray) -> FloatArray:
        return epsilon_from_renyi(orders, tuned_renyi(profile, pairs, trials, orders), delta, "tight")

    return max(0.0, best_order(objective, profile.stated_orders)[1])


def tuned_renyi(profile: Profile, pairs: Sequence[Pair], trials: Trials, orders: FloatArray) -> FloatArray:
    """D_α of the best of K runs."""
    alone = profile.renyi(orders)
    if isinstance(trials, Poisson):
        # Thm 6, with the exact δ̂ of the base at ε̂ = log(1 + 1/(α−1)), and with the outcome "no run" added to the moment.
        hatted = np.max([pair.hockey_stick(np.log1p(1 / (orders - 1))) for pair in pairs], axis=0)
        moment = math.log(trials.mean) + (orders - 1) * (alone + trials.mean * hatted)
        return np.asarray(np.logaddexp(-trials.mean, moment) / (orders - 1))
    assert isinstance(trials, TruncatedNegativeBinomial)
    # Thm 2: the second order α̂ is free.
    known = ORDERS if profile.stated_orders is None else np.concatenate((ORDERS, profile.stated_orders))
    ratio = float(np.min((1 - 1 / known) * profile.renyi(known) - trials.log_gamma / known))
    ratio = min(ratio, -trials.log_gamma)  # α̂ = 1
    return np.asarray(alone + (1 + trials.shape) * ratio + math.log(trials.mean) / (orders - 1))


def profile_epsilon(pair: Pair, trials: Trials, delta: float, guess: float) -> float:
    """ε at δ in one direction by the theorem "tuning-profile", with the better of two kinds of charges φ.

    φ = 0, or φ(x) = (w(x) − e^r w(T(x)))₊ with the r that suits coarse cells best. Either is valid.
    """
    guess = guess if math.isfinite(guess) else 10.0
    coarse, fine = (_Cells.of(pair, trials, delta, count) for count in (_COARSE, _FINE))
    found = coarse.bound(guess).epsilon(delta, guess)
    best = fine.bound(min(found, 1e3)).epsilon(delta, guess)
    if not math.isfinite(found) or found == 0:
        return best

    def charged(r: float) -> float:
        return coarse.bound(found, r).epsilon(delta, found)

    low, high = 0.0, found
    for _ in range(3):
        grid = np.linspace(low, high, _CHARGES)
        values = [charged(r) for r in grid.tolist()]
        nearest = int(np.argmin(values))
        low, high = float(grid[max(0, nearest - 1)]), float(grid[min(nearest + 1, _CHARGES - 1)])
    if values[nearest] < found * (1 - 1e-3):
        best = min(best, fine.bound(values[nearest], float(grid[nearest])).epsilon(delta, found))
    return best


@dataclass(frozen=True)
class _Bound:
    """δ(ε) ≤ m · ( ∫φ + Σ_j c_j H_{ε + log t_j}(P, Q) )."""

    pair: Pair
    mean: float
    charged: float
    increments: FloatArray
    log_thresholds: FloatArray

    def delta(self, epsilon: float) -> float:
        sticks = self.pair.hockey_stick(epsilon + self.log_thresholds)
        return min(1.0, self.mean * (self.charged + float(self.increments @ sticks)) * (1 + _ROUNDING))

    def epsilon(self, delta: float, guess: float) -> float:
        return smallest_epsilon(self.delta, delta, guess)


@dataclass(frozen=True)
class _Cells:
    """The shares x from 0 to 1 in cells; on each, w(x) at its largest and w(T(x)) at its smallest, so that bounds go up."""

    pair: Pair
    mean: float
    widths: FloatArray
    decays: FloatArray
    log_others: FloatArray

    @classmethod
    def of(cls, pair: Pair, trials: Trials, delta: float, count: int) -> _Cells:
        """Cells over which log w(x) + log w(T(x)) falls by equal steps, until w(x) is negligible."""
        shares = np.concatenate(([0.0], np.geomspace(1e-15, 1.0, 4000)))
        relevant = int(np.searchsorted(-trials.log_decay(shares), math.log(trials.mean / (_NEGLIGIBLE * delta))))
        shares = shares[: relevant + 1]
        travelled = -trials.log_decay(shares) - trials.log_decay(pair.largest(shares))
        steps = np.linspace(travelled[0], travelled[-1], count + 1)
        edges = np.unique(np.concatenate(([0.0], np.interp(steps, travelled, shares), [1.0])))
        decays, log_others = trials.log_decay(edges[:-1]), trials.log_decay(pair.largest(edges[1:]))
        return cls(pair, trials.mean, np.diff(edges), np.exp(decays), log_others)

    def bound(self, around: float, charge: float | None = None) -> _Bound:
        """With φ = 0, or φ(x) = (w(x) − e^r w(T(x)))₊ for r = `charge`. Valid for every ε, precise around one.

        The thresholds of the supremum over cells grow like e^ε, so those at `around` say all of them.
        """
        charges = np.zeros(1) if charge is None else np.maximum(0.0, self.decays - _exp(charge + self.log_others))
        increments, thresholds = _envelope(self.decays - charges, _exp(around + self.log_others))
        with np.errstate(divide="ignore"):
            log_thresholds = np.log(thresholds) - around
        return _Bound(self.pair, self.mean, float(np.sum(charges * self.widths)), increments, log_thresholds)


def _exp(exponents: FloatArray) -> FloatArray:
    """Rounded down where it would overflow: what is subtracted may be smaller."""
    with np.errstate(under="ignore"):
        return np.exp(np.minimum(exponents, _LARGEST_EXPONENT))


def _envelope(slopes: FloatArray, intercepts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """max(0, max_i s_iΛ − b_i) as Σ_j c_j (Λ − t_j)₊ with c_j > 0: the increments c and the thresholds t, increasing."""
    order = np.lexsort((intercepts, slopes))
    kept_slopes, kept_intercepts = [0.0], [0.0]
    thresholds: list[float] = []
    for slope, intercept in zip(slopes[order].tolist(), intercepts[order].tolist(), strict=True):
        if slope <= kept_slopes[-1]:
            continue  # the same slope with a smaller intercept came first
        while thresholds and intercept - kept_intercepts[-1] <= thresholds[-1] * (slope - kept_slopes[-1]):
            for kept in (kept_slopes, kept_intercepts, thresholds):
                kept.pop()
        thresholds.append((intercept - kept_intercepts[-1]) / (slope - kept_slopes[-1]))
        kept_slopes.append(slope)
        kept_intercepts.append(intercept)
    return np.diff(kept_slopes), np.array(thresholds)
