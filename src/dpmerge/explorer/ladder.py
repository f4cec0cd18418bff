"""Plans and ε values at one δ, computed step by step in the background.

The page's slider is answered from here by `Plan.at`, without a search. `dpmerge plan`, and a plan with full effort, search at
the exact target and may find slightly better weights.
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
_LANDSCAPES = 8  # landscapes that are kept
_ANY = 1e9  # a target that every finite ε meets


class Ladder:
    """The plans found so far at one δ: selections and combinations are searched at `rungs` targets each."""

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
        self.abandoned = False  # after an error: the page uses the plans found so far
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
        """A plan with every option found so far; initially each model alone and joint release."""
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
        """The landscape over these models; it becomes the first in the queue."""
        found = self.landscapes.pop(models, None) or Landscape(self.portfolio, models)
        self.landscapes[models] = found
        while len(self.landscapes) > _LANDSCAPES:
            self.landscapes.pop(next(iter(self.landscapes)))
        return found

    def advance(self) -> None:
        """Do one step: selections first, which are fast; then the most recent landscape; then combinations."""
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
        """Add the options of a search; they may also fit other targets."""
        with self._lock:
            self._known = self.known.knowing(option for option in options if option.rule in GRID_RULES)

    def plan(self, epsilon: float) -> Plan:
        """The best options found so far: one for each rule, and one for each model alone."""
        return self.known.at(epsilon, search=())

    @property
    def _unfinished(self) -> Landscape | None:
        return next((one for one in reversed(tuple(self.landscapes.values())) if one.done < one.total), None)

    def _climb(self, rule: GridRule) -> None:
        target = self.known.targets(self._rungs)[self.climbed[rule]]
        found = self.known.at(target, search=(rule,))
        self.learn(option for option in found.options if option.rule == rule)
        self.climbed[rule] += 1
