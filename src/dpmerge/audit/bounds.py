"""Lower bounds on ε and μ from how often an event occurs with and without the record, with stated confidence.

An event E ("the record was there") has false positive rate FPR = P_without(E) and false negative rate FNR = P_with(not E). If
the release is (ε, δ)-DP, then 1 − FNR ≤ e^ε FPR + δ and 1 − FPR ≤ e^ε FNR + δ; if it is μ-GDP, then
μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR). All of these need only *upper* limits of the two rates: where the two limits hold, so does every
bound computed from them, at every δ. The event must be chosen without using the counted trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv, ndtri

from dpmerge.profiles import FloatArray

_CANDIDATES = 2_000
_ROUNDING = 1 + 1e-9  # far above the rounding error of the inverse beta function: a limit is never too small


def upper_limit(count: npt.ArrayLike, trials: int, level: float) -> FloatArray:
    """The Clopper–Pearson limit: the smallest p with P[Binomial(trials, p) ≤ count] ≤ level. The true rate exceeds it with
    probability at most `level`.
    """
    seen = np.asarray(count, dtype=np.float64)
    limit = betainccinv(seen + 1, np.maximum(trials - seen, 0.5), level)
    return np.where(seen >= trials, 1.0, np.minimum(limit * _ROUNDING, 1.0))


def epsilon_bound(fpr: npt.ArrayLike, fnr: npt.ArrayLike, delta: float) -> FloatArray:
    """The smallest ε ≥ 0 for which (ε, δ)-DP in both directions allows these rates."""
    false_alarm, miss = np.asarray(fpr, dtype=np.float64), np.asarray(fnr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = np.log(np.maximum(1 - miss - delta, 0.0) / false_alarm)
        backward = np.log(np.maximum(1 - false_alarm - delta, 0.0) / miss)
    return np.maximum(np.maximum(forward, backward), 0.0)


def mu_bound(fpr: npt.ArrayLike, fnr: npt.ArrayLike) -> FloatArray:
    """The smallest μ ≥ 0 for which μ-GDP allows these rates (Dong, Roth, Su 2022, Definition 2.6).

    It refutes every claim of μ′-GDP with μ′ below it. It does not bound ε: a release that is not Gaussian may have a smaller
    ε(δ) than the Gaussian mechanism with this μ.
    """
    return np.asarray(np.maximum(-ndtri(np.asarray(fpr, dtype=np.float64)) - ndtri(np.asarray(fnr, dtype=np.float64)), 0.0))


@dataclass(frozen=True)
class Threshold:
    """The event that a score is at least (`above`) or at most `value`."""

    value: float
    above: bool

    def hits(self, scores: FloatArray) -> int:
        return int(np.count_nonzero(scores >= self.value if self.above else scores <= self.value))

    def __str__(self) -> str:
        return f"score {'≥' if self.above else '≤'} {self.value:.6g}"


Worth = Callable[[FloatArray, FloatArray], FloatArray]  # from upper limits of (FPR, FNR) to the bound that an attack maximises


def best_threshold(with_record: FloatArray, without_record: FloatArray, worth: Worth, level: float) -> Threshold:
    """The threshold, on either side, with the largest bound on these trials. Count it on other trials."""
    ordered = [np.sort(scores) for scores in (with_record, without_record)]
    values = _thinned(np.unique(np.concatenate(ordered)))
    found: list[tuple[float, Threshold]] = []
    for above in (True, False):
        positives = [
            scores.size - np.searchsorted(scores, values, "left") if above else np.searchsorted(scores, values, "right")
            for scores in ordered
        ]
        fnr = upper_limit(with_record.size - positives[0], with_record.size, level)
        fpr = upper_limit(positives[1], without_record.size, level)
        worths = worth(fpr, fnr)
        best = int(np.argmax(worths))
        found.append((float(worths[best]), Threshold(float(values[best]), above)))
    return max(found, key=lambda pair: pair[0])[1]


def _thinned(values: FloatArray) -> FloatArray:
    """At most `_CANDIDATES` of these sorted values: all near both ends, where rare events are, and fewer in the middle."""
    if values.size <= _CANDIDATES:
        return values
    ranks = np.geomspace(1, values.size, _CANDIDATES // 2).astype(np.int64) - 1
    return np.asarray(values[np.unique(np.concatenate([ranks, values.size - 1 - ranks]))])


@dataclass(frozen=True)
class Attack:
    """One event, counted in trials not used to choose it; both limits hold with probability ≥ 1 − 2 level."""

    aim: str
    event: Threshold
    counted: int  # trials of each world
    hits_with: int
    hits_without: int
    level: float

    @classmethod
    def count(cls, aim: str, event: Threshold, with_record: FloatArray, without_record: FloatArray, level: float) -> Attack:
        """Count the event on fresh trials, equally many of each world."""
        if with_record.size != without_record.size:
            raise ValueError("give equally many trials of each world")
        return cls(aim, event, with_record.size, event.hits(with_record), event.hits(without_record), level)

    @property
    def fpr(self) -> float:
        return float(upper_limit(self.hits_without, self.counted, self.level))

    @property
    def fnr(self) -> float:
        return float(upper_limit(self.counted - self.hits_with, self.counted, self.level))

    def epsilon(self, delta: float) -> float:
        return float(epsilon_bound(self.fpr, self.fnr, delta))

    @property
    def mu(self) -> float:
        """The release is not μ′-GDP for any μ′ below this."""
        return float(mu_bound(self.fpr, self.fnr))


def ceiling(counted: int, level: float, delta: float) -> float:
    """Largest lower bound that `counted` plays of each world can prove: that of an attack that never errs."""
    limit = upper_limit(0, counted, level)
    return float(epsilon_bound(limit, limit, delta))
