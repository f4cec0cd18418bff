"""A δ that makes sense: what it means beside the number of records, and where it is too large to be wanted (theory.md §0)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dpmerge.errors import TargetError
from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import DpSgd, Model

LARGEST = 0.01


def require_wanted(delta: float | None, any_delta: bool = False) -> None:
    """Refuse a δ at which a record may be lost altogether more than one time in a hundred, unless it is asked for."""
    if delta is not None and LARGEST < delta < 1 and not any_delta:
        raise TargetError(
            f"δ = {delta:g} allows all of a record to be published with that probability, more than one time in a hundred; "
            "choose δ well below 1 over the number of records. If you do want this one, say so with any_delta=True"
        )


def about_delta(delta: float, models: Iterable[Model], shuffle: ShuffleAsPoisson | None = None) -> tuple[str, ...]:
    """A warning where a δ is at least 1/n, by the largest n that these models' records tell: in doubt it warns."""
    known = [(*told, model.name) for model in models for told in _records(model, shuffle)]
    if not known or delta * max(known)[0] < 1:
        return ()
    n, how, name = max(known)
    record = f"and by the record of model {name!r} there are {how} {n:.0f} records: publishing"
    divisor = f"and if there are {n:.0f} records, the divisor in the record of model {name!r}, publishing"
    return (
        f"δ = {delta:.6g} is at least 1/{n:.0f}, {record if how else divisor} one of them at random satisfies such a δ; "
        "choose one well below",
    )


def _records(model: Model, shuffle: ShuffleAsPoisson | None) -> Iterator[tuple[float, str]]:
    """How many records it was trained on, where batches tell; a full batch has at least their number (FULL, theory.md §0)."""
    if not isinstance(model.mechanism, DpSgd):
        return
    for phase in model.mechanism.settings():
        if phase.sampling.scheme == "full-batch":
            yield phase.expected_batch, ""
        elif phase.sampling.rate is not None:
            yield phase.expected_batch / phase.sampling.rate, "about"
        elif shuffle is not None and shuffle.rate < 1:
            yield phase.expected_batch / shuffle.rate, "about"
        else:  # shuffled: all that is known is that a batch is no larger
            yield phase.expected_batch, "at least"
