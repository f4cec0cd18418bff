"""Which entries of a ledger count, and as what: releases of one ladder as the least noisy of them (docs/theory.md §9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpmerge.files import canonical
from dpmerge.records import Adjacency
from dpmerge.release.entries import Entry, standing
from dpmerge.release.forms import RuleForm
from dpmerge.rules import DRAWING, Exposure

Same = tuple[bytes, frozenset[tuple[str, str]]]
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
    same: Same | None  # equal for releases that are one function of the same tensors, without randomness of their own

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
            _same(content, names),
        )


def _same(content: Mapping[str, Any], names: Mapping[str, str]) -> Same | None:
    """What an average without noise is a function of, by which it is made again bit for bit: names give the order of the sum.

    `names` are those of the ledger, which stand for the records. Joint release and draws need none: the first counts once by
    itself, and the second has randomness of its own.
    """
    forms = content["forms"]
    averaged = len(forms) == 1 and forms[0]["rule"] == "combination" and forms[0].get("noise") is None
    known = content.get("contents", {}).keys() == content["records"].keys()
    if not averaged or not known or content["as_joint"]:
        return None
    return canonical([content[name] for name in ("forms", "names", "contents")]), frozenset(names.items())


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


def first_of_each(releases: Iterable[Counted]) -> dict[Same, Counted]:
    """Of releases that are one function of the same tensors the first, among those that depend on none."""
    found: dict[Same, Counted] = {}
    for one in releases:
        if one.same is not None and not one.dependent:
            found.setdefault(one.same, one)
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
