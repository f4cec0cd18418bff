"""The same weights under every rule and baseline, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpmerge.errors import AccountingError
from dpmerge.profiles.renyi import Conversion
from dpmerge.profiles.runs import ShuffleAsPoisson
from dpmerge.records import Weights
from dpmerge.rules.baselines import PairComposition
from dpmerge.rules.combination import Combination
from dpmerge.rules.guarantee import By, Guarantee, Rule
from dpmerge.rules.joint import Joint
from dpmerge.rules.selection import Selection


@dataclass(frozen=True)
class Row:
    """One line of the comparison: a guarantee, or why there is none."""

    label: str
    guarantee: Guarantee | None
    refusal: str | None = None


def compare(
    weights: Weights,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    by: By = "best",
    conversion: Conversion = "tight",
    assume_smoothness: float | None = None,
    shuffle: ShuffleAsPoisson | None = None,
    progress: Callable[[str], None] = lambda label: None,
) -> list[Row]:
    """RS, LC (proved), LC (papers' formula), joint release, and the three compositions of (ε, δ) pairs."""
    rules: list[tuple[str, Callable[[], Rule]]] = [
        ("random selection", lambda: Selection(weights, shuffle)),
        ("linear combination (proved)", lambda: Combination(weights, assume_smoothness, shuffle)),
        ("linear combination (papers' formula)", lambda: Combination(weights, 0.0, shuffle)),
        ("joint release", lambda: Joint(weights, shuffle)),
        ("optimal composition", lambda: PairComposition(weights, "optimal", shuffle)),
        ("advanced composition", lambda: PairComposition(weights, "advanced", shuffle)),
        ("basic composition", lambda: PairComposition(weights, "basic", shuffle)),
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
