"""Models as checkpoints of runs: which of them count, which are independent, and which records are consistent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from dpmerge.errors import DependentRuns, PortfolioError
from dpmerge.records.record import ApproxDp, DpFtrl, DpSgd, FullPhase, Mechanism, Phase, Record

AnyPhase = TypeVar("AnyPhase", Phase, FullPhase)


@dataclass(frozen=True)
class Model:
    """One model of a portfolio: its name (the folder's) and its record; where its files are does not make it another one."""

    name: str
    record: Record
    folder: Path | None = field(default=None, compare=False, repr=False)

    @property
    def mechanism(self) -> Mechanism:
        return self.record.mechanism

    @property
    def run(self) -> str:
        """The run it is a checkpoint of; a record without a run id is a run of its own."""
        return self.mechanism.run or f"model:{self.name}"

    @property
    def counts_as(self) -> tuple[str, str | None]:
        """What is counted once: a run whose record covers its iterates, or else this model of it."""
        return self.run, None if self.covers_iterates else self.name

    @property
    def covers_iterates(self) -> bool:
        """Whether its record covers every iterate of its run up to it; other records state the cost of one model."""
        return isinstance(self.mechanism, DpSgd | DpFtrl)

    @property
    def made_of(self) -> frozenset[str]:
        """The runs that a release was made of, and its own; nothing for other models."""
        made_of = self.mechanism.made_of if isinstance(self.mechanism, ApproxDp) else None
        return frozenset() if made_of is None else frozenset({self.run, *made_of.runs})

    @property
    def trained(self) -> frozenset[str] | None:
        """The tensors that training changed, where all others are as they were before it, and public; None if not known.

        What a fork begins with is not public, and neither is it asked here of models of parts.
        """
        mechanism = self.mechanism
        if not isinstance(mechanism, DpSgd) or mechanism.trained is None or mechanism.starts_from or mechanism.shard:
            return None
        return frozenset(mechanism.trained)

    @property
    def start(self) -> Model | None:
        """The checkpoint that a fork starts from, whether it is in a portfolio or not. No folder is named so."""
        start = self.mechanism.starts_from if isinstance(self.mechanism, DpSgd) else None
        if start is None:
            return None
        # The fingerprint is of what the fork saw.
        told = {"mechanism": start.mechanism, "source": start.source or "stated-by-user", "data_fingerprint": None}
        return Model(f"{start.run}/{start.step}", self.record.model_copy(update=told))

    @property
    def starts(self) -> Iterator[Model]:
        """What it starts from, what that starts from, and so on."""
        start = self.start
        if start is not None:
            yield start
            yield from start.starts

    @property
    def own_steps(self) -> Model:
        """The same without what came before its run."""
        if self.start is None:
            return self
        mechanism = self.mechanism.model_copy(update={"starts_from": None})
        return Model(self.name, self.record.model_copy(update={"mechanism": mechanism}), self.folder)


def distinct_runs(models: Iterable[Model]) -> tuple[Model, ...]:
    """What to compose for these models: every run they come from once, with its own steps up to the latest that any shows.

    A fork shows its own steps and the run it starts from up to there (theory.md §10).
    """
    given = tuple(models)
    return tuple(model.own_steps for model in latest_checkpoints((*given, *(start for one in given for start in one.starts))))


def latest_checkpoints(models: tuple[Model, ...]) -> tuple[Model, ...]:
    """Of each run its latest checkpoint, whose record covers the earlier ones, or else all of its models.

    A record that states (ε, δ), a Rényi curve or one Gaussian release is silent about other models of its run: each counts.
    """
    latest: dict[tuple[str, str | None], Model] = {}
    for model in models:
        held = latest.get(model.counts_as)
        if held is None or _steps(model) > _steps(held):
            latest[model.counts_as] = model
    return tuple(latest.values())


def require_independent(models: tuple[Model, ...]) -> tuple[str, ...]:
    """Refuse runs that share their noise or their sampling coins; return what the user must be trusted for.

    Equal noise cancels in a linear combination, and equal batches alone already double ε (theory.md §0). Models of one run
    share everything; if each of them counts, their records must say what each costs beside the others (§3.1).
    """
    if len(models) < 2:
        return ()
    _refuse_shared_randomness(models)
    by_run = _by_run(models)
    together = tuple(
        f"the records of {', '.join(repr(m.name) for m in several)}, models of one run, each state what their model costs "
        "given the other models of that run, so that their costs add"
        for several in by_run.values()
        if len(several) > 1
    )
    unstated = [m.name for m in models if _unstated(m.mechanism)]
    if not unstated or len(by_run) < 2:
        return together
    return (
        "the runs are independent in their noise and sampling coins: on the user's word, since no fingerprint was "
        f"recorded for {', '.join(unstated)}",
        *together,
    )


def _refuse_shared_randomness(models: tuple[Model, ...]) -> None:
    for stated, word in (("noise_fingerprint", "noise is"), ("sampler_fingerprint", "sampling coins are")):
        seen: dict[str, Model] = {}
        for model in models:
            for fingerprint in _generators(getattr(model.mechanism, stated)):
                if fingerprint in seen and seen[fingerprint].run != model.run:
                    raise DependentRuns(
                        f"models {seen[fingerprint].name!r} and {model.name!r} are different runs with the same {stated} "
                        f"{fingerprint!r}: their {word} not independent, and no bound here holds for them together; "
                        "retrain one with fresh randomness, or use random selection, which needs no independence"
                    )
            seen |= dict.fromkeys(_generators(getattr(model.mechanism, stated)), model)


_CONTINUED = re.compile(r"\+([^+@]+)@(\d+)")  # the generator with which a run went on, and after how many steps


def _generators(fingerprint: str | None) -> list[str]:
    """The fingerprints of all generators of a run; one that was continued has the fingerprint first+next@steps."""
    if fingerprint is None:
        return []
    first = _CONTINUED.sub("", fingerprint)
    return [first, *(part for part, _ in _CONTINUED.findall(fingerprint))] if first else [fingerprint]


def renamed_generators(fingerprint: str, rename: Callable[[str], str]) -> str:
    """The same fingerprint with other names for its generators: what can be told of two by comparing them stays so."""
    first = _CONTINUED.sub("", fingerprint)
    if not first:
        return rename(fingerprint)
    return rename(first) + "".join(f"+{rename(part)}@{steps}" for part, steps in _CONTINUED.findall(fingerprint))


def _goes_on(earlier: str | None, later: str | None, steps: int) -> bool:
    """Whether a run with the first fingerprint after `steps` may have the second one later."""
    if earlier is None or later is None or earlier == later:
        return earlier == later
    following = _CONTINUED.match(later, len(earlier))
    return later.startswith(earlier) and following is not None and steps <= int(following[2])


def _unstated(mechanism: Mechanism) -> bool:
    if mechanism.noise_fingerprint is None:
        return True
    samples = isinstance(mechanism, DpSgd) and any(phase.sampling.scheme != "full-batch" for phase in mechanism.settings())
    return samples and mechanism.sampler_fingerprint is None


def _steps(model: Model) -> int:
    return getattr(model.mechanism, "steps", 1)


def _by_run(models: Iterable[Model]) -> dict[str, list[Model]]:
    groups: dict[str, list[Model]] = {}
    for model in models:
        groups.setdefault(model.run, []).append(model)
    return groups


def check_checkpoints(models: tuple[Model, ...]) -> None:
    """Refuse checkpoints of one run whose records disagree: the shorter must be the beginning of the longer.

    What forks say of the run they start from counts as such a record.
    """
    _check_releases(models)
    _check_starts(models)
    for run, group in _by_run((*models, *(start for model in models for start in model.starts))).items():
        group.sort(key=_steps)
        lengths = [m.mechanism.tree_lengths for m in group if isinstance(m.mechanism, DpFtrl)]
        if lengths and max(least for least, _ in lengths) > min(most for _, most in lengths):
            raise PortfolioError(
                f"the records of run {run!r} ({', '.join(repr(m.name) for m in group)}) do not fit together: no one length "
                "of trees gives these restarts at these steps; give different runs different ids"
            )
        for earlier, later in pairwise(group):
            if not _begins(earlier.mechanism, later.mechanism):
                raise PortfolioError(
                    f"models {earlier.name!r} and {later.name!r} both claim run {run!r}, but the record of the first is "
                    "not the beginning of the second; give different runs different ids"
                )


def _check_releases(models: tuple[Model, ...]) -> None:
    """Refuse a release beside other models of the runs it was made of (theory.md §5).

    It shares their randomness: its cost does not add to theirs, and its record does not say what they cost together.
    """
    for release in models:
        for other in models:
            shared = release.made_of & {run for one in (other, *other.starts) for run in (one.run, *one.made_of)}
            if shared and other.name != release.name:
                raise PortfolioError(
                    f"model {release.name!r} is a release that was made of run {min(shared)!r}, of which model {other.name!r} "
                    "comes too: they share randomness, so their costs do not add. Leave the release out and use the models of "
                    "its runs, or leave those out"
                )


def _check_starts(models: Iterable[Model]) -> None:
    """Refuse forks that say they start from one step of one run, and from different tensors."""
    seen: dict[str, tuple[str, str]] = {}
    for model in models:
        for fork in (model, *model.starts):
            start, known = fork.start, fork.mechanism.starts_from if isinstance(fork.mechanism, DpSgd) else None
            if start is None or known is None or known.digest is None:
                continue
            held, other = seen.setdefault(start.name, (known.digest, model.name))
            if held != known.digest:
                raise PortfolioError(
                    f"models {other!r} and {model.name!r} both start from step {known.step} of run {known.run!r}, but from "
                    "different tensors: a run has one model at each step; give different runs different ids"
                )


def _begins(earlier: Mechanism, later: Mechanism) -> bool:
    if isinstance(earlier, DpSgd) and isinstance(later, DpSgd):
        same = {"phases", "noise_multiplier", "clip", "sampling", "expected_batch", "noise_fingerprint", "sampler_fingerprint"}
        # Tensors may first change later in the run, a run may continue on another machine, and checkpoints become more.
        same |= {"left_out", "others_unchanged", "noise_generator", "checkpoints_kept", "trained"}
        if earlier.established is not None:  # what was checked of the loss may end at a later step
            same |= {"smoothness", "convex", "established"}
        for stated in ("noise_fingerprint", "sampler_fingerprint"):
            if not _goes_on(getattr(earlier, stated), getattr(later, stated), earlier.steps):
                return False
        if earlier.model_dump(exclude=same) != later.model_dump(exclude=same):
            return False
        return _is_prefix(joined(earlier.settings()), joined(later.settings()))
    story = {"steps", "restarts", "tree_steps"}
    if earlier.model_dump(exclude=story) != later.model_dump(exclude=story):  # their kinds among the rest
        return False
    if isinstance(earlier, DpFtrl) and isinstance(later, DpFtrl):
        # Restarts only ever add up; at the same step there is one number of them.
        return earlier.restarts <= later.restarts and (earlier.steps < later.steps or earlier.restarts == later.restarts)
    return True


def joined(phases: Iterable[AnyPhase]) -> list[AnyPhase]:
    """Adjacent phases with equal settings become one."""
    merged: list[AnyPhase] = []
    for phase in phases:
        if merged and merged[-1].model_copy(update={"steps": phase.steps}) == phase:
            merged[-1] = phase.model_copy(update={"steps": merged[-1].steps + phase.steps})
        else:
            merged.append(phase)
    return merged


def _is_prefix(short: list[FullPhase], long: list[FullPhase]) -> bool:
    if len(short) > len(long):
        return False
    *head, last = short
    last_long = long[len(head)]
    return (
        head == long[: len(head)]
        and last.steps <= last_long.steps
        and last.model_copy(update={"steps": 1}) == last_long.model_copy(update={"steps": 1})
    )


def trained_tensors(models: Iterable[Model]) -> frozenset[str] | None:
    """The tensors that some of these trainings changed; None unless every record says so."""
    known = [model.trained for model in models]
    return None if not known or None in known else frozenset().union(*(one for one in known if one is not None))
