"""Plans made beforehand at many targets of one δ, so that a move of a slider is answered from memory.

Whatever is (ε, δ)-DP is also (ε', δ)-DP for every ε' ≥ ε: a plan for a target is looked up among what is known of smaller ones,
and nothing that is shown to fit is less than proved. Between two rungs it may be a little less than the best; `dpmerge plan`,
and a plan with full effort, search at the target itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import dpmerge
from dpmerge.explorer.landscape import RULES, Account, GridRule, Landscape
from dpmerge.planning import Accounting, Option, Plan, Utilities
from dpmerge.records import Portfolio

RUNGS = 33
_LANDSCAPES = 8  # choices of corners that are kept
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

    @cached_property
    def known(self) -> Plan:
        """A plan that knows what was found so far; first each model alone and joint release."""
        return dpmerge.plan(
            self.portfolio,
            epsilon=_ANY,
            delta=self.delta,
            utility=self.utility,
            rules=("single", "joint", *RULES),
            accounting=Accounting(shuffle=self.shuffle, any_delta=True),
            search=(),
        )

    @cached_property
    def targets(self) -> list[float]:
        """The rungs, ends first, then middles."""
        return self.known.targets(self.rungs)

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
                self.learn([self.known.question.option(rule, self.portfolio.weights(found.weights), found)])
        elif self.climbed["combination"] < len(self.targets):
            self._climb("combination")

    def learn(self, options: Iterable[Option]) -> None:
        """Keep what a search found, unless something known is at least as private and as useful."""
        with self._learning:
            self.__dict__["known"] = self.known.knowing(option for option in options if option.rule in RULES)

    def plan(self, epsilon: float) -> Plan:
        """The best that is known for the target: one option for each rule, and one for each model alone."""
        return self.known.at(epsilon, search=())

    @property
    def _unfinished(self) -> Landscape | None:
        """The landscape looked at last that is not known whole."""
        return next((one for one in reversed(tuple(self.landscapes.values())) if one.done < one.total), None)

    def _climb(self, rule: GridRule) -> None:
        found = self.known.at(self.targets[self.climbed[rule]], search=(rule,))
        self.learn(option for option in found.options if option.rule == rule)
        self.climbed[rule] += 1
