"""The YAML file of `dpmerge train`: one data set, and the runs to make a portfolio of (docs/training.md)."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dpmerge.errors import TrainingError
from dpmerge.records import NonNegative, Positive, Strict, parse_strict
from dpmerge.training.averaging import MovingAverage, TailMean, TrainingOn
from dpmerge.training.shift import PeriodicShift
from dpmerge.training.yaml_file import read_yaml

Count = Annotated[int, Field(ge=1)]
LINEAR = ("softmax", "logistic")
NETWORKS = ("mlp", "cnn", "resnet18", "wrn-16-4")
# A run says one of each; saying one takes the place of another among the defaults.
_ALTERNATIVES = (("steps", "epochs"), ("batch", "rate", "full_batch"))
_NAME = re.compile(r"\w[\w.+-]{0,99}")


class OnAggregates(Strict):
    """Training that goes on from an aggregate of the iterates so far, after `start` steps (docs/aggregate.md)."""

    start: Annotated[int, Field(ge=0)]
    last: Count | None = None
    new_weight: Annotated[float, Field(gt=0, le=1)] | None = None
    decay: Annotated[float, Field(ge=0, lt=1)] | None = None
    warm_up: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> OnAggregates:
        if sum(value is not None for value in (self.last, self.new_weight, self.decay)) != 1:
            raise ValueError("give one of last (a tail mean), new_weight, decay (a moving average)")
        if self.last is not None and self.warm_up:
            raise ValueError("warm_up belongs to a moving average")
        return self

    def training_on(self) -> TrainingOn:
        """As trainers take it."""
        if self.last is not None:
            return TrainingOn(TailMean(self.last), self.start)
        return TrainingOn(MovingAverage(self.new_weight, self.decay, self.warm_up), self.start)


class Shift(Strict):
    """Batches that swing between even and odd classes, with this period in steps."""

    period: Annotated[int, Field(ge=2)]


class Run(Strict):
    """What every run says. `warmup` and `checkpoints` are counted as the run is: in steps or in epochs."""

    steps: Count | None = None
    epochs: Count | None = None
    batch: Count | None = None
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    full_batch: Literal[True] | None = None
    learning_rate: Positive
    warmup: Annotated[int, Field(ge=0)] = 0
    decay: bool = False
    clip: Positive
    noise_multiplier: NonNegative
    checkpoints: tuple[Count, ...] = ()
    on_aggregates: OnAggregates | None = None
    shift: Shift | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Run:
        for group in _ALTERNATIVES:
            if sum(getattr(self, name) is not None for name in group) != 1:
                raise ValueError(f"give one of {', '.join(group)}")
        length = self.steps or self.epochs or 0
        for field, latest in (("warmup", self.warmup), ("checkpoints", max(self.checkpoints, default=0))):
            if latest > length:
                raise ValueError(f"{field} says {latest}, but the run has {length} {'steps' if self.steps else 'epochs'}")
        if self.shift is not None and self.full_batch:
            raise ValueError("full batches cannot shift; give batch or rate")
        return self

    def rate_for(self, examples: int) -> float | None:
        """The true Poisson rate with which each example joins a batch: B/N; nothing for full batches."""
        if self.batch is not None and self.batch > examples:
            raise TrainingError(f"batch is {self.batch}, but there are {examples} examples; use full_batch: true")
        return self.batch / examples if self.batch is not None else self.rate

    def in_steps(self, count: int, examples: int) -> int:
        """So many epochs, if that is what the run is counted in: ⌈1/rate⌉ steps each."""
        rate = self.rate_for(examples)
        per_epoch = 1 if rate is None else -(-examples // self.batch) if self.batch else math.ceil(1 / rate)
        return count * per_epoch if self.epochs else count

    def schedule(self, labels: npt.NDArray[np.int64]) -> dict[str, Any]:
        """What a recipe takes, for examples with these labels."""
        examples, shift = len(labels), None
        rate = self.rate_for(examples)
        if self.shift is not None and rate is not None:
            shift, rate = PeriodicShift.even_and_odd(labels, self.shift.period, rate * examples), None
        return {
            "steps": self.in_steps(self.steps or self.epochs or 0, examples),
            "rate": rate,
            "shift": shift,
            "training_on": None if self.on_aggregates is None else self.on_aggregates.training_on(),
            "learning_rate": self.learning_rate,
            "warmup": self.in_steps(self.warmup, examples),
            "decay": self.decay,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
        }


class LinearRun(Run):
    """Softmax or logistic regression, in numpy; it starts from zero."""

    model: Literal["softmax", "logistic"]


class NetworkRun(Run):
    """A network; its first parameters come from `seed`, which is public and decides nothing else."""

    model: Literal["mlp", "cnn", "resnet18", "wrn-16-4"]
    seed: Annotated[int, Field(ge=0)] = 0
    hidden: Count = 128
    micro_batch: Count = 512


class Normalise(Strict):
    """(x − mean) / deviation, one number for each channel: public constants, never computed from the private data."""

    mean: Annotated[list[float], Field(min_length=1)]
    deviation: Annotated[list[Positive], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_of_each(self) -> Normalise:
        if len(self.mean) != len(self.deviation):
            raise ValueError(f"{len(self.mean)} means but {len(self.deviation)} deviations")
        return self


class _File(Strict):
    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    data: Annotated[str, Field(min_length=1)]
    dataset: Annotated[str, Field(min_length=1)] | None = None
    classes: Annotated[int, Field(ge=2)] | None = None
    positive: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    normalise: Normalise | None = None
    norm_bound: Annotated[float, Field(gt=1)] | None = None
    defaults: Annotated[dict[str, Any], Field(default_factory=dict)]
    runs: Annotated[dict[str, dict[str, Any] | None], Field(min_length=1)]


@dataclass(frozen=True)
class PortfolioFile:
    """A file that was read: what the data are, how they are prepared, and every run with its defaults filled in."""

    path: Path
    data: str
    dataset: str | None
    classes: int | None
    positive: tuple[int, ...] | None
    normalise: Normalise | None
    norm_bound: float | None
    runs: dict[str, LinearRun | NetworkRun]

    @classmethod
    def load(cls, path: Path) -> PortfolioFile:
        """Read and validate; any fault is one line that names the file and the field."""
        read = parse_strict(_File, read_yaml(path, TrainingError), str(path), TrainingError)
        runs = {name: _run(path, name, read.defaults, given or {}) for name, given in read.runs.items()}
        positive = None if read.positive is None else tuple(read.positive)
        return cls(path, read.data, read.dataset, read.classes, positive, read.normalise, read.norm_bound, runs)

    def asked(self, name: str) -> dict[str, Any]:
        """Everything that decides how this run is made, as plain data: a run is not made again as long as it stays so."""
        shared = {
            "data": self.data,
            "dataset": self.dataset,
            "classes": self.classes,
            "positive": None if self.positive is None else list(self.positive),
            "normalise": None if self.normalise is None else self.normalise.model_dump(mode="json"),
            "norm_bound": self.norm_bound if isinstance(self.runs[name], LinearRun) else None,
        }
        stated = {field: value for field, value in shared.items() if value is not None}
        return stated | self.runs[name].model_dump(mode="json", exclude_defaults=True)


def _run(path: Path, name: str, defaults: dict[str, Any], given: dict[str, Any]) -> LinearRun | NetworkRun:
    if not _NAME.fullmatch(name):
        raise TrainingError(f"{path}: run {name!r}: a name has letters, digits and . + - _ only: it becomes a folder's")
    replaced = {other for group in _ALTERNATIVES if given.keys() & set(group) for other in group}
    whole = {key: value for key, value in defaults.items() if key not in replaced} | given
    model = whole.get("model")
    if model not in (*LINEAR, *NETWORKS):
        known = ", ".join((*LINEAR, *NETWORKS))
        raise TrainingError(f"{path}: run {name!r}: field model: must be one of {known} (got {model!r})")
    form: type[LinearRun | NetworkRun] = LinearRun if model in LINEAR else NetworkRun
    return parse_strict(form, json.dumps(whole), f"{path}: run {name!r}", TrainingError)
