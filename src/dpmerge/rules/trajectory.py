"""The runs of a linear combination as arrays over steps, in update units (docs/theory.md §0), aligned at their last step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpmerge.profiles import FloatArray, ShuffleAsPoisson, binomial_quantile, record_effect, sampling_rate
from dpmerge.records import Adjacency, DpSgd, Gaussian, Model


@dataclass(frozen=True)
class Run:
    """One run with its weight and what is known of its gradients; `smoothness` is β, infinite if unknown."""

    model: Model
    weight: float
    smoothness: float
    convex: bool

    @property
    def steps(self) -> int:
        """How many steps it took."""
        return self.model.mechanism.steps if isinstance(self.model.mechanism, DpSgd) else 1


@dataclass(frozen=True)
class Trajectories:
    """Rows are runs, columns are steps; a run that has not started yet has zeros.

    effect s, noise ν: of one record and of the noise on one update. rate q. pull ηβM/B: how much faster than the distance
    the gradients of the common records may drive two copies apart, M/B of a batch at most. cap 2ηCM/B: their largest
    difference. `tame`: the step map is non-expansive.
    """

    runs: tuple[Run, ...]
    effect: FloatArray
    noise: FloatArray
    rate: FloatArray
    pull: FloatArray
    cap: FloatArray
    tame: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    failure: float
    records_bound: tuple[int | None, ...]

    @property
    def steps(self) -> int:
        """The longest run's."""
        return int(self.effect.shape[1])

    @property
    def shift_tail(self) -> float:
        """How much probability of rare, large shifts may be given up at one step: nothing beside δ₀."""
        return 1e-6 * self.failure

    @property
    def weights(self) -> FloatArray:
        """λ."""
        return np.array([run.weight for run in self.runs])

    @property
    def is_full_batch(self) -> bool:
        """Whether no step samples."""
        return bool(np.all(self.rate >= 1))

    @property
    def merged_noise(self) -> FloatArray:
        """s_λ = √Σ(λ_i ν_i)² at each step."""
        return np.asarray(np.sqrt(np.sum((self.weights[:, None] * self.noise) ** 2, axis=0)))


def trajectories(runs: Sequence[Run], adjacency: Adjacency, shuffle: ShuffleAsPoisson | None, failure: float) -> Trajectories:
    """Lay the runs out. `failure` is δ₀: how likely some Poisson batch may exceed the bound M used for it.

    A step that is non-expansive whatever the batch (M = every record) is laid out with that bound, so it spends none of
    δ₀. The bound needs the number of records: n ≤ ⌈(B+1)/q⌉ where B is the expected batch, rounded down. A run without
    Poisson phases divides by at least the number of records instead.
    """
    total = max(run.steps for run in runs)
    shape = (len(runs), total)
    effect, noise, rate, pull, cap = (np.zeros(shape) for _ in range(5))
    rate += 1.0
    tame = np.ones(shape, dtype=bool)
    bounds: list[int | None] = []
    sampled_steps = sum(run.steps for run in runs)
    a = record_effect(adjacency)
    for row, run in enumerate(runs):
        mechanism = run.model.mechanism
        if isinstance(mechanism, Gaussian):
            effect[row, -1], noise[row, -1] = mechanism.sensitivity, mechanism.noise_std
            bounds.append(None)
            continue
        assert isinstance(mechanism, DpSgd)
        column = total - run.steps
        records = _records_bound(run, shuffle)
        for phase in mechanism.settings():
            span = (row, slice(column, column + phase.steps))
            column += phase.steps
            eta, clip, batch = phase.learning_rate, phase.clip, phase.expected_batch
            q = sampling_rate(phase, run.model.name, shuffle)
            share = 1.0 if records is None else records / batch
            if records is not None and q < 1 and not (run.convex and eta * run.smoothness * share <= 2):
                share = binomial_quantile(records, q, failure / sampled_steps) / batch
            effect[span], noise[span] = eta * a * clip / batch, eta * phase.noise_multiplier * clip / batch
            rate[span] = q
            pull[span] = eta * run.smoothness * share if eta > 0 else 0.0
            cap[span] = 2 * eta * clip * share
            tame[span] = run.convex and eta * run.smoothness * share <= 2
        bounds.append(records)
    return Trajectories(tuple(runs), effect, noise, rate, pull, cap, tame, failure, tuple(bounds))


def _records_bound(run: Run, shuffle: ShuffleAsPoisson | None) -> int | None:
    """The largest number of records that any Poisson phase of the run allows; nothing if there is no such phase."""
    mechanism = run.model.mechanism
    assert isinstance(mechanism, DpSgd)
    bounds = [
        math.ceil((phase.expected_batch + 1) / rate)
        for phase in mechanism.settings()
        if (rate := sampling_rate(phase, run.model.name, shuffle)) < 1
    ]
    return max(bounds, default=None)
