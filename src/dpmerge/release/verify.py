"""Recheck a release from its files alone, and from the private portfolio if it is there. Any change anywhere is named.

A certificate is data from elsewhere: nothing in it is taken for true, no path in it is followed, no code it names is run. Only
regular files of the folder are read, no more of them than `bounds` allows, and the guarantee is given so much memory and time.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dpmerge.cache import without_cache
from dpmerge.errors import (
    CertificateError,
    CheckpointError,
    DpmergeError,
    GridTooLarge,
    LedgerError,
    SignatureError,
    TakesTooLong,
)
from dpmerge.files import sha256
from dpmerge.profiles import effort_of_at_most, grids_of_accuracy, without_closed_forms
from dpmerge.records import ApproxDp, DpSgd, Mechanism, Portfolio, Rdp, looks_like
from dpmerge.release.bounds import MOST_BYTES, MOST_MODEL_BYTES, MOST_POINTS, MOST_SECONDS
from dpmerge.release.card import model_card
from dpmerge.release.certificate import CARD, NAME, Certificate, GuaranteeForm
from dpmerge.release.coverage import granted, left_out
from dpmerge.release.entries import became, standing
from dpmerge.release.joining import RECORD, record_of
from dpmerge.release.ledger import Ledger
from dpmerge.release.readme import certified_section
from dpmerge.release.recheck import Recheck, Verdict
from dpmerge.release.renoise import check_rounding
from dpmerge.release.signing import signed_by
from dpmerge.release.uncovered import elsewhere, uncovered
from dpmerge.rules import THEOREMS, Guarantee, Rule, round_up, significant
from dpmerge.tensors import LFS_POINTER, file_inside, read_inside

_SAME = 1e-6  # what processors may differ by on the same path
# How much two grids may differ, relatively and near 0; an (ε, δ) pair has its loss at two points, which a grid rounds up.
_CLOSE, _CLOSE_PAIRS, _BESIDE_ZERO = 1e-4, 1e-2, 1e-6


def verify(
    folder: Path,
    *,
    portfolio: Portfolio | None = None,
    ledger: Ledger | None = None,
    trust: str | None = None,
    base: Path | None = None,
    method: str | None = None,
    strict: bool = False,
    seconds: float = MOST_SECONDS,
) -> Verdict:
    """Recheck the release in `folder`: hashes, signature, guarantee by a second path, and with the portfolio the tensors.

    Files that the certificate does not cover are listed; with `strict`, or where a loader could take one for part of the model,
    the release does not hold. `base` is the folder of the public base model, and `method` the user's own function, that the
    merge was made with. The guarantee is computed for `seconds` at most.
    """
    verdict = Verdict()
    path = folder / NAME
    try:
        path.lstat()
    except OSError as fault:
        seen = looks_like(folder) if fault.errno in (errno.ENOENT, errno.ENOTDIR) else ""
        why = f"{folder} is {seen}" if seen else f"{folder}: no such folder" if not folder.exists() else fault.strerror
        verdict.unchecked.append(f"{path}: there is no certificate to check ({why})")
        return verdict
    try:
        content = read_inside(folder, NAME, MOST_BYTES)
    except CheckpointError as fault:
        verdict.unchecked.append(f"there is no certificate to check ({fault})")
        return verdict
    try:
        certificate = Certificate.parse(content, str(path))
    except CertificateError as fault:
        verdict.broken.append(str(fault))
        return verdict
    faults = certificate.faults()
    if not faults and certificate.file() != content:
        hint = _by_git(path, sha256(certificate.file()))
        faults.append(f"{NAME} was edited: it says the same, but not in the bytes that were written{hint}")
    verdict.note(faults, "the certificate has the hash it states")
    _check_signature(certificate, trust, verdict)
    readable = _check_outputs(folder, certificate, strict, verdict)
    _check_guarantee(certificate, seconds, verdict)
    _check_card(folder, certificate, verdict)
    _check_record(certificate, verdict)
    if certificate.rule.renoised is not None and readable:
        check_rounding(folder, certificate, verdict)
    if portfolio is None and certificate.rule.noise is not None:
        secret = "its key was thrown away" if certificate.parent else "only the private portfolio has its secret"
        verdict.warnings.append(
            f"that noise of standard deviation {certificate.rule.deviation:.6g} was added was not checked: {secret}"
        )
    if portfolio is not None and readable:
        Recheck(folder, certificate, portfolio, base, method, verdict).run()
    if ledger is not None:
        _check_ledger(certificate, ledger, verdict)
    verdict.left_out += left_out(certificate, with_portfolio=portfolio is not None, with_ledger=ledger is not None, trust=trust)
    return verdict


# --- from the folder alone ----------------------------------------------------------------------------------------------------


def _check_signature(certificate: Certificate, trust: str | None, verdict: Verdict) -> None:
    signature = certificate.signature
    if signature is None:
        if trust is not None:
            verdict.broken.append("the certificate is not signed")
        return
    try:
        if not signed_by(signature.key, signature.value, certificate.content()):
            verdict.broken.append("the signature is not that of the key stated")
        elif trust is None:
            verdict.holds.append(
                f"the certificate was signed with the key {signature.key[:16]}…; give a key to trust to learn whose that is"
            )
        elif signature.key != trust:
            verdict.broken.append("the certificate was signed with another key than the one trusted")
        else:
            verdict.holds.append("the certificate was signed with the trusted key")
    except SignatureError as fault:
        verdict.unchecked.append(str(fault))


def _check_outputs(folder: Path, certificate: Certificate, strict: bool, verdict: Verdict) -> bool:
    """Every file certified is there and the same, and nothing else is there that a loader would take.

    Whether all of them are regular files in the folder: else nothing else is read of it.
    """
    faults, unreadable = [], []
    for name, digest in certificate.outputs.items():
        try:
            path = file_inside(folder, name, str(folder))
            if path.stat().st_size > MOST_MODEL_BYTES:
                raise CheckpointError(f"{folder}: {name} is larger than {MOST_MODEL_BYTES:,} bytes")
        except CheckpointError as fault:
            unreadable.append(str(fault).removeprefix(f"{folder}: "))
            continue
        if verdict.digest(path) not in (digest, None):
            faults.append(f"{name} was changed: it does not have the hash certified{_by_git(path, digest)}")
    covered = {NAME, CARD, *certificate.outputs}
    more, warnings, verdict.uncovered = uncovered(folder, covered)
    faults_of_config, warnings_of_config = elsewhere(folder, covered)
    if strict:
        more += [f"{name} is not part of what was certified" for name in verdict.uncovered]
    verdict.warnings += warnings + warnings_of_config
    faults += unreadable + faults_of_config + more
    verdict.note(faults, f"all {len(certificate.outputs)} files have the hashes certified")
    return not unreadable


def _by_git(path: Path, digest: str) -> str:
    """A hint where git has turned the line ends of a text into those of its system, or left a pointer in a file's place."""
    if path.stat().st_size > MOST_BYTES:
        return ""
    found = path.read_bytes()
    if found.startswith(LFS_POINTER):
        return "; it is a pointer of Git LFS in the file's place; git lfs pull fetches the file"
    if sha256(found.replace(b"\r\n", b"\n")) != digest:
        return ""
    return "; only its line ends were converted (git's core.autocrlf does that: turn it off, and check it out again)"


def _check_guarantee(certificate: Certificate, seconds: float, verdict: Verdict) -> None:
    """Twice from the certified records and weights, without the cache: as it was computed, and by another path."""
    stated, question = certificate.guarantee, certificate.numerics
    try:
        with without_cache(), effort_of_at_most(MOST_POINTS, seconds):
            rule = certificate.rule.build(certificate.portfolio())
            again = question.answer(rule, stated.epsilon, stated.delta)
            second = _second_path(certificate, rule)
    except (TakesTooLong, GridTooLarge) as fault:
        verdict.unchecked.append(f"the guarantee was not computed again: {fault}")
        return
    except MemoryError:
        verdict.unchecked.append("the guarantee was not computed again: there is not enough memory")
        return
    except DpmergeError as fault:
        verdict.broken.append(f"no guarantee follows from what is certified: {fault}")
        return
    except Exception as fault:  # malformed numbers may raise any error
        verdict.broken.append(f"no guarantee can be computed from what is certified: {type(fault).__name__}: {fault}")
        return
    if not math.isfinite(again.epsilon):
        verdict.broken.append("no guarantee follows from what is certified: its ε is infinite")
        return
    computed = GuaranteeForm.of(again)
    faults = [
        f"the guarantee's {name} is certified as {getattr(stated, name)!r}; it is {getattr(computed, name)!r}"
        for name in GuaranteeForm.model_fields
        if not _same(getattr(stated, name), getattr(computed, name)) and (name != "warnings" or stated.warnings)
    ]
    verdict.warnings += again.warnings  # also where the certificate is older than they are
    how = "by Rényi divergences, the only path there is" if second is None else _in_words(certificate, second)
    if second is not None and (second.epsilon > _with_tolerance(certificate) or second.delta > stated.delta * (1 + _SAME)):
        faults.append(f"a second path gives {_pair(second)} from loss distributions on finer grids, more than is certified")
    if verdict.note(faults, f"the guarantee follows again{',' if second is None else ';'} {how}"):
        verdict.certified, verdict.assumptions = replace(again, warnings=()).claim, [*again.assumptions]
        verdict.epsilon, verdict.delta, verdict.standing = stated.epsilon, stated.delta, stated.standing
        verdict.granted = [*granted(certificate.rule)]


def _in_words(certificate: Certificate, second: Guarantee) -> str:
    """How a second path that does not contradict the certified number compares with it."""
    stated = certificate.guarantee
    path = "a second path, from loss distributions on grids of its own,"
    if second.epsilon <= stated.epsilon * (1 + _SAME):
        return f"{path} confirms the certified {_pair(stated)}: it gives {_pair(second)}"
    return (
        f"{path} is coarser here and gives {_pair(second)}; grids round up, so that is no contradiction: what is certified is "
        f"{_pair(stated)}, and it stands, within the tolerance of {100 * _tolerance(certificate):g} % that grids are allowed"
    )


def _pair(of: Guarantee | GuaranteeForm) -> str:
    return f"({round_up(of.epsilon)}, {significant(of.delta)})"


def _second_path(certificate: Certificate, rule: Rule) -> Guarantee | None:
    """From loss distributions on finer grids, also where Rényi divergences or a closed form were used before.

    Asked for δ at the certified ε, where grids are most precise, and if that is too much, at the ε that grids are allowed; the
    constants of a combination's bound depend on δ, so it is asked what it was asked before. Where only Rényi divergences are
    known there is no second path.
    """
    stated = certificate.guarantee
    if stated.by == "rdp" and any(
        _only_renyi(mechanism) for form in certificate.records.values() for mechanism in form.record.lineage
    ):
        return None
    with grids_of_accuracy(1e-6), without_closed_forms():
        if certificate.rule.rule == "combination" and certificate.numerics.solved_for == "epsilon":
            return rule.guarantee(delta=stated.delta, by="pld")
        found = rule.guarantee(epsilon=stated.epsilon, by="pld")
        if found.delta <= stated.delta * (1 + _SAME):
            return found
        return rule.guarantee(epsilon=_with_tolerance(certificate), by="pld")


def _with_tolerance(certificate: Certificate) -> float:
    """The ε certified, and what grids may add to it."""
    return certificate.guarantee.epsilon * (1 + _tolerance(certificate)) + _BESIDE_ZERO


def _tolerance(certificate: Certificate) -> float:
    pairs = any(isinstance(form.record.mechanism, ApproxDp) for form in certificate.records.values())
    return _CLOSE_PAIRS if pairs else _CLOSE


def _only_renyi(mechanism: Mechanism) -> bool:
    """Whether no loss distribution is known."""
    sampled = [phase.sampling for phase in mechanism.settings()] if isinstance(mechanism, DpSgd) else []
    return isinstance(mechanism, Rdp) or any(one.scheme == "fixed-size" for one in sampled)


def _same(one: object, other: object) -> bool:
    """Equal, with floats up to what processors may differ by."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_SAME)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


def _check_card(folder: Path, certificate: Certificate, verdict: Verdict) -> None:
    """The certified section of the model card, or the whole of an older one, says what the certificate says."""
    if certificate.guarantee.theorem not in THEOREMS:
        verdict.broken.append(f"{CARD} does not say what is certified")
        return
    section = model_card(certificate)
    if not (folder / CARD).exists():
        verdict.broken.append(f"{CARD}, which shows what is certified, is missing")
        return
    try:
        text = read_inside(folder, CARD, MOST_BYTES)
        if certificate.card is None:
            faults = [] if text == section.encode() else [f"{CARD} does not say what is certified"]
            verdict.note(faults, f"{CARD} says what is certified")
            return
        same = certified_section(text.decode("utf-8")) == section and sha256(section.encode()) == certificate.card
    except CheckpointError as fault:
        verdict.broken.append(f"{CARD}, whose section is certified, cannot be read: {fault}")
    except (UnicodeDecodeError, CertificateError) as fault:
        verdict.broken.append(f"{CARD} does not show what is certified: {fault}")
    else:
        faults = [] if same else [f"the certified section of {CARD} does not say what is certified"]
        verdict.note(faults, f"the certified section of {CARD} says what is certified; the text around it is not certified")


def _check_record(certificate: Certificate, verdict: Verdict) -> None:
    """The record by which a release joins a portfolio says what the certificate says."""
    if RECORD in certificate.outputs:
        record = record_of(certificate)
        same = record is not None and sha256(record) == certificate.outputs[RECORD]
        verdict.note([] if same else [f"{RECORD} does not say what is certified"], f"{RECORD} says what is certified")


# --- with the ledger ----------------------------------------------------------------------------------------------------------


def _check_ledger(certificate: Certificate, ledger: Ledger, verdict: Verdict) -> None:
    """The entry certified is there, says the same total, and was completed with this certificate."""
    stated = certificate.ledger
    if stated is None:
        verdict.broken.append("the certificate names no entry in a ledger")
        return
    entries, where = ledger.history(), f"entry {stated.number} of the ledger"
    entry = next((one for one in entries if one.number == stated.number), None)
    if entry is None:
        ends = f"it ends with entry {len(entries)}"
        verdict.broken.append(f"{where} is not there: {ends}. It is a restored backup, or another one")
        return
    if entry.kind != "release" or entry.hash != stated.entry:
        verdict.broken.append(f"{where} is not the one certified: it was edited, replaced or deleted")
        return
    if not became(entries, entry, "completed"):
        try:
            verdict.warnings += ledger.adopt()
        except LedgerError as fault:
            verdict.warnings.append(f"{where} was not completed, and could not be: {fault}")
        entries = ledger.history()
    completed = became(entries, entry, "completed")
    certified = stated.model_dump(include={"epsilon", "delta", "theorem"}, exclude_none=True)
    if entry not in standing(entries):
        reason = became(entries, entry, "voided")[-1]["reason"]
        verdict.broken.append(f"{where} was voided, so nothing counts this release: {reason}")
    elif not certified.items() <= entry.content["total"].items():
        verdict.broken.append(f"{where} has another total than the one certified")
    elif not completed:
        verdict.unchecked.append(
            f"{where} was never completed: it does not say which certificate is its own. If this release was moved, put it "
            f"back to {entry.content['out']} and check it there: then the entry is completed"
        )
    elif certificate.sha256 not in completed[0]["certificates"]:
        verdict.broken.append(f"{where} was completed with another certificate")
    else:
        how = ", which was found at its output after it was interrupted" if completed[0].get("adopted") else ""
        verdict.holds.append(f"{where} is the one certified, and was completed with this certificate{how}")
