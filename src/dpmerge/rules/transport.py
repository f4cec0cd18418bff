"""The transport theorem (docs/theory.md §3.3): how far two hidden copies of the runs may drift while their merge agrees.

Runs are arrays over steps, in update units (§0), aligned at their last step. For a window of the last k steps and a set B of
coupled runs the theorem gives, at every step of the window, the drift that adds to the record's own effect. Every (k, B) is
valid, so many are tried at once: rows are candidates.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpmerge.errors import GridTooLarge
from dpmerge.profiles import (
    FloatArray,
    ShuffleAsPoisson,
    binomial_quantile,
    binomial_survival,
    record_effect,
    sampling_rate,
    spend,
)
from dpmerge.records import Adjacency, DpSgd, FullPhase, Gaussian, Model, Shard

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
_LONGEST_LOOP = 20_000
_MOST_LAID_OUT = 1 << 23  # runs × steps of the longest: seven numbers each


@dataclass(frozen=True)
class WeightedRun:
    """One run with its weight and what is known of its gradients; `smoothness` is β, infinite if unknown."""

    model: Model
    weight: float
    smoothness: float
    convex: bool

    @property
    def steps(self) -> int:
        return self.model.mechanism.steps if isinstance(self.model.mechanism, DpSgd) else 1

    @property
    def decays(self) -> bool:
        """Whether any step shrinks the parameters."""
        mechanism = self.model.mechanism
        return isinstance(mechanism, DpSgd) and any(phase.weight_decay > 0 for phase in mechanism.settings())


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Rows are runs, columns are steps; a run that has not started yet has zeros. Equal numbers are equal trajectories.

    effect s, noise ν: of one record and of the noise on one update. rate q. pull ηβM/B: how much faster than the distance
    the gradients of the common records may drive two copies apart, M/B of a batch at most. cap 2ηCM/B: their largest
    difference. `tame`: the step map is non-expansive. growth g: by how much a step may drive two copies apart (§9.1).
    """

    runs: tuple[WeightedRun, ...]
    effect: FloatArray
    noise: FloatArray
    rate: FloatArray
    pull: FloatArray
    cap: FloatArray
    tame: BoolArray
    growth: FloatArray
    failure: float
    records_bound: tuple[int | None, ...]
    adjacency: Adjacency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trajectories) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> tuple[object, ...]:
        arrays = (self.effect, self.noise, self.rate, self.pull, self.cap, self.tame, self.growth)
        numbers = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).digest()
        runs = tuple((run.weight, run.steps) for run in self.runs)
        return numbers, self.effect.shape, runs, self.failure, self.records_bound, self.adjacency

    @property
    def steps(self) -> int:
        return int(self.effect.shape[1])

    @property
    def shift_tail(self) -> float:
        """How much probability of rare, large shifts may be given up at one step: nothing beside δ₀."""
        return 1e-6 * self.failure

    @property
    def weights(self) -> FloatArray:
        return np.array([run.weight for run in self.runs])

    @property
    def is_full_batch(self) -> bool:
        return bool(np.all(self.rate >= 1))

    @property
    def merged_noise(self) -> FloatArray:
        """s_λ = √Σ(λ_i ν_i)² at each step."""
        return np.asarray(np.sqrt(np.sum((self.weights[:, None] * self.noise) ** 2, axis=0)))


def too_long(runs: Sequence[WeightedRun]) -> bool:
    """Whether these runs have too many steps to be laid out: then they are accounted for by joint release."""
    return len(runs) * max((run.steps for run in runs), default=0) > _MOST_LAID_OUT


def trajectories(
    runs: Sequence[WeightedRun], adjacency: Adjacency, shuffle: ShuffleAsPoisson | None, failure: float, tamed: float = 0.0
) -> Trajectories:
    """Lay the runs out. `failure` is δ₀: how likely some Poisson batch may exceed the bound M used for it.

    A step that is non-expansive whatever the batch (M = every record) is laid out with that bound, so it spends none of
    δ₀. The bound needs the number of records: n ≤ ⌈(B+1)/q⌉ where B is the expected batch, rounded down. A run without
    Poisson phases divides by at least the number of records instead. Where no batch makes a step expansive except with
    probability `tamed` in all, the bound is the largest batch that does not, and that probability is part of δ₀ instead.
    """
    total = max(run.steps for run in runs)
    shape = (len(runs), total)
    if too_long(runs):
        raise GridTooLarge(f"{len(runs)} runs of {total:.3g} steps are too many to follow step by step; use joint release")
    effect, noise, rate, pull, cap = (np.zeros(shape) for _ in range(5))
    rate += 1.0
    growth = np.ones(shape)
    spent = oversize = 0.0
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
        records = dataset_bound(run, shuffle)
        if records is not None and mechanism.shard is not None:
            records, above = _part_bound(records, mechanism.shard, failure / 2 / len(runs))
            spent, oversize = spent + above, oversize + above
        for phase in mechanism.settings():
            span = (row, slice(column, column + phase.steps))
            column += phase.steps
            eta, clip, batch = phase.learning_rate, phase.clip, phase.expected_batch
            q = sampling_rate(phase, run.model.name, shuffle)
            decay = eta * phase.weight_decay
            share = 1.0 if records is None else records / batch
            if records is not None and q < 1 and not (run.convex and eta * run.smoothness * share <= 2 - 2 * decay):
                largest, above = _batch_bound(run, phase, records, q, tamed / sampled_steps, failure / sampled_steps)
                share, spent = largest / batch, spent + above * phase.steps
            effect[span], noise[span] = eta * a * clip / batch, eta * phase.noise_multiplier * clip / batch
            rate[span] = q
            pull[span] = eta * run.smoothness * share if eta > 0 else 0.0
            cap[span] = 2 * eta * clip * share
            tame[span] = run.convex and eta * run.smoothness * share <= 2
            growth[span] = _growth(pull[row, column - 1], decay, run.convex)
        bounds.append(records)
    delta_0 = spent if tamed else failure + oversize
    return Trajectories(tuple(runs), effect, noise, rate, pull, cap, tame, growth, delta_0, tuple(bounds), adjacency)


def _growth(pull: float, decay: float, convex: bool) -> float:
    """A Lipschitz constant of the common records' step: their pull is ηβM/B, and decoupled weight decay shrinks by 1 − ηω.

    Gradients of convex functions are co-coercive: up to 2(1 − ηω) their pull costs nothing (theory.md §9.1).
    """
    return max(1 - decay, decay + pull - 1) if convex else abs(1 - decay) + pull


def _batch_bound(run: WeightedRun, phase: FullPhase, records: int, q: float, tamed: float, failure: float) -> tuple[int, float]:
    """The bound on a batch of this phase, and with which probability one batch exceeds it.

    It is set beforehand: from the public bound on the number of records, never from batches seen.
    """
    eta = phase.learning_rate
    if run.convex and tamed > 0 and eta * run.smoothness > 0:
        least = (2 - 2 * eta * phase.weight_decay) * phase.expected_batch / (eta * run.smoothness)
        largest = math.floor(least * (1 - 1e-12))
        if largest > 0 and (above := binomial_survival(records, q, largest)) <= tamed:
            return largest, above
    return binomial_quantile(records, q, failure), failure


def dataset_bound(run: WeightedRun, shuffle: ShuffleAsPoisson | None) -> int | None:
    """The largest number of records that any Poisson phase of the run allows; nothing if there is no such phase.

    A run on one of several parts says so of its part, which has its share of the records on average.
    """
    mechanism = run.model.mechanism
    assert isinstance(mechanism, DpSgd)
    parts = 1 if mechanism.shard is None else mechanism.shard.of
    bounds = [
        math.ceil(parts * (phase.expected_batch + 1) / rate)
        for phase in mechanism.settings()
        if (rate := sampling_rate(phase, run.model.name, shuffle)) < 1
    ]
    return max(bounds, default=None)


def _part_bound(records: int, shard: Shard, failure: float) -> tuple[int, float]:
    """How many of these records a part has at most, and how probably it has more (§10)."""
    return (binomial_quantile(records, 1 / shard.of, failure), failure) if shard.is_secret else (records, 0.0)


@dataclass(frozen=True)
class Candidate:
    """A window, the runs coupled through it, and how their distance is paid off in it: evenly, or as steps have noise."""

    window: int
    coupled: tuple[int, ...]
    by_noise: bool = False


def coupled_distance(runs: Trajectories) -> FloatArray:
    """U before the window for each run if it is coupled: rows are runs, column t is after t steps. U_t = G(U_{t−1}) + s_t."""
    distance = np.zeros((runs.effect.shape[0], runs.steps + 1))
    for row in range(runs.effect.shape[0]):
        effect, pull, cap, tame = runs.effect[row], runs.pull[row], runs.cap[row], runs.tame[row]
        if bool(np.all(tame | (pull == 0))):
            distance[row, 1:] = np.cumsum(effect)
        elif bool(np.all(np.isinf(pull) | (effect == 0))):
            # The cap is paid at every step but the first.
            started = np.cumsum(effect) - effect > 0
            distance[row, 1:] = np.cumsum(effect + np.where(started & ~tame, cap, 0.0))
        else:
            current = 0.0
            for t in range(runs.steps):
                if current > 0 and not tame[t]:
                    current += min(pull[t] * current, cap[t])
                current += effect[t]
                distance[row, t + 1] = current
    return distance


def windows(steps: int, refine: int | None = None, few: bool = False) -> list[int]:
    """Window lengths to try: all of them for short runs, else a geometric sequence, or the neighbourhood of one."""
    longest = min(steps, _LONGEST_LOOP)
    if few:
        return sorted({1, 2, 3, 4, *np.unique(np.geomspace(1, longest, 10).astype(int)).tolist()} & set(range(1, longest + 1)))
    if refine is not None:
        low, high = max(1, int(refine / 1.6)), min(longest, int(refine * 1.6) + 1)
        return sorted(set(np.unique(np.linspace(low, high, 24).astype(int)).tolist()))
    if steps <= 64:
        return list(range(1, steps + 1))
    return sorted({1, 2, 3, *np.unique(np.geomspace(4, longest, 22).astype(int)).tolist(), longest})


def drifts(runs: Trajectories, candidates: list[Candidate]) -> FloatArray:
    """drift_t for each candidate (rows) at the last steps (columns: as many as the longest window has).

    Zero outside a candidate's window, infinite where there is no noise.

    With R_t = Σλ_i s_i + drift_t, the window's step is a Gaussian of ratio R_t/s_λ, or the mixture with Δ_J + drift_t.
    At the last step, and throughout if nothing is coupled (Z = 0), the distances themselves may bound it instead.
    """
    lam, steps = runs.weights, runs.steps
    window = np.array([c.window for c in candidates])
    order = np.argsort(-window, kind="stable")  # the active candidates at any step are then the first rows
    coupled = np.zeros((len(candidates), len(lam)), dtype=bool)
    for row, candidate in enumerate(candidates):
        coupled[row, list(candidate.coupled)] = True
    window, coupled = window[order], coupled[order]
    before = coupled_distance(runs)[:, steps - window].T if coupled.any() else np.zeros(coupled.shape)
    distance = np.where(coupled, before, 0.0)
    debt = distance @ lam  # Z
    debt_free = debt == 0
    first = steps - int(window[0])
    result = np.zeros((len(candidates), steps - first))
    merged = runs.merged_noise
    energy = merged**2
    whole = np.cumsum(energy[::-1])[window - 1]  # of each candidate's window
    by_noise = np.array([c.by_noise for c in candidates])[order] & (whole > 0)
    for t in range(first, steps):
        spend()
        active = int(np.searchsorted(-window, -(steps - t), side="right"))
        u, z = distance[:active], debt[:active]
        s, nu, tame = runs.effect[:, t], runs.noise[:, t], runs.tame[:, t]
        with np.errstate(invalid="ignore"):
            e = np.where(u > 0, np.minimum(runs.pull[:, t] * u, runs.cap[:, t]), 0.0)
        # a_t: 1/k, or s²_λ's share of the window, above its rounding.
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(by_noise[:active], energy[t] / whole[:active] * (1 + 1e-11), 1 / window[:active])
        drift = e @ lam + z * share
        reset = np.where(tame, u, u + e) @ lam
        may_reset = debt_free[:active] | (t == steps - 1)
        result[:active, t - first] = np.where(may_reset, np.minimum(drift, reset), drift)
        if t == steps - 1:
            break
        if merged[t] == 0:  # no run adds noise at this step: no shift may be left to it
            idle = bool(np.all(s == 0))
            if not idle:
                result[:active, t - first] = np.inf
            continue
        pace = lam * nu**2 / merged[t] ** 2
        total = (s @ lam) + drift
        moved = np.where(tame, s, s + e)
        distance[:active] = u + (1 - lam * pace) * moved + pace * (total[:, None] - lam * (s + e))
    unsorted = np.empty_like(result)
    unsorted[order] = result
    return unsorted


def candidate_sets(costs: FloatArray, count: int) -> list[tuple[int, ...]]:
    """Sets of runs to couple: all subsets of few runs, else the n that are dearest to reveal, for about 16 sizes n."""
    if count <= 6:
        return [tuple(i for i in range(count) if mask >> i & 1) for mask in range(2**count)]
    order = np.argsort(-costs, kind="stable")
    sizes = sorted({0, 1, 2, 3, *np.unique(np.geomspace(4, count, 12).astype(int)).tolist(), count})
    return [tuple(sorted(int(i) for i in order[:size])) for size in sizes]


def not_covered(model: Model, members: list[Model]) -> str | None:
    """Why the transport theorem does not apply to this run; None if it does."""
    mechanism = model.mechanism
    if len(members) > 1:
        counts = "the run counts once, at its latest" if model.covers_iterates else "each counts, and their noise may be shared"
        what = "checkpoints" if model.covers_iterates else "models"
        return f"several {what} of one run are used ({', '.join(m.name for m in members)}): {counts}"
    if isinstance(mechanism, Gaussian):
        return None
    if not isinstance(mechanism, DpSgd):
        return f"a record of kind {mechanism.kind} does not say how the parameters move"
    if mechanism.optimizer != "sgd":
        return f"its optimizer is {mechanism.optimizer!r}; the theorem is about plain SGD (no momentum, decay or projection)"
    if mechanism.clipping not in ("flat", "per-output"):
        return (
            f"its clipping is {mechanism.clipping!r}; the theorem is about one clip over all parameters, or one for each output"
        )
    for scheme, batches in (("fixed-size", "have a fixed size"), ("shuffle", "are shuffled")):
        if any(phase.sampling.scheme == scheme for phase in mechanism.settings()):
            return f"its batches {batches}; the theorem is about full batches and Poisson sampling"
    if mechanism.shard is not None and any(phase.sampling.rate in (None, 1) for phase in mechanism.settings()):
        return "its full batches are a part of the data whose size is not bounded by the divisor; use Poisson batches"
    return None


def not_hidden(model: Model, assumed_smoothness: float | None = None) -> str | None:
    """Why noise at release hides nothing of this run (docs/theory.md §9), and what would change that; None if it does."""
    mechanism = model.mechanism
    if (why := not_covered(model, [model])) is not None:
        return why
    if isinstance(mechanism, DpSgd) and mechanism.steps > 1 and mechanism.smoothness is None and assumed_smoothness is None:
        return (
            "nothing bounds how far a step of a network drives two copies apart, so a merge of separate runs costs all of "
            "them; merging pays for convex heads on a public body, whose records state a smoothness, for forks of one "
            "checkpoint, which counts once, and for shards, models of disjoint parts of the data"
        )
    return None
