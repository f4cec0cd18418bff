"""`dpmerge plan` and `dpmerge frontier`: what to release."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import dpmerge
import dpmerge.planning as planning
from dpmerge.cli.commands import JsonOption, only, option
from dpmerge.cli.options import (
    Execution,
    MergeAccounting,
    PointAccounting,
    PortfolioArgument,
    Tempered,
    Utility,
    parse_targets,
)
from dpmerge.cli.output import echo, print_json, print_lines, print_warnings, print_whose_assumptions, show_progress, table
from dpmerge.cli.scoring import NoisyScore
from dpmerge.errors import FigureError, UtilityError
from dpmerge.figures import draw, require_library
from dpmerge.files import write_json
from dpmerge.planning import Frontier, Heatmap, Option, OptionRule, Plan, check_frontier, heatmap, heatmap_grid
from dpmerge.records import Portfolio, Weights
from dpmerge.release import spared
from dpmerge.rules import THEOREMS, round_up
from dpmerge.tensors import MergedScore

# Typer does not support lists of literals.
PlanRule = StrEnum("PlanRule", ["selection", "combination", "joint", "tempered", "single"])

_AVERAGE = " (dpmerge run average, in a folder that holds the checkpoints of one run)"
_COMMANDS = {
    "checkpoints": _AVERAGE,
    "keep-checkpoints": _AVERAGE,
    "same-start": " (in Python: dpmerge.training.same_start; then evaluate the average, --candidate)",
    "tempered": " (--kappa, or --validation-epsilon)",
}


def plan(
    portfolio: PortfolioArgument,
    epsilon: Annotated[float, option("Target ε, not to be exceeded.")],
    delta: Annotated[float, option("Target δ, not to be exceeded.")],
    utility: Utility,
    tempered: Tempered,
    accounting: MergeAccounting,
    rule: Annotated[list[PlanRule] | None, option("Only this rule. Repeatable.")] = None,
    candidate: Annotated[list[str] | None, option("Also try the linear combination with these weights. Repeatable.")] = None,
    ledger: Annotated[
        str | None, option("Plan within what is left of this ledger, a file or a database URL; and say what is free in it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The best weights within (ε, δ), under every rule.

    Averages with the least noise at release that meets the target; draws; joint release; each model alone. Ranked by utility,
    or without any by the noise that records predict; options that miss the target show the reason. Says what else would pay.
    """
    loaded = Portfolio(portfolio)
    found = dpmerge.plan(
        loaded,
        epsilon=epsilon,
        delta=delta,
        utility=utility.of(loaded),
        rules=cast(list[OptionRule], rule) or planning.RULES,
        kappa=tempered.kappa,
        validation_epsilon=tempered.validation_epsilon,
        candidates=[Weights.parse(loaded, text).as_dict() for text in candidate or ()],
        accounting=accounting.accounting(),
        ledger=ledger,
        progress=show_progress,
    )
    advice = found.advice
    show_progress("")
    free = [] if ledger is None else dpmerge.Ledger(ledger).free_now()
    if json:
        told = {"advice": [one.as_dict() for one in advice], **({} if ledger is None else {"free": free})}
        print_json({**found.as_dict(), **told})
    else:
        _print(found, portfolio, ledger, f"target ({epsilon:g}, {delta:g}), {found.provenance}: {found.source}", free)


def _print(found: Plan, portfolio: Path, ledger: str | None, title: str, free: Sequence[Mapping[str, Any]]) -> None:
    rows = [option.row() for option in found.options]
    table(title, list(rows[0]) if rows else [], [list(row.values()) for row in rows])
    print_warnings(found.warnings)
    print_lines("no noise: ", [found.why_no_noise] if found.why_no_noise else [])
    print_lines("advice: ", (one.text + _COMMANDS.get(one.kind, "") for one in found.advice))
    best, closest = found.best, found.closest
    if best is None:
        near = f"; the closest is {closest.rule} with ε = {round_up(closest.epsilon)} at δ = {closest.delta:g}"
        echo("infeasible" + (near if closest.epsilon > found.epsilon else f": {closest.why}"))
    else:
        assert best.guarantee is not None
        echo(f"best: {best.rule}, {THEOREMS[best.guarantee.theorem].title}, {best.standing}")
    print_lines("", (ladder["text"] for ladder in free))  # what the budget allows besides
    if found.assumptions:
        print_whose_assumptions(found.assumptions)
    if any(one.utility_kind == "interpolated" for one in found.options):
        echo("≈: interpolated; the utility of an average is not the average of utilities. Evaluate before you rely on it")
    if any(one.utility_kind == "extrapolated" for one in found.options):
        echo("?: a guess; there is more noise than in any model whose utility was stated. Evaluate before you rely on it")
    if found.question.worth.predicted:
        echo(
            "predicted noise: the standard deviation that training and release leave in a parameter, from the records alone; "
            "an upper bound for convex models, an estimate for others. It says nothing of how well a model was trained"
        )
    for one in found.options:
        if one is best or (one.feasible and one.noise > 0):
            print_lines("release: ", _merge_command(one, portfolio, ledger))


def _merge_command(chosen: Option, portfolio: Path, ledger: str | None = None) -> Iterator[str]:
    """The command that releases an option exactly; none where it needs more than the plan knows."""
    rule = chosen.rule
    hidden = chosen.guarantee is not None and chosen.guarantee.theorem == "hidden-run"
    if rule == "single":
        rule = "combination" if hidden else "joint"
    elif rule in ("joint", "tempered"):
        return
    how = chosen.question.accounting.for_rule(rule)
    given = {
        "--rule": rule,
        "--weights": ",".join(f"{model.name}={weight!r}" for model, weight in chosen.weights.used),
        "--noise": repr(chosen.noise) if chosen.noise else None,
        "--delta": f"{chosen.question.delta!r}",
        "--provenance": "a-priori" if rule == "joint" else None,
        "--ledger": None if ledger is None else shlex.quote(ledger),
        "--by": None if how.by == "best" else how.by,
        "--conversion": None if how.conversion == "tight" else how.conversion,
        "--assume-smoothness": None if how.assume_smoothness is None else repr(how.assume_smoothness),
        "--shuffle-rate": None if how.shuffle is None else repr(how.shuffle.rate),
    }
    flags = {
        "--treat-shuffle-as-poisson": how.shuffle is not None,
        "--any-delta": how.any_delta,
        "--other-releases": not how.only_release,
    }
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    yield shlex.join(
        ["dpmerge", "merge", str(portfolio), *words, *(name for name, on in flags.items() if on), "--out", "RELEASE"]
    )


def frontier(
    context: typer.Context,
    portfolio: PortfolioArgument,
    delta: Annotated[float, option("The δ at which ε is computed.")],
    utility: Utility,
    accounting: PointAccounting,
    execution: Execution,
    epsilons: Annotated[str, option("Targets: low:high, low:high:count, or a list.")] = "0.3:8",
    points: Annotated[
        int | None,
        option("Averages without noise on each edge from the most private model (default: none where noise pays, else 25)."),
    ] = None,
    grid: Annotated[
        float | None, option("Instead of edges, all weights that are multiples of this step (--simplex: 0.05 by default).")
    ] = None,
    evaluate: Annotated[
        str | None,
        option("Merge and score every point, noise drawn ten times: module:function (folder → score), or a bundled task."),
    ] = None,
    stand_ins: Annotated[bool, option("The models scored are stand-ins trained on public data.")] = False,
    simplex: Annotated[bool, option("Instead of utility against ε: ε over all weights of three models.")] = False,
    out: Annotated[Path | None, option("Folder for pictures and finished work (default: frontier, or simplex).")] = None,
    json: JsonOption = False,
) -> None:
    """Utility against ε at many targets, drawn.

    The main line is the best average with noise at release, at many noises. Random selection is solved exactly at every target;
    averages without noise are tried on a grid. Writes figures, and their numbers as JSON. With --simplex, ε over all weights of
    three models. A killed run can be continued by the same command.
    """
    if simplex:
        only(context, "with --simplex", PointAccounting, Execution, "portfolio", "delta", "grid", "simplex", "out", "json")
    elif stand_ins and evaluate is None:
        raise UtilityError("--stand-ins needs --evaluate; a utility file states it itself")
    name = "simplex" if simplex else "frontier"
    folder = out or Path(name)
    if folder.is_file():
        raise FigureError(f"{folder}: is a file; pictures and finished work need a folder")
    accounting.require(delta)
    drawn = _drawable(json)
    loaded = Portfolio(portfolio)
    loaded.require_outside(folder)
    make: Callable[..., Heatmap | Frontier]
    if simplex:
        step = 0.05 if grid is None else grid
        heatmap_grid(loaded, delta, step)  # refuses before the folder is made
        make = partial(heatmap, step=step)
    else:
        targets, known, scorer = parse_targets(epsilons), utility.of(loaded), _scorer(loaded, portfolio, evaluate)
        check_frontier(delta, targets, known, scorer, points, grid)  # refuses before the folder is made
        make = partial(
            planning.frontier,
            epsilons=targets,
            utility=known,
            scorer=scorer,
            scored="stand-ins" if stand_ins else "private",
            edge_points=points,
            step=grid,
            progress=show_progress,
        )
    with execution.workers("combinations", folder) as run:
        found = make(loaded, delta=delta, accounting=accounting.accounting(), run=run)
    show_progress("pictures")
    written = _write(found, folder, name, drawn)
    show_progress("")
    if json:
        print_json(found.as_dict())
    else:
        _print_written(found, written)


def _scorer(loaded: Portfolio, portfolio: Path, evaluate: str | None) -> MergedScore | None:
    if evaluate is None:
        return None
    score = NoisyScore.of({name: portfolio / name for name in loaded.names}, evaluate)
    return replace(score, without=spared(loaded.models, portfolio / loaded.names[0]))


def _drawable(json: bool) -> list[str]:
    """The kinds of pictures that can be drawn here. Whoever asks for JSON can do without, others are told first."""
    found = []
    for suffix in (".png", ".html"):
        try:
            require_library(suffix)
            found.append(suffix)
        except FigureError as missing:
            if not json:
                raise
            echo(f"note: {missing}; none is drawn", err=True)
    return found


def _write(found: Frontier | Heatmap, folder: Path, name: str, drawn: list[str]) -> list[Path]:
    """Write JSON (infinities as null), then figures; each file is written atomically."""
    paths = [folder / f"{name}{suffix}" for suffix in (".json", *drawn)]
    write_json(found.as_dict(), paths[0])
    for path in paths[1:]:
        draw(found, path)
    return paths


def _print_written(found: Frontier | Heatmap, written: list[Path]) -> None:
    """Print the files, their assumptions and a warning, if any."""
    print_lines("", written)
    print_whose_assumptions(found.assumptions)
    if found.warning:
        echo(f"note: {found.warning}")
