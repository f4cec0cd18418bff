"""Plans and ε values at one δ, computed step by step in the background: what is in view first.

The page's slider is answered from here by `Plan.at`, without a search; where it is let go, by `exactly`. `dpmerge plan`, and a
plan with full effort, search all rules at the exact target and may find slightly better weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import get_args

import dpmerge
from dpmerge.explorer.telling import plan_answer
from dpmerge.files import json_text
from dpmerge.planning import GRID_RULES, Account, Knob, Landscape, Option, OptionRule, Plan, Utilities
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, GridRule, Guarantee, PlainRule, round_down, significant

PLANNED: tuple[OptionRule, ...] = ("single", *get_args(PlainRule))
TARGETS = 9
_LANDSCAPES = 8  # landscapes that are kept
_ANY = 1e9  # a target that every finite ε meets
_ACCURACY = 1e-3  # of ε on the safe side: what is in view is there sooner
_TOLD = 128  # targets whose answer is kept, at 20 KB each
_LOWEST = 0.1  # with noise, any ε can be reached: the slider ends here, or where models are more private still


class Plans:
    """The plans found so far at one δ: selections and combinations are searched at so many `targets` each."""

    def __init__(
        self,
        portfolio: Portfolio,
        utility: Utilities | None,
        accounting: Accounting,
        delta: float,
        targets: int,
        account: Account,
        quick: Account | None = None,
    ) -> None:
        self.portfolio, self.utility, self.delta = portfolio, utility, delta
        self.owned = False  # whether someone with the token asked for them
        self.abandoned = False  # after an error: the page uses the plans found so far
        self.climbed: dict[GridRule, int] = dict.fromkeys(GRID_RULES, 0)
        self.landscapes: dict[tuple[str, ...], Landscape] = {}
        self._accounting, self._account = replace(accounting, accuracy=max(accounting.accuracy, _ACCURACY)), account
        self._quick = quick
        self._targets = max(2, targets)
        self.turned = self.refined = 0  # of the knob's points, those that `known` has, and those with more than a quick bound
        self._known: Plan | None = None
        self._told: dict[float, tuple[Plan, int, int, bytes]] = {}
        self._lock = threading.RLock()
        self._working = threading.Lock()  # one search at a time: two would slow each other down

    @property
    def ready(self) -> bool:
        """Whether a plan needs no computation."""
        return self._known is not None and "knob" in vars(self)

    @property
    def known(self) -> Plan:
        """A plan with every option found so far; initially each model alone and joint release."""
        if self._known is not None:  # the event loop asks, and must not wait for whoever learns something
            return self._known
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

    def prepare(self) -> None:
        """Compute what the first answer needs."""
        _ = self.known, self.knob

    @cached_property
    def range(self) -> tuple[float, float]:
        """The ε of the slider."""
        low, high = self.known.span()
        if Knob(self.known.question, low, high).total:
            return round_down(min(low, _LOWEST), 2), float(significant(high, 2))
        return round_down(low, 2), float(significant(1.5 * high, 2))

    @cached_property
    def knob(self) -> Knob:
        return Knob(self.known.question, *self.range)

    @property
    def climbing(self) -> tuple[GridRule, ...]:
        """The rules that are searched at every rung; where noise at release pays, the knob has the averages."""
        return ("selection",) if self.knob.total else GRID_RULES

    @property
    def done(self) -> int:
        return self.turned + sum(self.climbed[rule] for rule in self.climbing)

    @property
    def total(self) -> int:
        return self.knob.total + len(self.climbing) * self._targets

    @property
    def complete(self) -> bool:
        if not self.ready:
            return self.abandoned
        refined = self.done == self.total and self.refined == self.knob.total
        return self.abandoned or (refined and self._unfinished is None)

    def landscape(self, models: tuple[str, ...]) -> Landscape:
        """The landscape over these models; it becomes the first in the queue."""
        found = self.landscapes.pop(models, None) or Landscape(self.portfolio, models, twice=self._quick is not None)
        self.landscapes[models] = found
        while len(self.landscapes) > _LANDSCAPES:
            self.landscapes.pop(next(iter(self.landscapes)))
        return found

    def advance(self) -> None:
        """Do one step, what is in view first: the knob, plans, the most recent landscape by quick bounds; then better ones."""
        with self._working:
            landscape = self._unfinished
            if self.knob.done < self.knob.total:
                self._turn([self.knob.advance()])
            elif any(self.climbed[rule] < self._targets for rule in self.climbing):
                self._climb(min(self.climbing, key=self.climbed.__getitem__))
            elif landscape is not None and not landscape.in_view:
                self._survey(landscape)
            elif self.knob.refined < self.knob.total:
                self._turn([self.knob.advance()])
            elif landscape is not None:
                self._survey(landscape)

    def _survey(self, landscape: Landscape) -> None:
        rule: GridRule = "selection"
        made: list[Guarantee | None] = []
        if landscape.done == 0 and self._quick is not None and self._accounting.by != "rdp":
            made += landscape.draw(self.delta, self._accounting)
        if not made:
            rule, found = landscape.advance(self._account if landscape.in_view or self._quick is None else self._quick)
            made.append(found)
        finite = [one for one in made if one is not None and math.isfinite(one.epsilon)]
        self.learn(self.known.question.option(rule, self.portfolio.weights(one.weights), one) for one in finite)

    def exactly(self, epsilon: float) -> Plan:
        """The plan for this very target, after a short search: the noise that it needs, and the best draw."""
        with self._working:
            self._turn(self.knob.meeting(epsilon))
            self.learn(self.known.at(epsilon, search=("selection",)).options)
        return self.plan(epsilon)

    def learn(self, options: Iterable[Option]) -> None:
        """Add the options of a search; they may also fit other targets."""
        with self._lock:
            self._known = self.known.knowing(option for option in options if option.rule in GRID_RULES)

    def _turn(self, options: Iterable[Option]) -> None:
        """Learn what the knob has made; it counts from then on."""
        self.learn(options)
        self.turned, self.refined = self.knob.done, self.knob.refined

    def plan(self, epsilon: float) -> Plan:
        """The best options found so far: one for each rule, and one for each model alone."""
        return self.known.at(epsilon, search=())

    def told(self, epsilon: float) -> bytes:
        """The same as JSON, with the progress of what is made beforehand: made once for all who ask before more is known."""
        done, total, known = self.done, self.total, self.known  # in this order: what is counted is known
        plan, *progress, text = self._told.get(epsilon, (None, 0, 0, b""))
        if plan is not known or progress != [done, total]:
            document = {**plan_answer(known.at(epsilon, search=())), "warming": {"done": done, "total": total}}
            text = json_text(document, indent=None).encode()
            if len(self._told) >= _TOLD:
                self._told.clear()
            self._told[epsilon] = (known, done, total, text)
        return text

    @property
    def _unfinished(self) -> Landscape | None:
        return next((one for one in reversed(tuple(self.landscapes.values())) if one.done < one.total), None)

    def _climb(self, rule: GridRule) -> None:
        target = self.known.targets(self._targets)[self.climbed[rule]]
        found = self.known.at(target, search=(rule,))
        self.learn(option for option in found.options if option.rule == rule)
        self.climbed[rule] += 1
