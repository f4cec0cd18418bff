"""Between records and Opacus' accountants: a record's history for them, and records of checkpoints that Opacus saved.

`PrivacyEngine.save_checkpoint` keeps the model and the accountant's history: σ, rate and steps. All else that a record says
must be stated by the user, and the record says so. What the file contradicts is refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from dpmerge.errors import CheckpointError, RecordError, TrainingError
from dpmerge.records import DpSgd, Record
from dpmerge.tensors import pytorch, require_absent
from dpmerge.training.saving import save_tensors
from dpmerge.training.stated import History, Stated, stated_record

T = TypeVar("T")
_HISTORY = "privacy_accountant_state_dict"
_SGD_STATE = {"lr", "initial_lr", "params", "foreach", "differentiable", "fused", "param_names"}
_LARGE = 1e100  # beyond any setting of an optimizer, and a float
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
    file = pytorch.load(path, where)
    held = file.content
    if not isinstance(held, dict) or _HISTORY not in held:
        raise CheckpointError(f"{where}: not a checkpoint of Opacus: it has no {_HISTORY}")
    history = _history(held[_HISTORY], where)
    steps = sum(count for *_, count in history)
    record = stated_record(stated, history, "opacus")
    if "grad_clip_scheduler_state_dict" in held and "*" not in str(stated.clip):
        raise RecordError(f"{where} has a scheduler of the clip; state the clip of every step, as 1.0*{steps}")
    _check_optimizer(held.get("optimizer_state_dict"), stated, steps, where)
    shown = _shown(pytorch.state_of(held, where)[0], stated.leave_out, where)
    save_tensors(out, pytorch.tensors_of(shown, file, path, path.stem, where), record)
    return record


def _shown(tensors: Mapping[str, T], left_out: Collection[str], where: str) -> dict[str, T]:
    unknown = sorted(set(left_out) - tensors.keys())
    if unknown:
        raise RecordError(f"leave_out: {where} has no tensor {unknown[0]!r}")
    shown = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    if not shown:
        raise RecordError(f"leave_out names every tensor of {where}: there is no model left to record")
    return shown


def _history(state: Any, where: str) -> History:
    """The accountant's history, of any of Opacus' three accountants."""
    rows = state.get("history") if isinstance(state, dict) else None
    if not isinstance(rows, list) or not rows:
        raise CheckpointError(f"{where}: its accountant has counted no step; save a checkpoint after training")
    found: History = []
    for row in rows:
        try:
            sigma, rate, steps = float(row[0]), float(row[1]), int(row[2])
        except (TypeError, ValueError, LookupError, OverflowError):
            raise CheckpointError(f"{where}: row {len(found)} of its accountant's history is not σ, rate and steps") from None
        if not (0 <= sigma < math.inf and 0 < rate <= 1 and steps >= 1):
            raise CheckpointError(f"{where}: σ = {sigma}, rate = {rate}, steps = {steps} in its history are not private steps")
        found.append((sigma, rate, steps))
    return found


def _check_optimizer(state: Any, stated: Stated, steps: int, where: str) -> None:
    """What the saved optimizer shows of itself: whether it is plain SGD, and the learning rate it had at the end."""
    if not isinstance(state, dict) or not isinstance(state.get("param_groups"), list):
        return
    groups = [group for group in state["param_groups"] if isinstance(group, dict)]
    for group in groups:
        for key in ("lr", "weight_decay"):
            if not isinstance(group.get(key) or 0.0, int | float) or abs(group.get(key) or 0.0) > _LARGE:
                raise CheckpointError(f"{where}: {key} of its optimizer is not a number")
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
    found = [(key, group[key]) for group in groups for key in _NOT_PLAIN if group.get(key)]
    odd = [f"{key}={value if isinstance(value, int | float) else '…'}" for key, value in found]
    odd += sorted({str(key) for group in groups for key in group} - _SGD_STATE - {*_NOT_PLAIN, "weight_decay"})
    return odd + _other_decays(groups, stated)


def _other_decays(groups: list[dict[str, Any]], stated: Stated) -> list[str]:
    """Weight decays in the file that contradict the one stated; of one that changed, the file shows what would come next."""
    found = sorted({float(group.get("weight_decay") or 0) for group in groups})
    if len(found) > 1:
        return ["groups with different weight decays"]
    changed = "*" in str(stated.weight_decay)
    return [] if changed or not found or found[0] == float(stated.weight_decay or 0) else [f"weight_decay={found[0]:g}"]
