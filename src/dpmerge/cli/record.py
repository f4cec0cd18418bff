"""`dpmerge record`: records of models that were trained before there was a recorder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import JsonOption

app = typer.Typer(no_args_is_help=True, help="Records of models that were trained already.", rich_markup_mode=None)


class SamplingName(StrEnum):
    """How batches were drawn."""

    poisson = "poisson"
    shuffle = "shuffle"
    full_batch = "full-batch"


class ClippingName(StrEnum):
    """How gradients were clipped."""

    flat = "flat"
    per_layer = "per-layer"
    adaptive = "adaptive"


class ConvexName(StrEnum):
    """Why clipped gradients are those of convex functions."""

    glm = "glm"
    unclipped = "unclipped"


@app.callback()
def _record() -> None:
    pass


@app.command("from-opacus")
def from_opacus(
    checkpoint: Annotated[Path, typer.Argument(help="A file that PrivacyEngine.save_checkpoint wrote.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="A new folder for model.safetensors and record.json.", show_default=False)],
    dataset: Annotated[str | None, typer.Option("--dataset", help="Identity of the private dataset.")] = None,
    sampling: Annotated[
        SamplingName | None, typer.Option("--sampling", help="How batches were drawn; Opacus' own loader: poisson.")
    ] = None,
    clip: Annotated[str | None, typer.Option("--clip", help="max_grad_norm; if it changed: value*steps,value*steps,…")] = None,
    clipping: Annotated[ClippingName | None, typer.Option("--clipping", help="How gradients were clipped.")] = None,
    learning_rate: Annotated[
        str | None, typer.Option("--learning-rate", help="Of every step; if it changed: value*steps,value*steps,…")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd means plain SGD: no momentum, weight decay or projection.")
    ] = None,
    expected_batch: Annotated[
        float | None, typer.Option("--expected-batch", help="The divisor of the updates: Opacus' expected_batch_size.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", help="Instead of --expected-batch: how many examples the dataset has.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Id of the run, the same for its checkpoints; else a fresh one.")
    ] = None,
    smoothness: Annotated[float | None, typer.Option("--smoothness", help="β of the loss, if it is known.")] = None,
    convex: Annotated[ConvexName | None, typer.Option("--convex", help="Why clipped gradients are convex, if so.")] = None,
    unclipped_num_std: Annotated[
        float | None,
        typer.Option(
            "--unclipped-num-std",
            help="Adaptive clipping: Opacus' setting; in ghost mode half the noise multiplier.",
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", help="A tensor that changed without noise, with which no loss was computed. Repeatable."),
    ] = None,
    others_unchanged: Annotated[
        bool, typer.Option("--others-unchanged", help="Say that tensors the private optimizer did not train are as before it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """A model and its record from Opacus' checkpoint; what the file does not say is stated, and marked so."""
    from dpmerge.cli.output import print_json
    from dpmerge.training import Stated, from_opacus as convert

    stated = Stated(
        dataset=dataset,
        sampling=None if sampling is None else sampling.value,
        clip=clip,
        clipping=None if clipping is None else clipping.value,
        learning_rate=learning_rate,
        optimizer=optimizer,
        expected_batch=expected_batch,
        examples=examples,
        run=run,
        smoothness=smoothness,
        convex=None if convex is None else convex.value,
        unclipped_num_std=unclipped_num_std,
        leave_out=tuple(leave_out or ()),
        others_unchanged=others_unchanged,
    )
    record = convert(checkpoint, out, stated)
    if json:
        print_json({"folder": str(out), "record": record.as_dict()})
    else:
        typer.echo(f"{out}: model.safetensors, and record.json as stated by its user")
