"""One release held against its exact law: an alarm where more is true than was printed, else how close it came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpmerge.profiles import FloatArray
from dpmerge.records import Adjacency
from dpmerge.rules import Guarantee, Rule
from tests.exact_densities import ALLOWANCE

EPSILONS = (0.0, 0.25, 1.0, 3.0)
DELTA = 1e-2
ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace-one", "zero-out")
_FARTHEST = 10.0  # an ε beyond which e^ε times the rounding of exact laws is no longer small


class Alarm(AssertionError):
    """A proved guarantee is exceeded."""


@dataclass
class Report:
    """By account: how often it was used, and the largest true δ / proved δ where the true one is between 1e-4 and 0.9."""

    closest: dict[str, float] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def largest(self) -> float:
        """Over all accounts; 1 is equality."""
        return max(self.closest.values(), default=0.0)

    def of(self, account: str) -> float:
        """Over the accounts with this in their name."""
        return max((ratio for name, ratio in self.closest.items() if account in name), default=0.0)

    def note(self, account: str, true: float, proved: float) -> None:
        """One comparison."""
        self.seen[account] += 1
        if 1e-4 < true < 0.9:
            self.closest[account] = max(self.closest.get(account, 0.0), true / proved)

    def add(self, other: Report) -> None:
        """What another search found."""
        self.seen.update(other.seen)
        for account, ratio in other.closest.items():
            self.closest[account] = max(self.closest.get(account, 0.0), ratio)


def compare(rules: Sequence[Rule], truth: Callable[[float], float], example: object, both_ways: bool = True) -> Report:
    """Hold the true δ(ε), the larger of both directions, against the least that the rules for one release print.

    Asked both ways: δ at each ε, and ε at a δ.
    """
    printed = [min((rule.guarantee(epsilon=one) for rule in rules), key=lambda found: found.delta) for one in EPSILONS]
    if both_ways:
        printed.append(min((rule.guarantee(delta=DELTA) for rule in rules), key=lambda found: found.epsilon))
    report = Report()
    for guarantee in printed:
        report.add(held(guarantee, truth, example))
    return report


def held(printed: Guarantee, truth: Callable[[float], float], example: object) -> Report:
    """One guarantee that must be proved, and must hold."""
    report = Report()
    if printed.epsilon <= _FARTHEST:
        true = truth(printed.epsilon)
        if printed.standing != "proved" or true > printed.delta * (1 + 1e-9) + ALLOWANCE:
            raise Alarm(f"true δ({printed.epsilon:.6g}) = {true:.8g}, {_account(printed)} says {printed.delta:.8g}: {example}")
        report.note(_account(printed), true, printed.delta)
    return report


def _account(printed: Guarantee) -> str:
    """By which theorem, and for combinations with which window and how many coupled runs."""
    window, coupled = printed.details.get("window", 0), len(printed.details.get("coupled", []))
    return f"{printed.standing} {printed.theorem}" + (f", window {window}, {coupled} coupled" if window else "")


def random_odds(rng: np.random.Generator, count: int) -> FloatArray:
    """Probabilities, some of them small."""
    return np.asarray(rng.dirichlet(np.full(count, rng.choice([0.3, 1.0, 5.0]))) * 0.999 + 0.001 / count)
