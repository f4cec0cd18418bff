"""A rule by its name, as commands, library and HTTP API ask for it: one question has one answer, that of a release."""

from __future__ import annotations

from typing import Literal

from dpmerge.errors import TargetError, UtilityError
from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import Weights
from dpmerge.rules.combination import Combination
from dpmerge.rules.guarantee import Rule
from dpmerge.rules.joint import Joint
from dpmerge.rules.selection import Selection

AskedName = Literal["selection", "combination", "joint"]
Looked = Literal["a-priori", "after-looking"]


def looked_at(weights: Weights, provenance: Looked | None) -> tuple[str, ...]:
    """What joint release counts besides the models that have weight: all others, unless the weights were fixed beforehand."""
    return () if provenance == "a-priori" else weights.portfolio.names


def require_covered(rule: str, provenance: str) -> None:
    """Refuse weights that were chosen by looking, under a rule that does not cover it (docs/theory.md §4)."""
    if provenance != "a-priori" and rule in ("selection", "combination"):
        raise UtilityError(
            f"weights chosen after looking at the models are not covered by {rule}: use --rule joint, or tempered selection"
        )


def require_smoothness_is_used(rule: str, assume_smoothness: float | None) -> None:
    """Refuse an assumption that has no meaning."""
    if assume_smoothness is not None and rule != "combination":
        raise TargetError(f"--assume-smoothness has no meaning for --rule {rule}: only linear combination uses it")


def asked(
    rule: AskedName,
    weights: Weights,
    *,
    provenance: Looked | None = None,
    assume_smoothness: float | None = None,
    shuffle: ShuffleAsPoisson | None = None,
) -> Rule:
    """The rule that accounts for a release with these weights.

    The model that a selection draws is published by name. Weights of selections and combinations are fixed beforehand; joint
    release counts every model of the portfolio, unless `provenance` says that its weights are too.
    """
    require_smoothness_is_used(rule, assume_smoothness)
    require_covered(rule, provenance or "a-priori")
    if rule == "selection":
        return Selection(weights, shuffle, index_published=True)
    if rule == "combination":
        return Combination(weights, assume_smoothness, shuffle)
    return Joint(weights, shuffle, looked_at(weights, provenance))
