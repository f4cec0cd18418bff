"""Where one record may be when models were trained on parts of the data (docs/theory.md §10)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from dpmerge.errors import PortfolioError
from dpmerge.records.record import Shard
from dpmerge.records.runs import Model

_MOST = 4096


@dataclass(frozen=True)
class Place:
    """A record's part of every partition, 0 for any part that no model was trained on; and how probable that is, given the
    parts that were not drawn in secret."""

    parts: tuple[tuple[str, int], ...] = ()
    share: Fraction = Fraction(1)

    def touches(self, model: Model) -> bool:
        """Whether the model's own steps may have seen the record."""
        shard = model.mechanism.shard
        return shard is None or dict(self.parts).get(shard.partition, shard.part) == shard.part


EVERYWHERE = Place()  # touches every model


def places(models: Iterable[Model]) -> tuple[tuple[Place, ...], ...]:
    """Groups of places: a record is in the worst group, and in each place of it with the place's share.

    Without shards there is one place. Parts that were drawn in secret are averaged over; of others the worst counts.
    """
    partitions: dict[str, dict[int, tuple[Shard, str]]] = {}
    for model in models:
        for one in (model, *model.starts):
            shard = one.mechanism.shard
            if shard is not None:
                _add(partitions.setdefault(shard.partition, {}), shard, model.name)
    groups: list[tuple[Place, ...]] = [(EVERYWHERE,)]
    for name, known in sorted(partitions.items()):
        shard = next(iter(known.values()))[0]
        chances = {part: Fraction(1, shard.of) for part in sorted(known)}
        if len(known) < shard.of:
            chances[0] = Fraction(shard.of - len(known), shard.of)
        if sum(map(len, groups)) * len(chances) > _MOST:
            raise PortfolioError(f"the models' partitions have more than {_MOST} combinations of parts; use fewer")
        if shard.is_secret:
            groups = [
                tuple(
                    Place((*place.parts, (name, part)), place.share * chance)
                    for place, (part, chance) in product(group, chances.items())
                )
                for group in groups
            ]
        else:
            groups = [
                tuple(Place((*place.parts, (name, part)), place.share) for place in group)
                for group in groups
                for part in chances
            ]
    return tuple(groups)


def _add(known: dict[int, tuple[Shard, str]], shard: Shard, name: str) -> None:
    """Refuse parts of one partition that contradict each other."""
    for other, whose in known.values():
        if (other.of, other.assignment) != (shard.of, shard.assignment):
            raise PortfolioError(
                f"models {whose!r} and {name!r} are of one partition, {shard.partition!r}, and their records say different "
                f"things of it ({other.of} parts by {other.assignment}, {shard.of} by {shard.assignment}); give different "
                "partitions different names"
            )
    known.setdefault(shard.part, (shard, name))
