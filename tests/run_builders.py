"""Checkpoints of one run, in memory and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmerge.checkpoints import Run
from dpmerge.records import Model, Portfolio
from tests import builders
from tests.release_builders import on_disk

STEPS = (10, 20, 30, 40, 50, 60)


def checkpoint(step: int, name: str | None = None, **changes: Any) -> Model:
    """One checkpoint of the run `one`, which is full-batch: its guarantee is a closed form."""
    shared = {"run": "one", "noise_fingerprint": "n", "sampler_fingerprint": "s", "sigma": 20.0, **changes}
    return builders.dp_sgd(f"step-{step}" if name is None else name, steps=step, **shared)


def run_in_memory(steps: Sequence[int] = STEPS, **changes: Any) -> Run:
    """A run without files."""
    return Run.of(Portfolio(tuple(checkpoint(step, **changes) for step in steps)))


def run_on_disk(folder: Path, steps: Sequence[int] = STEPS, **changes: Any) -> Run:
    """A run whose checkpoints hold random tensors `weight` (float32) and `bias` (float64)."""
    return Run.of(on_disk(folder / "run", *(checkpoint(step, **changes) for step in steps)))
