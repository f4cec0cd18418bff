"""ε over the weights of two or three models: a grid of the simplex, each point with its own guarantee, coarse points first.

A guarantee is known at the points of the grid and nowhere else: nothing is interpolated between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from dpmerge.errors import AccountingError, TargetError
from dpmerge.explorer.wording import judged
from dpmerge.planning import simplex_grid
from dpmerge.records import Portfolio
from dpmerge.rules import Guarantee

GridRule = Literal["selection", "combination"]
RULES: tuple[GridRule, ...] = ("selection", "combination")
Account = Callable[[GridRule, Mapping[str, float]], Guarantee]
_STEPS = {2: 0.02, 3: 0.05}  # 51 points on the edge between two models, 231 in the triangle of three


@dataclass
class Landscape:
    """The grid over some models of a portfolio, and what is known of its points so far; nothing where a rule is refused."""

    models: tuple[str, ...]
    found: dict[GridRule, dict[int, Guarantee | None]] = field(default_factory=lambda: {rule: {} for rule in RULES})

    @classmethod
    def over(cls, portfolio: Portfolio, models: tuple[str, ...]) -> Landscape:
        """Over the models named, two or three different ones of the portfolio."""
        for name in models:
            portfolio.weights({name: 1.0})
        if len(set(models)) != len(models) or len(models) not in _STEPS:
            raise TargetError(f"a picture of weights needs two or three different models, not {len(models)}")
        return cls(models)

    @property
    def step(self) -> float:
        """Between neighbouring weights."""
        return _STEPS[len(self.models)]

    @cached_property
    def points(self) -> list[list[float]]:
        """The weights, in the order of the models."""
        grid: list[list[float]] = simplex_grid(len(self.models), self.step).tolist()
        return grid

    @cached_property
    def order(self) -> list[int]:
        """The points, corners first, then ever finer grids."""
        cells = round(1 / self.step)

        def coarseness(index: int) -> int:
            return math.gcd(*(round(weight * cells) for weight in self.points[index]))

        return sorted(range(len(self.points)), key=coarseness, reverse=True)

    @property
    def done(self) -> int:
        """How many guarantees are known."""
        return sum(len(known) for known in self.found.values())

    @property
    def total(self) -> int:
        """How many there will be."""
        return len(RULES) * len(self.points)

    def advance(self, account: Account) -> tuple[GridRule, Guarantee | None]:
        """Account one more point, the quick rule first; nothing where the rule is refused."""
        rule = next(rule for rule in RULES if len(self.found[rule]) < len(self.points))
        known = self.found[rule]
        index = self.order[len(known)]
        try:
            known[index] = account(rule, self.weights(index))
        except AccountingError:
            known[index] = None
        return rule, known[index]

    def weights(self, index: int) -> dict[str, float]:
        """A point by name, without the models that have no weight."""
        return {name: weight for name, weight in zip(self.models, self.points[index], strict=True) if weight > 0}

    def as_dict(self) -> dict[str, Any]:
        """Plain data: for every rule ε and standing at every point, pending where it is not known yet."""
        rules = {}
        for rule in RULES:
            known = dict(self.found[rule])
            rows = [known.get(index) for index in range(len(self.points))]
            rules[rule] = {
                "epsilons": [None if row is None else row.epsilon for row in rows],
                "standings": [
                    judged(row.epsilon, row.standing) if row is not None else "refused" if index in known else "pending"
                    for index, row in enumerate(rows)
                ],
            }
        return {
            "models": list(self.models),
            "step": self.step,
            "points": self.points,
            "rules": rules,
            "done": self.done,
            "total": self.total,
        }
