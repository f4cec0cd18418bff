"""What is known at one δ, found piece by piece in the background: plans at many targets, and the weights somebody looks at.

A move of a slider is answered from here by `Plan.at`, without a search. `dpmerge plan`, and a plan with full effort, search at
the target itself and may find a little more.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import get_args

import dpmerge
from dpmerge.planning import GRID_RULES, Account, Landscape, Option, OptionRule, Plan, Utilities
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, GridRule, PlainRule

PLANNED: tuple[OptionRule, ...] = ("single", *get_args(PlainRule))
RUNGS = 33
_LANDSCAPES = 8  # choices of corners that are kept
_ANY = 1e9  # a target that everything private meets


class Ladder:
    """What is known at one δ, and how far the background is: selections and combinations searched at `rungs` targets each."""

    def __init__(
        self,
        portfolio: Portfolio,
        utility: Utilities | None,
        accounting: Accounting,
        delta: float,
        rungs: int,
        account: Account,
    ) -> None:
        self.portfolio, self.utility, self.delta = portfolio, utility, delta
        self.abandoned = False  # something went wrong: the page goes on with what there is
        self.climbed: dict[GridRule, int] = dict.fromkeys(GRID_RULES, 0)
        self.landscapes: dict[tuple[str, ...], Landscape] = {}
        self._accounting, self._account = accounting, account
        self._rungs = max(2, rungs)
        self._known: Plan | None = None
        self._lock = threading.RLock()

    @property
    def ready(self) -> bool:
        """Whether a plan needs no computation."""
        return self._known is not None

    @property
    def known(self) -> Plan:
        """A plan that knows all that was found; at first each model alone and joint release."""
        with self._lock:
            if self._known is None:
                self._known = dpmerge.plan(
                    self.portfolio,
                    epsilon=_ANY,
                    delta=self.delta,
                    utility=self.utility,
                    rules=PLANNED,
                    accounting=self._accounting,
                    search=(),
                )
            return self._known

    @property
    def done(self) -> int:
        return sum(self.climbed.values())

    @property
    def total(self) -> int:
        return len(GRID_RULES) * self._rungs

    @property
    def complete(self) -> bool:
        return self.abandoned or (self.done == self.total and self._unfinished is None)

    def landscape(self, models: tuple[str, ...]) -> Landscape:
        """The landscape over these models, from now on the first to be worked on."""
        found = self.landscapes.pop(models, None) or Landscape(self.portfolio, models)
        self.landscapes[models] = found
        while len(self.landscapes) > _LANDSCAPES:
            self.landscapes.pop(next(iter(self.landscapes)))
        return found

    def advance(self) -> None:
        """Add one piece: the selections first, which are quick; then the landscape looked at last; then the combinations."""
        landscape = self._unfinished
        if self.climbed["selection"] < self._rungs:
            self._climb("selection")
        elif landscape is not None:
            rule, found = landscape.advance(self._account)
            if found is not None and math.isfinite(found.epsilon):
                self.learn([self.known.question.option(rule, self.portfolio.weights(found.weights), found)])
        elif self.climbed["combination"] < self._rungs:
            self._climb("combination")

    def learn(self, options: Iterable[Option]) -> None:
        """Keep what a search found, for this target and others."""
        with self._lock:
            self._known = self.known.knowing(option for option in options if option.rule in GRID_RULES)

    def plan(self, epsilon: float) -> Plan:
        """The best that is known for the target: one option for each rule, and one for each model alone."""
        return self.known.at(epsilon, search=())

    @property
    def _unfinished(self) -> Landscape | None:
        return next((one for one in reversed(tuple(self.landscapes.values())) if one.done < one.total), None)

    def _climb(self, rule: GridRule) -> None:
        target = self.known.targets(self._rungs)[self.climbed[rule]]
        found = self.known.at(target, search=(rule,))
        self.learn(option for option in found.options if option.rule == rule)
        self.climbed[rule] += 1
