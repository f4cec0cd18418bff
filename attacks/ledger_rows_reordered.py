"""Two rows of the ledger change places."""

from __future__ import annotations

from pathlib import Path

from attacks.ledger_victim import Rows, ledger_with_releases, rechained
from attacks.victim import dpmerge, stopped


def exchanged(rows: Rows) -> Rows:
    """The two releases, each with its completion."""
    return [(number, rows[place][1]) for number, place in enumerate((2, 1, 0, 3), start=1)]


def attack(folder: Path) -> str:
    """Plainly; then with every hash of the chain computed again."""
    ledger = ledger_with_releases(folder)
    ledger.rewrite(exchanged)
    stopped(dpmerge("ledger", "show", ledger.path), "entry 1 was edited", code=2)
    stopped(ledger.another_release(), "tampered with", code=2)
    ledger.restore()
    ledger.rewrite(exchanged, chain=rechained)
    stopped(dpmerge("ledger", "show", ledger.path), "was made in", code=2)
    ledger.forget()
    stopped(ledger.recheck(), "entry 1 of the ledger is not the one certified")
    return "every entry carries the hash of the one before it"
