"""What became of a release that was interrupted: whether it is out, may be out, or never was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from dpmerge.errors import CertificateError, LedgerError
from dpmerge.release.certificate import NAME, Certificate
from dpmerge.release.entries import Entry
from dpmerge.release.processes import can_be_seen, maker_gone, still_runs

State = Literal["under way", "elsewhere", "out", "interrupted"]


def state_of(entry: Entry) -> State:
    """Of a release that is neither completed, recovered nor voided; `elsewhere` if its maker cannot be seen from here."""
    by = entry.content["by"]
    with maker_gone(entry.content) as gone:
        if gone is False or (gone is None and can_be_seen(by) and still_runs(by)):
            return "under way"
    if certificates_at(entry):
        return "out"
    return "elsewhere" if gone is None and still_runs(by) else "interrupted"


def adoptable(entries: Sequence[Entry]) -> dict[int, list[str]]:
    """By entry, the hashes of the certificates of releases that are out, and of which the ledger does not say so.

    Also of entries that were voided: a release that is there counts, whatever was said of it. A maker that is seen to run will
    say so itself.
    """
    completed = {entry.content["of"] for entry in entries if entry.kind == "completed"}
    found = {}
    for entry in entries:
        if entry.kind == "release" and entry.number not in completed and os.path.lexists(entry.content["out"]):
            by = entry.content["by"]
            if not (can_be_seen(by) and still_runs(by)) and (certificates := certificates_at(entry)):
                found[entry.number] = certificates
    return found


def certificates_at(entry: Entry) -> list[str]:
    """The hashes of the certificates at its output, if each is whole and names this entry by its hash; else none."""
    found = list(_certificates(entry))
    named = all(one.ledger is not None and one.ledger.entry == entry.hash and not one.faults() for one in found)
    return [one.sha256 for one in found] if named and len(found) == len(entry.content["forms"]) else []


def output_at(entry: Entry) -> Literal["present", "absent"]:
    """Whether something is where its output would be; another release's folder is not it."""
    others = [one.ledger for one in _certificates(entry)]
    is_another = bool(others) and all(one is not None and one.entry != entry.hash for one in others)
    return "present" if os.path.lexists(entry.content["out"]) and not is_another else "absent"


def _certificates(entry: Entry) -> Iterator[Certificate]:
    """What can be read there; coupled draws have a folder each."""
    out = Path(entry.content["out"])
    with contextlib.suppress(OSError):
        for path in [out / NAME] if (out / NAME).exists() else sorted(out.glob(f"*/{NAME}")):
            with contextlib.suppress(OSError, CertificateError):
                yield Certificate.parse(path.read_bytes(), str(path))


def require_unseen(entries: Sequence[Entry], entry: Entry, machine_is_gone: bool) -> None:
    """Refuse to void what was seen, or may still be."""
    became = {one.kind: one.content for one in entries if one.content.get("of") == entry.number}
    by = entry.content["by"]
    with maker_gone(entry.content) as gone:
        runs, certain = gone is False or (gone is None and still_runs(by)), gone is False or can_be_seen(by)
    maker = f"process {by['pid']} on {by['host']}"
    faults = {
        "was voided already": "voided" in became,
        "was completed: its release is out, and it counts": "completed" in became,
        "left its output, which was there when it was recovered: it counts": became.get("recovered", {}).get("output")
        == "present",
        f"has its output at {entry.content['out']}: it counts": output_at(entry) == "present",
        f"is still under way ({maker}): end it first": not became and runs and certain,
        f"is still under way, as far as can be known here ({maker}): end it first, there; if that machine or container is "
        "gone for good, say so (machine_is_gone)": not became and runs and not (certain or machine_is_gone),
    }
    for fault, holds in faults.items():
        if holds:
            raise LedgerError(f"entry {entry.number} {fault}")
