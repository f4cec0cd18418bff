"""What an unfinished run of a network has reached, kept in its folder: by this it goes on after it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator
from dpmerge.training import Job, Tensors


@dataclass(frozen=True)
class State:
    """Its parameters, the checkpoints kept, and which randomness went into them."""

    asked: Mapping[str, Any]
    data: str  # their digest
    run: str
    step: int
    noise: list[str]
    sampler: list[str]
    parameters: Tensors
    kept: dict[int, Tensors]
    generators: list[NoiseGenerator] = field(default_factory=list)  # of the noise, as many as its fingerprints if known
    origin: Mapping[str, Any] = field(default_factory=dict)  # what its record says of its start and its part, if anything

    def save(self, job: Job) -> None:
        """Whatever happens, the last whole state is there."""
        tensors = {f"now/{name}": tensor for name, tensor in self.parameters.items()}
        for step, kept in self.kept.items():
            tensors |= {f"{step}/{name}": tensor for name, tensor in kept.items()}
        facts = {key: value for key, value in vars(self).items() if key not in ("parameters", "kept")}
        path = job.folder.state
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, temporary, {"facts": json.dumps(facts)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)


def saved_state(job: Job, origin: Mapping[str, Any] | None = None) -> State | None:
    """What the run had reached; refused if it was asked for differently, or its data are no longer the same.

    `origin`, where it is known, is what a record says now: a start that was made anew is not what the steps so far began with.
    """
    path = job.folder.state
    if not path.exists():
        return None
    groups: dict[str, dict[str, Any]] = {"now": {}}
    try:
        with safe_open(path, "numpy") as file:
            facts = json.loads(file.metadata()["facts"])
            for key in file.keys():  # noqa: SIM118 (this is no dictionary)
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = file.get_tensor(key)
        now = groups.pop("now")
        state = State(**facts, parameters=now, kept={step: groups[str(step)] for step in sorted(map(int, groups))})
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as fault:
        raise TrainingError(f"{path}: cannot be read ({fault}); remove it to begin run {job.name!r} anew") from None
    job.folder.require_same(job.asked, state.asked)
    if state.data != job.digest:
        raise TrainingError(f"run {job.name!r} was begun on other data; remove {path} to begin it anew")
    if origin is not None and state.origin != origin:
        raise TrainingError(
            f"run {job.name!r} was begun from another checkpoint, or on another part of the data, than there is now; remove "
            f"{path} to begin it anew"
        )
    return state
