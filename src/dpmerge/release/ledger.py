"""A ledger: what was released from one private dataset, and what that costs in all (docs/theory.md §5).

One SQLite file, or PostgreSQL by URL. Entries are only ever appended, each carrying the hash of the one before; the first
carries that of the declared budget. A release is checked and entered in one transaction that no other can pass, and
entered before anything is written: a crash in between over-counts, never under-counts.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmerge.errors import AccountingError, BudgetExceeded, LedgerError
from dpmerge.profiles.runs import ShuffleAsPoisson
from dpmerge.records import Adjacency, Model, Portfolio, Record
from dpmerge.release.canonical import canonical, sha256
from dpmerge.release.forms import RuleForm
from dpmerge.rules import Guarantee, Rule
from dpmerge.rules.guarantee import Target, round_up, significant
from dpmerge.rules.releases import Exposure, Releases

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SCHEMA = 1


@dataclass(frozen=True)
class Budget:
    """What may be spent in all."""

    dataset: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    created: str

    def header(self) -> dict[str, Any]:
        """What the chain begins with."""
        numbers = {"epsilon": self.epsilon.hex(), "delta": self.delta.hex()}
        return {"schema": _SCHEMA, "dataset": self.dataset, "adjacency": self.adjacency, "created": self.created, **numbers}

    def allows(self, rule: Rule) -> bool:
        """Whether a rule stays within it. Each of the two questions has its own grid; either answer is a proof."""
        if rule.guarantee(delta=self.delta).epsilon <= self.epsilon:
            return True
        return rule.guarantee(epsilon=self.epsilon).delta <= self.delta


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    number: int
    content: dict[str, Any]
    previous: str
    hash: str

    @property
    def kind(self) -> str:
        """`release`, `completed` or `recovered`."""
        return str(self.content["kind"])


@dataclass(frozen=True)
class Planned:
    """A release about to be made: its rule (several for coupled draws), its portfolio, and where it will be."""

    forms: tuple[RuleForm, ...]
    portfolio: Portfolio
    exposure: Exposure
    guarantees: tuple[Guarantee, ...]
    out: str

    @property
    def involved(self) -> set[str]:
        """Every model that it is about."""
        return {*self.exposure.models, *(name for form in self.forms for name in form.weights)}


class Ledger:
    """Opens a ledger that exists; `Ledger.create` makes one."""

    def __init__(self, where: str | Path) -> None:
        self._engine, self.name = _tables().engine_for(str(where))
        if "://" not in str(where) and not Path(where).is_file():
            raise LedgerError(f"{where}: no such ledger; make one with dpmerge ledger new")
        with self._transaction() as connection:
            self.budget = _read_budget(connection, self.name)
        faults = self.problems()
        if faults:
            raise LedgerError(f"{self.name}: {faults[0]}; nothing is released from a ledger that was tampered with")

    @classmethod
    def create(cls, where: str | Path, *, dataset: str, adjacency: Adjacency, epsilon: float, delta: float) -> Ledger:
        """A new ledger with a declared total budget for one private dataset."""
        Target(epsilon=epsilon)
        Target(delta=delta)
        if not dataset:
            raise LedgerError("a ledger is for one private dataset: give its identity, as the records state it")
        if "://" not in str(where) and os.path.lexists(where):
            raise LedgerError(f"{where}: exists already; a ledger is never overwritten")
        budget = Budget(dataset, adjacency, float(epsilon), float(delta), _now())
        tables = _tables()
        engine, name = tables.engine_for(str(where))
        try:
            with engine.begin() as connection:
                if tables.has_header(connection):
                    raise LedgerError(f"{name}: holds a ledger already; a ledger is never overwritten")
                tables.metadata.create_all(connection)
                head = sha256(canonical(budget.header()))
                connection.execute(tables.header.insert().values(id=1, **budget.header(), entries=0, head=head))
        except _database_error() as fault:
            raise LedgerError(f"{name}: the ledger cannot be made: {_in_short(fault)}") from None
        finally:
            engine.dispose()
        return cls(where)

    # --- reading ----------------------------------------------------------------------------------------------------------

    def history(self) -> list[Entry]:
        """Every entry, in order."""
        with self._transaction() as connection:
            return _read_entries(connection)

    def problems(self) -> list[str]:
        """What is wrong with the chain: edited, missing, added or reordered entries, or an edited budget."""
        with self._transaction() as connection:
            header = _tables().read_header(connection)
            entries = _read_entries(connection)
        previous = sha256(canonical(self.budget.header()))
        faults = []
        for position, entry in enumerate(entries, start=1):
            if entry.number != position:
                faults.append(f"entry {position} is missing")
                break
            if entry.previous != previous:
                what = "the declared budget was edited" if position == 1 else f"entry {position - 1} was edited or replaced"
                faults.append(f"{what}: entry {position} does not follow from it")
                break
            if entry.hash != _entry_hash(entry.number, entry.content, entry.previous):
                faults.append(f"entry {position} was edited")
                break
            previous = entry.hash
        if not faults and (header["entries"], header["head"]) != (len(entries), previous):
            faults.append(f"the ledger says it has {header['entries']} entries ending in another hash; the last were changed")
        return faults

    def cumulative(self) -> Guarantee | None:
        """What all releases together guarantee at the budget's δ, or nothing if there were none."""
        rule = self._rule(self.history())
        return None if rule is None else rule.guarantee(delta=self.budget.delta)

    def delta_spent(self) -> float:
        """δ of all releases at the budget's ε."""
        rule = self._rule(self.history())
        return 0.0 if rule is None else rule.guarantee(epsilon=self.budget.epsilon).delta

    def unfinished(self) -> list[Entry]:
        """Releases that were entered, but neither completed nor recovered."""
        entries = self.history()
        closed = {entry.content["of"] for entry in entries if entry.kind != "release"}
        return [entry for entry in entries if entry.kind == "release" and entry.number not in closed]

    def would_allow(self, planned: Planned) -> bool:
        """Whether a release would stay within the budget, on top of everything before it."""
        try:
            rule = self._rule(self.history(), planned)
            return rule is not None and self.budget.allows(rule)
        except AccountingError:
            return False

    # --- writing ----------------------------------------------------------------------------------------------------------

    def enter(self, planned: Planned) -> Entry:
        """Check a release against the budget and enter it, in one transaction; refuse it if it does not fit."""
        self._require_same_data(planned.portfolio)
        with self._transaction() as connection:
            entries = _read_entries(connection)
            rule = self._rule(entries, planned)
            assert rule is not None
            total = rule.guarantee(delta=self.budget.delta)
            if not self.budget.allows(rule):
                raise BudgetExceeded(
                    f"{self.name}: this release would bring the total to ε = {round_up(total.epsilon)} at "
                    f"δ = {significant(self.budget.delta)}; the budget is ε = {self.budget.epsilon:g}"
                )
            names = _identities(planned.portfolio)
            content = {
                "kind": "release",
                "at": _now(),
                "by": _process(),
                "out": planned.out,
                "forms": [form.renamed(names).model_dump(mode="json") for form in planned.forms],
                "names": {names[name]: name for name in planned.involved},
                "records": {
                    names[model.name]: json.loads(model.record.model_dump_json(by_alias=True))
                    for model in planned.portfolio.models
                    if model.name in planned.involved
                },
                "exposure": [[str(p), sorted(names[name] for name in models)] for p, models in planned.exposure.outcomes],
                "own": [{"epsilon": one.epsilon, "delta": one.delta} for one in planned.guarantees],
                "total": {"epsilon": total.epsilon, "delta": total.delta, "standing": total.standing, "theorem": total.theorem},
            }
            return self._append(connection, entries, content)

    def complete(self, entry: Entry, certificates: Sequence[str]) -> None:
        """Say that an entered release is out, under the hashes of its certificates."""
        with self._transaction() as connection:
            content = {"kind": "completed", "at": _now(), "of": entry.number, "certificates": list(certificates)}
            self._append(connection, _read_entries(connection), content)

    def recover(self) -> list[str]:
        """Close what was interrupted: the entry stands, and the ledger says whether the output is there."""
        notes = []
        for entry in self.unfinished():
            if _alive(entry.content["by"]):
                continue
            there = Path(entry.content["out"]).is_dir()
            with self._transaction() as connection:
                entries = _read_entries(connection)
                if any(other.kind != "release" and other.content["of"] == entry.number for other in entries):
                    continue  # another process was quicker
                state = "present" if there else "absent"
                self._append(connection, entries, {"kind": "recovered", "at": _now(), "of": entry.number, "output": state})
            notes.append(f"entry {entry.number} was interrupted (its output is {state}); it stands and counts")
        return notes

    def _append(self, connection: Connection, entries: Sequence[Entry], content: dict[str, Any]) -> Entry:
        tables = _tables()
        number = len(entries) + 1
        previous = entries[-1].hash if entries else sha256(canonical(self.budget.header()))
        entry = Entry(number, content, previous, _entry_hash(number, content, previous))
        text = canonical(content).decode()
        connection.execute(tables.entries.insert().values(number=number, content=text, previous=previous, hash=entry.hash))
        connection.execute(tables.header.update().values(entries=number, head=entry.hash))
        return entry

    # --- accounting -------------------------------------------------------------------------------------------------------

    def _rule(self, entries: Sequence[Entry], new: Planned | None = None) -> Rule | None:
        """All releases as one rule. A single one is its own; several are what has leaked of the models."""
        models: dict[str, Model] = {}
        forms: list[RuleForm] = []
        exposures: list[Exposure] = []
        for entry in entries:
            if entry.kind != "release":
                continue
            for name, record in entry.content["records"].items():
                models[name] = Model(name, Record.parse(json.dumps(record), source=f"entry {entry.number}"))
            forms += [RuleForm.model_validate(form) for form in entry.content["forms"]]
            exposures.append(Exposure(tuple((Fraction(p), frozenset(names)) for p, names in entry.content["exposure"])))
        if new is not None:
            names = _identities(new.portfolio)
            models |= {names[m.name]: Model(names[m.name], m.record) for m in new.portfolio.models if m.name in new.involved}
            forms += [form.renamed(names) for form in new.forms]
            outcomes = [(p, frozenset(names[name] for name in members)) for p, members in new.exposure.outcomes]
            exposures.append(Exposure(tuple(outcomes)))
        if not forms:
            return None
        whole = Portfolio(tuple(models[name] for name in sorted(models)))
        if len(forms) == 1:
            return forms[0].build(whole, proved=True)
        rates = [float.fromhex(form.shuffle_rate) for form in forms if form.shuffle_rate is not None]
        return Releases(whole, exposures, ShuffleAsPoisson(max(rates)) if rates else None)

    def _require_same_data(self, portfolio: Portfolio) -> None:
        record = portfolio.models[0].record
        if record.dataset != self.budget.dataset:
            raise LedgerError(f"{self.name} is for dataset {self.budget.dataset!r}; the portfolio is for {record.dataset!r}")
        if record.adjacency != self.budget.adjacency:
            raise LedgerError(
                f"{self.name} counts for {self.budget.adjacency} neighbours; the portfolio's records are for "
                f"{record.adjacency} ones"
            )

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Alone with the ledger: others wait until this is committed or given up."""
        try:
            with self._engine.begin() as connection:
                _tables().lock(connection)
                yield connection
        except _database_error() as fault:
            raise LedgerError(f"{self.name}: the ledger cannot be used: {_in_short(fault)}") from None


def _identities(portfolio: Portfolio) -> dict[str, str]:
    """By name: the run and the record, under which a model is the same in every portfolio and every release."""
    names = {}
    for model in portfolio.models:
        if model.mechanism.run is None:
            raise LedgerError(
                f"model {model.name!r}: its record has no run id, so a ledger cannot tell whether two releases are of one run; "
                "add a run to the record"
            )
        record = sha256(canonical(json.loads(model.record.model_dump_json(by_alias=True))))
        names[model.name] = f"{model.mechanism.run}@{record[:16]}"
    return names


def _read_budget(connection: Connection, where: str) -> Budget:
    tables = _tables()
    if not tables.has_header(connection):
        raise LedgerError(f"{where}: holds no ledger; make one with dpmerge ledger new")
    row = tables.read_header(connection)
    if row["schema"] != _SCHEMA:
        raise LedgerError(f"{where}: a ledger of version {row['schema']}; this program reads version {_SCHEMA}")
    try:
        epsilon, delta = float.fromhex(row["epsilon"]), float.fromhex(row["delta"])
    except (ValueError, TypeError):
        raise LedgerError(f"{where}: the declared budget is not readable") from None
    return Budget(row["dataset"], row["adjacency"], epsilon, delta, row["created"])


def _read_entries(connection: Connection) -> list[Entry]:
    table = _tables().entries
    entries = []
    for row in connection.execute(table.select().order_by(table.c.number)).mappings():
        try:
            content = json.loads(row["content"])
        except ValueError:
            raise LedgerError(f"entry {row['number']} was edited: it is not readable") from None
        entries.append(Entry(row["number"], content, row["previous"], row["hash"]))
    return entries


def _entry_hash(number: int, content: dict[str, Any], previous: str) -> str:
    return sha256(canonical({"number": number, "content": content, "previous": previous}))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _process() -> dict[str, Any]:
    """Who is at work: enough to know later whether it still is."""
    return {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "started": _started(os.getpid())}


def _alive(process: dict[str, Any]) -> bool:
    """Whether that process still runs; taken to be so where that cannot be known (another machine)."""
    if process["host"] != socket.gethostname():
        return True
    return bool(process["boot"] == _boot() and _started(process["pid"]) == process["started"])


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _started(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _in_short(fault: BaseException) -> str:
    return " ".join(str(getattr(fault, "orig", None) or fault).split())


def _tables() -> Any:
    from dpmerge.release import tables

    return tables


def _database_error() -> type[Exception]:
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError
