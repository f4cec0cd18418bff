"""The release itself: decide, check everything, enter it in the ledger, draw or merge, certify. Files appear whole, last."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpmerge.checkpoints import MergeReport, copy_model, merge_models, open_model
from dpmerge.checkpoints.folder import new_folder, require_absent
from dpmerge.checkpoints.merge import open_plan
from dpmerge.checkpoints.plan import LoraForm
from dpmerge.errors import BudgetExceeded, CertificateError, PortfolioError
from dpmerge.records import Portfolio
from dpmerge.release.canonical import sha256
from dpmerge.release.card import model_card
from dpmerge.release.certificate import CARD, NAME, Certificate, guarantee_form, now, record_digest, seal, software
from dpmerge.release.choice import Choice
from dpmerge.release.commitment import commit
from dpmerge.release.ledger import Entry, Ledger, Planned
from dpmerge.release.remaining import in_words
from dpmerge.release.signing import Signer
from dpmerge.rules.releases import Exposure, coupled_outcomes
from dpmerge.weights import Utilities
from dpmerge.weights.draw import secure_draw

OPENINGS = ".dpmerge/openings"
# What opens a certificate's commitments, by model and file; stays with the private portfolio.
Openings = dict[str, dict[str, dict[str, str]]]
# Guarantees that cover every model with weight as it is: digests of the inputs may then be published.
_COVERS_INPUTS = {"joint-release", "single-run"}


@dataclass(frozen=True)
class Merge:
    """How the tensors are made, besides the weights."""

    method: str | None = None
    base: Path | None = None
    lora: LoraForm = "factors"
    take_from: str | None = None


_AVERAGE = Merge()


@dataclass(frozen=True)
class Released:
    """What a release left: the folder, its certificate, and what to tell the user."""

    folder: Path
    certificate: Certificate
    notes: tuple[str, ...] = ()


def release(
    portfolio: Portfolio,
    choice: Choice,
    out: Path,
    *,
    merge: Merge = _AVERAGE,
    ledger: Ledger | None = None,
    dependent: bool = False,
    signer: Signer | None = None,
    scores: Utilities | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Released:
    """Write the released model to the new folder `out`, with `certificate.json` and a model card.

    Nothing is written before everything is validated. `dependent` says that the weights depend on what earlier releases
    showed. `scores` are those by which a tempered draw prefers models.
    """
    require_absent(out)
    folders = _folders(portfolio)
    _check_merge(choice, merge)
    _check_files(choice, folders, merge)
    notes, entry = _entered(ledger, portfolio, (choice,), choice.form.exposure(portfolio, dependent), out)
    drawn = draw(choice, scores) if choice.form.rule in ("selection", "tempered") else None
    made = _Making(portfolio, folders, merge, entry, signer, progress)
    released = made.write(choice, drawn, out)
    if ledger is not None and entry is not None:
        ledger.complete(entry, [released.certificate.sha256])
    return replace(released, notes=(*notes, *released.notes))


def release_together(
    portfolio: Portfolio,
    choices: Mapping[str, Choice],
    out: Path,
    *,
    ledger: Ledger | None = None,
    dependent: bool = False,
    signer: Signer | None = None,
) -> list[Released]:
    """Several random selections with one shared uniform number, each in its folder under `out`, which appears whole.

    Neighbouring targets mostly draw the same model, so less leaks than by drawing for each (docs/theory.md §5).
    """
    require_absent(out)
    folders = _folders(portfolio)
    for choice in choices.values():
        if choice.form.rule != "selection":
            raise CertificateError(f"only random selections can share a uniform number, not {choice.form.rule}")
        _check_files(choice, folders, _AVERAGE)
    weights = [choice.weights for choice in choices.values()]
    exposure = Exposure.drawn(*weights)
    if dependent:
        exposure = Exposure.whole(exposure.models)
    notes, entry = _entered(ledger, portfolio, tuple(choices.values()), exposure, out)
    outcomes = coupled_outcomes(weights)
    drawn = outcomes[secure_draw([probability for probability, _ in outcomes])][1]
    made = _Making(portfolio, folders, _AVERAGE, entry, signer, None)
    with new_folder(out) as folder:
        written = [made.write(c, d, folder / n) for (n, c), d in zip(choices.items(), drawn, strict=True)]
    if ledger is not None and entry is not None:
        ledger.complete(entry, [one.certificate.sha256 for one in written])
    return [replace(one, folder=out / name, notes=tuple(notes)) for name, one in zip(choices, written, strict=True)]


def _entered(
    ledger: Ledger | None, portfolio: Portfolio, choices: tuple[Choice, ...], exposure: Exposure, out: Path
) -> tuple[list[str], Entry | None]:
    """The ledger's entry, made before anything is written; a refusal says what would still fit."""
    if ledger is None:
        return [], None
    notes = ledger.recover()
    forms, guarantees = tuple(choice.form for choice in choices), tuple(choice.guarantee for choice in choices)
    try:
        return notes, ledger.enter(Planned(forms, portfolio, exposure, guarantees, str(out.resolve())))
    except BudgetExceeded as refusal:
        raise BudgetExceeded(f"{refusal}; {in_words(ledger, portfolio, choices[0].weights)}") from None


@dataclass(frozen=True)
class _Making:
    """What every folder of one release has in common."""

    portfolio: Portfolio
    folders: Mapping[str, Path]
    merge: Merge
    entry: Entry | None
    signer: Signer | None
    progress: Callable[[int, int], None] | None

    def write(self, choice: Choice, drawn: str | None, out: Path) -> Released:
        """Draw or merge into a new folder, with certificate and model card."""
        kept: Openings = {}

        def certify(folder: Path, report: MergeReport) -> None:
            (folder / CARD).write_bytes(card := self._card(choice, drawn).encode())
            content = self._certificate(choice, drawn, report, kept)
            content["outputs"] = {**report.outputs, CARD: sha256(card)}
            (folder / NAME).write_bytes(seal(content, self.signer))

        if drawn is not None:
            report = copy_model(self.folders[drawn], out, name=drawn, extra_files=certify)
        else:
            used = {model.name: weight for model, weight in choice.weights.used}
            report = merge_models(
                {name: self.folders[name] for name in used},
                used,
                out,
                lora=self.merge.lora,
                take_from=self.merge.take_from,
                method=self.merge.method,
                base=self.merge.base,
                extra_files=certify,
                progress=self.progress,
            )
        certificate = Certificate.load(out / NAME)
        return Released(out, certificate, (*report.notes, *_keep_openings(self.folders, certificate, kept)))

    @property
    def _total(self) -> tuple[float, float] | None:
        """What everything released guarantees together, after this."""
        return None if self.entry is None else (self.entry.content["total"]["epsilon"], self.entry.content["total"]["delta"])

    def _card(self, choice: Choice, drawn: str | None) -> str:
        dataset = self.portfolio.models[0].record.dataset
        weights = choice.weights.as_dict()
        return model_card(choice.guarantee, choice.form.rule, weights, dataset, choice.provenance, drawn, self._total)

    def _certificate(self, choice: Choice, drawn: str | None, report: MergeReport, kept: Openings) -> dict[str, Any]:
        ledger = None
        if self.entry is not None and self._total is not None:
            ledger = {"number": self.entry.number, "entry": self.entry.hash}
            ledger |= dict(zip(("epsilon", "delta"), self._total, strict=True))
        return {
            "schema": 1,
            "created": now(),
            "dataset": self.portfolio.models[0].record.dataset,
            "adjacency": self.portfolio.adjacency,
            "rule": choice.form.model_dump(mode="json"),
            "merge": {} if drawn is not None else _merge_form(self.merge, report),
            "provenance": choice.provenance,
            "utilities_source": choice.source,
            "guarantee": guarantee_form(choice.guarantee),
            "records": _records(self.portfolio, choice),
            "inputs": _inputs(report.inputs, choice, kept),
            "drawn": drawn,
            "ledger": ledger,
            "software": software(),
        }


def draw(choice: Choice, scores: Utilities | None) -> str:
    """The model that a selection draws: by the operating system's secure randomness, exactly with the stated odds."""
    odds = list(choice.weights.values)
    if choice.form.rule == "tempered":
        assert choice.form.kappa is not None
        assert scores is not None
        kappa, best = float.fromhex(choice.form.kappa), max(scores.values)
        odds = [odd * math.exp(kappa * (score - best)) for odd, score in zip(odds, scores.values, strict=True)]
    return choice.weights.portfolio.names[secure_draw(odds)]


def _folders(portfolio: Portfolio) -> dict[str, Path]:
    folders = {}
    for model in portfolio.models:
        if model.folder is None:
            raise PortfolioError(f"model {model.name!r} has no folder: load the portfolio from disk to release from it")
        folders[model.name] = model.folder
    return folders


def _check_merge(choice: Choice, merge: Merge) -> None:
    if choice.form.rule == "joint":
        return
    if merge.method is not None:
        raise CertificateError(
            f"the method {merge.method!r} is no weighted average: only joint release covers it (--rule joint)"
        )
    if merge.lora == "exact":
        raise CertificateError(
            "the exact sum of LoRA updates is bilinear in what was trained, so only joint release covers it: use --rule joint, "
            "or average the factors (--lora factors)"
        )


def _check_files(choice: Choice, folders: Mapping[str, Path], merge: Merge) -> None:
    """Everything that headers can tell, before the ledger is charged or a byte is written."""
    used = {model.name: weight for model, weight in choice.weights.used}
    with ExitStack() as stack:
        if choice.form.rule in ("selection", "tempered"):
            for name in used:  # any of them may be drawn, and a draw that cannot be released would tell which
                stack.enter_context(open_model(folders[name], name))
            return
        open_plan(
            stack,
            {name: folders[name] for name in used},
            used,
            lora=merge.lora,
            take_from=merge.take_from,
            method=merge.method,
            base=merge.base,
        )


def _merge_form(merge: Merge, report: MergeReport) -> dict[str, Any]:
    base = None if merge.base is None else dict(report.inputs["base"])
    return {"method": merge.method, "lora": merge.lora, "take_from": merge.take_from, "base": base}


def _records(portfolio: Portfolio, choice: Choice) -> dict[str, Any]:
    involved = {*choice.form.weights, *choice.form.looked_at}
    return {
        model.name: {"sha256": record_digest(model.record), "record": json.loads(model.record.model_dump_json(by_alias=True))}
        for model in portfolio.models
        if model.name in involved
    }


def _inputs(digests: Mapping[str, Mapping[str, str]], choice: Choice, kept: Openings) -> dict[str, Any]:
    """Digests where the guarantee covers the inputs; else commitments, whose openings stay private (docs/theory.md §5)."""
    drawn = choice.form.rule in ("selection", "tempered")
    inputs: dict[str, dict[str, Any]] = {}
    for name, files in digests.items():
        if name == "base":
            continue
        for file, digest in files.items():
            if drawn or choice.guarantee.theorem in _COVERS_INPUTS or choice.form.rule == "joint":
                inputs.setdefault(name, {})[file] = digest
                continue
            public, secret = commit(digest)
            inputs.setdefault(name, {})[file] = {"hash": public.hash, "matrix": public.matrix, "masked": public.masked}
            kept.setdefault(name, {})[file] = {"sha256": digest, "secret": secret}
    return inputs


def _keep_openings(folders: Mapping[str, Path], certificate: Certificate, kept: Openings) -> list[str]:
    """Beside the private models, readable by their owner alone."""
    if not kept:
        return []
    place = next(iter(folders.values())).parent / OPENINGS
    path = place / f"{certificate.sha256}.json"
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(kept, file)
    except OSError as fault:
        return [f"what opens the certificate's commitments to its inputs could not be kept ({path}: {fault.strerror})"]
    return []
