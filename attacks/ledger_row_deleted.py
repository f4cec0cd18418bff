"""A row of the ledger is deleted, so that a release was never made."""

from __future__ import annotations

from pathlib import Path

from attacks.ledger_victim import Rows, ledger_with_releases, rechained
from attacks.victim import dpmerge, stopped


def without_first(rows: Rows) -> Rows:
    """Entries 1 and 2: the first release and its completion."""
    return rows[2:]


def without_last(rows: Rows) -> Rows:
    """Everything after the first two entries."""
    return rows[:2]


def attack(folder: Path) -> str:
    """At the beginning and at the end; then with numbers and hashes of the rest computed again."""
    ledger = ledger_with_releases(folder)
    for deletion, complaint in ((without_first, "entry 1 is missing"), (without_last, "entry 3 is missing")):
        ledger.rewrite(deletion)
        stopped(dpmerge("ledger", "show", ledger.path), complaint, code=2)
        stopped(ledger.another_release(), "tampered with", code=2)
        ledger.restore()
    ledger.rewrite(without_last, chain=rechained)
    stopped(dpmerge("ledger", "show", ledger.path), "was made in", code=2)
    ledger.forget()
    assert dpmerge("ledger", "show", ledger.path).code == 0, "a chain that was computed again holds by itself"
    stopped(ledger.recheck("second"), "entry 3 of the ledger is not there: it ends with entry 2")
    return "entries are numbered, and the ledger knows how many there are; certificates know their entry's hash"
