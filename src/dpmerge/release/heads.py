"""The last entries of a ledger, kept outside its database: by them a restored backup and a copy that was written to show.

Each is a file that is named after the number and the hash of an entry, and is made once the entry is on the disk: the database
must hold it ever after. A name appears whole, also where locks do nothing: of two writers that did not keep each other out,
each finds the name of the other before it lets its release be seen, or is found by it (docs/release.md).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpmerge.errors import LedgerError
from dpmerge.files import private_folder, sync
from dpmerge.release.entries import Budget, Entry

_NAME = re.compile(r"([1-9][0-9]{0,17})-([0-9a-f]{64})")
_KEPT = 4  # names; one would do, were not the last ones made by several processes at once


@dataclass(frozen=True)
class Head:
    number: int
    hash: str
    file: Path


@dataclass(frozen=True)
class Heads:
    """Of one ledger, in one or two folders: beside its file, and in the user's own folder for what programs remember."""

    places: tuple[Path, ...]

    @classmethod
    def of(cls, budget: Budget, file: Path | None) -> Heads:
        stated = os.environ.get("XDG_STATE_HOME", "")
        state = stated if os.path.isabs(stated) else os.path.expanduser("~/.local/state")
        roots = [] if file is None else [file.with_name(f"{file.name}.heads")]
        if os.path.isabs(state):  # else nobody knows where this user is at home
            roots.append(Path(state) / "dpmerge" / "ledgers")
        if not roots:
            raise LedgerError("there is no folder in which to keep what this ledger ends with: set XDG_STATE_HOME")
        return cls(tuple(root / budget.hash for root in roots))

    def seen(self) -> list[Head]:
        """To be asked before the chain is read: what others enter meanwhile need not be in it."""
        found: list[Head] = []
        for place in self.places:
            try:
                found += _names(place)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as fault:
                if place == self.places[0]:
                    raise LedgerError(f"what the ledger ends with is kept in {place}: {fault.strerror or fault}") from None
        return found

    def keep(self, number: int, digest: str, ledger: str) -> None:
        """Keep the head of this ledger, which is on the disk; the first folder must take it."""
        for place in self.places:
            try:
                _keep(place, number, digest, ledger)
            except OSError as fault:
                if place == self.places[0]:
                    raise LedgerError(
                        f"{ledger}: that entry {number} was made could not be noted in {place} ({fault.strerror or fault}): a "
                        "backup that is restored would not be noticed. Let that folder be written to, or set XDG_STATE_HOME"
                    ) from None


def require_heads(seen: Sequence[Head], entries: Sequence[Entry]) -> None:
    """Refuse a chain that lacks an entry which was made."""
    for head in seen:
        if head.number > len(entries) or entries[head.number - 1].hash != head.hash:
            ends = f"it ends with entry {len(entries)}" if head.number > len(entries) else "it has another one"
            raise LedgerError(
                f"entry {head.number} was made{_where(head.file)}, and is not in this ledger: {ends}. It is a backup that was "
                "restored, a copy, or was written to where locks do nothing. Use the ledger that holds this entry; if that is "
                "lost, what was released by it is not counted here: begin a new one, whose budget leaves room for it"
            )


def _where(file: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if text := file.read_text():
            return f" in {text}"
    return ""


def _names(place: Path) -> Iterator[Head]:
    for name in os.listdir(place):
        if found := _NAME.fullmatch(name):
            yield Head(int(found[1]), found[2], place / name)


def _keep(place: Path, number: int, digest: str, ledger: str) -> None:
    private_folder(place)
    with contextlib.suppress(FileExistsError), (place / f"{number}-{digest}").open("x") as file:
        file.write(ledger)  # for the reader of an error: the name says all that is compared
    sync(place)
    for head in _names(place):
        if head.number <= number - _KEPT:
            head.file.unlink(missing_ok=True)
