"""A ledger: what was released from one private dataset, and what that costs in all (docs/theory.md §5).

One SQLite file, or PostgreSQL by URL. Entries are only ever appended, each carrying the hash of the one before; the chain is
checked whenever it is read. A release is entered in a transaction that no other can pass, beside the very entries that it was
checked with, and before anything is written: a crash in between over-counts, never under-counts. An entry of which nothing was
ever seen may be voided, and one whose release is found at its output is completed.
"""

from __future__ import annotations

import gc
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmerge.cache import without_cache
from dpmerge.errors import BudgetExceeded, LedgerError
from dpmerge.notebook import frame, html_table
from dpmerge.planning import Total
from dpmerge.records import Adjacency, Portfolio
from dpmerge.release.account import FILTER, Account
from dpmerge.release.certificate import now
from dpmerge.release.closing import adoptable, output_at, require_unseen
from dpmerge.release.entries import (
    SCHEMA,
    Budget,
    Entry,
    PendingEntry,
    Row,
    became,
    checked,
    completed,
    drawn_before,
    standing,
    unfinished,
    voided,
)
from dpmerge.release.heads import Head, Heads, require_heads
from dpmerge.release.processes import maker_gone, still_runs, this_process, under_way
from dpmerge.release.provisions import provisions
from dpmerge.release.summary import ENTRY_COLUMNS, entry_row, free_now, how_counted, why_more
from dpmerge.rules import Guarantee, Target, round_up, significant
from dpmerge.tensors import remove_proof

if TYPE_CHECKING:
    from pandas import DataFrame
    from sqlalchemy import Connection


_OUTSIDE = 3  # times that a release is accounted for outside the lock; then the next one waits for it


class Ledger:
    """Opens a ledger that exists; `Ledger.create` makes one."""

    def __init__(self, where: str | Path) -> None:
        self._engine, self.name = _tables().engine_for(str(where))
        self._known: tuple[list[Row], list[Entry]] = ([], [])  # rows as they were read last, and their entries
        self._counted: tuple[str, Account] | None = None
        with self._transaction(alone=False) as connection:
            self.budget, _ = self._header(connection)
        self._heads = Heads.of(self.budget, self.name if "://" in self.name else Path(self.name).resolve())
        self.history()

    @classmethod
    def create(
        cls,
        where: str | Path,
        *,
        dataset: str,
        adjacency: Adjacency,
        epsilon: float,
        delta: float,
        declared: Sequence[Portfolio] = (),
        filter_share: float = 0.0,
        filter_order: float | None = None,
    ) -> Ledger:
        """A new ledger with a declared total budget for one private dataset.

        Releases that depend on what earlier ones showed need a provision, which cannot be made later (docs/theory.md §5):
        `declared` portfolios, all of whose models count from the start, or a filter, which gets a share of δ.
        """
        Target(epsilon=epsilon)
        Target(delta=delta)
        if not dataset:
            raise LedgerError("a ledger is for one private dataset: give its identity, as the records state it")
        created = datetime.now(UTC).isoformat()  # to the microsecond: no two ledgers' chains begin alike
        budget = Budget(dataset, adjacency, float(epsilon), float(delta), created)
        first = provisions(budget, declared, filter_share, filter_order)
        tables = _tables()
        engine, name = tables.engine_for(str(where), new=True)
        try:
            with tables.transaction(engine, name, alone=True) as connection:
                if tables.exist(connection):
                    raise LedgerError(f"{name}: holds a ledger already; a ledger is never overwritten")
                tables.metadata.create_all(connection)
                connection.execute(tables.header.insert().values(id=1, **budget.header(), entries=0, head=budget.hash))
                for entry in first:
                    tables.append(connection, entry)
                tables.make_key_for_exports(connection)
        except BaseException:
            tables.remove_unused(engine)
            raise
        return cls(where)

    @property
    def id(self) -> str:
        """Tells it from other ledgers; it is in the names of temporary folders."""
        return self.budget.hash[:16]

    # --- reading ----------------------------------------------------------------------------------------------------------

    def history(self) -> list[Entry]:
        with self._transaction(alone=False) as connection:
            return self._entries(connection)

    def export(self) -> dict[str, Any]:
        """The whole ledger as plain data for others to keep, by which later changes show: without secrets (exporting.py)."""
        from dpmerge.release.exporting import exported

        with self._transaction(alone=False) as connection:
            entries, key = self._entries(connection), _tables().key_for_exports(connection)
        if key is None:
            with self._writing() as connection:
                key = _tables().make_key_for_exports(connection)
        return exported(self.budget, entries, key)

    def __repr__(self) -> str:
        budget, spent = self.budget, self.cumulative()
        now = round_up(0.0 if spent is None else spent.epsilon)
        return f"<Ledger of {budget.dataset}: ε = {now} of {budget.epsilon:g} spent at δ = {significant(budget.delta)}>"

    def _repr_html_(self) -> str:
        shown = html_table(ENTRY_COLUMNS, [list(entry_row(entry).values()) for entry in self.history()])
        return html_table([], [[repr(self).strip("<>")]]) + shown

    def to_frame(self) -> DataFrame:
        """The entries, in order."""
        return frame(entry_row(entry) for entry in self.history())

    def account(self, entries: Sequence[Entry] | None = None) -> Account:
        """These entries counted together; kept, since several questions are asked of the same ones."""
        entries = self.history() if entries is None else entries
        head = entries[-1].hash if entries else self.budget.hash
        found = self._counted
        if found is None or found[0] != head:
            with _collecting_later():
                found = self._counted = head, Account(self.budget, entries)
        return found[1]  # not what is kept now: another thread may have counted others

    def cumulative(self, entries: Sequence[Entry] | None = None) -> Guarantee | None:
        """What all releases together guarantee at the budget's δ, or nothing if there were none."""
        account = self.account(entries)
        return None if account.is_empty else account.total().guarantee

    def share(self, entries: Sequence[Entry], planned: PendingEntry) -> float:
        """How much of the budget all releases would take with one more: at most 1 if it may be made."""
        self.require_same_data(planned.portfolio)
        return Account(self.budget, entries, planned).share()

    def summary(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """The declared budget and what these entries spent of it, as plain data."""
        spent = self.cumulative(entries)
        return {
            "dataset": self.budget.dataset,
            "adjacency": self.budget.adjacency,
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "spent": {
                "epsilon": 0.0 if spent is None else spent.epsilon,
                "standing": "proved" if spent is None else spent.standing,
                "theorem": None if spent is None else spent.theorem,
                "assumptions": [] if spent is None else list(spent.assumptions),
            },
            "releases": len(standing(entries)),
            "warnings": [] if spent is None else list(spent.warnings),
            "counted": how_counted(self.account(entries), entries, spent),
        }

    def total_with(self, planned: PendingEntry) -> Total:
        """What everything entered and one more release guarantee together, and whether that is within the budget."""
        self.require_same_data(planned.portfolio)
        account = Account(self.budget, self.history(), planned)
        account.require_provision(self.name)
        return account.total()

    def free_now(self, entries: Sequence[Entry] | None = None) -> list[dict[str, Any]]:
        """The ladders whose releases cost nothing more, each down to which noise and up to which ε."""
        entries = self.history() if entries is None else entries
        return free_now(self.account(entries), entries, self.cumulative(entries))

    def why_more(self) -> str:
        """Why a second release of the runs of an average costs more than it does alone; empty where it does not."""
        entries = self.history()
        return why_more(self.account(entries), self.cumulative(entries))

    # --- writing ----------------------------------------------------------------------------------------------------------

    def enter(self, planned: PendingEntry, notes: list[str] | None = None) -> Entry:
        """Check a release against the budget and enter it, or refuse it if it does not fit; `notes` gets what is to be said.

        It is entered in a transaction that no other can pass, if the ledger is still the one that it was checked against.
        """
        notes = [] if notes is None else notes
        self.require_same_data(planned.portfolio)
        if not all(math.isfinite(one.epsilon) for one in planned.guarantees):
            raise LedgerError("this release has no finite ε of its own, so nothing can be certified of it")
        # A certified guarantee must not come from a file of the cache.
        with without_cache():
            for _ in range(_OUTSIDE):
                entries = self.history()
                content, told = self._charge(entries, planned)  # takes long where entries are many: others need not wait
                with self._writing() as connection:
                    if self._entries(connection, len(entries))[-1:] == entries[-1:]:  # nothing was entered since: it still fits
                        notes += told
                        return self._append(connection, entries, content)
            with self._writing() as connection:
                entries = self._entries(connection)
                content, told = self._charge(entries, planned)
                notes += told
                return self._append(connection, entries, content)

    def _charge(self, entries: Sequence[Entry], planned: PendingEntry) -> tuple[dict[str, Any], list[str]]:
        """The entry of a release that fits the budget beside these entries, and what is to be said; else it is refused."""
        with _collecting_later():
            account = Account(self.budget, entries, planned)
        account.require_provision(self.name)
        found = account.total()
        total = found.guarantee
        if not found.fits:
            raise BudgetExceeded(f"{self.name}: {self._refusal(account, found)}")
        about = planned.content()
        if (again := drawn_before(entries, about)) is not None:
            about["drawn"] = again
        made = {"by": this_process(), "out": planned.out} if planned.kind == "release" else {}
        content = {
            "kind": planned.kind,
            "at": now(),
            "nonce": secrets.token_hex(32),  # the published hash must not reveal the entry
            **made,
            **({} if planned.temporary is None else {"temporary": planned.temporary}),
            **about,
            "own": [{"epsilon": one.epsilon, "delta": one.delta} for one in planned.guarantees],
            "total": {"epsilon": total.epsilon, "delta": total.delta, "standing": total.standing, "theorem": total.theorem},
        }
        return content, account.about_last()

    def _refusal(self, account: Account, found: Total) -> str:
        if found.guarantee.theorem == FILTER:
            return found.why
        told = (
            f"this release would bring the total to ε = {round_up(found.guarantee.epsilon)} at "
            f"δ = {significant(account.tight_delta)}; the budget is ε = {self.budget.epsilon:g}"
        )
        return f"{told}; {found.why}" if found.why else told

    def complete(self, entry: Entry, certificates: Sequence[str]) -> list[str]:
        """Say that an entered release is out, under the hashes of its certificates; if it was voided, it counts again."""
        with self._writing() as connection:
            entries = self._entries(connection, entry.number)
            self._require_there(entry, entries)
            counts = entry.number in {one.number for one in standing(entries)}
            if counts and any(one["certificates"] == [*certificates] for one in became(entries, entry, "completed")):
                return []  # whoever found it has said so
            self._append(connection, entries, completed(entry.number, certificates))
        if counts:
            return []
        return [
            f"entry {entry.number} was voided while this release was made: it is out, so it counts again, and releases entered "
            "in between did not count it"
        ]

    def require_entered(self, entry: Entry) -> None:
        """Refuse to go on with a release whose entry is not in the ledger any more: its maker asks before anything is seen."""
        with self._transaction(alone=False) as connection:
            self._require_there(entry, self._entries(connection, entry.number))

    def _require_there(self, entry: Entry, entries: Sequence[Entry]) -> None:
        if entry.hash not in (one.hash for one in entries[entry.number - 1 : entry.number]):
            raise LedgerError(
                f"{self.name}: entry {entry.number} is not in the ledger any more, though it was made: a backup was restored "
                "meanwhile, or the locks of its file system do nothing"
            )

    def adopt(self) -> list[str]:
        """Complete what was interrupted after its release had appeared, by the certificate that is found there."""
        return self._adopt(self.history())

    def _adopt(self, found: Sequence[Entry]) -> list[str]:
        notes: list[str] = []
        if not adoptable(found):
            return notes
        with self._writing() as connection:
            entries = self._entries(connection)
            counted = {one.number for one in standing(entries)}
            for number, certificates in adoptable(entries).items():
                told = (
                    f"entry {number} was interrupted after its release had appeared: it was completed by the certificate there"
                )
                notes.append(told if number in counted else f"{told}; it had been voided, and counts again")
                entries.append(self._append(connection, entries, {**completed(number, certificates), "adopted": True}))
        return notes

    def recover(self) -> list[str]:
        """Close what was interrupted: completed where it is out, voided where nothing of it can have been seen; else it stands.

        A folder that still has its temporary name was never renamed. After a power failure that is no proof, since a rename
        that was seen may be lost.
        """
        found = self.history()
        notes = self._adopt(found)
        if all(under_way(entry.content) for entry in unfinished(found)):
            return notes
        with ExitStack() as held:  # the locks of what is voided, until it is removed
            left: list[Path] = []
            with self._writing() as connection:
                entries = self._entries(connection)
                for entry in unfinished(entries):
                    gone = held.enter_context(maker_gone(entry.content))
                    if gone is False or (gone is None and still_runs(entry.content["by"])):
                        continue
                    if gone:
                        left.append(Path(entry.content["temporary"]))
                        reason = "it was interrupted before its folder got its name"
                        entries.append(self._append(connection, entries, voided(entry.number, reason, "proof")))
                        notes.append(f"entry {entry.number} was interrupted before anything of it was seen: it was voided")
                        continue
                    state = output_at(entry)
                    content = {"kind": "recovered", "at": now(), "of": entry.number, "output": state}
                    entries.append(self._append(connection, entries, content))
                    notes.append(f"entry {entry.number} was interrupted (its output is {state}); it stands and counts")
                    if state == "absent":
                        notes[-1] += " (void it, with the reason, if nothing of it was ever seen)"
            for folder in left:
                remove_proof(folder)
        return notes

    def entry_in(self, temporary: Path) -> Entry | None:
        """The release that was entered with this temporary folder."""
        found = (entry for entry in self.history() if entry.content.get("temporary") == str(temporary))
        return next(found, None)

    def void_unseen(self, entry: Entry, reason: str) -> None:
        """Void a release of which the caller has proof that nothing of it was seen."""
        with self._writing() as connection:
            self._append(connection, self._entries(connection), voided(entry.number, reason, "proof"))

    def void(self, number: int, reason: str, *, machine_is_gone: bool = False) -> None:
        """Void a release that, as the user states, nobody has seen; the reason stays in the ledger.

        If it was made on a machine or in a container that cannot be inspected, the user must also say that this is gone.
        """
        if not reason.strip():
            raise LedgerError("a release is voided for a reason, which stays in the ledger: say why nothing of it was seen")
        with self._writing() as connection:
            entries = self._entries(connection)
            found = [entry for entry in entries if entry.number == number and entry.kind == "release"]
            if not found:
                raise LedgerError(f"{self.name}: entry {number} is not a release, so there is nothing to void")
            try:
                require_unseen(entries, found[0], machine_is_gone)
            except LedgerError as fault:
                raise LedgerError(f"{self.name}: {fault}") from None
            word = {"machine_is_gone": True} if machine_is_gone else {}
            self._append(connection, entries, {**voided(number, reason.strip(), "user"), **word})

    def _append(self, connection: Connection, entries: Sequence[Entry], content: dict[str, Any]) -> Entry:
        try:
            entry = Entry.following(entries, self.budget.hash, content)
        except UnicodeEncodeError:
            raise LedgerError("a name or path in this release is not valid text, so it cannot be entered: rename it") from None
        _tables().append(connection, entry)
        return entry

    # --- the database -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Exclusive transaction; what the ledger ends with is kept outside it as soon as that is on the disk."""
        with self._transaction(alone=True) as connection:
            self._heads.prepare()
            yield connection
            _, (number, head) = self._header(connection)
        if number:
            self._heads.keep(number, head)

    def _transaction(self, *, alone: bool) -> AbstractContextManager[Connection]:
        """Exclusive transaction to write, or a snapshot to read."""
        found: AbstractContextManager[Connection] = _tables().transaction(self._engine, self.name, alone=alone)
        return found

    def _header(self, connection: Connection) -> tuple[Budget, tuple[int, str]]:
        """The budget, and the number and the hash of the last entry, as they are stated."""
        header = _tables().read_header(connection)
        if header is None:
            raise LedgerError(f"{self.name}: holds no ledger; make one under another name")
        if header["schema"] != SCHEMA:
            raise LedgerError(f"{self.name}: a ledger of version {header['schema']}; this program reads version {SCHEMA}")
        try:
            epsilon, delta = float.fromhex(header["epsilon"]), float.fromhex(header["delta"])
            budget = Budget(header["dataset"], header["adjacency"], epsilon, delta, header["created"])
            assert budget.hash  # it can be computed: all of it is text and numbers
            return budget, (int(header["entries"]), header["head"])
        except (ValueError, TypeError, OverflowError):
            raise LedgerError(f"{self.name}: the declared budget was edited: it cannot be read") from None

    def _entries(self, connection: Connection, since: int = 1) -> list[Entry]:
        """The entries; refused if anything was changed but by appending, or if one that was made is not there.

        Rows before the one numbered `since`, which this process read a moment ago, are not read again.
        """
        # Before anything in this snapshot is read: another thread may read a later one meanwhile.
        before, entries = self._known
        seen = [*self._heads.seen(), *(Head(one.number, one.hash) for one in entries[-1:])]
        budget, (length, head) = self._header(connection)
        if budget != self.budget:
            raise LedgerError(f"{self.name}: the declared budget was edited since the ledger was opened")
        with _collecting_later():
            rows = before[: max(0, since - 1)]
            rows += _tables().read_rows(connection, after=rows[-1].number if rows else None)
            same = next((place for place, pair in enumerate(zip(rows, before, strict=False)) if pair[0] != pair[1]), None)
            known = entries[: min(len(rows), len(before)) if same is None else same]
            try:
                entries = checked(budget.hash, rows, length, head, known)
            except LedgerError as fault:
                raise LedgerError(f"{self.name}: {fault}; nothing is released from a ledger that was tampered with") from None
        try:
            require_heads(seen, entries)
        except LedgerError as fault:
            raise LedgerError(f"{self.name}: {fault}") from None
        self._known = rows, entries
        return [*entries]

    def require_same_data(self, portfolio: Portfolio) -> None:
        self.budget.require_same_data(portfolio, self.name)


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Without a search for garbage meanwhile: it would go over all entries again and again, and find none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tables() -> Any:
    """Loaded only when a ledger is used: importing SQLAlchemy is slow."""
    from dpmerge.release import tables

    return tables
