"""Several releases from one portfolio: what has leaked in all (docs/theory.md §5).

Random selection releases the same realised models again, so after several draws what has leaked is the set S of models
drawn, and δ(ε) = Σ_S P(S)·H_ε(joint release of S) per direction. Whatever else was released (a combination, a tempered
draw) is a function of the models involved, and so is whatever is made of models that were declared: these are in S for certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeVar

from dpmerge.errors import PortfolioError
from dpmerge.profiles import Conversion, Profile, ShuffleAsPoisson, gathered, run_profile
from dpmerge.records import EVERYWHERE, Model, Place, Portfolio, Weights, distinct_runs, require_independent
from dpmerge.rules.combination import Combination, demands
from dpmerge.rules.guarantee import By, Guarantee, Rule, Target, ask
from dpmerge.rules.mixtures import SelectionBound
from dpmerge.rules.shards import PartsOfData
from dpmerge.rules.statements import about_records
from dpmerge.rules.theorems import THEOREMS

_SUBSETS = 256
_Set = TypeVar("_Set", frozenset[str], tuple[str, ...])


@dataclass(frozen=True)
class Exposure:
    """What one release may expose: sets of models with their probabilities."""

    outcomes: tuple[tuple[Fraction, frozenset[str]], ...]

    def __repr__(self) -> str:
        """The same in every process, which the repr of a set is not: answers are cached under it."""
        return f"Exposure({[(str(probability), sorted(models)) for probability, models in self.outcomes]})"

    @classmethod
    def drawn(cls, *weights: Weights) -> Exposure:
        """One random selection, or several that share one uniform number."""
        law: dict[frozenset[str], Fraction] = {}
        for probability, names in coupled_outcomes(weights):
            law[frozenset(names)] = law.get(frozenset(names), Fraction(0)) + probability
        return cls(tuple((probability, models) for models, probability in law.items()))

    @classmethod
    def whole(cls, models: Iterable[str]) -> Exposure:
        """A function of all these models: joint release covers it."""
        return cls(((Fraction(1), frozenset(models)),))

    @property
    def models(self) -> frozenset[str]:
        return frozenset[str]().union(*(models for _, models in self.outcomes))


def coupled_outcomes(weights: Sequence[Weights]) -> list[tuple[Fraction, tuple[str, ...]]]:
    """Which models several selections draw with one uniform number, and how probably: quantiles in the portfolio's order.

    Neighbouring targets mostly draw the same model, so less leaks than by independent draws. Probabilities are exactly
    those of the floating-point weights, divided by their sum.
    """
    ladders: list[list[Fraction]] = []
    for one in weights:
        total = sum(map(Fraction, one.values), Fraction(0))
        steps, reached = [], Fraction(0)
        for value in one.values:
            reached += Fraction(value) / total
            steps.append(reached)
        ladders.append(steps)
    edges = sorted({Fraction(0), *(edge for ladder in ladders for edge in ladder)})
    names = weights[0].portfolio.names
    result = []
    for low, high in pairwise(edges):
        drawn = tuple(names[next(i for i, edge in enumerate(ladder) if edge > low)] for ladder in ladders)
        result.append((high - low, drawn))
    return result


class Releases(Rule):
    """Everything that was released from one portfolio, together.

    `beside` are averages of runs of which nothing else was released: each keeps its own guarantee, and composes with the rest.
    """

    name = "releases"

    def __init__(
        self,
        portfolio: Portfolio,
        releases: Sequence[Exposure],
        shuffle: ShuffleAsPoisson | None = None,
        beside: tuple[Combination, ...] = (),
    ) -> None:
        law = leaked(releases) or ({frozenset[str](): 1.0} if beside else {})
        if not law:
            raise PortfolioError("nothing was released, so there is nothing to account for")
        exposed = frozenset[str]().union(*law)
        seen = exposed | {model.name for rule in beside for model, _ in rule.weights.used}
        portfolio.require_names(sorted(seen), PortfolioError)
        self.weights = portfolio.weights({name: 1 / len(seen) for name in seen})
        models = {model.name: model for model in portfolio.models}
        self.shuffle = shuffle
        # What averages start from is counted with what was exposed: once, whoever else starts there (§10).
        started = tuple(start for rule in beside for model, _ in rule.weights.used for start in model.starts)
        known = distinct_runs((*(models[name] for name in sorted(exposed)), *started))
        assumed, self._conditional = gathered(run_profile(run, shuffle) for run in known)
        independence: dict[str, None] = {}
        parts: dict[tuple[str, ...], float] = {}
        self._runs: dict[tuple[str, ...], tuple[Model, ...]] = {}
        for names, probability in law.items():
            shown = distinct_runs((*(models[name] for name in sorted(names)), *started))
            everyone = distinct_runs((*(models[name] for name in sorted({*names, *(seen - exposed)})), *started))
            independence.update(dict.fromkeys(require_independent(everyone)))
            key = tuple(sorted(model.name for model in shown))
            self._runs[key] = shown
            _add(parts, key, probability)
        self.places = PartsOfData(models[name] for name in sorted(seen))
        self._assumptions = (*independence, *self.places.assumptions, *assumed)
        self._beside = beside
        self.law: Mapping[tuple[str, ...], float] = parts

    def draw(self, place: Place = EVERYWHERE, alone: Iterable[Profile] = ()) -> list[tuple[float, Profile]]:
        """The sets of models that may have leaked, each composed with the averages beside it."""
        averaged = list(alone)
        return [
            # Above the rounding of sums over at most 257 sets.
            (share * (1 + 1e-12), Profile.composed([*self._exposed(key, place), *averaged]))
            for key, share in self.law.items()
        ]

    def _exposed(self, key: tuple[str, ...], place: Place) -> list[Profile]:
        return [run_profile(run, self.shuffle).profile for run in self._runs[key] if place.touches(run)]

    def _guarantee(self, target: Target, by: By, conversion: Conversion) -> Guarantee:
        """Averages answer at every place of a record, composed there with what was exposed."""
        alone = {
            place: [rule.placed(place).with_profile(target, by, conversion, with_starts=False) for rule in self._beside]
            for place in self.places.all
        }

        def draw(place: Place) -> list[tuple[float, Profile]]:
            return self.draw(place, [profile for _, profile in alone[place]])

        bound = self.places.bound(draw) if self.places.there else SelectionBound(draw(EVERYWHERE))
        answer = ask(bound, target, by, conversion)
        found = [one for averages in alone.values() for one, _ in averages]
        details: dict[str, Any] = {"exposed": [{"models": list(key), "probability": share} for key, share in self.law.items()]}
        if found:
            most = [
                max(of_one, key=lambda one: demands(one.theorem))
                for of_one in zip(*([one for one, _ in averages] for averages in alone.values()), strict=True)
            ]
            details["alone"] = [{"weights": dict(one.weights), "theorem": one.theorem} for one in most]
        own = dict.fromkeys(text for one in found for text in one.assumptions)
        held = {*THEOREMS["several-releases"].assumptions, *self._assumptions, *about_records(self.covered)}
        assumptions = (*self._assumptions, *(text for text in own if text not in held))
        conditional = self._conditional or any(one.standing == "conditional" for one in found)
        details |= self.places.details
        return self._build(answer, "several-releases", assumptions, conditional, conversion, details)


def leaked(releases: Sequence[Exposure]) -> dict[frozenset[str], float]:
    """The law of the set of models that have leaked after all releases, drawn independently of each other.

    Every probability is rounded up. Of many possible sets the improbable ones are counted as everything together, which is
    never less.
    """
    everything = frozenset[str]().union(*(release.models for release in releases))
    law: dict[frozenset[str], float] = {frozenset(): 1.0} if releases else {}
    for release in releases:
        fresh: dict[frozenset[str], float] = {}
        for chance, drawn in ((_up(float(chance)), drawn) for chance, drawn in release.outcomes):
            for models, probability in law.items():
                _add(fresh, models | drawn, _up(probability * chance))
        if len(fresh) > _SUBSETS:
            ranked = sorted(fresh, key=lambda models: (-fresh[models], sorted(models)))
            for models in ranked[_SUBSETS:]:
                _add(fresh, everything, fresh.pop(models))
        law = fresh
    return law


def _add(law: dict[_Set, float], models: _Set, probability: float) -> None:
    held = law.get(models, 0.0)
    law[models] = _up(held + probability) if held else probability


def _up(value: float) -> float:
    return math.nextafter(value, math.inf)
