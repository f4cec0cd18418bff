"""The checkpoints of one private run, in order: a folder with one sub-folder for each, refused if they are not one run's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import multimode

from dpmerge.errors import PortfolioError
from dpmerge.records import DpFtrl, DpSgd, Model, Portfolio
from dpmerge.release import Chosen, choose
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Looked

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


@dataclass(frozen=True)
class Run:
    """The checkpoints of one run, the earliest first; `portfolio` holds the same ones by name."""

    portfolio: Portfolio
    checkpoints: tuple[Model, ...]

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        return cls.of(Portfolio(folder))

    @classmethod
    def of(cls, portfolio: Portfolio) -> Run:
        """The models in the order of their steps, once they are known to be one run's."""
        _require_one_run(portfolio.models)
        ordered = tuple(sorted(portfolio.models, key=steps))
        for earlier, later in pairwise(ordered):
            if steps(earlier) == steps(later):
                raise PortfolioError(
                    f"checkpoints {earlier.name!r} and {later.name!r} are both of step {steps(later)}, so neither comes first; "
                    "keep one of them"
                )
        _require_order_of_names(ordered)
        return cls(portfolio, ordered)

    def last(self, count: int | None = None, *, until: int | None = None, allow_gaps: bool = False) -> tuple[Model, ...]:
        """The last `count` checkpoints up to step `until`, or all; none may be missing between them unless that is allowed."""
        reached = [steps(model) for model in self.checkpoints]
        if until is not None and until not in reached:
            raise PortfolioError(f"there is no checkpoint of step {until}; there are {_listed(reached)}")
        before = [model for model in self.checkpoints if until is None or steps(model) <= until]
        if count is not None and not 1 <= count <= len(before):
            raise PortfolioError(
                f"the last {count} checkpoints were asked for, but up to step {steps(before[-1])} there are {len(before)}"
            )
        used = before if count is None else before[-count:]
        if not allow_gaps:
            _require_even(reached, used)
        return tuple(used)

    def choose(
        self,
        weights: Mapping[str, float],
        *,
        delta: float,
        epsilon: float | None = None,
        provenance: Looked = "after-looking",
        accounting: Accounting = DEFAULT_ACCOUNTING,
    ) -> Chosen:
        """What is guaranteed of anything made of these checkpoints: the run up to the latest of them (docs/theory.md §7).

        After looking it is the run up to its last checkpoint here: which ones to use, up to where and how is then a function
        of all of them.
        """
        return choose(
            self.portfolio,
            "joint",
            delta=delta,
            epsilon=epsilon,
            weights=self.portfolio.weights(weights),
            provenance=provenance,
            accounting=accounting,
        )

    def notes(self, used: Sequence[Model], provenance: Looked) -> list[str]:
        last, latest = steps(self.checkpoints[-1]), steps(used[-1])
        if latest == last:
            return []
        if provenance == "a-priori":
            return [f"this holds if step {latest} was fixed without looking at later checkpoints; they are not covered"]
        return [
            f"checkpoints up to step {last} are covered, since step {latest} may have been chosen by looking at them; if it "
            "was fixed beforehand, state the provenance a-priori"
        ]


def steps(model: Model) -> int:
    mechanism = model.mechanism
    if not isinstance(mechanism, DpSgd | DpFtrl):
        raise PortfolioError(
            f"model {model.name!r}: a record of kind {mechanism.kind} has no steps, and covers one model, not the checkpoints "
            "of a run; records of kind dp-sgd and dp-ftrl do"
        )
    return mechanism.steps


def _require_one_run(models: Sequence[Model]) -> None:
    """Refuse a model of another run than most of them, by name."""
    for model in models:
        steps(model)
        if model.mechanism.run is None:
            raise PortfolioError(f"model {model.name!r}: its record names no run that it is a checkpoint of; add a run to it")
    ((run, _),) = Counter(model.run for model in models).most_common(1)
    for model in models:
        if model.run != run:
            other = next(one.name for one in models if one.run == run)
            raise PortfolioError(
                f"{model.name!r} is a checkpoint of run {model.run!r}, {other!r} of run {run!r}; keep the checkpoints of one "
                "run in a folder of their own"
            )


def _require_order_of_names(ordered: Sequence[Model]) -> None:
    """Folders that are numbered alike are numbered in the order of their records."""
    seen: dict[tuple[str, str], tuple[int, Model]] = {}
    for model in ordered:
        found = _NUMBERED.fullmatch(model.name)
        if found is None:
            continue
        kind, number = (found[1], found[3]), int(found[2])
        before = seen.get(kind)
        if before is not None and before[0] >= number:
            raise PortfolioError(
                f"checkpoints {before[1].name!r} and {model.name!r} are out of order: by their records they are of steps "
                f"{steps(before[1])} and {steps(model)}; rename the folders, or put the records where they belong"
            )
        seen[kind] = number, model


def _require_even(known: Sequence[int], used: Sequence[Model]) -> None:
    """Refuse gaps: an average over what is left is not the rule that was asked for.

    The usual distance is the most frequent one, the smallest if there are several; the run's last checkpoint may come sooner,
    since a run need not end with a multiple of it.
    """
    distances = [later - earlier for earlier, later in pairwise(known)]
    usual = min(multimode(distances[:-1] or distances), default=0)
    for one, other in pairwise(used):
        missing = range(steps(one) + usual, steps(other), usual)
        if missing:
            raise PortfolioError(
                f"between {one.name!r} and {other.name!r} the checkpoint of step {_listed(missing)} is missing: checkpoints of "
                f"this run are {usual} steps apart; put it there, or allow gaps"
            )
    apart = [steps(other) - steps(one) for one, other in pairwise(used)]
    whole = apart[:-1] if steps(used[-1]) == known[-1] else apart
    if len(set(whole)) > 1 or (whole and apart[-1] > whole[0]):
        raise PortfolioError(
            f"the checkpoints {', '.join(repr(model.name) for model in used[:3])}… are not equally far apart: {_listed(apart)} "
            "steps; allow gaps to use them as they are"
        )


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, … {numbers[-1]}" if len(numbers) > 8 else shown
