"""`dpmerge profile`: every model alone, by every accountant."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpmerge.cli.options import (
    AnyDeltaOption,
    JsonOption,
    PortfolioArgument,
    ShuffleOption,
    ShuffleRateOption,
    shuffle_treatment,
)


def profile(
    portfolio: PortfolioArgument,
    delta: Annotated[float, typer.Option("--delta", help="The δ at which ε is asked for.")] = 1e-5,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Each model alone: ε at δ by every accountant, side by side."""
    from dpmerge.cli.output import print_json, table
    from dpmerge.errors import AccountingError
    from dpmerge.profiles import run_profile
    from dpmerge.records import Portfolio
    from dpmerge.rules import THEOREMS, ProfileBound, Target, about_delta, about_records, ask, require_wanted, round_up

    require_wanted(delta, any_delta)
    target = Target(delta=delta)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    loaded = Portfolio(portfolio)
    models: list[dict[str, Any]] = []
    noted: dict[str, tuple[str, ...]] = {}
    for model in loaded.models:
        entry: dict[str, Any] = {
            "model": model.name,
            "kind": model.mechanism.kind,
            "run": model.run,
            "pld": None,
            "rdp": None,
            "rdp_paper": None,
            "gdp": None,
            "assumptions": [],
            "standing": "proved",
            "refused": None,
        }
        models.append(entry)
        try:
            run = run_profile(model, shuffle)
        except AccountingError as error:
            entry["refused"] = str(error)
            continue
        noted[model.name] = run.assumptions
        entry["assumptions"] = [*THEOREMS["single-run"].assumptions, *about_records([model]), *run.assumptions]
        entry["standing"] = "conditional" if run.conditional else "proved"
        bound = ProfileBound(run.profile)
        for name in bound.accountants():
            entry[name] = ask(bound, target, name).epsilon
            if name == "rdp":
                entry["rdp_paper"] = ask(bound, target, name, "paper").epsilon
    warnings = about_delta(delta, loaded.models, shuffle)
    if json:
        print_json({"delta": delta, "adjacency": loaded.adjacency, "models": models, "warnings": warnings})
        return
    columns = ["model", "kind", "PLD", "RDP (tight)", "RDP (papers')", "GDP"]
    rows = [
        [entry["model"], entry["kind"]]
        + ["—" if entry[key] is None else round_up(entry[key]) for key in ("pld", "rdp", "rdp_paper", "gdp")]
        for entry in models
    ]
    table(f"ε of each model alone at δ = {delta:g}, {loaded.adjacency}", columns, rows)
    for text in warnings:
        typer.echo(f"warning: {text}")
    for text in (*THEOREMS["single-run"].assumptions, *about_records(loaded.models)):  # one line about all of them
        typer.echo(f"assuming: {text}")
    for entry in models:
        for text in noted.get(entry["model"], ()):
            typer.echo(f"{entry['standing']}: {text}")
        if entry["refused"]:
            typer.echo(f"refused: {entry['refused']}")
