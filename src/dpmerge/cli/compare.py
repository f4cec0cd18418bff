"""`dpmerge compare`: the same weights under every rule and baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from dpmerge.cli.options import (
    AnyDeltaOption,
    ByName,
    ByOption,
    ConversionName,
    ConversionOption,
    DeltaOption,
    EpsilonOption,
    JsonOption,
    PortfolioArgument,
    ShuffleOption,
    ShuffleRateOption,
    SmoothnessOption,
    WeightsOption,
    WhoChoseOption,
    check_smoothness,
    shuffle_treatment,
)
from dpmerge.cli.progress import show_progress


def compare(
    portfolio: PortfolioArgument,
    weights: WeightsOption,
    delta: DeltaOption = None,
    epsilon: EpsilonOption = None,
    by: ByOption = ByName.best,
    conversion: ConversionOption = ConversionName.tight,
    assume_smoothness: SmoothnessOption = None,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    provenance: WhoChoseOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Random selection, linear combination (proved, and by the papers' formula), joint release and compositions."""
    from dpmerge.cli.output import print_json, table
    from dpmerge.records import Portfolio, Weights
    from dpmerge.rules import THEOREMS, Accounting, Target, compare as compare_rules, round_up, significant

    Target(epsilon=epsilon, delta=delta)
    check_smoothness(assume_smoothness)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    parsed = Weights.parse(Portfolio(portfolio), weights)
    found = compare_rules(
        parsed.portfolio,
        parsed.as_dict(),
        delta=delta,
        epsilon=epsilon,
        accounting=Accounting(by.value, conversion.value, assume_smoothness, shuffle, any_delta),
        provenance=None if provenance is None else provenance.value,
        progress=show_progress,
    )
    show_progress("")
    if json:
        print_json(found.as_dict())
        return
    rows, selection, lunch = found.rows, found.rows[0].guarantee, found.no_free_lunch
    asked = "ε" if delta is not None else "δ"
    fixed = f"δ = {delta:g}" if delta is not None else f"ε = {epsilon:g}"
    lines: list[list[str]] = []
    assumptions: dict[str, list[str]] = {}
    for row in rows:
        if row.guarantee is None:
            lines.append([row.label, "—", "refused", "", ""])
            continue
        own = row.guarantee
        value = round_up(own.epsilon) if delta is not None else significant(own.delta, 4)
        lines.append([row.label, value, own.standing, own.by.upper(), THEOREMS[own.theorem].title])
        for text in own.assumptions:
            assumptions.setdefault(text, []).append(row.label)
    used = ", ".join(f"{name}={value:.10g}" for name, value in parsed.as_dict().items() if value > 0)
    table(f"{used}\n{fixed}, {parsed.portfolio.adjacency}", ["rule", asked, "standing", "by", "theorem"], lines)
    for text in dict.fromkeys(text for row in rows if row.guarantee for text in row.guarantee.warnings):
        typer.echo(f"warning: {text}")
    _print_notes(rows, assumptions)
    if lunch is not None and selection is not None:
        typer.echo(
            f"no free lunch: a merger that knows only (ε, δ) pairs and reacts to {lunch.model!r} with a total variation above "
            f"{lunch.threshold:.4f} is not ({round_up(selection.epsilon)}, {significant(selection.delta)})-DP in general"
        )


def _print_notes(rows: Sequence[Any], assumptions: dict[str, list[str]]) -> None:
    answered = sum(row.guarantee is not None for row in rows)
    typer.echo("assuming:")
    for text, labels in assumptions.items():
        where = "" if len(labels) == answered else f" [{', '.join(labels)}]"
        typer.echo(f"  - {text}{where}")
    for row in rows:
        if row.refusal:
            typer.echo(f"refused, {row.label}: {row.refusal}")
        elif row.guarantee is not None:
            for name, why in row.guarantee.details.get("revealed", {}).items():
                typer.echo(f"{row.label}: model {name!r} is accounted by joint release: {why}")
            if "joint_because" in row.guarantee.details:
                typer.echo(f"{row.label}: joint release counts: {row.guarantee.details['joint_because']}")
