"""Records of runs that nobody recorded: what their user states of them, checked, and never guessed."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from dpmerge.errors import RecordError
from dpmerge.records import Clipping, Convex, DataFingerprint, FullPhase, Record, Sampling
from dpmerge.training.recipe import dp_sgd_record

History = list[tuple[float, float, int]]
Spans = list[tuple[float, int]]
StatedSampling = Literal["poisson", "shuffle", "full-batch"]


@dataclass(frozen=True)
class Stated:
    """What a checkpoint of Opacus does not say; None is not stated.

    `learning_rate`, `clip` and `weight_decay` are one number for every step, or `value*steps,value*steps,…`. Weight decay is
    plain SGD's, decoupled from clip and noise (docs/records.md); not stated, it is 0. `expected_batch` is the divisor
    of the updates; or give `examples`, the size of the dataset, from which Opacus computes it. Of tensors that the optimizer
    did not train, `leave_out` names those that the data changed (no loss was computed with them); `others_unchanged` says
    that the rest is as before the training. No file shows that: frozen parameters are listed among those of the optimizer.
    """

    dataset: str | None = None
    sampling: StatedSampling | None = None
    clip: str | None = None
    clipping: Clipping | None = None
    learning_rate: str | None = None
    optimizer: str | None = None
    weight_decay: str | None = None
    expected_batch: float | None = None
    examples: int | None = None
    run: str | None = None
    smoothness: float | None = None
    convex: Convex | None = None
    unclipped_num_std: float | None = None
    leave_out: tuple[str, ...] = ()
    others_unchanged: bool = False
    data_fingerprint: DataFingerprint | None = None

    @property
    def fingerprinted(self) -> dict[str, Any] | None:
        """The fingerprint of the data as records have it."""
        return None if self.data_fingerprint is None else self.data_fingerprint.model_dump()

    def missing(self) -> list[str]:
        """What is needed and was not given."""
        needed = ["dataset", "sampling", "clip", "clipping", "learning_rate", "optimizer"]
        if self.clipping == "adaptive":
            needed.append("unclipped_num_std")
        names = [name for name in needed if getattr(self, name) is None]
        if self.expected_batch is None and self.examples is None:
            names.append("expected_batch (or examples)")
        if not self.others_unchanged:
            names.append(
                "others_unchanged (that tensors which the private optimizer did not train are as before the training; name in "
                "leave_out each that changed and that no loss was computed with)"
            )
        return names


def stated_record(stated: Stated, history: History, origin: str) -> Record:
    """The record of a run with this (σ, rate, steps), by what is stated; `origin` begins a fresh run id."""
    steps = sum(count for *_, count in history)
    clips, rates = spans(stated.clip, steps, "clip"), spans(stated.learning_rate, steps, "learning_rate")
    decays = spans(stated.weight_decay or "0", steps, "weight_decay")
    if stated.weight_decay is not None and stated.optimizer != "sgd":
        raise RecordError(
            f"weight_decay is plain SGD's; with optimizer {stated.optimizer} no theorem uses it: leave it out, or say it there"
        )
    mechanism = {
        "run": f"{origin}-{secrets.token_hex(8)}" if stated.run is None else stated.run,
        "noise_fingerprint": None,
        "sampler_fingerprint": None,
        "optimizer": stated.optimizer,
        "clipping": stated.clipping,
        "smoothness": stated.smoothness,
        "convex": stated.convex,
        "left_out": sorted(set(stated.leave_out)) or None,
        "others_unchanged": True,
    }
    assert stated.dataset is not None
    phases = _phases(history, clips, rates, decays, stated)
    return dp_sgd_record(stated.dataset, mechanism, phases, "stated-by-user", stated.fingerprinted)


def spans(text: str | None, steps: int, field: str) -> Spans:
    """`0.1`, or `0.1*500,0.05*205`: values with the number of steps each was in force; together all steps."""
    spans: Spans = []
    for part in str(text).split(","):
        value, times, count = part.partition("*")
        try:
            spans.append((float(value), int(count) if times else steps))
        except ValueError:
            raise RecordError(f"{field} {part!r} is not a number, or value*steps, separated by commas") from None
        if not (0 < spans[-1][0] < math.inf or (spans[-1][0] == 0 and field != "clip")) or spans[-1][1] < 1:
            raise RecordError(f"{field} {part!r}: needs a positive, finite value and at least one step")
    total = sum(count for _, count in spans)
    if total != steps:
        raise RecordError(f"{field} {text} is about {total} steps; there were {steps}")
    return spans


def _phases(history: History, clips: Spans, rates: Spans, decays: Spans, stated: Stated) -> list[FullPhase]:
    """Cut the run wherever anything changes."""
    ends = [list(accumulate(count for *_, count in spans)) for spans in (history, clips, rates, decays)]
    phases, start = [], 0
    for end in sorted({point for one in ends for point in one}):
        at = [next(i for i, point in enumerate(one) if point >= end) for one in ends]
        sigma, rate, _ = history[at[0]]
        phases.append(
            FullPhase(
                steps=end - start,
                learning_rate=rates[at[2]][0],
                noise_multiplier=_noise(stated, sigma),
                clip=clips[at[1]][0],
                sampling=_sampling(stated, rate),
                expected_batch=_expected_batch(stated, rate),
                weight_decay=decays[at[3]][0],
            )
        )
        start = end
    return phases


def _noise(stated: Stated, sigma: float) -> float:
    """The noise multiplier with the counts of adaptive clipping; the accountant's σ is too large for these."""
    std = stated.unclipped_num_std
    if stated.clipping != "adaptive":
        if std is not None:
            raise RecordError(f"unclipped_num_std belongs to adaptive clipping, not to clipping {stated.clipping}")
        return sigma
    if std is None or not sigma / 2 <= std < math.inf:
        raise RecordError(f"unclipped_num_std {std}: Opacus needs at least half of its noise multiplier, {sigma:g}")
    return noise_with_counts(sigma, std)


def _expected_batch(stated: Stated, rate: float) -> float:
    # With the examples, as Opacus computes it: times the accountant's rate, rounded down.
    value = float(int(stated.examples * rate)) if stated.examples is not None else stated.expected_batch
    if value is None or not 0 < value < math.inf:
        raise RecordError(f"updates divided by {value}: the expected batch must be positive; check expected_batch or examples")
    return value


def _sampling(stated: Stated, rate: float) -> Sampling:
    if stated.sampling == "poisson":
        return Sampling(scheme="poisson", rate=rate)
    if stated.sampling == "full-batch" and rate < 1:
        raise RecordError(f"sampling full-batch, but the accountant has counted steps with rate {rate:g}")
    assert stated.sampling is not None
    return Sampling(scheme=stated.sampling)


def noise_with_counts(sigma: float, unclipped_num_std: float, ratio: float = 1.0) -> float:
    """The noise multiplier of a step whose clip Opacus adapts: the sum and the count of unclipped gradients, together.

    Opacus puts σ_g = (σ⁻² − (2σ_u)⁻²)^-½ on the sum, as if a record moved the count by ½, and σ_u on the count, which it moves
    by 1: μ² = σ_g⁻² + σ_u⁻² = σ⁻² + ¾σ_u⁻² (docs/theory.md §1). Rounded down. `ratio` is how much further than by the clip
    that scales the noise a record moves the sum.
    """
    if sigma == 0:
        return 0.0
    of_sum, of_count = sigma**-2 - (2 * unclipped_num_std) ** -2, unclipped_num_std**-2
    return math.nextafter((1 - 1e-15) / math.sqrt(of_sum * ratio**2 + of_count), 0.0)
