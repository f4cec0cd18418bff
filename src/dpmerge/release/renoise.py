"""More noise on a release that someone holds: a better guarantee, without the private models (docs/theory.md §9.8)."""

from __future__ import annotations

import math
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dpmerge.cache import without_cache
from dpmerge.errors import CertificateError, TargetError
from dpmerge.files import sha256
from dpmerge.release.certificate import NAME, Certificate, GuaranteeForm, now, software
from dpmerge.release.forms import Renoised, RuleForm
from dpmerge.release.ladder import spared
from dpmerge.release.making import Released, write_statements
from dpmerge.release.readme import CardTemplate
from dpmerge.release.recheck import Verdict
from dpmerge.release.signing import Signer
from dpmerge.rules import Guarantee, round_up
from dpmerge.tensors import Header, MergeReport, Noise, NoisePath, merge_models, open_model

_PLAIN = CardTemplate()
_CLOSE = 1.01  # by what factor the noise may exceed the least
_MOST = 2.0**30  # times the noise of the release: more does not help


def parent_of(folder: Path) -> Certificate:
    """The certificate of a release to which noise may be added: one whose guarantee rests on the noise of a ladder."""
    path = folder / NAME
    try:
        found = Certificate.parse(path.read_bytes(), str(path))
    except OSError as fault:
        raise CertificateError(
            f"{path}: there is no certificate ({fault.strerror}), so nothing is known of this release"
        ) from None
    why = {
        "has no noise, so noise can only be added by whoever has the models": found.rule.noise is None,
        "was made of another release: add noise to that one": found.parent is not None,
        "is covered by the total of a ledger alone": found.dependent,
        "has a guarantee to which noise adds nothing": found.guarantee.theorem != "hidden-run",
    }
    for reason, holds in why.items():
        if holds:
            raise CertificateError(f"{folder}: this release {reason}")
    faults = found.faults()
    with open_model(folder) as model:
        names = [file.path.name for file in model.files]
        coarse = sorted({tensor.dtype.name for tensor in model.tensors.values()} & {"F16", "BF16"})
    if coarse:
        raise CertificateError(f"{folder}: its numbers are stored as {coarse[0]}, too coarsely for noise to be added to them")
    faults += [f"{name} was changed" for name in names if _digest(folder / name) != found.outputs.get(name)]
    if faults:
        raise CertificateError(f"{folder}: {faults[0]}; verify the release first")
    return found


def renoise(
    folder: Path,
    out: Path,
    *,
    delta: float,
    epsilon: float | None = None,
    noise: float | None = None,
    bound: float | None = None,
    recipient: str | None = None,
    signer: Signer | None = None,
    template: CardTemplate = _PLAIN,
) -> Released:
    """Write a release again with more noise: with the least for (ε, δ), or with `noise` in all.

    Numbers beyond ±`bound` are cut first, by default beyond 128 to 256 times the release's own noise. Bound and noise must not
    be chosen by looking at the numbers.
    """
    parent = parent_of(folder)
    own = parent.rule.deviation
    if epsilon is None and noise is None:
        raise TargetError("one of the two is needed: a target ε for which to find the noise, or the noise")
    if epsilon is not None and noise is not None:
        raise TargetError("give a target ε for which to find the noise, or the noise, not both")
    limit = _power_of_two(256 * own / 2 if bound is None else bound)
    with open_model(folder) as model:
        distance = rounding_distance([*model.tensors.values()], own, limit)
    question = parent.numerics.model_copy(update={"solved_for": "epsilon"})

    def form(total: float) -> RuleForm:
        added = _above(math.sqrt(Fraction(total) ** 2 - Fraction(own) ** 2))
        told = Renoised(noise=own.hex(), added=added.hex(), bound=limit.hex(), distance=distance.hex())
        return parent.rule.model_copy(update={"noise": total.hex(), "ladder": None, "renoised": told})

    def at(total: float) -> Guarantee:
        with without_cache():
            return question.answer(form(total).build(parent.portfolio()), 0.0, delta)

    total = _least(at, own, epsilon) if noise is None else float(noise)
    if not (math.isfinite(total) and total > own * (1 + 1e-6)):
        raise TargetError(f"the noise in all is {total:g}; it must be finite and above that of the release, {own:g}")
    rule, guarantee = form(total), at(total)
    if guarantee.theorem != "hidden-run":
        raise TargetError(f"noise of {total:g} in all adds nothing to the guarantee of this release")
    made: list[Released] = []

    def certify(place: Path, report: MergeReport) -> None:
        content: dict[str, Any] = parent.model_dump(mode="json", by_alias=True, exclude={"sha256", "signature"})
        content |= {"created": now(), "rule": rule.model_dump(mode="json"), "numerics": question.model_dump(mode="json")}
        content |= {"guarantee": GuaranteeForm.of(guarantee).model_dump(mode="json"), "software": software(), "ledger": None}
        content |= {"recipient": recipient, "parent": parent.sha256, "outputs": dict(report.outputs)}
        certificate = write_statements(place, content, template, signer)
        made.append(Released(out, certificate, guarantee, (*guarantee.notes, *report.notes)))

    assert rule.renoised is not None
    added = float.fromhex(rule.renoised.added)
    without = spared(parent.portfolio().models, folder)
    fresh = Noise(NoisePath(secrets.token_bytes(32), added), added, without)  # its key is kept nowhere
    with _cut(folder, limit, without) as source:
        kept = parent.merge.keep_metadata or ()
        merge_models({"release": source}, {"release": 1.0}, out, extra_files=certify, keep_metadata=kept, noise=fresh)
    return made[0]


def _least(at: Any, own: float, epsilon: float | None) -> float:
    """A noise with which the target is met, at most one in a hundred above the least."""
    assert epsilon is not None
    low, high = own, 2 * own
    while at(high).epsilon > epsilon:
        low, high = high, 2 * high
        if high > _MOST * own:
            least = round_up(at(high).epsilon)
            raise TargetError(f"no noise on this release gives ε = {epsilon:g}: with any amount it is {least} or more")
    while high > _CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if at(middle).epsilon <= epsilon else (middle, high)
    return high


def rounding_distance(tensors: list[Header], noise: float, bound: float) -> float:
    """How far the numbers of a release with this noise, cut at ±`bound`, can lie from the real ones: r of theory.md §9.8."""
    grid = math.ldexp(noise, -26)
    square = Fraction(0)
    for tensor in tensors:
        if tensor.dtype.floating:
            below = math.nextafter(bound, 0.0)
            error = Fraction(grid) / 2 + Fraction(tensor.dtype.spacing(below)) / 2 + Fraction(bound) / 2**53
            square += tensor.size * error**2
    return _above(math.sqrt(square))


def check_rounding(folder: Path, certificate: Certificate, verdict: Verdict) -> None:
    """That what is certified of the rounding before the last noise follows from the formats of the tensors."""
    told = certificate.rule.renoised
    assert told is not None
    bound = float.fromhex(told.bound)
    with open_model(folder) as model:
        found = rounding_distance([*model.tensors.values()], float.fromhex(told.noise), bound)
    faults = [] if found.hex() == told.distance and _power_of_two(bound) == bound else ["the rounding is not what is certified"]
    verdict.note(faults, "the rounding before the last noise is as certified")


def _power_of_two(value: float) -> float:
    """The least power of two that is not below."""
    if not (math.isfinite(value) and value > 0):
        raise TargetError(f"the bound is {value:g}; it must be positive and finite")
    fraction, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if fraction == 0.5 else exponent)


def _above(value: float) -> float:
    """Above the rounding of a square root of a difference."""
    return value * (1 + 1e-12)


@contextmanager
def _cut(folder: Path, bound: float, without: frozenset[str]) -> Iterator[Path]:
    """The release, or a copy for the time being whose numbers were cut at the bound, if any is beyond."""
    with tempfile.TemporaryDirectory() as place:
        copied = False
        for path in sorted(folder.glob("*.safetensors")):
            tensors = load_file(path)
            beyond = [
                name
                for name, value in tensors.items()
                if name not in without and value.dtype.kind == "f" and _beyond(value, bound)
            ]
            if beyond and not copied:
                shutil.copytree(folder, place, dirs_exist_ok=True)
                copied = True
            if beyond:
                tensors |= {name: np.clip(tensors[name], -bound, bound) for name in beyond}
                with safe_open(path, "numpy") as released:
                    save_file(tensors, Path(place) / path.name, metadata=released.metadata())
        yield Path(place) if copied else folder


def _beyond(values: np.ndarray[Any, Any], bound: float) -> bool:
    return bool(values.size and max(float(values.max()), -float(values.min())) > bound)


def _digest(path: Path) -> str:
    return sha256(path.read_bytes())
