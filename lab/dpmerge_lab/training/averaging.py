"""Training on aggregates (Recycling Scraps Alg. 2): from step τ on, every step starts at an aggregate of the iterates so far.

Every iterate is paid for already, and an aggregate is a function of iterates: nothing is added to the guarantee of the run
alone. But such a run is no plain SGD, so its records say so, and averages with other runs are accounted by joint release.

What is aggregated and from when on is data (`TrainingOn`); what a run keeps for it is made anew for every run, and its `state`
is plain data with iterates in it, by which another process goes on. Iterates are numpy arrays or torch tensors, and are not
changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dpmerge.errors import TrainingError


class Update(Protocol):
    """Takes the next iterate, from θ₀ on, and gives the aggregate of all so far."""

    state: dict[str, Any]

    def __call__(self, iterate: Any) -> Any: ...


class Aggregate(Protocol):
    """What Alg. 2 calls f_AGG: one of those below, or any other. Its text goes into the record."""

    def begin(self) -> Update:
        """For one run."""

    def __str__(self) -> str:
        """What it is, with its parameters."""


@dataclass(frozen=True)
class TailMean:
    """UTA: the mean of the last k iterates, of fewer at the beginning."""

    last: int

    def __post_init__(self) -> None:
        if self.last < 1:
            raise TrainingError(f"the mean of the last {self.last} iterates is of none; give at least 1")

    def begin(self) -> Update:
        return _TailUpdate(self.last)

    def __str__(self) -> str:
        return f"the mean of the last {self.last} iterates"


class _TailUpdate:
    def __init__(self, last: int) -> None:
        self._last = last
        self.state: dict[str, Any] = {"held": []}

    def __call__(self, iterate: Any) -> Any:
        held = self.state["held"] = [*self.state["held"], iterate][-self._last :]
        return sum(held) / len(held)


@dataclass(frozen=True)
class MovingAverage:
    """EMA: θ̄ₜ = (1 − b)·θ̄ₜ₋₁ + b·θₜ, begun at θ̄₀ = θ₀ (Eq. 3); b is `new_weight`, or 1 − `decay`.

    With `warm_up`, whichever is stated is at most (1 + t)/(10 + t), as in averages of checkpoints.
    """

    new_weight: float | None = None
    decay: float | None = None
    warm_up: bool = False

    def __post_init__(self) -> None:
        if (self.new_weight is None) == (self.decay is None):
            raise TrainingError("a moving average needs either a decay or a new_weight, not both")
        if not 0 < self.weight_of_new(10**9) <= 1:
            raise TrainingError(f"a moving average needs 0 ≤ decay < 1 or 0 < new_weight ≤ 1: {self}")

    def weight_of_new(self, t: int) -> float:
        """b of the t-th iterate after the first."""
        stated = self.decay if self.new_weight is None else self.new_weight
        assert stated is not None
        grown = min(stated, (1 + t) / (10 + t)) if self.warm_up else stated
        return 1 - grown if self.new_weight is None else grown

    def begin(self) -> Update:
        return _MovingUpdate(self)

    def __str__(self) -> str:
        which = f"decay {self.decay:g}" if self.new_weight is None else f"new weight {self.new_weight:g}"
        return f"a moving average with {which}{', warmed up' if self.warm_up else ''}"


class _MovingUpdate:
    def __init__(self, rule: MovingAverage) -> None:
        self._rule = rule
        self.state: dict[str, Any] = {"seen": 0, "average": None}

    def __call__(self, iterate: Any) -> Any:
        seen, average = self.state["seen"], self.state["average"]
        new = self._rule.weight_of_new(seen)
        average = iterate if seen == 0 else (1 - new) * average + new * iterate
        self.state = {"seen": seen + 1, "average": average}
        return average


@dataclass(frozen=True)
class TrainingOn:
    """An aggregate, and the step τ from which on every step starts at it."""

    aggregate: Aggregate
    start: int

    def __post_init__(self) -> None:
        if self.start < 0:
            raise TrainingError(f"training on aggregates cannot start at step {self.start}")

    @property
    def optimizer(self) -> str:
        """For the record's optimizer field: anything but "sgd"."""
        return f"sgd from {self.aggregate} after step {self.start}"

    def begin(self, first: Any) -> AggregatedRun:
        """A run whose first iterate this is."""
        return AggregatedRun(self, first)


class AggregatedRun:
    """Alg. 2 for one run. `current` is the aggregate of all iterates so far: what it returns after the last step."""

    def __init__(self, training_on: TrainingOn, first: Any) -> None:
        self._start, self._update, self._done = training_on.start, training_on.aggregate.begin(), 0
        self.current = self._update(first)

    def next_start(self, iterate: Any) -> Any:
        """Where the next step starts, this being the iterate that the last one made."""
        self._done += 1
        self.current = self._update(iterate)
        return self.current if self._done >= self._start else iterate

    @property
    def state(self) -> dict[str, Any]:
        return {"done": self._done, "current": self.current, "update": self._update.state}

    @state.setter
    def state(self, reached: dict[str, Any]) -> None:
        self._done, self.current, self._update.state = reached["done"], reached["current"], reached["update"]
