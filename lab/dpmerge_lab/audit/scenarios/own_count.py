"""Updates divided by the data's own number of records: under add-remove the divisor tells of the record, too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.rules import Joint
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, even

_RECORDS = 10_000  # without the one in question


@dataclass(frozen=True)
class OwnCount(Game):
    """Full-batch DP-GD that divides each sum by the number of records there are, n or n + 1, instead of a constant.

    Every other record has the gradient +1 and the one in question −1. It moves a mean of gradients by 2/(n + 1): half because
    it takes part, half because the others count for less. dpmerge's theorems take the divisor for a constant (docs/theory.md
    §0): the number of records must be public, or under replace-one and zero-out the same in both worlds.
    """

    steps: int = 16
    noise_multiplier: float = 4.0
    name: str = "own-count"
    about: str = "DP-GD that divides by the number of records it has, where the theorems need a constant"
    delta: float = 1e-5
    trials: int = 1_000_000
    chunk: int = 50_000

    def claims(self, delta: float) -> list[Claim]:
        """What holds for a constant divisor."""
        run = dp_sgd("own-count", self.noise_multiplier, self.steps)
        return [claim("DP-GD, as if the divisor were a constant", Joint(even(run)), delta, "refuted", is_gdp=True)]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The parameter after all steps, whose gradients do not depend on it: the noise adds up to one Gaussian."""
        count, total = (_RECORDS + 1, _RECORDS - 1) if with_record else (_RECORDS, _RECORDS)
        noise = math.sqrt(self.steps) * self.noise_multiplier * generator.standard_normal(trials)
        return -(self.steps * total + noise) / count


def own_count() -> OwnCount:
    """Updates divided by the data's own number of records: the claim for a constant divisor is broken under add-remove."""
    return OwnCount()
