"""Stored numbers are not real numbers: what a guarantee below joint release needs of them (docs/theory.md §3.6).

A file holds the rounded average of rounded models. Its last bits lie on the lattices of the single models, and may tell one
from another. Noise that is much coarser than the lattice stops the plain attack, but not every one: of an average of stored
numbers nothing below joint release is proved, and what a merge certifies is conditional on its rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from dpmerge.records import DpSgd, Gaussian
from dpmerge.rules.transport import WeightedRun

# None: real numbers are averaged. "stored": stored ones that the noise covers. "joint": stored ones too coarse for that.
Arithmetic = Literal["stored", "joint"]
COVER = 1024  # spacings of the stored numbers that the noise must measure: a rule of thumb
_PRECISION = {"F32": 24, "BF16": 8}
_REAL = "the average is one of real numbers. For stored ones this is conditional on their rounding, and needs the last noise "


def last_noise(runs: Iterable[WeightedRun]) -> dict[str, float]:
    """λ·ν of each model: the noise, in the average, of the last update that moved it. A model that never moved is public."""
    found = {}
    for run in runs:
        mechanism = run.model.mechanism
        if isinstance(mechanism, Gaussian):
            found[run.model.name] = run.weight * mechanism.noise_std
            continue
        assert isinstance(mechanism, DpSgd)
        moving = [phase for phase in mechanism.settings() if phase.learning_rate > 0]
        if moving:
            last = moving[-1]
            noise = last.noise_multiplier * last.clip / last.expected_batch
            found[run.model.name] = run.weight * last.learning_rate * noise
    return found


def covers(noise: Mapping[str, float], spacing: float) -> bool:
    """Whether every model's last noise covers numbers that lie `spacing` apart."""
    return all(value > 0 and value >= COVER * spacing for value in noise.values())


def condition(noise: Mapping[str, float], arithmetic: Arithmetic | None) -> str:
    """The assumption as it is printed: with what it means for the formats that models are stored in."""
    least = min(noise.values(), default=math.inf)
    if arithmetic == "stored":
        return (
            "the rounding of the stored average tells nothing of single models; this is not proved, and known to fail for "
            f"parameters near powers of two (checked: the last noise of each model in the average is {COVER} spacings or more)"
        )
    exponent = math.frexp(least)[1] - 1 - int(math.log2(COVER)) if 0 < least < math.inf else 0
    ranges = " and ".join(f"{name} below {math.ldexp(1.0, exponent + bits):.3g}" for name, bits in _PRECISION.items())
    return (
        f"{_REAL}of each model in the average ({least:.3g} or more) to be {COVER} spacings, as it is for parameters in {ranges}"
    )


def of_starts(runs: Iterable[WeightedRun]) -> str:
    """What is assumed of checkpoints that forks start from, where these are stored and nothing else of their runs shows."""
    least = min(last_noise(runs).values(), default=math.inf)
    return (
        f"the last noise of the runs that models start from ({least:.3g} or more) is {COVER} spacings or more of the numbers "
        "in their checkpoints"
    )


def of_many(assumption: str) -> str:
    """The assumption as many averages share it: without the numbers that the condition on rounding has for each of them."""
    return f"{_REAL}of each model in the average to be {COVER} spacings" if assumption.startswith(_REAL) else assumption


def why_joint(noise: Mapping[str, float], at_release: float = 0.0) -> str:
    """Why joint release counts although a better theorem applies to real numbers."""
    if at_release > 0:
        return (
            f"the noise at release, {at_release:.3g}, is less than {COVER} spacings of the stored numbers at the largest "
            "parameter, so their rounding could show through it; more noise, or models stored in a finer format, would mend it"
        )
    silent = [repr(name) for name, value in noise.items() if not value > 0]
    if silent:
        return (
            f"the last update of {', '.join(silent)} has no noise, so the rounding of the stored average would give it away; "
            "leave it out, or draw one model (selection)"
        )
    return (
        f"the last noise of each model in the average, {min(noise.values()):.3g} or more, is less than {COVER} spacings of the "
        "stored numbers at the largest parameter, so their rounding could tell the models apart; models stored in a finer "
        "format, or more weight on the model with the least noise, would mend it"
    )
