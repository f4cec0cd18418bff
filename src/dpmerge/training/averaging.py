"""Training on aggregates (Recycling Scraps Alg. 2): from step τ on, every step starts at an aggregate of the iterates so far.

Every iterate is paid for already, and an aggregate is a function of iterates: nothing is added to the guarantee of the run
alone. But such a run is no plain SGD, so its records say so, and averages with other runs are accounted by joint release.

An aggregate is kept by an object with `update(iterate) → aggregate`, called with every iterate from θ₀ on: the two below, or
any other. Iterates are numpy arrays or torch tensors, and are not changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dpmerge.errors import TrainingError


class Aggregate(Protocol):
    """What Alg. 2 calls f_AGG, fed one iterate at a time. Its text goes into the record."""

    def update(self, iterate: Any) -> Any:
        """Take the next iterate; the aggregate of all so far."""

    def __str__(self) -> str:
        """What it is, with its parameters."""


@dataclass
class TailMean:
    """UTA: the mean of the last k iterates, of fewer at the beginning."""

    last: int
    _held: deque[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.last < 1:
            raise TrainingError(f"the mean of the last {self.last} iterates is of none; give at least 1")
        self._held = deque(maxlen=self.last)

    def update(self, iterate: Any) -> Any:
        """Take the next iterate."""
        self._held.append(iterate)
        return sum(self._held) / len(self._held)

    def __str__(self) -> str:
        return f"the mean of the last {self.last} iterates"


@dataclass
class MovingAverage:
    """EMA: θ̄ₜ = (1 − β)·θ̄ₜ₋₁ + β·θₜ, begun at θ̄₀ = θ₀. The weight is of what `weight_of` says.

    RSc Eq. (3) gives β to the new iterate ("new"); most libraries, and the values of its tables near 1, give it to the old
    average ("old", a decay). With `warmup`, whichever it is grows as min(β, (1 + t)/(10 + t)).
    """

    weight: float
    weight_of: Literal["new", "old"]
    warmup: bool = False
    _average: Any = field(default=None, init=False, repr=False)
    _seen: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1 or (self.weight == 0 and self.weight_of == "new"):
            raise TrainingError(f"the weight of a moving average is {self.weight}; it must lie in (0, 1]")

    def update(self, iterate: Any) -> Any:
        """Take the next iterate."""
        if self._seen == 0:
            self._average = iterate
        else:
            new = new_weight(self.weight, self.weight_of, self._seen if self.warmup else None)
            self._average = (1 - new) * self._average + new * iterate
        self._seen += 1
        return self._average

    def __str__(self) -> str:
        return f"a moving average ({self.weight_of} weight {self.weight:g}{', warmed up' if self.warmup else ''})"


def new_weight(weight: float, weight_of: Literal["new", "old"], warmup_step: int | None) -> float:
    """The weight of the new iterate θₜ, t ≥ 1; `warmup_step` is t where the weight is still growing, else nothing."""
    grown = weight if warmup_step is None else min(weight, (1 + warmup_step) / (10 + warmup_step))
    return grown if weight_of == "new" else 1 - grown


@dataclass
class TrainingOn:
    """Alg. 2 for one run: an aggregate, and the step τ from which on every step starts at it."""

    aggregate: Aggregate
    start: int
    current: Any = field(default=None, init=False, repr=False)  # what Alg. 2 returns after the last step

    def __post_init__(self) -> None:
        if self.start < 0:
            raise TrainingError(f"training on aggregates cannot start at step {self.start}")

    @property
    def optimizer(self) -> str:
        """For the record's optimizer field."""
        return f"sgd from {self.aggregate} after step {self.start}"

    def next_start(self, steps_done: int, iterate: Any) -> Any:
        """Where the next step starts, after so many steps (0: before the first) of which this is the last iterate."""
        self.current = self.aggregate.update(iterate)
        return self.current if steps_done >= self.start else iterate
