"""`dpmerge train`: a portfolio of private models from one file."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import JsonOption
from dpmerge.cli.pictures import ClusterOption

if TYPE_CHECKING:
    from dpmerge.training import Pending


def train(
    portfolio: Annotated[Path, typer.Argument(help="A YAML file: data and runs (docs/training.md).", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The portfolio's folder: each run becomes a model.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option("--data", help="The folder of mnist.npz or cifar10.npz.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda, for networks.")] = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Processes on this machine; without it one for each core, or one GPU.", show_default=False),
    ] = None,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Train several private models on one data set, each with its record, and measure them on the public test part.

    Every run has fresh noise. What is finished is kept: the same command continues what was stopped.
    """
    from dpmerge.cli.output import print_json, table
    from dpmerge.training import PortfolioFile, train_portfolio

    file = PortfolioFile.load(portfolio)
    try:
        done = train_portfolio(file, out, data=data, device=device, jobs=jobs, cluster=cluster, watch=_bars)
    except KeyboardInterrupt:
        typer.echo(f"stopped; what is finished is kept in {out}, and the same command continues", err=True)
        raise typer.Exit(130) from None
    if json:
        print_json(done)
        return
    rows = [[name, str(facts["steps"]), f"{facts['accuracy']:.4f}"] for name, facts in done["models"].items()]
    typer.echo(f"{done['folder']}: private models of {done['dataset']}")
    table("", ["model", "steps", "test accuracy"], rows)
    typer.echo(f"utilities, measured on the private models: {done['utilities']}")


@contextmanager
def _bars(pending: Sequence[Pending]) -> Iterator[None]:
    """A bar for each run on stderr, moved by what the runs tell of themselves; nothing where stderr is not a terminal."""
    if not pending or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    name, bar = TextColumn("{task.description}", markup=False), BarColumn()
    columns = (name, bar, MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Stdout belongs to the results: Rich would otherwise send what is printed there to the bars' console, stderr.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        tasks = [(progress.add_task(run.name, total=run.steps), run) for run in pending]
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
