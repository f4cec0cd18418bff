"""A release between its entry in the ledger and its name: what becomes of the entry if it never gets one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dpmerge.errors import BudgetExceeded, DpmergeError, LedgerError
from dpmerge.records import Weights
from dpmerge.release.ledger import Entry, Ledger, Planned
from dpmerge.release.remaining import in_words
from dpmerge.rules import round_up, significant
from dpmerge.tensors import is_proof, new_folder, remove_proof


@dataclass
class Entered:
    """A temporary folder to write into, and the entry that was made before it; `certificates` is for whoever writes."""

    folder: Path
    entry: Entry | None
    notes: list[str]
    drawn: tuple[str, ...]
    certificates: list[str] = field(default_factory=list)


@contextmanager
def entered(ledger: Ledger | None, planned: Planned, weights: Weights, out: Path) -> Iterator[Entered]:
    """Enter a release, yield the folder that becomes `out`, and complete the entry when it has.

    If it never does, nothing was released, and the entry is voided. Either way the error says what was spent.
    """
    if ledger is None:
        with new_folder(out) as folder:
            yield Entered(folder, None, [], planned.drawn)
        return
    notes = ledger.recover()  # first: it looks at what interrupted releases left
    entry: Entry | None = None
    temporary = Path()
    try:
        with new_folder(out, proof=True) as folder:
            temporary = folder.resolve()
            entry = _enter(ledger, replace(planned, temporary=str(temporary)), weights)
            drawn = tuple(entry.content["names"][name] for name in entry.content.get("drawn", ()))
            made = Entered(folder, entry, notes, drawn)
            yield made
        notes += ledger.complete(entry, made.certificates)
    except BaseException as fault:
        if entry is None:
            remove_proof(temporary)
            raise
        told = _what_was_spent(ledger, entry, temporary)
        if isinstance(fault, DpmergeError):
            raise type(fault)(f"{fault}; {told}") from fault
        fault.add_note(told)
        raise


def _enter(ledger: Ledger, planned: Planned, weights: Weights) -> Entry:
    """The entry; a refusal says what would still fit."""
    try:
        return ledger.enter(planned)
    except BudgetExceeded as refusal:
        raise BudgetExceeded(f"{refusal}; {in_words(ledger, planned.portfolio, weights, planned.dependent)}") from None


def _what_was_spent(ledger: Ledger, entry: Entry, temporary: Path) -> str:
    """Void the entry of a release that failed, where its folder still has its temporary name; and say so."""
    where = f"entry {entry.number} of {ledger.name}"
    if not is_proof(temporary):
        total = entry.content["total"]
        spent = f"({round_up(total['epsilon'])}, {significant(total['delta'])})-DP"
        return f"{where} stands, for the release may have been seen: all releases together are {spent}"
    try:
        ledger.void_unseen(entry, "it failed before its folder got its name")
    except LedgerError as fault:
        return f"nothing was released, but {where} could not be voided ({fault}); it counts until the next release voids it"
    remove_proof(temporary)
    return f"nothing was released; {where} was voided, and nothing was spent"
