"""`dpmerge uncertainty`: how far private training's randomness moves predictions, from checkpoints or from runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.aggregate import DeltaOption, GapsOption
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
from dpmerge.cli.predict import DataOption, NormBoundOption, PredictorOption, ProbabilitiesOption, TaskOption
from dpmerge.errors import TargetError

if TYPE_CHECKING:
    from dpmerge.checkpoints import Spread


class OfName(StrEnum):
    """Whose score the interval is of."""

    mean = "mean"
    last = "last"


def uncertainty(
    delta: DeltaOption,
    out: Annotated[Path, typer.Option("--out", help="A new folder for table, summary and pictures.", show_default=False)],
    run: Annotated[
        Path | None,
        typer.Argument(help="A folder; each sub-folder is a checkpoint of one run with a record.json.", show_default=False),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", help="Instead of RUN, a folder of independent runs of one recipe.", show_default=False),
    ] = None,
    last: Annotated[int | None, typer.Option("--last", help="How many checkpoints; else all.", show_default=False)] = None,
    burn_in: Annotated[
        int | None, typer.Option("--burn-in", help="No checkpoint before this step.", show_default=False)
    ] = None,
    separation: Annotated[
        int | None, typer.Option("--separation", help="Checkpoints so many steps apart.", show_default=False)
    ] = None,
    allow_gaps: GapsOption = False,
    task: TaskOption = None,
    data: DataOption = None,
    predictor: PredictorOption = None,
    probabilities: ProbabilitiesOption = False,
    norm_bound: NormBoundOption = None,
    of: Annotated[
        OfName, typer.Option("--of", help="Interval of the models' mean score, or of the last model's.")
    ] = OfName.mean,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the intervals.")] = 0.95,
    by: ByOption = ByName.best,
    conversion: ConversionOption = ConversionName.tight,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Width of a confidence interval for the score of every predicted label, and what abstaining where it is wide brings.

    From the last checkpoints of one run it costs what the run costs; from independent runs, what all of them cost together.
    An estimate, not a guarantee: from checkpoints a heuristic, unless the loss is strongly convex (docs/uncertainty.md).
    """
    from dpmerge.checkpoints import SUFFIXES, find_predictor, load_inputs, summary, uncertainty as measure, write
    from dpmerge.cli.output import print_guarantee, print_json
    from dpmerge.cli.progress import show_progress
    from dpmerge.figures import require_library
    from dpmerge.jobs import ProgressBar
    from dpmerge.rules import require_wanted
    from dpmerge.tensors import require_absent

    require_wanted(delta, any_delta)
    require_absent(out)
    for suffix in SUFFIXES:
        require_library(suffix)
    spread = _spread(run, runs, last, burn_in, separation, allow_gaps)
    spread.portfolio.require_outside(out)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    guarantee = spread.guarantee(delta, by.value, conversion.value, shuffle)
    inputs = load_inputs(None if task is None else task.value, data, norm_bound)
    ask = find_predictor(predictor)
    count = len(spread.models)
    bar = ProgressBar()
    bar.start(count, "models asked")
    try:
        said = spread.scores(ask, inputs, probabilities, bar.advance)
        found = measure(said, None if of is OfName.mean else [0.0] * (count - 1) + [1.0], confidence)
    finally:
        bar.finish()
    about = {"interval_of": f"the {of.value} score", **summary(found, spread, inputs, guarantee)}
    show_progress("pictures")
    written = write(found, inputs, about, out)
    show_progress("")
    if json:
        print_json({"files": [str(path) for path in written], **about})
        return
    _print(about, written)
    print_guarantee(guarantee)


def _spread(
    run: Path | None, runs: Path | None, last: int | None, burn_in: int | None, separation: int | None, allow_gaps: bool
) -> Spread:
    from dpmerge.checkpoints import Spread

    if (run is None) == (runs is None):
        raise TargetError("give either RUN, a folder of checkpoints of one run, or --runs, a folder of independent runs")
    if run is not None:
        return Spread.over_checkpoints(run, last=last, burn_in=burn_in, separation=separation, allow_gaps=allow_gaps)
    for name, value in (("--last", last), ("--burn-in", burn_in), ("--separation", separation), ("--allow-gaps", allow_gaps)):
        if value:
            raise TargetError(f"{name} is about checkpoints of one run; --runs takes the last model of every run")
    assert runs is not None
    return Spread.over_runs(runs)


def _print(about: dict[str, Any], written: list[Path]) -> None:
    from dpmerge.cli.output import table

    for path in written:
        typer.echo(str(path))
    median = about["quantiles_of_widths"]["50 %"]
    typer.echo(f"{about['standing']}, not a guarantee: {about['from']}; {about['inputs']}")
    typer.echo(
        f"  {100 * about['confidence']:g} % intervals of {about['interval_of']} of the predicted label: "
        f"mean width {about['mean_width']:.4f}, median {median:.4f}"
    )
    for text in about["notes"]:
        typer.echo(f"  - {text}")
    answered = about["accuracy_where_answered"]
    if answered is not None:
        shares = [point["coverage"] for point in next(iter(answered.values()))]
        rows = [[name, *(f"{point['accuracy']:.4f}" for point in points)] for name, points in answered.items()]
        table("accuracy where answered", ["abstaining", *(f"{100 * share:g} % answered" for share in shares)], rows)
