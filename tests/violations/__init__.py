"""Searches for violations of proved guarantees: what the library prints against exact laws (docs/theory.md §2–§5).

Every `check_…` raises `Alarm` where the true δ of a release exceeds what was printed as proved, and else reports how close it
came. They ask the library by its public names, so that a defect put into it shows here.
"""

from tests.violations.combinations import check_transport, climb, examine
from tests.violations.ledgers import check_checkpoints, check_ledger
from tests.violations.report import EPSILONS, Alarm, Report
from tests.violations.selections import check_selection

__all__ = [
    "EPSILONS",
    "Alarm",
    "Report",
    "check_checkpoints",
    "check_ledger",
    "check_selection",
    "check_transport",
    "climb",
    "examine",
]
