"""`dpmerge account` and `dpmerge compare`: the guarantees of models and merges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import dpmerge.rules as rules
from dpmerge.cli.commands import JsonOption, argument, only, option
from dpmerge.cli.options import EpsilonOrDelta, Granted, MergeAccounting, PortfolioArgument
from dpmerge.cli.output import (
    echo,
    print_guarantee,
    print_json,
    print_reasons,
    print_warnings,
    print_whose_assumptions,
    show_progress,
    stated,
    table,
)
from dpmerge.cli.tuning import Tuning, account_tuning
from dpmerge.errors import AccountingError, PortfolioError, TargetError
from dpmerge.profiles import run_profile
from dpmerge.records import Model, Portfolio, Weights

_WEIGHTS = "name=value,…, e.g. a=0.2,b=0.8 or a=1/3,…; they sum to 1, and a model not named has weight 0."
WeightsOption = Annotated[str, option(_WEIGHTS)]
ProvenanceOption = Annotated[
    rules.Looked | None,
    option("How the weights were chosen. Joint release counts all models; if a-priori, only those with weight."),
]
NoiseOption = Annotated[
    float | None, option("Standard deviation of fresh Gaussian noise on every parameter, added to the average at release.")
]
_ACCOUNTANTS = {"pld": "PLD", "rdp": "RDP (tight)", "rdp_paper": "RDP (papers')", "gdp": "GDP", "last_iterate": "last only"}


def account(
    context: typer.Context,
    question: EpsilonOrDelta,
    accounting: MergeAccounting,
    tuning: Tuning,
    portfolio: Annotated[Path | None, argument("Folder of models: one sub-folder each, with a record.json.")] = None,
    rule: Annotated[rules.PlainRule | None, option("How models are merged.")] = None,
    weights: Annotated[str | None, option(_WEIGHTS)] = None,
    provenance: ProvenanceOption = None,
    noise: NoiseOption = None,
    solve: Annotated[Literal["noise"] | None, option("With ε and δ: the least noise at release that meets them.")] = None,
    alone: Annotated[bool, option("Instead of a merge: each model alone, by every accountant (δ = 1e-5 by default).")] = False,
    json: JsonOption = False,
) -> None:
    """What a merge guarantees: ε at δ, or δ at ε.

    With its theorem and every assumption. --alone: each model separately. --tuning: releasing the best of several runs.
    """
    if tuning.tuning is not None:
        only(context, "with --tuning", Tuning, Granted, "portfolio", "delta", "json")
        return account_tuning(portfolio, tuning, question.delta, accounting, json)
    only(
        context,
        "without --tuning",
        EpsilonOrDelta,
        MergeAccounting,
        "portfolio",
        "rule",
        "weights",
        "provenance",
        "noise",
        "solve",
        "alone",
        "json",
    )
    if portfolio is None:
        raise PortfolioError("give a portfolio: a folder of models")
    if alone:
        only(context, "with --alone", Granted, "portfolio", "delta", "alone", "json")
        return _account_alone(portfolio, 1e-5 if question.delta is None else question.delta, accounting, json)
    if rule is None or weights is None:
        raise TargetError("a merge needs --rule and --weights; for each model alone, use --alone")
    how, given = accounting.accounting(), Weights.parse(Portfolio(portfolio), weights)
    if solve is not None:
        rules.require_covered(rule, provenance or "a-priori")
        guarantee = _solved(given, rule, question, how, noise)
    else:
        rules.Target(epsilon=question.epsilon, delta=question.delta)
        built = rules.build(rule, given, how, provenance=provenance, noise=noise or 0.0)
        guarantee = how.guarantee(built, **vars(question))
    if json:
        print_json(guarantee.as_dict())
    else:
        print_guarantee(guarantee)


def _solved(
    weights: Weights, rule: str, question: EpsilonOrDelta, accounting: rules.Accounting, noise: float | None
) -> rules.Guarantee:
    """The guarantee with the least noise that meets (ε, δ); the noise is among its details."""
    if question.epsilon is None or question.delta is None:
        raise TargetError("--solve noise needs both --epsilon and --delta")
    if rule != "combination" or noise is not None:
        raise TargetError("--solve noise is for --rule combination, without --noise: it finds the noise of an average")
    rules.Target(epsilon=question.epsilon)
    rules.Target(delta=question.delta)
    return rules.least_noise(weights, epsilon=question.epsilon, delta=question.delta, accounting=accounting)[1]


def _account_alone(portfolio: Path, delta: float, granted: Granted, json: bool) -> None:
    granted.require(delta)
    target = rules.Target(delta=delta)
    loaded = Portfolio(portfolio)
    found = {model.name: _alone(model, target, granted) for model in loaded.models}
    warnings = rules.about_delta(delta, loaded.models, granted.shuffle)
    if json:
        models = [entry for entry, _ in found.values()]
        print_json({"delta": delta, "adjacency": loaded.adjacency, "models": models, "warnings": warnings})
        return
    rows = [
        [entry["model"], entry["kind"], *("—" if entry[key] is None else rules.round_up(entry[key]) for key in _ACCOUNTANTS)]
        for entry, _ in found.values()
    ]
    columns = ["model", "kind", *_ACCOUNTANTS.values()]
    table(f"ε of each model alone at δ = {delta:g}, {loaded.adjacency}", columns, rows)
    print_warnings(warnings)
    for text in (*rules.THEOREMS["single-run"].assumptions, *rules.about_records(loaded.models)):  # once, for all models
        echo(f"assuming: {text}")
    last = rules.assumed_by((entry["model"], entry["last_iterate_assumptions"]) for entry, _ in found.values())
    each = (text for model in loaded.models for text in rules.about_records([model]))  # generators are named for all at once
    printed = (*rules.THEOREMS["single-run"].assumptions, *each)
    for text, names in last.items():
        if text not in printed:
            echo(f"assuming, for last only [{', '.join(names)}]: {text}")
    for entry, noted in found.values():
        for text in noted:
            echo(f"{entry['standing']}: {text}")
        if entry["refused"]:
            echo(f"refused: {entry['refused']}")


def _alone(model: Model, target: rules.Target, granted: Granted) -> tuple[dict[str, Any], tuple[str, ...]]:
    """One model's ε by every accountant, and the assumptions of its record."""
    entry: dict[str, Any] = {"model": model.name, "kind": model.mechanism.kind, "run": model.run}
    entry |= {
        **dict.fromkeys(_ACCOUNTANTS),
        "assumptions": [],
        "last_iterate_assumptions": [],
        "standing": "proved",
        "refused": None,
    }
    try:
        run = run_profile(model, granted.shuffle)
    except AccountingError as error:
        return {**entry, "refused": str(error)}, ()
    last = rules.build("combination", Portfolio((model,)).weights({model.name: 1.0}), granted.accounting())
    found = last.guarantee(delta=target.delta)
    entry |= {"last_iterate": found.epsilon, "last_iterate_assumptions": list(found.assumptions)}
    bound = rules.ProfileBound(run.profile)
    for name in bound.accountants():
        entry[name] = rules.ask(bound, target, name).epsilon
        if name == "rdp":
            entry["rdp_paper"] = rules.ask(bound, target, name, "paper").epsilon
    entry["assumptions"] = [*rules.THEOREMS["single-run"].assumptions, *rules.about_records([model]), *run.assumptions]
    entry["standing"] = "conditional" if run.conditional else "proved"
    return entry, run.assumptions


def compare(
    portfolio: PortfolioArgument,
    weights: WeightsOption,
    question: EpsilonOrDelta,
    accounting: MergeAccounting,
    provenance: ProvenanceOption = None,
    noise: NoiseOption = None,
    json: JsonOption = False,
) -> None:
    """The same weights under every rule and baseline.

    Random selection, linear combination (every step counted, last iterate only, with noise, and by the papers' formula), joint
    release, and composition. With both ε and δ: ε at this δ, and the least noise at release that meets both.
    """
    if question.epsilon is None or question.delta is None:
        rules.Target(epsilon=question.epsilon, delta=question.delta)
    given = Weights.parse(Portfolio(portfolio), weights)
    how: dict[str, Any] = {"accounting": accounting.accounting(), "provenance": provenance, "progress": show_progress}
    how["noise"] = noise or 0.0
    found = rules.compare(given.portfolio, given.as_dict(), **vars(question), **how)
    show_progress("")
    if json:
        print_json(found.as_dict())
    else:
        _print_comparison(found)


def _print_comparison(found: rules.Comparison) -> None:
    unknown, fixed = ("δ", f"ε = {found.epsilon:g}") if found.delta is None else ("ε", f"δ = {found.delta:g}")
    columns = ["rule", unknown, "standing", "by", "theorem"]
    cells = [row.cells if row.guarantee else {**row.cells, unknown: "—", "by": "", "theorem": ""} for row in found]
    title = f"{stated(found.weights.as_dict())}\n{fixed}, {found.weights.portfolio.adjacency}"
    table(title, columns, [[str(row[column]) for column in columns] for row in cells])
    answers = {row.label: row.guarantee for row in found if row.guarantee is not None}
    print_warnings(text for guarantee in answers.values() for text in guarantee.warnings)
    print_whose_assumptions(found.assumptions)
    for row in found:
        if row.guarantee is None:
            echo(f"refused, {row.label}: {row.refusal}")
        else:
            print_reasons(row.guarantee, f"{row.label}: ")
    lunch, selection = found.no_free_lunch, found.rows[0].guarantee
    if lunch is not None and selection is not None:
        pair = f"({rules.round_up(selection.epsilon)}, {rules.significant(selection.delta)})"
        echo(
            f"no free lunch: a merger that knows only (ε, δ) pairs and reacts to {lunch.model!r} with a total variation above "
            f"{lunch.threshold:.4f} is not {pair}-DP in general"
        )
