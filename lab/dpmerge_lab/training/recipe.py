"""The tool's recipe with what Recycling Scraps varies: training on aggregates of iterates, and batches that shift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.training import Recipe
from dpmerge_lab.training.averaging import TrainingOn
from dpmerge_lab.training.shift import PeriodicShift

if TYPE_CHECKING:  # which needs torch
    from dpmerge_lab.training.augmentation import Augmentation


@dataclass(frozen=True, kw_only=True)
class LabRecipe(Recipe):
    """With a `shift`, batches swing between two parts of the data; with `training_on`, later steps start at aggregates; with an
    `augmentation`, an example's gradient is a mean over several views of its image.
    """

    shift: PeriodicShift | None = None
    training_on: TrainingOn | None = None
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift is not None and self.rate is not None:
            raise TrainingError(f"batches that shift have no rate: it is their shift's: {self}")

    def expected_batch(self, examples: float) -> float:
        return super().expected_batch(examples) if self.shift is None else self.shift.expected_batch

    def batch(self, sampler: np.random.Generator, examples: int, step: int) -> npt.NDArray[np.int64] | slice:
        return super().batch(sampler, examples, step) if self.shift is None else self.shift.batch(sampler, step - 1)

    def rate_at(self, step: int) -> float | None:
        return super().rate_at(step) if self.shift is None else self.shift.dominating_rate(step - 1)

    @property
    def optimizer(self) -> str:
        moving = "" if self.shift is None else "; batches shift between two parts of the data, rates here dominate either's"
        views = "" if self.augmentation is None else f"; {self.augmentation}"
        return (super().optimizer if self.training_on is None else self.training_on.optimizer) + moving + views

    def begin(self, first: Any) -> Callable[[Any], Any]:
        return super().begin(first) if self.training_on is None else self.training_on.begin(first).next_start
