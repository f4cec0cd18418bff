"""Print results: strict JSON for programs, tables and sentences for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from dpmerge.errors import printable
from dpmerge.files import json_text

if TYPE_CHECKING:
    from dpmerge.release import Released
    from dpmerge.rules import Guarantee


def echo(text: object = "", *, err: bool = False) -> None:
    """Print one line. Every text of every command goes through here or `echo_lines`, escaped: names come from files."""
    typer.echo(printable(str(text)), err=err)


def echo_lines(text: str, *, err: bool = False) -> None:
    """Print a text of our own that has several lines."""
    for line in text.split("\n"):
        echo(line, err=err)


def show_progress(label: str) -> None:
    """Show the current step in one line on stderr, if it is a terminal. An empty label clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(label)}…" if label else "\r\x1b[K")
        sys.stderr.flush()


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Valid JSON. Infinity is written as 1e999, which parsers read as infinity or the largest float, never as small.

    Every command prints JSON this way. Null means that there is no number; only files and HTTP answers have null for infinity.
    """
    for line in json_text(value, infinity="1e999", indent=indent).split("\n"):
        # JSON itself escapes what is below U+0020, but neither C1 controls nor marks that reverse the direction of a text.
        typer.echo("".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line))


def print_lines(prefix: str, texts: Iterable[object]) -> None:
    for text in texts:
        echo(f"{prefix}{text}")


def print_warnings(texts: Iterable[str], indent: str = "", *, err: bool = False) -> None:
    for text in dict.fromkeys(texts):
        echo(f"{indent}warning: {text}", err=err)


def print_assumptions(texts: Sequence[str]) -> None:
    if texts:
        echo("  assuming:")
    print_lines("    - ", texts)


def print_whose_assumptions(assumptions: Mapping[str, Sequence[str]]) -> None:
    """Each assumption once, with the names of the options that need it unless all do."""
    from dpmerge.rules import whose

    echo("assuming:")
    print_lines("  - ", whose(assumptions))


def stated(weights: Mapping[str, float], digits: int = 10) -> str:
    """The weights that are not zero."""
    return ", ".join(f"{name}={value:.{digits}g}" for name, value in weights.items() if value > 0)


def print_guarantee(guarantee: Guarantee) -> None:
    """The guarantee in one sentence; its theorem and every assumption on separate lines."""
    from dpmerge.rules import THEOREMS, round_up, significant

    theorem = THEOREMS[guarantee.theorem]
    if math.isfinite(guarantee.epsilon):
        echo(f"({round_up(guarantee.epsilon)}, {significant(guarantee.delta)})-DP for {guarantee.adjacency} neighbours")
    else:
        echo(f"no finite ε at δ = {guarantee.delta:.6g} for {guarantee.adjacency} neighbours")
    print_warnings(guarantee.warnings, "  ")
    how = guarantee.by.upper() + (f", {guarantee.conversion} conversion" if guarantee.conversion else "")
    echo(f"  {guarantee.standing}: {theorem.title} ({theorem.source}), by {how}")
    echo(f"  weights: {stated(guarantee.weights)}")
    if guarantee.details.get("noise"):
        echo(f"  noise at release: {guarantee.details['noise']:.6g} (standard deviation, on every trained parameter)")
    if guarantee.rule == "joint":
        echo(f"  counts the runs: {', '.join(guarantee.details['runs'])}")
    print_assumptions(guarantee.assumptions)
    print_reasons(guarantee, "  ")


def print_reasons(guarantee: Guarantee, prefix: str) -> None:
    """Why runs are counted whole although another rule was requested, and what a further release would change."""
    for text in guarantee.notes:
        echo(f"{prefix}{text}")


def released_json(released: Released) -> dict[str, Any]:
    certificate = released.certificate.model_dump(mode="json", by_alias=True)
    return {"folder": str(released.folder), "certificate": certificate, "notes": list(released.notes)}


def print_released(released: Released) -> None:
    """The folder, its guarantee, the drawn model, the ledger entry, and notes."""
    from dpmerge.rules import THEOREMS, round_up, significant

    certificate = released.certificate
    echo(str(released.folder))
    if certificate.merge.average is not None:
        echo(f"{certificate.merge.average}")
    print_guarantee(released.guarantee)
    if certificate.drawn is not None:
        echo(f"  drawn: {certificate.drawn}")
    entry = certificate.ledger
    if entry is not None:
        whole = "all releases, also future ones," if entry.theorem == "adaptive-filter" else "all releases"
        total = f"({round_up(entry.epsilon)}, {significant(entry.delta)})-DP"
        rule = f", by: {THEOREMS[entry.theorem].title}" if entry.theorem in THEOREMS else ""
        echo(f"  entry {entry.number} of the ledger; {whole} together: {total}{rule}")
    print_lines("note: ", (text for text in released.notes if text not in released.guarantee.notes))  # printed above


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A plain table; columns of numbers are right-aligned, except the first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def cell(text: str) -> Text:
        return Text(printable(text))  # a plain string would be read as Rich's markup

    grid = Table(title=cell(title) if title else None, title_justify="left")
    for index, column in enumerate(columns):
        numeric = index > 0 and all(row[index][:1].isdigit() or row[index] in ("∞", "—", "no use", "") for row in rows)
        grid.add_column(cell(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(cell, row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 120))
    console.print(grid)
