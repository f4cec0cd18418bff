"""Plans and ε values at one δ, computed step by step in the background.

The page's slider is answered from here by `Plan.at`, without a search. `dpmerge plan`, and a plan with full effort, search at
the exact target and may find slightly better weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import get_args

import dpmerge
from dpmerge.planning import GRID_RULES, Account, Landscape, Option, OptionRule, Plan, Utilities, noises_to_try
from dpmerge.records import Portfolio, Weights
from dpmerge.rules import Accounting, GridRule, PlainRule, build

PLANNED: tuple[OptionRule, ...] = ("single", *get_args(PlainRule))
RUNGS = 33
_LANDSCAPES = 8  # landscapes that are kept
_ANY = 1e9  # a target that every finite ε meets
_FEW = 8  # averages with noise before anything else
_NOISES_PER_RUNG = 2


class Ladder:
    """The plans found so far at one δ. Selections are searched at `rungs` targets; averages are tried with many noises, or,
    where noise does not pay, searched at `rungs` targets without.
    """

    def __init__(
        self,
        portfolio: Portfolio,
        utility: Utilities | None,
        accounting: Accounting,
        delta: float,
        rungs: int,
        account: Account,
        quick: Account | None = None,
    ) -> None:
        self.portfolio, self.utility, self.delta = portfolio, utility, delta
        self.abandoned = False  # after an error: the page uses the plans found so far
        self.climbed: dict[GridRule, int] = dict.fromkeys(GRID_RULES, 0)
        self.landscapes: dict[tuple[str, ...], Landscape] = {}
        self._accounting, self._account, self._quick = accounting, account, quick
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
        return self._rungs + self._averages

    @property
    def _averages(self) -> int:
        """How many steps averages take; unknown, and as many as selections, before the first."""
        return len(self._noises) if self.ready and self._noises else self._rungs

    @cached_property
    def _noises(self) -> list[tuple[Weights, float]]:
        return noises_to_try(self.known.question)[: _NOISES_PER_RUNG * self._rungs]

    @property
    def complete(self) -> bool:
        return self.abandoned or (self.done == self.total and self._unfinished is None)

    def landscape(self, models: tuple[str, ...]) -> Landscape:
        """The landscape over these models; it becomes the first in the queue."""
        found = self.landscapes.pop(models, None) or Landscape(self.portfolio, models, twice=self._quick is not None)
        self.landscapes[models] = found
        while len(self.landscapes) > _LANDSCAPES:
            self.landscapes.pop(next(iter(self.landscapes)))
        return found

    def advance(self) -> None:
        """Do one step, what is in view first: averages at a few noises, the most recent landscape, and then more of each."""
        landscape = self._unfinished
        if self.climbed["combination"] < min(_FEW, len(self._noises)):
            self._climb("combination")
        elif landscape is not None and not landscape.in_view:
            self._survey(landscape)
        elif self.climbed["combination"] < self._averages:
            self._climb("combination")
        elif self.climbed["selection"] < self._rungs:
            self._climb("selection")
        elif landscape is not None:
            self._survey(landscape)

    def _survey(self, landscape: Landscape) -> None:
        account = self._account if landscape.in_view or self._quick is None else self._quick
        rule, found = landscape.advance(account)
        if found is not None and math.isfinite(found.epsilon):
            self.learn([self.known.question.option(rule, self.portfolio.weights(found.weights), found)])

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
        at = self.climbed[rule]
        if rule == "combination" and self._noises:
            self.learn(self._noised(*self._noises[at]))
        else:
            found = self.known.at(self.known.targets(self._rungs)[at], search=(rule,))
            self.learn(option for option in found.options if option.rule == rule)
        self.climbed[rule] += 1

    def _noised(self, weights: Weights, noise: float) -> Iterator[Option]:
        question = self.known.question
        made = build("combination", weights, question.accounting, noise=noise)
        yield question.option("combination", weights, question.accounting.guarantee(made, delta=self.delta), noise=noise)
