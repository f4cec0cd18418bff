"""`dpmerge run average` and `dpmerge run predict`: combine checkpoints of one private run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import dpmerge.checkpoints as library
from dpmerge.cli.commands import JsonOption, option, options
from dpmerge.cli.options import DeltaOption, KeepMetadataOption, Releasing, RunAccounting, RunArgument
from dpmerge.cli.output import echo, print_guarantee, print_json, print_lines, print_released, released_json, show_progress
from dpmerge.jobs import ProgressBar
from dpmerge.planning import AverageRule
from dpmerge.rules import Looked

LastOption = Annotated[int | None, option("Use this many checkpoints, the last ones; without it, all.")]
AllowGapsOption = Annotated[bool, option("Accept missing checkpoints.")]
ProvenanceOption = Annotated[
    Looked, option("Checkpoints and parameters were chosen after looking (then all checkpoints count), or beforehand.")
]
WarmUpOption = Annotated[bool, option("ema: limit the decay to (1+t)/(10+t) after t checkpoints.")]


@options("Average")
class Averaging:
    last: Annotated[int | None, option("Use this many checkpoints, the last ones: uta needs it, uniform takes all.")] = None
    decay: Annotated[float | None, option("ema: weight of the average so far, e.g. 0.99.")] = None
    new_weight: Annotated[float | None, option("ema: weight of the new checkpoint, e.g. 0.01.")] = None
    warm_up: WarmUpOption = False
    gamma: Annotated[float | None, option("pda exponent. 0: equal weights; larger favours later checkpoints.")] = None


@options("Checkpoints")
class Checkpoints:
    until: Annotated[int | None, option("Step of the latest checkpoint used; without it, the run's last.")] = None
    allow_gaps: AllowGapsOption = False


@options("Examples")
class Examples:
    task: Annotated[str | None, option("The public test part of this data set, e.g. digits.")] = None
    data: Annotated[
        Path | None, option("Folder of the task's file; without --task, an .npz file with inputs and optionally labels.")
    ] = None
    predictor: Annotated[
        str | None, typer.Option("--predict", help="module:function (folder, inputs → scores); without it, a linear model.")
    ] = None
    probabilities: Annotated[bool, option("The predictor gives probabilities, not scores for a softmax.")] = False
    norm_bound: Annotated[float | None, option("The norm bound used to train a linear model.")] = None

    def inputs(self) -> library.Inputs:
        return library.load_inputs(self.task, self.data, self.norm_bound)


def average(
    run: RunArgument,
    rule: Annotated[AverageRule, option("Exponential (ema), last ones equally (uta), polynomial decay (pda), or all equally.")],
    delta: DeltaOption,
    averaging: Averaging,
    checkpoints: Checkpoints,
    releasing: Releasing,
    accounting: RunAccounting,
    epsilon: Annotated[float | None, option("Stay within this ε.")] = None,
    provenance: ProvenanceOption = "after-looking",
    keep_metadata: KeepMetadataOption = None,
    json: JsonOption = False,
) -> None:
    """Release an average of a run's checkpoints.

    With certificate and model card. The cost is that of the run up to the latest checkpoint used.
    """
    accounting.require(delta)
    released = library.average(
        library.Run.load(run),
        releasing.out,
        rule=rule,
        delta=delta,
        epsilon=epsilon,
        provenance=provenance,
        accounting=accounting.accounting(),
        progress=lambda done, total: show_progress(f"averaging, {done / max(total, 1):.0%}"),
        keep_metadata=keep_metadata or (),
        **vars(averaging),
        **vars(checkpoints),
        **releasing.arguments(),
    )
    show_progress("")
    if json:
        print_json(released_json(released))
    else:
        print_released(released)


def predict(
    run: RunArgument,
    rule: Annotated[library.OutputRule, option("Mean of the probabilities (opa), or majority of the labels (omv).")],
    delta: DeltaOption,
    out: Annotated[Path, option("A new file: .json, .csv or .npz.")],
    checkpoints: Checkpoints,
    examples: Examples,
    accounting: RunAccounting,
    last: LastOption = None,
    provenance: ProvenanceOption = "after-looking",
    json: JsonOption = False,
) -> None:
    """Predict with several checkpoints together.

    The cost is that of the run up to the latest checkpoint used. Models of different runs, one of each, cost joint release:
    shards the largest part. Inputs must be public.
    """
    accounting.require(delta)
    library.require_writable(out)
    loaded = library.Several.load(run)
    loaded.portfolio.require_outside(out)
    used = loaded.last(last, **vars(checkpoints))
    guarantee = library.predictions_guarantee(
        loaded, used, delta=delta, provenance=provenance, accounting=accounting.accounting()
    )
    inputs, ask = examples.inputs(), library.find_predictor(examples.predictor)
    with asking(len(used), "checkpoints evaluated") as advance:
        how = {"last": last, **vars(checkpoints), "probabilities": examples.probabilities, "on_checkpoint": advance}
        found = library.predictions(loaded, rule, ask, inputs.values, **how)
    about: dict[str, Any] = {
        "rule": rule,
        "inputs": inputs.source,
        "checkpoints": {model.name: getattr(model.mechanism, "steps", 1) for model in used},
        "number_of_ties": int(found.ties.sum()),
        "ties_broken_by": "the smallest label",
        "accuracy": None if inputs.labels is None else found.accuracy(inputs.labels),
        "guarantee": guarantee.as_dict(),
        "notes": ["no ledger: the total cost of published predictions is not tracked", *loaded.notes(used, provenance)],
    }
    library.write_predictions(found, about, inputs.labels, out)
    if json:
        print_json({"file": str(out), **about})
        return
    echo(str(out))
    share = "" if about["accuracy"] is None else f", accuracy {about['accuracy']:.4f}"
    reached = sorted(about["checkpoints"].values())
    what = "models of as many runs" if isinstance(loaded, library.Several) else "checkpoints"
    echo(f"{rule.upper()} of {len(used)} {what}, steps {reached[0]} to {reached[-1]}")
    echo(f"  {inputs.source}{share}, {about['number_of_ties']} ties, broken by the smallest label")
    print_guarantee(guarantee)
    print_lines("note: ", about["notes"])


@contextmanager
def asking(count: int, what: str) -> Iterator[Callable[[], None]]:
    """A progress bar that advances once for each model."""
    bar = ProgressBar()
    bar.start(count, what)
    try:
        yield bar.advance
    finally:
        bar.finish()
