"""What is known at one δ, found piece by piece in the background: plans at many targets, and the weights somebody looks at.

A move of a slider is answered from here by `Plan.at`, without a search. `dpmerge plan`, and a plan with full effort, search at
the target itself and may find a little more.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import dpmerge
from dpmerge.errors import AccountingError, TargetError
from dpmerge.explorer.models import standing_of
from dpmerge.planning import Option, OptionRule, Plan, Utilities, simplex_grid
from dpmerge.records import Portfolio
from dpmerge.rules import Accounting, GridRule, Guarantee, PlainRule

RULES: tuple[GridRule, ...] = get_args(GridRule)
PLANNED: tuple[OptionRule, ...] = ("single", *get_args(PlainRule))
Account = Callable[[GridRule, Mapping[str, float]], Guarantee]
RUNGS = 33
_LANDSCAPES = 8  # choices of corners that are kept
_STEPS = {2: 0.02, 3: 0.05}  # 51 points on the edge between two models, 231 in the triangle of three
_ANY = 1e9  # a target that everything private meets


class Landscape:
    """ε on a grid over the weights of two or three models, coarse points first. Nothing is interpolated between the points."""

    def __init__(self, portfolio: Portfolio, models: tuple[str, ...]) -> None:
        for name in models:
            portfolio.weights({name: 1.0})  # refuses a name that is not in the portfolio
        if len(set(models)) != len(models) or len(models) not in _STEPS:
            raise TargetError(f"a picture of weights needs two or three different models, not {len(models)}")
        self.models = models
        self.step = _STEPS[len(models)]
        self.points: list[list[float]] = simplex_grid(len(models), self.step).tolist()
        cells = round(1 / self.step)
        coarseness = [math.gcd(*(round(weight * cells) for weight in point)) for point in self.points]
        self.order = sorted(range(len(self.points)), key=coarseness.__getitem__, reverse=True)
        # By the point's index; None where the rule is refused.
        self.found: dict[GridRule, dict[int, Guarantee | None]] = {rule: {} for rule in RULES}

    @property
    def done(self) -> int:
        return sum(len(known) for known in self.found.values())

    @property
    def total(self) -> int:
        return len(RULES) * len(self.points)

    def advance(self, account: Account) -> tuple[GridRule, Guarantee | None]:
        """Account one more point, the quick rule first."""
        rule = next(rule for rule in RULES if len(self.found[rule]) < len(self.points))
        known = self.found[rule]
        index = self.order[len(known)]
        weights = {name: weight for name, weight in zip(self.models, self.points[index], strict=True) if weight > 0}
        try:
            known[index] = account(rule, weights)
        except AccountingError:
            known[index] = None
        return rule, known[index]

    def as_dict(self) -> dict[str, Any]:
        """For every rule ε and standing at every point; pending where it is not known yet."""
        rules = {}
        for rule in RULES:
            known = dict(self.found[rule])  # the background goes on meanwhile
            rows = [known.get(index) for index in range(len(self.points))]
            rules[rule] = {
                "epsilons": [None if row is None else row.epsilon for row in rows],
                "standings": [standing_of(row) if index in known else "pending" for index, row in enumerate(rows)],
            }
        names = ("models", "step", "points", "done", "total")
        return {**{name: getattr(self, name) for name in names}, "rules": rules}


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
        self.climbed: dict[GridRule, int] = dict.fromkeys(RULES, 0)
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
        return len(RULES) * self._rungs

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
            self._known = self.known.knowing(option for option in options if option.rule in RULES)

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
