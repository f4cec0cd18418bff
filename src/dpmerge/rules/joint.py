"""Joint release: whatever is done with the models, it is post-processing of all of them (docs/theory.md §3.1)."""

from __future__ import annotations

import math
from typing import Literal

from dpmerge.profiles import ApproxDpLaw, Conversion, Profile, ShuffleAsPoisson, gathered, run_profile
from dpmerge.records import EVERYWHERE, Model, Place, Weights, distinct_runs, require_independent
from dpmerge.rules.guarantee import Accountant, Bound, By, Guarantee, ProfileBound, Rule, Target, answer, ask
from dpmerge.rules.shards import PartsOfData
from dpmerge.rules.theorems import WEIGHTS

Composition = Literal["basic", "advanced", "optimal"]


class Joint(Rule):
    """Every distinct run once, up to its latest checkpoint, composed. Covers any merge rule and any choice of weights.

    Counted are the models that have weight and those `looked_at` (docs/theory.md §4). By default that is the same; with none
    looked at, the guarantee assumes that the weights, and so which models have any, were fixed beforehand.
    """

    name = "joint"

    def __init__(
        self, weights: Weights, shuffle: ShuffleAsPoisson | None = None, looked_at: tuple[str, ...] | None = None
    ) -> None:
        self.weights = weights
        self.looked_at = looked_at or ()
        self.runs: tuple[Model, ...] = distinct_runs(self.covered)
        self.shuffle = shuffle
        profiles = [run_profile(model, shuffle) for model in self.runs]
        assumed, self._conditional = gathered(profiles)
        fixed = (WEIGHTS,) if looked_at == () else ()
        self.places = PartsOfData(self.covered)
        self._assumptions = (*fixed, *require_independent(self.runs), *self.places.assumptions, *assumed)
        self._profiles = [run.profile for run in profiles]
        self.bound: Bound = self.places.bound(self._draw) if self.places.there else ProfileBound(self.profile())

    def profile(self, place: Place = EVERYWHERE) -> Profile:
        """Everything that may have seen a record at this place, composed."""
        return Profile.composed(profile for run, profile in zip(self.runs, self._profiles, strict=True) if place.touches(run))

    def _draw(self, place: Place) -> list[tuple[float, Profile]]:
        return [(1.0, self.profile(place))]

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        found = ask(self.bound, target, by, conversion)
        alone = len({model.run for model in self.covered}) == 1
        theorem = "shards" if self.places.there else "single-run" if alone else "joint-release"
        details = {"runs": [model.run for model in self.runs], **self.places.details}
        return self._build(found, theorem, self._assumptions, self._conditional, conversion, details)


class PairComposition(Joint):
    """The baseline that knows nothing else: each run is first reduced to one (ε_i, δ_i), and these are composed (§6).

    Basic: δ_i = δ/N. Advanced: δ_i = δ/2N, and δ/2 for the composition itself. Optimal: the best of a few such splits."""

    def __init__(
        self,
        weights: Weights,
        composition: Composition,
        shuffle: ShuffleAsPoisson | None = None,
        looked_at: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(weights, shuffle, looked_at)
        self.name = f"{composition}-composition"
        self._composition = composition

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
        """Each run's ε at an equal share of δ; runs that are alike are asked once."""
        target = Target(delta=delta / len(self._profiles))
        asked = {profile: ask(ProfileBound(profile), target, by, conversion).epsilon for profile in set(self._profiles)}
        return [asked[profile] for profile in self._profiles]

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
