"""`dpmerge audit`: attack a release, and compare the measured lower bound on ε with its claims."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import dpmerge.audit as audits
from dpmerge.audit import Audit, Guessing, about, as_dict, check, find_game, picture, scenario_names
from dpmerge.cli.commands import JsonOption, option
from dpmerge.cli.options import Execution
from dpmerge.cli.output import echo, print_json, print_lines, table
from dpmerge.figures import render, require_library
from dpmerge.files import json_text, write_whole
from dpmerge.jobs import Finished, ProgressBar
from dpmerge.rules import round_down, round_up, significant

_PICTURES = (".png", ".html")


def audit(
    execution: Execution,
    game: Annotated[
        str,
        typer.Argument(metavar="SCENARIO|module:function", help="What to attack; `list` (default) prints the scenarios."),
    ] = "list",
    trials: Annotated[int | None, option("Plays with and without the record, or canaries; half are counted.")] = None,
    delta: Annotated[float | None, option("Bound ε at this δ (default: the game's).")] = None,
    confidence: Annotated[float, option("Joint confidence of all bounds.")] = 0.99,
    seed: Annotated[int | None, option("Seed of a simulator; without it, fresh entropy.")] = None,
    out: Annotated[Path | None, option("Folder for numbers, pictures and finished work.")] = None,
    json: JsonOption = False,
) -> None:
    """Attack a release, to bound its ε from below.

    Plays a game with and without one record. Exit code 1: a proved claim was exceeded. With --out, a killed audit can be
    continued by the same command.
    """
    if game == "list":
        _list(json)
        return
    found = find_game(game)
    asked: dict[str, Any] = {"trials": trials, "delta": delta, "confidence": confidence, "seed": seed}
    check(found, **asked)
    with ExitStack() as stack:
        finished = None if out is None else stack.enter_context(Finished(_ready(out) / "plays.jsonl"))
        result = audits.audit(found, **asked, **vars(execution), finished=finished, progress=ProgressBar("plays"))
    written = [] if out is None else _write(result, out)
    if json:
        print_json({**as_dict(result), "files": [str(path) for path in written]})
    else:
        _print(result)
        print_lines("", written)
    if result.alarm:
        raise typer.Exit(1)


def _ready(folder: Path) -> Path:
    """The folder; raises if a plotting library is missing."""
    for suffix in _PICTURES:
        require_library(suffix)
    return folder


def _write(result: Audit, folder: Path) -> list[Path]:
    """Write numbers and figures. All figures are drawn before the first file is written; each file is written atomically."""
    name = re.sub(r"[^\w.-]+", "-", result.game).strip("-.") or "audit"
    numbers = json_text(as_dict(result)) + "\n"
    drawn = {folder / f"{name}{suffix}": render(picture(result), suffix) for suffix in _PICTURES}
    contents = {folder / f"{name}.json": numbers.encode(), **drawn}
    for path, content in contents.items():
        write_whole(content, path)
    return list(contents)


def _print(result: Audit) -> None:
    echo(f"{result.game}: {result.about}")
    echo(f"ε ≥ {round_down(result.epsilon)} at δ = {significant(result.delta)}, with confidence {result.confidence:.10g}")
    if isinstance(result.evidence, Guessing):
        guessing = result.evidence
        echo(f"  {guessing.correct} of {guessing.guesses} guesses right about {guessing.canaries} canaries of one run")
    else:
        for attack in result.evidence:
            echo(
                f"  {attack.aim}: {attack.event} in {attack.hits_with} of {attack.counted} plays with the record, "
                f"in {attack.hits_without} of {attack.counted} without"
            )
    if result.mu is not None and result.epsilon_if_gaussian is not None:
        echo(f"  not μ-GDP for any μ below {round_down(result.mu)}; a Gaussian of this μ has")
        echo(f"  ε = {round_down(result.epsilon_if_gaussian)}, which bounds this release only if it is Gaussian")
    what = "canaries" if isinstance(result.evidence, Guessing) else "trials of each world"
    echo(f"  an attack that never errs could show ε ≥ {round_down(result.ceiling)} with as many {what}")
    echo(f"  {result.trials} {what}, {result.seconds_per_trial:.3g} s each, {result.wall_seconds:.3g} s in all")
    rows = [[one.claim, one.standing, round_up(one.at.claimed), one.verdict] for one in result.findings]
    if rows:
        table("claims", ["claim", "standing", "ε", "verdict"], rows)
    if result.alarm:
        echo("ALARM: a proved claim was exceeded", err=True)


def _list(json: bool) -> None:
    scenarios = {name: about(name) for name in scenario_names()}
    if json:
        print_json(scenarios)
    elif scenarios:
        table("scenarios", ["name", "about"], [[name, text] for name, text in scenarios.items()])
    else:
        echo("no scenarios: give module:function, or install the laboratory (pip install ./lab in dpmerge's repository)")
