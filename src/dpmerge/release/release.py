"""The release itself: decide, check everything, enter it in the ledger, draw or merge, certify. Files appear whole, last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpmerge.errors import CertificateError, PortfolioError
from dpmerge.notebook import html_table
from dpmerge.planning import Averaging, secure_draw, tilted_odds
from dpmerge.records import Portfolio
from dpmerge.release.canonical import sha256
from dpmerge.release.card import model_card
from dpmerge.release.certificate import (
    CARD,
    NAME,
    Certificate,
    GuaranteeForm,
    RecordForm,
    draft,
    now,
    published,
    seal,
    software,
)
from dpmerge.release.choice import Chosen
from dpmerge.release.commitment import Opening, Openings, commit, input_names
from dpmerge.release.entering import Entered, entered
from dpmerge.release.forms import COVERS_INPUTS, RuleForm
from dpmerge.release.known import contents_of
from dpmerge.release.ledger import Entry, Ledger, Planned
from dpmerge.release.signing import Signer
from dpmerge.rules import Combination, Exposure, Guarantee, coupled_outcomes, covers
from dpmerge.tensors import (
    Checkpoint,
    LoraForm,
    MergeReport,
    coarsest_spacing,
    copy_model,
    holds_only_tensors,
    merge_models,
    open_model,
    open_plan,
    plan_copy,
    require_absent,
)

_DEPENDENT = "this release depends on earlier ones, so only the ledger's total covers it"
NO_LEDGER = "no ledger: releases from this data are not being added up"


@dataclass(frozen=True)
class Merge:
    """How the tensors are made, besides the weights. `average` is the rule that gave checkpoints of one run their weights.

    `keep_metadata` names entries of the input files' metadata that are public and go out too.
    """

    method: str | None = None
    base: Path | None = None
    lora: LoraForm = "factors"
    take_from: str | None = None
    average: Averaging | None = None
    keep_metadata: tuple[str, ...] = ()


_AVERAGE = Merge()


@dataclass(frozen=True, repr=False)
class Released:
    """What a release left: the folder, its certificate, the guarantee in it, and what to tell the user."""

    folder: Path
    certificate: Certificate
    guarantee: Guarantee
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Released {self.folder}: {self.guarantee.claim}>"

    def _repr_html_(self) -> str:
        told = {"folder": self.folder, "guarantee": self.guarantee.claim, "assumes": self.guarantee.assumptions}
        drawn = {} if self.certificate.drawn is None else {"drawn": self.certificate.drawn}
        return html_table([], [*{**told, **drawn, "notes": self.notes}.items()])


@dataclass(frozen=True)
class Files:
    """The names of a release's files: those of a merge, or by each model that may be drawn; and whether openings are kept."""

    always: tuple[str, ...]
    if_drawn: Mapping[str, tuple[str, ...]]
    openings: bool


@dataclass(frozen=True)
class Preview:
    """A release that was not made: the choice as its files allow it, these, and what all releases would guarantee with it."""

    choice: Chosen
    files: Files
    total: Guarantee | None
    fits: bool | None


def release(
    portfolio: Portfolio,
    choice: Chosen,
    out: Path,
    *,
    merge: Merge = _AVERAGE,
    ledger: Ledger | None = None,
    dependent: bool = False,
    signer: Signer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Released:
    """Write the released model to the new folder `out`, with `certificate.json` and a model card.

    Nothing is written before everything is validated. `dependent` says that the weights depend on what earlier releases
    showed: then only the total of the ledger that holds these covers the release.
    """
    portfolio.require_outside(out)
    require_absent(out)
    folders = _folders(portfolio)
    _check_choice(portfolio, choice, merge, dependent, ledger)
    _check_files(choice, folders, merge)
    choice = _settled(choice, folders)
    drawn = (draw(choice),) if choice.form.draws else ()
    planned = replace(
        _planned(portfolio, (choice,), choice.form.exposure(portfolio), dependent, out, drawn),
        contents=_contents(portfolio, (choice,), ledger),
    )
    with entered(ledger, planned, choice.weights, out) as place:
        made = _Making(portfolio, folders, merge, place.entry, dependent, signer, progress)
        released = made.write(choice, place.drawn[0] if place.drawn else None, out, place.folder)
        place.certificates.append(released.certificate.sha256)
    return replace(released, notes=(*_notes(ledger, dependent, place), *released.notes))


def release_together(
    portfolio: Portfolio,
    choices: Mapping[str, Chosen],
    out: Path,
    *,
    ledger: Ledger | None = None,
    dependent: bool = False,
    signer: Signer | None = None,
) -> list[Released]:
    """Several random selections with one shared uniform number, each in its folder under `out`, which appears whole.

    Neighbouring targets mostly draw the same model, so less leaks than by drawing for each (docs/theory.md §5).
    """
    portfolio.require_outside(out)
    require_absent(out)
    folders = _folders(portfolio)
    for name, choice in choices.items():
        if choice.form.rule != "selection":
            raise CertificateError(f"only random selections can share a uniform number, not {choice.form.rule}")
        if Path(name).name != name:
            raise CertificateError(f"{name!r} is not the name of a folder for one of several releases")
        _check_choice(portfolio, choice, _AVERAGE, dependent, ledger)
        _check_files(choice, folders, _AVERAGE)
    weights = [choice.weights for choice in choices.values()]
    exposure = Exposure.drawn(*weights)
    outcomes = coupled_outcomes(weights)
    drawn = outcomes[secure_draw([probability for probability, _ in outcomes])][1]
    several = tuple(choices.values())
    planned = replace(
        _planned(portfolio, several, exposure, dependent, out, drawn), contents=_contents(portfolio, several, ledger)
    )
    with entered(ledger, planned, weights[0], out) as place:
        made = _Making(portfolio, folders, _AVERAGE, place.entry, dependent, signer, None)
        written = [made.write(c, d, place.folder / n) for (n, c), d in zip(choices.items(), place.drawn, strict=True)]
        place.certificates.extend(one.certificate.sha256 for one in written)
    notes = tuple(_notes(ledger, dependent, place))
    return [replace(one, folder=out / name, notes=notes) for name, one in zip(choices, written, strict=True)]


def files_to_write(portfolio: Portfolio, choice: Chosen, *, ledger: Ledger | None = None, dependent: bool = False) -> Files:
    """The files of a release, once nothing but the budget could refuse it."""
    folders = _folders(portfolio)
    _check_choice(portfolio, choice, _AVERAGE, dependent, ledger)
    return _check_files(choice, folders, _AVERAGE)


def preview(
    portfolio: Portfolio, choice: Chosen, out: Path, *, ledger: Ledger | None = None, dependent: bool = False
) -> Preview:
    """What `release` would write and spend, once nothing but the budget could refuse it; nothing is written.

    That a model holds what was entered under its run and record before is checked at the release.
    """
    choice = _settled(choice, _folders(portfolio))
    files = files_to_write(portfolio, choice, ledger=ledger, dependent=dependent)
    if ledger is None:
        return Preview(choice, files, None, None)
    total = ledger.total_with(_planned(portfolio, (choice,), choice.form.exposure(portfolio), dependent, out))
    return Preview(choice, files, total.guarantee, total.fits)


def draw(choice: Chosen) -> str:
    """The model that a selection draws: by the operating system's secure randomness, exactly with the stated odds."""
    odds = [Fraction(weight) for weight in choice.weights.values]
    if choice.form.rule == "tempered":
        assert choice.form.kappa is not None
        assert choice.scores is not None
        odds = tilted_odds(choice.weights.values, choice.scores, float.fromhex(choice.form.kappa))
    return choice.weights.portfolio.names[secure_draw(odds)]


# --- before anything is charged or written ------------------------------------------------------------------------------------


def _folders(portfolio: Portfolio) -> dict[str, Path]:
    """Where the models are, by name."""
    folders = {}
    for model in portfolio.models:
        if not _is_text(model.name):
            raise PortfolioError(
                f"model {model.name!r}: its name is no valid text, so it cannot be certified; rename its folder"
            )
        if model.folder is None:
            raise PortfolioError(f"model {model.name!r} has no folder: load the portfolio from disk to release from it")
        folders[model.name] = model.folder
    return folders


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # the name of a folder may be any bytes
        return False
    return True


def _check_choice(portfolio: Portfolio, choice: Chosen, merge: Merge, dependent: bool, ledger: Ledger | None) -> None:
    """Refuse what the choice's guarantee is not about."""
    if choice.weights.portfolio != portfolio:
        raise CertificateError("this choice was made for another portfolio: choose again for the one to release from")
    if dependent and ledger is None:
        raise CertificateError(
            "weights that depend on earlier releases are covered by the total of the ledger that holds those: give --ledger"
        )
    known = {model.name: model.mechanism for model in portfolio.models}
    if merge.average is not None and not merge.average.gives(choice.form.values, known):
        raise CertificateError(f"these are not the weights of {merge.average}: take those that it gives")
    if choice.form.rule == "joint":
        return
    stated = {"--method": merge.method, "--base": merge.base, "--take-from": merge.take_from, "an average": merge.average}
    for what, given in stated.items():
        if given is not None:
            raise CertificateError(
                f"the guarantee of {choice.form.rule} is about models as they are or their weighted average: {what} needs "
                "joint release, which covers any merge (--rule joint)"
            )
    if merge.lora == "exact":
        raise CertificateError(
            "the exact sum of LoRA updates is bilinear in what was trained, so only joint release covers it: use --rule joint, "
            "or average the factors (--lora factors)"
        )


def _check_files(choice: Chosen, folders: Mapping[str, Path], merge: Merge) -> Files:
    """Everything that headers and configurations can tell, before the ledger is charged or a byte is written."""
    used = choice.form.values
    own = (NAME, CARD)
    with ExitStack() as stack:
        if not choice.form.draws:
            checkpoints, plan = open_plan(stack, {name: folders[name] for name in used}, used, **_how(merge))
            return Files((*plan.names, *own), {}, _has_openings(choice, checkpoints))
        # Any of them may be drawn, and a draw that cannot be released would tell which.
        drawn = [stack.enter_context(open_model(folders[name], name)) for name in used]
        names = {checkpoint.model: plan_copy(checkpoint).names for checkpoint in drawn}
        return Files(own, names, _has_openings(choice, drawn))


def _settled(choice: Chosen, folders: Mapping[str, Path]) -> Chosen:
    """The choice under what holds of its files: conditional below joint release, which counts where numbers are too coarse."""
    if choice.form.rule != "combination" or choice.guarantee.theorem in COVERS_INPUTS:
        return choice
    rule = choice.form.build(choice.weights.portfolio)
    assert isinstance(rule, Combination)
    return choice.of_stored("stored" if covers(rule.last_noise, stored_spacing(choice.form, folders)) else "joint")


def stored_spacing(form: RuleForm, folders: Mapping[str, Path]) -> float:
    """How far the stored numbers of the models averaged lie apart at the largest parameter."""
    with ExitStack() as stack:
        _, plan = open_plan(stack, {name: folders[name] for name in form.values}, form.values)
        return coarsest_spacing(plan.outputs)


def _covers_inputs(choice: Chosen) -> bool:
    """Whether the guarantee covers each model that goes in, so that the digest of its tensors may be published."""
    return choice.form.draws or choice.form.rule == "joint" or choice.guarantee.theorem in COVERS_INPUTS


def _has_openings(choice: Chosen, checkpoints: Sequence[Checkpoint]) -> bool:
    files = [file for checkpoint in checkpoints for file in checkpoint.files]
    return not _covers_inputs(choice) or not all(map(holds_only_tensors, files)) or checkpoints[0].layout == "lora"


def _planned(
    portfolio: Portfolio,
    choices: tuple[Chosen, ...],
    exposure: Exposure,
    dependent: bool,
    out: Path,
    drawn: tuple[str, ...] = (),
) -> Planned:
    """What the ledger is told of a release."""
    forms, guarantees = tuple(choice.form for choice in choices), tuple(choice.guarantee for choice in choices)
    return Planned(forms, portfolio, exposure, guarantees, str(out.resolve()), dependent, drawn)


def _contents(portfolio: Portfolio, choices: tuple[Chosen, ...], ledger: Ledger | None) -> dict[str, str]:
    """What the models involved hold: the ledger keeps it, and without one two models of one step must still be the same."""
    names = {name for choice in choices for name in choice.form.involved}
    models = [model for model in portfolio.models if model.name in names]
    states = [(model.run, getattr(model.mechanism, "steps", 0)) for model in models if model.covers_iterates]
    return contents_of(models) if ledger is not None or len(set(states)) < len(states) else {}


def _notes(ledger: Ledger | None, dependent: bool, place: Entered) -> list[str]:
    return [NO_LEDGER] if ledger is None else [*place.notes, *([_DEPENDENT] if dependent else [])]


# --- making it ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Making:
    """What every folder of one release has in common."""

    portfolio: Portfolio
    folders: Mapping[str, Path]
    merge: Merge
    entry: Entry | None
    dependent: bool
    signer: Signer | None
    progress: Callable[[int, int], None] | None

    def write(self, choice: Chosen, drawn: str | None, out: Path, into: Path | None = None) -> Released:
        """Draw or merge into a new folder, with certificate and model card; or into one that becomes `out` later."""
        made: list[Released] = []

        def certify(folder: Path, report: MergeReport) -> None:
            inputs, openings = self._inputs(choice, report)
            content = {**self._content(choice, drawn, report), "inputs": inputs, "outputs": dict(report.outputs)}
            (folder / CARD).write_bytes(card := model_card(draft(content)).encode())
            content["outputs"][CARD] = sha256(card)
            certificate = seal(content, self.signer)
            (folder / NAME).write_bytes(certificate.file())
            made.append(Released(out, certificate, choice.guarantee, (*report.notes, *self._keep(openings, certificate))))

        if drawn is not None:
            kept = self.merge.keep_metadata
            copy_model(self.folders[drawn], out, name=drawn, keep_metadata=kept, extra_files=certify, into=into)
        else:
            used = choice.form.values
            folders = {name: self.folders[name] for name in used}
            merge_models(folders, used, out, extra_files=certify, progress=self.progress, into=into, **_how(self.merge))
        return made[0]

    def _content(self, choice: Chosen, drawn: str | None, report: MergeReport) -> dict[str, Any]:
        record = self.portfolio.models[0].record
        involved = [model for model in self.portfolio.models if model.name in choice.form.involved]
        return {
            "schema": 1,
            "created": now(),
            "dataset": record.dataset,
            "adjacency": record.adjacency,
            "rule": choice.form.model_dump(mode="json"),
            "merge": {"keep_metadata": self._kept()} if drawn is not None else self._merge_form(report),
            "provenance": choice.provenance,
            "dependent": self.dependent,
            "utilities_source": None if choice.question.utility is None else choice.question.utility.source,
            "guarantee": GuaranteeForm.of(choice.guarantee).model_dump(mode="json"),
            "numerics": choice.numerics.model_dump(mode="json"),
            "records": {
                name: RecordForm.of(one).model_dump(mode="json", by_alias=True) for name, one in published(involved).items()
            },
            "drawn": drawn,
            "ledger": self._ledger_form(),
            "software": software(),
        }

    def _merge_form(self, report: MergeReport) -> dict[str, Any]:
        merge = self.merge
        base = None if merge.base is None else dict(report.inputs["base"])
        average = None if merge.average is None else merge.average.model_dump(mode="json")
        how = {"method": merge.method, "lora": merge.lora, "take_from": merge.take_from, "base": base, "average": average}
        return {**how, "keep_metadata": self._kept()}

    def _kept(self) -> list[str] | None:
        return sorted(set(self.merge.keep_metadata)) or None

    def _ledger_form(self) -> dict[str, Any] | None:
        """Where it was entered, and what everything released guarantees together after it."""
        if self.entry is None:
            return None
        total = self.entry.content["total"]
        told = {name: total[name] for name in ("epsilon", "delta", "theorem")}
        return {"number": self.entry.number, "entry": self.entry.hash, **told}

    def _inputs(self, choice: Chosen, report: MergeReport) -> tuple[dict[str, Any], dict[str, dict[str, Opening]]]:
        """Digests where the guarantee covers what is in a file; else commitments, whose openings stay private.

        It covers tensors of some rules (docs/theory.md §5), and never what else a training wrote into a file, by whose digest
        a guess could be confirmed.
        """
        inputs: dict[str, Any] = {}
        openings: dict[str, dict[str, Opening]] = {}
        for name, files in report.inputs.items():
            if name not in choice.form.weights:  # the base model, which is public and stands with the merge
                continue
            inputs[name] = {}
            for (file, digest), told in zip(files.items(), input_names(files), strict=True):
                if _covers_inputs(choice) and (name, file) in report.plain:
                    inputs[name][told] = digest
                else:
                    public, openings.setdefault(name, {})[told] = commit(digest)
                    inputs[name][told] = public.model_dump(mode="json")
        return inputs, openings

    def _keep(self, openings: dict[str, dict[str, Opening]], certificate: Certificate) -> list[str]:
        """Write the openings beside the private models, before the release appears."""
        if not openings:
            return []
        path = Openings.path(next(iter(self.folders.values())).parent, certificate.sha256)
        try:
            Openings(openings=openings).keep(path)
        except OSError as fault:
            return [f"what opens the certificate's commitments to its inputs could not be kept ({path}: {fault.strerror})"]
        return []


def _how(merge: Merge) -> dict[str, Any]:
    """As the arguments of a merge."""
    how = {"lora": merge.lora, "take_from": merge.take_from, "method": merge.method, "base": merge.base}
    return {**how, "keep_metadata": merge.keep_metadata}
