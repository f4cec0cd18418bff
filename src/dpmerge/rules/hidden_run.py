"""Theorem `hidden-run` (docs/theory.md §9): the last iterates are released, averaged, perhaps with fresh noise; nothing else.

Later noise hides earlier participations, and the record's coins stay secret. What a run owes for its participations is
absorbed by its own later noise, at the price that the laws in profiles/ compute; what is left, the last step of all runs and
the noise of the release share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from dpmerge.profiles import (
    Faces,
    FloatArray,
    Grid,
    Law,
    Profile,
    ShiftLaw,
    Split,
    Stairs,
    drained,
    faces,
    followed,
    minorant,
    pooled,
    spread,
    stairs,
    sum_of_coins,
    without_closed_forms,
)
from dpmerge.records import Adjacency
from dpmerge.rules.guarantee import Target
from dpmerge.rules.merged_steps import last_step_shift, shift_law
from dpmerge.rules.transport import Trajectories

_TOO_FAR = 1e100  # growth beyond which a run is not hidden
_PIECES = 60
_WORK = 1.5e7  # operations for the faces of one run
_ATOMS = 600
_LOOK, _FINE = 99, 383  # cells each way, to search and to account with: twice as many and two have small factors only
_SMALL, _LARGEST = 0.5, 60.0  # of M²: a grid up to the one is fine enough; beyond the other, ε is of no interest


@dataclass(frozen=True)
class Hidden:
    """The law of M, and the absorption that it belongs to."""

    law: ShiftLaw
    absorption: str

    def profile(
        self, revealed: Iterable[tuple[Law, int]], failure: float, adjacency: Adjacency, closed: bool = True
    ) -> Profile:
        """Where the closed form of a single shift is not used (beside other laws, or for Rényi moments), with fewer atoms."""
        others = list(revealed)
        law = on_a_grid(self.law, _ATOMS if closed and not others else 160)
        return Profile.of([(shift_law(law, adjacency), 1), *others], failure + law.excess)


def on_a_grid(law: ShiftLaw, atoms: int) -> ShiftLaw:
    """Shifts rounded up to a uniform grid."""
    if law.values.size <= atoms or not np.all(np.isfinite(law.values)):
        return law
    cell = float(law.values[-1]) / atoms
    cells = np.minimum(np.ceil(law.values / cell * (1 - 1e-12)), atoms).astype(np.int64)
    probs = np.bincount(cells, weights=law.probs, minlength=atoms + 1)
    values = np.arange(atoms + 1.0) * (cell * (1 + 1e-12))
    kept = np.flatnonzero(probs > 0)
    return ShiftLaw(values[kept], np.asarray(probs[kept], dtype=np.float64), law.excess)


_Key = tuple[bytes, bytes, bytes]


@dataclass(frozen=True)
class _Run:
    """One hidden run in units of its last step: gains, energies and coins, and the growth that was divided out."""

    gain: FloatArray
    energy: FloatArray
    rate: FloatArray
    growth: FloatArray
    later: FloatArray
    weight: float

    def key(self) -> tuple[_Key, float, float]:
        """Gains, energies and rates, to be looked up, in units of the largest gain and of all energy; and these units.

        What the last step shares with others is not among them.
        """
        last = max(float(self.energy[-1]), 1e-9 * float(self.energy.sum())) or 1.0
        gain, own = self.plain(last) if np.all(self.growth <= 1) else self.scaled(last)
        unit, total = float(gain.max()) or 1.0, float(own.sum())
        # Rounded down: runs that differ by a factor are then the same to the last bit.
        shares = np.floor(own / total * 2.0**45) / 2.0**45
        return (
            ((gain / unit).tobytes(), shares.tobytes(), np.ascontiguousarray(self.rate).tobytes()),
            unit,
            total,
        )

    def scaled(self, last: float) -> tuple[FloatArray, FloatArray]:
        """Gains and energies with growth divided out; `last` is the energy of the last step."""
        energy = self.energy * self.later**2
        energy[-1] = last
        return self.gain * self.later, energy

    def plain(self, last: float) -> tuple[FloatArray, FloatArray]:
        """Gains and energies as if nothing were ever driven apart or forgotten."""
        energy = self.energy.copy()
        energy[-1] = last
        return self.gain, energy


def hideable(runs: Trajectories) -> tuple[int, ...]:
    """The runs of which something is known: how far their steps drive two copies apart."""
    found = []
    for i in range(len(runs.runs)):
        start = int(np.argmax(runs.effect[i] > 0))
        if np.sum(np.log(np.maximum(runs.growth[i, start + 1 :], 1.0))) < math.log(_TOO_FAR):
            found.append(i)
    return tuple(found)


def _run(runs: Trajectories, i: int) -> _Run:
    moving = runs.effect[i] > 0
    start = int(np.argmax(moving)) if moving.any() else runs.steps - 1
    growth = runs.growth[i, start:].copy()
    growth[0] = 1.0  # before the first participation there is nothing to drive apart
    later = np.append(np.cumprod(growth[:0:-1])[::-1], 1.0)
    cut = slice(start, None)
    return _Run(runs.effect[i, cut], runs.noise[i, cut] ** 2, runs.rate[i, cut], growth, later, runs.runs[i].weight)


def hidden_run(runs: Trajectories, hidden: Sequence[int], noise: float, target: Target, bar: float = math.inf) -> Hidden:
    """The smallest law of M that a search finds, for these hidden rows; the others have shown all but their last step.

    Another theorem gives `bar`: where a first look stays far above it, the search ends.
    """
    rows = [_run(runs, i) for i in hidden]
    others = [i for i in range(len(runs.runs)) if i not in hidden]
    energy = float(np.sum((runs.weights * runs.noise[:, -1]) ** 2)) + noise**2
    tail = 1e-4 * (target.delta or 1e-8)
    coins = sum_of_coins(
        [ShiftLaw.coin(runs.weights[i] * float(runs.effect[i, -1]), float(runs.rate[i, -1])) for i in others], tail
    )
    if energy == 0:
        return Hidden(ShiftLaw(np.array([math.inf]), np.ones(1)), "none")
    if all(np.all((row.rate >= 1) | (row.gain == 0)) for row in rows) and coins.values.size == 1:
        square = _full_batch(rows, float(coins.values[0]), energy)
        law = ShiftLaw(np.array([math.sqrt(square) * (1 + 1e-9)]), np.ones(1), coins.excess)
        return Hidden(law, "minorant")
    score = _scorer(target, runs.adjacency)
    if len(rows) == 1 and not others and rows[0].weight > 1e-100:
        tried = list(_alone(rows[0], energy / rows[0].weight ** 2, tail))
        found = tried[0] if len(tried) == 1 else min(tried, key=lambda pair: score(pair[1]))
    else:
        found = _together(rows, coins, energy, tail, score, 1.25 * bar)
    return Hidden(found[1], found[0])


def least_possible(runs: Trajectories, hidden: Sequence[int], noise: float, target: Target) -> float:
    """About the least ε that any absorption gives, where nothing is ever forgotten; else 0. For searches: no guarantee.

    All that participations bring, against all noise that can hide it: by Cauchy and Schwarz no M is smaller.
    """
    rows, last = list(hidden), float(runs.merged_noise[-1])
    if last == 0 or np.any(runs.growth[rows] < 1) or not np.all(runs.tame[rows]):
        return 0.0
    energy = np.sum((runs.weights * runs.noise[:, -1]) ** 2) + noise**2
    energy += np.sum((runs.weights[rows, None] * runs.noise[rows, :-1]) ** 2)
    shift = last_step_shift(runs, tuple(hidden))
    return _scorer(target, runs.adjacency)(replace(shift, values=shift.values * (last / math.sqrt(energy))))


def _scorer(target: Target, adjacency: Adjacency) -> Callable[[ShiftLaw], float]:
    def score(law: ShiftLaw) -> float:
        profile = Profile.of([(shift_law(on_a_grid(law, _ATOMS), adjacency), 1)], law.excess)
        with without_closed_forms(False):  # a search is no path of its own: what it finds is accounted for as asked
            if target.delta is not None:
                return profile.epsilon(target.delta)
            assert target.epsilon is not None
            return max(profile.delta(target.epsilon))

    return score


# --- one run ----------------------------------------------------------------------------------------------------------------


def _alone(row: _Run, last: float, tail: float) -> Iterator[tuple[str, ShiftLaw]]:
    """The laws of one run alone, for every absorption that is worth computing; `last` is the energy of its last step."""
    gain, energy = row.scaled(last)
    if np.all(row.growth <= 1):  # what shrinks may as well stay as it is: equal gains can be counted
        plain = row.plain(last)[1]
        laid = _affordable(row.gain, plain, row.rate, tail)
        if laid is not None:
            coarse = faces(stairs(row.gain, plain, row.rate, 24, tail), tail)
            yield "minorant", minorant(faces(laid, tail), 10 * tail, coarse)
            if np.all(row.growth == 1):
                return
        yield from _drains(row.gain, plain, row.rate, tail)
    yield "spread", _spread(gain, energy, row.rate, tail)


def _spread(gain: FloatArray, energy: FloatArray, rate: FloatArray, tail: float) -> ShiftLaw:
    """Where a record takes part often, several participations count as one."""
    mean = float(np.sum(rate[gain > 0]))
    bundle = max(1, math.ceil((mean + 6 * math.sqrt(mean)) / 100))
    pieces = 800 if bundle == 1 else max(12, min(150, int(mean / (6 * bundle))))
    return spread(gain, energy, rate, pieces if np.any(gain < gain.max()) or bundle > 1 else _PIECES, tail, bundle)


def _affordable(
    gain: FloatArray, energy: FloatArray, rate: FloatArray, tail: float, sizes: Sequence[int] = (_PIECES, 40, 28, 20)
) -> Stairs | None:
    """The finest stairs of which the faces can be listed."""
    for pieces in sizes:
        laid = stairs(gain, energy, rate, pieces, tail)
        if laid.work <= _WORK:
            return laid
    return None


def _bundled(gain: FloatArray, energy: FloatArray, rate: FloatArray, tail: float) -> Stairs:
    """Stairs on which at most 300 units are followed: where a record takes part often, several count as one."""
    laid = stairs(gain, energy, rate, 150, tail)
    if laid.most <= 300:
        return laid
    bundle = math.ceil(laid.most / 300)
    mean = float(np.sum(rate * gain)) / laid.unit
    return stairs(gain, energy, rate, max(12, min(150, int(mean / (6 * bundle)))), tail, bundle)


def _drains(gain: FloatArray, energy: FloatArray, rate: FloatArray, tail: float) -> Iterator[tuple[str, ShiftLaw]]:
    """Drains at a few rates above the mean rate of participation."""
    laid = _bundled(gain, energy, rate, tail)
    before, last = float(energy[:-1].sum()), float(energy[-1])
    for factor in (1.15, 1.5, 2.5, 5.0):
        slope = factor * float(np.sum(gain * rate)) / (before + last)
        grid = _grid(slope**2 * before, laid.unit * max(laid.most, 1), 300)
        yield "drain", pooled([drained(laid, slope * laid.unit, grid, laid.unit)], grid, last)


def _grid(own: float, left: float, cells: int) -> Grid:
    """Cells up to the most that can be paid and be left, with room for what is rounded up on the way."""
    return Grid(max(1.15 * own, 1e-12) / cells, max(1.05 * left, 1e-300) / cells, (cells, cells))


# --- several runs -----------------------------------------------------------------------------------------------------------


def _together(
    rows: Sequence[_Run], coins: ShiftLaw, energy: float, tail: float, score: Callable[[ShiftLaw], float], bar: float
) -> tuple[str, ShiftLaw]:
    """Each run absorbs along its minorant up to a slope, the same for all in units of the release; the slope is searched."""
    laid = [_laid_out(*row.key(), tail / len(rows)) for row in rows]
    kinds = list(dict.fromkeys((row.weight, found) for row, found in zip(rows, laid, strict=True)))
    reach = _reach(rows, laid, coins, tail)
    before = sum(float(np.sum(_stairs(one).lengths[:-1])) * _stairs(one).quantum * w**2 for w, one in _pairs(rows, laid))

    paid: dict[float, float] = {}  # how much of M² the runs pay themselves, except with probability `tail`

    def own_reach(power: float, slope: float) -> float:
        """No run absorbs at more than the slope λy, so all pay at most y² Σ λ² energy; nor more than at a steeper slope."""
        steeper = [own for other, own in paid.items() if other <= power]
        own = min(slope**2 * before, _LARGEST, *steeper)
        for _ in range(0 if own <= _SMALL or power in paid else 1 if steeper else 2):
            grid = _grid(own, reach, 100)
            known = {kind: _split(*kind, slope, grid).masses.sum(axis=1) for kind in kinds}
            own = grid.own * _quantile([known[pair] for pair in _pairs(rows, laid)], tail)
        paid[power] = own
        return own

    def at(power: float, cells: int) -> ShiftLaw:
        slope = reach / energy * 2.0**-power
        grid = _grid(own_reach(power, slope), reach, cells)
        splits = {kind: _split(*kind, slope, grid) for kind in kinds}
        fixed = [_fixed(coins, grid)] if coins.values[-1] > 0 or coins.excess > 0 else []
        return pooled([*fixed, *(splits[pair] for pair in _pairs(rows, laid))], grid, energy)

    absorption = "minorant" if all(isinstance(one, Faces) for one in laid) else "drain"
    best, law, found = _searched(partial(at, cells=_LOOK), score)
    if found > bar:
        return absorption, law
    scores = {best: found} | {power: score(at(power, _LOOK)) for power in (best - 0.75, best + 0.75)}
    return absorption, at(min(scores, key=lambda power: scores[power]), _FINE)


def _searched(at: Callable[[float], ShiftLaw], score: Callable[[ShiftLaw], float]) -> tuple[float, ShiftLaw, float]:
    """The best power, its law and score, until it is not at an edge: little noise wants large powers, much data small ones."""
    found: dict[float, tuple[ShiftLaw, float]] = {}
    asked, best = [2.5, 4.0, 5.5], 4.0
    while asked:
        laws = {power: at(power) for power in asked}
        found |= {power: (law, score(law)) for power, law in laws.items()}
        best = min(found, key=lambda power: found[power][1])
        asked = [power for power in (best - 1.5, best + 1.5) if power not in found and -2 <= power <= 10]
    return best, *found[best]


def _quantile(laws: Sequence[FloatArray], tail: float) -> int:
    """The cell that a sum of independent cells exceeds with probability `tail`, or the last."""
    total = np.ones(1)
    for law in laws:
        total = np.convolve(total, law)[: law.size]
    above = np.cumsum(total[::-1])[::-1]
    return max(int(np.count_nonzero(above > tail)), 1)


def _pairs(rows: Sequence[_Run], laid: Sequence[Faces | Stairs]) -> list[tuple[float, Faces | Stairs]]:
    return [(row.weight, found) for row, found in zip(rows, laid, strict=True)]


def _split(weight: float, found: Faces | Stairs, slope: float, grid: Grid) -> Split:
    unit = _stairs(found).unit
    absorb = partial(followed, found) if isinstance(found, Faces) else partial(drained, found)
    return absorb(weight * slope * unit, grid, weight * unit)


def _reach(rows: Sequence[_Run], laid: Sequence[Faces | Stairs], coins: ShiftLaw, tail: float) -> float:
    """How much all participations amount to in the release, except with probability `tail`."""
    most = sum(weight * _stairs(found).unit * max(_stairs(found).most, 1) for weight, found in _pairs(rows, laid))
    most = float(most + coins.values[-1])
    cells = 2000
    places = np.ceil(coins.values / most * cells).astype(np.int64)
    total = np.asarray(np.bincount(places, weights=coins.probs, minlength=cells + 1), dtype=np.float64)
    for weight, found in _pairs(rows, laid):
        counts = np.ones(1)
        for law in _stairs(found).coins:
            counts = np.convolve(counts, law)
        worth = weight * _stairs(found).unit / most * cells
        places = np.minimum(np.ceil(np.arange(counts.size) * worth), cells).astype(np.int64)
        total = np.convolve(total, np.bincount(places, weights=counts))[: cells + 1]
    return most * _quantile([total], tail) / cells


@lru_cache(maxsize=64)  # a run's faces do not depend on its weight; a plan asks for many weights
def _laid_out(run: _Key, unit: float, total: float, tail: float) -> Faces | Stairs:
    found = _in_its_own_units(run, tail)
    held = _stairs(found)
    held = replace(held, unit=held.unit * unit, quantum=held.quantum * total)
    return replace(found, stairs=held, slopes=found.slopes * (unit**2 / total)) if isinstance(found, Faces) else held


@lru_cache(maxsize=16)
def _in_its_own_units(run: _Key, tail: float) -> Faces | Stairs:
    gain, energy, rate = (np.frombuffer(part) for part in run)
    laid = _affordable(gain, energy, rate, tail, (32, 24, 18))
    return faces(laid, tail) if laid is not None else _bundled(gain, energy, rate, tail)


def _stairs(found: Faces | Stairs) -> Stairs:
    return found.stairs if isinstance(found, Faces) else found


def _fixed(coins: ShiftLaw, grid: Grid) -> Split:
    """The last coins of runs that have shown all else."""
    masses = np.zeros((grid.cells[0] + 1, grid.cells[1] + 1))
    columns = np.minimum(np.ceil(coins.values / grid.left * (1 - 1e-12)), grid.cells[1] + 1).astype(np.int64)
    kept = columns <= grid.cells[1]
    np.add.at(masses[0], columns[kept], coins.probs[kept])
    return Split(masses, coins.excess)


# --- full batches -----------------------------------------------------------------------------------------------------------


def _full_batch(rows: Sequence[_Run], fixed: float, energy: float) -> float:
    """M² without coins: every run follows its minorant up to the slope λy, and y = F/energy is solved for."""
    hulls = [_hull(*row.scaled(1.0)) for row in rows]

    def left(y: float) -> tuple[float, float]:
        own, rest = 0.0, fixed
        for row, (slopes, lengths, total) in zip(rows, hulls, strict=True):
            rates = np.minimum(slopes, row.weight * y)
            own += float(rates**2 @ lengths)
            rest += row.weight * (total - float(rates @ lengths))
        return own, max(rest, 0.0)

    low, high = 0.0, left(0.0)[1] / energy
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle)[1] > middle * energy else (low, middle)
    own, rest = left(high)
    return (own + rest**2 / energy) * (1 + 1e-12)


def _hull(gain: FloatArray, energy: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Slopes and lengths of the minorant before the last step, and everything that was gained."""
    x = np.concatenate(([0.0], np.cumsum(energy[:-1])))
    s = np.concatenate(([0.0], np.cumsum(gain[:-1])))
    first = np.concatenate(([True], np.diff(x) > 0))  # after a step without noise nothing more is absorbed
    kept: list[tuple[float, float]] = []
    for point in zip(x[first].tolist(), s[first].tolist(), strict=True):
        while len(kept) > 1 and _bends_down(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    corners = np.array(kept)
    lengths = np.diff(corners[:, 0])
    slopes = np.diff(corners[:, 1]) / np.where(lengths > 0, lengths, 1.0)
    return slopes, lengths, float(np.sum(gain))


def _bends_down(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[1] - a[1]) * (c[0] - b[0]) >= (c[1] - b[1]) * (b[0] - a[0])
