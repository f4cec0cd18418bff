"""A possible release: a guarantee, its weights, its utility. What `plan` offers and `release` takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from dpmerge.errors import AccountingError, TargetError
from dpmerge.notebook import html_table
from dpmerge.planning.utility import Utilities
from dpmerge.planning.worth import Worth
from dpmerge.profiles import Profile, run_profile
from dpmerge.records import Adjacency, Portfolio, Weights
from dpmerge.rules import (
    DEFAULT_ACCOUNTING,
    Accounting,
    Guarantee,
    Placed,
    Provenance,
    Rule,
    RuleName,
    Target,
    Validated,
    Validation,
    build,
    placed_profiles,
    require_wanted,
    round_up,
    significant,
)

OptionRule = Literal[RuleName, "single"]  # one model alone
RULES: tuple[OptionRule, ...] = get_args(OptionRule)
UtilityKind = Literal["expected", "interpolated", "extrapolated", "predicted", "best of all"]
_MARKS = {"interpolated": "≈", "extrapolated": "?"}
_SHOWN = 1e-6  # smaller weights are released, but not shown


@dataclass(frozen=True)
class Total:
    """What all releases of a ledger guarantee together with one more, and whether that is within the budget, or why not."""

    guarantee: Guarantee
    fits: bool
    why: str = ""


@dataclass(frozen=True)
class Question:
    """A planning question without its ε: portfolio, δ, utilities and accounting, and the answers that do not depend on ε.

    `utility` is as given; `provenance` is what the user claims of weights without utilities. `with_noise`: averages may be
    released with noise. `releasing` makes a release of an option, and `counting` says what a ledger's total would be with it;
    callers that plan in order to release pass them in.
    """

    portfolio: Portfolio
    delta: float
    utility: Utilities | None = None
    provenance: Provenance | None = None
    kappa: float | None = None
    rules: tuple[OptionRule, ...] = RULES
    candidates: tuple[Weights, ...] = ()
    accounting: Accounting = DEFAULT_ACCOUNTING
    with_noise: bool = False
    progress: Callable[[str], None] = field(default=lambda label: None, compare=False, repr=False)
    releasing: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    counting: Callable[[Option], Total] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        Target(delta=self.delta)
        require_wanted(self.delta, self.accounting.any_delta)

    @property
    def looked(self) -> bool:
        """Whether the utilities were measured on the private models."""
        return self.utility is not None and self.utility.provenance != "a-priori"

    @property
    def private_scores(self) -> bool:
        """Whether the utilities come from a private validation set: nothing that is shown may depend on them."""
        return self.utility is not None and self.utility.validation is not None

    @cached_property
    def alone(self) -> dict[str, Guarantee | AccountingError]:
        """What each model guarantees alone, or why there is no guarantee."""
        self.progress("each model alone")
        found: dict[str, Guarantee | AccountingError] = {}
        for name in self.portfolio.names:
            try:
                found[name] = self.accounting.guarantee(self.rule("combination", self.vertex(name)), delta=self.delta)
            except AccountingError as error:
                found[name] = error
        return found

    @property
    def finite_alone(self) -> list[float]:
        """The finite ε of the models alone."""
        known = [found.epsilon for found in self.alone.values() if isinstance(found, Guarantee)]
        return [epsilon for epsilon in known if 0 < epsilon < math.inf]

    @cached_property
    def profiles(self) -> list[Profile]:
        return [run_profile(model, self.accounting.shuffle).profile for model in self.portfolio.models]

    @cached_property
    def groups(self) -> list[Placed]:
        """The same at every place of a record, where models saw parts of the data."""
        return placed_profiles(self.portfolio.models, self.accounting.shuffle)

    @cached_property
    def worth(self) -> Worth:
        """What options are ranked by; utilities from a private validation set may not be shown."""
        return self._worth(None if self.private_scores else self.utility)

    @cached_property
    def beforehand(self) -> Worth:
        """What is known without having looked at any model."""
        return self._worth(None) if self.looked else self.worth

    def _worth(self, utility: Utilities | None) -> Worth:
        known = {name: found.epsilon if isinstance(found, Guarantee) else 0.0 for name, found in self.alone.items()}
        return Worth.of(self.portfolio, utility, known)

    @property
    def shown(self) -> Utilities:
        """The utilities by which options are ranked."""
        return self.worth.utilities

    def rule(self, name: RuleName, weights: Weights, looked_at: tuple[str, ...] | None = None) -> Rule:
        """The rule that accounts for these weights, including the cost to a private validation set."""
        kappa = self.kappa if name == "tempered" else None
        made = build(name, weights, self.accounting.for_rule(name), looked_at=looked_at, kappa=kappa)
        if name != "tempered" or self.kappa is None or self.utility is None or self.utility.validation is None:
            return made
        paid = self.utility.validation.tempered_epsilon(self.kappa, self.portfolio.adjacency)
        return Validated(made, self.utility.validation, paid)

    @property
    def most_private(self) -> str:
        known = {name: found.epsilon for name, found in self.alone.items() if isinstance(found, Guarantee)}
        return min(known, key=known.__getitem__) if known else self.portfolio.names[0]

    def vertex(self, name: str) -> Weights:
        return self.portfolio.weights({name: 1.0})

    def everyone(self) -> Weights:
        return self.portfolio.weights({name: 1 / len(self.portfolio.names) for name in self.portfolio.names})

    def value(self, weights: Weights, noise: float = 0.0) -> float:
        """The utility of an average, as it is interpolated."""
        return self.worth.averaged(weights.values, noise)

    def option(
        self,
        rule: OptionRule,
        weights: Weights,
        found: Guarantee | None,
        why: str = "",
        utility: float | None = None,
        noise: float = 0.0,
    ) -> Option:
        """These weights with their guarantee, or with the reason why there is none."""
        draws, worth = rule in ("selection", "tempered"), self.worth
        mixed = rule == "combination" and (len(weights.used) > 1 or noise > 0)
        kind: UtilityKind = "predicted" if worth.predicted else "interpolated" if mixed else "expected"
        variance = (worth.drawn_variance if draws else worth.variance)(weights.values)
        if kind == "interpolated" and noise > 0 and not worth.within(weights.values, noise):
            kind = "extrapolated"
        if rule == "joint":
            kind, utility, variance = "best of all", *worth.best_merge
        if found is None or self.private_scores:
            utility = None
        elif utility is None:
            utility = worth.drawn(weights.values) if draws else worth.averaged(weights.values, noise)
        kind = "expected" if found is None else kind
        deviation = None if variance is None else math.hypot(math.sqrt(variance), noise)
        return Option(rule, weights, found, utility, self, why=why, utility_kind=kind, noise=noise, deviation=deviation)


@dataclass(frozen=True, repr=False)
class Option:
    """One way to release something, with its guarantee at the target's δ (or, where it is saturated, at its ε).

    `guarantee` is None where the rule is refused; `why` then gives the reason. Otherwise it says how much of the
    target ε `within` is left. `noise` is the standard deviation of the noise added at release, `deviation` what training and
    release together leave in a parameter, as records predict it.
    """

    rule: OptionRule
    weights: Weights
    guarantee: Guarantee | None
    utility: float | None
    question: Question = field(repr=False, compare=False)
    within: float | None = None
    feasible: bool = False
    why: str = ""
    utility_kind: UtilityKind = "expected"
    noise: float = 0.0
    deviation: float | None = None
    noiseless: str = ""  # why no noise is offered, where noise was asked for
    total: Guarantee | None = None  # of everything in the ledger and this, where there is one and the option meets the target

    @property
    def epsilon(self) -> float:
        return math.inf if self.guarantee is None else self.guarantee.epsilon

    @property
    def delta(self) -> float:
        return self.question.delta if self.guarantee is None else self.guarantee.delta

    @property
    def standing(self) -> str:
        return "refused" if self.guarantee is None else self.guarantee.standing

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sorts options: what fits first, by utility, of equal ones the more private; the rest by ε."""
        return (not self.feasible, -round(self.utility or 0.0, 9) if self.feasible else self.epsilon, self.epsilon)

    def beats(self, other: Option) -> bool:
        """At least as private at no larger δ, as useful and as well proved; anything beats what is refused."""
        if self.guarantee is None or other.guarantee is None:
            return other.guarantee is None
        useful = (self.utility or 0.0) >= (other.utility or 0.0)
        proved = self.standing == "proved" or other.standing != "proved"
        return self.epsilon <= other.epsilon and self.delta <= other.delta and useful and proved

    def release(
        self,
        out: str | Path,
        *,
        weights: Mapping[str, float] | None = None,
        ledger: str | Path | None = None,
        **how: Any,
    ) -> Any:
        """Draw or merge into the new folder `out`, certify, and enter the ledger given here or to the plan.

        Joint release covers any merge of the models, so it needs the `weights` to merge with. Other arguments are those of
        `dpmerge.merge`. Returns what that returns.
        """
        if not self.feasible:
            raise TargetError(f"this option does not meet the target: {self.why}")
        if self.question.releasing is None:
            raise TargetError("this option was not made by dpmerge.plan, so it cannot release itself")
        return self.question.releasing(self, out, weights=weights, ledger=ledger, **how)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = self.guarantee
        return {
            "rule": self.rule,
            "by": "none" if found is None else found.by,
            "weights": self.weights.as_dict(),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "standing": self.standing,
            "theorem": "none" if found is None else found.theorem,
            "expected_utility": self.utility,
            "feasible": self.feasible,
            "why": self.why,
            "utility_kind": self.utility_kind,
            "assumptions": () if found is None else found.assumptions,
            "details": {} if found is None else dict(found.details),
            "warnings": () if found is None else found.warnings,
            "noise": self.noise,
            "predicted_deviation": self.deviation,
            **({} if self.question.counting is None else {"total": None if self.total is None else self.total.as_dict()}),
        }

    def row(self) -> dict[str, str]:
        """For people: numbers rounded up, never in the user's favour."""
        known = "—" if self.utility is None else f"{self.utility:.4f}{_MARKS.get(self.utility_kind, '')}"
        worth = {"utility": known}
        if self.question.worth.predicted:
            worth = {"predicted noise": "—" if self.deviation is None else significant(self.deviation, 3)}
        return {
            "rule": self.rule,
            "fits": "yes" if self.feasible else "no",
            **worth,
            "ε": round_up(self.epsilon),
            "δ": significant(self.delta, 3),
            **(
                {}
                if self.question.counting is None
                else {"total ε": "—" if self.total is None else round_up(self.total.epsilon)}
            ),
            "standing": self.standing,
            "weights": self.described,
            "why": self.why,
        }

    @property
    def described(self) -> str:
        """The weights worth showing, and the noise."""
        shown = [f"{model.name}={value:.6g}" for model, value in self.weights.used if value >= _SHOWN]
        return ", ".join(shown) + (f"; noise {significant(self.noise, 4)}" if self.noise else "")

    def __str__(self) -> str:
        return self.why if self.guarantee is None else str(self.guarantee)

    def __repr__(self) -> str:
        told = self.why if self.guarantee is None else self.guarantee.claim
        beside = "" if self.feasible or self.guarantee is None else f" · does not fit: {self.why}"
        return f"<Option {self.rule} with {self.described}: {told}{beside}>"

    def _repr_html_(self) -> str:
        return html_table(list(self.row()), [list(self.row().values())])


def draw_strength(
    kappa: float | None, validation_epsilon: float | None, validation: Validation | None, adjacency: Adjacency
) -> float | None:
    """κ, or the κ at which the validation set's cost is `validation_epsilon`."""
    if validation_epsilon is None:
        return kappa
    if validation is None:
        raise TargetError("validation_epsilon only has a meaning for scores measured on a private validation set")
    if kappa is not None:
        raise TargetError("kappa and validation_epsilon both say how strong the draw is: give one of them")
    if not (math.isfinite(validation_epsilon) and validation_epsilon >= 0):
        raise TargetError(f"the validation set's epsilon is {validation_epsilon}; it must be finite and not negative")
    return validation.tempered_kappa(validation_epsilon, adjacency)
