"""`dpmerge ledger`: one private dataset's releases and budget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.options import AdjacencyName, AnyDeltaOption, JsonOption

if TYPE_CHECKING:
    from dpmerge.release import Ledger

app = typer.Typer(no_args_is_help=True, help="One private dataset's releases, added up.", rich_markup_mode=None)
LedgerArgument = Annotated[str, typer.Argument(help="The ledger: a file, or a database URL.", show_default=False)]


@app.command("new")
def new(
    ledger: LedgerArgument,
    dataset: Annotated[
        str, typer.Option("--dataset", help="The dataset's identity, as the records state it.", show_default=False)
    ],
    epsilon: Annotated[float, typer.Option("--epsilon", help="The ε of all releases together.", show_default=False)],
    delta: Annotated[float, typer.Option("--delta", help="The δ of all releases together.", show_default=False)],
    adjacency: Annotated[
        AdjacencyName, typer.Option("--adjacency", help="Which datasets are neighbours.")
    ] = AdjacencyName.add_remove,
    declare: Annotated[
        list[Path] | None,
        typer.Option(
            "--declare",
            help="A portfolio all of whose models count from the start; then any choice among them is free. Repeatable.",
            show_default=False,
        ),
    ] = None,
    filter_share: Annotated[
        float,
        typer.Option("--filter-share", help="The share of δ for a filter, which allows releases that depend on earlier ones."),
    ] = 0.0,
    filter_order: Annotated[
        float | None,
        typer.Option("--filter-order", help="The filter's Rényi order; by default the best for Gaussians.", show_default=False),
    ] = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Declare a total budget for one private dataset.

    Releases that depend on what earlier ones showed need --declare or --filter-share, which cannot be added later.
    """
    from dpmerge.records import Portfolio
    from dpmerge.release import Ledger
    from dpmerge.rules import require_wanted

    require_wanted(delta, any_delta)
    made = Ledger.create(
        ledger,
        dataset=dataset,
        adjacency=adjacency.value,
        epsilon=epsilon,
        delta=delta,
        declared=[Portfolio(folder) for folder in declare or ()],
        filter_share=filter_share,
        filter_order=filter_order,
    )
    _show(made, json)


@app.command("show")
def show(ledger: LedgerArgument, json: JsonOption = False) -> None:
    """The budget, what was spent of it, and whether anything was interrupted."""
    from dpmerge.release import Ledger

    _show(Ledger(ledger), json)


@app.command("history")
def history(ledger: LedgerArgument, json: JsonOption = False) -> None:
    """Every entry, in order."""
    from dpmerge.cli.output import print_json, table
    from dpmerge.release import Ledger
    from dpmerge.rules import round_up, significant

    opened = Ledger(ledger)
    entries = opened.history()
    if json:
        print_json([asdict(entry) for entry in entries])
        return
    rows = []
    for entry in entries:
        content, cells = entry.content, ["", ""]
        if entry.kind == "release":
            coupled = f"{len(content['forms'])} coupled draws, " if len(content["forms"]) > 1 else ""
            what = f"{coupled}{content['forms'][0]['rule']} of {', '.join(sorted(content['names'].values()))}"
            what += " (depends on earlier ones)" if content.get("dependent") else ""
            by = " (filter)" if content["total"]["theorem"] == "adaptive-filter" else ""
            cells = [round_up(content["total"]["epsilon"]) + by, significant(content["total"]["delta"])]
        elif entry.kind == "portfolio":
            what = f"declares {', '.join(sorted(content['names'].values()))}"
        elif entry.kind == "filter":
            what = f"filter of order {float.fromhex(content['order']):g}"
        else:
            more = {"recovered": "output {output}", "voided": "{reason}"}.get(entry.kind, "").format(**content)
            what = f"{entry.kind} entry {content['of']}{': ' if more else ''}{more}"
        rows.append([str(entry.number), content["at"], what, *cells, entry.hash[:12]])
    table(opened.name, ["entry", "when", "what", "total ε", "δ", "hash"], rows)
    _print_assumptions(opened.summary(entries)["spent"]["assumptions"])


@app.command("remaining")
def remaining(
    ledger: LedgerArgument,
    portfolio: Annotated[
        Path | None, typer.Option("--portfolio", help="Say what of this portfolio may still be released.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """What the budget still allows."""
    from dpmerge.cli.output import print_json
    from dpmerge.records import Portfolio
    from dpmerge.release import Ledger, what_fits
    from dpmerge.rules import about_delta

    opened = Ledger(ledger)
    state = _state(opened)
    if portfolio is not None:
        loaded = Portfolio(portfolio)
        state["fits"] = what_fits(opened, loaded)
        state["warnings"] = list(about_delta(opened.budget.delta, loaded.models))
    if json:
        print_json(state)
        return
    _print_state(opened, state)
    for line in state.get("fits", {}).get("text", []):
        typer.echo(line)


@app.command("export")
def export(ledger: LedgerArgument, json: JsonOption = False) -> None:
    """The whole ledger as JSON, to keep a copy that later changes can be held against."""
    from dpmerge.cli.output import print_json
    from dpmerge.release import Ledger

    opened = Ledger(ledger)
    print_json({"budget": opened.budget.header(), "entries": [asdict(entry) for entry in opened.history()]})


@app.command("void")
def void(
    ledger: LedgerArgument,
    entry: Annotated[int, typer.Argument(help="The number of the entry.", show_default=False)],
    reason: Annotated[
        str, typer.Option("--reason", help="Why nothing of it was ever seen; stays in the ledger.", show_default=False)
    ],
    machine_is_gone: Annotated[
        bool,
        typer.Option(
            "--machine-is-gone",
            help="The machine or container that made it is gone for good and cannot be looked into; stays in the ledger.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Void a release that was interrupted, of which nothing was ever seen: it no longer counts."""
    from dpmerge.release import Ledger

    opened = Ledger(ledger)
    opened.void(entry, reason, machine_is_gone=machine_is_gone)
    _show(opened, json)


def _state(ledger: Ledger) -> dict[str, Any]:
    from dpmerge.release import under_way, unfinished

    entries = ledger.history()
    found = {entry.number: under_way(entry.content) for entry in unfinished(entries)}
    return {
        **ledger.summary(entries),
        "under_way": [number for number, runs in found.items() if runs],
        "interrupted": [number for number, runs in found.items() if not runs],
    }


def _show(ledger: Ledger, json: bool) -> None:
    from dpmerge.cli.output import print_json

    state = _state(ledger)
    if json:
        print_json(state)
    else:
        _print_state(ledger, state)


def _print_state(ledger: Ledger, state: dict[str, Any]) -> None:
    from dpmerge.rules import round_up, significant

    budget, spent = state["budget"], state["spent"]
    typer.echo(f"{ledger.name}: dataset {state['dataset']!r}, {state['adjacency']} neighbours")
    typer.echo(f"  budget ({budget['epsilon']:g}, {budget['delta']:g}), {state['releases']} releases")
    at_epsilon = f"δ = {significant(spent['delta_at_budget_epsilon'])} at ε = {budget['epsilon']:g}"
    typer.echo(f"  spent: ε = {round_up(spent['epsilon'])} at δ = {budget['delta']:g}; {at_epsilon} ({spent['standing']})")
    _print_assumptions(spent["assumptions"])
    for text in state["warnings"]:
        typer.echo(f"  warning: {text}")
    for text in state["counted"]:
        typer.echo(f"  {text}")
    for number in state["under_way"]:
        typer.echo(f"  entry {number} is under way; it counts")
    for number in state["interrupted"]:
        typer.echo(f"  entry {number} was interrupted; it counts")


def _print_assumptions(assumptions: list[str]) -> None:
    """What the total rests on, if anything was released."""
    if assumptions:
        typer.echo("  assuming:")
    for text in assumptions:
        typer.echo(f"    - {text}")
