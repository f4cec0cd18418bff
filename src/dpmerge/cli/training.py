"""`dpmerge train` and `dpmerge record`: train private models, and record models trained elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError

import dpmerge.training as training
from dpmerge.cli.commands import JsonOption, argument, group, option, options
from dpmerge.cli.fingerprints import fingerprint, key
from dpmerge.cli.options import ClusterOption
from dpmerge.cli.output import echo, print_json, table
from dpmerge.errors import RecordError, TargetError, TrainingError, printable
from dpmerge.records import Adjacency, Clipping, Convex, DataFingerprint, load_strict
from dpmerge.training import (
    Pending,
    PortfolioFile,
    Stated,
    StatedKind,
    StatedModel,
    StatedSampling,
    new_record,
    require_unrecorded,
    train_portfolio,
)


def train(
    portfolio: Annotated[Path, argument("A YAML file: data and runs (dpmerge help training).")],
    out: Annotated[Path | None, option("The portfolio's folder: each run becomes a model.")] = None,
    data: Annotated[Path | None, option("Folder of the data set's file.")] = None,
    device: Annotated[str, option("cpu or cuda, for networks.")] = "cpu",
    jobs: Annotated[int | None, option("Processes on this machine; without it, one for each core, or one GPU.")] = None,
    cluster: ClusterOption = None,
    delta: Annotated[float, option("For the ε that warnings and designs speak of.")] = 1e-5,
    design: Annotated[bool, option("Do not train: find settings that serve the targets of --epsilon.")] = False,
    epsilon: Annotated[list[float] | None, option("With --design: a target. Repeatable.")] = None,
    examples: Annotated[int | None, option("With --design: the number of examples; without it, the data are read.")] = None,
    data_key: Annotated[Path | None, option("Put fingerprints of the data under this key into records (record key).")] = None,
    json: JsonOption = False,
) -> None:
    """Train several private models on one data set.

    Each model gets a record and its accuracy on the public test part. Every run has fresh noise. Finished work is stored: the
    same command continues an interrupted training.

    With --design: from the number of examples, the targets and the number of runs, the noise, steps, rate and learning rate
    with which an average and noise at release serve every target, and what to expect of it.
    """
    if design:
        _design(portfolio, data, epsilon or [], delta, examples, json)
        return
    if epsilon or examples is not None:
        raise TargetError("--epsilon and --examples belong to --design")
    if out is None:
        raise TrainingError("--out is needed: the folder for the models")
    file = PortfolioFile.load(portfolio)
    secret = None if data_key is None else training.read_data_key(data_key)
    try:
        done = train_portfolio(
            file,
            out,
            data=data,
            device=device,
            jobs=jobs,
            cluster=cluster,
            watch=_bars,
            warn=_warn,
            delta=delta,
            data_key=secret,
        )
    except KeyboardInterrupt:
        echo(f"stopped; finished work is stored in {out}: run the same command to continue", err=True)
        raise typer.Exit(130) from None
    if json:
        print_json(done)
        return
    rows = [[name, str(facts["steps"]), f"{facts['accuracy']:.4f}"] for name, facts in done["models"].items()]
    echo(f"{done['folder']}: private models of {done['dataset']}")
    table("", ["model", "steps", "test accuracy"], rows)
    echo(f"utilities, measured on the private models: {done['utilities']}")
    for names, clip, rate in _limits(done["limits"]):
        clipped = f"a clip of {clip:g} or more, " if clip else ""
        echo(f"averages and noise at release pay with {clipped}learning rates up to {rate:g}: {names}")


def _design(path: Path, data: Path | None, targets: list[float], delta: float, examples: int | None, json: bool) -> None:
    file = PortfolioFile.load(path, {"noise_multiplier": 1.0})
    setting = file.one_setting(file.examples(data) if examples is None else examples)
    tell = (lambda text: echo(text, err=True)) if sys.stderr.isatty() else (lambda text: None)
    found = training.design(setting, runs=len(file.runs), targets=targets, delta=delta, progress=tell)
    if json:
        print_json(found.as_dict())
        return
    echo(f"defaults: {{{found.defaults}}}")
    echo("runs: {" + ", ".join(f"{name}: {{}}" for name in file.runs) + "}")
    echo()
    rows = found.rows()
    which = f"the average of {found.averaged} runs" if found.averaged > 1 else "one run"
    table(f"Releases of {which}", list(rows[0]), [list(row.values()) for row in rows])
    echo(
        f"at δ = {delta:g}, if nothing else of the runs is ever published; all these releases together cost what the least "
        "noisy one costs. By composition: as if every step were published. Deviations are those of one parameter, by training "
        "and release."
    )


def _limits(limits: dict[str, dict[str, float]]) -> list[tuple[str, float, float]]:
    """Runs with the same limits, together."""
    groups: dict[tuple[float, float], list[str]] = {}
    for name, found in limits.items():
        groups.setdefault((found["least_clip"], found["largest_learning_rate"]), []).append(name)
    return [(", ".join(names), *found) for found, names in groups.items()]


def _warn(text: str) -> None:
    echo(f"warning: {text}", err=True)


@contextmanager
def _bars(pending: Sequence[Pending]) -> Iterator[None]:
    """A bar for each run on stderr, if it is a terminal."""
    if not pending or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    name, bar = TextColumn("{task.description}", markup=False), BarColumn()
    columns = (name, bar, MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Stdout is for results: by default Rich would redirect it to the bars' console, stderr.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        tasks = [(progress.add_task(printable(run.name), total=run.steps), run) for run in pending]
        over = threading.Event()

        def follow() -> None:
            while not over.wait(0.3):
                for task, run in tasks:
                    progress.update(task, completed=run.folder.told())

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@options("What the checkpoint does not say")
class Statement:
    """The user's statements about a run that was not recorded."""

    dataset: Annotated[str | None, option("Identity of the private dataset.")] = None
    sampling: Annotated[StatedSampling | None, option("How batches were drawn; with Opacus' loader: poisson.")] = None
    clip: Annotated[str | None, option("max_grad_norm; if it changed: value*steps,value*steps,…")] = None
    clipping: Annotated[Clipping | None, option("How gradients were clipped.")] = None
    learning_rate: Annotated[str | None, option("Learning rate; if it changed: value*steps,value*steps,…")] = None
    optimizer: Annotated[str | None, option("Optimizer; sgd: without momentum or projection.")] = None
    weight_decay: Annotated[str | None, option("SGD's weight decay; if it changed: value*steps,value*steps,…")] = None
    expected_batch: Annotated[float | None, option("The divisor of the updates: Opacus' expected_batch_size.")] = None
    examples: Annotated[int | None, option("Instead of --expected-batch: the number of examples.")] = None
    run: Annotated[str | None, option("Id of the run, shared by its checkpoints; without it, a fresh one.")] = None
    smoothness: Annotated[float | None, option("Smoothness β of the loss, if known.")] = None
    convex: Annotated[Convex | None, option("Why clipped gradients are those of convex functions.")] = None
    unclipped_num_std: Annotated[
        float | None, option("Adaptive clipping: Opacus' setting; in ghost mode half the noise multiplier.")
    ] = None
    leave_out: Annotated[
        list[str] | None, option("Leave out this tensor: it changed without noise, and no loss used it. Repeatable.")
    ] = None
    others_unchanged: Annotated[bool, option("Tensors that the private optimizer did not train are unchanged.")] = False
    data_fingerprint: Annotated[Path | None, option("What `dpmerge record fingerprint` wrote of the data.")] = None

    def stated(self) -> dict[str, Any]:
        """What the library takes."""
        path = self.data_fingerprint
        found = None if path is None else load_strict(DataFingerprint, path, RecordError, "write it with record fingerprint")
        return {**vars(self), "leave_out": tuple(self.leave_out or ()), "data_fingerprint": found}


def from_opacus(
    checkpoint: Annotated[Path, argument("A file that PrivacyEngine.save_checkpoint wrote.")],
    out: Annotated[Path, option("A new folder for model.safetensors and record.json.")],
    statement: Statement,
    json: JsonOption = False,
) -> None:
    """Model and record from an Opacus checkpoint.

    State what the file does not contain; the record marks it as stated.
    """
    written = training.from_opacus(checkpoint, out, Stated(**statement.stated()))
    if json:
        print_json({"folder": str(out), "record": written.as_dict()})
    else:
        echo(f"{out}: model.safetensors, and record.json as stated by its user")


@options("Training")
class Training:
    kind: Annotated[
        StatedKind | None, option("What is known: DP-SGD step by step, its ε and δ alone, or that it was not private.")
    ] = None
    adjacency: Annotated[Adjacency | None, option("Neighbouring datasets; for dp-sgd add-remove, unless stated.")] = None
    epsilon: Annotated[float | None, option("approx-dp: ε of the training.")] = None
    delta: Annotated[float | None, option("approx-dp: δ of the training.")] = None
    steps: Annotated[int | None, option("dp-sgd: number of steps.")] = None
    noise_multiplier: Annotated[
        str | None, option("dp-sgd: noise over clip, per step; if it changed: value*steps,value*steps,…")
    ] = None
    rate: Annotated[str | None, option("Poisson sampling: probability of a record to be in a batch; or value*steps,…")] = None


def new(
    folder: Annotated[Path, argument("Folder of a model: a state dict, or what Transformers or PEFT saved.")],
    training: Training,
    statement: Statement,
    json: JsonOption = False,
) -> None:
    """A record for a model that has none.

    Written beside its tensors, marked as stated by its user. What the options do not say is asked for, if this is a terminal.
    """
    stated = StatedModel(**vars(training), **statement.stated())
    require_unrecorded(folder)
    if stated.missing() and not _may_ask():
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in stated.missing())
        raise RecordError(f"{folder}: no record can be written without {flags}")
    while stated.missing():
        stated = _ask(stated, stated.missing()[0])
    written = new_record(folder, stated)
    if json:
        print_json({"folder": str(folder), "record": written.as_dict()})
    else:
        echo(f"{folder / 'record.json'}: as stated by its user")


def _may_ask() -> bool:
    return sys.stdin.isatty()


def _ask(stated: StatedModel, field: str) -> StatedModel:
    """Ask for one field, in the words of its option, until the answer can be used."""
    hints = get_type_hints(Statement, include_extras=True) | get_type_hints(Training, include_extras=True)
    plain, about = get_args(hints[field])
    if field == "others_unchanged":
        if typer.confirm(about.help.rstrip("."), err=True):
            return replace(stated, others_unchanged=True)
        raise RecordError("tensors that changed without noise are covered by no record: remove them from the model first")
    [kind] = [one for one in get_args(plain) if one is not type(None)]

    def read(text: str) -> StatedModel:
        try:
            value = TypeAdapter(kind).validate_strings(text.strip())
            made = replace(stated, **{field: value})
            made.check(field)
            return made
        except ValidationError as fault:
            raise typer.BadParameter(fault.errors()[0]["msg"]) from None
        except RecordError as fault:
            raise typer.BadParameter(str(fault)) from None

    choices = f" ({', '.join(get_args(kind))})" if get_args(kind) else ""
    answer: StatedModel = typer.prompt(f"{field}: {about.help.rstrip('.')}{choices}", value_proc=read, err=True)
    return answer


record = group("record", "Records of models trained elsewhere, fingerprints of data.", new, from_opacus, key, fingerprint)
