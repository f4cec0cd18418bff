"""What hidden runs really give away: exact laws of small ones, and closed forms of long linear ones (docs/theory.md §9).

Nothing here knows how the library absorbs. Step maps are piecewise linear with slopes within ±g, or rotations of the plane;
the record moves the state by at most s where its coin falls. Noise at release is one more run, of a single step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

from dpmerge.profiles import FloatArray, Profile
from dpmerge.records import Adjacency
from dpmerge.rules.guarantee import Target
from dpmerge.rules.hidden_run import hidden_run
from dpmerge.rules.transport import Trajectories, WeightedRun
from tests.builders import dp_sgd
from tests.exact_densities import ALLOWANCE, HiddenRun, Ramp, ReleaseLaws, Step

EPSILONS = (0.0, 0.4, 1.2, 2.5)
_WIDE = 40.0  # beyond it no state is ever found


class MappedStep(Step):
    """θ ← gradient(θ) − z·record(θ) + νξ: here the ramp is the whole map of the common records, not their gradient."""

    def moved(self, points: FloatArray, masses: FloatArray, changed: bool) -> tuple[FloatArray, FloatArray]:
        own, kept = self.replacement if changed else self.record, self.gradient(points)
        if own is None:
            return kept, masses
        places, probabilities = [kept - own(points)], [self.rate * masses]
        if self.rate < 1:
            places.append(kept)
            probabilities.append((1 - self.rate) * masses)
        return np.concatenate(places), np.concatenate(probabilities)


@dataclass(frozen=True)
class Small:
    """A few hidden runs: rows are runs, columns steps. `growth` bounds the slopes of the maps."""

    weights: FloatArray
    effect: FloatArray
    noise: FloatArray
    rate: FloatArray
    growth: FloatArray
    release: float
    adjacency: Adjacency

    @classmethod
    def random(cls, rng: np.random.Generator, adjacency: Adjacency, full: bool) -> Small:
        """One to three runs of one to four steps; gains, noise and rates differ; slopes up to 1, or up to something else."""
        runs, steps = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        shape = (runs, steps)
        even = rng.random() < 0.5  # gains and rates of all steps alike, as most trainings have them
        effect = np.exp(rng.normal(0, 0.4, (runs, 1) if even else shape)) * np.ones(shape)
        rate = np.ones(shape) if full else rng.choice([0.1, 0.3, 0.7], (runs, 1) if even else shape) * np.ones(shape)
        growth = np.full(shape, rng.choice([0.5, 1.0, 1.0, 1.6]))
        noise = np.exp(rng.normal(0.3, 0.4, (runs, 1) if even else shape)) * np.ones(shape)
        weights = rng.dirichlet(np.ones(runs) * 4)
        release = float(rng.choice([0.0, 0.0, 0.5, 2.0]))
        return cls(weights, effect, noise, rate, growth, release, adjacency)

    def trajectories(self, failure: float = 0.0) -> Trajectories:
        """As the library lays them out."""
        steps = self.effect.shape[1]
        models = [dp_sgd(f"run{i}", sigma=1.0, steps=steps) for i in range(len(self.weights))]
        runs = tuple(WeightedRun(m, w, math.inf, False) for m, w in zip(models, self.weights.tolist(), strict=True))
        still, tame = np.zeros_like(self.effect), np.ones(self.effect.shape, dtype=bool)
        twice = 2.0 if self.adjacency == "replace-one" else 1.0
        sizes = (twice * self.effect, self.noise, self.rate, still, still)
        return Trajectories(runs, *sizes, tame, self.growth, failure, (None,) * len(models), self.adjacency)

    def bound(self, epsilon: float = 1.0, failure: float = 0.0, quick: bool = False) -> Profile:
        """What the library says, with the search done for this ε."""
        rows = range(len(self.weights))
        found = hidden_run(self.trajectories(), rows, self.release, Target(epsilon=epsilon), quick=quick)
        return found.profile([], failure, self.adjacency)

    def truth(self, maps: Sequence[Sequence[Ramp]], records: Sequence[Sequence[Ramp]]) -> ReleaseLaws:
        """The exact laws of the release for these maps and these gradients of the record."""
        runs = [
            HiddenRun(weight, tuple(itertools.starmap(self._step, zip(*rows, strict=True))))
            for weight, *rows in zip(self.weights.tolist(), maps, records, self.rate.tolist(), self.noise.tolist(), strict=True)
        ]
        if self.release > 0:
            nothing = Ramp.constant(0.0)
            runs.append(HiddenRun(1.0, (MappedStep(nothing, nothing, None, 1, 1.0, self.release),)))
        return ReleaseLaws.of(runs)

    def _step(self, step_map: Ramp, record: Ramp, rate: float, noise: float) -> MappedStep:
        opposite = Ramp(record.knots, tuple(-value for value in record.values))
        return MappedStep(step_map, record, opposite if self.adjacency == "replace-one" else None, 1, rate, noise)

    def adversary(self, rng: np.random.Generator) -> tuple[list[list[Ramp]], list[list[Ramp]]]:
        """Maps within their slopes, and a record that pulls to one side, to whichever side it is on, or away from it."""
        kind = str(rng.choice(["straight", "forgetful", "random"]))
        maps, records = [], []
        for i in range(self.effect.shape[0]):
            maps.append([_map(rng, kind, float(g), t) for t, g in enumerate(self.growth[i])])
            mirrored = bool(rng.random() < 0.3)
            records.append([_record(float(s), mirrored and t > 0) for t, s in enumerate(self.effect[i])])
        return maps, records


def _map(rng: np.random.Generator, kind: str, growth: float, step: int) -> Ramp:
    """As steep as allowed all over; or constant, once in a while; or turning at random places."""
    straight = Ramp((-_WIDE, _WIDE), (-_WIDE * growth, _WIDE * growth))
    if kind == "straight" or step == 0:
        return straight
    if kind == "forgetful":
        return Ramp.constant(0.0) if rng.random() < 0.5 else straight
    knots = np.sort(rng.normal(0, 2.0, 3))
    slopes = growth * rng.choice([-1.0, 0.0, 1.0], 4)
    places = np.concatenate(([-_WIDE], knots, [_WIDE]))
    values = np.concatenate(([0.0], np.cumsum(slopes * np.diff(places))))
    values -= np.interp(0.0, places, values)
    return Ramp(tuple(places.tolist()), tuple(values.tolist()))


def _record(effect: float, mirrored: bool) -> Ramp:
    return Ramp.jump(0.0, effect, -effect) if mirrored else Ramp.constant(-effect)


def shortfall(laws: ReleaseLaws, profile: Profile, epsilons: Sequence[float] = EPSILONS) -> float:
    """The largest true δ / bound; above 1 but for the oracle's own error, the bound is false."""
    return max((max(laws.delta(epsilon)) - ALLOWANCE) / max(*profile.delta(epsilon), 1e-300) for epsilon in epsilons)


# --- the cheapest absorption, by brute force ----------------------------------------------------------------------------------


def isotonic(gains: FloatArray, lengths: FloatArray) -> FloatArray:
    """Slopes of the convex minorant of a staircase: isotonic regression by pooling neighbours that are out of order."""
    blocks: list[list[float]] = []
    for gain, length in zip(gains.tolist(), lengths.tolist(), strict=True):
        blocks.append([gain, length, 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            gain, length, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + gain, blocks[-1][1] + length, blocks[-1][2] + count]
    return np.concatenate([np.full(int(count), gain / length) for gain, length, count in blocks])


def outcomes(gain: FloatArray, rate: FloatArray) -> list[tuple[float, FloatArray]]:
    """Every outcome of the coins: its probability, and what each step brings."""
    return [
        (math.prod(q if z else 1 - q for q, z in zip(rate.tolist(), coins, strict=True)), gain * np.array(coins))
        for coins in itertools.product((0, 1), repeat=gain.size)
    ]


def cheapest(gain: FloatArray, energy: FloatArray, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """M² of the best absorption for every outcome, and the probabilities."""
    squares, probs = [], []
    for probability, gains in outcomes(gain, rate):
        squares.append(float(isotonic(gains, energy) ** 2 @ energy))
        probs.append(probability)
    return np.array(squares), np.array(probs)


def capped(gain: FloatArray, energy: FloatArray, rate: FloatArray, slope: float) -> list[tuple[float, float, float]]:
    """Per outcome: probability, what the run's own noise pays, and what is left to its last step, if no rate exceeds this."""
    found = []
    for probability, gains in outcomes(gain, rate):
        slopes = np.minimum(isotonic(gains[:-1], energy[:-1]), slope) if gain.size > 1 else np.zeros(0)
        lengths = energy[:-1]
        found.append((probability, float(slopes**2 @ lengths), float(gains.sum() - slopes @ lengths)))
    return found


def survival(squares: FloatArray, probs: FloatArray, at: FloatArray) -> FloatArray:
    """P(M² > at), with M² that differ by rounding alone taken as equal."""
    return np.array([probs[squares > place].sum() for place in at])


# --- long linear trainings ----------------------------------------------------------------------------------------------------


def linear_release(
    factor: FloatArray, effect: FloatArray, noise: FloatArray, rate: FloatArray, release: float, cells: int = 4000
) -> tuple[FloatArray, FloatArray]:
    """θ ← cθ + s·z + νξ, in units of the release's deviation: shifts and probabilities, shifts rounded down to a grid.

    Smaller shifts are harder to see, so what follows from these is at most the truth.
    """
    later = np.append(np.cumprod(factor[:0:-1])[::-1], 1.0)
    deviation = math.sqrt(float(np.sum((noise * later) ** 2)) + release**2)
    shifts = effect * np.abs(later) / deviation
    cell = float(shifts.sum()) / cells
    law = np.zeros(cells + 1)
    law[0] = 1.0
    for shift, chance in zip(shifts.tolist(), rate.tolist(), strict=True):
        places = math.floor(shift / cell * (1 + 1e-12))
        moved = np.zeros_like(law)
        moved[places:] = law[: law.size - places]
        law = (1 - chance) * law + chance * moved
    kept = law > 1e-25
    return np.asarray(np.flatnonzero(kept) * cell, dtype=np.float64), law[kept]


def line_delta(shifts: FloatArray, probs: FloatArray, epsilon: float, mirrored: bool = False) -> float:
    """H_ε of Σ ρ N(Δ, 1) and N(0, 1), or its mirror image: the larger direction. The log ratio increases along the line."""
    others, chances = (-shifts, probs) if mirrored else (np.zeros(1), np.ones(1))

    def log_ratio(x: float) -> float:
        one, two = (logsumexp(m * x - m * m / 2, b=p) for m, p in ((shifts, probs), (others, chances)))
        return float(one - two)

    def right(edge: float, means: FloatArray, weights: FloatArray) -> float:
        return float(weights @ ndtr(means - edge))

    def left(edge: float, means: FloatArray, weights: FloatArray) -> float:
        return float(weights @ ndtr(edge - means))

    found = [0.0]
    for loss, side, (above, below) in (
        (epsilon, right, ((shifts, probs), (others, chances))),
        (-epsilon, left, ((others, chances), (shifts, probs))),
    ):
        if log_ratio(-1e3) < loss < log_ratio(1e3):
            edge = float(brentq(lambda x: log_ratio(x) - loss, -1e3, 1e3, xtol=1e-10))  # noqa: B023 (called at once)
            found.append(side(edge, *above) - math.exp(epsilon) * side(edge, *below))
    return max(found)


# --- two dimensions -----------------------------------------------------------------------------------------------------------


def planar_delta(
    effect: float, noise: float, rate: float, angles: Sequence[float], growth: float, release: float, epsilon: float
) -> float:
    """δ of the last of several steps in the plane, add-remove: turn by an angle, scale by `growth`, fold where y < −1.

    The record pushes along the first axis as it has been turned since. Densities are sums over a grid of less than half a
    deviation, which for Gaussians is exact to about 1e-9; the larger of both directions.
    """
    points, present, absent = np.zeros((1, 2)), np.ones(1), np.ones(1)
    direction = np.array([1.0, 0.0])
    for step, angle in enumerate(angles):
        turn = growth * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        if step > 0:
            points = points @ turn.T
            points[:, 1] = np.where(points[:, 1] < -1, -2 - points[:, 1], points[:, 1])
            direction = turn @ direction / growth
        spread = noise if step + 1 < len(angles) else math.hypot(noise, release)
        places = np.concatenate((points, points + effect * direction))
        masses = np.concatenate(((1 - rate) * present, rate * present))
        low, high = places.min(axis=0) - 6 * spread, places.max(axis=0) + 6 * spread
        axes = [np.arange(a, b, 0.45 * noise) for a, b in zip(low, high, strict=True)]
        kernels = [np.exp(-(np.subtract.outer(axis, places[:, k]) ** 2) / (2 * spread**2)) for k, axis in enumerate(axes)]
        cell = (0.45 * noise) ** 2 / (2 * math.pi * spread**2)
        present = (kernels[0] * masses @ kernels[1].T).ravel() * cell
        absent = (kernels[0][:, : absent.size] * absent @ kernels[1][:, : absent.size].T).ravel() * cell
        points = np.stack([grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")], axis=1)
        heavy = np.maximum(present, absent) > 1e-12
        points, present, absent = points[heavy], present[heavy], absent[heavy]
    scale = math.exp(epsilon)
    return float(max(np.maximum(present - scale * absent, 0).sum(), np.maximum(absent - scale * present, 0).sum()))
