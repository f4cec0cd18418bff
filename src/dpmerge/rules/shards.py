"""Models of disjoint parts of the data: a record costs what the models of its own part cost (docs/theory.md §10, `shards`).

Everything is composed within one place of the record first. Then the worst place counts, or, where parts were drawn in
secret, the average over places: taken last, since averages do not compose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from dpmerge.profiles import Profile, ShuffleAsPoisson, run_profile
from dpmerge.records import EVERYWHERE, Model, Place, places
from dpmerge.rules.mixtures import SelectionBound, WorstBound
from dpmerge.rules.theorems import SECRET_PARTS, SHARDS

Draw = Sequence[tuple[float, Profile]]


class PartsOfData:
    """The places where a record may be, for these models."""

    def __init__(self, models: Iterable[Model]) -> None:
        known = tuple(models)
        self.groups = places(known)
        self.there = self.groups != ((EVERYWHERE,),)
        shards = [one.mechanism.shard for model in known for one in (model, *model.starts)]
        self._shards = {shard.partition: shard for shard in shards if shard is not None}

    @property
    def all(self) -> tuple[Place, ...]:
        return tuple(dict.fromkeys(place for group in self.groups for place in group))

    @property
    def assumptions(self) -> tuple[str, ...]:
        if not self.there:
            return ()
        return (SHARDS, SECRET_PARTS) if any(shard.is_secret for shard in self._shards.values()) else (SHARDS,)

    @property
    def details(self) -> dict[str, Any]:
        """For the guarantee: how many parts there are, and whether they are averaged over."""
        if not self.there:
            return {}
        told = {name: {"parts": shard.of, "counted": _counted(shard.is_secret)} for name, shard in self._shards.items()}
        return {"partitions": told}

    def bound(self, draw: Callable[[Place], Draw]) -> WorstBound:
        """Of what costs `draw` at each place: a draw among profiles."""
        found = {place: draw(place) for place in self.all}
        return WorstBound([_averaged([(place.share, found[place]) for place in group]) for group in self.groups])


Placed = list[tuple[float, list[Profile]]]  # the places of one group with their shares, and each model's profile there


def placed_profiles(models: Sequence[Model], shuffle: ShuffleAsPoisson | None) -> list[Placed]:
    """What a draw among these models is made of: of the groups the worst counts, and in each the average over its places."""
    return [
        [(_above(place.share), [run_profile(model, shuffle, place).profile for model in models]) for place in group]
        for group in places(models)
    ]


def _above(share: Fraction) -> float:
    """Above the rounding of a sum over places."""
    return 1.0 if share == 1 else float(share) * (1 + 1e-12)


def _averaged(draws: Iterable[tuple[Fraction, Draw]]) -> SelectionBound:
    """Places with equal costs are gathered: most parts are trained alike."""
    shares: dict[Profile, Fraction] = {}
    for share, draw in draws:
        for weight, profile in draw:
            shares[profile] = shares.get(profile, Fraction(0)) + share * Fraction(weight)
    return SelectionBound([(_above(share), profile) for profile, share in shares.items()])


def _counted(is_secret: bool) -> str:
    return "average" if is_secret else "largest"
