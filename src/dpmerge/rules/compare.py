"""The same weights under every rule and baseline, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dpmerge.errors import AccountingError, UtilityError
from dpmerge.profiles import Conversion, ShuffleAsPoisson, run_profile
from dpmerge.records import Weights
from dpmerge.rules.asked import Looked, asked, looked_at
from dpmerge.rules.baselines import PairComposition, no_free_lunch_threshold, papers_no_free_lunch_threshold
from dpmerge.rules.deltas import require_wanted
from dpmerge.rules.guarantee import By, Guarantee, ProfileBound, Rule, Target, ask


@dataclass(frozen=True)
class Row:
    """One line of the comparison: a guarantee, or why there is none."""

    label: str
    guarantee: Guarantee | None
    refusal: str | None = None


@dataclass(frozen=True)
class NoFreeLunch:
    """How strongly a merger may react to the least private model if nothing but (ε, δ) pairs is known."""

    model: str
    epsilon_least: float
    threshold: float
    papers_threshold: float


def no_free_lunch(
    weights: Weights, epsilon: float, delta: float, shuffle: ShuffleAsPoisson | None = None
) -> NoFreeLunch | None:
    """The threshold for a target that lies below the least private model, which is the case it is about."""
    alone = [(ask(ProfileBound(run_profile(m, shuffle).profile), Target(delta=delta)).epsilon, m.name) for m, _ in weights.used]
    least, name = max(alone)
    if not epsilon < least:
        return None
    arguments = (epsilon, delta, least, delta)
    return NoFreeLunch(name, least, no_free_lunch_threshold(*arguments), papers_no_free_lunch_threshold(*arguments))


def compare(
    weights: Weights,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    by: By = "best",
    conversion: Conversion = "tight",
    assume_smoothness: float | None = None,
    shuffle: ShuffleAsPoisson | None = None,
    provenance: Looked | None = None,
    any_delta: bool = False,
    progress: Callable[[str], None] = lambda label: None,
) -> list[Row]:
    """RS, LC (proved), LC (papers' formula), joint release, and the three compositions of (ε, δ) pairs.

    `provenance` says who chose the weights, as for a release (`asked.asked`): after looking, selection and combination are
    refused; joint release and compositions count every model, unless the weights were fixed beforehand.
    """
    require_wanted(delta, any_delta)
    looked = looked_at(weights, provenance)
    rule = partial(asked, weights=weights, provenance=provenance, shuffle=shuffle)
    rules: list[tuple[str, Callable[[], Rule]]] = [
        ("random selection", partial(rule, "selection")),
        ("linear combination (proved)", partial(rule, "combination", assume_smoothness=assume_smoothness)),
        ("linear combination (papers' formula)", partial(rule, "combination", assume_smoothness=0.0)),
        ("joint release", partial(rule, "joint")),
        ("optimal composition", lambda: PairComposition(weights, "optimal", shuffle, looked)),
        ("advanced composition", lambda: PairComposition(weights, "advanced", shuffle, looked)),
        ("basic composition", lambda: PairComposition(weights, "basic", shuffle, looked)),
    ]
    rows = []
    for label, made in rules:
        progress(label)
        try:
            found = made().guarantee(delta=delta, epsilon=epsilon, by=by, conversion=conversion)
            rows.append(Row(label, found))
        except (AccountingError, UtilityError) as error:
            rows.append(Row(label, None, str(error)))
    return rows
