"""The last entries of a ledger, kept outside its database: by them a restored backup and a copy that was written to show.

Each is a file that is named after the number and the hash of an entry, and is made once the entry is on the disk: the database
must hold it ever after. A name appears whole, also where locks do nothing: of two writers that did not keep each other out,
each finds the name of the other before it lets its release be seen, or is found by it (docs/release.md).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
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
    """An entry that was made; `file` says so, or this process has read it."""

    number: int
    hash: str
    file: Path | None = None


@dataclass(frozen=True)
class Heads:
    """Of one ledger, in one or two folders: beside its file, and in the user's own folder for what programs remember."""

    ledger: Path | str  # a file, or a URL
    places: tuple[Path, ...]

    @classmethod
    def of(cls, budget: Budget, ledger: Path | str) -> Heads:
        stated = os.environ.get("XDG_STATE_HOME", "")
        state = stated if os.path.isabs(stated) else os.path.expanduser("~/.local/state")
        roots = [ledger.with_name(f"{ledger.name}.heads")] if isinstance(ledger, Path) else []
        if os.path.isabs(state):  # else nobody knows where this user is at home
            roots.append(Path(state) / "dpmerge" / "ledgers")
        if not roots:
            raise LedgerError("there is no folder in which to keep what this ledger ends with: set XDG_STATE_HOME")
        return cls(ledger, tuple(root / budget.hash for root in roots))

    def seen(self) -> list[Head]:
        """To be asked before the chain is read: what others enter meanwhile need not be in it."""
        found: list[Head] = []
        for place in self.places:
            try:
                found += _names(place)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as fault:
                self._refuse(place, fault)
        return found

    def prepare(self) -> None:
        """Refuse, before anything is entered, a folder that would not take what the ledger ends with then."""
        for place in self.places:
            try:
                private_folder(place)
                if isinstance(self.ledger, Path) and place == self.places[0]:
                    _share(place.parent, self.ledger)
                    _share(place, self.ledger)
                if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as fault:
                self._refuse(place, fault)

    def keep(self, number: int, digest: str) -> None:
        """Keep the head of this ledger, which is on the disk."""
        for place in self.places:
            try:
                _keep(place, number, digest, str(self.ledger))
            except OSError as fault:
                self._refuse(place, fault)

    def _refuse(self, place: Path, fault: OSError) -> None:
        """The first folder is needed, and a second one only helps."""
        if place == self.places[0]:
            otherwise = "" if isinstance(self.ledger, Path) else ", or set XDG_STATE_HOME to another one"
            raise LedgerError(
                f"{self.ledger}: what it ends with is kept in {place}, so that a restored backup is noticed: "
                f"{fault.strerror or fault}. Let whoever uses the ledger read and write that folder{otherwise}"
            ) from None


def require_heads(seen: Sequence[Head], entries: Sequence[Entry]) -> None:
    """Refuse a chain that lacks an entry which was made."""
    for head in seen:
        if head.number > len(entries) or entries[head.number - 1].hash != head.hash:
            ends = f"it ends with entry {len(entries)}" if head.number > len(entries) else "it has another one"
            raise LedgerError(
                f"entry {head.number} was made{_where(head)}, and is not in this ledger: {ends}. It is a backup that was "
                "restored, a copy, a standby that lags behind, or was written to where locks do nothing. Use the ledger that "
                "holds this entry; if that is lost, what was released by it is not counted here: begin a new one, whose budget "
                "leaves room for it"
            )


def _where(head: Head) -> str:
    with contextlib.suppress(OSError):
        if head.file is not None and (text := os.fsdecode(head.file.read_bytes())):
            return f" in {text}"
    return ""


def _names(place: Path) -> Iterator[Head]:
    for name in os.listdir(place):
        if found := _NAME.fullmatch(name):
            yield Head(int(found[1]), found[2], place / name)


def _share(folder: Path, ledger: Path) -> None:
    """Whoever owns, reads or writes the ledger may do so here, also if root was first: as with SQLite's own files."""
    file, mode = ledger.stat(), stat.S_IMODE(folder.stat().st_mode)
    wanted = mode & ~0o777 | file.st_mode & 0o666 | (file.st_mode & 0o444) >> 2
    with contextlib.suppress(PermissionError):  # another user's folder
        if mode != wanted:
            folder.chmod(wanted)
        os.chown(folder, file.st_uid, file.st_gid)


def _keep(place: Path, number: int, digest: str, ledger: str) -> None:
    private_folder(place)
    with contextlib.suppress(FileExistsError), (place / f"{number}-{digest}").open("xb") as file:
        file.write(os.fsencode(ledger))  # for the reader of an error: the name says all that is compared
    sync(place)
    for head in _names(place):
        if head.file is not None and head.number <= number - _KEPT:
            head.file.unlink(missing_ok=True)
