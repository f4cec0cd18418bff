"""Whether models are of one private dataset: by its name, and where records have them by fingerprints of the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from dpmerge.errors import PortfolioError
from dpmerge.records.runs import Model


def check_one_dataset(models: Sequence[Model]) -> None:
    """Refuse models of different datasets or adjacencies, and fingerprints that contradict what records say of the data."""
    if not models:
        raise PortfolioError("a portfolio needs at least one model")
    first, names = models[0], set[str]()
    for other in models:
        if other.name in names:
            raise PortfolioError(f"two models are named {other.name!r}; weights are given by name, so give each its own")
        names.add(other.name)
        if other.record.dataset != first.record.dataset:
            raise PortfolioError(
                f"models {first.name!r} and {other.name!r} were trained on different datasets "
                f"({first.record.dataset!r}, {other.record.dataset!r}): a merge accounts for one private dataset; "
                "put them into separate portfolios"
            )
        if other.record.adjacency != first.record.adjacency:
            raise PortfolioError(
                f"models {first.name!r} and {other.name!r} are accounted under different adjacencies "
                f"({first.record.adjacency}, {other.record.adjacency}): guarantees for different neighbours do not "
                "combine; state both records under one adjacency"
            )
    told = {(_place(model), repr(found)): model for model in models if (found := model.record.data_fingerprint) is not None}
    for one, other in combinations(told.values(), 2):
        if (why := data_contradiction(one, other)) is not None:
            raise PortfolioError(f"models {one.name!r} and {other.name!r}: {why}")


def data_contradiction(one: Model, other: Model) -> str | None:
    """What is wrong where fingerprints under one key show other data than the records say.

    All of the data, or one part of them, have one fingerprint; different parts of one partition have no record in common, and
    none of them is all. Parts of different partitions may be anything to each other.
    """
    mine, theirs = one.record.data_fingerprint, other.record.data_fingerprint
    if mine is None or theirs is None or mine.key != theirs.key:
        return None
    places = [_place(one), _place(other)]
    if places[0] == places[1] and mine.value != theirs.value:
        which = "" if places[0] is None else f", and part {places[0][1]} of its partition {places[0][0]!r}"
        return (
            f"their records name one dataset, {one.record.dataset!r}{which}, but the fingerprints of their data differ (key "
            f"{mine.key}): the data were not the same, or not fingerprinted in the same form. Train on the same data, or give "
            "different data different names; what a person in both loses adds up all the same"
        )
    one_partition = len({place[0] for place in places if place is not None}) == 1
    if places[0] != places[1] and one_partition and mine.value == theirs.value:
        return (
            f"their records name different parts of the data, but the fingerprints of these are equal (key {mine.key}): what "
            "different parts save would be counted for runs on the same records; correct the shard of one, or train it again"
        )
    return None


def by_name_only(models: Iterable[Model]) -> str | None:
    """Why that these models are of one dataset is known by its name only; None if fingerprints show it, or for one model."""
    given = tuple(models)
    prints = [model.record.data_fingerprint for model in given]
    without = ", ".join(repr(model.name) for model, found in zip(given, prints, strict=True) if found is None)
    reasons = {
        f"no fingerprint of the data in the records of {without}": bool(without),
        "fingerprints under different keys, which cannot be compared": len({one.key for one in prints if one}) > 1,
        "each part of the data has a fingerprint of its own": not without and len(set(map(_place, given))) > 1,
    }
    found = [text for text, there in reasons.items() if there]
    return (
        f"that these models are of one dataset is known by its name only: {'; '.join(found)}" if given[1:] and found else None
    )


def _place(model: Model) -> tuple[str, int] | None:
    """The partition and the part that its own steps saw; None for all of the data."""
    shard = model.mechanism.shard
    return None if shard is None else (shard.partition, shard.part)
