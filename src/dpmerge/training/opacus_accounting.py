"""Between records and Opacus' accountants: a record's history for them, and records of checkpoints that Opacus saved.

`PrivacyEngine.save_checkpoint` keeps the model and the accountant's history: σ, rate and steps. All else that a record says
must be stated by the user, and the record says so. What the file contradicts is refused.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Literal

from dpmerge.errors import CheckpointError, RecordError, TrainingError
from dpmerge.records import Clipping, Convex, DpSgd, FullPhase, Record, Sampling
from dpmerge.tensors import pytorch, require_absent
from dpmerge.training.recipe import dp_sgd_record
from dpmerge.training.saving import save_torch_model

History = list[tuple[float, float, int]]
Spans = list[tuple[float, int]]
StatedSampling = Literal["poisson", "shuffle", "full-batch"]
_HISTORY = "privacy_accountant_state_dict"
_SGD_STATE = {"lr", "initial_lr", "params", "foreach", "differentiable", "fused", "param_names"}
_NOT_PLAIN = ("momentum", "dampening", "nesterov", "maximize")


def opacus_history(record: Record) -> History:
    """A record's (σ, rate, steps), as Opacus' accountants keep them in `history`: there they give the ε that Opacus gives."""
    mechanism = record.mechanism
    if not isinstance(mechanism, DpSgd):
        raise TrainingError(f"a {mechanism.kind} record is not a run of DP-SGD: Opacus' accountants have no history of it")
    rows = []
    for phase in mechanism.settings():
        if phase.sampling.scheme in ("shuffle", "fixed-size"):
            raise TrainingError(
                f"run {mechanism.run}: Opacus' accountants are about Poisson batches, not {phase.sampling.scheme}"
            )
        rows.append((phase.noise_multiplier, 1.0 if phase.sampling.rate is None else phase.sampling.rate, phase.steps))
    return [(*setting, sum(steps for *_, steps in same)) for setting, same in groupby(rows, key=lambda row: row[:2])]


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


def from_opacus(checkpoint: str | Path, folder: str | Path, stated: Stated) -> Record:
    """Write the model of a file of `PrivacyEngine.save_checkpoint`, and its record, into a new folder; return the record."""
    path, out = Path(checkpoint), Path(folder)
    where = f"file {path.name}"
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; name what PrivacyEngine.save_checkpoint wrote")
    if stated.missing():
        raise RecordError(f"{path.name} does not say everything that a record does; state {', '.join(stated.missing())}")
    if stated.expected_batch is not None and stated.examples is not None:
        raise RecordError("expected_batch and examples both state the divisor of the updates; give one")
    if out.parent.is_dir():
        require_absent(out)
    held = pytorch.load(path, where)
    if not isinstance(held, dict) or _HISTORY not in held:
        raise CheckpointError(f"{where}: not a checkpoint of Opacus: it has no {_HISTORY}")
    history = _history(held[_HISTORY], where)
    steps = sum(count for *_, count in history)
    clips, rates = _spans(stated.clip, steps, "clip"), _spans(stated.learning_rate, steps, "learning_rate")
    decays = _spans(stated.weight_decay or "0", steps, "weight_decay")
    if stated.weight_decay is not None and stated.optimizer != "sgd":
        raise RecordError(
            f"weight_decay is plain SGD's; with optimizer {stated.optimizer} no theorem uses it: leave it out, or say it there"
        )
    if "grad_clip_scheduler_state_dict" in held and "*" not in str(stated.clip):
        raise RecordError(f"{where} has a scheduler of the clip; state the clip of every step, as 1.0*{steps}")
    _check_optimizer(held.get("optimizer_state_dict"), stated, steps, where)
    mechanism = {
        "run": f"opacus-{secrets.token_hex(8)}" if stated.run is None else stated.run,
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
    record = dp_sgd_record(stated.dataset, mechanism, _phases(history, clips, rates, decays, stated), "stated-by-user")
    save_torch_model(out, _shown(pytorch.state_of(held, where)[0], stated.leave_out, where), record)
    return record


def _shown(tensors: Mapping[str, Any], left_out: Collection[str], where: str) -> dict[str, Any]:
    unknown = sorted(set(left_out) - tensors.keys())
    if unknown:
        raise RecordError(f"leave_out: {where} has no tensor {unknown[0]!r}")
    shown = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items() if name not in left_out}
    if not shown:
        raise RecordError(f"leave_out names every tensor of {where}: there is no model left to record")
    return shown


def _history(state: Any, where: str) -> History:
    """The accountant's history, of any of Opacus' three accountants."""
    rows = state.get("history") if isinstance(state, dict) else None
    if not isinstance(rows, list) or not rows:
        raise CheckpointError(f"{where}: its accountant has counted no step; save a checkpoint after training")
    found = []
    for row in rows:
        try:
            sigma, rate, steps = float(row[0]), float(row[1]), int(row[2])
        except (TypeError, ValueError, LookupError):
            raise CheckpointError(f"{where}: {row!r:.80} in its accountant's history is not σ, rate and steps") from None
        if not (0 <= sigma < math.inf and 0 < rate <= 1 and steps >= 1):
            raise CheckpointError(f"{where}: σ = {sigma}, rate = {rate}, steps = {steps} in its history are not private steps")
        found.append((sigma, rate, steps))
    return found


def _spans(text: str | None, steps: int, field: str) -> Spans:
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
        raise RecordError(f"{field} {text} is about {total} steps; the accountant has counted {steps}")
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


def _check_optimizer(state: Any, stated: Stated, steps: int, where: str) -> None:
    """What the saved optimizer shows of itself: whether it is plain SGD, and the learning rate it had at the end."""
    if not isinstance(state, dict) or not isinstance(state.get("param_groups"), list):
        return
    groups = [group for group in state["param_groups"] if isinstance(group, dict)]
    last = {float(group["lr"]) for group in groups if "lr" in group}
    odd = [*_not_of_sgd(groups, stated), *["groups with different learning rates"] * (len(last) > 1)]
    if odd and stated.optimizer == "sgd":
        raise RecordError(
            f"{where}: its optimizer is not plain SGD ({', '.join(odd[:3])}); optimizer sgd means no momentum or projection, "
            "and the weight decay that is stated: state what it was"
        )
    if last and "*" not in str(stated.learning_rate) and float(str(stated.learning_rate)) not in last:
        raise RecordError(
            f"{where}: its optimizer has learning rate {', '.join(map(str, sorted(last)))}, not {stated.learning_rate}; if it "
            f"changed, state that of every step, as {stated.learning_rate}*{steps}"
        )


def _not_of_sgd(groups: list[dict[str, Any]], stated: Stated) -> list[str]:
    odd = [f"{key}={group[key]}" for group in groups for key in _NOT_PLAIN if group.get(key)]
    odd += sorted({str(key) for group in groups for key in group} - _SGD_STATE - {*_NOT_PLAIN, "weight_decay"})
    return odd + _other_decays(groups, stated)


def _other_decays(groups: list[dict[str, Any]], stated: Stated) -> list[str]:
    """Weight decays in the file that contradict the one stated; of one that changed, the file shows what would come next."""
    found = sorted({float(group.get("weight_decay") or 0) for group in groups})
    if len(found) > 1:
        return ["groups with different weight decays"]
    changed = "*" in str(stated.weight_decay)
    return [] if changed or not found or found[0] == float(stated.weight_decay or 0) else [f"weight_decay={found[0]:g}"]
