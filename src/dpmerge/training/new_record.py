"""`record.json` beside the tensors of a model that was trained without one: all of it stated by its user."""

from __future__ import annotations

import json
import math
import os
import secrets
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from dpmerge.errors import CheckpointError, RecordError
from dpmerge.files import write_private
from dpmerge.records import Adjacency, Record, looks_like
from dpmerge.tensors import open_model
from dpmerge.training.stated import History, Spans, Stated, spans, stated_record

StatedKind = Literal["dp-sgd", "approx-dp", "non-private"]
_EVERYWHERE = {"kind", "dataset", "adjacency", "run", "data_fingerprint"}
_IN_SPANS = ("rate", "noise_multiplier", "clip", "learning_rate", "weight_decay")


@dataclass(frozen=True)
class StatedModel(Stated):
    """What a user says of a model's training; None is not stated.

    `kind` is what is known of it: a run of DP-SGD step by step, its (ε, δ) alone, or that it was not private. Noise multiplier
    and Poisson `rate` are given as the learning rate is. Adjacency is add-remove for DP-SGD, unless it is stated.
    """

    kind: StatedKind | None = None
    adjacency: Adjacency | None = None
    epsilon: float | None = None
    delta: float | None = None
    steps: int | None = None
    noise_multiplier: str | None = None
    rate: str | None = None

    def missing(self) -> list[str]:
        """The fields that are needed and were not given, in the order in which to ask for them."""
        needed = ["kind", "dataset"]
        if self.kind in ("approx-dp", "non-private"):
            needed += ["adjacency", *(["epsilon", "delta"] if self.kind == "approx-dp" else [])]
        elif self.kind == "dp-sgd":
            needed += ["steps", "sampling", *(["rate"] if self.sampling == "poisson" else []), "noise_multiplier", "clip"]
            needed += ["clipping", *(["unclipped_num_std"] if self.clipping == "adaptive" else [])]
            needed += ["learning_rate", "optimizer", *([] if self.examples is not None else ["expected_batch"])]
            needed += ["others_unchanged"]
        return [name for name in needed if name not in self.given]

    @property
    def given(self) -> list[str]:
        """The fields that are stated."""
        return [one.name for one in fields(self) if not any(getattr(self, one.name) is none for none in (None, False, ()))]

    def check(self, field: str) -> None:
        """Refuse a value that no record can have."""
        value = getattr(self, field)
        if field in _IN_SPANS and self.steps is not None:
            found = spans(value, self.steps, field)
            if field == "rate" and any(not 0 < rate <= 1 for rate, _ in found):
                raise RecordError(f"rate {value}: a Poisson rate lies in (0, 1]")
        limits = {"epsilon": (0.0, math.inf), "delta": (0.0, 1.0), "steps": (1, math.inf), "expected_batch": (5e-324, math.inf)}
        low, high = limits.get(field, (-math.inf, math.inf))
        if isinstance(value, float | int) and not low <= value < high:
            raise RecordError(f"{field} {value}: must be {'positive' if low > 0 else 'at least 0'} and below {high:g}")
        if value == "":
            raise RecordError(f"{field} is empty")

    def record(self) -> Record:
        """The record that this states; what is missing, contradicts itself or has no meaning for its kind is refused."""
        if self.missing():
            raise RecordError(f"no record can be written without {', '.join(self.missing())}: state them")
        own = {"approx-dp": {"epsilon", "delta"}, "non-private": set[str]()}
        allowed = own[self.kind] | _EVERYWHERE if self.kind in own else set(self.given) - {"epsilon", "delta"}
        for name in sorted(self.given, key=lambda name: name != "steps"):  # by which the others are read
            if name not in allowed:
                raise RecordError(f"{name} has no meaning in a record of kind {self.kind}; leave it out")
            self.check(name)
        if self.kind == "dp-sgd":
            return self._dp_sgd()
        mechanism: dict[str, Any] = {"kind": self.kind, "run": self.run or f"stated-{secrets.token_hex(8)}"}
        mechanism |= {"epsilon": self.epsilon, "delta": self.delta} if self.kind == "approx-dp" else {}
        told: dict[str, Any] = {"schema": 1, "dataset": self.dataset, "adjacency": self.adjacency, "source": "stated-by-user"}
        told |= {"data_fingerprint": self.fingerprinted}
        return Record.parse(json.dumps({**told, "mechanism": mechanism}), source="what is stated")

    def _dp_sgd(self) -> Record:
        if self.sampling != "poisson" and self.rate is not None:
            raise RecordError(f"rate belongs to poisson sampling, not to {self.sampling}; leave it out")
        if self.examples is not None and (self.sampling == "shuffle" or self.expected_batch is not None):
            raise RecordError(
                "examples gives the divisor of Poisson or full batches where expected_batch does not; leave it out"
            )
        assert self.steps is not None
        noise = spans(self.noise_multiplier, self.steps, "noise_multiplier")
        rate = spans(self.rate, self.steps, "rate") if self.rate is not None else [(1.0, self.steps)]
        made = stated_record(self, _history(noise, rate), "stated")
        told = {**made.as_dict(), "adjacency": self.adjacency or made.adjacency}
        return Record.parse(json.dumps(told), source="what is stated")


def require_unrecorded(folder: Path) -> set[str]:
    """The names of a model's tensors; a folder that holds none, or has a record or a certificate, is refused."""
    if not folder.is_dir():
        what = f"is {seen}" if (seen := looks_like(folder)) else "no such folder"
        raise CheckpointError(f"{folder}: {what}; a record stands beside a model's tensors, in the model's folder")
    if os.path.lexists(folder / "record.json"):
        raise RecordError(f"{folder / 'record.json'}: exists already; it is never overwritten: remove it if it is wrong")
    if os.path.lexists(folder / "certificate.json"):
        raise RecordError(f"{folder}: is a release, which says itself what it guarantees; record what it was made of")
    with open_model(folder) as model:
        return set(model.tensors)


def new_record(folder: str | Path, stated: StatedModel) -> Record:
    """Write `record.json` into the folder of a model that has none; return the record."""
    where = Path(folder)
    tensors = require_unrecorded(where)
    record = stated.record()
    for name in sorted(tensors & set(stated.leave_out)):
        raise RecordError(
            f"leave_out: {where} holds tensor {name!r}, which changed without noise; remove it from the model first"
        )
    try:
        write_private(record.model_dump_json(by_alias=True, indent=1).encode() + b"\n", where / "record.json")
    except OSError as fault:
        raise RecordError(f"{where / 'record.json'}: cannot be written: {fault.strerror}") from None
    return record


def _history(noise: Spans, rate: Spans) -> History:
    """(σ, rate, steps), cut wherever either changes."""
    ends = [list(accumulate(count for _, count in one)) for one in (noise, rate)]
    history: History = []
    start = 0
    for end in sorted({*ends[0], *ends[1]}):
        at = [next(i for i, point in enumerate(one) if point >= end) for one in ends]
        history.append((noise[at[0]][0], rate[at[1]][0], end - start))
        start = end
    return history
