"""More noise on a release that was rounded before: a step between the two noises that may drive copies apart (§9.8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmerge.profiles import ShiftLaw

_ABOVE = 1 + 1e-12  # above the rounding of a few operations


@dataclass(frozen=True)
class Rounding:
    """What lies between the first noise of a release and the `added` one: its file is within `distance` of the real numbers."""

    distance: float
    added: float

    def applied(self, law: ShiftLaw, noise: float) -> ShiftLaw:
        """The law of M, given the one that would hold for both noises together, `noise`, without rounding between them."""
        extra = 4 * self.distance * law.values / noise + (2 * self.distance / self.added) ** 2
        values = np.where(law.values > 0, np.sqrt(law.values**2 + extra) * _ABOVE, 0.0)
        return ShiftLaw(values, law.probs, law.excess)
