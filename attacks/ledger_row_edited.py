"""A row of the ledger is edited, so that an earlier release seems to have cost less."""

from __future__ import annotations

from pathlib import Path

from attacks.ledger_victim import Rows, ledger_with_releases, rechained
from attacks.victim import dpmerge, stopped


def cheaper(rows: Rows) -> Rows:
    """The first release becomes one of the safe model."""
    number, content = rows[0]
    return [(number, content.replace('"run":"run-leaky"', '"run":"run-other"')), *rows[1:]]


def attack(folder: Path) -> str:
    """Plainly; then with every hash of the chain computed again, and what it ended with removed."""
    ledger = ledger_with_releases(folder)
    ledger.rewrite(cheaper)
    stopped(dpmerge("ledger", "show", ledger.path), "entry 1 was edited", code=2)
    stopped(ledger.another_release(), "tampered with", code=2)
    ledger.restore()
    ledger.rewrite(cheaper, chain=rechained)
    stopped(dpmerge("ledger", "show", ledger.path), "was made in", code=2)
    ledger.forget()
    assert dpmerge("ledger", "show", ledger.path).code == 0, "a chain that was computed again holds by itself"
    stopped(ledger.recheck(), "entry 1 of the ledger is not the one certified")
    return "the chain breaks where the row was; a chain forged as a whole lacks entries that are kept or certified"
