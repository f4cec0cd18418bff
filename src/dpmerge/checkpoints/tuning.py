"""Choose a rule's parameter by accuracy on a public validation set (Algorithm 4 of Recycling Scraps).

Every average is a function of the run's checkpoints, and so is the best one on public examples: the choice costs nothing
beyond the run up to its latest checkpoint (docs/theory.md §7). With a private validation set the choice has a cost too (§4).
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.cache import code_fingerprint
from dpmerge.checkpoints.average import averaging
from dpmerge.checkpoints.predict import OutputRule, asked, predictions
from dpmerge.checkpoints.predictor import Inputs, find_predictor, load_inputs
from dpmerge.checkpoints.run import Run
from dpmerge.checkpoints.spread import public_guarantee
from dpmerge.errors import DataError, EvaluationError, WeightsError
from dpmerge.jobs import run_all
from dpmerge.planning import Averaging, Mapper
from dpmerge.records import Model
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Guarantee
from dpmerge.tensors import folder_digest, merge_models

TunedRule = Literal["ema", "uta", "pda", OutputRule]
Parameter = Literal["last", "decay", "new_weight", "gamma"]
_PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "ema": ("decay", "new_weight"),
    "uta": ("last",),
    "pda": ("gamma",),
    "opa": ("last",),
    "omv": ("last",),
}
_NOT_PUBLIC = (
    "tuning here needs a public validation set: state that yours is public (validation_is_public). With a private one the "
    "choice must be noisy and has a cost: use report-noisy-max, as in a plan with validation_epsilon"
)


@dataclass(frozen=True)
class Grid:
    """Values of one parameter of one rule, in order; ties go to the first."""

    rule: TunedRule
    parameter: Parameter
    values: tuple[float, ...]
    warm_up: bool = False

    def __post_init__(self) -> None:
        if self.rule not in _PARAMETERS:
            raise WeightsError(f"no rule to tune is named {self.rule!r}; choose from {', '.join(_PARAMETERS)}")
        if self.parameter not in _PARAMETERS[self.rule]:
            wanted = " or ".join(_PARAMETERS[self.rule])
            raise WeightsError(f"{self.rule} has no parameter {self.parameter}; its parameter is {wanted}")
        if self.warm_up and self.rule != "ema":
            raise WeightsError(f"the warm-up belongs to ema, not to {self.rule}")
        if not self.values or len(set(self.values)) != len(self.values):
            raise WeightsError(f"the grid of {self.rule} needs distinct values; it has {list(self.values)}")
        for value in self.values:
            if self.parameter == "last" and not float(value).is_integer():
                raise WeightsError(f"{self.rule} uses a whole number of last checkpoints, not {value:g}")

    def average(self, value: float, checkpoints: int) -> Averaging:
        stated = {} if self.parameter == "last" else {self.parameter: value}
        return averaging(self.rule, checkpoints, warm_up=self.warm_up, **stated)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Score:
    """Accuracy of one average: on the validation examples, and on the rest, if there are any."""

    value: float | None  # None: the last checkpoint alone
    validation: float
    rest: float | None


@dataclass(frozen=True)
class Tuned:
    """The scores of a grid, and of the last checkpoint for comparison."""

    grid: Grid
    scores: tuple[Score, ...]
    last: Score

    @property
    def best(self) -> Score:
        """The first of equally good ones: Algorithm 4 replaces the best only by a strictly better one."""
        return max(self.scores, key=lambda score: score.validation)

    def as_dict(self) -> dict[str, Any]:
        grid = {"rule": self.grid.rule, "parameter": self.grid.parameter, "warm_up": self.grid.warm_up}
        scores = [asdict(score) for score in self.scores]
        return {**grid, "scores": scores, "last_checkpoint": asdict(self.last), "best": asdict(self.best)}


@dataclass(frozen=True)
class Search:
    """A search over a grid of averages of one run; arguments are already validated.

    Calling it with a value counts the correct answers on the validation examples, and on the rest. It is small enough to send
    to other machines.
    """

    folder: Path
    grid: Grid
    examples: tuple[str | None, Path | None, float | None]  # as `load_inputs` takes them
    predictor: str | None
    probabilities: bool
    validation: int
    until: int | None
    fingerprint: str

    @classmethod
    def of(
        cls,
        run: str | Path,
        grid: Grid,
        *,
        validation_is_public: bool,
        task: str | None = None,
        data: Path | None = None,
        norm_bound: float | None = None,
        validation: int | None = None,
        predictor: str | None = None,
        probabilities: bool = False,
        until: int | None = None,
        allow_gaps: bool = False,
    ) -> Search:
        """Examples and predictor: as for `load_inputs` and `find_predictor`. Only checkpoints up to step `until` are used.

        The first `validation` examples select the value (default: all), and the others measure its accuracy.
        """
        if not validation_is_public:
            raise EvaluationError(_NOT_PUBLIC)
        find_predictor(predictor)
        folder, where = Path(run).resolve(), None if data is None else data.resolve()
        loaded = Run.load(folder)
        used = loaded.last(until=until, allow_gaps=allow_gaps)
        for value in grid.values:
            if grid.parameter == "last":
                loaded.last(int(value), until=until, allow_gaps=allow_gaps)
            else:
                grid.average(value, len(used))
        inputs = load_inputs(task, where, norm_bound)
        if inputs.labels is None:
            raise DataError(f"{inputs.source}: tuning needs labels; this file has none")
        choosing = len(inputs.values) if validation is None else validation
        if not 1 <= choosing <= len(inputs.values):
            raise DataError(f"{inputs.source}: `validation` is {choosing}; it must be from 1 to {len(inputs.values)}")
        asked_for = (grid.rule, grid.parameter, grid.warm_up, choosing, predictor, probabilities, until)
        fingerprint = _fingerprint(used, inputs, asked_for)
        return cls(folder, grid, (task, where, norm_bound), predictor, probabilities, choosing, until, fingerprint)

    @property
    def run(self) -> Run:
        return _loaded(self.folder, self.examples, self.fingerprint)[0]

    @property
    def inputs(self) -> Inputs:
        return _loaded(self.folder, self.examples, self.fingerprint)[1]

    def guarantee(self, delta: float, accounting: Accounting = DEFAULT_ACCOUNTING) -> Guarantee:
        """The guarantee of all scores, the choice and its result: the run up to its last checkpoint in the folder."""
        last = self.run.checkpoints[-1]
        return public_guarantee(self.run.portfolio.weights({last.name: 1.0}), delta, accounting)

    def tuned(self, mapper: Mapper = run_all) -> Tuned:
        """Score every average of the grid. `mapper` is `jobs.run_all`, or a partial with where to run and store results."""
        items = [None, *self.grid.values]
        found = mapper(self, items, keys=[f"{self.fingerprint}:{value!r}" for value in items])
        others = len(self.inputs.values) - self.validation
        scores = [
            Score(value, right / self.validation, right_others / others if others else None)
            for value, (right, right_others) in zip(items, found, strict=True)
        ]
        return Tuned(self.grid, tuple(scores[1:]), scores[0])

    def __call__(self, value: float | None) -> tuple[int, int]:
        """Correct answers of one average (None: of the last checkpoint alone)."""
        inputs = self.inputs
        right = self._labels(self.run, inputs, value) == inputs.labels
        return int(right[: self.validation].sum()), int(right[self.validation :].sum())

    def _labels(self, run: Run, inputs: Inputs, value: float | None) -> npt.NDArray[np.int64]:
        predictor, rule = find_predictor(self.predictor), self.grid.rule
        # Gaps were checked when the search was created.
        if value is None or rule in ("opa", "omv"):
            return predictions(
                run,
                "omv" if rule == "omv" else "opa",
                predictor,
                inputs.values,
                last=1 if value is None else int(value),
                until=self.until,
                allow_gaps=True,
                probabilities=self.probabilities,
            ).labels
        used = run.last(int(value) if rule == "uta" else None, until=self.until, allow_gaps=True)
        weights = dict(zip((model.name for model in used), self.grid.average(value, len(used)).weights(), strict=True))
        folders = {model.name: self.folder / model.name for model in used}
        with tempfile.TemporaryDirectory(prefix="dpmerge-") as scratch:
            merged = Path(scratch) / "average"
            merge_models(folders, weights, merged, take_from=used[-1].name, digests=False, threads=1)
            average = replace(used[-1], name=f"the {rule} average", folder=merged)
            return np.asarray(asked(predictor, average, inputs.values, self.probabilities).argmax(axis=1))


@lru_cache(maxsize=1)
def _loaded(folder: Path, examples: tuple[str | None, Path | None, float | None], fingerprint: str) -> tuple[Run, Inputs]:
    """Loaded once per process; the fingerprint distinguishes earlier contents of the same folder."""
    return Run.load(folder), load_inputs(*examples)


def _fingerprint(used: tuple[Model, ...], inputs: Inputs, asking: tuple[Any, ...]) -> str:
    """Hash of the checkpoints' files, the examples and the arguments: a stored score is reused only for the same search."""
    digest = hashlib.sha256(repr((asking, code_fingerprint("checkpoints", "tensors", "planning"))).encode())
    for array in (inputs.values, inputs.labels):
        assert array is not None
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    for model in used:
        assert model.folder is not None
        digest.update(folder_digest(model.folder, model.name))
    return digest.hexdigest()[:32]
