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
# Cells to search with, to find the ends of a grid with, and to account with: twice as many and two have small factors only.
_LOOK, _NEAR, _FINE = (191, 63), (255, 127), (575, 191)
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


def hidden_run(
    runs: Trajectories, hidden: Sequence[int], noise: float, target: Target, bar: float = math.inf, quick: bool = False
) -> Hidden:
    """The smallest law of M that a search finds, for these hidden rows; the others have shown all but their last step.

    Another theorem gives `bar`: where a first look stays far above it, the search ends. `quick` is the first look.
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
    if len(rows) == 1 and not others and rows[0].weight > 1e-100:
        laws, score = _alone(rows[0], energy / rows[0].weight ** 2, tail, quick), _scorer(target, runs.adjacency)
        tried = [next(laws)] if quick else list(laws)
        found = tried[0] if len(tried) == 1 else min(tried, key=lambda pair: score(pair[1]))
    else:
        found = _together(rows, coins, energy, tail, partial(_scorer, adjacency=runs.adjacency), target, bar, quick)
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


def _alone(row: _Run, last: float, tail: float, quick: bool) -> Iterator[tuple[str, ShiftLaw]]:
    """The laws of one run alone, for every absorption that is worth computing; `last` is the energy of its last step."""
    gain, energy = row.scaled(last)
    if np.all(row.growth <= 1):  # what shrinks may as well stay as it is: equal gains can be counted
        plain = row.plain(last)[1]
        laid = _affordable(row.gain, plain, row.rate, tail, (24, 20) if quick else (_PIECES, 40, 28, 20))
        if laid is not None:
            coarse = None if quick else faces(stairs(row.gain, plain, row.rate, 24, tail), tail)
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


def _affordable(gain: FloatArray, energy: FloatArray, rate: FloatArray, tail: float, sizes: Sequence[int]) -> Stairs | None:
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
        grid = _grid(slope**2 * before, laid.unit * max(laid.most, 1), (300, 300))
        yield "drain", pooled([drained(laid, slope * laid.unit, grid, laid.unit)], grid, last)


def _grid(own: float, left: float, cells: tuple[int, int]) -> Grid:
    """Cells up to the most that can be paid and be left, with room for what is rounded up on the way."""
    return Grid(max(1.15 * own, 1e-12) / cells[0], max(1.05 * left, 1e-300) / cells[1], cells)


def _coarse(own: float, left: float) -> Grid:
    """A grid to look with: what can be paid is rounded up to a power of √2, so that many looks share their laws."""
    return _grid(2.0 ** (math.ceil(2 * math.log2(max(own, 1e-12))) / 2), left, _LOOK)


# --- several runs -----------------------------------------------------------------------------------------------------------


def _together(
    rows: Sequence[_Run],
    coins: ShiftLaw,
    energy: float,
    tail: float,
    scorer: Callable[[Target], Callable[[ShiftLaw], float]],
    target: Target,
    bar: float,
    quick: bool,
) -> tuple[str, ShiftLaw]:
    """Each run absorbs along its minorant up to a slope, the same for all in units of the release; the slope is searched."""
    each = tail / max(4.0, 2.0 ** math.ceil(math.log2(len(rows))))  # the same for few runs, so that they share their faces
    laid = [_weighed(row, each) for row in rows]
    reach = _reach(laid, coins, tail)
    before = sum(float(np.sum(_stairs(one).lengths[:-1])) * _stairs(one).quantum * w**2 for w, one in laid)
    fixed = coins.values[-1] > 0 or coins.excess > 0
    looks: dict[float, tuple[Grid, list[Split]]] = {}

    def slope(power: float) -> float:
        return float(reach / energy * 2.0**-power)

    def split(power: float, grid: Grid) -> list[Split]:
        known = {pair: _split(*pair, slope(power), grid) for pair in dict.fromkeys(laid)}
        return [*([_fixed(coins, grid)] if fixed else []), *(known[pair] for pair in laid)]

    def look(power: float) -> tuple[Grid, list[Split]]:
        """A coarse grid up to what the runs pay themselves and leave to the last step, except with probability `tail`.

        No run absorbs at more than the slope λy, so all pay at most y² Σ λ² energy; nor more than at a steeper slope.
        """
        if power not in looks:
            rooms = {other: _room(*known, tail) for other, known in looks.items()}
            own = min([slope(power) ** 2 * before, _LARGEST, *(rooms[other][0] for other in rooms if other <= power)])
            left = min([reach, *(rooms[other][1] for other in rooms if other >= power)])
            for _ in range(2):
                looks[power] = wide(power, own, left, _LOOK)
                own, left = _room(*looks[power], tail)
        return looks[power]

    def wide(power: float, own: float, left: float, cells: tuple[int, int]) -> tuple[Grid, list[Split]]:
        """A grid up to these ends, or wider ones where it would give up more than a hundredth of δ."""
        while True:
            grid = _coarse(own, left) if cells == _LOOK else _grid(own, left, cells)
            parts = split(power, grid)
            lost = sum(1 - float(part.masses.sum()) - part.excess for part in parts)
            if lost <= 100 * tail or (own >= _LARGEST and left >= reach):
                return grid, parts
            own, left = min(2 * own, _LARGEST), min(2 * left, reach)

    def at(power: float, fine: bool = False) -> ShiftLaw:
        grid, parts = look(power)
        for cells in (_NEAR, _FINE) if fine else ():  # the looks were at slopes nearby
            grid, parts = wide(power, *_room(grid, parts, tail), cells)
        return pooled(parts, grid, energy)

    absorption = "minorant" if all(isinstance(one, Faces) for _, one in laid) else "drain"
    usual = 2 + 0.37 * math.log2(1 + before / energy)  # the less the last step hides, the more the runs hide themselves
    first = at(usual)
    found = 0.0 if quick else scorer(target)(first)
    if quick or found > 1.5 * bar:
        return absorption, first
    # Others are compared by their δ at the first one's ε: that is found sooner than their ε.
    score = scorer(Target(epsilon=found) if target.delta is not None and math.isfinite(found) else target)
    scores = _searched(lambda power: score(first if power == usual else at(power)), usual)
    return absorption, at(min(scores, key=lambda power: scores[power]), fine=True)


def _searched(score: Callable[[float], float], start: float) -> dict[float, float]:
    """Powers and their scores, until the best is not at an edge, and then nearer to it; of those about as good, the nearest."""
    found: dict[float, float] = {}
    asked, best = [start - 1.5, start, start + 1.5], start
    while asked:
        found |= {power: score(power) for power in asked}
        best = min(found, key=lambda power: (float(f"{found[power]:.1e}"), abs(power - start)))
        asked = [power for power in (best - 1.5, best + 1.5) if power not in found and -2 <= power <= 10]
    return found | {power: score(power) for power in (best - 0.75, best + 0.75)}


def _room(grid: Grid, parts: Sequence[Split], tail: float) -> tuple[float, float]:
    """What all parts together pay and leave, except with probability `tail` each."""
    own = _quantile([part.masses.sum(axis=1) for part in parts], tail)
    return grid.own * own, grid.left * _quantile([part.masses.sum(axis=0) for part in parts], tail)


def _quantile(laws: Sequence[FloatArray], tail: float) -> int:
    """The cell that a sum of independent cells exceeds with probability `tail`, or the last."""
    total = np.ones(1)
    for law in laws:
        total = np.convolve(total, law)[: law.size]
    above = np.cumsum(total[::-1])[::-1]
    return max(int(np.count_nonzero(above > tail)), 1)


_Weighed = tuple[float, Faces | Stairs]


def _weighed(row: _Run, tail: float) -> _Weighed:
    """The run in units of its largest gain, which runs with other clips or weights may share, and what the unit is worth."""
    run, unit, total = row.key()
    return row.weight * unit, _laid_out(run, total / unit**2, tail)


def _split(weight: float, found: Faces | Stairs, slope: float, grid: Grid) -> Split:
    unit = _stairs(found).unit
    absorb = partial(followed, found) if isinstance(found, Faces) else partial(drained, found)
    return absorb(weight * slope * unit, grid, weight * unit)


def _reach(laid: Sequence[_Weighed], coins: ShiftLaw, tail: float) -> float:
    """How much all participations amount to in the release, except with probability `tail`."""
    most = sum(weight * _stairs(found).unit * max(_stairs(found).most, 1) for weight, found in laid)
    most = float(most + coins.values[-1])
    cells = 500
    places = np.ceil(coins.values / most * cells).astype(np.int64)
    total = np.asarray(np.bincount(places, weights=coins.probs, minlength=cells + 1), dtype=np.float64)
    for weight, found in laid:
        counts = _stairs(found).counts
        worth = weight * _stairs(found).unit / most * cells
        places = np.minimum(np.ceil(np.arange(counts.size) * worth), cells).astype(np.int64)
        total = np.convolve(total, np.bincount(places, weights=counts))[: cells + 1]
    return most * _quantile([total], tail) / cells


@lru_cache(maxsize=64)  # a run's faces do not depend on its weight; a plan asks for many weights
def _laid_out(run: _Key, energy: float, tail: float) -> Faces | Stairs:
    """The run with so much energy in all."""
    found = _in_its_own_units(run, tail)
    held = replace(_stairs(found), quantum=_stairs(found).quantum * energy)
    return replace(found, stairs=held, slopes=found.slopes / energy) if isinstance(found, Faces) else held


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
