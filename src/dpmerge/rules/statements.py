"""What is printed beside a guarantee: numbers rounded up, warnings about δ, and what records rest on (docs/theory.md §0)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dpmerge.errors import TargetError
from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import CRYPTOGRAPHIC, ApproxDp, DpSgd, Model

LARGEST = 0.01  # above it a δ must be asked for


def round_up(value: float, digits: int = 4) -> str:
    """A privacy parameter for people: rounded up, never in the user's favour.

    >>> round_up(2.00001)
    '2.0001'
    """
    if not math.isfinite(value * 10**digits):
        return "∞"
    scaled = math.ceil(value * 10**digits)
    if scaled / 10**digits < value:  # the product was rounded down
        scaled += 1
    return f"{scaled / 10**digits:.{digits}f}"


def round_down(value: float, digits: int = 4) -> float:
    """A lower bound for people: rounded down to this many significant digits.

    >>> round_down(2.74999)
    2.749
    """
    if value <= 0 or not math.isfinite(value):
        return value
    if value < 1e-12:  # no digit of it is shown, and below 1e-320 there is no unit to count in
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return min(round(math.floor(value / unit) * unit, 12), value)


def significant(value: float, digits: int = 6) -> str:
    """A δ for people: rounded up to this many significant digits; one with fewer digits stays as it is.

    >>> significant(0.0221617204), significant(1e-5)
    ('0.0221618', '1e-05')
    """
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    text = f"{value:.{digits}g}"
    if float(text) < value:
        unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
        text = f"{value + unit:.{digits}g}"
    return text


def require_wanted(delta: float | None, any_delta: bool = False) -> None:
    """Refuse a δ above 0.01, at which a record may be published whole with that probability, unless it is asked for."""
    if delta is not None and LARGEST < delta < 1 and not any_delta:
        raise TargetError(
            f"δ = {delta:g} allows all of a record to be published with that probability, more than one time in a hundred; "
            "choose δ well below 1 over the number of records. If you do want this one, say so with any_delta=True"
        )


def about_delta(delta: float, models: Iterable[Model], shuffle: ShuffleAsPoisson | None = None) -> tuple[str, ...]:
    """A warning where δ is at least 1/n, with the largest number n of records that these models may have been trained on."""
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
    """How many records it was trained on, where its batches show it; a full batch has at least that many (theory.md §0)."""
    if not isinstance(model.mechanism, DpSgd):
        return
    parts = 1 if model.mechanism.shard is None else model.mechanism.shard.of
    for phase in model.mechanism.settings():
        if phase.sampling.scheme == "full-batch":
            yield phase.expected_batch, ""
        elif phase.sampling.rate is not None:
            yield parts * phase.expected_batch / phase.sampling.rate, "about"
        elif shuffle is not None and shuffle.rate < 1:
            yield phase.expected_batch / shuffle.rate, "about"
        else:  # shuffled: all that is known is that a batch is no larger
            yield phase.expected_batch, "at least"


def about_records(models: Iterable[Model]) -> tuple[str, ...]:
    """What RECORD (theory.md §0) rests on in these records: what users state, and generators that are not cryptographic."""
    found, given = [], tuple(models)
    known = (*given, *{start.counts_as: start for model in given for start in model.starts}.values())
    for model in known:
        if model.record.source == "stated-by-user":
            found.append(f"the record of model {model.name!r} was stated by its user, not recorded by the training")
        if isinstance(model.mechanism, ApproxDp) and model.mechanism.made_of is not None:
            assumed = "; ".join(model.mechanism.made_of.assumes)
            found.append(f"model {model.name!r} is a release, and what its certificate assumes holds ({assumed})")
        left_out = getattr(model.mechanism, "left_out", None)
        if left_out:
            names = ", ".join(map(repr, left_out))
            found.append(
                f"model {model.name!r}: no loss was computed with {names}, which changed without noise and were left out"
            )
        if getattr(model.mechanism, "others_unchanged", None):
            found.append(
                f"model {model.name!r}: its user says that tensors which the private optimizer did not train are as before it"
            )
        if model.start is not None:
            found.append(
                f"model {model.name!r} starts from a private checkpoint, {model.start.name!r} (run and step): beyond that its "
                "initialisation does not depend on the data, and its noise and coins are its own, not those with which that "
                "run may have gone on"
            )
    by_generator: dict[str, list[str]] = {}
    for model in known:
        generator = model.mechanism.noise_generator
        if model.mechanism.kind in ("dp-sgd", "gaussian", "dp-ftrl") and generator not in CRYPTOGRAPHIC:
            by_generator.setdefault(generator or "not recorded", []).append(repr(model.name))
    if by_generator:
        which = "; ".join(f"{generator} for {', '.join(names)}" for generator, names in by_generator.items())
        found.append(f"training noise of a generator that is not known to be cryptographic is as good as true noise ({which})")
    return tuple(found)


def kept_checkpoints(models: Iterable[Model]) -> tuple[str, ...]:
    """Reminds whoever relies on a last iterate alone of the checkpoints that a training kept."""
    kept = {model.name: getattr(model.mechanism, "checkpoints_kept", None) for model in models}
    return tuple(
        f"the training of model {name!r} kept {count} checkpoints: none of them was or will be published or chosen from"
        for name, count in kept.items()
        if count
    )


def assumed_by(stated: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Every assumption once, and which of the rules drawn make it."""
    found: dict[str, list[str]] = {}
    for title, assumptions in stated:
        for text in assumptions:
            if title not in found.setdefault(text, []):
                found[text].append(title)
    return found


def whose(assumptions: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Each assumption, with the names of the rules that make it unless all do."""
    everyone = {name for names in assumptions.values() for name in names}
    return tuple(text if everyone == set(names) else f"{text} [{', '.join(names)}]" for text, names in assumptions.items())
