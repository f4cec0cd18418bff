"""Plans made beforehand at many targets of one δ, so that a move of a slider is answered from memory.

Whatever is (ε, δ)-DP is also (ε', δ)-DP for every ε' ≥ ε: a plan for a target is looked up among what is known of smaller ones,
and nothing that is shown to fit is less than proved. Between two rungs it may be a little less than the best; `dpmerge plan`,
and a plan with full effort, search at the target itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import dpmerge
from dpmerge.explorer.landscape import RULES, Account, GridRule, Landscape
from dpmerge.planning import Option, Plan, Utilities, above, leaves
from dpmerge.records import Portfolio
from dpmerge.rules import Guarantee

RUNGS = 33
_LANDSCAPES = 8  # choices of corners that are kept
_CANDIDATES = 4096
_ANY = 1e9  # a target that everything private meets


@dataclass
class Ladder:
    """What is known at one δ: each model alone and joint release exactly, selections and combinations on the rungs.

    The points of a landscape somebody looks at are candidates too. `advance` adds one piece: the selections first, which are
    quick, then the landscape that was looked at last, then the combinations.
    """

    portfolio: Portfolio
    utility: Utilities | None
    shuffle: dpmerge.ShuffleAsPoisson | None
    delta: float
    rungs: int
    account: Account
    landscapes: dict[tuple[str, ...], Landscape] = field(default_factory=dict)
    abandoned: bool = False  # something went wrong: the page goes on with what there is
    climbed: dict[GridRule, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    _learning: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _found: dict[str, list[Option]] = field(default_factory=lambda: {rule: [] for rule in RULES})

    @cached_property
    def known(self) -> Plan:
        """Each model alone and joint release: their guarantees do not depend on the target."""
        return dpmerge.plan(
            self.portfolio,
            epsilon=_ANY,
            delta=self.delta,
            utility=self.utility,
            rules=("single", "joint"),
            shuffle=self.shuffle,
            any_delta=True,
        )

    @cached_property
    def targets(self) -> list[float]:
        """From half the smallest ε of a model alone to the largest; ends first, then middles."""
        alone = [o.epsilon for o in self.known.options if o.rule == "single" and 0 < o.epsilon < math.inf]
        low, high = (0.5 * min(alone), max(alone)) if alone else (0.1, 10.0)
        last = max(1, self.rungs - 1)
        return [low * (high / low) ** (index / last) for index in _coarse_to_fine(last)]

    @property
    def done(self) -> int:
        """How many searches were made."""
        return sum(self.climbed.values())

    @property
    def total(self) -> int:
        """How many searches the whole ladder is."""
        return len(RULES) * (max(1, self.rungs - 1) + 1)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do in the background."""
        return self.abandoned or (self.done == self.total and self._unfinished is None)

    def landscape(self, models: tuple[str, ...]) -> Landscape:
        """The landscape over these models, from now on the first to be worked on."""
        found = self.landscapes.pop(models, None) or Landscape.over(self.portfolio, models)
        self.landscapes[models] = found
        while len(self.landscapes) > _LANDSCAPES:
            self.landscapes.pop(next(iter(self.landscapes)))
        return found

    def advance(self) -> None:
        """Add the next piece."""
        landscape = self._unfinished
        if self.climbed["selection"] < len(self.targets):
            self._climb("selection")
        elif landscape is not None:
            rule, found = landscape.advance(self.account)
            if found is not None and math.isfinite(found.epsilon):
                self.learn([self._option(rule, found)])
        elif self.climbed["combination"] < len(self.targets):
            self._climb("combination")

    def learn(self, options: Iterable[Option]) -> None:
        """Keep what a search found, unless something known is at least as private and as useful."""
        with self._learning:
            for option in options:
                known = self._found.get(option.rule)
                if known is None or any(_beats(one, option) for one in known) or len(known) >= _CANDIDATES:
                    continue
                self._found[option.rule] = [*(one for one in known if not _beats(option, one)), option]

    def plan(self, epsilon: float) -> Plan:
        """The best that is known for the target: one option for each rule, and one for each model alone."""
        options = [self._judged(option, epsilon) for option in self.known.options]
        for found in self._found.values():
            candidates = tuple(found)
            if candidates:
                fit = [one for one in candidates if self._meets(one, epsilon)]
                best = max(fit, key=_worth) if fit else min(candidates, key=lambda one: one.epsilon)
                options.append(self._judged(best, epsilon))
        options.sort(key=_rank)
        return replace(self.known, epsilon=epsilon, options=tuple(options))

    @property
    def _unfinished(self) -> Landscape | None:
        """The landscape looked at last that is not known whole."""
        return next((one for one in reversed(tuple(self.landscapes.values())) if one.done < one.total), None)

    def _climb(self, rule: GridRule) -> None:
        target = self.targets[self.climbed[rule]]
        found = dpmerge.plan(
            self.portfolio,
            epsilon=target,
            delta=self.delta,
            utility=self.utility,
            rules=(rule,),
            shuffle=self.shuffle,
            any_delta=True,
        )
        self.learn(found.options)
        self.climbed[rule] += 1

    def _option(self, rule: GridRule, found: Guarantee) -> Option:
        """A point of a landscape as an option; its utility is weighted as the planner does it."""
        weights = self.portfolio.weights(found.weights)
        return Option.of(rule, weights, found, _expected(weights.as_dict(), self.known.utilities))

    def _meets(self, option: Option, epsilon: float) -> bool:
        return option.standing != "refused" and option.epsilon <= epsilon and option.delta <= self.delta

    def _judged(self, option: Option, epsilon: float) -> Option:
        """The same weights and guarantee beside another target."""
        if option.standing == "refused":
            return option
        if not self._meets(option, epsilon):
            return replace(option, feasible=False, why=above(option.epsilon, option.delta, epsilon))
        if option.rule != "joint" and self._looked is not None:
            return replace(option, feasible=False, why=self._looked)
        return replace(option, feasible=True, why=leaves(epsilon - option.epsilon))

    @cached_property
    def _looked(self) -> str | None:
        """Why utilities measured on the private models forbid a choice by them, in the planner's words."""
        if self.known.provenance == "a-priori":
            return None
        return next((o.why for o in self.known.options if o.rule == "single" and o.epsilon <= _ANY), "")


def _expected(weights: Mapping[str, float], utilities: Mapping[str, float]) -> float | None:
    """Nothing where the utilities are private."""
    return math.fsum(weight * utilities[name] for name, weight in weights.items()) if utilities else None


def _beats(one: Option, other: Option) -> bool:
    """At least as private at no larger δ, as useful and as well proved; anything beats what is refused."""
    if "refused" in (one.standing, other.standing):
        return other.standing == "refused"
    useful = (one.expected_utility or 0.0) >= (other.expected_utility or 0.0)
    proved = one.standing == "proved" or other.standing != "proved"
    return one.epsilon <= other.epsilon and one.delta <= other.delta and useful and proved


def _worth(option: Option) -> tuple[float, float]:
    """More utility is better; with the same, more privacy."""
    return (option.expected_utility or 0.0, -option.epsilon)


def _rank(option: Option) -> tuple[bool, float, float]:
    """As plans are sorted: what fits first, by utility; the rest by ε."""
    return (not option.feasible, -(option.expected_utility or 0.0) if option.feasible else option.epsilon, option.epsilon)


def _coarse_to_fine(last: int) -> list[int]:
    """0 … last, each once, in an order that halves the gaps."""
    order, step = [0, last], last
    while step > 1:
        step = (step + 1) // 2
        order += range(0, last + 1, step)
    return list(dict.fromkeys(order))
