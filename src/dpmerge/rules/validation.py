"""A choice by scores on a *private* validation set: what it costs the set's own records (docs/theory.md §4).

The D side is the guarantee of tempered selection (or, in the ledger, of all models that have leaked); the validation set V pays
ε_V for the draw by its scores. Disjoint from D, no record is in both, and the larger of the two counts; otherwise they add.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from dpmerge.errors import TargetError
from dpmerge.profiles import Conversion
from dpmerge.records import Adjacency
from dpmerge.rules.guarantee import By, Guarantee, Rule, Target
from dpmerge.rules.tempered import DRAWING
from dpmerge.rules.theorems import THEOREMS


@dataclass(frozen=True)
class Validation:
    """A private validation set: by what right answers are divided, and whether none of its records was trained on.

    The divisor is a public constant, or else the number of records, which moves when one is added or removed.
    """

    divisor: int
    disjoint: bool
    constant: bool = False

    def tempered_epsilon(self, kappa: float, adjacency: Adjacency) -> float:
        """ε_V of a tempered draw whose scores are right answers/divisor: one record moves every score by 1/divisor at most.

        All in one direction where a record is added, removed or zeroed and the divisor stays; in both otherwise.
        """
        both = adjacency == "replace-one" or (adjacency == "add-remove" and not self.constant)
        return (2 if both else 1) * kappa / self.divisor

    def tempered_kappa(self, epsilon: float, adjacency: Adjacency) -> float:
        """The strength κ of the draw that costs the set's records this ε."""
        return epsilon / self.tempered_epsilon(1.0, adjacency)

    def exact(self, scores: Iterable[float]) -> tuple[Fraction, ...] | None:
        """The scores as exact fractions of the divisor; None if they are not such fractions."""
        pairs = [(score, Fraction(round(score * self.divisor), self.divisor)) for score in scores]
        close = all(abs(score - exact) * self.divisor <= 1e-6 for score, exact in pairs)
        return tuple(exact for _, exact in pairs) if close else None

    @property
    def assumption(self) -> str:
        """As it is printed."""
        if self.constant:
            return f"scores are right answers on a private validation set, divided by {self.divisor}, a public constant"
        return (
            f"scores are fractions of right answers on a private validation set of {self.divisor} records, and that number "
            "is public"
        )


class Validated(Rule):
    """A rule that allows looking, and a choice by scores on a private validation set that costs it `epsilon`."""

    def __init__(self, rule: Rule, validation: Validation, epsilon: float) -> None:
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise TargetError(f"the validation set's epsilon is {epsilon}; it must be finite and not negative")
        self.name = rule.name
        self.weights = rule.weights
        self.looked_at = rule.looked_at
        self._rule = rule
        self._validation = validation
        self._epsilon = epsilon + DRAWING

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        own = self._epsilon
        if target.delta is not None:
            found = self._rule.guarantee(delta=target.delta, by=by, conversion=conversion)
            epsilon = max(found.epsilon, own) if self._validation.disjoint else found.epsilon + own
            return self._with_own_cost(replace(found, epsilon=epsilon))
        assert target.epsilon is not None
        if self._validation.disjoint:
            found = self._rule.guarantee(epsilon=target.epsilon, by=by, conversion=conversion)
            return self._with_own_cost(replace(found, delta=max(found.delta, _pure_delta(own, target.epsilon))))
        if target.epsilon < own:
            found = self._rule.guarantee(epsilon=0.0, by=by, conversion=conversion)
            return self._with_own_cost(replace(found, epsilon=target.epsilon, delta=1.0))
        found = self._rule.guarantee(epsilon=target.epsilon - own, by=by, conversion=conversion)
        return self._with_own_cost(replace(found, epsilon=target.epsilon))

    def _with_own_cost(self, found: Guarantee) -> Guarantee:
        own = self._epsilon
        inner = [text for text in found.assumptions if text not in THEOREMS["tempered-selection"].assumptions[2:3]]
        overlap = (
            "no record of the private dataset is in the validation set"
            if self._validation.disjoint
            else "a record may be in the private dataset and in the validation set"
        )
        return replace(
            found,
            theorem="private-validation",
            assumptions=(
                *THEOREMS["private-validation"].assumptions,
                *inner,
                self._validation.assumption,
                overlap,
            ),
            details={**found.details, "validation_epsilon": own, "private_side": found.theorem},
        )


def _pure_delta(own: float, epsilon: float) -> float:
    """The largest δ of an `own`-DP mechanism at a smaller ε, that of randomised response: (e^own − e^ε)/(e^own + 1)."""
    return max(0.0, -math.expm1(epsilon - own) / (1 + math.exp(-own)))
