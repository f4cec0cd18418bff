"""The release itself: decide, check everything, enter it in the ledger, draw or merge, certify. Files appear whole, last."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmerge.checkpoints import MergeReport, copy_model, merge_models, open_model
from dpmerge.checkpoints.folder import require_absent
from dpmerge.checkpoints.merge import open_plan
from dpmerge.checkpoints.plan import LoraForm
from dpmerge.errors import CertificateError, PortfolioError
from dpmerge.records import Portfolio
from dpmerge.release.canonical import sha256
from dpmerge.release.card import model_card
from dpmerge.release.certificate import CARD, NAME, Certificate, guarantee_form, now, record_digest, seal, software
from dpmerge.release.choice import Choice
from dpmerge.release.commitment import commit
from dpmerge.release.ledger import Entry, Ledger, Planned
from dpmerge.release.signing import Signer
from dpmerge.weights import Utilities
from dpmerge.weights.draw import secure_draw

OPENINGS = ".dpmerge/openings"
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


@dataclass
class _Secrets:
    """What opens the certificate's commitments; stays with the private portfolio."""

    openings: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)


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
    exposure = choice.form.exposure(portfolio, dependent)
    notes = [] if ledger is None else ledger.recover()
    entry = None
    if ledger is not None:
        entry = ledger.enter(Planned(choice.form, portfolio, exposure, choice.guarantee, str(out.resolve())))
    drawn = draw(choice, scores) if choice.form.rule in ("selection", "tempered") else None
    return _written(portfolio, choice, out, folders, merge, drawn, ledger, entry, signer, notes, progress)


def _written(
    portfolio: Portfolio,
    choice: Choice,
    out: Path,
    folders: Mapping[str, Path],
    merge: Merge,
    drawn: str | None,
    ledger: Ledger | None,
    entry: Entry | None,
    signer: Signer | None,
    notes: list[str],
    progress: Callable[[int, int], None] | None,
) -> Released:
    kept = _Secrets()

    def certify(folder: Path, report: MergeReport) -> None:
        total = None if entry is None else (entry.content["total"]["epsilon"], entry.content["total"]["delta"])
        said = [] if drawn is None else [f"The model drawn was `{drawn}`."]
        dataset = portfolio.models[0].record.dataset
        card = model_card(
            choice.guarantee, choice.form.rule, choice.weights.as_dict(), dataset, choice.provenance, said, total
        ).encode()
        (folder / CARD).write_bytes(card)
        content = {
            "schema": 1,
            "created": now(),
            "dataset": dataset,
            "adjacency": portfolio.adjacency,
            "rule": choice.form.model_dump(mode="json"),
            "merge": _merge_form(choice, merge, report),
            "provenance": choice.provenance,
            "utilities_source": choice.source,
            "guarantee": guarantee_form(choice.guarantee),
            "records": _records(portfolio, choice),
            "inputs": _inputs(report.inputs, choice, kept),
            "outputs": {**report.outputs, CARD: sha256(card)},
            "drawn": drawn,
            "ledger": None
            if entry is None or total is None
            else {"number": entry.number, "entry": entry.hash, "epsilon": total[0], "delta": total[1]},
            "software": software(),
        }
        (folder / NAME).write_bytes(seal(content, signer))

    if drawn is not None:
        report = copy_model(folders[drawn], out, name=drawn, extra_files=certify)
    else:
        used = {model.name: weight for model, weight in choice.weights.used}
        report = merge_models(
            {name: folders[name] for name in used},
            used,
            out,
            lora=merge.lora,
            take_from=merge.take_from,
            method=merge.method,
            base=merge.base,
            extra_files=certify,
            progress=progress,
        )
    certificate = Certificate.load(out / NAME)
    if ledger is not None and entry is not None:
        ledger.complete(entry, certificate.sha256)
    told = [*notes, *report.notes, *_keep_openings(folders, certificate, kept)]
    return Released(out, certificate, tuple(told))


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


def _merge_form(choice: Choice, merge: Merge, report: MergeReport) -> dict[str, Any]:
    if choice.form.rule in ("selection", "tempered"):
        return {"method": None, "lora": None, "take_from": None, "base": None}
    return {
        "method": merge.method,
        "lora": merge.lora,
        "take_from": merge.take_from,
        "base": None if merge.base is None else dict(report.inputs["base"]),
    }


def _records(portfolio: Portfolio, choice: Choice) -> dict[str, Any]:
    involved = {*choice.form.weights, *choice.form.looked_at}
    return {
        model.name: {"sha256": record_digest(model.record), "record": json.loads(model.record.model_dump_json(by_alias=True))}
        for model in portfolio.models
        if model.name in involved
    }


def _inputs(digests: Mapping[str, Mapping[str, str]], choice: Choice, kept: _Secrets) -> dict[str, Any]:
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
            kept.openings.setdefault(name, {})[file] = {"sha256": digest, "secret": secret}
    return inputs


def _keep_openings(folders: Mapping[str, Path], certificate: Certificate, kept: _Secrets) -> list[str]:
    """Beside the private models, readable by their owner alone."""
    if not kept.openings:
        return []
    place = next(iter(folders.values())).parent / OPENINGS
    path = place / f"{certificate.sha256}.json"
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(kept.openings, file)
    except OSError as fault:
        return [f"what opens the certificate's commitments to its inputs could not be kept ({path}: {fault.strerror})"]
    return []
