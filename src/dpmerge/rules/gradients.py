"""What accounts of averages rest on: how gradients depend on the state, and how large batches are (docs/theory.md §3.3)."""

from __future__ import annotations

import math

import numpy as np

from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import DpSgd
from dpmerge.rules.transport import Candidate, Trajectories, dataset_bound


def _uses_gradients(runs: Trajectories, candidate: Candidate) -> list[int]:
    """The runs whose gradients' dependence on the state matters to this candidate."""
    if candidate.window > 1:
        return [i for i, run in enumerate(runs.runs) if run.steps > 1]
    return [i for i in candidate.coupled if runs.runs[i].steps > 1]


def needs_batch_bound(runs: Trajectories, candidate: Candidate) -> bool:
    """Whether M enters: not where steps are non-expansive for any batch and only distances count (k = 1)."""
    for i in _uses_gradients(runs, candidate):
        sampled = runs.rate[i] < 1
        run = runs.runs[i]
        if not sampled.any() or run.smoothness == 0:
            continue
        everyone = runs.records_bound[i] or 0
        mechanism = run.model.mechanism
        assert isinstance(mechanism, DpSgd)
        always_tame = run.convex and all(
            phase.learning_rate * run.smoothness * everyone / phase.expected_batch <= 2 for phase in mechanism.settings()
        )
        if candidate.window > 1 or not always_tame or mechanism.shard is not None:
            return True
    return False


def gradient_notes(
    runs: Trajectories, candidate: Candidate, failure: float, assumed: float | None, shuffle: ShuffleAsPoisson | None
) -> tuple[tuple[str, ...], bool]:
    """What a route assumes of the runs' gradients and batches, each statement once with the models it is about.

    `assumed` is a smoothness on the user's word.
    """
    notes: dict[str, list[str]] = {}
    conditional = False
    for i in _uses_gradients(runs, candidate):
        run = runs.runs[i]
        mechanism = run.model.mechanism
        assert isinstance(mechanism, DpSgd)
        texts = []
        if math.isfinite(run.smoothness):
            source = "their records" if assumed is None else "an assumption of the user's"
            texts.append(
                f"the mean clipped gradient of a batch is {run.smoothness:g}-Lipschitz in the parameters "
                f"(smoothness from {source})"
            )
            conditional = conditional or assumed is not None or run.smoothness == 0
        if run.convex and bool(np.any(runs.growth[i, -run.steps :] < 1 + runs.pull[i, -run.steps :])):
            texts.append(f"every clipped per-example gradient is that of a convex function (convex: {mechanism.convex})")
        records = dataset_bound(run, shuffle)
        if records is None:
            texts.append("expected_batch is at least the number of records")
        else:
            share = "" if mechanism.shard is None else f" / {mechanism.shard.of} parts"
            texts.append(f"the dataset has at most {records} records (expected_batch is rate × records{share}, rounded down)")
        for text in texts:
            notes.setdefault(text, []).append(repr(run.model.name))
    listed = [f"{text}: {', '.join(names)}" for text, names in notes.items()]
    if failure:
        listed.append(f"no Poisson batch exceeds its bound, except with probability {failure:.3g}, which is part of δ")
    return tuple(listed), conditional
