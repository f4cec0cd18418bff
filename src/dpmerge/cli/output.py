"""How results are printed: strict JSON for programs, tables and sentences for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import typer

from dpmerge.files import json_text

if TYPE_CHECKING:
    from dpmerge.release import LedgerForm
    from dpmerge.rules import Guarantee


def print_json(value: Any) -> None:
    """Valid JSON with infinities as 1e999, which every parser reads as infinity or the largest number, never as small."""
    typer.echo(json_text(value, infinity="1e999", indent=2))


def print_guarantee(guarantee: Guarantee) -> None:
    """The guarantee as a sentence, with its theorem and every assumption on lines of their own."""
    from dpmerge.rules import THEOREMS, round_up, significant

    theorem = THEOREMS[guarantee.theorem]
    if math.isfinite(guarantee.epsilon):
        typer.echo(f"({round_up(guarantee.epsilon)}, {significant(guarantee.delta)})-DP for {guarantee.adjacency} neighbours")
    else:
        typer.echo(f"no finite ε at δ = {guarantee.delta:.6g} for {guarantee.adjacency} neighbours")
    for text in guarantee.warnings:
        typer.echo(f"  warning: {text}")
    how = guarantee.by.upper() + (f", {guarantee.conversion} conversion" if guarantee.conversion else "")
    typer.echo(f"  {guarantee.standing}: {theorem.title} ({theorem.source}), by {how}")
    used = ", ".join(f"{name}={value:.10g}" for name, value in guarantee.weights.items() if value > 0)
    typer.echo(f"  weights: {used}")
    if guarantee.rule == "joint":
        typer.echo(f"  counts the runs: {', '.join(guarantee.details['runs'])}")
    typer.echo("  assuming:")
    for text in guarantee.assumptions:
        typer.echo(f"    - {text}")
    for name, why in guarantee.details.get("revealed", {}).items():
        typer.echo(f"  model {name!r} is accounted by joint release: {why}")
    if "joint_because" in guarantee.details:
        typer.echo(f"  joint release counts: {guarantee.details['joint_because']}")


def print_entry(entry: LedgerForm) -> None:
    """A release's entry in the ledger, and what all releases together guarantee."""
    from dpmerge.rules import THEOREMS, round_up, significant

    total = f"({round_up(entry.epsilon)}, {significant(entry.delta)})-DP"
    whole = "everything that is ever released" if entry.theorem == "adaptive-filter" else "all releases"
    rule = f", by: {THEOREMS[entry.theorem].title}" if entry.theorem in THEOREMS else ""
    typer.echo(f"  entry {entry.number} of the ledger; {whole} together: {total}{rule}")


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A plain table; the first column is left-aligned, numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        numeric = index > 0 and all(_looks_numeric(row[index]) for row in rows)
        grid.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 120))
    console.print(grid)


def _looks_numeric(text: str) -> bool:
    return text[:1].isdigit() or text in ("∞", "—", "")
