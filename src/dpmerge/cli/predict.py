"""`dpmerge predict`: predictions of several checkpoints of one private run together."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dpmerge.cli.aggregate import DeltaOption, GapsOption, LastOption, LookedOption, RunArgument, UntilOption
from dpmerge.cli.options import (
    AnyDeltaOption,
    ByName,
    ByOption,
    JsonOption,
    LookedName,
    ShuffleOption,
    ShuffleRateOption,
    shuffle_treatment,
)


class OutputName(StrEnum):
    """How predictions are combined."""

    opa = "opa"
    omv = "omv"


class TaskName(StrEnum):
    """Bundled tasks."""

    digits = "digits"
    mnist = "mnist"
    cifar10 = "cifar10"


TaskOption = Annotated[
    TaskName | None, typer.Option("--task", help="Examples: the public test part of this data.", show_default=False)
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The folder of mnist.npz or cifar10.npz; without --task, an .npz with inputs, and labels where they are known.",
        show_default=False,
    ),
]
PredictorOption = Annotated[
    str | None,
    typer.Option(
        "--predict", help="module:function, from a folder and inputs to scores; else a linear model.", show_default=False
    ),
]
ProbabilitiesOption = Annotated[
    bool, typer.Option("--probabilities", help="The predictor's rows are probabilities, not scores for a softmax.")
]
NormBoundOption = Annotated[
    float | None, typer.Option("--norm-bound", help="The one that a linear model was trained with.", show_default=False)
]


def predict(
    run: RunArgument,
    rule: Annotated[
        OutputName, typer.Option("--rule", help="Mean of the probabilities, or majority of the labels.", show_default=False)
    ],
    delta: DeltaOption,
    out: Annotated[Path, typer.Option("--out", help="A new file: .json, .csv or .npz.", show_default=False)],
    task: TaskOption = None,
    data: DataOption = None,
    predictor: PredictorOption = None,
    probabilities: ProbabilitiesOption = False,
    norm_bound: NormBoundOption = None,
    last: LastOption = None,
    until: UntilOption = None,
    allow_gaps: GapsOption = False,
    provenance: LookedOption = LookedName.after_looking,
    by: ByOption = ByName.best,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Predict with several checkpoints of one private run: opa averages their probabilities, omv counts their votes.

    It costs what the run costs up to the latest checkpoint used, for inputs that are public.
    """
    from dpmerge.checkpoints import (
        Run,
        find_predictor,
        load_inputs,
        predictions,
        predictions_guarantee,
        require_writable,
        steps,
        write_predictions,
    )
    from dpmerge.cli.output import print_guarantee, print_json
    from dpmerge.jobs import ProgressBar
    from dpmerge.rules import Accounting, require_wanted

    require_wanted(delta, any_delta)
    require_writable(out)
    loaded = Run.load(run)
    loaded.portfolio.require_outside(out)
    used = loaded.last(last, until=until, allow_gaps=allow_gaps)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    accounting = Accounting(by.value, shuffle=shuffle, any_delta=any_delta)
    guarantee = predictions_guarantee(loaded, used, delta=delta, provenance=provenance.value, accounting=accounting)
    inputs = load_inputs(None if task is None else task.value, data, norm_bound)
    bar = ProgressBar()
    bar.start(len(used), "checkpoints asked")
    try:
        found = predictions(
            loaded,
            rule.value,
            find_predictor(predictor),
            inputs.values,
            last=last,
            until=until,
            allow_gaps=allow_gaps,
            probabilities=probabilities,
            on_checkpoint=bar.advance,
        )
    finally:
        bar.finish()
    about: dict[str, Any] = {
        "rule": rule.value,
        "inputs": inputs.source,
        "checkpoints": {model.name: steps(model) for model in used},
        "number_of_ties": int(found.ties.sum()),
        "ties_broken_by": "the smallest label",
        "accuracy": None if inputs.labels is None else found.accuracy(inputs.labels),
        "guarantee": guarantee.as_dict(),
        "notes": ["no ledger: what is published of these is not being added up", *loaded.notes(used, provenance.value)],
    }
    write_predictions(found, about, inputs.labels, out)
    if json:
        print_json({"file": str(out), **about})
        return
    typer.echo(str(out))
    share = "" if about["accuracy"] is None else f", accuracy {about['accuracy']:.4f}"
    typer.echo(f"{rule.value.upper()} of {len(used)} checkpoints, steps {steps(used[0])} to {steps(used[-1])}")
    typer.echo(f"  {inputs.source}{share}, {about['number_of_ties']} ties, broken by the smallest label")
    print_guarantee(guarantee)
    for text in about["notes"]:
        typer.echo(f"note: {text}")
