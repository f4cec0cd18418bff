"""Abstention: accuracy against coverage if the model answers only where it is sure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmerge.errors import EvaluationError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Abstention:
    """For every distinct threshold, strictest first: the share of examples answered, and the accuracy on those."""

    thresholds: Floats
    coverage: Floats
    accuracy: Floats

    def at(self, coverage: float) -> float:
        """Accuracy at the strictest threshold with at least this coverage."""
        return float(self.accuracy[self._index(coverage)])

    def thinned(self, points: int = 100) -> Abstention:
        """For a figure: the strictest thresholds for at most `points` evenly spaced coverages."""
        kept = sorted({self._index(share) for share in np.linspace(1 / points, 1, points)})
        return Abstention(self.thresholds[kept], self.coverage[kept], self.accuracy[kept])

    def _index(self, coverage: float) -> int:
        # Shares are counts divided by their total: the same share as a decimal may be larger by rounding.
        return int(np.searchsorted(self.coverage, min(coverage, 1.0) - 1e-12))


def abstention_curve(doubts: npt.ArrayLike, correct: npt.ArrayLike) -> Abstention:
    """The model answers where the doubt is at most a threshold; examples with equal doubt are answered together."""
    doubt, right = np.asarray(doubts, dtype=np.float64), np.asarray(correct, dtype=bool)
    if doubt.ndim != 1 or doubt.shape != right.shape or not len(doubt):
        raise EvaluationError(f"every example needs one doubt and one verdict; got shapes {doubt.shape} and {right.shape}")
    if not np.isfinite(doubt).all():
        raise EvaluationError("a doubt is not finite")
    order = np.argsort(doubt, kind="stable")
    ordered = doubt[order]
    last = np.append(ordered[1:] != ordered[:-1], True)  # the last of each group of equal doubts
    answered = np.arange(1, len(doubt) + 1)
    rightly = np.cumsum(right[order])
    return Abstention(ordered[last], answered[last] / len(doubt), rightly[last] / answered[last])
