"""Several private runs on one data set, from a file to a portfolio: everything is checked before the first run begins."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpmerge.errors import TrainingError
from dpmerge.files import write_json
from dpmerge.jobs import run_all
from dpmerge.training.data import Data, load
from dpmerge.training.origin import Partition, starts_from
from dpmerge.training.portfolio_file import PortfolioFile
from dpmerge.training.run_folder import RunFolder, accuracies
from dpmerge.training.trainer import Job


@dataclass(frozen=True)
class Pending:
    """An unfinished run: its number of steps, and the folder in which its progress is."""

    name: str
    steps: int
    folder: RunFolder


Watch = Callable[[Sequence[Pending]], AbstractContextManager[Any]]


def train_portfolio(
    file: PortfolioFile,
    out: Path,
    *,
    data: Path | None = None,
    device: str = "cpu",
    jobs: int | None = None,
    cluster: str | None = None,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Train every run of the file that is not finished in `out`, and return a summary of what is there.

    Runs are made in `jobs` processes (by default one for each core; on a GPU one after the other) or on a Dask cluster,
    whose workers need the same folders. `watch` gets the unfinished runs.
    """
    out = out.resolve()
    _require_device(file, device)
    loaded, asked = _checked(file, out, data, device)
    finished = {job.name: job.folder.finished(job.asked) for job in asked}
    unfinished = [job for job in asked if finished[job.name] is None]
    pending = [Pending(job.name, _begins_or_continues(job, loaded), job.folder) for job in unfinished]
    with nullcontext() if watch is None else watch(pending):
        processes = (1 if device.startswith("cuda") else -1) if jobs is None else jobs
        for wave in file.waves(out):  # a run begins when the one that it starts from has finished
            due = [job for job in unfinished if job.name in wave]
            made = run_all(train_run, due, cluster=cluster, jobs=processes)
            finished |= {job.name: _seen_here(job, summary, out) for job, summary in zip(due, made, strict=True)}
    scores = _measured(file, out, len(loaded.test))
    told = {model: {"run": of["run"], **facts} for of in finished.values() if of for model, facts in of["models"].items()}
    return {
        "folder": str(out),
        "dataset": asked[0].dataset,
        "trained": [job.name for job in unfinished],
        "models": {model: facts for model, facts in told.items() if model in scores},
        "utilities": str(out / "utilities.json"),
    }


def _seen_here(job: Job, summary: dict[str, Any], out: Path) -> dict[str, Any]:
    """The summary of a run that a worker made, once its models are there."""
    if not all((out / model).is_dir() for model in summary["models"]):
        raise TrainingError(f"run {job.name!r} has finished, but {out} does not show it: workers need the same folder")
    return summary


def _begins_or_continues(job: Job, data: Data) -> int:
    """The number of steps of a run that can be made here, or be continued."""
    steps = job.settings.kept(data.train_labels)
    job.folder.require_room(steps)
    job.trainer.check_unfinished(job)
    return steps[-1]


def _measured(file: PortfolioFile, out: Path, examples: int) -> dict[str, float]:
    """The accuracies of all models in the folder, also written to it."""
    scores = accuracies(out)
    measured_on = f"public test part of {file.about.data}, {examples} examples"
    try:
        write_json({"schema": 1, "measured_on": measured_on, "models": "private", "utilities": scores}, out / "utilities.json")
    except OSError as fault:
        raise TrainingError(f"{out / 'utilities.json'}: cannot be written: {fault.strerror}") from None
    return scores


def _require_device(file: PortfolioFile, device: str) -> None:
    if device != "cpu" and not any(trainer.uses_device for trainer in file.trainers.values()):
        raise TrainingError(f"device {device}: all runs are linear models, which are trained on the CPU; leave it out")
    for name in file.runs:
        try:
            file.trainer(name).require(device)
        except TrainingError as fault:
            raise TrainingError(f"{file.path}: run {name!r}: {fault}") from None


def _checked(file: PortfolioFile, out: Path, folder: Path | None, device: str) -> tuple[Data, list[Job]]:
    """The data and every run, after all checks."""
    about, source = file.about, file.source(folder)
    try:
        data = load(source)
        digest = data.digest()
    except MemoryError:
        raise TrainingError(f"{file.path}: the memory of this machine is too small for the data {about.data!r}") from None
    dataset = about.dataset or data.identity
    if dataset is None:
        raise TrainingError(f"{file.path}: field dataset: records need a name for the data of {about.data!r}")
    jobs = []
    for name, settings in file.runs.items():
        job = Job(name, settings, file.trainer(name), source, digest, dataset, about.norm_bound, device, out, file.asked(name))
        try:
            job = replace(job, start=_start(file, name, out, dataset, data))
            job.trainer.check(job, data)
            settings.kept(data.train_labels)
        except TrainingError as fault:
            raise TrainingError(f"{file.path}: run {name!r}: {fault}") from None
        jobs.append(job)
    try:
        out.mkdir(parents=True, exist_ok=True)
        return data, [_on_its_part(job, file.parts.get(job.name, 0)) for job in jobs]
    except OSError as fault:
        raise TrainingError(f"{out}: cannot be made a folder for models: {fault.strerror}") from None


def _on_its_part(job: Job, part: int) -> Job:
    """All runs on as many parts share one partition of the data."""
    if job.settings.shards is None:
        return job
    return replace(job, partition=Partition.kept(job.out / ".training" / "parts", job.settings.shards), part=part)


def _start(file: PortfolioFile, name: str, out: Path, dataset: str, data: Data) -> Path | None:
    """The folder that a run starts from; one that this file does not make is there and has a record of these data."""
    found = file.start(name, out)
    if found is None:
        return None
    folder, parent = found
    if parent is None:
        if not folder.is_dir():
            raise TrainingError(f"field from: neither a run of this file nor a model's folder: {folder}")
        starts_from(folder, dataset)
    else:
        *kept, last = file.runs[parent].kept(data.train_labels)
        if folder.name not in (parent, *(f"{parent}@{step}" for step in kept)):
            raise TrainingError(
                f"field from: run {parent!r} keeps no model {folder.name!r}; its last, after step {last}, is {parent!r}, and "
                "others are kept where its checkpoints say so"
            )
    return folder


def train_run(job: Job) -> dict[str, Any]:
    """Train the run, or the rest of it, and return its outcome: in this process, in a worker, or on another machine."""
    from safetensors import SafetensorError

    if multiprocessing.parent_process() is not None:
        with contextlib.suppress(ValueError):  # the parent process handles Ctrl-C, and then ends its workers
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with job.folder.alone():
            return job.folder.finished(job.asked) or _made(job)
    except MemoryError:
        raise TrainingError(f"run {job.name!r}: the memory of this machine is too small; use fewer jobs") from None
    except (OSError, SafetensorError) as fault:
        raise TrainingError(f"run {job.name!r}: cannot be kept in {job.out}: {fault}") from None


def _made(job: Job) -> dict[str, Any]:
    start = time.perf_counter()
    job.folder.tell(0)
    data = load(job.source)
    if data.digest() != job.digest:
        raise TrainingError(f"run {job.name!r}: data {job.source.name!r} are not the same in every process")
    models = job.trainer.make(job, data)
    return job.folder.finish(job.asked, models, time.perf_counter() - start)
