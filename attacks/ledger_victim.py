"""A ledger with two releases, and the tools of someone who may write to its file."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attacks.victim import DATASET, DELTA, WEIGHTS, Outcome, dpmerge, portfolio, release, verified
from dpmerge.release import Entry

# Number and content of every entry.
Rows = list[tuple[int, str]]
# From the hash of the budget and all rows: number, content, previous, hash.
Chain = Callable[[str, Rows], list[tuple[int, str, str, str]]]


@dataclass(frozen=True)
class LedgerFile:
    """A ledger and what it was before."""

    folder: Path
    original: bytes

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.folder / "ledger.db"

    def restore(self) -> None:
        """Undo everything."""
        self.path.write_bytes(self.original)

    def forget(self) -> None:
        """Remove what the ledger ended with, wherever this user keeps it: nothing but the certificates remembers then."""
        connection = sqlite3.connect(self.path)
        ((start,),) = connection.execute("select previous from dpmerge_entries where number = 1").fetchall()
        connection.close()
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        shutil.rmtree(self.path.with_name("ledger.db.heads"))
        shutil.rmtree(Path(state) / "dpmerge" / "ledgers" / start)

    def rewrite(self, change: Callable[[Rows], Rows], chain: Chain | None = None) -> None:
        """Change the rows; with a chain, also every hash and the header. Without, each row keeps the hashes it has."""
        connection = sqlite3.connect(self.path)
        rows = connection.execute("select number, content, previous, hash from dpmerge_entries order by number").fetchall()
        start, hashes = rows[0][2], {content: (previous, own) for _, content, previous, own in rows}
        changed = change([(number, content) for number, content, _, _ in rows])
        if chain is None:
            by_number = {number: (previous, own) for number, _, previous, own in rows}
            fresh = [(number, content, *hashes.get(content, by_number[number])) for number, content in changed]
        else:
            fresh = chain(start, changed)
            connection.execute("update dpmerge_ledger set entries = ?, head = ?", (len(fresh), fresh[-1][3]))
        connection.execute("delete from dpmerge_entries")
        connection.executemany("insert into dpmerge_entries (number, content, previous, hash) values (?, ?, ?, ?)", fresh)
        connection.commit()
        connection.close()

    def another_release(self) -> Outcome:
        """What whoever profits from the edit would do next."""
        arguments = ("--rule", "joint", "--weights", WEIGHTS, "--delta", DELTA, "--ledger", self.path)
        made = dpmerge("merge", self.folder / "runs", *arguments, "--out", self.folder / "another")
        assert not (self.folder / "another").exists()
        return made

    def recheck(self, name: str = "first") -> Outcome:
        """Whoever holds a release checks it against the ledger."""
        return verified(self.folder / name, "--ledger", self.path)


def ledger_with_releases(folder: Path) -> LedgerFile:
    """Two draws from one portfolio: entries 1 and 3, each followed by its completion."""
    portfolio(folder)
    path = folder / "ledger.db"
    made = dpmerge("ledger", "new", path, "--dataset", DATASET, "--epsilon", "50", "--delta", DELTA)
    assert made.code == 0, made.text
    for name, model in (("first", "leaky=1"), ("second", "safe=1")):
        out = release(folder, "selection", name, model, "--ledger", path)
        checked = verified(out, "--ledger", path)
        assert checked.code == 0, checked.text
    return LedgerFile(folder, path.read_bytes())


def rechained(start: str, rows: Rows) -> list[tuple[int, str, str, str]]:
    """The chain as the ledger itself would have made it of these contents, numbered anew."""
    entries: list[Entry] = []
    for _, content in rows:
        entries.append(Entry.following(entries, start, json.loads(content)))
    return [(entry.number, content, entry.previous, entry.hash) for entry, (_, content) in zip(entries, rows, strict=True)]
