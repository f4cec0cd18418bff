"""A portfolio: several models trained on one private dataset, and the weights a merge gives them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dpmerge.errors import DependentRuns, DpmergeError, PortfolioError, WeightsError
from dpmerge.notebook import frame, html_table
from dpmerge.records.folders import model_folders, require_outside
from dpmerge.records.record import Adjacency, DpFtrl, DpSgd, FullPhase, Gaussian, Mechanism, Phase, Record
from dpmerge.records.strict import named_numbers

if TYPE_CHECKING:
    from pandas import DataFrame

WEIGHT_SUM_TOLERANCE = 1e-9
AnyPhase = TypeVar("AnyPhase", Phase, FullPhase)


@dataclass(frozen=True)
class Model:
    """One model of a portfolio: its name (the folder's) and its record; where its files are does not make it another one."""

    name: str
    record: Record
    folder: Path | None = field(default=None, compare=False, repr=False)

    @property
    def mechanism(self) -> Mechanism:
        """What trained it."""
        return self.record.mechanism

    @property
    def run(self) -> str:
        """The run it is a checkpoint of; a record without a run id is a run of its own."""
        return self.mechanism.run or f"model:{self.name}"

    @property
    def covers_iterates(self) -> bool:
        """Whether its record covers every iterate of its run up to it; other records state the cost of one model."""
        return isinstance(self.mechanism, DpSgd | DpFtrl)


@dataclass(frozen=True, init=False, repr=False)
class Portfolio:
    """Models trained on one dataset under one adjacency: from a folder with a sub-folder for each, or as given.

    `passed_over` are sub-folders that hold neither a record nor tensors.
    """

    models: tuple[Model, ...]
    passed_over: tuple[str, ...] = field(compare=False)

    def __init__(self, models: str | Path | Iterable[Model]) -> None:
        passed_over: tuple[str, ...] = ()
        if isinstance(models, str | Path):
            folders, passed_over = model_folders(Path(models))
            models = (Model(folder.name, Record.load(folder / "record.json"), folder) for folder in folders)
        object.__setattr__(self, "models", tuple(models))
        object.__setattr__(self, "passed_over", passed_over)
        _check_one_dataset(self.models)
        _check_checkpoints(self.models)

    def __iter__(self) -> Iterator[Model]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, name: str) -> Model:
        self.require_names([name], PortfolioError)
        return self.models[self.names.index(name)]

    def __repr__(self) -> str:
        return f"Portfolio of {len(self)} on {self.models[0].record.dataset}: {', '.join(self.names)}"

    def _repr_html_(self) -> str:
        rows = self._rows()
        return html_table(list(rows[0]), [list(row.values()) for row in rows])

    def to_frame(self) -> DataFrame:
        """One row for each model; needs pandas."""
        return frame(self._rows())

    def _rows(self) -> list[dict[str, object]]:
        return [
            {
                "name": model.name,
                "mechanism": model.mechanism.kind,
                "dataset": model.record.dataset,
                "adjacency": model.record.adjacency,
                "run": model.mechanism.run,
                "steps": getattr(model.mechanism, "steps", None),
                "noise multiplier": _least_noise(model.mechanism),
            }
            for model in self.models
        ]

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation all records share."""
        return self.models[0].record.adjacency

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names, in order."""
        return tuple(model.name for model in self.models)

    def require_names(self, names: Iterable[str], error: type[DpmergeError]) -> None:
        """Refuse names that no model here has."""
        for name in names:
            if name not in self.names:
                raise error(f"no model named {name!r} in the portfolio; it has {', '.join(map(repr, self.names))}")

    def require_outside(self, out: Path) -> None:
        """Refuse an output that would lie in the folder of these models, before anything is written."""
        for folder in {model.folder.parent for model in self.models if model.folder is not None}:
            require_outside(out, folder)

    def weights_in_order(self, values: Iterable[float]) -> Weights:
        """Weights given as numbers, one for each model in order."""
        return self.weights(dict(zip(self.names, values, strict=True)))

    def weights(self, given: Mapping[str, float]) -> Weights:
        """Check weights against this portfolio; a model that is not named has weight 0."""
        return Weights.over(self, given)


@dataclass(frozen=True)
class Weights:
    """A distribution over a portfolio's models, exactly as given: never renormalised."""

    portfolio: Portfolio
    values: tuple[float, ...]

    @classmethod
    def over(cls, portfolio: Portfolio, given: Mapping[str, float]) -> Weights:
        """Refuse unknown names, values outside [0, 1] and sums away from 1."""
        portfolio.require_names(given, WeightsError)
        for name, value in given.items():
            if not math.isfinite(value) or value < 0:
                raise WeightsError(f"the weight of {name!r} is {value}; weights are finite and non-negative")
        total = math.fsum(given.values())
        if abs(total - 1) > WEIGHT_SUM_TOLERANCE:
            raise WeightsError(
                f"the weights sum to {total!r}, not 1 (within {WEIGHT_SUM_TOLERANCE:g}); "
                "they are never renormalised: give the weights you mean"
            )
        return cls(portfolio, tuple(float(given.get(name, 0.0)) for name in portfolio.names))

    @classmethod
    def parse(cls, portfolio: Portfolio, text: str) -> Weights:
        """Read `a=0.2,b=0.8`; a value may be a fraction (`a=1/3`)."""
        return cls.over(portfolio, named_numbers(text, "weight", WeightsError))

    def as_dict(self) -> dict[str, float]:
        """Every model with its weight, zeros included."""
        return dict(zip(self.portfolio.names, self.values, strict=True))

    @property
    def total(self) -> float:
        """Their sum, which may differ from 1 by rounding."""
        return math.fsum(self.values)

    @property
    def used(self) -> tuple[tuple[Model, float], ...]:
        """The models that have weight, with it."""
        return tuple((m, w) for m, w in zip(self.portfolio.models, self.values, strict=True) if w > 0)

    def or_looked_at(self, names: Iterable[str]) -> tuple[Model, ...]:
        """The models that have weight or are named, in order: what a choice of these weights may depend on."""
        looked = set(names)
        self.portfolio.require_names(looked, WeightsError)
        return tuple(m for m, w in zip(self.portfolio.models, self.values, strict=True) if w > 0 or m.name in looked)


def _least_noise(mechanism: Mechanism) -> float | None:
    """The noise multiplier; of several phases the least."""
    if isinstance(mechanism, DpSgd):
        return min(phase.noise_multiplier for phase in mechanism.settings())
    if isinstance(mechanism, Gaussian):
        return mechanism.noise_std / mechanism.sensitivity
    return mechanism.noise_multiplier if isinstance(mechanism, DpFtrl) else None


def latest_checkpoints(models: tuple[Model, ...]) -> tuple[Model, ...]:
    """What is to be composed: of each run its latest checkpoint, whose record covers the earlier ones; or all its models.

    A record that states (ε, δ), a Rényi curve or one Gaussian release is silent about other models of its run: each counts.
    """
    latest: dict[tuple[str, str | None], Model] = {}
    for model in models:
        key = (model.run, None if model.covers_iterates else model.name)
        held = latest.get(key)
        if held is None or _steps(model) > _steps(held):
            latest[key] = model
    return tuple(latest.values())


def require_independent(models: tuple[Model, ...]) -> tuple[str, ...]:
    """Refuse runs that share their noise or their sampling coins; return what is taken on the user's word.

    Equal noise cancels in a linear combination, and equal batches alone already double ε (theory.md §0). Models of one run
    share everything; if each of them counts, their records must say what each costs beside the others (§3.1).
    """
    if len(models) < 2:
        return ()
    for stated, word in (("noise_fingerprint", "noise"), ("sampler_fingerprint", "sampling coins")):
        seen: dict[str, Model] = {}
        for model in models:
            for fingerprint in _generators(getattr(model.mechanism, stated)):
                if fingerprint in seen and seen[fingerprint].run != model.run:
                    raise DependentRuns(
                        f"models {seen[fingerprint].name!r} and {model.name!r} are different runs with the same {stated} "
                        f"{fingerprint!r}: their {word} are not independent, and no bound here holds for them together; "
                        "retrain one with fresh randomness, or use random selection, which needs no independence"
                    )
            seen |= dict.fromkeys(_generators(getattr(model.mechanism, stated)), model)
    by_run: dict[str, list[Model]] = {}
    for model in models:
        by_run.setdefault(model.run, []).append(model)
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


_CONTINUED = re.compile(r"\+([^+@]+)@(\d+)")  # the generator with which a run went on, and after how many steps


def _generators(fingerprint: str | None) -> list[str]:
    """One for each generator that a run has had: a run that was continued has a fingerprint first+next@steps."""
    if fingerprint is None:
        return []
    first = _CONTINUED.sub("", fingerprint)
    return [first, *(part for part, _ in _CONTINUED.findall(fingerprint))] if first else [fingerprint]


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


def _check_one_dataset(models: tuple[Model, ...]) -> None:
    if not models:
        raise PortfolioError("a portfolio needs at least one model")
    first, names = models[0], set[str]()
    for other in models:
        if other.name in names:
            raise PortfolioError(f"two models are named {other.name!r}; weights are given by name, so give each its own")
        names.add(other.name)
        if other.record.dataset != first.record.dataset:
            raise PortfolioError(
                f"models {first.name!r} and {other.name!r} were trained on different datasets "
                f"({first.record.dataset!r}, {other.record.dataset!r}): a merge accounts for one private dataset; "
                "put them into separate portfolios"
            )
        if other.record.adjacency != first.record.adjacency:
            raise PortfolioError(
                f"models {first.name!r} and {other.name!r} are accounted under different adjacencies "
                f"({first.record.adjacency}, {other.record.adjacency}): guarantees for different neighbours do not "
                "combine; state both records under one adjacency"
            )


def _check_checkpoints(models: tuple[Model, ...]) -> None:
    """Checkpoints of one run tell one story: the shorter record is the beginning of the longer one."""
    by_run: dict[str, list[Model]] = {}
    for model in models:
        by_run.setdefault(model.run, []).append(model)
    for run, group in by_run.items():
        group.sort(key=_steps)
        lengths = [m.mechanism.tree_lengths for m in group if isinstance(m.mechanism, DpFtrl)]
        if lengths and max(least for least, _ in lengths) > min(most for _, most in lengths):
            raise PortfolioError(
                f"the records of run {run!r} ({', '.join(repr(m.name) for m in group)}) do not fit together: trees of no one "
                "length have been restarted so often at each of these steps; give different runs different ids"
            )
        for earlier, later in pairwise(group):
            if not _begins(earlier.mechanism, later.mechanism):
                raise PortfolioError(
                    f"models {earlier.name!r} and {later.name!r} both claim run {run!r}, but the record of the first is "
                    "not the beginning of the second; give different runs different ids"
                )


def _begins(earlier: Mechanism, later: Mechanism) -> bool:
    if isinstance(earlier, DpSgd) and isinstance(later, DpSgd):
        same = {"phases", "noise_multiplier", "clip", "sampling", "expected_batch", "noise_fingerprint", "sampler_fingerprint"}
        # What changes later is left out later; a run may go on on another machine.
        same |= {"left_out", "others_unchanged", "noise_generator"}
        for stated in ("noise_fingerprint", "sampler_fingerprint"):
            if not _goes_on(getattr(earlier, stated), getattr(later, stated), earlier.steps):
                return False
        if earlier.model_dump(exclude=same) != later.model_dump(exclude=same):
            return False
        return _is_prefix(joined(earlier.settings()), joined(later.settings()))
    if type(earlier) is not type(later):
        return False
    if isinstance(earlier, DpFtrl) and isinstance(later, DpFtrl) and not _restarts_agree(earlier, later):
        return False
    story = {"steps", "restarts", "tree_steps"}
    return earlier.model_dump(exclude=story) == later.model_dump(exclude=story)


def _restarts_agree(earlier: DpFtrl, later: DpFtrl) -> bool:
    """Restarts only ever add up; at the same step there is one number of them."""
    return earlier.restarts <= later.restarts and (earlier.steps < later.steps or earlier.restarts == later.restarts)


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
