"""One run of a portfolio from its data to its models: in this process, in a worker, or on another machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator
from dpmerge.training import linear
from dpmerge.training.data import Data, Source, features, load
from dpmerge.training.portfolio_file import LinearRun, NetworkRun
from dpmerge.training.randomness import chained, together
from dpmerge.training.run_folder import Model, RunFolder, State, Tensors

SAVE_EVERY = 60.0  # seconds between the states of a network in training
_TELL_EVERY = 0.3


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know; it loads the data itself."""

    name: str
    settings: LinearRun | NetworkRun
    source: Source
    digest: str
    dataset: str
    norm_bound: float | None
    device: str
    out: Path
    asked: dict[str, Any]

    @property
    def folder(self) -> RunFolder:
        """Where the run leaves things."""
        return RunFolder(self.out, self.name)


def train_run(job: Job) -> dict[str, Any]:
    """Make the run, or what is left of it, and say what came of it. Its models appear in the portfolio's folder."""
    from safetensors import SafetensorError

    if multiprocessing.parent_process() is not None:
        with contextlib.suppress(ValueError):  # Ctrl-C is for whoever waits, which then ends its workers
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with job.folder.alone():
            return job.folder.finished(job.asked) or _made(job)
    except MemoryError:
        raise TrainingError(f"run {job.name!r}: the memory of this machine is too small; use fewer --jobs") from None
    except (OSError, SafetensorError) as fault:
        raise TrainingError(f"run {job.name!r}: cannot be kept in {job.out}: {fault}") from None


def _made(job: Job) -> dict[str, Any]:
    start = time.perf_counter()
    job.folder.tell(0)
    data = load(job.source)
    if data.digest() != job.digest:
        raise TrainingError(f"run {job.name!r}: data {job.source.name!r} are not the same in every process")
    models = _network(job, job.settings, data) if isinstance(job.settings, NetworkRun) else _linear(job, data)
    return job.folder.finish(job.asked, models, time.perf_counter() - start)


def _linear(job: Job, data: Data) -> list[Model]:
    assert job.norm_bound is not None
    settings, count = job.settings, len(data.train)
    recipe = linear.Recipe(**settings.schedule(data.train_labels), loss=job.settings.model)  # type: ignore[arg-type]
    train, test = features(job.source, job.norm_bound)
    checkpoints = linear.train(
        train,
        data.train_labels,
        data.classes,
        recipe,
        norm_bound=job.norm_bound,
        dataset=job.dataset,
        run=_new_run(job.name),
        checkpoints=[settings.in_steps(kept, count) for kept in settings.checkpoints],
        on_step=_every(_TELL_EVERY, job.folder.tell),
    )
    return [Model(c.step, c.tensors, c.record, linear.accuracy(c.tensors, test, data.test_labels)) for c in checkpoints]


def _network(job: Job, settings: NetworkRun, data: Data) -> list[Model]:
    import torch

    from dpmerge.training import private_sgd
    from dpmerge.training.networks import build, from_seed

    where, count = private_sgd.device(job.device), len(data.train)
    recipe = private_sgd.Recipe(**settings.schedule(data.train_labels))
    wanted = recipe.kept(settings.in_steps(kept, count) for kept in settings.checkpoints)
    network = from_seed(lambda: build(settings.model, data.shape, data.classes, settings.hidden), settings.seed)

    def tensors() -> dict[str, Any]:
        return {name: tensor.numpy() for name, tensor in private_sgd.snapshot(network, job.name).items()}

    def load_tensors(parameters: Tensors) -> None:
        network.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in parameters.items()})

    def save(step: int) -> None:
        job.folder.save(replace(state, step=step, parameters=tensors()))

    with private_sgd.out_of_memory_is_one_line(job.name, settings.micro_batch), _threads(settings.model):
        # What is aggregated is not saved: a run on aggregates that was stopped begins anew.
        begun = job.folder.saved(job.asked, job.digest) if recipe.training_on is None else None
        if begun is None:
            begun = State(job.asked, job.digest, _new_run(job.name), 0, [], [], tensors(), {})
        load_tensors(begun.parameters)
        network.to(where)
        parts = (data.train, data.train_labels, data.test, data.test_labels)
        train, labels, test, test_labels = (torch.from_numpy(part).to(where) for part in parts)
        # Noise and coins are fresh also for a run that is continued: those of every step are independent anyway.
        randomness = private_sgd.Randomness(where)
        noise, sampler = ([*begun.noise, randomness.fingerprints[0]], [*begun.sampler, randomness.fingerprints[1]])
        unknown: list[NoiseGenerator | None] = [None] * (len(begun.noise) - len(begun.generators))
        state = replace(begun, noise=noise, sampler=sampler, generators=[*begun.generators, randomness.noise.generator])
        generator = together([*unknown, *state.generators])
        tell, keep = _every(_TELL_EVERY, job.folder.tell), _every(SAVE_EVERY, save)
        for step in private_sgd.steps(network, train, labels, recipe, randomness, job.name, begun.step, settings.micro_batch):
            if step in wanted:
                state.kept[step] = tensors()
            tell(step)
            if recipe.training_on is None:
                keep(step)
        models, expected = [], recipe.expected_batch(count)
        for step, parameters in state.kept.items():
            load_tensors(parameters)
            said = (job.dataset, state.run, chained(noise), chained(sampler), generator)
            record = private_sgd.record(recipe, step, expected, *said)
            models.append(Model(step, parameters, record, private_sgd.accuracy(network, test, test_labels)))
        return models


def _new_run(name: str) -> str:
    return f"{name}-{secrets.token_hex(8)}"


def _every(seconds: float, do: Callable[[int], None]) -> Callable[[int], None]:
    """Do it at steps, not more often than that; a worker whose master has been killed gives up there."""
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
