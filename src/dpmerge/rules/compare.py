"""The same weights under every rule and baseline, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpmerge.errors import AccountingError
from dpmerge.profiles.renyi import Conversion
from dpmerge.profiles.runs import ShuffleAsPoisson, run_profile
from dpmerge.records import Weights
from dpmerge.rules.asked import Looked, looked_at
from dpmerge.rules.baselines import PairComposition, no_free_lunch_threshold, papers_no_free_lunch_threshold
from dpmerge.rules.combination import Combination
from dpmerge.rules.deltas import require_wanted
from dpmerge.rules.guarantee import By, Guarantee, ProfileBound, Rule, Target, ask
from dpmerge.rules.joint import Joint
from dpmerge.rules.selection import Selection


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

    `provenance` is about joint release and compositions: which models they count (`asked.looked_at`).
    """
    require_wanted(delta, any_delta)
    looked = looked_at(weights, provenance)
    rules: list[tuple[str, Callable[[], Rule]]] = [
        ("random selection", lambda: Selection(weights, shuffle, index_published=True)),
        ("linear combination (proved)", lambda: Combination(weights, assume_smoothness, shuffle)),
        ("linear combination (papers' formula)", lambda: Combination(weights, 0.0, shuffle)),
        ("joint release", lambda: Joint(weights, shuffle, looked)),
        ("optimal composition", lambda: PairComposition(weights, "optimal", shuffle, looked)),
        ("advanced composition", lambda: PairComposition(weights, "advanced", shuffle, looked)),
        ("basic composition", lambda: PairComposition(weights, "basic", shuffle, looked)),
    ]
    rows = []
    for label, rule in rules:
        progress(label)
        try:
            found = rule().guarantee(delta=delta, epsilon=epsilon, by=by, conversion=conversion)
            rows.append(Row(label, found))
        except AccountingError as error:
            rows.append(Row(label, None, str(error)))
    return rows
