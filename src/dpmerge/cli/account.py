"""`dpmerge account`: the guarantee of one merge."""

from __future__ import annotations

from typing import Annotated

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
    RuleName,
    ShuffleOption,
    ShuffleRateOption,
    SmoothnessOption,
    WeightsOption,
    WhoChoseOption,
    check_smoothness,
    shuffle_treatment,
)


def account(
    portfolio: PortfolioArgument,
    rule: Annotated[RuleName, typer.Option("--rule", help="How the models are merged.", show_default=False)],
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
    """The guarantee of a merge: ε at a given δ, or δ at a given ε, with its theorem and assumptions."""
    from dpmerge.cli.output import print_guarantee, print_json
    from dpmerge.records import Portfolio, Weights
    from dpmerge.rules import Accounting, Target, build, require_wanted

    require_wanted(delta, any_delta)
    Target(epsilon=epsilon, delta=delta)
    check_smoothness(assume_smoothness)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    accounting = Accounting(by.value, conversion.value, assume_smoothness, shuffle, any_delta)
    given = Weights.parse(Portfolio(portfolio), weights)
    chosen = build(rule.value, given, accounting, provenance=None if provenance is None else provenance.value)
    guarantee = accounting.guarantee(chosen, epsilon=epsilon, delta=delta)
    if json:
        print_json(guarantee.as_dict())
    else:
        print_guarantee(guarantee)
