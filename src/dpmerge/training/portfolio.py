"""Several private runs on one data set, from a file to a portfolio: everything is checked before the first run begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpmerge.errors import TrainingError
from dpmerge.figures import write_json
from dpmerge.jobs import run_all
from dpmerge.training.data import Data, Source, load
from dpmerge.training.portfolio_file import LinearRun, NetworkRun, PortfolioFile
from dpmerge.training.run import Job, train_run
from dpmerge.training.run_folder import RunFolder, accuracies


@dataclass(frozen=True)
class Pending:
    """A run that is not finished: where it tells how far it is, and how far it has to go."""

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
    """Make every run of the file that is not finished in `out`, and say what is there now.

    Runs are made in `jobs` processes (by default one for each core; on a GPU one after the other) or on a Dask cluster,
    whose workers need the same folders. `watch` is told what is being waited for.
    """
    out = out.resolve()
    _require_device(file, device)
    loaded, asked = _checked(file, out, data, device)
    finished, pending = {}, []
    for job, steps in asked:
        summary = job.folder.finished(job.asked)
        if summary is None:
            job.folder.require_room(steps)
            job.folder.saved(job.asked, job.digest)
            pending.append((job, Pending(job.name, steps[-1], job.folder)))
        else:
            finished[job.name] = summary
    with nullcontext() if watch is None else watch([waiting for _, waiting in pending]):
        processes = (1 if device.startswith("cuda") else -1) if jobs is None else jobs
        made = run_all(train_run, [job for job, _ in pending], cluster=cluster, jobs=processes)
    for (job, _), summary in zip(pending, made, strict=True):
        if not all((out / model).is_dir() for model in summary["models"]):
            raise TrainingError(f"run {job.name!r} has finished, but {out} does not show it: workers need the same folder")
        finished[job.name] = summary
    scores = accuracies(out)
    measured_on = f"public test part of {file.data}, {len(loaded.test)} examples"
    try:
        write_json({"schema": 1, "measured_on": measured_on, "models": "private", "utilities": scores}, out / "utilities.json")
    except OSError as fault:
        raise TrainingError(f"{out / 'utilities.json'}: cannot be written: {fault.strerror}") from None
    told = {model: {"run": of["run"], **facts} for of in finished.values() for model, facts in of["models"].items()}
    return {
        "folder": str(out),
        "dataset": asked[0][0].dataset,
        "trained": [job.name for job, _ in pending],
        "models": {model: facts for model, facts in told.items() if model in scores},
        "utilities": str(out / "utilities.json"),
    }


def _checked(file: PortfolioFile, out: Path, folder: Path | None, device: str) -> tuple[Data, list[tuple[Job, list[int]]]]:
    """The data, and every run with the steps at which it is kept, once nothing is left to complain of."""
    normal = file.normalise
    mean, deviation = ((), ()) if normal is None else (tuple(normal.mean), tuple(normal.deviation))
    where = None if folder is None else folder.resolve()
    source = Source(file.data, where, file.classes, file.positive, mean, deviation)
    try:
        data = load(source)
        digest = data.digest()
    except MemoryError:
        raise TrainingError(f"{file.path}: the memory of this machine is too small for the data {file.data!r}") from None
    dataset = file.dataset or data.identity
    if dataset is None:
        raise TrainingError(f"{file.path}: field dataset: records need a name for the data of {file.data!r}")
    jobs = []
    for name, settings in file.runs.items():
        try:
            steps = _steps(settings, file, data)
        except TrainingError as fault:
            raise TrainingError(f"{file.path}: run {name!r}: {fault}") from None
        job = Job(name, settings, source, digest, dataset, file.norm_bound, device, out, file.asked(name))
        jobs.append((job, steps))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise TrainingError(f"{out}: cannot be made a folder for models: {fault.strerror}") from None
    return data, jobs


def _steps(settings: LinearRun | NetworkRun, file: PortfolioFile, data: Data) -> list[int]:
    """The steps at which the run is kept; refused if the run does not suit the data."""
    if isinstance(settings, LinearRun) and file.norm_bound is None:
        raise TrainingError(f"{settings.model} regression needs norm_bound, the largest norm of an input with its bias")
    if settings.model == "logistic" and data.classes != 2:
        raise TrainingError(f"logistic regression has two classes, not {data.classes}; use softmax or positive: […]")
    if isinstance(settings, NetworkRun) and settings.model != "mlp" and len(data.shape) != 3:
        raise TrainingError(f"{settings.model} needs images; the inputs have shape {data.shape}: use mlp")
    count = len(data.train)
    last = settings.schedule(data.train_labels)["steps"]
    return sorted({*(settings.in_steps(kept, count) for kept in settings.checkpoints), last})


def _require_device(file: PortfolioFile, device: str) -> None:
    networks = [name for name, settings in file.runs.items() if isinstance(settings, NetworkRun)]
    if not networks:
        if device != "cpu":
            raise TrainingError(f"--device {device}: all runs are linear models, which are trained on the CPU; leave it out")
        return
    if find_spec("torch") is None or find_spec("opacus") is None:
        raise TrainingError(f"{file.path}: run {networks[0]!r}: networks need torch and Opacus; install dpmerge[torch]")
    from dpmerge.training.private_sgd import device as check

    check(device)
