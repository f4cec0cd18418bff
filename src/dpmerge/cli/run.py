"""`dpmerge run choose` and `dpmerge run uncertainty`: evaluate a run's checkpoints on public examples."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpmerge.checkpoints import (
    SUFFIXES,
    Grid,
    Parameter,
    Score,
    Search,
    Spread,
    Tuned,
    TunedRule,
    find_predictor,
    summary,
    uncertainty as measure,
    write,
)
from dpmerge.cli.checkpoints import AllowGapsOption, Checkpoints, Examples, LastOption, WarmUpOption, asking, average, predict
from dpmerge.cli.commands import JsonOption, argument, group, only, option
from dpmerge.cli.options import DeltaOption, Execution, RunAccounting, RunArgument
from dpmerge.cli.output import echo, print_guarantee, print_json, print_lines, show_progress, table
from dpmerge.errors import TargetError
from dpmerge.figures import require_library
from dpmerge.files import write_json
from dpmerge.tensors import require_absent

_COST = (
    "the scores, the choice and its release cost as much as the run up to its last checkpoint in the folder: all are functions "
    "of its checkpoints and of public examples"
)


def choose(
    run: RunArgument,
    rule: Annotated[TunedRule, option("The average (ema, uta, pda) or prediction (opa, omv) to tune.")],
    delta: DeltaOption,
    checkpoints: Checkpoints,
    examples: Examples,
    accounting: RunAccounting,
    execution: Execution,
    values: Annotated[str | None, option("uta, opa, omv: numbers of last checkpoints, 3,5,10; pda: values of γ.")] = None,
    decays: Annotated[str | None, option("ema: weights of the average so far, 0.9,0.99.")] = None,
    new_weights: Annotated[str | None, option("ema: weights of the new checkpoint, 0.1,0.01.")] = None,
    warm_up: WarmUpOption = False,
    validation_is_public: Annotated[bool, option("The examples are public. Required: private ones are not covered.")] = False,
    validation: Annotated[
        int | None, option("Choose by the first N examples, and measure on the rest; without it, choose by all.")
    ] = None,
    out: Annotated[Path, option("Folder for the result, and for finished work.")] = Path("tuning"),
    json: JsonOption = False,
) -> None:
    """Choose an average's parameter on public examples.

    By accuracy. The cost is that of the run up to its last checkpoint. A killed search can be continued by the same command.
    """
    accounting.require(delta)
    search = Search.of(
        run,
        _grid(rule, values, decays, new_weights, warm_up),
        validation_is_public=validation_is_public,
        validation=validation,
        **vars(examples),
        **vars(checkpoints),
    )
    search.run.portfolio.require_outside(out)
    guarantee = search.guarantee(delta, accounting.accounting())
    with execution.workers(f"{rule}: values tried", out) as mapper:
        found = search.tuned(mapper)
    about = {
        **found.as_dict(),
        "inputs": search.inputs.source,
        "examples_that_choose": search.validation,
        "cost": _COST,
        "release": _release(run, found, delta, checkpoints),
        "guarantee": guarantee.as_dict(),
    }
    write_json(about, out / "tuning.json")
    if json:
        print_json({"file": str(out / "tuning.json"), **about})
        return
    echo(str(out / "tuning.json"))
    _print_scores(found, about)
    print_guarantee(guarantee)


def _grid(rule: TunedRule, values: str | None, decays: str | None, new_weights: str | None, warm_up: bool) -> Grid:
    plain: Parameter = "gamma" if rule == "pda" else "last"
    stated: dict[Parameter, str | None] = {plain: values, "decay": decays, "new_weight": new_weights}
    given = {parameter: text for parameter, text in stated.items() if text is not None}
    if len(given) != 1 or (plain in given) == (rule == "ema"):
        wanted = "--decays or --new-weights" if rule == "ema" else "--values"
        raise TargetError(f"{rule} is tuned over {wanted} only: give values separated by commas")
    [(parameter, text)] = given.items()
    try:
        return Grid(rule, parameter, tuple(map(float, text.split(","))), warm_up)
    except ValueError:
        raise TargetError(f"cannot read the values {text!r} of {rule}; write 3,5,10") from None


def _release(run: Path, found: Tuned, delta: float, checkpoints: Checkpoints) -> str:
    """The command that uses the chosen value."""
    grid, value = found.grid, found.best.value
    assert value is not None
    verb = "predict" if grid.rule in ("opa", "omv") else "average"
    chosen = f"--{grid.parameter.replace('_', '-')} {int(value) if grid.parameter == 'last' else value!r}"
    parts = [f"dpmerge run {verb} {shlex.quote(str(run))} --rule {grid.rule} {chosen}", *["--warm-up"] * grid.warm_up]
    parts += [] if checkpoints.until is None else [f"--until {checkpoints.until}"]
    return " ".join([*parts, *["--allow-gaps"] * checkpoints.allow_gaps, f"--delta {delta!r} --out …"])


def _print_scores(found: Tuned, about: dict[str, Any]) -> None:
    best = found.best

    def row(name: str, score: Score) -> list[str]:
        measured = [] if score.rest is None else [f"{score.rest:.4f}"]
        return [name, f"{score.validation:.4f}", *measured, "best" if score is best else ""]

    rest = [] if best.rest is None else ["accuracy on the rest"]
    rows = [row(f"{score.value:g}", score) for score in found.scores] + [row("the last checkpoint alone", found.last)]
    echo(f"{about['inputs']}; the first {about['examples_that_choose']} choose")
    table(found.grid.rule, [found.grid.parameter, "accuracy", *rest, ""], rows)
    echo(f"to release it: {about['release']}")
    echo(about["cost"])


def uncertainty(
    context: typer.Context,
    delta: DeltaOption,
    out: Annotated[Path, option("A new folder for table, summary and pictures.")],
    examples: Examples,
    accounting: RunAccounting,
    run: Annotated[Path | None, argument("Folder of one run's checkpoints: one sub-folder each, with a record.json.")] = None,
    runs: Annotated[Path | None, option("Instead of RUN, a folder of independent runs of one recipe.")] = None,
    last: LastOption = None,
    burn_in: Annotated[int | None, option("Skip checkpoints before this step.")] = None,
    separation: Annotated[int | None, option("Use checkpoints this many steps apart.")] = None,
    allow_gaps: AllowGapsOption = False,
    of: Annotated[Literal["mean", "last"], option("Interval of the models' mean score, or of the last model's.")] = "mean",
    confidence: Annotated[float, option("Confidence level of the intervals.")] = 0.95,
    json: JsonOption = False,
) -> None:
    """How much predictions would vary between runs.

    Width of a confidence interval for the score of every predicted label, and the accuracy if the model abstains where it is
    wide. The cost is that of the run, or of all independent runs together. An estimate, not a guarantee: from checkpoints it is
    a heuristic, unless the loss is strongly convex (dpmerge help checkpoints).
    """
    accounting.require(delta)
    require_absent(out)
    for suffix in SUFFIXES:
        require_library(suffix)
    if run is not None and runs is None:
        spread = Spread.over_checkpoints(run, last=last, burn_in=burn_in, separation=separation, allow_gaps=allow_gaps)
    elif runs is not None and run is None:
        about_runs = ("runs", "delta", "out", "of", "confidence", "json")
        only(context, "with --runs, which takes the last model of every run", Examples, RunAccounting, *about_runs)
        spread = Spread.over_runs(runs)
    else:
        raise TargetError("give either RUN, a folder of checkpoints of one run, or --runs, a folder of independent runs")
    spread.portfolio.require_outside(out)
    guarantee = spread.guarantee(delta, accounting.accounting())
    inputs, ask, count = examples.inputs(), find_predictor(examples.predictor), len(spread.models)
    with asking(count, "models evaluated") as advance:
        said = spread.scores(ask, inputs, examples.probabilities, advance)
        found = measure(said, None if of == "mean" else [0.0] * (count - 1) + [1.0], confidence)
    about = {"interval_of": f"the {of} score", **summary(found, spread, inputs, guarantee)}
    show_progress("pictures")
    written = write(found, inputs, about, out)
    show_progress("")
    if json:
        print_json({"files": [str(path) for path in written], **about})
        return
    print_lines("", written)
    _print_widths(about)
    print_guarantee(guarantee)


def _print_widths(about: dict[str, Any]) -> None:
    median = about["quantiles_of_widths"]["50 %"]
    echo(f"{about['standing']}, not a guarantee: {about['from']}; {about['inputs']}")
    echo(
        f"  {100 * about['confidence']:g} % intervals of {about['interval_of']} of the predicted label: "
        f"mean width {about['mean_width']:.4f}, median {median:.4f}"
    )
    print_lines("  - ", about["notes"])
    answered = about["accuracy_where_answered"]
    if answered is not None:
        shares = [point["coverage"] for point in next(iter(answered.values()))]
        rows = [[name, *(f"{point['accuracy']:.4f}" for point in points)] for name, points in answered.items()]
        table("accuracy where answered", ["abstaining", *(f"{100 * share:g} % answered" for share in shares)], rows)


run = group("run", "Average, predict, choose, and estimate uncertainty.", average, predict, choose, uncertainty)
