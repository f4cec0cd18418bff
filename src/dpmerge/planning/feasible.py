"""All weights that a target allows under a rule: is this one in, and how far may I go from here to there?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from dpmerge.errors import AccountingError, TargetError
from dpmerge.records import Weights
from dpmerge.rules import Accounting, Rule


@dataclass(frozen=True)
class FeasibleSet:
    """The weights w for which `rule(w)` is (epsilon, delta)-DP; `quick(w)` is a weaker bound for it, asked first."""

    rule: Callable[[Weights], Rule]
    epsilon: float
    delta: float
    accounting: Accounting = field(default_factory=Accounting)
    quick: Callable[[Weights], Rule] | None = None

    def spent(self, weights: Weights) -> float:
        """A proved ε at the target's δ: at most `epsilon` inside; infinite where the rule gives no guarantee."""
        try:
            if self.quick is not None:
                found = self.accounting.guarantee(self.quick(weights), delta=self.delta).epsilon
                if found <= self.epsilon:
                    return found
            return self.accounting.guarantee(self.rule(weights), delta=self.delta).epsilon
        except AccountingError:
            return math.inf

    def contains(self, weights: Weights) -> bool:
        spent = self.spent(weights)
        if spent <= self.epsilon or spent > 1.01 * self.epsilon:
            return spent <= self.epsilon
        # On the edge: ε at δ and δ at ε are computed on different grids, and either answer is a proof.
        return self.accounting.guarantee(self.rule(weights), epsilon=self.epsilon).delta <= self.delta

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
        """ε spent − ε allowed, capped at 50; at most 0 inside."""
        return min(self.spent(weights) - self.epsilon, 50.0)


def blend(start: Weights, end: Weights, share: float) -> Weights:
    """(1 − share)·start + share·end, summing to 1 exactly where start and end do."""
    values = [(1 - share) * a + share * b for a, b in zip(start.values, end.values, strict=True)]
    largest = max(range(len(values)), key=values.__getitem__)
    values[largest] = 1 - sum(value for index, value in enumerate(values) if index != largest)
    return start.portfolio.weights_in_order(values)
