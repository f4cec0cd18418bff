"""Recheck a release from its files alone, and from the private portfolio if it is there. Any change anywhere is named."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpmerge.cache import without_cache
from dpmerge.checkpoints import verify_combination
from dpmerge.errors import CertificateError, DpmergeError
from dpmerge.profiles.precision import grids_of_accuracy
from dpmerge.records import Portfolio
from dpmerge.release.card import model_card
from dpmerge.release.certificate import CARD, NAME, Certificate, CommitmentForm, GuaranteeForm, guarantee_form, record_digest
from dpmerge.release.ledger import Ledger
from dpmerge.release.release import OPENINGS
from dpmerge.rules import Guarantee, Rule
from dpmerge.rules.guarantee import round_up

# A second path may differ by its grid; a claim below it by more than this is no rounding.
_TOLERANCE = 1e-6


@dataclass
class Verdict:
    """What was checked and holds, what does not, and what could not be checked."""

    holds: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """0: holds, 1: does not, 2: could not be checked."""
        return 1 if self.broken else 2 if self.unchecked else 0

    def note(self, faults: list[str], holds: str) -> bool:
        """Add the faults, or what holds if there are none."""
        self.broken += faults
        if not faults:
            self.holds.append(holds)
        return not faults


def verify(
    folder: Path,
    *,
    portfolio: Portfolio | None = None,
    ledger: Ledger | None = None,
    trust: str | None = None,
    base: Path | None = None,
) -> Verdict:
    """Recheck the release in `folder`: hashes, signature, guarantee by a second path, and with the portfolio the tensors."""
    verdict = Verdict()
    path = folder / NAME
    if not path.is_file():
        verdict.unchecked.append(f"{path}: there is no certificate to check")
        return verdict
    try:
        certificate = Certificate.load(path)
    except CertificateError as fault:
        verdict.broken.append(str(fault))
        return verdict
    verdict.note(certificate.faults(), "the certificate has the hash it states")
    _check_signature(certificate, trust, verdict)
    _check_outputs(folder, certificate, verdict)
    with without_cache():
        _check_guarantee(certificate, verdict)
    _check_card(folder, certificate, verdict)
    if portfolio is not None:
        _check_portfolio(folder, certificate, portfolio, base, verdict)
    if ledger is not None:
        _check_ledger(certificate, ledger, verdict)
    return verdict


def _check_signature(certificate: Certificate, trust: str | None, verdict: Verdict) -> None:
    if trust is None:
        return
    if certificate.signature is None:
        verdict.broken.append("the certificate is not signed")
    elif certificate.signature.key != trust:
        verdict.broken.append("the certificate was signed with another key than the one trusted")
    elif not verdict.broken:
        verdict.holds.append("the certificate was signed with the trusted key")


def _check_outputs(folder: Path, certificate: Certificate, verdict: Verdict) -> None:
    faults = []
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()} - {NAME}
    for name, digest in certificate.outputs.items():
        if name not in there:
            faults.append(f"{name} is missing")
        elif _digest(folder / name) != digest:
            faults.append(f"{name} was changed: it does not have the hash certified")
    faults += [f"{name} is not part of what was certified" for name in sorted(there - set(certificate.outputs))]
    verdict.note(faults, f"all {len(certificate.outputs)} files have the hashes certified")


def _check_guarantee(certificate: Certificate, verdict: Verdict) -> None:
    """Twice from the certified records and weights: as it was computed, and on a much finer grid."""
    stated = certificate.guarantee
    try:
        rule = certificate.rule.build(certificate.portfolio())
        again = _asked_again(rule, stated)
        with grids_of_accuracy(1e-6):
            finer = _asked_again(rule, stated)
    except DpmergeError as fault:
        verdict.broken.append(f"no guarantee follows from what is certified: {fault}")
        return
    computed = GuaranteeForm.model_validate_json(json.dumps(guarantee_form(again)))
    faults = [
        f"the guarantee's {name} is certified as {getattr(stated, name)!r}; it is {getattr(computed, name)!r}"
        for name in GuaranteeForm.model_fields
        if not _same(getattr(stated, name), getattr(computed, name))
    ]
    if finer.epsilon > stated.epsilon * (1 + _TOLERANCE) or finer.delta > stated.delta * (1 + _TOLERANCE):
        faults.append(f"a second path gives ε = {round_up(finer.epsilon)} at δ = {finer.delta:g}, more than is certified")
    verdict.note(faults, f"the guarantee follows again, and by a second path (ε = {round_up(finer.epsilon)} on a finer grid)")


def _asked_again(rule: Rule, stated: GuaranteeForm) -> Guarantee:
    """The question that was answered: ε at δ, or on the edge of a target δ at ε."""
    conversion = stated.conversion or "tight"
    found = rule.guarantee(delta=stated.delta, by=stated.by, conversion=conversion)
    if _same(found.epsilon, stated.epsilon):
        return found
    edge = rule.guarantee(epsilon=stated.epsilon, by=stated.by, conversion=conversion)
    return edge if _same(edge.delta, stated.delta) or edge.delta <= stated.delta else found


def _same(one: object, other: object) -> bool:
    """Equal, with floats up to what processors may differ by."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _check_card(folder: Path, certificate: Certificate, verdict: Verdict) -> None:
    """The model card says what the certificate says."""
    stated = certificate.guarantee
    weights = {name: float.fromhex(value) for name, value in certificate.rule.weights.items()}
    guarantee = Guarantee(
        stated.epsilon,
        stated.delta,
        certificate.adjacency,
        stated.theorem,
        tuple(stated.assumptions),
        stated.standing,
        stated.by,
        certificate.rule.rule,
        weights,
    )
    total = None if certificate.ledger is None else (certificate.ledger.epsilon, certificate.ledger.delta)
    try:
        card = model_card(
            guarantee, certificate.rule.rule, weights, certificate.dataset, certificate.provenance, certificate.drawn, total
        )
        same = (folder / CARD).read_text(encoding="utf-8") == card
    except (OSError, UnicodeDecodeError, KeyError):
        same = False
    verdict.note([] if same else [f"{CARD} does not say what is certified"], f"{CARD} says what is certified")


def _check_portfolio(folder: Path, certificate: Certificate, portfolio: Portfolio, base: Path | None, verdict: Verdict) -> None:
    known = {model.name: model for model in portfolio.models}
    faults = []
    for name, form in certificate.records.items():
        if name not in known:
            verdict.unchecked.append(f"model {name!r} is not in the portfolio")
        elif record_digest(known[name].record) != form.sha256:
            faults.append(f"the record of model {name!r} is not the one certified")
    if certificate.rule.looked_at and set(certificate.rule.looked_at) != set(known):
        faults.append("the portfolio has other models than those certified as looked at")
    if not verdict.note(faults, "the records are those of the portfolio") or verdict.unchecked:
        return
    folders = {name: model.folder for name, model in known.items() if model.folder is not None}
    _check_inputs(certificate, folders, verdict)
    weights = {name: float.fromhex(value) for name, value in certificate.rule.weights.items()}
    if certificate.drawn is not None:
        if certificate.drawn not in weights:
            verdict.broken.append(f"the model drawn, {certificate.drawn!r}, has no weight")
            return
        weights = {certificate.drawn: 1.0}
    ordered = {name: weights[name] for name in portfolio.names if name in weights}
    if certificate.merge.base is not None and base is None:
        verdict.unchecked.append("the merge has a base model: give its folder with --base")
        return
    try:
        found = verify_combination(
            {name: folders[name] for name in ordered},
            ordered,
            folder,
            lora=certificate.merge.lora or "factors",
            take_from=certificate.merge.take_from,
            method=certificate.merge.method,
            base=base if certificate.merge.base is not None else None,
        )
    except DpmergeError as fault:
        verdict.broken.append(f"the merge cannot be computed again: {fault}")
        return
    what = "the drawn model" if certificate.drawn is not None else "the stated combination"
    verdict.note([str(one) for one in found], f"the tensors are {what}, bit for bit")


def _check_inputs(certificate: Certificate, folders: Mapping[str, Path], verdict: Verdict) -> None:
    openings: dict[str, dict[str, dict[str, str]]] = {}
    if folders:
        path = next(iter(folders.values())).parent / OPENINGS / f"{certificate.sha256}.json"
        try:
            openings = json.loads(path.read_text())
        except (OSError, ValueError):
            openings = {}
    faults, unopened = [], 0
    for name, files in certificate.inputs.items():
        for file, stated in files.items():
            path = folders[name] / file
            if Path(file).name != file or not path.is_file():
                faults.append(f"model {name!r}: {file} is not in the portfolio")
                continue
            digest = _digest(path)
            if isinstance(stated, CommitmentForm):
                secret = openings.get(name, {}).get(file, {}).get("secret")
                if secret is None:
                    unopened += 1
                elif not stated.opens(secret, digest):
                    faults.append(f"model {name!r}: {file} is not the file that was committed to")
            elif digest != stated:
                faults.append(f"model {name!r}: {file} was changed since the release")
    holds = "the input files are those certified"
    if unopened:
        holds += f" ({unopened} commitments could not be opened: what opens them is not in the portfolio)"
    verdict.note(faults, holds)


def _check_ledger(certificate: Certificate, ledger: Ledger, verdict: Verdict) -> None:
    if certificate.ledger is None:
        verdict.broken.append("the certificate names no entry in a ledger")
        return
    entries = ledger.history()
    number = certificate.ledger.number
    if number > len(entries) or entries[number - 1].hash != certificate.ledger.entry:
        verdict.broken.append(f"entry {number} of the ledger is not the one certified: it was edited, replaced or deleted")
        return
    verdict.holds.append(f"entry {number} of the ledger is the one certified")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
