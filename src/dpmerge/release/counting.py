"""Which entries of a ledger count, and as what: releases of one ladder as the least noisy of them (docs/theory.md §9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpmerge.records import Adjacency
from dpmerge.release.entries import Entry, standing
from dpmerge.release.forms import RuleForm
from dpmerge.rules import DRAWING, Exposure

LadderKey = tuple[str, *tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Counted:
    """A release to be counted, with its models under their names in the ledger."""

    forms: tuple[RuleForm, ...]
    exposure: Exposure
    involved: frozenset[str]
    as_joint: bool
    dependent: bool
    pays: tuple[float, ...]  # the cost of its choice to private validation sets
    ladder: LadderKey | None  # of noise that other releases share; none where its certificate shows digests of the models
    noise: float

    @classmethod
    def of(cls, content: Mapping[str, Any], names: Mapping[str, str], adjacency: Adjacency) -> Counted:
        outcomes = ((Fraction(p), frozenset(names[name] for name in members)) for p, members in content["exposure"])
        forms = tuple(RuleForm.model_validate(form) for form in content["forms"])
        return cls(
            forms,
            Exposure(tuple(outcomes)),
            frozenset(names.values()),
            content["as_joint"],
            content.get("dependent", False),
            tuple(form.paid(adjacency) + DRAWING for form in forms if form.validation is not None),
            None if content["as_joint"] else ladder_of(content),
            forms[0].deviation,
        )


def ladder_of(content: Mapping[str, Any]) -> LadderKey | None:
    """Which path the noise of an entry is a point of: the ladder, and its weights, without which the path means nothing."""
    form = content["forms"][0]
    if "ladder" not in form or len(content["forms"]) > 1:
        return None
    return form["ladder"], *sorted(form["weights"].items())


def charged(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that count: releases that stand, floors, and what releases above it relied on.

    A less noisy release that was voided stays charged if a later one of its ladder, which depends on earlier ones, was free
    because of it.
    """
    counted = standing(entries)
    last: dict[LadderKey, int] = {}
    for entry in counted:
        ladder = ladder_of(entry.content)
        if ladder is not None and entry.content.get("dependent", False):
            last[ladder] = entry.number
    numbers = {entry.number for entry in counted}

    def counts(entry: Entry) -> bool:
        if entry.kind != "release" or entry.number in numbers:
            return entry.kind in ("release", "floor")
        ladder = ladder_of(entry.content)
        return ladder is not None and not entry.content.get("dependent", False) and entry.number < last.get(ladder, 0)

    return [entry for entry in entries if counts(entry)]
