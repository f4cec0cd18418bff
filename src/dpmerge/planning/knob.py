"""The noise of a release as a knob: averages whose ε falls continuously as the noise grows (docs/theory.md §9).

Points are computed one at a time, those that span the range first: a quick bound for each, and then the best that is known.
Every one is a guarantee of its own; between two of them nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from dpmerge.planning.noising import candidates
from dpmerge.planning.option import Option, Question
from dpmerge.records import Weights
from dpmerge.rules import Combination, build

POINTS = 6  # of one average
_FIRST = 8.0  # noise, in units of what one record does to the average in one step
_CLOSE = 0.985  # of a target: near enough to it
_AIM = 0.993
_NEAR = 0.9  # of the end of the range: the last bit of noise is worth little, and without any ε takes longest to compute


class Knob:
    """The best model and the best average, with noise, for targets from `low` to `high`; nothing where noise does not pay."""

    def __init__(self, question: Question, low: float, high: float) -> None:
        self.low, self.high = low, high
        asked = replace(question.accounting, by="best")
        tried = [] if question.looked else candidates(question.portfolio, question.worth, asked)
        self.averages = [Noised(question, weights) for weights in tried]

    @property
    def done(self) -> int:
        return sum(min(POINTS, len(one.known)) for one in self.averages)

    @property
    def total(self) -> int:
        return POINTS * len(self.averages)

    @property
    def refined(self) -> int:
        """How many points have more than a quick bound."""
        return self.total - sum(len(one.quick) for one in self.averages) if self.done == self.total else 0

    def advance(self) -> Option:
        """One more point, of the average that has the fewest; or a better bound for one."""
        if self.done < self.total:
            average = min(self.averages, key=lambda one: len(one.known))
            return average.at(average.next_noise(self.low, self.high), quick=True)
        average = max(self.averages, key=lambda one: len(one.quick))
        return average.at(min(average.quick))

    def meeting(self, epsilon: float) -> list[Option]:
        """The average that seems best for a target, with hardly more noise than it needs; nothing if none can meet it."""
        known = [one for one in self.averages if one.known]
        best = max(known, key=lambda one: one.expected(epsilon), default=None)
        return [] if best is None else list(best.meeting(epsilon))


@dataclass
class Noised:
    """One average, and what is known of it, by noise; of those in `quick`, a quick bound."""

    question: Question
    weights: Weights
    known: dict[float, Option] = field(default_factory=dict)
    quick: set[float] = field(default_factory=set)

    @cached_property
    def _unit(self) -> float:
        rule = build("combination", self.weights, self.question.accounting)
        assert isinstance(rule, Combination)
        return rule.record_effect

    def at(self, noise: float, quick: bool = False) -> Option:
        asked = replace(self.question.accounting, quick=quick)
        found = asked.guarantee(build("combination", self.weights, asked, noise=noise), delta=self.question.delta)
        self.known[noise] = made = self.question.option("combination", self.weights, found, noise=noise)
        (self.quick.add if quick else self.quick.discard)(noise)
        return made

    def next_noise(self, low: float, high: float) -> float:
        """Beyond the ends until they reach the range, then into the widest gap."""
        known = self._ranked()
        if not known:
            return _FIRST * self._unit
        (least, largest), (most, smallest) = known[0], known[-1]
        if smallest > low and most < 1e6 * self._unit:  # much noise makes ε fall like one over it
            return most * min(max(1.3 * smallest / low, 2.0), 1e3)
        if least > 0 and largest < _NEAR * high:
            return least / _FIRST if least > self._unit else 0.0
        gaps = [(min(above, high) / max(below, low, 1e-300), a, b) for (a, above), (b, below) in pairwise(known)]
        _, a, b = max(gaps, default=(1.0, 0.0, most))
        return math.sqrt(a * b) if a > 0 else b / 2

    def expected(self, epsilon: float) -> float:
        """The utility to expect at a target: at the noise where a power law between two known points meets it."""
        above, below = self._around(epsilon)
        return -math.inf if below is None else self.question.value(self.weights, _between(above, below, epsilon))

    def meeting(self, epsilon: float) -> Iterator[Option]:
        """Known points and new ones, nearer and nearer to the target from below."""
        for _ in range(12):
            above, below = self._around(epsilon)
            quick = [one[0] for one in (above, below) if one is not None and one[0] in self.quick]
            if quick:
                self.at(quick[0])  # a quick bound would lead astray
            elif below is None:
                self.at(_FIRST * max(self.known, default=self._unit))
            elif above is None or self.known[below[0]].epsilon >= _CLOSE * epsilon:
                yield self.known[below[0]]
                return
            else:
                yield self.at(_between(above, below, _AIM * epsilon))

    def _ranked(self) -> list[tuple[float, float]]:
        return sorted((noise, option.epsilon) for noise, option in dict(self.known).items())

    def _around(self, epsilon: float) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
        """The noisiest point above a target, and the least noisy one that meets it."""
        known = self._ranked()
        below = next((one for one in known if one[1] <= epsilon), None)
        above = [one for one in known if one[1] > epsilon and (below is None or one[0] < below[0])]
        return (above[-1] if above else None), below


def _between(above: tuple[float, float] | None, below: tuple[float, float], epsilon: float) -> float:
    """Where a power law through two points has this ε, not too near to either; without noise there is none, so a line."""
    if above is None:
        return below[0]
    (less, high), (more, low) = above, below
    if not 0 < low < high < math.inf:
        return (less + more) / 2
    share = min(max(math.log(high / epsilon) / math.log(high / low), 0.02), 0.98)
    return more * share if less == 0 else less * (more / less) ** share
