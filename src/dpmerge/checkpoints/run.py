"""The ordered checkpoints of one private run: a folder with one sub-folder each; or one model each of several runs."""

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
        """The models ordered by step; refused if they are not checkpoints of one run."""
        _require_one_run(portfolio.models)
        ordered = tuple(sorted(portfolio.models, key=steps))
        for earlier, later in pairwise(ordered):
            if steps(earlier) == steps(later):
                raise PortfolioError(
                    f"checkpoints {earlier.name!r} and {later.name!r} are both of step {steps(later)}, so their order is "
                    "unknown; keep one of them"
                )
        _require_order_of_names(ordered)
        return cls(portfolio, ordered)

    def last(self, count: int | None = None, *, until: int | None = None, allow_gaps: bool = False) -> tuple[Model, ...]:
        """The last `count` checkpoints up to step `until` (default: all). Gaps are refused unless allowed."""
        reached = [steps(model) for model in self.checkpoints]
        if until is not None and until not in reached:
            raise PortfolioError(f"there is no checkpoint of step {until}; there are {_listed(reached)}")
        before = [model for model in self.checkpoints if until is None or steps(model) <= until]
        if count is not None and not 1 <= count <= len(before):
            raise PortfolioError(f"`last` is {count}, but there are {len(before)} checkpoints up to step {steps(before[-1])}")
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
        """The guarantee of anything computed from these checkpoints: the run up to the latest of them (docs/theory.md §7).

        After looking, it is the run up to its last checkpoint in the folder: the choice of checkpoints and parameters then
        depends on all of them.
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
            return [f"this holds only if step {latest} was fixed without looking at later checkpoints, which are not covered"]
        return [
            f"checkpoints up to step {last} are covered, since step {latest} may have been chosen by looking at them; if it "
            "was fixed beforehand, state the provenance a-priori"
        ]


class Several(Run):
    """One model each of several runs, such as shards and forks: they answer together, and joint release covers it."""

    @classmethod
    def of(cls, portfolio: Portfolio) -> Run:
        """The checkpoints of one run if they are; models of several runs otherwise, one of each."""
        runs = [model.run for model in portfolio.models]
        return cls(portfolio, portfolio.models) if 1 < len(set(runs)) == len(runs) else Run.of(portfolio)

    def last(self, count: int | None = None, *, until: int | None = None, allow_gaps: bool = False) -> tuple[Model, ...]:
        if count is not None or until is not None:
            raise PortfolioError(f"{self.portfolio!r}: models of several runs have no last ones; all of them are used")
        return self.checkpoints

    def notes(self, used: Sequence[Model], provenance: Looked) -> list[str]:
        return []


def steps(model: Model) -> int:
    mechanism = model.mechanism
    if not isinstance(mechanism, DpSgd | DpFtrl):
        raise PortfolioError(
            f"model {model.name!r}: a record of kind {mechanism.kind} has no steps, and covers one model, not the checkpoints "
            "of a run; use records of kind dp-sgd or dp-ftrl"
        )
    return mechanism.steps


def _require_one_run(models: Sequence[Model]) -> None:
    """Refuse models that are not of the most common run."""
    for model in models:
        steps(model)
        if model.mechanism.run is None:
            raise PortfolioError(f"model {model.name!r}: its record has no run; add the run that it is a checkpoint of")
    ((run, _),) = Counter(model.run for model in models).most_common(1)
    for model in models:
        if model.run != run:
            other = next(one.name for one in models if one.run == run)
            raise PortfolioError(
                f"{model.name!r} is a checkpoint of run {model.run!r}, {other!r} of run {run!r}; keep the checkpoints of "
                "each run in a separate folder"
            )


def _require_order_of_names(ordered: Sequence[Model]) -> None:
    """Refuse numbered folder names whose order contradicts the steps in their records."""
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
                f"{steps(before[1])} and {steps(model)}; rename the folders, or correct the records"
            )
        seen[kind] = number, model


def _require_even(known: Sequence[int], used: Sequence[Model]) -> None:
    """Refuse gaps: an average over the remaining checkpoints is not the requested rule.

    The usual distance is the most frequent one, the smallest if there are several. The run's last checkpoint may be closer,
    since a run need not end at a multiple of the distance.
    """
    distances = [later - earlier for earlier, later in pairwise(known)]
    usual = min(multimode(distances[:-1] or distances), default=0)
    for one, other in pairwise(used):
        missing = range(steps(one) + usual, steps(other), usual)
        if missing:
            raise PortfolioError(
                f"between {one.name!r} and {other.name!r} the checkpoint of step {_listed(missing)} is missing: checkpoints of "
                f"this run are {usual} steps apart; add it, or allow gaps"
            )
    apart = [steps(other) - steps(one) for one, other in pairwise(used)]
    whole = apart[:-1] if steps(used[-1]) == known[-1] else apart
    if len(set(whole)) > 1 or (whole and apart[-1] > whole[0]):
        raise PortfolioError(
            f"the checkpoints {', '.join(repr(model.name) for model in used[:3])}… are not equally far apart: {_listed(apart)} "
            "steps; allow gaps to use them anyway"
        )


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, … {numbers[-1]}" if len(numbers) > 8 else shown
