"""Answer only where the model is sure: how often it is right, against how often it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmerge.errors import EvaluationError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Abstention:
    """For every threshold that makes a difference, the strictest first: the share answered, and the share right of those."""

    thresholds: Floats
    coverage: Floats
    accuracy: Floats

    def at(self, coverage: float) -> float:
        """The accuracy with the strictest threshold that answers at least this share."""
        return float(self.accuracy[self._index(coverage)])

    def thinned(self, points: int = 100) -> Abstention:
        """At most this many evenly spaced shares, for a picture: the strictest threshold that answers each."""
        kept = sorted({self._index(share) for share in np.linspace(1 / points, 1, points)})
        return Abstention(self.thresholds[kept], self.coverage[kept], self.accuracy[kept])

    def _index(self, coverage: float) -> int:
        # Shares are counts divided by their total: a share asked for as a decimal may exceed its own by rounding.
        return int(np.searchsorted(self.coverage, min(coverage, 1.0) - 1e-12))


def abstention_curve(doubts: npt.ArrayLike, correct: npt.ArrayLike) -> Abstention:
    """Answer where the doubt is at most a threshold, for every threshold; examples of equal doubt are answered together."""
    doubt, right = np.asarray(doubts, dtype=np.float64), np.asarray(correct, dtype=bool)
    if doubt.ndim != 1 or doubt.shape != right.shape or not len(doubt):
        raise EvaluationError(f"one doubt and one verdict for each example are needed; got {doubt.shape} and {right.shape}")
    if not np.isfinite(doubt).all():
        raise EvaluationError("a doubt is not finite")
    order = np.argsort(doubt, kind="stable")
    ordered = doubt[order]
    last = np.append(ordered[1:] != ordered[:-1], True)  # of its group of equals
    answered = np.arange(1, len(doubt) + 1)
    rightly = np.cumsum(right[order])
    return Abstention(ordered[last], answered[last] / len(doubt), rightly[last] / answered[last])
