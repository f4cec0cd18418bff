"""A choice by scores on a *private* validation set: what it costs the set's own records (docs/theory.md §4).

The D side is the guarantee of another rule that allows looking (joint release, tempered selection); the validation set V
pays ε_V for the noisy choice. Disjoint from D, no record is in both, and the larger of the two counts; otherwise they add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpmerge.errors import TargetError
from dpmerge.profiles.renyi import Conversion
from dpmerge.records import Adjacency
from dpmerge.rules.guarantee import By, Guarantee, Rule, Target
from dpmerge.rules.tempered import DRAWING
from dpmerge.rules.theorems import THEOREMS


@dataclass(frozen=True)
class Validation:
    """A private validation set: how many records it has at most, and whether none of them was trained on."""

    records: int
    disjoint: bool

    def tempered_epsilon(self, kappa: float, adjacency: Adjacency) -> float:
        """ε_V of a tempered draw whose scores are fractions of right answers: one record moves every score by 1/n.

        All in one direction when it is added or removed; in both when it is replaced.
        """
        return (2 if adjacency == "replace-one" else 1) * kappa / self.records


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
        size, own = self._validation.records, self._epsilon
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
                f"scores are fractions of right answers on a private validation set of {size} records",
                overlap,
            ),
            details={**found.details, "validation_epsilon": own, "private_side": found.theorem},
        )


def _pure_delta(own: float, epsilon: float) -> float:
    """The largest δ of an `own`-DP mechanism at a smaller ε, that of randomised response: (e^own − e^ε)/(e^own + 1)."""
    return max(0.0, -math.expm1(epsilon - own) / (1 + math.exp(-own)))
