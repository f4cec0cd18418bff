"""Uncertainty of a private model's predictions: the spread of scores over checkpoints of one run, or over runs.

An estimator, not a guarantee: docs/theory.md §7 states its theorem's assumptions, and which of them cannot be checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from dpmerge.errors import CheckpointError, EvaluationError, WeightsError
from dpmerge.records import WEIGHT_SUM_TOLERANCE

Floats = npt.NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """One row for each example: the label with the largest mean score, that score, and the width of its interval."""

    labels: npt.NDArray[np.int64]
    scores: Floats
    widths: Floats
    models: int
    confidence: float

    @property
    def mean_width(self) -> float:
        return float(self.widths.mean())


def variance_estimate(values: npt.ArrayLike, weights: Sequence[float] | None = None) -> Any:
    """S, an estimate of Var(Σ p_i f(θ_{t_i})): the values f(θ_{t_i}) are along the first axis.

    Thm A.1 of Recycling Scraps. Equal weights p estimate the variance of the mean; all weight on the last, that of the last
    value alone (Thm 5.1 there).
    """
    array = np.asarray(values, dtype=np.float64)
    _require_two(len(array))
    deviations = array - array.mean(axis=0)
    return _squares(weights, len(array)) * np.sum(deviations**2, axis=0) / (len(array) - 1)


def interval_widths(variance: npt.ArrayLike, models: int, confidence: float = CONFIDENCE) -> Any:
    """2·t·√S with Student's quantile for `models` − 1 degrees of freedom.

    Recycling Scraps (§5.1.3) names no distribution. Student's is the exact one for equal weights if the scores are independent
    and normal.
    """
    _require_confidence(confidence)
    _require_two(models)
    return 2 * stdtrit(models - 1, (1 + confidence) / 2) * np.sqrt(np.asarray(variance, dtype=np.float64))


def uncertainty(
    scores: Iterable[npt.ArrayLike], weights: Sequence[float] | None = None, confidence: float = CONFIDENCE
) -> Uncertainty:
    """Labels, scores and widths from each model's scores (examples × classes); one model's scores are in memory at a time.

    The label is that of the largest Σ p_i score_i, the smallest such label if there are several; the width is that of the
    interval around that score (Recycling Scraps §5.1.3). Without weights, all models count equally.
    """
    _require_confidence(confidence)
    count = 0
    for given in scores:
        said = _checked(given, count + 1)
        if count == 0:
            mean, squares, combined = np.zeros_like(said), np.zeros_like(said), np.zeros_like(said)
        elif said.shape != mean.shape:
            raise EvaluationError(
                f"model {count + 1} has scores of shape {said.shape}, the first of shape {mean.shape}; "
                "all must have the same examples and classes"
            )
        count += 1
        if weights is not None:
            if count > len(weights):
                raise WeightsError(f"more models than the {len(weights)} weights given")
            combined += weights[count - 1] * said
        change = said - mean
        mean += change / count
        squares += change * (said - mean)  # Welford: no difference of large numbers
    _require_two(count)
    factor = _squares(weights, count)
    score = mean if weights is None else combined
    labels = score.argmax(axis=1)
    rows = np.arange(len(labels))
    widths = interval_widths(factor * squares[rows, labels] / (count - 1), count, confidence)
    return Uncertainty(labels.astype(np.int64), score[rows, labels], widths, count, confidence)


def chosen_steps(
    steps: Sequence[int], *, last: int | None = None, burn_in: int | None = None, separation: int | None = None
) -> list[int]:
    """Steps of the checkpoints to use, in order: the last `last`, none before step `burn_in`, `separation` steps apart.

    Steps are counted back from the run's last checkpoint, which is always used. A missing checkpoint is an error, and never
    replaced by a neighbour.
    """
    _require_positive(("last", last, 2), ("burn_in", burn_in, 0), ("separation", separation, 1))
    kept = sorted(set(steps))
    if not kept:
        raise CheckpointError("the run has no checkpoints")
    final, first = kept[-1], 0 if burn_in is None else burn_in
    if first > final:
        raise CheckpointError(f"the burn-in of {first} steps is longer than the run, which ends at step {final}")
    if separation is None:
        wanted = [step for step in kept if step >= first]
    else:
        wanted = list(range(final, max(first, kept[0]) - 1, -separation))[::-1]
    wanted = wanted if last is None else wanted[-last:]
    missing = [step for step in wanted if step not in kept]
    if missing:
        raise CheckpointError(
            f"a separation of {separation} steps needs the checkpoint of step {missing[-1]}, which is missing; "
            f"choose a multiple of the distance between checkpoints"
        )
    where = f"from step {first} to {final}" + (f", {separation} steps apart" if separation is not None else "")
    if last is not None and len(wanted) < last:
        raise CheckpointError(f"`last` is {last}, but {where} there are only {len(wanted)} checkpoints")
    if len(wanted) < 2:
        raise CheckpointError(f"a spread needs at least two checkpoints; {where} there is only one")
    return wanted


def _checked(given: npt.ArrayLike, number: int) -> Floats:
    said = np.asarray(given, dtype=np.float64)
    if said.ndim != 2 or 0 in said.shape:
        raise EvaluationError(f"model {number} has scores of shape {said.shape}; they must be examples × classes")
    if not np.isfinite(said).all():
        raise EvaluationError(f"model {number} has scores that are not finite")
    return said


def _squares(weights: Sequence[float] | None, count: int) -> float:
    """Σp²."""
    if weights is None:
        return 1 / count
    if len(weights) != count:
        raise WeightsError(f"{len(weights)} weights for {count} models")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise WeightsError(f"weights must be finite and not negative; got {list(weights)}")
    if abs(math.fsum(weights) - 1) > WEIGHT_SUM_TOLERANCE:
        raise WeightsError(f"the weights sum to {math.fsum(weights)!r}, not 1; they are never renormalised")
    return math.fsum(weight**2 for weight in weights)


def _require_two(count: int) -> None:
    if count < 2:
        raise EvaluationError(f"a spread needs at least two models; got {count}")


def _require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise EvaluationError(f"the confidence is {confidence}; it must lie strictly between 0 and 1")


def _require_positive(*numbers: tuple[str, int | None, int]) -> None:
    for name, value, least in numbers:
        if value is not None and value < least:
            raise CheckpointError(f"{name} is {value}; it must be at least {least}")
