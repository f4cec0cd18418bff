"""`dpmerge merge`: the release itself."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
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
    PortfolioArgument,
    ProvenanceOption,
    ShuffleOption,
    ShuffleRateOption,
    SmoothnessOption,
    UtilityOption,
    check_smoothness,
    shuffle_treatment,
)
from dpmerge.cli.pictures import parse_targets
from dpmerge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dpmerge.release import Chosen


class MergeRuleName(StrEnum):
    """What can be released."""

    selection = "selection"
    tempered = "tempered"
    combination = "combination"
    joint = "joint"


class LoraName(StrEnum):
    """How LoRA adapters are combined."""

    factors = "factors"
    exact = "exact"


def merge(
    portfolio: PortfolioArgument,
    rule: Annotated[MergeRuleName, typer.Option("--rule", help="Merge rule.", show_default=False)],
    delta: Annotated[float, typer.Option("--delta", help="The δ of the guarantee.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="A new folder for the released model.", show_default=False)],
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="name=value,…: released exactly with these. Must sum to 1.", show_default=False),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            "--epsilon", help="The ε to stay within: finds the best weights, or checks those given.", show_default=False
        ),
    ] = None,
    couple: Annotated[
        str | None,
        typer.Option(
            "--couple",
            help="Several targets at once, e.g. 1,2,4: selections that share one uniform number, in folders under --out.",
            show_default=False,
        ),
    ] = None,
    utility: UtilityOption = None,
    provenance: ProvenanceOption = None,
    kappa: Annotated[float | None, typer.Option("--kappa", help="Strength of tempered selection.", show_default=False)] = None,
    validation_epsilon: Annotated[
        float | None,
        typer.Option(
            "--validation-epsilon",
            help="Instead of --kappa: what the records of a private validation set pay for the draw by their scores.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="Ledger to enter the release in: a file, or a database URL.", show_default=False),
    ] = None,
    depends_on_releases: Annotated[
        bool,
        typer.Option(
            "--depends-on-releases", help="It depends on what earlier releases showed: the ledger must provide for that."
        ),
    ] = False,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="Private key to sign the certificate with.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="Under --rule joint: ties, slerp, or module:function.", show_default=False),
    ] = None,
    base: Annotated[
        Path | None, typer.Option("--base", help="Public base model, for methods on differences from it.", show_default=False)
    ] = None,
    lora: Annotated[
        LoraName,
        typer.Option("--lora", help="Adapters: average the factors (linear), or add the updates exactly (--rule joint)."),
    ] = LoraName.factors,
    take_from: Annotated[
        str | None,
        typer.Option("--take-from", help="The model whose integer tensors are kept where they differ.", show_default=False),
    ] = None,
    keep_metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-metadata",
            help="An entry of the files' safetensors metadata that is public and goes out too; others do not. Repeatable.",
            show_default=False,
        ),
    ] = None,
    by: ByOption = ByName.best,
    conversion: ConversionOption = ConversionName.tight,
    assume_smoothness: SmoothnessOption = None,
    treat_shuffle_as_poisson: ShuffleOption = False,
    shuffle_rate: ShuffleRateOption = None,
    any_delta: AnyDeltaOption = False,
    json: JsonOption = False,
) -> None:
    """Release a model: drawn or merged, with a certificate that anyone can recheck and an entry in the ledger.

    Give --weights and --delta, or --epsilon and --delta to find the best weights first. An existing folder is refused.
    """
    from dpmerge.cli.output import print_entry, print_guarantee, print_json
    from dpmerge.planning import Provenance, Utilities
    from dpmerge.records import Portfolio, Weights
    from dpmerge.release import Ledger, Merge, Signer, choose, release, release_together
    from dpmerge.rules import Accounting

    check_smoothness(assume_smoothness)
    shuffle = shuffle_treatment(treat_shuffle_as_poisson, shuffle_rate)
    accounting = Accounting(by.value, conversion.value, assume_smoothness, shuffle, any_delta)
    loaded = Portfolio(portfolio)
    claimed: Provenance | None = None if provenance is None else provenance.value
    scores = Utilities.asked(loaded, utility, claimed if utility is not None else None)
    find = partial(
        choose,
        loaded,
        rule.value,
        delta=delta,
        weights=None if weights is None else Weights.parse(loaded, weights),
        utility=scores,
        provenance=claimed,
        kappa=kappa,
        validation_epsilon=validation_epsilon,
        accounting=accounting,
    )
    opened = None if ledger is None else Ledger(ledger)
    signer = None if sign is None else Signer(sign)
    how = Merge(method, base, lora.value, take_from, keep_metadata=tuple(keep_metadata or ()))
    if couple is not None:
        if epsilon is not None or weights is not None:
            raise TargetError("--couple names the targets itself: leave out --epsilon and --weights")
        if how != Merge():
            raise TargetError(
                "--couple draws models as they are: leave out --method, --base, --lora, --take-from and --keep-metadata"
            )
        targets = {f"epsilon-{target:g}": target for target in parse_targets(couple)}
        choices = {name: find(epsilon=target) for name, target in targets.items()}
        warn_of(choices.values())
        released = release_together(loaded, choices, out, ledger=opened, dependent=depends_on_releases, signer=signer)
    else:
        choice = find(epsilon=epsilon)
        warn_of([choice])
        released = [release(loaded, choice, out, merge=how, ledger=opened, dependent=depends_on_releases, signer=signer)]
    if json:
        shown = [
            {
                "folder": str(one.folder),
                "certificate": one.certificate.model_dump(mode="json", by_alias=True),
                "notes": list(one.notes),
            }
            for one in released
        ]
        print_json(shown if couple is not None else shown[0])
        return
    for one in released:
        typer.echo(str(one.folder))
        print_guarantee(one.guarantee)
        if one.certificate.drawn is not None:
            typer.echo(f"  drawn: {one.certificate.drawn}")
        if one.certificate.ledger is not None:
            print_entry(one.certificate.ledger)
        for text in one.notes:
            typer.echo(f"note: {text}")


def warn_of(choices: Iterable[Chosen]) -> None:
    """Say what promises little before anything is written."""
    for text in dict.fromkeys(text for choice in choices for text in choice.guarantee.warnings):
        typer.echo(f"warning: {text}", err=True)
