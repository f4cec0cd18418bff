"""What everything in a ledger guarantees together (docs/theory.md §5)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpmerge.errors import AccountingError
from dpmerge.profiles.runs import ShuffleAsPoisson
from dpmerge.records import Adjacency, Portfolio
from dpmerge.release.canonical import canonical, sha256
from dpmerge.release.chain import Entry, standing
from dpmerge.release.forms import COVERS_INPUTS, RuleForm
from dpmerge.release.known import KnownModels, identities
from dpmerge.rules import Guarantee, Rule
from dpmerge.rules.releases import Exposure, Releases
from dpmerge.rules.tempered import DRAWING
from dpmerge.rules.validation import Validated, Validation

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

    def total(self, rules: Sequence[Rule]) -> Guarantee:
        """ε at the budget's δ, or on the edge of the budget δ at its ε, by the best of rules that each bound the same.

        Each of the two questions has its own grid; either answer is a proof.
        """
        found = min((rule.guarantee(delta=self.delta) for rule in rules), key=lambda answer: answer.epsilon)
        if found.epsilon <= self.epsilon:
            return found
        edge = min((rule.guarantee(epsilon=self.epsilon) for rule in rules), key=lambda answer: answer.delta)
        return edge if edge.delta <= self.delta else found

    def allows(self, total: Guarantee) -> bool:
        """Whether so much may be spent."""
        return total.epsilon <= self.epsilon and total.delta <= self.delta


@dataclass(frozen=True)
class Planned:
    """A release about to be made: its rule (several for coupled draws), its portfolio, and where it will be.

    `dependent`: its weights depend on what earlier releases showed. Other outcomes of these would have led to other weights,
    so it counts as all models of the portfolio; counting those that happened to get weight would be too little.
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
        exposure = Exposure.whole(self.portfolio.names) if self.dependent else self.exposure
        involved = {*exposure.models, *(name for form in self.forms for name in (*form.weights, *form.looked_at))}
        models = [model for model in self.portfolio.models if model.name in involved]
        return {
            "forms": [form.renamed(names).model_dump(mode="json") for form in self.forms],
            "names": {names[model.name]: model.name for model in models},
            "records": {names[model.name]: model.record.as_dict() for model in models},
            "exposure": [[str(p), sorted(names[name] for name in members)] for p, members in exposure.outcomes],
            "as_joint": self.dependent or self._shows_inputs,
            "contents": {names[model.name]: self.contents[model.name] for model in models if model.name in self.contents},
            **({"drawn": [names[name] for name in self.drawn]} if self.drawn else {}),
        }

    @property
    def _shows_inputs(self) -> bool:
        """Whether a certificate carries digests of models averaged, which another bound on their average does not cover."""
        pairs = zip(self.forms, self.guarantees, strict=False)
        return any(form.rule == "combination" and one.theorem in COVERS_INPUTS for form, one in pairs)


def rules_for(entries: Sequence[Entry], new: Planned | None = None) -> list[Rule]:
    """All releases together, and one more: rules that each bound them; none if there is nothing.

    A single release is what its own rule says. Several are what has leaked of the models, whatever rules they were.
    """
    known = KnownModels()
    forms: list[RuleForm] = []
    exposures: list[Exposure] = []
    contents = [(f"entry {entry.number}", entry.content) for entry in standing(entries)]
    if new is not None:
        contents.append(("this release", new.content()))
    for source, content in contents:
        own = known.add(content, source)
        forms += [RuleForm.model_validate(form) for form in content["forms"]]
        outcomes = ((Fraction(p), frozenset(own[name] for name in names)) for p, names in content["exposure"])
        exposures.append(Exposure(tuple(outcomes)))
    if not forms:
        return []
    whole = Portfolio(tuple(known.models[name] for name in sorted(known.models)))
    rates = [float.fromhex(form.shuffle_rate) for form in forms if form.shuffle_rate is not None]
    shuffle = ShuffleAsPoisson(max(rates)) if rates else None
    if len(forms) > 1 or contents[0][1]["as_joint"] or not _is_itself(forms[0], whole, exposures[0]):
        return [_with_validation(Releases(whole, exposures, shuffle), forms)]
    rules = [forms[0].build(whole, proved=True)]
    if forms[0].rule == "tempered":  # alone of all rules its own bound may be above joint release, which covers it
        with contextlib.suppress(AccountingError):
            rules.append(_with_validation(Releases(whole, exposures, shuffle), forms))
    return rules


def _is_itself(form: RuleForm, models: Portfolio, exposure: Exposure) -> bool:
    """Whether a lone release is what its rule says: of models that are not one under two names, and no more than a draw."""
    return form.involved <= {*models.names} and set(form.exposure(models, False).outcomes) == set(exposure.outcomes)


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


def _with_validation(rule: Rule, forms: Sequence[RuleForm]) -> Rule:
    """Add what choices by private validation sets cost (docs/theory.md §4), given that any two sets may be the same one.

    A record of D may be in every set that is not disjoint from D; a record of no D may be in all of them.
    """
    paid = [form.validation for form in forms if form.validation is not None]
    for one in paid:
        if not one.disjoint:
            rule = Validated(rule, Validation(one.records, False), float.fromhex(one.epsilon))
    if any(one.disjoint for one in paid):
        costs = math.fsum(float.fromhex(one.epsilon) + DRAWING for one in paid)
        rule = Validated(rule, Validation(max(one.records for one in paid), True), costs)
    return rule
