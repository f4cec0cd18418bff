"""Every error dpmerge raises on purpose.

    DpmergeError
    ├── RecordError        a record file is missing, malformed or says something impossible
    ├── PortfolioError     the records do not belong together
    │   └── MissingRecord      a folder holds a model without a record
    ├── WeightsError       weights that are not a distribution over the portfolio's models
    ├── TargetError        an (ε, δ) question that has no meaning
    ├── UtilityError       utilities that are missing, malformed or about other models
    ├── FigureError        a picture that cannot be drawn or written
    ├── CheckpointError    tensors that cannot be read, do not belong together or cannot be written
    ├── SignatureError     a key that cannot be read or written
    ├── CertificateError   a certificate that cannot be made or read
    ├── LedgerError        a ledger that cannot be used, or was tampered with
    │   ├── MissingLedger
    │   └── BudgetExceeded     a release that would pass the declared total
    ├── DataError          a data set that is missing or malformed
    ├── ExplorerError      an explorer that cannot be started safely
    ├── EvaluationError    a score that cannot be measured
    ├── TrainingError      a private training that cannot be run here, or failed
    ├── MissingLibrary     a library that only this call needs is not installed
    ├── JobError           many pieces of work that cannot be run, or their results not kept
    └── AccountingError    the guarantee asked for cannot be computed
        ├── UnsupportedMechanism   no theorem here covers this mechanism by this accountant
        │   └── GridTooLarge           a privacy loss distribution would not fit into memory
        ├── TakesTooLong           it was given less time than it needs
        └── DependentRuns          two runs share randomness that a theorem needs to be independent

A message says what is wrong, in which model, file or field, and what to do about it.
The command line prints it as one line, and a traceback only if it is asked to debug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class DpmergeError(Exception):
    """Base class of all errors raised on purpose."""


class RecordError(DpmergeError):
    """A record file is missing, malformed or says something impossible."""


class PortfolioError(DpmergeError):
    """The records do not belong together."""


class MissingRecord(PortfolioError):
    """A folder holds a model without a record; `folder` says which."""

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder


class WeightsError(DpmergeError):
    """Weights that are not a distribution over the portfolio's models."""


class TargetError(DpmergeError):
    """An (ε, δ) question that has no meaning."""


class UtilityError(DpmergeError):
    """Utilities that are missing, malformed or about other models."""


class FigureError(DpmergeError):
    """A picture that cannot be drawn or written."""


class CheckpointError(DpmergeError):
    """Tensors that cannot be read, do not belong together or cannot be written."""


class MissingLibrary(DpmergeError):
    """A library that only this call needs is not installed."""


class JobError(DpmergeError):
    """Many pieces of work that cannot be run, or their results not kept."""


class AccountingError(DpmergeError):
    """The guarantee asked for cannot be computed."""


class UnsupportedMechanism(AccountingError):
    """No theorem here covers this mechanism by this accountant."""


class GridTooLarge(UnsupportedMechanism):
    """A privacy loss distribution would not fit into memory."""


class TakesTooLong(AccountingError):
    """A guarantee that was given less time than it needs."""


class DependentRuns(AccountingError):
    """Two runs share randomness that a theorem needs to be independent."""


class DataError(DpmergeError):
    """A data set that is missing or malformed."""


class ExplorerError(DpmergeError):
    """An explorer that cannot be started safely."""


class EvaluationError(DpmergeError):
    """A score that cannot be measured."""


class SignatureError(DpmergeError):
    """A key that cannot be read or written."""


class CertificateError(DpmergeError):
    """A certificate that cannot be made or read."""


class LedgerError(DpmergeError):
    """A ledger that cannot be used, or was tampered with."""


class MissingLedger(LedgerError):
    """There is no ledger at the place that was named."""


class BudgetExceeded(LedgerError):
    """A release that would pass the declared total."""


class TrainingError(DpmergeError):
    """A private training that cannot be run here, or failed."""


def printable(text: str) -> str:
    """Text of a file as a terminal may show it: what is no visible character becomes its code, so nothing can forge a line.

    >>> printable("model\\x1b[2K\\nit holds")
    'model\\\\x1b[2K\\\\nit holds'
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def one_line(error: Exception) -> str:
    """An error's text as it is printed: on one line, which what a file says cannot make endless."""
    text = " ".join(str(error).split())
    return text if len(text) <= 2000 else f"{text[:1600]} … {text[-300:]}"
