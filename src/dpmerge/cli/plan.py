"""`dpmerge plan`: the best release for a target."""

from __future__ import annotations

from typing import Annotated

import typer

from dpmerge.cli.options import (
    AnyDeltaOption,
    ByName,
    ByOption,
    ConversionName,
    ConversionOption,
    JsonOption,
    PlanRuleName,
    PortfolioArgument,
    ProvenanceOption,
    ShuffleOption,
    ShuffleRateOption,
    SmoothnessOption,
    UtilityOption,
    check_smoothness,
    shuffle_treatment,
)
from dpmerge.cli.progress import show_progress


def plan(
    portfolio: PortfolioArgument,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The ε to stay within.", show_default=False)],
    delta: Annotated[float, typer.Option("--delta", help="The δ to stay within.", show_default=False)],
    utility: UtilityOption = None,
    provenance: ProvenanceOption = None,
    rule: Annotated[
        list[PlanRuleName] | None, typer.Option("--rule", help="Only this rule (may be repeated).", show_default=False)
    ] = None,
    by: ByOption = ByName.best,
    conversion: ConversionOption = ConversionName.tight,
    kappa: Annotated[
        float | None,
        typer.Option("--kappa", help="Also plan tempered selection, which may look at public scores.", show_default=False),
    ] = None,
    validation_epsilon: Annotated[
        float | None,
        typer.Option(
            "--validation-epsilon",
            help="For scores on a private validation set: plan the tempered draw by them for which its records pay this ε.",
            show_default=False,
        ),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", help="A linear combination to try besides (weights; may be repeated).", show_default=False),
    ] = None,
    assume_smoothness: SmoothnessOption = None,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """The best weights for a target (ε, δ) under every rule, ranked, and why the rest does not fit."""
    import dpmerge
    from dpmerge.cli.output import print_json, table
    from dpmerge.planning import RULES, Utilities
    from dpmerge.records import Portfolio, Weights
    from dpmerge.rules import THEOREMS, Accounting, round_up

    check_smoothness(assume_smoothness)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    loaded = Portfolio(portfolio)
    found = dpmerge.plan(
        loaded,
        epsilon=epsilon,
        delta=delta,
        utility=Utilities.asked(loaded, utility, None if provenance is None else provenance.value),
        rules=RULES if not rule else [name.value for name in rule],
        kappa=kappa,
        validation_epsilon=validation_epsilon,
        candidates=[Weights.parse(loaded, text).as_dict() for text in candidate or ()],
        accounting=Accounting(by.value, conversion.value, assume_smoothness, shuffle, any_delta),
        progress=show_progress,
    )
    show_progress("")
    if json:
        print_json(found.as_dict())
        return
    rows = [option.row() for option in found.options]
    title = f"target ({epsilon:g}, {delta:g}), {found.provenance}: {found.source}"
    table(title, list(rows[0]) if rows else [], [list(row.values()) for row in rows])
    for text in found.warnings:
        typer.echo(f"warning: {text}")
    best = found.best
    if best is None:
        closest = found.closest
        typer.echo(f"infeasible; the closest is {closest.rule} with ε = {round_up(closest.epsilon)} at δ = {closest.delta:g}")
        return
    assert best.guarantee is not None
    typer.echo(f"best: {best.rule}, {THEOREMS[best.guarantee.theorem].title}, {best.standing}; assuming:")
    for text in best.guarantee.assumptions:
        typer.echo(f"  - {text}")
    if any(option.utility_kind == "interpolated" for option in found.options):
        typer.echo("≈ the utility of an average is not the average of utilities: interpolated, evaluate before you rely on it")
