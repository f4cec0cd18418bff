"""All weights that a target allows under a rule: is this one in, and how far may I go from here to there?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dpmerge.errors import AccountingError, TargetError
from dpmerge.planning.simplex import simplex_grid
from dpmerge.records import Portfolio, Weights
from dpmerge.rules import By, Rule


@dataclass(frozen=True)
class FeasibleSet:
    """The weights w for which `rule(w)` is (epsilon, delta)-DP."""

    portfolio: Portfolio
    rule: Callable[[Weights], Rule]
    epsilon: float
    delta: float
    by: By = "best"

    def spent(self, weights: Mapping[str, float] | Weights) -> float:
        """ε at the target's δ: at most `epsilon` inside; infinite where the rule gives no guarantee."""
        try:
            return self._made(weights).guarantee(delta=self.delta, by=self.by).epsilon
        except AccountingError:
            return math.inf

    def contains(self, weights: Mapping[str, float] | Weights) -> bool:
        """Whether these weights meet the target."""
        spent = self.spent(weights)
        if spent <= self.epsilon or spent > 1.01 * self.epsilon:
            return spent <= self.epsilon
        # On the edge itself: each of the two questions has its own grid, and either answer is a proof.
        return self._made(weights).guarantee(epsilon=self.epsilon, by=self.by).delta <= self.delta

    def _made(self, weights: Mapping[str, float] | Weights) -> Rule:
        return self.rule(weights if isinstance(weights, Weights) else self.portfolio.weights(weights))

    def boundary(self, start: Weights, end: Weights, tolerance: float = 1e-4) -> float:
        """The largest t (to `tolerance`, from below) such that (1 − t)·start + t·end is inside; start must be."""
        low, below = 0.0, self._excess(start)
        if below > 0:
            raise TargetError("the starting weights do not meet the target; start from weights that do")
        high, above = 1.0, self._excess(end)
        if above <= 0:
            return 1.0
        while high - low > tolerance:
            # Where a straight line through ε would cross, kept away from the ends so that both of them move.
            share = min(max(below / (below - above), 0.05), 0.95)
            middle = low + share * (high - low)
            excess = self._excess(blend(start, end, middle))
            if excess <= 0:
                low, below = middle, excess
            else:
                high, above = middle, excess
        return low

    def _excess(self, weights: Weights) -> float:
        """ε spent − ε allowed, at most 50: not above 0 inside."""
        return min(self.spent(weights) - self.epsilon, 50.0)

    def grid(self, step: float) -> Iterator[Weights]:
        """The feasible points of the simplex grid with this step (a divisor of 1)."""
        for point in simplex_grid(len(self.portfolio.names), step).tolist():
            weights = self.portfolio.weights_in_order(point)
            if self.contains(weights):
                yield weights

    def sample(self, count: int, seed: int | None = None, tries: int = 10_000) -> list[Weights]:
        """Feasible weights drawn evenly from the simplex by rejection; fewer than `count` if `tries` run out."""
        rng = np.random.default_rng(seed)
        found: list[Weights] = []
        for _ in range(tries):
            if len(found) == count:
                break
            drawn = rng.dirichlet(np.ones(len(self.portfolio.names)))
            drawn[int(np.argmax(drawn))] += 1 - drawn.sum()
            weights = self.portfolio.weights_in_order(drawn.tolist())
            if self.contains(weights):
                found.append(weights)
        return found


def blend(start: Weights, end: Weights, share: float) -> Weights:
    """(1 − share)·start + share·end, summing to 1 exactly where start and end do."""
    values = [(1 - share) * a + share * b for a, b in zip(start.values, end.values, strict=True)]
    largest = max(range(len(values)), key=values.__getitem__)
    values[largest] = 1 - sum(value for index, value in enumerate(values) if index != largest)
    return start.portfolio.weights_in_order(values)
