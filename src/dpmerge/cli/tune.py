"""`dpmerge tune`: the best parameter of an aggregation of one private run's checkpoints."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.aggregate import DeltaOption, GapsOption, RunArgument, UntilOption
from dpmerge.cli.options import (
    AnyDeltaOption,
    ByName,
    ByOption,
    ConversionName,
    ConversionOption,
    JsonOption,
    ShuffleOption,
    ShuffleRateOption,
    shuffle_treatment,
)
from dpmerge.cli.pictures import ClusterOption, JobsOption, workers
from dpmerge.cli.predict import DataOption, NormBoundOption, PredictorOption, ProbabilitiesOption, TaskOption
from dpmerge.errors import TargetError

if TYPE_CHECKING:
    from dpmerge.checkpoints import Grid, Parameter, Score, Tuned

_COST = (
    "the scores, the choice and what is released by it cost what the run costs up to its last checkpoint in the folder: all "
    "are functions of its checkpoints and of public examples"
)


class TunedName(StrEnum):
    """Aggregations that have a parameter."""

    ema = "ema"
    uta = "uta"
    pda = "pda"
    opa = "opa"
    omv = "omv"


def tune(
    run: RunArgument,
    rule: Annotated[TunedName, typer.Option("--rule", help="Which aggregation is tuned.", show_default=False)],
    delta: DeltaOption,
    values: Annotated[
        str | None,
        typer.Option(
            "--values", help="uta, opa, omv: numbers of last checkpoints, 3,5,10; pda: values of γ.", show_default=False
        ),
    ] = None,
    decays: Annotated[
        str | None, typer.Option("--decays", help="ema: weights of the average so far, 0.9,0.99.", show_default=False)
    ] = None,
    new_weights: Annotated[
        str | None, typer.Option("--new-weights", help="ema: weights of the new checkpoint, 0.1,0.01.", show_default=False)
    ] = None,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="ema: the number given is at most (1+t)/(10+t) after t checkpoints.")
    ] = False,
    validation_is_public: Annotated[
        bool, typer.Option("--validation-is-public", help="The examples are public; without this, nothing is tuned.")
    ] = False,
    validation: Annotated[
        int | None,
        typer.Option("--validation", help="How many examples choose, the first; the rest measures. Else all choose."),
    ] = None,
    task: TaskOption = None,
    data: DataOption = None,
    predictor: PredictorOption = None,
    probabilities: ProbabilitiesOption = False,
    norm_bound: NormBoundOption = None,
    until: UntilOption = None,
    allow_gaps: GapsOption = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the result, and for what is finished.")] = Path("tuning"),
    by: ByOption = ByName.best,
    conversion: ConversionOption = ConversionName.tight,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    cluster: ClusterOption = None,
    jobs: JobsOption = -1,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Choose the parameter of an aggregation of one run's checkpoints by its accuracy on a public validation set.

    The choice costs what the run costs up to its last checkpoint. A search that was killed continues in the output folder.
    """
    from dpmerge.checkpoints import Search
    from dpmerge.cli.output import print_guarantee, print_json
    from dpmerge.files import write_json
    from dpmerge.rules import require_wanted

    require_wanted(delta, any_delta)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    search = Search.of(
        run,
        _grid(rule, values, decays, new_weights, warm_up),
        validation_is_public=validation_is_public,
        task=None if task is None else task.value,
        data=data,
        norm_bound=norm_bound,
        validation=validation,
        predictor=predictor,
        probabilities=probabilities,
        until=until,
        allow_gaps=allow_gaps,
    )
    search.run.portfolio.require_outside(out)
    guarantee = search.guarantee(delta, by.value, conversion.value, shuffle)
    with workers(out, f"{rule.value}: values tried", cluster, jobs) as mapper:
        found = search.tuned(mapper)
    about = {
        **found.as_dict(),
        "inputs": search.inputs.source,
        "examples_that_choose": search.trials.validation,
        "cost": _COST,
        "release": _release(run, found, delta, until, allow_gaps),
        "guarantee": guarantee.as_dict(),
    }
    write_json(about, out / "tuning.json")
    if json:
        print_json({"file": str(out / "tuning.json"), **about})
        return
    typer.echo(str(out / "tuning.json"))
    _print(found, about)
    print_guarantee(guarantee)


def _grid(rule: TunedName, values: str | None, decays: str | None, new_weights: str | None, warm_up: bool) -> Grid:
    from dpmerge.checkpoints import Grid

    plain: Parameter = "gamma" if rule is TunedName.pda else "last"
    given: list[tuple[Parameter, str]] = [
        (parameter, text)
        for parameter, text in ((plain, values), ("decay", decays), ("new_weight", new_weights))
        if text is not None
    ]
    wanted = "--decays or --new-weights" if rule is TunedName.ema else "--values"
    if len(given) != 1 or (given[0][0] == plain) == (rule is TunedName.ema):
        raise TargetError(f"{rule.value} is tuned over {wanted}, and nothing else: give that, with commas between")
    parameter, text = given[0]
    try:
        return Grid(rule.value, parameter, tuple(map(float, text.split(","))), warm_up)
    except ValueError:
        raise TargetError(f"cannot read the values {text!r} of {rule.value}; write 3,5,10") from None


def _release(run: Path, found: Tuned, delta: float, until: int | None, allow_gaps: bool) -> str:
    """The command that uses what was chosen."""
    grid, value = found.grid, found.best.value
    assert value is not None
    verb = "predict" if grid.rule in ("opa", "omv") else "aggregate"
    chosen = f"--{grid.parameter.replace('_', '-')} {int(value) if grid.parameter == 'last' else value!r}"
    parts = [f"dpmerge {verb} {shlex.quote(str(run))} --rule {grid.rule} {chosen}", *["--warm-up"] * grid.warm_up]
    parts += ([] if until is None else [f"--until {until}"]) + ["--allow-gaps"] * allow_gaps
    return " ".join([*parts, f"--delta {delta!r} --out …"])


def _print(found: Tuned, about: dict[str, Any]) -> None:
    from dpmerge.cli.output import table

    best = found.best

    def row(name: str, score: Score) -> list[str]:
        measured = [] if score.rest is None else [f"{score.rest:.4f}"]
        return [name, f"{score.validation:.4f}", *measured, "best" if score is best else ""]

    rest = [] if best.rest is None else ["accuracy on the rest"]
    rows = [row(f"{score.value:g}", score) for score in found.scores] + [row("the last checkpoint alone", found.last)]
    typer.echo(f"{about['inputs']}; the first {about['examples_that_choose']} choose")
    table(found.grid.rule, [found.grid.parameter, "accuracy", *rest, ""], rows)
    typer.echo(f"to release it: {about['release']}")
    typer.echo(about["cost"])
