"""Tuning of training on aggregates (Recycling Scraps Alg. 3): a grid over (p, τ), each point of it a private run of its own.

Whoever looks at K runs and keeps the best releases a function of all K, whatever becomes of the others: the price is their
joint release (docs/theory.md §4). Less is possible where less is seen: of a random number of runs nothing but the best
(`dpmerge account --tuning`, §7), or of fixed ones a tempered draw (`dpmerge plan --kappa`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dpmerge.checkpoints import PUBLIC
from dpmerge.errors import TrainingError
from dpmerge.jobs import Finished, Progress, run_all
from dpmerge.profiles import Conversion
from dpmerge.records import Model, Portfolio, Record
from dpmerge.rules import By, Guarantee, Joint

# From an aggregate's parameter p and the step τ from which on it is trained on, to accuracy on public examples and the record.
Train = Callable[[float, int], tuple[float, Record]]


@dataclass(frozen=True)
class Trial:
    """One point of the grid: a private run, and how well it did."""

    parameter: float
    start: int
    accuracy: float
    record: Record

    @property
    def name(self) -> str:
        """Of the point."""
        return f"p = {self.parameter:g}, τ = {self.start}"


@dataclass(frozen=True)
class TunedTraining:
    """All trials, in the order of the grid: p by p, and for each p one τ after the other."""

    trials: tuple[Trial, ...]

    def __post_init__(self) -> None:
        """Records of one run would be counted once."""
        known: dict[str, Trial] = {}
        for trial in self.trials:
            run = Model(trial.name, trial.record).run
            if run in known:
                raise TrainingError(
                    f"{known[run].name} and {trial.name} have records of one run {run!r}; every trial is a run of its own"
                )
            known[run] = trial

    @property
    def best(self) -> Trial:
        """Alg. 3 replaces the best one only by a better one: of equal ones the first."""
        return max(self.trials, key=lambda trial: trial.accuracy)

    def guarantee(self, delta: float, by: By = "best", conversion: Conversion = "tight") -> Guarantee:
        """Of the best run, of (p, τ), and of everything else that is made of these trials: their joint release."""
        portfolio = Portfolio(tuple(Model(trial.name, trial.record) for trial in self.trials))
        weights = portfolio.weights_in_order([1 / len(self.trials)] * len(self.trials))
        found = Joint(weights).guarantee(delta=delta, by=by, conversion=conversion)
        return replace(found, assumptions=(*found.assumptions, PUBLIC))

    def price(self, delta: float, by: By = "best", conversion: Conversion = "tight") -> dict[str, Any]:
        """What choosing has cost, beside what one run costs, and in words."""
        best = TunedTraining((self.best,))
        return {
            "trials": len(self.trials),
            "epsilon of the best run alone, had it been the only one": best.guarantee(delta, by, conversion).epsilon,
            "epsilon of all trials together": self.guarantee(delta, by, conversion).epsilon,
            "delta": delta,
            "why": "every trial is a private run of its own, and the choice is a function of all of them: their joint release; "
            "less only where less is seen, as nothing but the best of a random number of trials (dpmerge account --tuning)",
        }

    def as_dict(self) -> dict[str, Any]:
        """As plain data, without the records."""
        rows = [{"parameter": one.parameter, "start": one.start, "accuracy": one.accuracy} for one in self.trials]
        return {"trials": rows, "best": rows[self.trials.index(self.best)]}


def tune_training(
    train: Train,
    parameters: Sequence[float],
    starts: Sequence[int],
    *,
    name: str = "",
    finished: Finished | None = None,
    cluster: str | None = None,
    jobs: int = -1,
    progress: Progress | None = None,
) -> TunedTraining:
    """Train once for every (p, τ), and say which did best on the validation set that `train` measures on.

    `train` is a function of a module, or a partial of one. Trials that are finished are kept in `finished` with their records
    and not made again; `name` tells those of this search from others. A trial that was killed has shown nothing of itself.
    """
    if not parameters or not starts or len({*parameters}) < len(parameters) or len({*starts}) < len(starts):
        raise TrainingError(f"a grid needs values of p and τ, each of them once: p {list(parameters)}, τ {list(starts)}")
    if finished is not None and not name:
        raise TrainingError("finished trials are found again by name: say what is tuned, on which data (name=…)")
    points = [(parameter, start) for parameter in parameters for start in starts]
    keys = None if finished is None else [f"{name}: p = {parameter!r}, τ = {start!r}" for parameter, start in points]
    found = run_all(partial(_trial, train), points, keys=keys, finished=finished, cluster=cluster, jobs=jobs, progress=progress)
    trials = tuple(
        Trial(
            parameter, start, one["accuracy"], Record.parse(json.dumps(one["record"]), source=f"p = {parameter:g}, τ = {start}")
        )
        for (parameter, start), one in zip(points, found, strict=True)
    )
    return TunedTraining(trials)


def _trial(train: Train, point: tuple[float, int]) -> dict[str, Any]:
    accuracy, record = train(*point)
    if not math.isfinite(accuracy):
        raise TrainingError(
            f"p = {point[0]:g}, τ = {point[1]}: the accuracy is {accuracy}; a trial is scored by a finite number"
        )
    return {"accuracy": float(accuracy), "record": record.as_dict()}
