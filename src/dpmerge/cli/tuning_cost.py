"""`dpmerge tuning-cost`: what it costs to release the best of several private runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.options import AnyDeltaOption, JsonOption, ShuffleOption, ShuffleRateOption, shuffle_treatment
from dpmerge.errors import PortfolioError, TargetError

if TYPE_CHECKING:
    from dpmerge.profiles import ShuffleAsPoisson
    from dpmerge.rules import Base, TuningCost


class DistributionOption(StrEnum):
    """Laws of the number of trials."""

    poisson = "poisson"
    geometric = "geometric"
    logarithmic = "logarithmic"
    tnb = "tnb"


class CalibrationOption(StrEnum):
    """How the noise of a Gaussian base follows from its (ε, δ)."""

    exact = "exact"
    rdp = "rdp"


def tuning_cost(
    trials: Annotated[float, typer.Option("--trials", help="The mean of the number of runs.", show_default=False)],
    distribution: Annotated[
        DistributionOption,
        typer.Option(
            "--distribution", help="The law of the number of runs; tnb: truncated negative binomial.", show_default=False
        ),
    ],
    delta: Annotated[float, typer.Option("--delta", help="δ of one run, and of the answer.", show_default=False)],
    portfolio: Annotated[
        Path | None, typer.Argument(help="A portfolio, to take one run from its records.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The model of the portfolio that is one run.", show_default=False)
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="One run is a Gaussian mechanism with this ε at --delta.", show_default=False),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            "--noise-multiplier", help="One run is a Gaussian mechanism with this noise multiplier.", show_default=False
        ),
    ] = None,
    mu: Annotated[float | None, typer.Option("--mu", help="One run is this μ-GDP.", show_default=False)] = None,
    calibrate: Annotated[
        CalibrationOption | None,
        typer.Option(
            "--calibrate",
            help="The noise for --epsilon: by the Gaussian's exact curve (default), or by Rényi divergences.",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        float | None, typer.Option("--shape", help="η of --distribution tnb, above −1.", show_default=False)
    ] = None,
    tuned_delta: Annotated[
        float | None, typer.Option("--tuned-delta", help="Another δ for the answer than --delta.", show_default=False)
    ] = None,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """ε of releasing the best of a random number of runs with random hyper-parameters: at least, and at most."""
    from dpmerge.cli.output import print_json
    from dpmerge.rules import require_wanted, trials as trial_law, tuning_cost as price

    require_wanted(max(delta, delta if tuned_delta is None else tuned_delta), any_delta)
    law = trial_law(distribution.value, trials, shape)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    base = _base(portfolio, model, epsilon, noise_multiplier, mu, delta, calibrate, shuffle)
    cost = price(base, law, delta if tuned_delta is None else tuned_delta)
    if json:
        print_json(cost.as_dict())
    else:
        _print(cost)


def _base(
    portfolio: Path | None,
    model: str | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    mu: float | None,
    delta: float,
    calibrate: CalibrationOption | None,
    shuffle: ShuffleAsPoisson | None,
) -> Base:
    """One run, stated in exactly one way."""
    from dpmerge.rules import Base

    given = [portfolio is not None, epsilon is not None, noise_multiplier is not None, mu is not None]
    if sum(given) != 1:
        raise TargetError("state one run in one way: --epsilon, --noise-multiplier, --mu, or a portfolio with --model")
    if calibrate is not None and epsilon is None:
        raise TargetError("--calibrate says how --epsilon becomes noise, and there is no --epsilon")
    if portfolio is None and (model is not None or shuffle is not None):
        raise TargetError("--model and --treat-shuffle-as-poisson are about the records of a portfolio; give one")
    if portfolio is not None:
        return _recorded(portfolio, model, shuffle)
    if epsilon is not None:
        return Base.calibrated(epsilon, delta, "exact" if calibrate is None else calibrate.value)
    if noise_multiplier is not None:
        if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
            raise TargetError(f"--noise-multiplier is {noise_multiplier:g}; it must be finite and above 0")
        return Base.gaussian(1 / noise_multiplier)
    assert mu is not None
    return Base.gaussian(mu)


def _recorded(portfolio: Path, model: str | None, shuffle: ShuffleAsPoisson | None) -> Base:
    from dpmerge.records import Portfolio
    from dpmerge.rules import Base

    loaded = Portfolio(portfolio)
    if model is None and len(loaded.models) > 1:
        raise PortfolioError(f"{portfolio} has {len(loaded.models)} models; say with --model which one is one run")
    loaded.require_names([] if model is None else [model], PortfolioError)
    return Base.recorded(loaded.models[0 if model is None else loaded.names.index(model)], shuffle)


def _print(cost: TuningCost) -> None:
    from dpmerge.rules import THEOREMS, round_up, significant

    theorem = THEOREMS[cost.theorem]
    typer.echo(f"the best of K runs, K {cost.trials}")
    if math.isfinite(cost.epsilon):
        typer.echo(f"({round_up(cost.epsilon)}, {significant(cost.delta)})-DP")
    else:
        typer.echo(f"no finite ε at δ = {cost.delta:g}; a larger --tuned-delta may have one")
    for text in cost.warnings:
        typer.echo(f"  warning: {text}")
    typer.echo(f"  {cost.standing}: {theorem.title} ({theorem.source})")
    others = [(name, value) for name, value in cost.bounds.items() if name != cost.theorem]
    for name, value in others:
        typer.echo(f"  ε = {round_up(value)} by {THEOREMS[name].title} ({THEOREMS[name].source})")
    if cost.lower is not None and cost.lower_own_score is not None:
        typer.echo(
            f"  no theorem can promise less than ε = {_round_down(cost.lower)}, which runs ranked by the worst score have;"
        )
        typer.echo(f"  ranked by their own outcomes they still have ε = {_round_down(cost.lower_own_score)}")
    typer.echo(f"  one run alone: ε = {round_up(cost.alone)} at the same δ; {_one_run(cost.base)}")
    typer.echo("  assuming:")
    for text in cost.assumptions:
        typer.echo(f"    - {text}")


def _one_run(base: Mapping[str, Any]) -> str:
    """How it was stated."""
    from dpmerge.rules import significant

    if "model" in base:
        return f"{base['kind']}, the record of model {base['model']!r}, {base['adjacency']} neighbours"
    told = f"a Gaussian mechanism with noise multiplier {significant(base['noise_multiplier'])}"
    ways = {"exact": "its exact curve", "rdp": "Rényi divergences and the tight conversion"}
    return told + (f", calibrated by {ways[base['calibrate']]}" if "calibrate" in base else "")


def _round_down(value: float) -> str:
    """A lower bound for people."""
    return f"{math.floor(value * 1e4) / 1e4:.4f}"
