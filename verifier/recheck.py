"""A second verifier, which shares no code with the first: python verifier/recheck.py FOLDER …

It needs numpy and scipy, and was written from docs/theory.md. Of a release it checks the hashes in `certificate.json`, and
bounds δ at the certified ε from both sides: privacy losses are rounded to a grid without changing their mean, and composed by a
Fourier transform; sums of the rounding errors are bounded by Hoeffding's inequality (Gopi, Lee and Wutschitz 2021). It says
`holds` where its upper bound confirms what is certified, `BROKEN` where its lower bound exceeds it, else `not recomputed`.
verifier/README.md says which theorems it knows, and what it leaves to the first verifier.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

Array = np.ndarray[Any, np.dtype[np.float64]]
Factor = tuple[Any, ...]  # what one step is: its kind, and its numbers
Json = dict[str, Any]
TOLERANCE = 5e-3  # relative, in ε: what the rounding of losses may cost here
MOST_BYTES, MOST_POINTS, MOST_STEPS, MOST_LAWS = 8 << 20, 2**22, 200_000, 64
_CELLS, _REACH = 2**20, 9.0  # of the line on which one step's laws live
MERGED = ("transport", "coupled-coins", "papers-formula", "mean-estimation-combination")
_REMOVE, _ADD = 0, 1  # the directions: the record in the upper law, or in the lower one


class NotRecomputed(Exception):
    """This verifier does not know how; the text says of what."""


def _density(x: Array, shifts: Sequence[float], probs: Sequence[float]) -> Array:
    """The log density of a mixture of unit Gaussians, without its constant."""
    parts = [math.log(p) - (x - m) ** 2 / 2 for m, p in zip(shifts, probs, strict=True) if p > 0]
    return np.asarray(np.logaddexp.reduce(parts))  # scipy's logsumexp takes twenty times as long for one part, four for three


def _mass(edges: Array, shifts: Sequence[float], probs: Sequence[float]) -> Array:
    """The mixture's masses between the edges; differences are of tails, which are small on either side of a mean."""
    total = np.zeros(edges.size - 1)
    for m, p in zip(shifts, probs, strict=True):
        right, tail = edges >= m, ndtr(-np.abs(edges - m))
        total += p * (np.diff(np.where(right, -tail, tail)) + np.diff(right))  # one cell has the mean in it
    return total


def _pair(factor: Factor) -> tuple[tuple[Sequence[float], Sequence[float]], tuple[Sequence[float], Sequence[float]]]:
    """Shifts and probabilities of the upper and of the lower law (theory §1)."""
    if factor[0] == "swap":  # a record replaced
        return ((0.0, factor[2]), (1 - factor[1], factor[1])), ((0.0, -factor[2]), (1 - factor[1], factor[1]))
    return (((factor[1],), (1.0,)) if factor[0] == "gauss" else (factor[1], factor[2])), ((0.0,), (1.0,))


def _losses(factor: Factor, direction: int, cells: int = _CELLS) -> tuple[Array, Array, float, float]:
    """Losses and masses of one step, how far a loss may be off (its mean is not), and how far its mean may be."""
    if factor[0] == "pair":
        epsilon, delta = factor[1:]
        likely = 1 / (1 + math.exp(-epsilon))
        return np.array([epsilon, -epsilon]), (1 - delta) * np.array([likely, 1 - likely]), 0.0, 0.0
    if factor[0] == "coins":  # the coins are given away: a mixture of Gaussian losses
        atoms, each = list(zip(factor[1], factor[2], strict=True)), 2 * _CELLS // len(factor[1])
        parts = [(p, _losses(("gauss", m), direction, each)) for m, p in atoms if m > 0 and p > 0]
        losses = np.concatenate([[0.0], *(part[0] for _, part in parts)])
        masses = np.concatenate([[sum(p for m, p in atoms if m == 0)], *(p * part[1] for p, part in parts)])
        return losses, masses, max(part[2] for _, part in parts), max(part[3] for _, part in parts)
    upper, lower = _pair(factor)
    ends = [*upper[0], *lower[0]]
    edges = np.linspace(min(ends) - _REACH, max(ends) + _REACH, (cells if len(ends) <= 8 else cells // 8) + 1)
    middle, cell = (edges[:-1] + edges[1:]) / 2, float(edges[1] - edges[0])
    loss = _density(middle, *upper) - _density(middle, *lower)
    at_edges = _density(edges, *upper) - _density(edges, *lower)
    masses = _mass(edges, *(upper if direction == _REMOVE else lower))
    spread, reach = max(ends) - min(ends), max(ends) - min(ends) + _REACH
    # The slope of the loss is at most the spread of the means, its second derivative at most spread²/4 twice.
    mean_error = cell**2 * (spread * reach / 6 + spread**2 / 4)
    return (loss if direction == _REMOVE else -loss), masses, float(np.abs(np.diff(at_edges)).max()), mean_error


def gaussian(mu: float, epsilon: float) -> float:
    """H_ε(N(μ, 1), N(0, 1)) for real ε."""
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))


class Curve:
    """A composition of steps, each with its count: bounds on H_ε in both directions, for an answer near (ε, δ)."""

    def __init__(self, factors: Iterable[tuple[Factor, int]], epsilon: float, delta: float, failure: float = 0.0) -> None:
        counts: dict[Factor, int] = {}
        square, kept, self.failure = 0.0, 0.0, failure
        for factor, count in factors:
            if factor[0] == "all" or (factor[0] == "gauss" and not math.isfinite(factor[1])):
                kept = -math.inf
            elif factor[0] == "gauss":
                square += count * factor[1] ** 2
            else:
                counts[factor] = counts.get(factor, 0) + count
                kept += count * math.log1p(-factor[2]) if factor[0] == "pair" else 0.0
        self.mu, self.infinite = math.sqrt(square), -math.expm1(kept)
        self.counts = {**counts, **({("gauss", self.mu): 1} if self.mu > 0 and counts else {})}
        if len(counts) > MOST_LAWS:
            raise NotRecomputed("so many different steps")
        self._asked = max(epsilon, 0.01), delta
        self._held: dict[int, tuple[Array, Array, float, float]] = {}

    def bounds(self, epsilon: float, direction: int) -> tuple[float, float]:
        """A lower and an upper bound on H_ε."""
        if self.infinite == 1.0:
            return 1.0, 1.0
        if not self.counts:
            value = gaussian(self.mu, epsilon)
            return value * (1 - 1e-9) - 1e-15, min(1.0, value * (1 + 1e-9) + 1e-15 + self.failure)
        if direction not in self._held:
            self._held[direction] = self._composed(direction)
        losses, masses, off, lost = self._held[direction]

        def hockey(at: float) -> float:
            above = losses > at
            return float(masses[above] @ -np.expm1(at - losses[above]))

        low, high = hockey(epsilon + off) - lost, hockey(epsilon - off) + lost
        return max(0.0, low), min(1.0, high + self.infinite + self.failure)

    def larger(self, epsilon: float) -> tuple[float, float]:
        """The same for the larger of both directions."""
        low, high = zip(*(self.bounds(epsilon, direction) for direction in (_REMOVE, _ADD)), strict=True)
        return max(low), max(high)

    def _composed(self, direction: int) -> tuple[Array, Array, float, float]:
        """Losses and masses of the sum, how far the sum may be off, and with which probability it is further off."""
        epsilon, delta = self._asked
        lost = 1e-5 * delta
        laws = [(count, *_losses(factor, direction)) for factor, count in self.counts.items()]
        steps, doubt = sum(self.counts.values()), 2 * math.log(2 / lost)
        cell = max(0.4 * TOLERANCE * epsilon / math.sqrt(doubt * steps), 1e-9)

        def cumulant(theta: float) -> float:
            shifted = ((count, theta * losses, masses) for count, losses, masses, _, _ in laws)  # one law at a time
            return sum(n * (float(x.max()) + math.log(float(p @ np.exp(x - x.max())))) for n, x, p in shifted)

        tilts = np.geomspace(0.05, 100, 14)
        top = min((cumulant(theta) - math.log(lost)) / theta for theta in tilts) + cell
        bottom = -min((cumulant(-theta) - math.log(lost)) / theta for theta in tilts) - cell
        size = 1 << max(4, math.ceil(math.log2((top - bottom) / cell + 4)))
        if size > MOST_POINTS:
            cell, size = cell * size / MOST_POINTS, MOST_POINTS
        squares = sum(count * (cell + width / 2) ** 2 for count, _, _, width, _ in laws)
        off = math.sqrt(doubt * squares) + sum(count * error for count, *_, error in laws)
        spectrum = np.zeros(size // 2 + 1, dtype=np.complex128)
        for count, losses, masses, _, _ in laws:
            places = np.floor(losses / cell)
            share = losses / cell - places  # split between its neighbours: the mean stays
            at = np.mod(places, size).astype(np.int64)
            law = np.bincount(at, masses * (1 - share), size) + np.bincount((at + 1) % size, masses * share, size)
            found = np.fft.rfft(law)
            spectrum += count * np.log(np.where(found == 0, 1e-300, found))
        masses = np.maximum(np.fft.irfft(np.exp(spectrum), size), 0.0)
        first = math.floor(bottom / cell)
        losses = cell * (first + np.arange(size))
        rounding = 1e-16 * size + 1e-15 * steps  # of the transform, and masses beyond the reach of each step
        return losses, np.roll(masses, -(first % size)), off, 3 * lost + rounding


def phases(mechanism: Json) -> list[Json]:
    """The phases with nothing left to inherit."""
    own = {name: mechanism[name] for name in ("noise_multiplier", "clip", "sampling", "expected_batch")}
    return [{"weight_decay": 0.0, **own, **{k: v for k, v in one.items() if v is not None}} for one in mechanism["phases"]]


def rate_of(phase: Json, shuffle: float | None) -> float:
    """The Poisson rate of a phase, 1 for full batches."""
    scheme = phase["sampling"]["scheme"]
    if scheme == "fixed-size" or (scheme == "shuffle" and shuffle is None):
        raise NotRecomputed(f"{scheme} batches")
    return shuffle if scheme == "shuffle" and shuffle else float(phase["sampling"].get("rate") or 1.0)


def steps_of(mechanism: Json, adjacency: str, shuffle: float | None, limit: float = math.inf) -> Iterator[tuple[Factor, int]]:
    """What a run's own steps are, at most the first `limit` of them (theory §1)."""
    effect = 2.0 if adjacency == "replace-one" else 1.0
    kind = mechanism["kind"]
    if kind == "gaussian":
        yield ("gauss", mechanism["sensitivity"] / mechanism["noise_std"]), 1
    elif kind == "approx-dp":
        yield ("pair", mechanism["epsilon"], mechanism["delta"]), 1
    elif kind == "non-private":
        yield ("all",), 1
    elif kind == "dp-sgd":
        for phase in phases(mechanism):
            taken, sigma = int(min(phase["steps"], limit)), phase["noise_multiplier"]
            limit -= taken
            q = rate_of(phase, shuffle)
            if taken <= 0:
                return
            if sigma == 0:
                yield ("all",), taken
            elif q >= 1:
                yield ("gauss", effect / sigma), taken
            else:
                yield (("swap", q, 1 / sigma) if effect == 2 else ("mix", (0.0, 1 / sigma), (1 - q, q))), taken
    else:
        raise NotRecomputed(f"a record of kind {kind!r}")


def lineage(name: str, mechanism: Json) -> Iterator[tuple[tuple[str, str | None], Json]]:
    """What made a model: its run and those it starts from; a run of DP-SGD or DP-FTRL counts once, others each model."""
    while True:
        run = mechanism.get("run") or f"model:{name}"
        if mechanism.get("shard") is not None:
            raise NotRecomputed("models of parts of the data")
        covers = mechanism["kind"] in ("dp-sgd", "dp-ftrl")
        yield (run, None if covers else name), mechanism
        start = mechanism.get("starts_from")
        if start is None:
            return
        name, mechanism = f"{start['run']}/{start['step']}", start["mechanism"]


def length(mechanism: Json) -> int:
    return sum(one["steps"] for one in mechanism["phases"]) if mechanism["kind"] == "dp-sgd" else mechanism.get("steps", 1)


def distinct(models: Mapping[str, Json]) -> dict[tuple[str, str | None], Json]:
    """Every run once, up to the latest step that any model shows."""
    found: dict[tuple[str, str | None], Json] = {}
    prints: dict[tuple[str, str], str] = {}
    for name, record in models.items():
        for key, mechanism in lineage(name, record["mechanism"]):
            if key not in found or length(mechanism) > length(found[key]):
                found[key] = mechanism
    for (run, _), mechanism in found.items() if len(found) > 1 else ():
        for field in ("noise_fingerprint", "sampler_fingerprint"):
            known = mechanism.get(field)
            if known is not None and prints.setdefault((field, known), run) != run:
                raise ArithmeticError(f"runs {prints[field, known]!r} and {run!r} share their {field}")
    return found


class Claim:
    """What a certificate says of its rule, and bounds on δ that follow from its records."""

    def __init__(self, content: Json) -> None:
        self.rule, self.guarantee, self.adjacency = content["rule"], content["guarantee"], content["adjacency"]
        self.epsilon, self.delta = float(self.guarantee["epsilon"]), float(self.guarantee["delta"])
        self.asked_for_epsilon = content["numerics"]["solved_for"] == "epsilon"
        self.records = {name: form["record"] for name, form in content["records"].items()}
        self.weights = {name: float.fromhex(value) for name, value in self.rule["weights"].items()}
        shuffle, smooth = self.rule.get("shuffle_rate"), self.rule.get("assume_smoothness")
        self.shuffle = None if shuffle is None else float.fromhex(shuffle)
        self.smooth = None if smooth is None else float.fromhex(smooth)
        total = math.fsum(self.weights.values())
        if not all(value > 0 for value in self.weights.values()) or abs(total - 1) > 1e-9:
            raise ArithmeticError(f"the weights sum to {total!r}")

    def curve(self, runs: Iterable[Json], failure: float = 0.0) -> Curve:
        factors = [one for mechanism in runs for one in steps_of(mechanism, self.adjacency, self.shuffle)]
        return Curve(factors, self.epsilon, self.delta, failure)

    def joint(self, names: Iterable[str], epsilon: float) -> tuple[float, float]:
        """All distinct runs of these models together."""
        return self.curve(distinct({name: self.records[name] for name in names}).values()).larger(epsilon)

    def mixture(self, kappa: float, epsilon: float) -> tuple[float, float]:
        """Σ w H_{ε−κ_i}(P_i, Q_i): random selection at κ = 0, tempered selection above it (theory §2 and §4)."""
        parts = []
        for name, weight in self.weights.items():
            curve = self.curve(dict(lineage(name, self.records[name]["mechanism"])).values())
            tilted = weight * math.exp(kappa)
            parts.append((tilted / (tilted + 1 - weight), math.log(weight + (1 - weight) * math.exp(kappa)), curve))
        found = [[(w, curve.bounds(epsilon - shift, direction)) for w, shift, curve in parts] for direction in (_REMOVE, _ADD)]
        low, high = (max(math.fsum(w * value[end] for w, value in one) for one in found) for end in (0, 1))
        return low, high

    def bounds(self, epsilon: float) -> tuple[float, float]:
        """A lower bound on what the stated theorem gives for δ at ε, and an upper bound on δ."""
        name, theorem = self.rule["rule"], self.guarantee["theorem"]
        if name == "joint":
            return self.joint({*self.weights, *self.rule.get("looked_at", [])}, epsilon)
        if name == "selection":
            if theorem == "mean-estimation-selection":
                raise NotRecomputed("random selection by the law of what is released")
            return self.mixture(0.0, epsilon)
        if name == "tempered":
            kappa = float.fromhex(self.rule["kappa"])
            if self.rule.get("validation") is not None or kappa > 700:
                raise NotRecomputed("a private validation set, or so sharp a draw")
            found = [self.mixture(kappa, epsilon)]
            with contextlib.suppress(ArithmeticError):  # runs that share randomness are never composed
                found.append(self.joint(self.weights, epsilon))
            return min(found, key=lambda pair: pair[1])
        if theorem in ("joint-release", "single-run"):
            return self.joint(self.weights, epsilon)
        return Average(self).bounds(epsilon)


class Average:
    """A weighted average whose runs are followed step by step (theory §3.3 and §9), in update units, aligned at the end."""

    def __init__(self, claim: Claim) -> None:
        self.claim, details = claim, claim.guarantee["details"]
        self.theorem, self.hides = claim.guarantee["theorem"], claim.guarantee["theorem"] == "hidden-run"
        if details.get("hidden_starts"):
            raise NotRecomputed("averages of forks with a hidden start")
        used = {name: claim.records[name] for name in claim.weights}
        started = {key[0] for name in used for key, _ in itertools.islice(lineage(name, used[name]["mechanism"]), 1, None)}
        owners = [(name, next(lineage(name, used[name]["mechanism"]))[0]) for name in used]
        self.covered: list[tuple[str, float, Json]] = []  # the rest is revealed whole
        self.revealed: list[Json] = []
        for key, mechanism in distinct(used).items():
            mine = [name for name, (run, _) in owners if run == key[0]]
            if len(mine) == 1 and key[0] not in started and self._plain(mechanism):
                self.covered.append((mine[0], claim.weights[mine[0]], mechanism))
            else:
                self.revealed.append(mechanism)
        self.steps = max((length(one) for _, _, one in self.covered), default=0)
        if not 0 < len(self.covered) * self.steps <= MOST_STEPS:
            raise NotRecomputed("an average of runs that are so long, or that no theorem follows")
        self.lam = np.array([weight for _, weight, _ in self.covered])
        self.coupled = [i for i, (name, _, _) in enumerate(self.covered) if name in details.get("coupled", [])]
        self.window = int(details.get("window", 0))
        self.share, self.failure = 1e-4 * claim.delta if claim.asked_for_epsilon else 1e-12, 0.0  # of δ, for batches (§3.3)
        self._lay_out()

    def _plain(self, mechanism: Json) -> bool:
        if mechanism["kind"] != "dp-sgd":
            return bool(mechanism["kind"] == "gaussian")
        if mechanism["optimizer"] != "sgd" or mechanism["clipping"] not in ("flat", "per-output"):
            return False
        plain = all(one["sampling"]["scheme"] in ("full-batch", "poisson") for one in phases(mechanism))
        return plain and (self.hides or all(one["weight_decay"] == 0 for one in phases(mechanism)))

    def _lay_out(self) -> None:
        """Effects s, noises ν, rates q, pulls L, caps, whether a step is non-expansive, and growth g."""
        shape = (len(self.covered), self.steps)
        self.s, self.nu, self.pull, self.cap = (np.zeros(shape) for _ in range(4))
        self.q, self.g, self.tame = np.ones(shape), np.ones(shape), np.ones(shape, dtype=bool)
        effect = 2.0 if self.claim.adjacency == "replace-one" else 1.0
        draws = sum(length(one) for _, _, one in self.covered)
        for row, (_, _, mechanism) in enumerate(self.covered):
            if mechanism["kind"] == "gaussian":
                self.s[row, -1], self.nu[row, -1] = mechanism["sensitivity"], mechanism["noise_std"]
                continue
            beta = mechanism["smoothness"] if self.claim.smooth is None else self.claim.smooth
            convex, beta = mechanism["convex"] is not None and beta is not None, math.inf if beta is None else beta
            settings, column = phases(mechanism), self.steps - length(mechanism)
            sampled = ((one["expected_batch"], q) for one in settings if (q := rate_of(one, None)) < 1)
            records = max((math.ceil((batch + 1) / q) for batch, q in sampled), default=None)
            for one in settings:
                eta, batch, q = one["learning_rate"], one["expected_batch"], rate_of(one, None)
                unit, decay = eta * one["clip"] / batch, eta * one["weight_decay"]
                span = (row, slice(column, column + one["steps"]))
                column += one["steps"]
                most = 1.0 if records is None else records / batch
                if records is not None and q < 1 and not (convex and eta * beta * most <= 2):
                    most = float(binom.isf(self.share / draws, records, q)) / batch  # exceeded with a probability added to δ
                    self.failure += one["steps"] * self.share / draws
                pull = eta * beta * most if eta > 0 else 0.0
                self.s[span], self.nu[span], self.q[span] = effect * unit, one["noise_multiplier"] * unit, q
                self.pull[span], self.cap[span], self.tame[span] = pull, 2 * eta * one["clip"] * most, convex and pull <= 2
                self.g[span] = max(1 - decay, decay + pull - 1) if convex else abs(1 - decay) + pull
        self.merged = np.sqrt(np.sum((self.lam[:, None] * self.nu) ** 2, axis=0))

    def bounds(self, epsilon: float) -> tuple[float, float]:
        """For the window and the coupled runs that are stated, and the better of two ways to pay in it."""
        if not self.theorem.startswith(MERGED) and not self.hides:
            raise NotRecomputed(f"theorem {self.theorem!r}")
        found = []
        for factors, failure in self._hidden() if self.hides else self._merged():
            whole = [one for run in self.revealed for one in steps_of(run, self.claim.adjacency, self.claim.shuffle)]
            found.append(Curve([*factors, *whole], self.claim.epsilon, self.claim.delta, failure).larger(epsilon))
        return min(found, default=(1.0, 1.0))

    def _merged(self) -> Iterator[tuple[list[tuple[Factor, int]], float]]:
        """The transport theorem for the stated window and coupled runs."""
        papers = self.theorem == "papers-formula"
        k = self.steps if papers else self.window
        if not 1 <= k <= self.steps:
            raise ArithmeticError(f"a window of {k} steps")
        alone = [one for i, (_, _, one) in enumerate(self.covered) if i not in self.coupled and one["kind"] == "dp-sgd"]
        adjacency, shuffle = self.claim.adjacency, self.claim.shuffle
        before = [one for run in alone for one in steps_of(run, adjacency, shuffle, length(run) - k)]
        if self.coupled and np.any(self.q < 1):
            if k != 1:
                raise NotRecomputed("coupled Poisson runs in a longer window")
            shifts, probs, lost = self._coins_of_all()
            kind = "coins" if self.claim.adjacency == "replace-one" else "mix"
            yield [*before, ((kind, shifts, probs), 1)], self.failure + lost
            return
        failure = self.failure if not papers and (k > 1 or self.coupled) else 0.0
        for by_noise in (False, True):
            drift = np.zeros(k) if papers else self._drift(k, by_noise)
            if np.any((self.merged[-k:] == 0) & (self.lam @ self.s[:, -k:] + drift > 0)):
                continue
            yield [*before, *self._window(k, drift)], failure

    def _drift(self, k: int, by_noise: bool) -> Array:
        """R*_t − Σ λs at each step of the window (theory, `transport`)."""
        start, lam = self.steps - k, self.lam
        u = np.zeros(len(lam))
        for t in range(start):
            for i in self.coupled:
                more = min(self.pull[i, t] * u[i], self.cap[i, t]) if u[i] > 0 and not self.tame[i, t] else 0.0
                u[i] += more + self.s[i, t]
        debt = float(lam @ u)
        energy = self.merged[start:] ** 2
        ramp = energy / energy.sum() if by_noise and energy.sum() > 0 else np.full(k, 1 / k)
        drift = np.zeros(k)
        for place, t in enumerate(range(start, self.steps)):
            s, tame = self.s[:, t], self.tame[:, t]
            with np.errstate(invalid="ignore"):
                e = np.where(u > 0, np.minimum(self.pull[:, t] * u, self.cap[:, t]), 0.0)
            drift[place] = lam @ e + ramp[place] * debt
            total = lam @ s + drift[place]
            if debt == 0 or t == self.steps - 1:
                drift[place] = min(drift[place], float(lam @ np.where(tame, u, u + e)))
            if self.merged[t] > 0:
                p = lam * self.nu[:, t] ** 2 / self.merged[t] ** 2
                u = u + (1 - lam * p) * np.where(tame, s, s + e) + p * (total - lam * (s + e))
        return drift

    def _window(self, k: int, drift: Array) -> Iterator[tuple[Factor, int]]:
        """The window's steps: a Gaussian each, or the mixture over which runs have the record in their batch."""
        steps: dict[tuple[float, ...], int] = {}
        raised = np.exp(np.ceil(np.log(np.maximum(drift, 1e-300)) * 500) / 500)  # up, by 0.2 % at most: fewer different steps
        for place, t in enumerate(range(self.steps - k, self.steps)):
            if self.merged[t] == 0:
                continue
            more = raised[place] if drift[place] > 0 and not np.all(self.q >= 1) else drift[place]
            key = (*(self.lam * self.s[:, t] / self.merged[t]), *self.q[:, t], more / self.merged[t])
            steps[key] = steps.get(key, 0) + 1
        count = len(self.lam)
        for key, times in steps.items():
            effects, rates, more = key[:count], key[count:-1], key[-1]
            free = [i for i in range(count) if rates[i] < 1 and effects[i] > 0]
            fixed = more + sum(effects[i] for i in range(count) if rates[i] >= 1)
            if 2 ** len(free) * len(steps) > 16 * MOST_LAWS:
                raise NotRecomputed("so many different steps of so many Poisson runs")
            if not free:
                yield ("gauss", fixed), times
                continue
            law: dict[float, float] = {}
            for inside in itertools.product((False, True), repeat=len(free)):
                coins = list(zip(free, inside, strict=True))
                shift = fixed + sum(effects[i] for i, there in coins if there)
                law[shift] = law.get(shift, 0.0) + math.prod(rates[i] if there else 1 - rates[i] for i, there in coins)
            kind = "coins" if self.claim.adjacency == "replace-one" else "mix"
            yield (kind, tuple(sorted(law)), tuple(law[shift] for shift in sorted(law))), times

    def _coins_of_all(self) -> tuple[tuple[float, ...], tuple[float, ...], float]:
        """The law of W/s_λ (theory, `coupled-coins`), values rounded up to a grid, and what fell off it."""
        values, rates = [], []
        for i, weight in enumerate(self.lam):
            grown = np.where(self.tame[i], 1.0, 1 + self.pull[i])
            later = np.append(np.cumprod(grown[:0:-1])[::-1], 1.0)
            chosen = slice(None) if i in self.coupled else slice(-1, None)
            values += (weight * self.s[i] * later / self.merged[-1])[chosen].tolist()
            rates += self.q[i][chosen].tolist()
        return _law_of_coins(np.array(values), np.array(rates), 1e-6 * self.share)

    def _hidden(self) -> Iterator[tuple[list[tuple[Factor, int]], float]]:
        """M of full batches (theory §9.2), and what a rounding between two noises adds to it (§9.8)."""
        noise = float.fromhex(self.claim.rule["noise"]) if self.claim.rule.get("noise") else 0.0
        energy, moving = float(self.merged[-1]) ** 2 + noise**2, self.s > 0
        if len(self.coupled) < len(self.covered) or energy == 0 or np.any((self.q < 1) & moving):
            raise NotRecomputed("hidden runs with Poisson batches, beside revealed ones, or without noise")
        for i in range(len(self.covered)):
            self.g[i, : int(np.argmax(moving[i])) + 1] = 1.0  # before the first step that moves it nothing is apart
        m = math.sqrt(self._taut(np.array([np.append(np.cumprod(row[:0:-1])[::-1], 1.0) for row in self.g]), energy))
        if (form := self.claim.rule.get("renoised")) is not None:
            r, added = float.fromhex(form["distance"]), float.fromhex(form["added"])
            m = math.sqrt(m * m + 4 * r * m / noise + (2 * r / added) ** 2)
        yield [(("gauss", m), 1)], self.failure

    def _taut(self, later: Array, energy: float) -> float:
        """M² of full batches: every run absorbs along its convex minorant up to a slope, the last step meets the rest."""
        gains, energies = self.s * later, (self.nu * later) ** 2
        faces = [_minorant(gains[i], energies[i, :-1]) for i in range(len(self.lam))]

        def at(y: float) -> tuple[float, float]:
            own = left = 0.0
            for i, weight in enumerate(self.lam):
                rest = float(gains[i].sum())
                for rise, run in faces[i]:
                    taken = min(rise, weight * y * run) if run > 0 else 0.0
                    own += taken**2 / run if run > 0 else 0.0
                    rest -= taken
                left += weight * rest
            return own, left

        low, high = 0.0, float(self.lam @ gains.sum(axis=1)) / energy
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle)[1] > middle * energy else (low, middle)
        own, left = at(high)
        return own + left**2 / energy


def _minorant(gains: Array, energies: Array) -> list[tuple[float, float]]:
    """The faces (rise, run) of the greatest convex minorant of the points (Σ energies, Σ gains): slopes that increase."""
    faces: list[tuple[float, float]] = []
    for rise, run in zip(gains[:-1].tolist(), energies.tolist(), strict=True):
        faces.append((rise, run))
        while len(faces) > 1 and faces[-1][0] * faces[-2][1] <= faces[-2][0] * faces[-1][1]:
            last = faces.pop()
            faces[-1] = (faces[-1][0] + last[0], faces[-1][1] + last[1])
    return faces


def _law_of_coins(values: Array, rates: Array, tail: float) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """The law of a sum of independent coins, on a grid to which values are rounded up, and what fell off it."""
    if not np.all(np.isfinite(values)):
        return (math.inf,), (1.0,), 0.0
    fixed = float(values[rates >= 1].sum())
    values, rates = values[rates < 1], rates[rates < 1]
    mean, spread = float(values @ rates), math.sqrt(float((values**2) @ (rates * (1 - rates))))
    top = min(mean + 14 * spread + 14 * float(values.max(initial=0.0)), float(values.sum())) + 1e-12
    unit = float(values[0]) if values.size and np.ptp(values) <= 1e-12 * values.max() else top / 4000
    law = np.zeros(math.ceil(top / unit) + 1)
    law[0] = 1.0
    for value, rate in zip(values, rates, strict=True):
        jump = math.ceil(value / unit * (1 - 1e-12))
        moved = np.zeros_like(law)
        moved[jump:] = law[: law.size - jump] if jump else law
        law = (1 - rate) * law + rate * moved
    lost, kept = max(0.0, 1 - float(law.sum())) + 1e-13, np.flatnonzero(law > tail / law.size)
    lost += float(law[law <= tail / law.size].sum())
    group = -(-kept.size // 200)  # at most 200 atoms: each takes the place of its group's largest
    starts = np.arange(0, kept.size, group)
    shifts, probs = fixed + kept[np.minimum(starts + group, kept.size) - 1] * unit, np.add.reduceat(law[kept], starts)
    return tuple(shifts.tolist()), tuple((probs / probs.sum()).tolist()), lost


def digest_of(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_files(folder: Path, content: Json) -> list[str]:
    """Faults of hashes: the certificate's own, the records', the files'."""
    own = {key: value for key, value in content.items() if key not in ("sha256", "signature")}
    faults = [] if digest_of(own) == content["sha256"] else ["the certificate was edited"]
    records = content["records"].items()
    faults += [f"the record of {name!r} was edited" for name, form in records if digest_of(form["record"]) != form["sha256"]]
    for name, digest in content["outputs"].items():
        path = folder / name
        if Path(name).name != name or path.is_symlink() or not path.is_file():
            faults.append(f"{name!r} is no regular file here")
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                faults.append(f"{name!r} was changed")
    return faults


def recheck(folder: Path) -> tuple[str, str]:
    """`holds`, `BROKEN` or `not recomputed`, and why."""
    path = folder / "certificate.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return "not recomputed", "there is no certificate.json, or it is too large"
    try:
        content = json.loads(path.read_bytes())
        faults = check_files(folder, content)
        if faults:
            return "BROKEN", "; ".join(faults)
        claim = Claim(content)
        low, high = claim.bounds(claim.epsilon * (1 + TOLERANCE) + 1e-6)
    except NotRecomputed as what:
        return "not recomputed", f"this verifier does not account for {what}"
    except (ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as fault:
        return "BROKEN", f"nothing follows from what is certified: {type(fault).__name__}: {fault}"
    claimed = f"({claim.epsilon:.6g}, {claim.delta:.6g})"
    if low > claim.delta * (1 + 1e-6):
        return "BROKEN", f"{claimed} is certified, but by its theorem δ is at least {low:.6g} there"
    if high <= claim.delta * (1 + 1e-6):
        return "holds", f"{claimed}: δ is at most {high:.6g} within {100 * TOLERANCE:g} % of that ε"
    return "not recomputed", f"{claimed} is neither confirmed nor refuted: δ lies between {low:.6g} and {high:.6g} near that ε"


def main(folders: Sequence[str]) -> int:
    """0: all hold, 1: one is broken, 2: one was not recomputed."""
    verdicts = set()
    for name in folders:
        verdict, why = recheck(Path(name))
        verdicts.add(verdict)
        print("".join(one if one.isprintable() else ascii(one)[1:-1] for one in f"{name}: {verdict}: {why}"))
    return 1 if "BROKEN" in verdicts else 2 if verdicts != {"holds"} else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
