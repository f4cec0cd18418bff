"""What a ledger holds: the declared budget, and a chain of entries, each with the hash of the one before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dpmerge.errors import LedgerError
from dpmerge.files import canonical, sha256
from dpmerge.records import Adjacency, Portfolio
from dpmerge.release.certificate import now
from dpmerge.release.forms import COVERS_INPUTS, RuleForm
from dpmerge.release.known import identities
from dpmerge.rules import Exposure, Guarantee, Rule


@dataclass(frozen=True)
class Entry:
    number: int
    content: dict[str, Any]
    previous: str
    hash: str

    @classmethod
    def following(cls, entries: Sequence[Entry], start: str, content: dict[str, Any]) -> Entry:
        """The next entry of a chain that begins with the hash `start`."""
        number, previous = len(entries) + 1, entries[-1].hash if entries else start
        return cls(number, content, previous, _hash(number, canonical(content).decode(), previous))

    @property
    def kind(self) -> str:
        """`release`, its outcome (`completed`, `recovered`, `voided`), `floor`, or `filter`, `portfolio` at the start."""
        return str(self.content["kind"])


class Row(NamedTuple):
    """An entry as it is written."""

    number: int
    content: str
    previous: str
    hash: str


def standing(entries: Sequence[Entry]) -> list[Entry]:
    """The releases that count: those not voided, and those completed although they had been voided."""
    last = {entry.content["of"]: entry.kind for entry in entries if entry.kind in ("voided", "completed")}
    gone = {number for number, kind in last.items() if kind == "voided"}
    return [entry for entry in entries if entry.kind == "release" and entry.number not in gone]


def became(entries: Sequence[Entry], release: Entry, kind: str) -> list[dict[str, Any]]:
    """What later entries of this kind say of a release, in order."""
    return [one.content for one in entries if one.kind == kind and one.content["of"] == release.number]


def voided(number: int, reason: str, by: str) -> dict[str, Any]:
    return {"kind": "voided", "at": now(), "of": number, "reason": reason, "by": by}


def completed(number: int, certificates: Sequence[str]) -> dict[str, Any]:
    return {"kind": "completed", "at": now(), "of": number, "certificates": list(certificates)}


def unfinished(entries: Sequence[Entry]) -> list[Entry]:
    """Releases that were entered, but neither completed, recovered nor voided."""
    closed = _about(entries, "completed", "recovered")
    return [entry for entry in standing(entries) if entry.number not in closed]


def _about(entries: Sequence[Entry], *kinds: str) -> set[int]:
    return {entry.content["of"] for entry in entries if entry.kind in kinds}


def checked(start: str, rows: Sequence[Row], length: int, head: str, known: Sequence[Entry] = ()) -> list[Entry]:
    """Check the chain from the hash `start` to the hash `head` and return its entries; the error names what was changed.

    `known` are entries of the first rows, which were checked when they were read before.
    """
    entries = [*known[: max(length, 0)]]
    records: dict[str, Any] = {}
    for number, row in enumerate(rows[len(entries) :], start=len(entries) + 1):
        if row.number != number:
            raise LedgerError(f"entry {number} is missing")
        if number > length:
            raise LedgerError(f"entry {number} was put in from outside")
        # Of the text itself, so that there is one way to write an entry.
        content = _parsed(row.content) if row.hash == _hash(number, row.content, row.previous) else None
        if content is None:
            raise LedgerError(f"entry {number} was edited")
        if row.previous != (entries[-1].hash if entries else start):
            before = f"entry {number - 1}" if entries else "the declared budget"
            raise LedgerError(f"{before} was edited, or entry {number} replaced: the second does not follow from the first")
        if isinstance(stated := content.get("records"), dict):  # the same ones in most entries: kept once
            content["records"] = {
                name: one if records.setdefault(name, one) != one else records[name] for name, one in stated.items()
            }
        entries.append(Entry(number, content, row.previous, row.hash))
    if len(entries) < length:
        raise LedgerError(f"entry {len(entries) + 1} is missing")
    if head != (entries[-1].hash if entries else start):
        what = f"entry {length} is not the one that the ledger ended with" if entries else "the declared budget was edited"
        raise LedgerError(what)
    return entries


def _parsed(text: Any) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
        return content if isinstance(content, dict) else None
    except (ValueError, TypeError, RecursionError):
        return None


def _hash(number: int, content: str, previous: Any) -> str:
    """Of the canonical form of all three, of which the content has its own already."""
    rest = canonical({"number": number, "previous": str(previous)}).decode()
    return sha256(f'{{"content":{content},{rest[1:]}'.encode())


# --- the budget, and a release that is about to be entered -------------------------------------------------------------------

SCHEMA = 1


@dataclass(frozen=True)
class Budget:
    """What may be spent in all."""

    dataset: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    created: str

    def header(self) -> dict[str, Any]:
        numbers = {"epsilon": self.epsilon.hex(), "delta": self.delta.hex()}
        return {"schema": SCHEMA, "dataset": self.dataset, "adjacency": self.adjacency, "created": self.created, **numbers}

    @property
    def hash(self) -> str:
        return sha256(canonical(self.header()))

    def require_same_data(self, portfolio: Portfolio, name: str) -> None:
        """Refuse a portfolio of other data, or of another notion of neighbours; `name` is the ledger's."""
        record = portfolio.models[0].record
        if record.dataset != self.dataset:
            raise LedgerError(f"{name} is for dataset {self.dataset!r}; the portfolio is for {record.dataset!r}")
        if record.adjacency != self.adjacency:
            raise LedgerError(
                f"{name} counts for {self.adjacency} neighbours; the portfolio's records are for {record.adjacency} ones"
            )

    def total(self, rules: Sequence[Rule], delta: float | None = None) -> Guarantee:
        """ε at the budget's δ, or on the edge of the budget δ at its ε, by the best of rules that each bound the same.

        Each of the two questions has its own grid; either answer is a proof. `delta` is what a filter leaves of δ.
        """
        most = self.delta if delta is None else delta
        found = min((rule.guarantee(delta=most) for rule in rules), key=lambda answer: answer.epsilon)
        if found.epsilon <= self.epsilon:
            return found
        edge = min((rule.guarantee(epsilon=self.epsilon) for rule in rules), key=lambda answer: answer.delta)
        return edge if edge.delta <= most else found

    def allows(self, total: Guarantee, delta: float | None = None) -> bool:
        return total.epsilon <= self.epsilon and total.delta <= (self.delta if delta is None else delta)


@dataclass(frozen=True)
class PendingEntry:
    """A release about to be made: its rule (several for coupled draws), its portfolio, and where it will be.

    `dependent`: chosen using the output of earlier releases. With other outputs another release would have been made, so
    counting only this one is not enough, except under a filter.
    `drawn` are the models drawn for it, and `temporary` is its folder until it can be seen. `contents` are
    the digests of the models' tensors by name; where they are not known, a run and a record are taken for one model.
    A `floor` is no release: it charges a ladder for the noise down to which its releases are free.
    """

    forms: tuple[RuleForm, ...]
    portfolio: Portfolio
    exposure: Exposure
    guarantees: tuple[Guarantee, ...]
    out: str
    dependent: bool = False
    drawn: tuple[str, ...] = ()
    temporary: str | None = None
    contents: Mapping[str, str] = field(default_factory=dict)
    recipient: str | None = None
    kind: Literal["release", "floor"] = "release"

    def content(self) -> dict[str, Any]:
        """What the ledger keeps of it: everything that is needed to account for it, under names that are the ledger's."""
        names = identities(self.portfolio)
        involved = {*self.exposure.models, *(name for form in self.forms for name in form.involved)}
        return {
            "forms": [form.renamed(names).model_dump(mode="json") for form in self.forms],
            **models_content(self.portfolio, involved, self.contents),
            "exposure": [[str(p), sorted(names[name] for name in members)] for p, members in self.exposure.outcomes],
            "as_joint": self._shows_inputs,
            **({"dependent": True} if self.dependent else {}),
            **({"drawn": [names[name] for name in self.drawn]} if self.drawn else {}),
            **({} if self.recipient is None else {"recipient": self.recipient}),
        }

    @property
    def _shows_inputs(self) -> bool:
        """Whether a certificate carries digests of averaged models, which a bound on their average alone does not cover."""
        pairs = zip(self.forms, self.guarantees, strict=False)
        return any(form.rule == "combination" and one.theorem in COVERS_INPUTS for form, one in pairs)


def models_content(portfolio: Portfolio, involved: set[str], contents: Mapping[str, str]) -> dict[str, Any]:
    names = identities(portfolio)
    models = [model for model in portfolio.models if model.name in involved]
    return {
        "names": {names[model.name]: model.name for model in models},
        "records": {names[model.name]: model.record.as_dict() for model in models},
        "contents": {names[model.name]: contents[model.name] for model in models if model.name in contents},
    }


def drawn_before(entries: Sequence[Entry], content: Mapping[str, Any]) -> list[str] | None:
    """What the same draw drew when it was last entered, if it was voided then.

    It is used again, not drawn again: whether a model can be written may depend on the model, and draws that are repeated
    until one can be written prefer some models to others.
    """
    counted = {entry.number for entry in standing(entries)}
    for entry in reversed(entries):
        if entry.kind == "release" and entry.content["forms"] == content["forms"]:
            return None if entry.number in counted else entry.content.get("drawn")
    return None
