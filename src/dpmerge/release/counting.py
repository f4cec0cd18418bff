"""Which entries of a ledger count, and as what: releases of one ladder as the least noisy of them (docs/theory.md §9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    settled: bool  # it can no longer be voided

    @classmethod
    def of(cls, content: Mapping[str, Any], names: Mapping[str, str], adjacency: Adjacency, settled: bool) -> Counted:
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
            settled,
        )


def ladder_of(content: Mapping[str, Any]) -> LadderKey | None:
    """Which path the noise of an entry is a point of: the ladder, and its weights, without which the path means nothing."""
    form = content["forms"][0]
    if "ladder" not in form or len(content["forms"]) > 1:
        return None
    return form["ladder"], *sorted(form["weights"].items())


def least_noisy(releases: Iterable[Counted]) -> dict[LadderKey, Counted]:
    """Of each ladder, among the releases that depend on none."""
    found: dict[LadderKey, Counted] = {}
    for one in releases:
        if one.ladder is not None and not one.dependent:
            found[one.ladder] = min(found.get(one.ladder, one), one, key=lambda counted: counted.noise)
    return found


def charged(entries: Sequence[Entry]) -> list[tuple[Entry, bool]]:
    """The entries that count, releases that stand and floors; and whether each is settled: it can no longer be voided."""
    standing_now = {entry.number for entry in standing(entries)}
    completed = {entry.content["of"] for entry in entries if entry.kind == "completed"}
    return [
        (entry, entry.kind == "floor" or entry.number in completed)
        for entry in entries
        if entry.kind == "floor" or entry.number in standing_now
    ]
