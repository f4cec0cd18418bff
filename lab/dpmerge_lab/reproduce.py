"""`dpmerge reproduce`: the papers' experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli import JobsOption, JsonOption


def reproduce(
    name: Annotated[str, typer.Argument(help="The experiment; without it, or with `list`, which there are.")] = "list",
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with mnist.npz or cifar10.npz.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Where networks are trained: cpu, cuda or cuda:N.")] = "cpu",
    seeds: Annotated[
        int, typer.Option("--seeds", help="Repetitions, each with fresh randomness; networks are trained once.")
    ] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, in seconds: does it run?")] = False,
    jobs: JobsOption = -1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for numbers and pictures (default: results/NAME).", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run one of the papers' experiments: numbers with their configuration as JSON, and pictures as PNG and HTML."""
    from dpmerge.cli import echo, print_json, show_progress, table
    from dpmerge.figures import require_library
    from dpmerge.jobs import ProgressBar
    from dpmerge_lab.experiments.catalogue import find
    from dpmerge_lab.experiments.results import Options, check_writable, write

    if name == "list":
        _list(json)
        return
    folder = out if out is not None else Path("results") / name
    options = Options(data, seeds, quick, jobs, device, folder, ProgressBar)
    run = find(name, options)
    suffixes = (".png", ".html")
    for suffix in suffixes:
        require_library(suffix)
    check_writable(folder)
    result = run()
    show_progress("pictures")
    written = write(result, folder, suffixes)
    show_progress("")
    if json:
        print_json({**result.as_dict(), "files": [str(path) for path in written]})
        return
    if result.table is not None:
        title, headings, rows = result.table
        table(title, headings, rows)
    for path in written:
        echo(path)


def _list(json: bool) -> None:
    from dpmerge.cli import print_json, table
    from dpmerge_lab.experiments.catalogue import EXPERIMENTS

    if json:
        print_json({name: {"about": one.about, "needs": one.needs} for name, one in EXPERIMENTS.items()})
        return
    rows = [[name, one.about, ", ".join(one.needs) or "—"] for name, one in EXPERIMENTS.items()]
    table("experiments", ["name", "about", "needs"], rows)
