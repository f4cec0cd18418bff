"""What a run of a portfolio says, and who makes it: linear models here, others by installed packages.

An entry point of `dpmerge.trainers` is a table from model names to `module:class`, each a `Trainer`. A package may extend one
of the trainers here: what it adds under the same name takes its place.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dpmerge.errors import TrainingError
from dpmerge.records import DataFingerprint, NonNegative, Positive, Strict
from dpmerge.training import linear
from dpmerge.training.advice import LinearSetting, advice, limits
from dpmerge.training.data import Data, DataSource, features
from dpmerge.training.head import HeadConfig
from dpmerge.training.origin import Origin, Partition, Start
from dpmerge.training.recipe import Recipe
from dpmerge.training.run_folder import RunFolder
from dpmerge.training.saving import Checkpoint
from dpmerge.user_code import LABORATORY, added, load_function

Count = Annotated[int, Field(ge=1)]
# A run says one of each; saying one takes the place of another among the defaults.
ALTERNATIVES = (("steps", "epochs"), ("batch", "rate", "full_batch"))
TELL_EVERY = 0.3  # seconds
# How many examples are in a part is not public, so no theorem bounds a batch of all of them (docs/theory.md §10).
_WHOLE_PART = "a full batch of one of several parts has no public size"


class RunForm(Strict):
    """What every run says. `warmup` and `checkpoints` are counted as the run is: in steps or in epochs."""

    model: str
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
    weight_decay: NonNegative = 0.0
    checkpoints: tuple[Count, ...] = ()
    # A run of this file, a checkpoint of one (NAME@STEP), or a model's folder.
    start: Annotated[Annotated[str, Field(min_length=1)] | None, Field(alias="from")] = None
    shards: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> RunForm:
        for group in ALTERNATIVES:
            if sum(getattr(self, name) is not None for name in group) != 1:
                raise ValueError(f"give one of {', '.join(group)}")
        if self.shards is not None and (self.full_batch or self.rate == 1):
            raise ValueError(f"{_WHOLE_PART}; give a rate below 1")
        length = self.steps or self.epochs or 0
        for field, latest in (("warmup", self.warmup), ("checkpoints", max(self.checkpoints, default=0))):
            if latest > length:
                raise ValueError(f"{field} says {latest}, but the run has {length} {'steps' if self.steps else 'epochs'}")
        return self

    def share_of(self, examples: int) -> float:
        """The public number of examples of one run: of a part its share, never its own size."""
        return examples / self.shards if self.shards else examples

    def rate_for(self, examples: float) -> float | None:
        """The true Poisson rate with which each example joins a batch: B/N; nothing for full batches."""
        if self.shards is not None and self.batch is not None and self.batch >= examples:
            raise TrainingError(f"batch is {self.batch}, and a part has about {examples:g} examples: {_WHOLE_PART}")
        if self.batch is not None and self.batch > examples:
            raise TrainingError(f"batch is {self.batch}, but there are {examples:g} examples; use full_batch: true")
        return self.batch / examples if self.batch is not None else self.rate

    def in_steps(self, count: int, examples: float) -> int:
        """Convert epochs to steps (⌈1/rate⌉ each); a count of steps stays."""
        rate = self.rate_for(examples)
        per_epoch = 1 if rate is None else math.ceil(examples / self.batch) if self.batch else math.ceil(1 / rate)
        return count * per_epoch if self.epochs else count

    def recipe(self, labels: npt.NDArray[np.int64]) -> Recipe:
        """The recipe for examples with these labels."""
        return Recipe(**self.schedule(self.share_of(len(labels))))

    def schedule(self, examples: float) -> dict[str, Any]:
        """The fields of the recipe."""
        return {
            "steps": self.in_steps(self.steps or self.epochs or 0, examples),
            "rate": self.rate_for(examples),
            "learning_rate": self.learning_rate,
            "warmup": self.in_steps(self.warmup, examples),
            "decay": self.decay,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "weight_decay": self.weight_decay,
        }

    def kept(self, labels: npt.NDArray[np.int64]) -> list[int]:
        examples = self.share_of(len(labels))
        return self.recipe(labels).kept(self.in_steps(kept, examples) for kept in self.checkpoints)


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know; it loads the data itself."""

    name: str
    settings: RunForm
    trainer: Trainer
    source: DataSource
    digest: str  # of the data
    dataset: str
    norm_bound: float | None
    device: str
    out: Path
    asked: dict[str, Any]
    start: Path | None = None  # the model's folder that the run starts from
    partition: Partition | None = None
    part: int = 0
    data_fingerprint: DataFingerprint | None = None  # of what the run sees

    def origin(self, examples: int) -> Origin:
        """Where the run starts, and which part of so many examples it sees."""
        shard = None if self.partition is None else self.partition.shard(self.part)
        start = None if self.start is None else Start.read(self.start, self.dataset, self.data_fingerprint, shard)
        return Origin(start, shard, None if shard is None else self.settings.share_of(examples))

    def rows(self, examples: int) -> npt.NDArray[np.int64] | slice:
        """The examples that the run sees."""
        return slice(None) if self.partition is None else self.partition.rows(self.part, examples)

    def with_data(self, made: Checkpoint) -> Checkpoint:
        """With the fingerprint of what the run saw in its record, if there is one."""
        return replace(made, record=made.record.model_copy(update={"data_fingerprint": self.data_fingerprint}))

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.out, self.name)

    def new_run(self) -> str:
        return f"{self.name}-{secrets.token_hex(8)}"


class Trainer:
    """Makes the models of one kind of run."""

    form: ClassVar[type[RunForm]]  # what such a run may say in the file
    bounds_inputs: ClassVar[bool] = False  # whether inputs are shortened to the file's norm_bound
    uses_device: ClassVar[bool] = False  # whether a device other than the CPU may be chosen

    def require(self, device: str) -> None:
        """Refuse what cannot be run on this machine."""

    def check(self, job: Job, data: Data) -> None:
        """Refuse a run that does not suit the data; all runs are checked before the first begins."""

    def check_unfinished(self, job: Job) -> None:
        """Refuse to continue what was begun differently."""

    def advice(self, jobs: Sequence[Job], data: Data, delta: float) -> tuple[dict[str, dict[str, float]], list[str]]:
        """For each run the limits within which averages and noise at release pay, where they are known; and warnings."""
        return {}, []

    def shares(self, job: Job) -> bool:
        """Whether the run is made in one go with others of its kind, by `make_all`."""
        return False

    def make(self, job: Job, data: Data) -> list[tuple[Checkpoint, float]]:
        """The models to keep, each with its accuracy on the public test part."""
        raise NotImplementedError

    def make_all(self, jobs: Sequence[Job], data: Data) -> list[list[tuple[Checkpoint, float]]]:
        """The same for several runs of this kind."""
        return [self.make(job, data) for job in jobs]


class LinearRun(RunForm):
    model: linear.Loss
    clip_shares: Annotated[tuple[Positive, ...], Field(min_length=2)] | None = None  # of one-vs-rest, for each class

    @model_validator(mode="after")
    def _each_output_has_a_clip(self) -> LinearRun:
        if self.clip_shares is not None and self.model != "one-vs-rest":
            raise ValueError(f"clip_shares belongs to one-vs-rest; {self.model} has one clip")
        return self


class Linear(Trainer):
    """Softmax, logistic or one-vs-rest regression in numpy, on the CPU; it starts from zero."""

    form: ClassVar[type[RunForm]] = LinearRun
    bounds_inputs = True

    def check(self, job: Job, data: Data) -> None:
        model = job.settings.model
        if job.norm_bound is None:
            raise TrainingError(f"{model} regression needs norm_bound, the largest norm of an input with its bias")
        if model == "logistic" and data.classes != 2:
            raise TrainingError(
                f"logistic regression has two classes, not {data.classes}; use softmax, one-vs-rest or positive: […]"
            )
        shares = _shares(job)
        if shares and len(shares) != data.classes:
            raise TrainingError(f"clip_shares has {len(shares)} numbers for {data.classes} classes")

    def advice(self, jobs: Sequence[Job], data: Data, delta: float) -> tuple[dict[str, dict[str, float]], list[str]]:
        known = [(job.name, self.setting(job, data)) for job in jobs]
        count = len(jobs)
        return {name: limits(setting, count, delta) for name, setting in known}, advice(known, delta)

    @staticmethod
    def setting(job: Job, data: Data) -> LinearSetting:
        assert job.norm_bound is not None
        loss = cast(linear.Loss, job.settings.model)
        examples = round(job.settings.share_of(len(data.train)))
        return LinearSetting(job.settings.recipe(data.train_labels), loss, examples, job.norm_bound)

    def shares(self, job: Job) -> bool:
        return job.settings.full_batch is True  # then one look at the data serves all; other batches are each run's own

    def make(self, job: Job, data: Data) -> list[tuple[Checkpoint, float]]:
        return self.make_all([job], data)[0]

    def make_all(self, jobs: Sequence[Job], data: Data) -> list[list[tuple[Checkpoint, float]]]:
        first = jobs[0]  # the runs of a portfolio have one data set and one bound
        assert first.norm_bound is not None
        train, test = features(first.source, first.norm_bound)
        heads = [
            linear.Head(
                recipe=job.settings.recipe(data.train_labels),
                loss=cast(linear.Loss, job.settings.model),
                clip_shares=_shares(job),
                run=job.new_run(),
                checkpoints=job.settings.kept(data.train_labels),
                on_step=every(TELL_EVERY, job.folder.tell),
                origin=job.origin(len(train)),
                rows=job.rows(len(train)),
            )
            for job in jobs
        ]
        made = linear.train_heads(
            train, data.train_labels, data.classes, heads, norm_bound=first.norm_bound, dataset=first.dataset
        )
        return [
            [(replace(one, config=_config(job)), linear.accuracy(one.tensors, test, data.test_labels)) for one in kept]
            for job, kept in zip(jobs, made, strict=True)
        ]


def _shares(job: Job) -> tuple[float, ...]:
    return job.settings.clip_shares or () if isinstance(job.settings, LinearRun) else ()


def _config(job: Job) -> str:
    source = job.source
    assert job.norm_bound is not None
    return HeadConfig(
        loss=cast(linear.Loss, job.settings.model),
        norm_bound=job.norm_bound,
        mean=source.mean,
        deviation=source.deviation,
        network=source.public_network,
    ).text()


_OWN = dict.fromkeys(get_args(linear.Loss), f"{__name__}:Linear")


def find_trainer(model: object) -> Trainer:
    others = added("trainers")
    known = _OWN | others
    if not isinstance(model, str) or model not in known:
        more = "" if others else f"; {LABORATORY}"
        raise TrainingError(f"field model: must be one of {', '.join(known)} (got {model!r}){more}")
    made = load_function(known[model], "the trainer", TrainingError)()
    if not isinstance(made, Trainer):
        raise TrainingError(f"the trainer {known[model]!r} gave {type(made).__name__}; it must be a Trainer of dpmerge's")
    return made


def every(seconds: float, do: Callable[[int], None]) -> Callable[[int], None]:
    """Call `do` at steps, at most once in `seconds`; a worker whose parent process was killed stops there."""
    last = time.monotonic()

    def at(step: int) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            parent = multiprocessing.parent_process()
            if parent is not None and parent.pid != os.getppid():
                raise TrainingError("the process that started this one has ended")
            do(step)

    return at
