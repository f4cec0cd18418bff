"""What is known without this project: composition of (ε, δ) pairs, and the no-free-lunch threshold (docs/theory.md §6)."""

from __future__ import annotations

import math
from typing import Literal

from dpmerge.errors import TargetError
from dpmerge.profiles import ApproxDpLaw, Conversion, Profile, ShuffleAsPoisson, gathered, run_profile
from dpmerge.records import Weights, latest_checkpoints, require_independent
from dpmerge.rules.guarantee import Accountant, By, Guarantee, ProfileBound, Rule, Target, answer, ask
from dpmerge.rules.theorems import WEIGHTS

Composition = Literal["basic", "advanced", "optimal"]


class PairComposition(Rule):
    """Each run is first reduced to one (ε_i, δ_i), and these are composed: what one does who knows nothing else.

    Basic: δ_i = δ/N. Advanced: δ_i = δ/2N, and δ/2 for the composition itself. Optimal: the best of a few such splits.
    `looked_at` is as in joint release, which these are baselines for.
    """

    def __init__(
        self,
        weights: Weights,
        composition: Composition,
        shuffle: ShuffleAsPoisson | None = None,
        looked_at: tuple[str, ...] | None = None,
    ) -> None:
        self.name = f"{composition}-composition"
        self.weights = weights
        self._composition = composition
        self.looked_at = looked_at or ()
        runs = latest_checkpoints(self.covered)
        self.shuffle = shuffle
        profiles = [run_profile(model, shuffle) for model in runs]
        self._profiles = [run.profile for run in profiles]
        assumed, self._conditional = gathered(profiles)
        fixed = (WEIGHTS,) if looked_at == () else ()
        self._assumptions = (*fixed, *require_independent(runs), *assumed)

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        found = answer(
            target,
            self._accountant(by),
            lambda delta: self._epsilon(delta, by, conversion),
            lambda epsilon: self._delta(epsilon, by, conversion),
        )
        return self._build(found, self.name, self._assumptions, self._conditional, conversion)

    def _accountant(self, by: By) -> Accountant:
        """Where the single pairs come from; with several accountants, the loosest of them."""
        if by != "best":
            return by
        best: list[Accountant] = [ProfileBound(profile).accountants()[0] for profile in self._profiles]
        return max(best, key=("gdp", "pld", "rdp").index)

    def _epsilon(self, delta: float, by: By, conversion: Conversion) -> float:
        if self._composition == "basic":
            return math.fsum(self._singles(delta, by, conversion))
        if self._composition == "advanced":
            return advanced_composition(self._singles(delta / 2, by, conversion), delta / 2)
        best = math.inf
        for share in (0.5, 0.9, 0.99, 1.0):
            singles = self._singles(share * delta, by, conversion)
            each = share * delta / len(singles)
            best = min(best, math.fsum(singles))  # composing pairs optimally is never worse than adding them up
            if math.isfinite(best):
                best = min(best, Profile.of([(ApproxDpLaw(epsilon, each), 1) for epsilon in singles]).epsilon(delta))
        return best

    def _singles(self, delta: float, by: By, conversion: Conversion) -> list[float]:
        """Each run's ε at an equal share of δ."""
        target = Target(delta=delta / len(self._profiles))
        return [ask(ProfileBound(profile), target, by, conversion).epsilon for profile in self._profiles]

    def _delta(self, epsilon: float, by: By, conversion: Conversion) -> float:
        """The smallest δ (to 1e-6 of it) at which the composition gives ε, by bisection; 1 if there is none."""
        low, high = -700.0, math.log(0.999)
        if self._epsilon(math.exp(high), by, conversion) > epsilon:
            return 1.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (low, middle) if self._epsilon(math.exp(middle), by, conversion) <= epsilon else (middle, high)
        return math.exp(high)


def advanced_composition(epsilons: list[float], delta: float) -> float:
    """√(2 log(1/δ₀) Σε_i²) + Σ ε_i(e^{ε_i} − 1) (Dwork, Rothblum and Vadhan 2010, Thm III.3, for unequal ε_i).

    >>> round(advanced_composition([0.1] * 10, 1e-6), 4)
    1.7674
    """
    spread = math.sqrt(2 * math.log(1 / delta) * math.fsum(e * e for e in epsilons))
    return spread + math.fsum(e * math.expm1(e) if e < 700 else math.inf for e in epsilons)


def no_free_lunch_threshold(epsilon: float, delta: float, epsilon_least: float, delta_each: float) -> float:
    """How much a merger may react to the least private model if nothing but that model's (ε₂, δ) is known.

    A merger with sup TV(h(x, a), h(x, b)) above t(ε′, δ′)/t(ε₂, δ), t(ε, δ) = (e^ε − 1 + 2δ)/(e^ε + 1), is not
    (ε′, δ′)-DP for every pair of mechanisms (docs/theory.md §6). *Differentially Private Model
    Merging*, Prop. 3.1, states another number, by a proof that uses a mechanism which is private in one direction only:
    `papers_no_free_lunch_threshold`.

    >>> round(no_free_lunch_threshold(1.0, 1e-5, 8.0, 1e-5), 4)
    0.4624
    """
    _check_pairs(epsilon, delta, epsilon_least, delta_each)
    reach = _largest_distance(epsilon_least, delta_each)
    return math.inf if reach == 0 else _largest_distance(epsilon, delta) / reach


def papers_no_free_lunch_threshold(epsilon: float, delta: float, epsilon_least: float, delta_each: float) -> float:
    """The paper's Prop. 3.1 as printed: (1 − e^{−ε′}(1−δ′)) / (1 − e^{−ε₂}(1−δ)). Not a theorem (docs/theory.md §6)."""
    _check_pairs(epsilon, delta, epsilon_least, delta_each)
    denominator = 1 - math.exp(-epsilon_least) * (1 - delta_each)
    return math.inf if denominator == 0 else (1 - math.exp(-epsilon) * (1 - delta)) / denominator


def _largest_distance(epsilon: float, delta: float) -> float:
    """The largest total variation distance of an (ε, δ)-DP pair: randomised response's."""
    return math.tanh(epsilon / 2) + delta * (1 - math.tanh(epsilon / 2))


def _check_pairs(epsilon: float, delta: float, epsilon_least: float, delta_each: float) -> None:
    for name, value in (("epsilon", epsilon), ("epsilon_least", epsilon_least)):
        if not value >= 0:
            raise TargetError(f"{name} is {value}; it must not be negative")
    for name, value in (("delta", delta), ("delta_each", delta_each)):
        if not 0 <= value <= 1:
            raise TargetError(f"{name} is {value}; it must lie in [0, 1]")
