"""The release itself: decide, check everything, enter it in the ledger, draw or merge, certify."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from dpmerge.errors import CertificateError, PortfolioError
from dpmerge.planning import secure_draw, tilted_odds
from dpmerge.records import Model, Portfolio
from dpmerge.release.certificate import CARD, NAME
from dpmerge.release.choice import Chosen
from dpmerge.release.entering import Entered, entered
from dpmerge.release.entries import PendingEntry
from dpmerge.release.forms import COVERS_INPUTS, RuleForm
from dpmerge.release.joining import RECORD, can_join
from dpmerge.release.known import contents_of
from dpmerge.release.ladder import NEW_LADDER, Ladders, spared
from dpmerge.release.ledger import Ledger
from dpmerge.release.making import Making, Merge, Released, covers_inputs
from dpmerge.release.readme import CardTemplate
from dpmerge.release.signing import Signer
from dpmerge.rules import Combination, Exposure, Guarantee, about_delta, coupled_outcomes, covers
from dpmerge.tensors import (
    Checkpoint,
    FileState,
    Noise,
    NoisePath,
    Surveys,
    coarsest_spacing,
    holds_only_tensors,
    open_model,
    open_plan,
    plan_copy,
    require_absent,
    require_finite,
    require_space,
)

_DEPENDENT = "this release depends on earlier ones, so only the ledger's total covers it"
NO_LEDGER = "no ledger: releases from this data are not being added up"
_AVERAGE, _PLAIN = Merge(), CardTemplate()


@dataclass(frozen=True)
class Files:
    """The names of a release's files: those of a merge, or by each model that may be drawn; and whether openings are kept.

    `size` is how many bytes it takes at most.
    """

    always: tuple[str, ...]
    if_drawn: Mapping[str, tuple[str, ...]]
    openings: bool
    size: int


@dataclass(frozen=True)
class Preview:
    """A release that was not made: the choice its files allow, those files, and what all releases would guarantee together.

    `adds` is by how much it would raise the ε of all releases; 0 if it is free.
    """

    choice: Chosen
    files: Files
    total: Guarantee | None
    fits: bool | None
    adds: float | None = None


def release(
    portfolio: Portfolio,
    choice: Chosen,
    out: Path,
    *,
    merge: Merge = _AVERAGE,
    ledger: Ledger | None = None,
    dependent: bool = False,
    recipient: str | None = None,
    signer: Signer | None = None,
    progress: Callable[[int, int], None] | None = None,
    surveys: Surveys | None = None,
    template: CardTemplate = _PLAIN,
) -> Released:
    """Write the released model to the new folder `out`, with `certificate.json` and a model card.

    Nothing is written before everything is validated. `dependent` says that the weights depend on what earlier releases
    showed: then only the total of the ledger that holds these covers the release. `recipient` is whom it is for. `surveys`
    are those of the models, if reading them has begun. `template` is the text around the model card's certified section.
    """
    with reading(portfolio) if surveys is None else nullcontext(surveys) as surveys:
        portfolio.require_outside(out)
        require_absent(out)
        folders = folders_of(portfolio)
        _check_choice(portfolio, choice, merge, dependent, ledger)
        require_space(out, _check_files(choice, folders, merge).size)
        used = [folders[name] for name in choice.form.weights]
        before = _file_states(used)
        hashed = _to_hash(portfolio, [choice], ledger)
        surveys.begin(model.name for model in hashed)
        choice = settled(choice, folders, surveys if hashed else None)
        contents = contents_of(hashed, surveys)
        if hashed:
            _require_finite(choice, folders, merge, surveys)
        drawn = (draw(choice),) if choice.form.draws else ()
        # The ladder is on the disk before the ledger is charged: whoever makes this release again has the same noise.
        ladder = None if choice.form.noise is None else Ladders.beside(folders, choice.form).find_or_make(choice.form, contents)
        choice = choice if ladder is None else choice.on_ladder(ladder.rung, ladder.id)
        noise = None if ladder is None else ladder.noise(choice.form.deviation, _spared(portfolio, choice.form, folders))
        planned = _planned(portfolio, [choice], choice.form.exposure(portfolio), out, dependent, drawn)
        planned = replace(planned, contents=contents, recipient=recipient)
        with entered(ledger, planned, choice.weights, out) as place:
            made = Making(
                portfolio, folders, merge, place.entry, dependent, signer, progress, noise, recipient, surveys, template
            )
            released = made.write(choice, place.drawn[0] if place.drawn else None, out, place.folder)
            if ladder is not None and _file_states(used) != before:
                raise CertificateError(
                    "a model was written to while it was released: the noise of one ladder is for one content, so nothing was "
                    "released. Release it again when it is finished"
                )
            place.certificates.append(released.certificate.sha256)
        return replace(
            released, notes=(*_notes(portfolio, [choice], dependent, place), *choice.guarantee.notes, *released.notes)
        )


def reading(portfolio: Portfolio, begin: Iterable[str] = ()) -> Surveys:
    """Surveys of a portfolio's models, which are read beside the accounting; those to `begin` with at once."""
    folders = {model.name: model.folder for model in portfolio.models if model.folder is not None}
    return Surveys(folders).begin(name for name in begin if name in folders)


def release_together(
    portfolio: Portfolio,
    choices: Mapping[str, Chosen],
    out: Path,
    *,
    ledger: Ledger | None = None,
    dependent: bool = False,
    signer: Signer | None = None,
    template: CardTemplate = _PLAIN,
) -> list[Released]:
    """Several random selections with one shared uniform number, each in its folder under `out`, which appears whole.

    Neighbouring targets mostly draw the same model, so less leaks than by drawing for each (docs/theory.md §5).
    """
    portfolio.require_outside(out)
    require_absent(out)
    folders, size = folders_of(portfolio), 0
    for name, choice in choices.items():
        if choice.form.rule != "selection":
            raise CertificateError(f"only random selections can share a uniform number, not {choice.form.rule}")
        if Path(name).name != name:
            raise CertificateError(f"{name!r} is not the name of a folder for one of several releases")
        _check_choice(portfolio, choice, _AVERAGE, dependent, ledger)
        size += _check_files(choice, folders, _AVERAGE).size
    require_space(out, size)
    weights = [choice.weights for choice in choices.values()]
    outcomes = coupled_outcomes(weights)
    drawn = outcomes[secure_draw([probability for probability, _ in outcomes])][1]
    planned = _planned(portfolio, [*choices.values()], Exposure.drawn(*weights), out, dependent, drawn)
    planned = replace(planned, contents=contents_of(_to_hash(portfolio, [*choices.values()], ledger)))
    with entered(ledger, planned, weights[0], out) as place:
        made = Making(portfolio, folders, _AVERAGE, place.entry, dependent, signer, None, template=template)
        written = [made.write(c, d, place.folder / n) for (n, c), d in zip(choices.items(), place.drawn, strict=True)]
        place.certificates.extend(one.certificate.sha256 for one in written)
    notes = tuple(_notes(portfolio, choices.values(), dependent, place))
    return [replace(one, folder=out / name, notes=notes) for name, one in zip(choices, written, strict=True)]


def files_to_write(portfolio: Portfolio, choice: Chosen, *, ledger: Ledger | None = None, dependent: bool = False) -> Files:
    """The files of a release, after every check but that of the budget."""
    folders = folders_of(portfolio)
    _check_choice(portfolio, choice, _AVERAGE, dependent, ledger)
    return _check_files(choice, folders, _AVERAGE, dependent)


def preview(
    portfolio: Portfolio, choice: Chosen, out: Path, *, ledger: Ledger | None = None, dependent: bool = False
) -> Preview:
    """What `release` would write and spend, after every check but that of the budget; nothing is written.

    That a model holds what was entered under its run and record before is checked at the release.
    """
    folders = folders_of(portfolio)
    choice = settled(choice, folders)
    files = files_to_write(portfolio, choice, ledger=ledger, dependent=dependent)
    counted = choice
    if choice.form.noise is not None:
        ladder = Ladders.beside(folders, choice.form).find(choice.form, contents_of(_to_hash(portfolio, [choice], ledger)))
        choice = choice if ladder is None else choice.on_ladder(ladder.rung, ladder.id)
        counted = choice.on_ladder(lambda noise: noise, NEW_LADDER) if ladder is None else choice
    if ledger is None:
        return Preview(choice, files, None, None)
    total = ledger.total_with(_planned(portfolio, [counted], choice.form.exposure(portfolio), out, dependent))
    before = ledger.cumulative()
    adds = total.guarantee.epsilon - (0.0 if before is None else before.epsilon)
    return Preview(choice, files, total.guarantee, total.fits, max(adds, 0.0))


def draw(choice: Chosen) -> str:
    """The model that a selection draws: by the operating system's secure randomness, exactly with the stated odds."""
    odds = [Fraction(weight) for weight in choice.weights.values]
    if choice.form.rule == "tempered":
        assert choice.form.kappa is not None
        assert choice.scores is not None
        odds = tilted_odds(choice.weights.values, choice.scores, float.fromhex(choice.form.kappa))
    return choice.weights.portfolio.names[secure_draw(odds)]


# --- before anything is charged or written ------------------------------------------------------------------------------------


def folders_of(portfolio: Portfolio) -> dict[str, Path]:
    folders = {}
    for model in portfolio.models:
        try:
            model.name.encode()
        except UnicodeEncodeError:  # the name of a folder may be any bytes
            raise PortfolioError(
                f"model {model.name!r}: its name is not valid text, so it cannot be certified; rename its folder"
            ) from None
        if model.folder is None:
            raise PortfolioError(f"model {model.name!r} has no folder: load the portfolio from disk to release from it")
        folders[model.name] = model.folder
    return folders


def _check_choice(portfolio: Portfolio, choice: Chosen, merge: Merge, dependent: bool, ledger: Ledger | None) -> None:
    """Refuse what the choice's guarantee is not about."""
    if choice.weights.portfolio != portfolio:
        raise CertificateError("this choice was made for another portfolio: choose again for the one to release from")
    if dependent and ledger is None:
        raise CertificateError(
            "weights that depend on earlier releases are covered by the total of the ledger that holds those: give that ledger"
        )
    known = {model.name: model.mechanism for model in portfolio.models}
    if merge.average is not None and not merge.average.gives(choice.form.values, known):
        raise CertificateError(f"these are not the weights of {merge.average}: take those that it gives")
    if choice.form.rule == "joint":
        return
    stated = {"a method": merge.method, "a base model": merge.base, "take_from": merge.take_from, "an average": merge.average}
    for what, given in stated.items():
        if given is not None:
            raise CertificateError(
                f"the guarantee of {choice.form.rule} is about models as they are or their weighted average: {what} needs "
                "joint release, which covers any merge"
            )
    if merge.lora == "exact":
        raise CertificateError(
            "the exact sum of LoRA updates is bilinear in what was trained, so only joint release covers it: use that, "
            "or average the factors"
        )


def _check_files(choice: Chosen, folders: Mapping[str, Path], merge: Merge, dependent: bool = False) -> Files:
    """Everything that headers and configurations can tell, before the ledger is charged or a byte is written."""
    used = choice.form.values
    involved = [model for model in choice.weights.portfolio.models if model.name in choice.form.involved]
    has_record = can_join(choice.guarantee.standing, dependent, (model.record for model in involved))
    own = (NAME, CARD, *([RECORD] if has_record else []))
    with ExitStack() as stack:
        if not choice.form.draws:
            how = {
                **merge.arguments(),
                "noise": _any_noise(choice.form, _spared(choice.weights.portfolio, choice.form, folders)),
            }
            checkpoints, plan = open_plan(stack, {name: folders[name] for name in used}, used, **how)
            return Files((*plan.names, *own), {}, _has_openings(choice, checkpoints), plan.size)
        # Any of them may be drawn, and a draw that cannot be released would tell which.
        drawn = [stack.enter_context(open_model(folders[name], name)) for name in used]
        plans = {checkpoint.model: plan_copy(checkpoint) for checkpoint in drawn}
        names, size = {name: plan.names for name, plan in plans.items()}, max(plan.size for plan in plans.values())
        return Files(own, names, _has_openings(choice, drawn), size)


def _require_finite(choice: Chosen, folders: Mapping[str, Path], merge: Merge, surveys: Surveys) -> None:
    """Refuse, before anything is charged, numbers that would stop the merge; the surveys have read them already."""
    used = choice.form.values
    if choice.form.draws or all(math.isfinite(surveys[name].spacing) for name in used):
        return
    with ExitStack() as stack:
        _, plan = open_plan(stack, {name: folders[name] for name in used}, used, **merge.arguments())
        require_finite(plan.outputs)


def settled(choice: Chosen, folders: Mapping[str, Path], surveys: Surveys | None = None) -> Chosen:
    """The choice with what its files guarantee: an average of numbers too coarse for its noise counts as joint release."""
    if choice.form.rule != "combination" or choice.guarantee.theorem in COVERS_INPUTS:
        return choice
    rule = choice.form.build(choice.weights.portfolio)
    assert isinstance(rule, Combination)
    if not covers(rule.covering, stored_spacing(choice.weights.portfolio, choice.form, folders, surveys)):
        return choice.of_stored("joint")
    return choice if choice.form.noise is not None else choice.of_stored("stored")


def stored_spacing(portfolio: Portfolio, form: RuleForm, folders: Mapping[str, Path], surveys: Surveys | None = None) -> float:
    """How far the stored numbers of the models averaged lie apart at the largest parameter."""
    with ExitStack() as stack:
        without = _spared(portfolio, form, folders)
        used = {name: folders[name] for name in form.values}
        _, plan = open_plan(stack, used, form.values, noise=_any_noise(form, without))
        for output in plan.outputs:
            if form.noise is not None and not output.dtype.floating and output.name not in without:
                raise CertificateError(
                    f"tensor {output.name!r} holds {output.dtype.name}, to which no noise can be added: it would be released "
                    "as it is, and the guarantee rests on the noise. Leave it out of the models, or store it as floating-point "
                    "numbers"
                )
        if surveys is not None:
            widest = max(surveys[name].spacing for name in form.values)
            if math.isfinite(widest):
                return widest
        return coarsest_spacing(plan.outputs)  # says which number is not finite


def _any_noise(form: RuleForm, without: frozenset[str]) -> Noise | None:
    """Noise as much as that of the release: tensors to which none can be added are refused before a ladder is made."""
    return None if form.noise is None else Noise(NoisePath(bytes(32), form.deviation), form.deviation, without)


def _spared(portfolio: Portfolio, form: RuleForm, folders: Mapping[str, Path]) -> frozenset[str]:
    if form.noise is None:
        return frozenset()
    return spared((portfolio[name] for name in form.values), folders[min(form.values)])


def _has_openings(choice: Chosen, checkpoints: Sequence[Checkpoint]) -> bool:
    files = [file for checkpoint in checkpoints for file in checkpoint.files]
    return not covers_inputs(choice) or not all(map(holds_only_tensors, files)) or checkpoints[0].layout == "lora"


def _planned(
    portfolio: Portfolio,
    choices: Sequence[Chosen],
    exposure: Exposure,
    out: Path,
    dependent: bool,
    drawn: tuple[str, ...] = (),
) -> PendingEntry:
    forms, guarantees = tuple(choice.form for choice in choices), tuple(choice.guarantee for choice in choices)
    return PendingEntry(forms, portfolio, exposure, guarantees, str(out.resolve()), dependent, drawn)


def _to_hash(portfolio: Portfolio, choices: Sequence[Chosen], ledger: Ledger | None) -> list[Model]:
    """The models whose contents must be known: for the ledger, for a ladder, or to compare two models of one step."""
    names = {name for choice in choices for name in choice.form.involved}
    models = [model for model in portfolio.models if model.name in names]
    starts = {start.name: start for model in models for start in model.starts}  # each is a model of its run as well
    held = [*(model for model in models if model.covers_iterates), *starts.values()]
    states = [(model.run, getattr(model.mechanism, "steps", 0)) for model in held]
    noised = any(choice.form.noise is not None for choice in choices)
    return [] if ledger is None and not noised and len(set(states)) == len(states) else models


def _file_states(folders: Sequence[Path]) -> list[tuple[str, FileState]]:
    """What tells that a file in these folders was written to."""
    files = (path for folder in folders for path in sorted(folder.iterdir()) if path.is_file())
    return [(str(path), FileState.of(path.stat())) for path in files]


def _notes(portfolio: Portfolio, choices: Iterable[Chosen], dependent: bool, place: Entered) -> list[str]:
    """What the ledger has to say, with what its own δ promises where that is not the release's (rules/statements.py)."""
    if place.entry is None:
        return [NO_LEDGER]
    own = {text for choice in choices for text in choice.guarantee.warnings}
    total = [text for text in about_delta(place.entry.content["total"]["delta"], portfolio.models) if text not in own]
    return [*place.notes, *([_DEPENDENT] if dependent else []), *(f"all releases together: {text}" for text in total)]
