"""`dpmerge account`: the guarantee of one merge."""

from __future__ import annotations

from typing import Annotated

import typer

from dpmerge.cli.options import (
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
    check_smoothness,
    shuffle_treatment,
)
from dpmerge.errors import TargetError


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
    json: JsonOption = False,
) -> None:
    """The guarantee of a merge: ε at a given δ, or δ at a given ε, with its theorem and assumptions."""
    from dpmerge.cli.output import print_guarantee, print_json
    from dpmerge.records import Portfolio, Weights
    from dpmerge.rules import Combination, Joint, Rule, Selection, Target

    Target(epsilon=epsilon, delta=delta)
    check_smoothness(assume_smoothness)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    if assume_smoothness is not None and rule is not RuleName.combination:
        raise TargetError(f"--assume-smoothness has no meaning for --rule {rule.value}: only linear combination uses it")
    parsed = Weights.parse(Portfolio.load(portfolio), weights)
    chosen: Rule
    if rule is RuleName.selection:
        chosen = Selection(parsed, shuffle)
    elif rule is RuleName.joint:
        chosen = Joint(parsed, shuffle)
    else:
        chosen = Combination(parsed, assume_smoothness, shuffle)
    guarantee = chosen.guarantee(epsilon=epsilon, delta=delta, by=by.value, conversion=conversion.value)
    if json:
        print_json(guarantee.as_dict())
    else:
        print_guarantee(guarantee)
