"""What the verbs that draw share: where to run, what to keep, and writing the pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.errors import TargetError

if TYPE_CHECKING:
    from dpmerge.planning import Mapper

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", help="A Dask scheduler, tcp://host:port; without it, this machine.", show_default=False),
]
JobsOption = Annotated[int, typer.Option("--jobs", help="Processes on this machine; -1: one for each core.")]


@contextmanager
def workers(folder: Path, title: str, cluster: str | None, jobs: int) -> Iterator[Mapper]:
    """The mapping function, keeping what is finished in the output folder: a run that is killed continues there."""
    from dpmerge.jobs import Finished, ProgressBar, run_all

    with Finished(folder / "points.jsonl") as finished:
        yield partial(run_all, finished=finished, cluster=cluster, jobs=jobs, progress=ProgressBar(title))


def write_document(document: Mapping[str, Any], folder: Path, name: str) -> list[Path]:
    """The document as JSON (infinities as null), then as pictures; each file appears whole."""
    from dpmerge.figures import draw
    from dpmerge.files import finite_or_null, write_json

    plain = finite_or_null(document)
    paths = [folder / f"{name}{suffix}" for suffix in (".json", ".png", ".html")]
    write_json(plain, paths[0])
    for path in paths[1:]:
        draw(plain, path)
    return paths


def print_written(document: Mapping[str, Any], written: list[Path]) -> None:
    """Where the pictures are, what they assume and what they do not cover."""
    for path in written:
        typer.echo(str(path))
    drawn = {title for titles in document["assumptions"].values() for title in titles}
    typer.echo("assuming:")
    for text, titles in document["assumptions"].items():
        typer.echo(f"  - {text}" + ("" if drawn == set(titles) else f" [{', '.join(titles)}]"))
    if document["warning"]:
        typer.echo(f"note: {document['warning']}")


def parse_targets(text: str) -> list[float]:
    """`0.3:8` (100 targets, evenly spaced in log ε), `0.3:8:200`, or a list `0.5,1,2`."""
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        low, high, *count = (part.strip() for part in text.split(":"))
        first, last, number = float(low), float(high), int(*count) if count else 100
    except (ValueError, TypeError):
        raise TargetError(f"cannot read the targets {text!r}; write 0.3:8, 0.3:8:200 or 0.5,1,2") from None
    if not (0 < first < last and math.isfinite(last) and 2 <= number <= 100_000):
        raise TargetError(f"the targets {text!r} need 0 < low < high and 2 to 100,000 of them")
    ratio = math.log(last / first) / (number - 1)
    return [first * math.exp(ratio * index) for index in range(number - 1)] + [last]
