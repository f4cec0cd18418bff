"""What may be spent, and a release that is about to be: what a ledger keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpmerge.records import Adjacency, Portfolio
from dpmerge.release.canonical import canonical, sha256
from dpmerge.release.chain import Entry, standing
from dpmerge.release.forms import COVERS_INPUTS, RuleForm
from dpmerge.release.known import identities
from dpmerge.rules import Exposure, Guarantee, Rule

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
        """What the chain begins with."""
        numbers = {"epsilon": self.epsilon.hex(), "delta": self.delta.hex()}
        return {"schema": SCHEMA, "dataset": self.dataset, "adjacency": self.adjacency, "created": self.created, **numbers}

    @property
    def hash(self) -> str:
        """What the first entry carries."""
        return sha256(canonical(self.header()))

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
        """Whether so much may be spent."""
        return total.epsilon <= self.epsilon and total.delta <= (self.delta if delta is None else delta)


@dataclass(frozen=True)
class Planned:
    """A release about to be made: its rule (several for coupled draws), its portfolio, and where it will be.

    `dependent`: what it is, or that it is made, depends on what earlier releases showed. Other outcomes of these would have led
    to another release, so counting this one is too little, unless by a filter.
    `drawn` is what was drawn for it, and `temporary` the folder that is there as long as nothing of it was seen. `contents` are
    the digests of the models' tensors by name; where they are not known, a run and a record are taken for one model.
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
        }

    @property
    def _shows_inputs(self) -> bool:
        """Whether a certificate carries digests of models averaged, which another bound on their average does not cover."""
        pairs = zip(self.forms, self.guarantees, strict=False)
        return any(form.rule == "combination" and one.theorem in COVERS_INPUTS for form, one in pairs)


def models_content(portfolio: Portfolio, involved: set[str], contents: Mapping[str, str]) -> dict[str, Any]:
    """What the ledger keeps of models."""
    names = identities(portfolio)
    models = [model for model in portfolio.models if model.name in involved]
    return {
        "names": {names[model.name]: model.name for model in models},
        "records": {names[model.name]: model.record.as_dict() for model in models},
        "contents": {names[model.name]: contents[model.name] for model in models if model.name in contents},
    }


def drawn_before(entries: Sequence[Entry], content: Mapping[str, Any]) -> list[str] | None:
    """What the same draw drew when it was last entered, if it was voided then.

    It is done again, not drawn again: whether a model can be written may depend on the model, and draws that are repeated
    until one can be written prefer some models to others.
    """
    counted = {entry.number for entry in standing(entries)}
    for entry in reversed(entries):
        if entry.kind == "release" and entry.content["forms"] == content["forms"]:
            return None if entry.number in counted else entry.content.get("drawn")
    return None
