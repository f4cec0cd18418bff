"""`dpmerge account --tuning`: the cost of releasing the best of several private runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import dpmerge.rules as rules
from dpmerge.cli.commands import option, options
from dpmerge.cli.options import Granted
from dpmerge.cli.output import echo, print_assumptions, print_json, print_warnings
from dpmerge.errors import PortfolioError, TargetError
from dpmerge.records import Model, Portfolio


@options("Cost of tuning (give a run's record, ε, noise or μ)")
class Tuning:
    """The distribution of the number of runs, and the guarantee of each run, given in one of four ways."""

    tuning: Annotated[
        rules.DistributionName | None,
        option("Instead of a merge: the best of K runs, with K from this distribution (tnb: truncated negative binomial)."),
    ] = None
    trials: Annotated[float | None, option("The mean of the number of runs K.")] = None
    shape: Annotated[float | None, option("η of --tuning tnb, above −1.")] = None
    model: Annotated[str | None, option("Each run is accounted like this model of the portfolio.")] = None
    run_epsilon: Annotated[float | None, option("Each run is accounted as a Gaussian mechanism with this ε.")] = None
    run_delta: Annotated[float | None, option("The δ of --run-epsilon, if it is not --delta.")] = None
    run_noise: Annotated[float | None, option("Each run is accounted as a Gaussian mechanism with this noise.")] = None
    run_mu: Annotated[float | None, option("Each run satisfies μ-GDP with this μ.")] = None
    calibrate: Annotated[
        rules.Calibration | None, option("From --run-epsilon to noise: the exact curve (default), or Rényi moments.")
    ] = None


def account_tuning(portfolio: Path | None, asked: Tuning, delta: float | None, granted: Granted, json: bool) -> None:
    """Lower and upper bounds on ε of releasing the best of a random number of runs with random hyper-parameters."""
    assert asked.tuning is not None
    if delta is None or asked.trials is None:
        raise TargetError("--tuning needs --trials, the mean of the number of runs, and --delta")
    run_delta = delta if asked.run_delta is None else asked.run_delta
    granted.require(max(delta, run_delta))
    law = rules.trials(asked.tuning, asked.trials, asked.shape)
    cost = rules.tuning_cost(_base(portfolio, asked, run_delta, granted), law, delta)
    if json:
        print_json(cost.as_dict())
    else:
        _print(cost)


def _base(portfolio: Path | None, asked: Tuning, run_delta: float, granted: Granted) -> rules.Base:
    """The guarantee of each run, given in exactly one way."""
    shuffle = granted.shuffle
    ways = (portfolio, asked.run_epsilon, asked.run_noise, asked.run_mu)
    if sum(way is not None for way in ways) != 1:
        raise TargetError("describe each run in one way: --run-epsilon, --run-noise, --run-mu, or a portfolio with --model")
    if asked.run_epsilon is None and (asked.calibrate is not None or asked.run_delta is not None):
        raise TargetError("--calibrate and --run-delta require --run-epsilon")
    if portfolio is not None:
        return rules.Base.recorded(_model(Portfolio(portfolio), asked.model), shuffle)
    if asked.model is not None or shuffle is not None:
        raise TargetError("--model and --treat-shuffle-as-poisson require a portfolio")
    if asked.run_epsilon is not None:
        return rules.Base.calibrated(asked.run_epsilon, run_delta, asked.calibrate or "exact")
    if asked.run_noise is not None:
        if not (math.isfinite(asked.run_noise) and asked.run_noise > 0):
            raise TargetError(f"--run-noise is {asked.run_noise:g}; it must be finite and above 0")
        return rules.Base.gaussian(1 / asked.run_noise)
    assert asked.run_mu is not None
    return rules.Base.gaussian(asked.run_mu)


def _model(portfolio: Portfolio, name: str | None) -> Model:
    if name is None and len(portfolio) > 1:
        raise PortfolioError(f"the portfolio has {len(portfolio)} models; choose one with --model")
    return portfolio[portfolio.names[0] if name is None else name]


def _print(cost: rules.TuningCost) -> None:
    theorem = rules.THEOREMS[cost.theorem]
    echo(f"the best of K runs, K {cost.trials}")
    if math.isfinite(cost.epsilon):
        echo(f"({rules.round_up(cost.epsilon)}, {rules.significant(cost.delta)})-DP")
    else:
        echo(f"no finite ε at δ = {cost.delta:g}; try a larger --delta")
    print_warnings(cost.warnings, "  ")
    echo(f"  {cost.standing}: {theorem.title} ({theorem.source})")
    for name, value in cost.bounds.items():
        if name != cost.theorem:
            echo(f"  ε = {rules.round_up(value)} by {rules.THEOREMS[name].title} ({rules.THEOREMS[name].source})")
    if cost.lower is not None and cost.lower_own_score is not None:
        lower, own = (f"{math.floor(value * 1e4) / 1e4:.4f}" for value in (cost.lower, cost.lower_own_score))
        echo(f"  no theorem can guarantee less than ε = {lower}: runs ranked by the worst-case score have it;")
        echo(f"  runs ranked by their own outcomes still have ε = {own}")
    echo(f"  one run alone: ε = {rules.round_up(cost.alone)} at the same δ; {_one_run(cost.base)}")
    print_assumptions(cost.assumptions)


def _one_run(base: Mapping[str, Any]) -> str:
    if "model" in base:
        return f"{base['kind']}, the record of model {base['model']!r}, {base['adjacency']} neighbours"
    text = f"a Gaussian mechanism with noise multiplier {rules.significant(base['noise_multiplier'])}"
    ways = {"exact": "its exact curve", "rdp": "Rényi divergences and the tight conversion"}
    return text + (f", calibrated by {ways[base['calibrate']]}" if "calibrate" in base else "")
