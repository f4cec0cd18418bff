"""A filter for releases that are chosen by what earlier ones showed (docs/theory.md §5, `adaptive-filter`).

At one Rényi order, fixed in advance, the divergences of releases add up whatever each was chosen by (Feldman and Zrnic 2021).
Privacy loss distributions do not: which of two mechanisms comes next may be chosen so that their worst cases meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np

from dpmerge.errors import TargetError
from dpmerge.profiles import (
    DIRECTIONS,
    ORDERS,
    ApproxDpLaw,
    FloatArray,
    Profile,
    ShuffleAsPoisson,
    epsilon_from_renyi,
    gathered,
    run_profile,
)
from dpmerge.records import Adjacency, DpSgd, Model, Place, distinct_runs, latest_checkpoints, require_independent
from dpmerge.rules.guarantee import Guarantee
from dpmerge.rules.releases import Exposure
from dpmerge.rules.shards import PartsOfData
from dpmerge.rules.theorems import THEOREMS

_ROUNDING = 1 + 1e-12
_SLACK = 1e-14  # above the rounding of logarithms of probabilities that sum to 1

_Cost = tuple[FloatArray, float]  # per direction (α−1)·D_α, and δ


@dataclass(frozen=True)
class Charge:
    """One release: the models it may expose, and what private validation sets paid for its choice."""

    exposure: Exposure
    paid: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sum:
    """What releases have used of a filter: their divergence per direction, and the δ of records that state (ε, δ) pairs."""

    divergences: tuple[float, ...]
    pairs: float
    unbounded: tuple[str, ...] = ()  # models without a finite divergence of this order
    assumptions: tuple[str, ...] = ()
    conditional: bool = False

    @property
    def divergence(self) -> float:
        return max(self.divergences)


@dataclass(frozen=True)
class Filter:
    """A budget: at this order the divergences of all releases may sum to `room`, and the δ of (ε, δ) pairs to `pairs`."""

    order: float
    epsilon: float
    delta: float  # for the divergences
    pairs: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.order) and self.order > 1):
            raise TargetError(f"the order of a filter is {self.order}; it must be above 1")
        if not self.room > 0:
            raise TargetError(
                f"a filter of order {self.order:g} has no room: by itself the conversion at δ = {self.delta:g} costs more than "
                f"ε = {self.epsilon:g}; give the filter more of δ, or the ledger a larger ε"
            )

    @classmethod
    def sharing(cls, epsilon: float, delta: float, order: float | None = None) -> Self:
        """Half of δ is for divergences, half for pairs; the order, if not given, is the one with most room for Gaussians."""
        if order is None:
            order = float(ORDERS[int(np.argmax((epsilon - _conversion(ORDERS, delta / 2)) / ORDERS))])
        return cls(order, epsilon, delta / 2, delta / 2)

    @property
    def room(self) -> float:
        """The divergence that converts to ε at δ (`rdp-conversion`), from below."""
        return (self.epsilon - float(_conversion(np.array([self.order]), self.delta)[0])) / _ROUNDING - 1e-12

    def share(self, used: Sum) -> float:
        """The used share of the filter, at most 1 if allowed; convex in the weights of one draw, so chords lie above it."""
        return max(math.exp(min((self.order - 1) * (used.divergence - self.room), 700.0)), used.pairs / self.pairs)

    def allows(self, used: Sum) -> bool:
        return used.divergence <= self.room and used.pairs <= self.pairs

    def total(self, models: Mapping[str, Model], releases: Sequence[Charge], shuffle: ShuffleAsPoisson | None = None) -> Sum:
        """What these releases use, in their order, each chosen by whatever the ones before it showed.

        A run is revealed whole when it is first involved: then it costs its divergence, and nothing later. What is only drawn
        with some probability is not known to have been revealed, and costs again. Of a record's places the worst counts.
        """
        involved = _sorted(models, frozenset[str]().union(*(release.exposure.models for release in releases)))
        runs = distinct_runs(involved)
        profiles = [run_profile(run, shuffle) for run in runs]
        parts = PartsOfData(involved)
        sums = [self._at(place, models, releases, shuffle) for place in parts.all]
        assumed, conditional = gathered(profiles)
        return Sum(
            tuple(max(found) for found in zip(*(divergences for divergences, _ in sums), strict=True)),
            max(pairs for _, pairs in sums),
            tuple(
                run.name for run, one in zip(runs, profiles, strict=True) if not np.all(np.isfinite(self._cost(one.profile)[0]))
            ),
            (*require_independent(runs), *parts.assumptions[:1], *assumed),
            conditional,
        )

    def _at(
        self, place: Place, models: Mapping[str, Model], releases: Sequence[Charge], shuffle: ShuffleAsPoisson | None
    ) -> tuple[tuple[float, ...], float]:
        """Divergences and pairs for a record at this place."""

        @cache
        def cost(run: tuple[str, str, int], /) -> _Cost:
            return self._cost(run_profile(known[run], shuffle).profile)

        def beyond(model: Model) -> _Cost:
            return _beyond(model, revealed, lambda one: cost(_named(one)))

        def shown(members: frozenset[str]) -> list[Model]:
            found = [run for run in distinct_runs(_sorted(models, members)) if place.touches(run)]
            known.update((_named(run), run) for run in found)
            return found

        known: dict[tuple[str, str, int], Model] = {}
        revealed: dict[str, Model] = {}
        moments, pairs = np.zeros(len(DIRECTIONS)), 0.0
        for release in releases:
            exponents = []
            for chance, members in release.exposure.outcomes:
                fresh = [beyond(run) for run in shown(members)]
                exponents.append(math.log(chance) + sum((moment for moment, _ in fresh), np.zeros(len(DIRECTIONS))))
                pairs += float(chance) * math.fsum(delta for _, delta in fresh)
            moments += np.logaddexp.reduce(exponents) + sum(map(self._pure, release.paid)) + _SLACK
            for run in shown(frozenset.intersection(*(members for _, members in release.exposure.outcomes))):
                key = _key(run)
                revealed[key] = latest_checkpoints((revealed.get(key, run), run))[0]
        return tuple((np.maximum(moments, 0.0) * _ROUNDING / (self.order - 1)).tolist()), pairs * _ROUNDING

    def guarantee(self, used: Sum, adjacency: Adjacency, delta: float) -> Guarantee:
        """What holds of everything that is ever released within the filter, at the δ of the whole ledger."""
        theorem = THEOREMS["adaptive-filter"]
        return Guarantee(
            epsilon=self.epsilon,
            delta=delta,
            adjacency=adjacency,
            theorem="adaptive-filter",
            assumptions=(*theorem.assumptions, *used.assumptions),
            standing="conditional" if used.conditional else "proved",
            by="rdp",
            rule="filter",
            weights={},
            conversion="tight",
            details={"order": self.order, "used": used.divergence, "room": self.room, "pairs": used.pairs, "of": self.pairs},
        )

    def _cost(self, profile: Profile) -> _Cost:
        """Per direction (α−1)·D_α of the part with finite losses, and the δ of the rest (Kairouz, Oh and Viswanath 2015)."""
        pairs = [(law, count) for law, count in profile.factors if isinstance(law, ApproxDpLaw) and law.delta > 0]
        delta = math.fsum(law.delta * count for law, count in pairs)
        if profile.failure > 0 or not profile.is_private:
            return np.full(len(DIRECTIONS), math.inf), delta
        order, moments = np.array([self.order]), np.zeros(len(DIRECTIONS))
        for law, count in profile.factors:
            known = law.finite_log_moment if (law, count) in pairs else law.log_moment
            moments += [count * float(known(order, direction)[0]) for direction in DIRECTIONS]
        return moments, delta

    def _pure(self, epsilon: float) -> float:
        return float(ApproxDpLaw(epsilon, 0.0).log_moment(np.array([self.order]), "remove")[0])


def _beyond(model: Model, revealed: Mapping[str, Model], cost: Callable[[Model], _Cost]) -> _Cost:
    """What a model costs beyond what was revealed of its run for certain.

    Steps of DP-SGD are paid one by one. A tree's later nodes may hold a record that earlier ones held too: all are paid again.
    """
    held = revealed.get(_key(model))
    if held is None:
        return cost(model)
    if latest_checkpoints((held, model))[0] is held:
        return np.zeros(len(DIRECTIONS)), 0.0
    if isinstance(model.mechanism, DpSgd):
        moments, delta = cost(model)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.maximum(moments - cost(held)[0], 0.0), nan=math.inf, posinf=math.inf), delta
    return cost(model)


def _named(run: Model) -> tuple[str, str, int]:
    return run.name, run.run, getattr(run.mechanism, "steps", 1)


def _key(model: Model) -> str:
    return f"run:{model.run}" if model.covers_iterates else f"model:{model.name}"


def _sorted(models: Mapping[str, Model], names: frozenset[str]) -> tuple[Model, ...]:
    return tuple(models[name] for name in sorted(names))


def _conversion(orders: FloatArray, delta: float) -> FloatArray:
    """The ε that remains where the divergence is 0."""
    return epsilon_from_renyi(orders, np.zeros(orders.shape), delta, "tight")
