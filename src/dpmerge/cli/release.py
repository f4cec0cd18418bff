"""`dpmerge merge` and `dpmerge verify`: release a model, and recheck a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import dpmerge
from dpmerge.cli.commands import JsonOption, argument, only, option, options
from dpmerge.cli.options import (
    DeltaOption,
    KeepMetadataOption,
    MergeAccounting,
    Releasing,
    Tempered,
    Utility,
    parse_targets,
)
from dpmerge.cli.output import echo, print_json, print_lines, print_released, print_warnings, released_json
from dpmerge.errors import TargetError
from dpmerge.records import Portfolio, Weights
from dpmerge.release import MOST_SECONDS, Merge, Released, choose, reading, release, release_together
from dpmerge.rules import RuleName, require_wanted
from dpmerge.tensors import LoraForm

_VERDICTS = {
    "holds": "holds",
    "broken": "BROKEN",
    "unchecked": "not checked",
    "warnings": "warning",
    "uncovered": "not certified",
}


@options("Tensors")
class Tensors:
    method: Annotated[str | None, option("With --rule joint: ties, slerp, or module:function.")] = None
    base: Annotated[Path | None, option("Public base model, for methods that merge differences from it.")] = None
    lora: Annotated[LoraForm, option("LoRA: average the factors, or add the updates exactly (--rule joint).")] = "factors"
    take_from: Annotated[str | None, option("Keep this model's integer tensors where models differ.")] = None
    keep_metadata: KeepMetadataOption = None

    def merge(self) -> Merge:
        return Merge(self.method, self.base, self.lora, self.take_from, keep_metadata=tuple(self.keep_metadata or ()))


def merge(
    context: typer.Context,
    delta: DeltaOption,
    utility: Utility,
    tempered: Tempered,
    tensors: Tensors,
    releasing: Releasing,
    accounting: MergeAccounting,
    portfolio: Annotated[Path | None, argument("Folder of models: one sub-folder each, with a record.json.")] = None,
    rule: Annotated[RuleName | None, option("How the released model is made.")] = None,
    weights: Annotated[str | None, option("name=value,…: exactly these weights, which sum to 1.")] = None,
    epsilon: Annotated[
        float | None,
        option("Target ε: finds the best weights; for --weights of a combination, the least noise."),
    ] = None,
    noise: Annotated[
        float | None, option("Add noise of this standard deviation to every parameter of a combination; 0: never add any.")
    ] = None,
    recipient: Annotated[str | None, option("Whom the release is for; noted in certificate and ledger.")] = None,
    from_release: Annotated[
        Path | None,
        typer.Option("--from", help="Instead, add noise to this release; needs no portfolio."),
    ] = None,
    bound: Annotated[float | None, option("With --from: cut numbers beyond ±bound; not chosen by looking at them.")] = None,
    couple: Annotated[
        str | None, option("Several targets, e.g. 1,2,4: selections that share one random number, in folders under --out.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Release a model with a certificate.

    The model is drawn or merged, entered in the ledger, and can be rechecked. Give --weights and --delta, or --epsilon and
    --delta to find the best weights first. Given all three, a combination gets the least noise that makes it so private;
    releases of it with more noise then cost nothing more. An existing folder is refused.
    """
    if from_release is not None:
        alone = (
            "from_release",
            "out",
            "delta",
            "epsilon",
            "noise",
            "bound",
            "recipient",
            "sign",
            "card_template",
            "any_delta",
            "json",
        )
        only(context, "with --from, which adds noise to a release as it is", *alone)
        require_wanted(delta, accounting.any_delta)
        made = dpmerge.renoise(
            from_release,
            out=releasing.out,
            delta=delta,
            epsilon=epsilon,
            noise=noise,
            bound=bound,
            recipient=recipient,
            sign=releasing.sign,
            card_template=releasing.card_template,
        )
        _show([made], json, alone=True)
        return
    if portfolio is None or rule is None:
        raise TargetError("give the folder of the models, and --rule; or --from, to add noise to a release")
    if bound is not None:
        raise TargetError("--bound has no meaning without --from")
    coupled = (Utility, Tempered, Releasing, MergeAccounting, "portfolio", "rule", "delta", "couple", "json")
    if couple is not None:
        only(context, "with --couple, which names the targets and draws models as they are", *coupled)
    loaded = Portfolio(portfolio)
    given = None if weights is None else Weights.parse(loaded, weights)
    find = partial(
        choose,
        loaded,
        rule,
        delta=delta,
        weights=given,
        utility=None if utility.utility is None else utility.of(loaded),
        provenance=utility.provenance,
        noise=noise,
        accounting=accounting.accounting(),
        **vars(tempered),
    )
    arguments = releasing.arguments()
    targets = {} if couple is None else {f"epsilon-{target:g}": target for target in parse_targets(couple)}
    # A ledger wants digests of the models: with known weights they are read while their guarantee is computed.
    ahead = [] if given is None or releasing.ledger is None else [model.name for model, _ in given.used]
    with reading(loaded, ahead) as surveys:
        choices = {name: find(epsilon=target) for name, target in targets.items()} if targets else {"": find(epsilon=epsilon)}
        # Before anything is written.
        print_warnings((text for choice in choices.values() for text in choice.guarantee.warnings), err=True)
        if couple is not None:
            released = release_together(loaded, choices, releasing.out, **arguments)
        else:
            how = {"merge": tensors.merge(), "recipient": recipient, "surveys": surveys, **arguments}
            released = [release(loaded, choices[""], releasing.out, **how)]
    _show(released, json, alone=couple is None)


def _show(released: Sequence[Released], json: bool, *, alone: bool) -> None:
    if json:
        shown = [released_json(one) for one in released]
        print_json(shown[0] if alone else shown)
        return
    for one in released:
        print_released(one)


def verify(
    folder: Annotated[Path, argument("Folder of a released model.")],
    portfolio: Annotated[Path | None, option("The private portfolio: also check records, inputs and every tensor.")] = None,
    ledger: Annotated[str | None, option("Also check that this ledger holds the certified entry.")] = None,
    trust: Annotated[Path | None, option("Public key that must have signed the certificate.")] = None,
    base: Annotated[Path | None, option("Public base model of the merge.")] = None,
    method: Annotated[str | None, option("module:function of the merge. It is executed: give it only if you trust it.")] = None,
    strict: Annotated[bool, option("Files that are not certified break the release, whatever they are.")] = False,
    seconds: Annotated[float, option("Most seconds to spend on the guarantee.")] = MOST_SECONDS,
    json: JsonOption = False,
) -> None:
    """Recheck a release from its files.

    Recomputes every statement of its certificate, and lists files that are not certified; one that a loader could take for part
    of the model breaks it. Then it says what was certified, what it assumes, and what was not checked. Only regular files
    of the folder are read. Exit code 0: valid, 1: not valid, 2: could not be checked.
    """
    loaded = None if portfolio is None else Portfolio(portfolio)
    verdict = dpmerge.verify(
        folder, portfolio=loaded, ledger=ledger, trust=trust, base=base, method=method, strict=strict, seconds=seconds
    )
    if json:
        print_json({"code": verdict.code, **asdict(verdict)})
    else:
        for kind, word in _VERDICTS.items():
            print_lines(f"{word}: ", getattr(verdict, kind))
        if verdict.certified and not verdict.broken:
            print_lines("certified: ", [verdict.certified])
            print_lines("assuming: ", verdict.assumptions)
            print_lines("granted by whoever made it: ", verdict.granted)
        print_lines("not covered: ", verdict.left_out)
        echo(verdict.sentence)
    raise typer.Exit(verdict.code)
