"""A rule by its name, and how it is accounted: the one way for commands, library, certificates and HTTP API."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from dpmerge.errors import TargetError, UtilityError
from dpmerge.profiles import Conversion, ShuffleAsPoisson, grids_of_accuracy
from dpmerge.records import Weights, meant
from dpmerge.rules.arithmetic import Arithmetic
from dpmerge.rules.combination import Combination
from dpmerge.rules.guarantee import By, Guarantee, Rule
from dpmerge.rules.joint import Joint
from dpmerge.rules.renoised import Rounding
from dpmerge.rules.selection import Selection
from dpmerge.rules.statements import require_wanted
from dpmerge.rules.tempered import Tempered

GridRule = Literal["selection", "combination"]  # their ε depends on the weights, and can be drawn over them
PlainRule = Literal[GridRule, "joint"]  # a portfolio and weights are all they need
RuleName = Literal[PlainRule, "tempered"]
Looked = Literal["a-priori", "after-looking"]
Provenance = Literal[Looked, "private-validation"]


@dataclass(frozen=True)
class Accounting:
    """How guarantees are computed: the accountant, the user's assumptions, and how fine the grids are.

    `by` is an accountant or the best that applies; `conversion` is from Rényi divergences to (ε, δ). `assume_smoothness`
    replaces what records say of gradients; `shuffle` accounts shuffled batches as Poisson ones. Both make guarantees
    conditional. `any_delta` accepts a δ above 0.01. `accuracy` is by how much, relatively, a grid may raise ε. `only_release`
    grants that nothing else of the runs is ever published, which theorem hidden-run assumes. `quick` asks for a bound on
    averages that takes little time: valid, and above what a search finds.
    """

    by: By = "best"
    conversion: Conversion = "tight"
    assume_smoothness: float | None = None
    shuffle: ShuffleAsPoisson | None = None
    any_delta: bool = False
    accuracy: float = 1e-5
    only_release: bool = True
    quick: bool = False

    def __post_init__(self) -> None:
        assumed = self.assume_smoothness
        if assumed is not None and not (math.isfinite(assumed) and assumed >= 0):
            raise TargetError(f"assume_smoothness is {assumed}; it must be finite and not negative")

    def for_rule(self, rule: str) -> Accounting:
        """The same without what the rule has no use for."""
        return self if rule == "combination" else replace(self, assume_smoothness=None)

    def guarantee(self, rule: Rule, *, delta: float | None = None, epsilon: float | None = None) -> Guarantee:
        """The rule's ε at a given δ, or its δ at a given ε."""
        require_wanted(delta, self.any_delta)
        with grids_of_accuracy(self.accuracy):
            return rule.guarantee(delta=delta, epsilon=epsilon, by=self.by, conversion=self.conversion)


DEFAULT_ACCOUNTING = Accounting()


def counted_besides(weights: Weights, provenance: str | None) -> tuple[str, ...]:
    """The models without weight that joint release counts too: all of them, unless the weights were fixed beforehand."""
    return () if provenance == "a-priori" else weights.portfolio.names


def require_covered(rule: str, provenance: str) -> None:
    """Refuse weights that were chosen by looking, under a rule that does not cover it (docs/theory.md §4)."""
    if provenance != "a-priori" and rule in ("selection", "combination"):
        raise UtilityError(
            f"weights chosen after looking at the models are not covered by {rule}: use joint release, "
            "or tempered selection with a strength `kappa`"
        )


def require_used(rule: str, assume_smoothness: float | None, kappa: float | None) -> None:
    """Refuse an unknown rule, what has no meaning for the rule, and a tempered draw without its strength."""
    if rule not in (known := get_args(RuleName)):
        raise TargetError(f"no rule is named {rule!r}; there are {', '.join(known)}{meant(rule, known)}")
    if assume_smoothness is not None and rule != "combination":
        raise TargetError(f"assume_smoothness has no meaning for {rule}: only linear combination uses it")
    if (rule == "tempered") != (kappa is not None):
        raise TargetError("kappa, the strength of the draw, belongs to tempered selection, which needs it")


def build(
    rule: RuleName,
    weights: Weights,
    accounting: Accounting = DEFAULT_ACCOUNTING,
    *,
    provenance: Looked | None = None,
    looked_at: tuple[str, ...] | None = None,
    kappa: float | None = None,
    arithmetic: Arithmetic | None = None,
    noise: float = 0.0,
    rounding: Rounding | None = None,
) -> Rule:
    """The rule that accounts for a release with these weights.

    The model that a selection draws is published by name. Weights of selections and combinations are fixed beforehand; joint
    release counts every model of the portfolio, unless `provenance` says that its weights are too, or `looked_at` names the
    models. `kappa` is the strength of a tempered draw, `arithmetic` what an average of stored numbers relies on, `noise` the
    standard deviation of fresh Gaussian noise on each parameter of an average; with `rounding`, part of it was added to a file.
    """
    require_used(rule, accounting.assume_smoothness, kappa)
    if noise and rule != "combination":
        raise TargetError(f"noise at release has no meaning for {rule}: only linear combination, also of one model, adds it")
    require_covered(rule, provenance or "a-priori")
    if rule == "selection":
        return Selection(weights, accounting.shuffle)
    if rule == "combination":
        assumed, shuffle = accounting.assume_smoothness, accounting.shuffle
        how = (arithmetic, noise, accounting.only_release, rounding)
        return Combination(weights, assumed, shuffle, *how, quick=accounting.quick)
    if kappa is not None:
        return Tempered(weights, kappa, accounting.shuffle)
    return Joint(weights, accounting.shuffle, counted_besides(weights, provenance) if looked_at is None else looked_at)
