"""The best one may release for a target: every rule with its best weights, ranked, and why the rest does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, cast

from dpmerge.errors import AccountingError, TargetError
from dpmerge.planning.draw import tilted_odds
from dpmerge.planning.feasible import FeasibleSet, blend
from dpmerge.planning.optimum import selection_optimum
from dpmerge.planning.utility import Utilities
from dpmerge.profiles import Conversion, Profile, ShuffleAsPoisson, run_profile
from dpmerge.records import Adjacency, Portfolio, Weights
from dpmerge.rules import (
    Accountant,
    By,
    Combination,
    Guarantee,
    Joint,
    Rule,
    Selection,
    Standing,
    Target,
    Tempered,
    Validated,
    Validation,
    require_wanted,
    round_down,
    round_up,
)

RuleName = Literal["selection", "combination", "joint", "tempered", "single"]
RULES: tuple[RuleName, ...] = ("selection", "combination", "joint", "tempered", "single")
_GOALS = 6  # a search towards every one of many models would take minutes
_LOOKED = (
    "the utilities were measured on the private models, so weights chosen by them are a function of those models: only joint "
    "release of every model looked at, or tempered selection, covers it"
)
NOT_DRAWN = (
    "the scores come from a private validation set, and only a draw by them is paid for: tempered selection, with --kappa, or "
    "with --validation-epsilon for what the set's records may pay"
)


@dataclass(frozen=True)
class Option:
    """One way to release something, with its guarantee at the target's δ (or, where it is saturated, at its ε)."""

    rule: RuleName
    by: str
    weights: Mapping[str, float]
    epsilon: float
    delta: float
    standing: str
    theorem: str
    expected_utility: float | None
    feasible: bool
    why: str
    utility_kind: Literal["expected", "interpolated", "best of all"] = "expected"
    assumptions: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, rule: RuleName, weights: Weights, found: Guarantee, utility: float | None, *, feasible: bool = True, why: str = ""
    ) -> Option:
        """These weights with their guarantee; the utility of an average is interpolated between the models'."""
        return cls(
            rule=rule,
            by=found.by,
            weights=weights.as_dict(),
            epsilon=found.epsilon,
            delta=found.delta,
            standing=found.standing,
            theorem=found.theorem,
            expected_utility=utility,
            feasible=feasible,
            why=why,
            utility_kind="interpolated" if rule == "combination" and len(weights.used) > 1 else "expected",
            assumptions=found.assumptions,
            details=found.details,
            warnings=found.warnings,
        )

    def guarantee(self, adjacency: Adjacency) -> Guarantee | None:
        """Its guarantee; none where it is refused."""
        if self.standing == "refused":
            return None
        standing, by = cast("Standing", self.standing), cast("Accountant", self.by)
        found = (self.epsilon, self.delta, adjacency, self.theorem, self.assumptions, standing, by, self.rule, self.weights)
        return Guarantee(*found, warnings=self.warnings)


@dataclass(frozen=True)
class Plan:
    """The options for one target, best first."""

    epsilon: float
    delta: float
    provenance: str
    utilities: Mapping[str, float]
    source: str
    options: tuple[Option, ...]

    @property
    def best(self) -> Option | None:
        """The best feasible option, if there is one."""
        return next((option for option in self.options if option.feasible), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to beware of, each once."""
        return tuple(dict.fromkeys(text for option in self.options for text in option.warnings))

    @property
    def closest(self) -> Option:
        """The option with the smallest ε at the target's δ: what to ask for if nothing fits."""
        return min(self.options, key=lambda option: option.epsilon)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "target": {"epsilon": self.epsilon, "delta": self.delta},
            "provenance": self.provenance,
            "utilities": dict(self.utilities),
            "utilities_source": self.source,
            "options": [asdict(option) for option in self.options],
        }


def above(epsilon: float, delta: float, target: float) -> str:
    """Why something does not fit a target."""
    return f"ε = {round_up(epsilon)} at δ = {delta:g} is above {target:g}"


def leaves(room: float) -> str:
    """What a release leaves of a target; rounded down, never in the user's favour."""
    return f"leaves ε = {round_down(room):g}"


def plan(
    portfolio: Portfolio,
    *,
    epsilon: float,
    delta: float,
    utility: Utilities | Mapping[str, float] | None = None,
    rules: Sequence[RuleName] = RULES,
    by: By = "best",
    conversion: Conversion = "tight",
    kappa: float | None = None,
    validation_epsilon: float | None = None,
    candidates: Sequence[Mapping[str, float]] = (),
    assume_smoothness: float | None = None,
    shuffle: ShuffleAsPoisson | None = None,
    any_delta: bool = False,
    progress: Callable[[str], None] = lambda label: None,
) -> Plan:
    """Rank what may be released under (ε, δ). `candidates` are linear combinations to try besides those searched for."""
    Target(epsilon=epsilon)
    Target(delta=delta)
    require_wanted(delta, any_delta)
    planner = _Planner(
        portfolio=portfolio,
        epsilon=float(epsilon),
        delta=float(delta),
        given=utility,
        rules=tuple(rules),
        by=by,
        conversion=conversion,
        kappa=kappa,
        validation_epsilon=validation_epsilon,
        candidates=tuple(candidates),
        assume_smoothness=assume_smoothness,
        shuffle=shuffle,
        progress=progress,
    )
    return planner.plan()


def draw_strength(
    kappa: float | None, validation_epsilon: float | None, validation: Validation | None, adjacency: Adjacency
) -> float | None:
    """κ as given, or the one for which the records of a private validation set pay so much."""
    if validation_epsilon is None:
        return kappa
    if validation is None:
        raise TargetError("--validation-epsilon only has a meaning for scores measured on a private validation set")
    if kappa is not None:
        raise TargetError("--kappa and --validation-epsilon both say how strong the draw is: give one of them")
    if not (math.isfinite(validation_epsilon) and validation_epsilon >= 0):
        raise TargetError(f"the validation set's epsilon is {validation_epsilon}; it must be finite and not negative")
    return validation.tempered_kappa(validation_epsilon, adjacency)


@dataclass
class _Planner:
    portfolio: Portfolio
    epsilon: float
    delta: float
    given: Utilities | Mapping[str, float] | None
    rules: tuple[RuleName, ...]
    by: By
    conversion: Conversion
    kappa: float | None
    validation_epsilon: float | None
    candidates: tuple[Mapping[str, float], ...]
    assume_smoothness: float | None
    shuffle: ShuffleAsPoisson | None
    progress: Callable[[str], None]

    def plan(self) -> Plan:
        self.refusals: dict[str, str] = {}
        self.progress("each model alone")
        self.alone = {name: self._alone(name) for name in self.portfolio.names}
        if self.given is None:
            self.utility = self._by_privacy()
        elif isinstance(self.given, Utilities):
            self.utility = self.given
        else:
            self.utility = Utilities.stated(self.portfolio, self.given)
        provenance, source, self.validation = self.utility.provenance, self.utility.source, self.utility.validation
        self.looked = provenance != "a-priori"
        self.kappa = draw_strength(self.kappa, self.validation_epsilon, self.validation, self.portfolio.adjacency)
        if self.validation is not None:  # a plan is published, and nobody pays for it: not even its weights may know the scores
            self.utility = self._by_privacy()
        options: list[Option] = []
        makers: dict[RuleName, Callable[[], list[Option]]] = {
            "single": self._singles,
            "selection": self._selections,
            "joint": self._joint,
            "tempered": self._tempered,
            "combination": self._combinations,
        }
        for rule, make in makers.items():
            if rule in self.rules:
                self.progress(rule)
                options.extend(make())
        values = dict(zip(self.portfolio.names, self.utility.values, strict=True))
        if self.validation is not None:
            values, options = {}, [replace(option, expected_utility=None) for option in options]
        options.sort(key=lambda o: (not o.feasible, -(o.expected_utility or 0.0) if o.feasible else o.epsilon, o.epsilon))
        return Plan(self.epsilon, self.delta, provenance, values, source, tuple(options))

    # --- the rules ------------------------------------------------------------------------------------------------------

    def _singles(self) -> list[Option]:
        options = []
        for name, guarantee in self.alone.items():
            weights = self._vertex(name)
            if guarantee is None:
                options.append(self._refused("single", weights, self.refusals[name]))
            else:
                options.append(self._judged("single", weights, guarantee))
        return options

    def _selections(self) -> list[Option]:
        options = []
        accountants: tuple[Literal["pld", "rdp"], ...] = ("pld", "rdp")
        for by in accountants if self.by in ("best", "gdp") else [name for name in accountants if name == self.by]:
            try:
                found = selection_optimum(self.profiles, self.utility.values, self.epsilon, self.delta, by, self.conversion)
                weights = self._named(found.weights) if found else self._vertex(self._most_private())
                drawn = Selection(weights, self.shuffle)
                options.append(self._saturated("selection", weights, drawn, by))
            except AccountingError as error:
                options.append(self._refused("selection", self._vertex(self.portfolio.names[0]), str(error)))
        return options

    def _joint(self) -> list[Option]:
        """Whatever is made of all models, even after looking at them: worth at least the best of them."""
        everyone = self._everyone()
        best = max(self.utility.values)
        if self.validation is not None:
            return [self._refused("joint", everyone, NOT_DRAWN)]
        try:
            rule = Joint(everyone, self.shuffle, self.portfolio.names)
            guarantee = rule.guarantee(delta=self.delta, by=self.by, conversion=self.conversion)
        except AccountingError as error:
            return [self._refused("joint", everyone, str(error))]
        return [self._judged("joint", everyone, guarantee, utility=best, kind="best of all")]

    def _tempered(self) -> list[Option]:
        """From the most private model towards the best selection, as far as the tempered bound allows.

        The base probabilities must not depend on the private models (docs/theory.md §4): if the utilities were measured on
        them, "less private is more useful" stands in for them there. Private scores may choose among all models if that fits.
        """
        if self.kappa is None:
            return []
        if not all(0 <= value <= 1 for value in self.utility.values):
            raise TargetError("tempered selection needs utilities in [0, 1]; rescale them")
        kappa = self.kappa
        try:
            start = self._vertex(self._most_private())
            base = self._by_privacy() if self.looked else self.utility
            found = selection_optimum(self.profiles, base.values, self.epsilon, self.delta)
            end = self._named(found.weights) if found else start
            space = FeasibleSet(self.portfolio, lambda w: self._tempered_rule(w, kappa), self.epsilon, self.delta)
            if self.validation is not None and space.contains(self._everyone()):
                end = self._everyone()
            weights = blend(start, end, space.boundary(start, end)) if space.contains(start) else start
            option = self._saturated("tempered", weights, self._tempered_rule(weights, kappa), "best", covered=True)
        except AccountingError as error:
            return [self._refused("tempered", self._vertex(self.portfolio.names[0]), str(error))]
        odds = tilted_odds(weights.values, self.utility.values, kappa)
        expected = sum(odd * Fraction(u) for odd, u in zip(odds, self.utility.values, strict=True)) / sum(odds)
        return [replace(option, expected_utility=float(expected))]

    def _combinations(self) -> list[Option]:
        """The best combination found, and every candidate the user names.

        The utility of an average is not linear in λ, so a linear one only guides the search: from the most private model
        as far as the budget allows towards each more useful one (the most useful first), and towards the best two
        together; then weight moves between pairs of models as long as that gains something and fits.
        """
        space = FeasibleSet(self.portfolio, self._combination, self.epsilon, self.delta, self.by)
        start = self._vertex(self._most_private())
        useful = sorted(self.portfolio.names, key=self._worth, reverse=True)
        goals = [self._vertex(name) for name in useful if self._worth(name) > self._value(start)]
        options = []
        try:
            reached = [start]
            if space.contains(start):
                reached += [self._towards(space, start, goal) for goal in goals[:_GOALS]]
                if len(goals) > 1:
                    best, second = sorted(reached[1:], key=self._value, reverse=True)[:2]
                    reached.append(self._towards(space, start, blend(best, second, 0.5)))
            weights = max(reached, key=self._value)
            if len(goals) > 1:
                weights = self._exchanged(space, weights, useful)
            options.append(self._saturated("combination", weights, self._combination(weights), self.by))
        except AccountingError as error:
            options.append(self._refused("combination", self._vertex(useful[0]), str(error)))
        for candidate in self.candidates:
            weights = self.portfolio.weights(candidate)
            try:
                options.append(self._saturated("combination", weights, self._combination(weights), self.by))
            except AccountingError as error:
                options.append(self._refused("combination", weights, str(error)))
        return options

    def _towards(self, space: FeasibleSet, start: Weights, goal: Weights) -> Weights:
        self.progress(f"combination with {', '.join(model.name for model, _ in goal.used)}")
        return blend(start, goal, space.boundary(start, goal, tolerance=1e-3))

    def _exchanged(self, space: FeasibleSet, weights: Weights, useful: Sequence[str]) -> Weights:
        """Move weight from a model to a more useful one, pair by pair, while at least a tenth of it may go."""
        for taker in useful[:_GOALS]:
            for giver in [model.name for model, _ in weights.used if self._worth(model.name) < self._worth(taker)]:
                held = weights.as_dict()
                moved = {**held, taker: held[taker] + held[giver], giver: 0.0}
                goal = self._named([moved[name] for name in self.portfolio.names])
                if space.contains(blend(weights, goal, 0.1)):
                    weights = self._towards(space, weights, goal)
        return weights

    # --- helpers --------------------------------------------------------------------------------------------------------

    @cached_property
    def profiles(self) -> list[Profile]:
        return [run_profile(model, self.shuffle).profile for model in self.portfolio.models]

    def _alone(self, name: str) -> Guarantee | None:
        try:
            rule = Joint(self._vertex(name), self.shuffle, looked_at=())
            return rule.guarantee(delta=self.delta, by=self.by, conversion=self.conversion)
        except AccountingError as error:
            self.refusals[name] = str(error)
            return None

    def _by_privacy(self) -> Utilities:
        epsilons = {name: g.epsilon if g is not None else 0.0 for name, g in self.alone.items()}
        return Utilities.less_private_is_more_useful(self.portfolio, epsilons)

    def _tempered_rule(self, weights: Weights, kappa: float) -> Rule:
        rule = Tempered(weights, kappa, self.shuffle)
        if self.validation is None:
            return rule
        return Validated(rule, self.validation, self.validation.tempered_epsilon(kappa, self.portfolio.adjacency))

    def _combination(self, weights: Weights) -> Rule:
        return Combination(weights, self.assume_smoothness, self.shuffle)

    def _everyone(self) -> Weights:
        return self.portfolio.weights({name: 1 / len(self.portfolio.names) for name in self.portfolio.names})

    def _vertex(self, name: str) -> Weights:
        return self.portfolio.weights({name: 1.0})

    def _named(self, values: Sequence[float]) -> Weights:
        return self.portfolio.weights_in_order(values)

    def _most_private(self) -> str:
        known = {name: g.epsilon for name, g in self.alone.items() if g is not None}
        return min(known, key=known.__getitem__) if known else self.portfolio.names[0]

    def _worth(self, name: str) -> float:
        return self.utility.values[self.portfolio.names.index(name)]

    def _value(self, weights: Weights) -> float:
        return math.fsum(w * u for w, u in zip(weights.values, self.utility.values, strict=True))

    def _saturated(self, rule: RuleName, weights: Weights, made: Rule, by: By, covered: bool = False) -> Option:
        """Weights on the edge of the target: stated by their ε at the target's δ if inside, else by their δ at its ε."""
        found = made.guarantee(delta=self.delta, by=by, conversion=self.conversion)
        if self.epsilon < found.epsilon <= 1.01 * self.epsilon:
            edge = made.guarantee(epsilon=self.epsilon, by=by, conversion=self.conversion)
            found = edge if edge.delta <= self.delta else found
        return self._judged(rule, weights, found, covered=covered)

    def _judged(
        self,
        rule: RuleName,
        weights: Weights,
        found: Guarantee,
        utility: float | None = None,
        kind: Literal["expected", "interpolated", "best of all"] | None = None,
        covered: bool = False,
    ) -> Option:
        fits = found.epsilon <= self.epsilon and found.delta <= self.delta
        looked_away = not self.looked or covered or rule == "joint"
        if not fits:
            why = above(found.epsilon, found.delta, self.epsilon)
        elif not looked_away:
            why = _LOOKED
        elif found.epsilon < self.epsilon:
            why = leaves(self.epsilon - found.epsilon)
        else:
            why = f"leaves δ = {round_down(max(0.0, self.delta - found.delta), 3):g}"
        worth = self._value(weights) if utility is None else utility
        option = Option.of(rule, weights, found, worth, feasible=fits and looked_away, why=why)
        return option if kind is None else replace(option, utility_kind=kind)

    def _refused(self, rule: RuleName, weights: Weights, why: str) -> Option:
        return Option(rule, "none", weights.as_dict(), math.inf, self.delta, "refused", "none", None, False, why)
