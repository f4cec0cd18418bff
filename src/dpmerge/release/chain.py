"""The ledger's chain: each entry carries the hash of the one before it, and the first that of the declared budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpmerge.errors import LedgerError
from dpmerge.release.canonical import canonical, sha256


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    number: int
    content: dict[str, Any]
    previous: str
    hash: str

    @classmethod
    def following(cls, entries: Sequence[Entry], start: str, content: dict[str, Any]) -> Entry:
        """The next entry of a chain that begins with the hash `start`."""
        number, previous = len(entries) + 1, entries[-1].hash if entries else start
        return cls(number, content, previous, _hash(number, content, previous))

    @property
    def kind(self) -> str:
        """`release`, what became of one (`completed`, `recovered`, `voided`), or a first one: `filter`, `portfolio`."""
        return str(self.content["kind"])


def standing(entries: Sequence[Entry]) -> list[Entry]:
    """The releases that count: those that were not voided, or were completed all the same, so that they are out."""
    last = {entry.content["of"]: entry.kind for entry in entries if entry.kind in ("voided", "completed")}
    gone = {number for number, kind in last.items() if kind == "voided"}
    return [entry for entry in entries if entry.kind == "release" and entry.number not in gone]


def unfinished(entries: Sequence[Entry]) -> list[Entry]:
    """Releases that were entered, but neither completed, recovered nor voided."""
    closed = _about(entries, "completed", "recovered")
    return [entry for entry in standing(entries) if entry.number not in closed]


def _about(entries: Sequence[Entry], *kinds: str) -> set[int]:
    return {entry.content["of"] for entry in entries if entry.kind in kinds}


def checked(start: str, rows: Sequence[Mapping[str, Any]], length: int, head: str) -> list[Entry]:
    """The entries as they were written, from the hash `start` to the hash `head`; what was changed since is named."""
    entries: list[Entry] = []
    for number, row in enumerate(rows, start=1):
        if row["number"] != number:
            raise LedgerError(f"entry {number} is missing")
        if number > length:
            raise LedgerError(f"entry {number} was put in from outside")
        content = _parsed(row["content"])
        if content is None or row["hash"] != _hash(number, content, row["previous"]):
            raise LedgerError(f"entry {number} was edited")
        if row["previous"] != (entries[-1].hash if entries else start):
            before = f"entry {number - 1}" if entries else "the declared budget"
            raise LedgerError(f"{before} was edited, or entry {number} replaced: the second does not follow from the first")
        entries.append(Entry(number, content, row["previous"], row["hash"]))
    if len(entries) < length:
        raise LedgerError(f"entry {len(entries) + 1} is missing")
    if head != (entries[-1].hash if entries else start):
        what = f"entry {length} is not the one that the ledger ended with" if entries else "the declared budget was edited"
        raise LedgerError(what)
    return entries


def _parsed(text: Any) -> dict[str, Any] | None:
    """The content of an entry, or nothing if it is not written in the one way that this program writes."""
    try:
        content = json.loads(text)
        return content if isinstance(content, dict) and canonical(content).decode() == text else None
    except (ValueError, TypeError, RecursionError):
        return None


def _hash(number: int, content: dict[str, Any], previous: Any) -> str:
    return sha256(canonical({"number": number, "content": content, "previous": str(previous)}))
