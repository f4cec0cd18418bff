"""`dpmerge ledger`: the releases and the budget of one private dataset."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from dpmerge.cli.commands import JsonOption, argument, group, option
from dpmerge.cli.options import AnyDeltaOption, MergeAccounting, PortfolioArgument
from dpmerge.cli.output import echo, print_assumptions, print_json, print_lines, print_warnings, table
from dpmerge.records import Adjacency, Portfolio, Weights
from dpmerge.release import ENTRY_COLUMNS, Ledger, State, enter_floor, entry_row, state_of, unfinished, what_fits
from dpmerge.rules import about_delta, require_wanted, round_up

LedgerArgument = Annotated[str, argument("The ledger: a file, or a database URL.")]


def new(
    ledger: LedgerArgument,
    dataset: Annotated[str, option("The dataset's identity, as the records state it.")],
    epsilon: Annotated[float, option("The ε of all releases together.")],
    delta: Annotated[float, option("The δ of all releases together.")],
    adjacency: Annotated[Adjacency, option("Which datasets are neighbours.")] = "add-remove",
    declare: Annotated[
        list[Path] | None,
        option("Count all models of this portfolio from the start; any choice among them then costs nothing more. Repeatable."),
    ] = None,
    filter_share: Annotated[float, option("Share of δ for a filter, which allows releases that depend on earlier ones.")] = 0.0,
    filter_order: Annotated[float | None, option("The filter's Rényi order; by default the best for Gaussians.")] = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Declare the total budget of a private dataset.

    Releases chosen after seeing earlier ones need --declare or --filter-share, which cannot be added later.
    """
    require_wanted(delta, any_delta)
    made = Ledger.create(
        ledger,
        dataset=dataset,
        adjacency=adjacency,
        epsilon=epsilon,
        delta=delta,
        declared=[Portfolio(folder) for folder in declare or ()],
        filter_share=filter_share,
        filter_order=filter_order,
    )
    _show(made, json)


def show(ledger: LedgerArgument, json: JsonOption = False) -> None:
    """The budget, what is spent, and interrupted releases."""
    _show(Ledger(ledger), json)


def history(ledger: LedgerArgument, json: JsonOption = False) -> None:
    """Every entry, in order."""
    opened = Ledger(ledger)
    entries = opened.history()
    if json:
        print_json([asdict(entry) for entry in entries])
        return
    rows = [entry_row(entry) for entry in entries]
    table(opened.name, ENTRY_COLUMNS, [list(row.values()) for row in rows])
    state = opened.summary(entries)
    print_assumptions(state["spent"]["assumptions"])
    print_warnings(state["warnings"], "  ")


def floor(
    ledger: LedgerArgument,
    portfolio: PortfolioArgument,
    weights: Annotated[str, option("name=value,…: the average, by its exact weights, which sum to 1.")],
    accounting: MergeAccounting,
    epsilon: Annotated[float | None, option("Releases are free down to the noise of this ε; by default the budget's.")] = None,
    json: JsonOption = False,
) -> None:
    """Charge now for every release of one average down to a noise.

    Releases with at least that noise are then free, whatever they depend on. The floor itself must not depend on what earlier
    releases showed.
    """
    opened, loaded = Ledger(ledger), Portfolio(portfolio)
    found = enter_floor(opened, loaded, Weights.parse(loaded, weights), epsilon=epsilon, accounting=accounting.accounting())
    if not json:
        echo(f"floor entered: noise {found.noise:.6g}")
    _show(opened, json, {"floor": {"noise": found.noise, "entry": found.entry.number}})


def remaining(
    ledger: LedgerArgument,
    portfolio: Annotated[Path | None, option("Show which models of this portfolio still fit the budget.")] = None,
    json: JsonOption = False,
) -> None:
    """What the budget still allows."""
    opened = Ledger(ledger)
    fits: dict[str, Any] = {"why_more": opened.why_more()}
    if portfolio is not None:
        loaded = Portfolio(portfolio)
        fits |= {"fits": what_fits(opened, loaded), "warnings": list(about_delta(opened.budget.delta, loaded.models))}
    _show(opened, json, fits)


def export(ledger: LedgerArgument, json: JsonOption = False) -> None:
    """The whole ledger as JSON, to detect later changes.

    Others may keep it: fingerprints of noise and digests of tensors are digested under a key that stays in the ledger. Equal
    ones stay equal, here and in later exports.
    """
    print_json(Ledger(ledger).export())


def void(
    ledger: LedgerArgument,
    entry: Annotated[int, argument("The number of the entry.")],
    reason: Annotated[str, option("Why nobody ever saw its output; recorded in the ledger.")],
    machine_is_gone: Annotated[
        bool, option("Its machine no longer exists and cannot be inspected; recorded in the ledger.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Void an interrupted release that nobody saw."""
    opened = Ledger(ledger)
    opened.void(entry, reason, machine_is_gone=machine_is_gone)
    _show(opened, json)


_UNFINISHED: dict[State, str] = {
    "under way": "is under way; it counts",
    "elsewhere": (
        "was begun by process {pid} on {host}, which cannot be seen from here; it counts. If that process ended, the next "
        "merge with this ledger on {host} closes it; if {host} is gone for good and nothing of it was seen, so does ledger "
        "void with --machine-is-gone"
    ),
    "out": "was interrupted after its release had appeared at {out}; it counts, and the next merge or verify completes it",
    "interrupted": "was interrupted; it counts",
}


def _show(ledger: Ledger, json: bool, more: dict[str, Any] | None = None) -> None:
    entries = ledger.history()
    found = {entry.number: (entry.content, state_of(entry)) for entry in unfinished(entries)}
    running = {state.replace(" ", "_"): [number for number, (_, one) in found.items() if one == state] for state in _UNFINISHED}
    free = ledger.free_now(entries)
    state = {**ledger.summary(entries), **running, **({"free": free} if free else {}), **(more or {})}
    if json:
        print_json(state)
        return
    budget, spent = state["budget"], state["spent"]
    echo(f"{ledger.name}: dataset {state['dataset']!r}, {state['adjacency']} neighbours")
    echo(f"  budget ({budget['epsilon']:g}, {budget['delta']:g}), {state['releases']} releases")
    # One answer: δ at the budget's ε is another question, which rules may answer less tightly.
    echo(f"  spent: ε = {round_up(spent['epsilon'])} at δ = {budget['delta']:g} ({spent['standing']})")
    print_assumptions(spent["assumptions"])
    print_warnings(state["warnings"], "  ")
    print_lines("  ", state["counted"])
    told = ({"pid": about["by"]["pid"], "host": about["by"]["host"], "out": about["out"]} for about, _ in found.values())
    for (number, (_, one)), where in zip(found.items(), told, strict=True):
        print_lines("  ", [f"entry {number} {_UNFINISHED[one].format(**where)}"])
    print_lines("", state.get("fits", {}).get("text", []))
    print_lines("  ", [state["why_more"]] if state.get("why_more") else [])


ledger = group(
    "ledger", "The budget of a private dataset, and its releases.", new, show, history, remaining, floor, export, void
)
