"""A δ that makes sense: what it means beside the number of records, and where it is too large to be wanted (theory.md §0)."""

from __future__ import annotations

from collections.abc import Iterable

from dpmerge.errors import TargetError
from dpmerge.records import DpSgd, Model

LARGEST = 0.01


def require_wanted(delta: float | None, any_delta: bool = False) -> None:
    """Refuse a δ at which a record may be lost altogether more than one time in a hundred, unless it is asked for."""
    if delta is not None and LARGEST < delta < 1 and not any_delta:
        raise TargetError(
            f"δ = {delta:g} allows all of a record to be published with that probability, more than one time in a hundred; "
            "choose δ well below 1 over the number of records. If you do want this one, say so: --any-delta (any_delta=True)"
        )


def about_delta(delta: float, models: Iterable[Model]) -> tuple[str, ...]:
    """A warning where a δ is at least 1/n, by the smallest n that these models' records tell."""
    known = [(*told, model.name) for model in models if (told := _records(model)) is not None]
    if not known or delta * min(known)[0] < 1:
        return ()
    n, how, name = min(known)
    return (
        f"δ = {delta:.6g} is at least 1/{n:.0f}, and by the record of model {name!r} there are {how} {n:.0f} records: "
        "publishing one of them at random satisfies such a δ; choose one well below",
    )


def _records(model: Model) -> tuple[float, str] | None:
    """How many records it was trained on, where batches tell; a full batch has at least their number (FULL, theory.md §0)."""
    if not isinstance(model.mechanism, DpSgd):
        return None
    counts = []
    for phase in model.mechanism.settings():
        assert phase.expected_batch is not None
        assert phase.sampling is not None
        if phase.sampling.scheme == "full-batch":
            counts.append((phase.expected_batch, "at most"))
        elif phase.sampling.rate is not None:
            counts.append((phase.expected_batch / phase.sampling.rate, "about"))
    return min(counts, default=None)
