"""`dpmerge audit`: attack a release, and compare the ε that the attack shows with what is claimed."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.options import JsonOption
from dpmerge.cli.pictures import ClusterOption, JobsOption

if TYPE_CHECKING:
    from dpmerge.audit import Audit

_PICTURES = (".png", ".html")


def audit(
    game: Annotated[
        str,
        typer.Argument(metavar="SCENARIO|module:function", help="What to attack; without it, or with `list`, which there are."),
    ] = "list",
    trials: Annotated[
        int | None,
        typer.Option("--trials", help="Plays of each world, half of which are counted; or canaries.", show_default=False),
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="Bound ε at this δ (default: the game's).", show_default=False)
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="With which everything told holds together.")] = 0.99,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Play a simulator the same again; without it, fresh entropy.", show_default=False),
    ] = None,
    cluster: ClusterOption = None,
    jobs: JobsOption = -1,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for numbers and pictures, and for what is finished.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """A lower bound on ε of a release, measured by playing its game with and without a record.

    Exit code 1: a claim that is called proved was exceeded. With --out, an audit that was killed continues there.
    """
    from dpmerge.audit import as_dict, audit as run_audit, check, find_game
    from dpmerge.cli.output import print_json
    from dpmerge.jobs import Finished, ProgressBar

    if game == "list":
        _list(json)
        return
    found = find_game(game)
    asked: dict[str, Any] = {"trials": trials, "delta": delta, "confidence": confidence, "seed": seed}
    check(found, **asked)
    with ExitStack() as stack:
        finished = None if out is None else stack.enter_context(Finished(_ready(out) / "plays.jsonl"))
        where: dict[str, Any] = {"jobs": jobs, "cluster": cluster, "finished": finished, "progress": ProgressBar("plays")}
        result = run_audit(found, **asked, **where)
    written = [] if out is None else _write(result, out)
    if json:
        print_json({**as_dict(result), "files": [str(path) for path in written]})
    else:
        _print(result)
        for path in written:
            typer.echo(str(path))
    if result.alarm:
        raise typer.Exit(1)


def _ready(folder: Path) -> Path:
    """The folder, if pictures can be drawn at all."""
    from dpmerge.figures import require_library

    for suffix in _PICTURES:
        require_library(suffix)
    return folder


def _write(result: Audit, folder: Path) -> list[Path]:
    """Numbers and pictures; everything is drawn before anything is written, and each file appears whole."""

    from dpmerge.audit import as_dict, picture
    from dpmerge.figures import render
    from dpmerge.files import finite_or_null, json_text, write_whole

    name = re.sub(r"[^\w.-]+", "-", result.game).strip("-.") or "audit"
    numbers = json_text(as_dict(result)) + "\n"
    drawn = {folder / f"{name}{suffix}": render(finite_or_null(picture(result)), suffix) for suffix in _PICTURES}
    contents = {folder / f"{name}.json": numbers.encode(), **drawn}
    for path, content in contents.items():
        write_whole(content, path)
    return list(contents)


def _print(result: Audit) -> None:
    from dpmerge.audit import Guessing
    from dpmerge.cli.output import table
    from dpmerge.rules import round_down, round_up, significant

    typer.echo(f"{result.game}: {result.about}")
    typer.echo(f"ε ≥ {round_down(result.epsilon)} at δ = {significant(result.delta)}, with confidence {result.confidence:.10g}")
    if isinstance(result.evidence, Guessing):
        told = result.evidence
        typer.echo(f"  {told.correct} of {told.guesses} guesses right about {told.canaries} canaries of one run")
    else:
        for attack in result.evidence:
            typer.echo(
                f"  {attack.aim}: {attack.event} in {attack.hits_with} of {attack.counted} plays with the record, "
                f"in {attack.hits_without} of {attack.counted} without"
            )
    if result.mu is not None and result.epsilon_if_gaussian is not None:
        typer.echo(f"  not μ-GDP for any μ below {round_down(result.mu)}; a Gaussian of this μ has")
        typer.echo(f"  ε = {round_down(result.epsilon_if_gaussian)}, which bounds this release only if it is one")
    what = "canaries" if isinstance(result.evidence, Guessing) else "trials of each world"
    typer.echo(f"  an attack that never errs could show ε ≥ {round_down(result.ceiling)} with as many {what}")
    typer.echo(f"  {result.trials} {what}, {result.seconds_per_trial:.3g} s each, {result.wall_seconds:.3g} s in all")
    rows = [[one.claim, one.standing, round_up(one.at.claimed), one.verdict] for one in result.findings]
    if rows:
        table("claims", ["claim", "standing", "ε", "verdict"], rows)
    if result.alarm:
        typer.echo("ALARM: a claim that is called proved was exceeded", err=True)


def _list(json: bool) -> None:
    from dpmerge.audit import about, scenario_names
    from dpmerge.cli.output import print_json, table

    told = {name: about(name) for name in scenario_names()}
    if json:
        print_json(told)
        return
    table("scenarios", ["name", "about"], [[name, text] for name, text in told.items()])
