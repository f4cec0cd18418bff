"""`dpmerge aggregate`: an average of the checkpoints of one private run, released."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import (
    AnyDeltaOption,
    ByName,
    ByOption,
    ConversionName,
    ConversionOption,
    JsonOption,
    LookedName,
    ShuffleOption,
    ShuffleRateOption,
    shuffle_treatment,
)

if TYPE_CHECKING:
    from dpmerge.release import Released


class AverageName(StrEnum):
    """How checkpoints are averaged."""

    ema = "ema"
    uta = "uta"
    pda = "pda"
    uniform = "uniform"


RunArgument = Annotated[
    Path, typer.Argument(help="A folder; each sub-folder is a checkpoint of one run with a record.json.", show_default=False)
]
DeltaOption = Annotated[float, typer.Option("--delta", help="The δ of the guarantee.", show_default=False)]
LastOption = Annotated[
    int | None, typer.Option("--last", help="How many checkpoints, the last ones; else all.", show_default=False)
]
UntilOption = Annotated[
    int | None, typer.Option("--until", help="The step of the latest checkpoint used; else the run's last.", show_default=False)
]
GapsOption = Annotated[bool, typer.Option("--allow-gaps", help="Use the checkpoints there are, also if some are missing.")]
LookedOption = Annotated[
    LookedName,
    typer.Option(
        "--provenance",
        help="What was used, and how, was chosen by looking at the checkpoints (then all are covered), or fixed beforehand.",
    ),
]


def aggregate(
    run: RunArgument,
    rule: Annotated[AverageName, typer.Option("--rule", help="How to average.", show_default=False)],
    delta: DeltaOption,
    out: Annotated[Path, typer.Option("--out", help="A new folder for the released model.", show_default=False)],
    last: LastOption = None,
    decay: Annotated[
        float | None, typer.Option("--decay", help="ema: the weight of the average so far, e.g. 0.99.", show_default=False)
    ] = None,
    new_weight: Annotated[
        float | None,
        typer.Option("--new-weight", help="ema: the weight of the new checkpoint, e.g. 0.01.", show_default=False),
    ] = None,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="ema: the number given is at most (1+t)/(10+t) after t checkpoints.")
    ] = False,
    gamma: Annotated[
        float | None, typer.Option("--gamma", help="pda: 0 weighs all alike, more the later ones more.", show_default=False)
    ] = None,
    until: UntilOption = None,
    allow_gaps: GapsOption = False,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The ε to stay within.", show_default=False)] = None,
    provenance: LookedOption = LookedName.after_looking,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="Ledger to enter the release in: a file, or a database URL.", show_default=False),
    ] = None,
    depends_on_releases: Annotated[
        bool, typer.Option("--depends-on-releases", help="The choice depends on what earlier releases showed.")
    ] = False,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="Private key to sign the certificate with.", show_default=False)
    ] = None,
    by: ByOption = ByName.best,
    conversion: ConversionOption = ConversionName.tight,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Release an average of the checkpoints of one private run, with certificate and model card.

    It costs what the run costs up to the latest checkpoint used: exponential (ema), the last ones alike (uta), polynomial
    decay (pda), or all alike (uniform).
    """
    from dpmerge.checkpoints import Run, aggregate as average
    from dpmerge.cli.output import print_json
    from dpmerge.cli.progress import show_progress
    from dpmerge.release import Ledger, Signer
    from dpmerge.rules import Accounting, require_wanted

    require_wanted(delta, any_delta)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    accounting = Accounting(by.value, conversion.value, shuffle=shuffle, any_delta=any_delta)
    released = average(
        Run.load(run),
        out,
        rule=rule.value,
        delta=delta,
        epsilon=epsilon,
        last=last,
        until=until,
        allow_gaps=allow_gaps,
        decay=decay,
        new_weight=new_weight,
        warm_up=warm_up,
        gamma=gamma,
        provenance=provenance.value,
        accounting=accounting,
        ledger=None if ledger is None else Ledger(ledger),
        dependent=depends_on_releases,
        signer=None if sign is None else Signer(sign),
        progress=lambda done, total: show_progress(f"averaging, {done / max(total, 1):.0%}"),
    )
    show_progress("")
    if json:
        certificate = released.certificate.model_dump(mode="json", by_alias=True)
        print_json({"folder": str(released.folder), "certificate": certificate, "notes": list(released.notes)})
        return
    _print(released)


def _print(released: Released) -> None:
    """The guarantee with the weights of the average; the rule names every checkpoint that was looked at."""
    from dpmerge.cli.output import print_entry, print_guarantee
    from dpmerge.rules import Guarantee

    certificate = released.certificate
    stated = {"adjacency": certificate.adjacency, "rule": certificate.rule.rule, "weights": certificate.rule.values}
    typer.echo(str(released.folder))
    typer.echo(f"{certificate.merge.average}")
    print_guarantee(Guarantee.from_dict({**certificate.guarantee.model_dump(), **stated}))
    if certificate.ledger is not None:
        print_entry(certificate.ledger)
    for text in released.notes:
        typer.echo(f"note: {text}")
