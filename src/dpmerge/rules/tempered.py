"""Tempered selection: draw a model with probability ∝ π_i e^{κu_i}, u_i ∈ [0, 1] its score on public data (docs/theory.md §4).

Given θ_i, the probability to draw i is at most w̄_i = π_i e^κ / (π_i e^κ + 1 − π_i), whatever the other models are, and it
changes by a factor of at most e^{κ_i}, κ_i = log(π_i + (1 − π_i)e^κ), between neighbours. Hence per direction
δ(ε) ≤ Σ w̄_i H_{ε−κ_i}(P_i, Q_i). κ = 0 is random selection; larger κ prefers better models, at a
price that is at most that of joint release of all models with weight.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

from dpmerge.errors import AccountingError, TargetError
from dpmerge.profiles import DIRECTIONS, Conversion, Profile, ShuffleAsPoisson, smallest_epsilon
from dpmerge.records import Weights
from dpmerge.rules.guarantee import By, Guarantee, Target, answer
from dpmerge.rules.joint import Joint
from dpmerge.rules.selection import Selection

DRAWING = 1e-12  # above the rounding of the exponentials by which models are drawn


class Tempered(Selection):
    """Selection that may look at scores, each in [0, 1], through an exponential tilt of strength κ."""

    name = "tempered"

    def __init__(self, weights: Weights, kappa: float, shuffle: ShuffleAsPoisson | None = None) -> None:
        if not (math.isfinite(kappa) and kappa >= 0):
            raise TargetError(f"kappa is {kappa}; it must be finite and not negative")
        super().__init__(weights, shuffle)
        self.kappa = kappa
        tilt = kappa + DRAWING
        self._draws = [[(*_tilt(weight, tilt), profile) for weight, profile in self.draw(place)] for place in self.places.all]

    def delta(self, epsilon: float) -> float:
        """δ at ε: the larger of both directions, at the worst place of a record."""
        worst = 0.0
        for draw in self._draws:
            sums = [0.0, 0.0]
            for share, shift, profile in draw:
                for index, value in enumerate(_delta_at(profile, epsilon - shift)):
                    sums[index] += share * value
            worst = max(worst, *sums)
        return min(1.0, worst)

    def epsilon(self, delta: float) -> float:
        return smallest_epsilon(self.delta, delta, self.kappa + 1.0)

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        if by not in ("best", "pld"):
            raise TargetError(
                f"the accountant {by} does not apply to tempered selection: its bound is on the loss distributions"
            )
        found = answer(target, "pld", self.epsilon, self.delta)
        own = self._build(
            found,
            "tempered-selection",
            self._assumptions,
            self._conditional,
            conversion,
            {"kappa": self.kappa, **self.places.details},
        )
        with contextlib.suppress(AccountingError):  # runs that are not independent have no joint release
            whole = Joint(self.weights, self.shuffle)._guarantee(target, by, conversion)
            if (whole.epsilon, whole.delta) < (own.epsilon, own.delta):
                assumptions = tuple(dict.fromkeys((*own.assumptions, *whole.assumptions)))
                details = {**own.details, "private_side": whole.theorem}
                return replace(whole, theorem=own.theorem, assumptions=assumptions, rule=self.name, details=details)
        return own


def _tilt(weight: float, kappa: float) -> tuple[float, float]:
    """w̄_i and κ_i, written so that no κ overflows."""
    share = weight / (weight + (1 - weight) * math.exp(-kappa))
    return share, kappa + math.log(weight * math.exp(-kappa) + (1 - weight)) if weight < 1 else 0.0


def _delta_at(profile: Profile, epsilon: float) -> tuple[float, float]:
    """Both directions at any real ε: H_ε(P, Q) = 1 − e^ε + e^ε H_{−ε}(Q, P)."""
    if epsilon >= 0:
        return profile.delta(epsilon)
    remove, add = profile.delta(-epsilon)
    assert DIRECTIONS == ("remove", "add")
    factor = math.exp(epsilon)
    return 1 - factor + factor * add, 1 - factor + factor * remove
