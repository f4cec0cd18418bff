"""What the laboratory adds to `dpmerge train`: networks, training on aggregates, and batches that shift (docs/training.md)."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator, Strict
from dpmerge.training import TELL_EVERY, Checkpoint, Data, Job, Linear, LinearRun, RunForm, Tensors, Trainer, every, together
from dpmerge_lab.training.averaging import MovingAverage, TailMean, TrainingOn
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.run_state import State, saved_state
from dpmerge_lab.training.shift import PeriodicShift

Count = Annotated[int, Field(ge=1)]
SAVE_EVERY = 60.0  # seconds between the states of a network in training


class OnAggregates(Strict):
    """Training that goes on from an aggregate of the iterates so far, after `start` steps (docs/checkpoints.md)."""

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
        if self.last is not None:
            return TrainingOn(TailMean(self.last), self.start)
        return TrainingOn(MovingAverage(self.new_weight, self.decay, self.warm_up), self.start)


class Shift(Strict):
    """Batches that swing between even and odd classes, with this period in steps."""

    period: Annotated[int, Field(ge=2)]


class LabRun(RunForm):
    """What a run may say beside what the tool knows."""

    on_aggregates: OnAggregates | None = None
    shift: Shift | None = None

    @model_validator(mode="after")
    def _can_shift(self) -> LabRun:
        if self.shift is not None and self.full_batch:
            raise ValueError("full batches cannot shift; give batch or rate")
        if self.shift is not None and self.shards is not None:
            raise ValueError("batches that shift follow the labels of a part; leave out shift or shards")
        return self

    def recipe(self, labels: npt.NDArray[np.int64]) -> LabRecipe:
        schedule = self.schedule(self.share_of(len(labels)))
        if self.shift is not None:
            expected = schedule.pop("rate") * len(labels)
            schedule["shift"] = PeriodicShift.even_and_odd(labels, self.shift.period, expected)
        if self.on_aggregates is not None:
            schedule["training_on"] = self.on_aggregates.training_on()
        return LabRecipe(**schedule)


class LabLinearRun(LabRun, LinearRun):
    pass


class LabLinear(Linear):
    """The tool's linear models, also on aggregates and with batches that shift."""

    form = LabLinearRun


class NetworkRun(LabRun):
    """A network; its first parameters come from `seed`, which is public and decides nothing else."""

    model: Literal["mlp", "cnn", "resnet18", "wrn-16-4"]
    seed: Annotated[int, Field(ge=0)] = 0
    hidden: Count = 128
    micro_batch: Count = 512


class Network(Trainer):
    """Torch networks with gradients for every example by Opacus."""

    form: ClassVar[type[RunForm]] = NetworkRun
    uses_device = True

    def require(self, device: str) -> None:
        if find_spec("torch") is None or find_spec("opacus") is None:
            raise TrainingError("networks need torch and Opacus; install dpmerge[torch]")
        from dpmerge_lab.training.private_sgd import device as check

        check(device)

    def check(self, job: Job, data: Data) -> None:
        if job.settings.model != "mlp" and len(data.shape) != 3:
            raise TrainingError(f"{job.settings.model} needs images; the inputs have shape {data.shape}: use mlp")

    def check_unfinished(self, job: Job) -> None:
        saved_state(job)

    def make(self, job: Job, data: Data) -> list[tuple[Checkpoint, float]]:
        import torch

        from dpmerge_lab.training import private_sgd
        from dpmerge_lab.training.networks import build, from_seed

        settings = job.settings
        assert isinstance(settings, NetworkRun)
        where, recipe = private_sgd.device(job.device), settings.recipe(data.train_labels)
        wanted = settings.kept(data.train_labels)
        network = from_seed(lambda: build(settings.model, data.shape, data.classes, settings.hidden), settings.seed)

        def tensors() -> dict[str, Any]:
            return {name: tensor.numpy() for name, tensor in private_sgd.snapshot(network, job.name).items()}

        def load_tensors(parameters: Tensors) -> None:
            network.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in parameters.items()})

        with private_sgd.out_of_memory_is_one_line(job.name, settings.micro_batch), _threads(settings.model):
            # What is aggregated is not saved: a run on aggregates that was stopped begins anew.
            saves = recipe.training_on is None
            origin = job.origin(len(data.train))
            begun_with = {name: said for name, said in origin.said.items() if said is not None}
            begun = saved_state(job, begun_with) if saves else None
            if begun is None:
                if origin.start is not None:
                    load_tensors(origin.start.shaped({name: tensor.shape for name, tensor in tensors().items()}))
                begun = State(job.asked, job.digest, job.new_run(), 0, [], [], tensors(), {}, origin=begun_with)
            load_tensors(begun.parameters)
            network.to(where)
            rows = job.rows(len(data.train))
            parts = (data.train[rows], data.train_labels[rows], data.test, data.test_labels)
            train, labels, test, test_labels = (torch.from_numpy(part).to(where) for part in parts)
            # Noise and coins are fresh also for a run that is continued: those of every step are independent anyway.
            randomness = private_sgd.Randomness(where)
            state = replace(
                begun,
                noise=[*begun.noise, randomness.said["noise"]],
                sampler=[*begun.sampler, randomness.said["sampler"]],
                generators=[*begun.generators, randomness.noise.generator],
            )
            tell = every(TELL_EVERY, job.folder.tell)
            keep = every(SAVE_EVERY, lambda step: replace(state, step=step, parameters=tensors()).save(job))
            examples = origin.examples or len(labels)
            taken = private_sgd.steps(
                network, train, labels, recipe, randomness, job.name, begun.step, settings.micro_batch, divided_for=examples
            )
            for step in taken:
                if step in wanted:
                    state.kept[step] = tensors()
                tell(step)
                if saves:
                    keep(step)
            models: list[tuple[Checkpoint, float]] = []
            for step, parameters in state.kept.items():
                load_tensors(parameters)
                said = {**_said(state), "dataset": job.dataset, "run": state.run, **origin.said}
                record = recipe.record(step, examples, checkpoints_kept=len(models), **said)
                models.append((Checkpoint(step, parameters, record), private_sgd.accuracy(network, test, test_labels)))
            return models


def _said(state: State) -> dict[str, Any]:
    """What the record says of all generators of the run, of which a run that was continued has had several."""
    unknown: list[NoiseGenerator | None] = [None] * (len(state.noise) - len(state.generators))
    return {
        "noise": chained(state.noise),
        "sampler": chained(state.sampler),
        "noise_generator": together([*unknown, *state.generators]),
    }


def chained(fingerprints: list[str]) -> str:
    """Of all generators of one run in their order.

    Two continuations of one beginning share its run id but not this, so their records do not pass for one run's.
    """
    if len(fingerprints) == 1:
        return fingerprints[0]
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _threads(model: str) -> Iterator[None]:
    """Small networks are fastest on one thread, and leave the other cores to other runs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if model in ("mlp", "cnn") else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
