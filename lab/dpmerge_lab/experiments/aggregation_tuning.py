"""Alg. 3 of Recycling Scraps, scored two ways by the same runs: what a run returns, and the best inference aggregation on top.

The paper tunes the two in sequence for StackOverflow (§3.3.2), and shows the latter. What is best alone need not be best below
another aggregation: both choices are kept. Every point is run several times, as single runs differ by more than points do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from dpmerge.errors import TrainingError
from dpmerge.jobs import Finished, Progress, run_all
from dpmerge.records import Record
from dpmerge_lab.experiments.aggregation import LAST
from dpmerge_lab.experiments.aggregation_scores import chosen
from dpmerge_lab.training.tuning import Trial, TunedTraining

ALONE, WITH_INFERENCE = "alone", "with an inference aggregation on top"
WAYS = (ALONE, WITH_INFERENCE)
TUNING = "tuning of training on aggregates"  # where results have it


@dataclass(frozen=True)
class Point:
    """Of a grid: k of UTA tr or the weight of the new iterate in EMA tr, the step τ, and a factor of the learning rate."""

    parameter: float
    start: int = 0
    rate: float = 1.0


@dataclass(frozen=True)
class Tuned:
    """Every point with its runs, which have what was `measured` of them and a `record`."""

    runs: Mapping[Point, Sequence[Mapping[str, Any]]]

    def accuracy(self, point: Point, way: str, half: str = "validation") -> float:
        """Mean of its runs."""
        of = (run["measured"] for run in self.runs[point])
        return float(np.mean([(one[LAST] if way == ALONE else chosen(one))[half] for one in of]))

    def best(self, way: str) -> Point:
        """The first with the largest accuracy on the validation half."""
        return max(self.runs, key=lambda point: self.accuracy(point, way))

    def edges(self, way: str) -> list[str]:
        """What of the choice is the smallest or the largest value tried: a longer grid might have another best point."""
        found = []
        for name in (field.name for field in fields(Point)):
            tried = {getattr(point, name) for point in self.runs}
            if len(tried) > 1 and getattr(self.best(way), name) in (min(tried), max(tried)):
                found.append(name)
        return found

    def as_dict(self) -> dict[str, Any]:
        """As plain data, without the records."""
        return {
            "grid": [
                {
                    **asdict(point),
                    "runs": len(runs),
                    **{way: {half: self.accuracy(point, way, half) for half in ("validation", "test")} for way in WAYS},
                }
                for point, runs in self.runs.items()
            ],
            "best": {way: {**asdict(self.best(way)), "at an edge of the grid": self.edges(way)} for way in WAYS},
        }


def tune(
    run: Callable[[Point], Mapping[str, Any]],
    points: Iterable[Point],
    repetitions: int,
    *,
    name: str = "",
    finished: Finished | None = None,
    jobs: int = -1,
    progress: Progress | None = None,
) -> Tuned:
    """Run every point so often. Finished runs are found again by `name`, which says what is tuned, and how."""
    if finished is not None and not name:
        raise TrainingError("finished runs are found again by name: say what is tuned, and how (name=…)")
    items = [(point, index) for point in points for index in range(repetitions)]
    keys = None if finished is None else [f"{name}: {point}: {index}" for point, index in items]
    found = run_all(partial(_run, run), items, keys=keys, finished=finished, jobs=jobs, progress=progress)
    runs: dict[Point, list[Mapping[str, Any]]] = {}
    for (point, _), one in zip(items, found, strict=True):
        runs.setdefault(point, []).append(one)
    return Tuned(runs)


def _run(run: Callable[[Point], Mapping[str, Any]], item: tuple[Point, int]) -> Mapping[str, Any]:
    return run(item[0])


def price(searches: Iterable[Tuned], delta: float) -> dict[str, Any]:
    """Of all their runs, whichever chose what: their joint release. They are numbered, so that each has its own name.

    The best of them is the one with the best model, be that its last checkpoint or an inference aggregation.
    """
    every = [run for search in searches for runs in search.runs.values() for run in runs]
    trials = [
        Trial(
            index,
            0,
            max(one["validation"] for one in run["measured"].values()),
            Record.parse(json.dumps(run["record"]), source=f"trial {index}"),
        )
        for index, run in enumerate(every)
    ]
    return TunedTraining(tuple(trials)).price(delta, by="pld")
