"""Plans at one δ, made beforehand for a ladder of targets ε, so that a slider is answered from memory.

Whatever is (ε, δ)-DP is also (ε', δ)-DP for every ε' ≥ ε: a plan for a target is looked up among those for smaller ones, and
nothing that is shown to fit is less than proved. Between two rungs it may be a little less than the best; `dpmerge plan`, and a
plan with full effort, search at the target itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import dpmerge
from dpmerge.records import Portfolio
from dpmerge.rules.guarantee import round_up
from dpmerge.weights import Option, Plan, Utilities

SEARCHED: tuple[Literal["selection", "combination"], ...] = ("selection", "combination")
RUNGS = 33
_ANY = 1e9  # a target that everything private meets


@dataclass
class Ladder:
    """What is known at one δ: each model alone and joint release exactly, selections and combinations on the rungs."""

    portfolio: Portfolio
    utility: Utilities | None
    shuffle: dpmerge.ShuffleAsPoisson | None
    delta: float
    rungs: int = RUNGS
    done: int = 0
    _found: dict[str, list[Option]] = field(default_factory=lambda: {rule: [] for rule in SEARCHED})

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
        )

    @cached_property
    def searches(self) -> list[tuple[Literal["selection", "combination"], float]]:
        """The quick rule first; targets from half the smallest ε of a model alone to the largest, ends first, then middles."""
        alone = [o.epsilon for o in self.known.options if o.rule == "single" and 0 < o.epsilon < math.inf]
        low, high = (0.5 * min(alone), max(alone)) if alone else (0.1, 10.0)
        last = max(1, self.rungs - 1)
        rungs = [low * (high / low) ** (index / last) for index in _coarse_to_fine(last)]
        return [(rule, epsilon) for rule in SEARCHED for epsilon in rungs]

    @property
    def total(self) -> int:
        """How many searches the whole ladder is."""
        return len(SEARCHED) * (max(1, self.rungs - 1) + 1)

    def climb(self, wanted: Callable[[], bool]) -> None:
        """Make the plans that are still missing, as long as they are wanted."""
        while self.done < self.total and wanted():
            rule, epsilon = self.searches[self.done]
            found = dpmerge.plan(
                self.portfolio, epsilon=epsilon, delta=self.delta, utility=self.utility, rules=(rule,), shuffle=self.shuffle
            )
            self._found[rule].extend(found.options)
            self.done += 1

    def plan(self, epsilon: float) -> Plan:
        """The best that is known for the target: one option for each rule, and one for each model alone."""
        options = [self._judged(option, epsilon) for option in self.known.options]
        for found in self._found.values():
            judged = [self._judged(option, epsilon) for option in tuple(found)]
            options += [min(judged, key=_rank)] if judged else []
        options.sort(key=_rank)
        return replace(self.known, epsilon=epsilon, options=tuple(options))

    def _judged(self, option: Option, epsilon: float) -> Option:
        """The same weights and guarantee beside another target."""
        if option.standing == "refused":
            return option
        if option.epsilon > epsilon or option.delta > self.delta:
            why = f"ε = {round_up(option.epsilon)} at δ = {option.delta:g} is above {epsilon:g}"
            return replace(option, feasible=False, why=why)
        if option.rule != "joint" and self._looked is not None:
            return replace(option, feasible=False, why=self._looked)
        return replace(option, feasible=True, why=f"leaves ε = {epsilon - option.epsilon:.4f}")

    @cached_property
    def _looked(self) -> str | None:
        """Why utilities measured on the private models forbid a choice by them, in the planner's words."""
        if self.known.provenance == "a-priori":
            return None
        return next((o.why for o in self.known.options if o.rule == "single" and o.epsilon <= _ANY), "")


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
