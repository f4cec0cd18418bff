"""Several private runs on one data set, from a file to a portfolio: everything is checked before the first run begins."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpmerge.errors import TrainingError
from dpmerge.files import private_folder, write_json
from dpmerge.jobs import run_all
from dpmerge.records import DataFingerprint
from dpmerge.training.data import Data, as_stored, load
from dpmerge.training.data_fingerprint import data_fingerprint
from dpmerge.training.feature_files import Part
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
    warn: Callable[[str], None] = lambda text: None,
    delta: float = 1e-5,
    data_key: bytes | None = None,
) -> dict[str, Any]:
    """Train every run of the file that is not finished in `out`, and return a summary of what is there.

    Runs are made in `jobs` processes (by default one for each core; on a GPU one after the other) or on a Dask cluster,
    whose workers need the same folders. `watch` gets the unfinished runs, and `warn`, before they begin, a sentence for every
    setting that keeps averages and noise at release from paying, with the ε that it costs at this δ. With a `data_key` the new
    records have fingerprints of the data, or of their parts, as they were before anything was prepared.
    """
    out = out.resolve()
    _require_device(file, device)
    loaded, asked = _checked(file, out, data, device, data_key)
    finished = {job.name: job.folder.finished(job.asked) for job in asked}
    unfinished = [job for job in asked if finished[job.name] is None]
    pending = [Pending(job.name, _begins_or_continues(job, loaded), job.folder) for job in unfinished]
    limits, warnings = _advice(unfinished, loaded, delta)
    for text in warnings:
        warn(text)
    with nullcontext() if watch is None else watch(pending):
        processes = (1 if device.startswith("cuda") else -1) if jobs is None else jobs
        for wave in file.waves(out):  # a run begins when the one that it starts from has finished
            due = [job for job in unfinished if job.name in wave]
            units = _units(due, os.cpu_count() or 1 if processes < 0 else processes)
            made = run_all(train_runs, units, cluster=cluster, jobs=processes)
            summaries = {name: summary for several in made for name, summary in several.items()}
            finished |= {job.name: _seen_here(job, summaries[job.name], out) for job in due}
    scores = _measured(file, out, len(loaded.test))
    told = {model: {"run": of["run"], **facts} for of in finished.values() if of for model, facts in of["models"].items()}
    return {
        "folder": str(out),
        "dataset": asked[0].dataset,
        "trained": [job.name for job in unfinished],
        "models": {model: facts for model, facts in told.items() if model in scores},
        "utilities": str(out / "utilities.json"),
        "limits": limits,
        "warnings": warnings,
    }


def _advice(jobs: Sequence[Job], data: Data, delta: float) -> tuple[dict[str, dict[str, float]], list[str]]:
    limits: dict[str, dict[str, float]] = {}
    warnings: list[str] = []
    for kind in dict.fromkeys(type(job.trainer) for job in jobs):
        several = [job for job in jobs if type(job.trainer) is kind]
        known, found = several[0].trainer.advice(several, data, delta)
        limits, warnings = limits | known, warnings + found
    return limits, warnings


def _units(jobs: Sequence[Job], processes: int) -> list[tuple[Job, ...]]:
    """What is made in one go: a run, or, for each process, a share of those that look at the data together."""
    alone = [(job,) for job in jobs if not job.trainer.shares(job)]
    kinds = {type(job.trainer) for job in jobs}
    shared = [[job for job in jobs if job.trainer.shares(job) and type(job.trainer) is kind] for kind in kinds]
    return [*alone, *(tuple(several[part::processes]) for several in shared for part in range(min(processes, len(several))))]


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
    measured_on = f"public test part of {file.about.name}, {examples} examples"
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


def _checked(
    file: PortfolioFile, out: Path, folder: Path | None, device: str, data_key: bytes | None
) -> tuple[Data, list[Job]]:
    """The data and every run, after all checks."""
    about = file.about
    try:
        source = replace(file.source(folder), kept=out / ".training")
        stored = None if data_key is None else as_stored(source)
        data = load(source)
        digest = data.digest()
    except MemoryError:
        raise TrainingError(f"{file.path}: the memory of this machine is too small for the data {about.name!r}") from None
    dataset = about.dataset or data.identity
    if dataset is None:
        raise TrainingError(f"{file.path}: field dataset: records need a name for the data of {about.name!r}")
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
        private_folder(out)
        placed = [_on_its_part(job, file.parts.get(job.name, 0)) for job in jobs]
    except OSError as fault:
        raise TrainingError(f"{out}: cannot be made a folder for models: {fault.strerror}") from None
    return data, placed if data_key is None or stored is None else _fingerprinted(placed, stored, data_key)


def _fingerprinted(jobs: Sequence[Job], stored: Part, key: bytes) -> list[Job]:
    """Each run with the fingerprint of the data it sees, made here: workers need no key."""
    made: dict[tuple[str, int], DataFingerprint] = {}
    done = []
    for job in jobs:
        place = ("" if job.partition is None else job.partition.id, job.part)
        if place not in made:
            rows = job.rows(len(stored[0]))
            made[place] = data_fingerprint(*(column[rows] for column in stored), key=key)
        done.append(replace(job, data_fingerprint=made[place]))
    return done


def _on_its_part(job: Job, part: int) -> Job:
    """All runs on as many parts share one partition of the data."""
    if job.settings.shards is None:
        return job
    partition = Partition.kept(job.out / ".training" / "parts", job.settings.shards, job.digest)
    return replace(job, partition=partition, part=part)


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


def train_runs(jobs: tuple[Job, ...]) -> dict[str, dict[str, Any]]:
    """Train the runs, or the rest of them, and return their outcomes: in this process, in a worker, or on another machine."""
    from safetensors import SafetensorError

    if multiprocessing.parent_process() is not None:
        with contextlib.suppress(ValueError):  # the parent process handles Ctrl-C, and then ends its workers
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    names = f"run {', '.join(repr(job.name) for job in jobs)}"
    try:
        with ExitStack() as locks:
            for job in sorted(jobs, key=lambda job: job.name):  # in one order everywhere: nobody waits for each other
                locks.enter_context(job.folder.alone())
            known = {job.name: job.folder.finished(job.asked) for job in jobs}
            left = [job for job in jobs if known[job.name] is None]
            return {name: summary for name, summary in known.items() if summary} | (_made(left, names) if left else {})
    except MemoryError:
        raise TrainingError(f"{names}: the memory of this machine is too small; use fewer jobs") from None
    except (OSError, SafetensorError) as fault:
        raise TrainingError(f"{names}: cannot be kept in {jobs[0].out}: {fault}") from None


def _made(jobs: Sequence[Job], names: str) -> dict[str, dict[str, Any]]:
    start = time.perf_counter()
    for job in jobs:
        job.folder.tell(0)
    first = jobs[0]
    data = load(first.source)
    if data.digest() != first.digest:
        raise TrainingError(f"{names}: data {first.source.name!r} are not the same in every process")
    made = first.trainer.make_all(jobs, data)
    seconds = time.perf_counter() - start
    told = [[(job.with_data(one), accuracy) for one, accuracy in models] for job, models in zip(jobs, made, strict=True)]
    return {job.name: job.folder.finish(job.asked, models, seconds) for job, models in zip(jobs, told, strict=True)}
