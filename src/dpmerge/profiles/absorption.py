"""What later noise hides of a record's participations: laws of the distance M of a hidden run (docs/theory.md §9).

A hidden run is laid out as stairs, in units in which its steps drive nothing apart. At each piece the record adds some units,
with the probabilities of its coins; then the piece's noise may absorb part of what is there, and an amount a against noise of
energy ℓ adds a²/ℓ to M². For every outcome of the coins, any absorption that never takes more than there is gives a valid M.
The laws below belong to such choices. Whatever is rounded here is rounded up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy import fft

from dpmerge.profiles.grids import FloatArray
from dpmerge.profiles.shifts import ShiftLaw

IntArray = npt.NDArray[np.int64]
_ABOVE = 1 + 1e-9  # above the rounding of slopes, chords and sums
_CELLS = 1200
_ROWS = 400  # of what may be there at once, in parts of a unit
_FFT_ERROR = 1e-15  # of one cell of a convolution of probabilities
_SUM_ERROR = 1e-13  # of the sum of a table of probabilities: what is missing from 1 is known no better
# Energies are whole numbers of parts of all energy: so few that different quotients of counts and energies differ as doubles.
_QUANTA = 2.0**40
_LARGEST = 400.0  # of M²: beyond, ε is of no interest
_COARSE = 200  # cells up to which a grid is one to search with


@dataclass(frozen=True, eq=False)
class Stairs:
    """Pieces of one run: `coins[n][k]` is the probability of k units at piece n, whose noise then has energy `lengths[n]`.

    Lengths are whole numbers of `quantum`. The last piece is the last step. `most` is the largest number of units that is
    followed; more of them are given up, with all else that is: probability `excess`.
    """

    coins: tuple[FloatArray, ...]
    lengths: FloatArray
    quantum: float
    unit: float
    most: int
    excess: float

    @property
    def places(self) -> FloatArray:
        """Energy up to each point between pieces, in whole quanta."""
        return np.concatenate(([0.0], np.cumsum(self.lengths)))

    @property
    def scale(self) -> float:
        """A quantum in units of `unit`², so that amounts are counts."""
        return self.quantum / self.unit**2

    @cached_property
    def gains(self) -> list[FloatArray]:
        return [_gain_matrix(law, self.most) for law in self.coins]

    @cached_property
    def counts(self) -> FloatArray:
        """The law of all units together."""
        total = np.ones(1)
        for law in self.coins:
            total = np.convolve(total, law)
        return total

    @property
    def work(self) -> float:
        """About how many operations the faces of the minorant take."""
        return len(self.coins) ** 3 / 6 * (self.most + 1) ** 2


def stairs(gain: FloatArray, energy: FloatArray, rate: FloatArray, pieces: int, tail: float, bundle: int = 1) -> Stairs:
    """Lay out a run: at each step the record adds `gain` with probability `rate`, and the noise has `energy`.

    Long runs are laid out in blocks, short ones near the end: what a block's coins bring counts at the block's end, so that
    its noise absorbs only what was there at its start. Gains that differ are rounded up to multiples of 1/8 of the largest,
    and what a piece brings to a multiple of `bundle` of them. The last step has noise.
    """
    moving = np.flatnonzero(gain > 0)
    first = int(moving[0]) if moving.size else gain.size - 1
    gain, energy, rate = gain[first:], energy[first:], rate[first:]
    largest = float(gain.max()) or 1.0
    unit = largest if np.all((gain == 0) | (gain > largest * (1 - 1e-9))) else largest / 8
    units = np.ceil(gain / unit * (1 - 1e-12))
    coins: list[FloatArray] = []
    lengths: list[float] = []
    waiting, excess = np.ones(1), 0.0  # what earlier coins bring to the next piece
    usual = _usual(energy)
    quantum = float(usual.sum()) / _QUANTA
    spans = list(_spans(usual, pieces))
    for start, stop in spans:
        own, lost = _units_gained(units[start:stop], rate[start:stop], tail / (2 * len(spans)))
        own = _moved(own, np.ceil(np.arange(own.size) / bundle))
        excess += lost
        length = math.floor(float(np.sum(energy[start:stop])) / quantum * (1 - 1e-12))
        if stop - start == 1:
            waiting, own = np.convolve(waiting, own), np.ones(1)
        if length > 0:
            coins.append(waiting)
            lengths.append(float(length))
            waiting = own
        else:
            waiting = np.convolve(waiting, own)
    if energy[-1] < quantum * (1 + 1e-9):  # the last step hides nothing of what is left to it: all is given up
        return Stairs((np.ones(1),), np.ones(1), quantum, unit * bundle, 0, 1.0)
    most = _most(coins, tail)
    return Stairs(tuple(law[: most + 1] for law in coins), np.array(lengths), quantum, unit * bundle, most, excess)


def _usual(energy: FloatArray) -> FloatArray:
    """Energies whose last is a power of four times all before it: runs that differ by noise at release are laid out alike."""
    before = float(energy[:-1].sum())
    if before == 0 or energy[-1] == 0:
        return energy
    return np.append(energy[:-1], before * 4.0 ** round(math.log2(energy[-1] / before) / 2))


def _moved(law: FloatArray, places: FloatArray) -> FloatArray:
    return np.asarray(np.bincount(places.astype(np.int64), weights=law), dtype=np.float64)


def _spans(energy: FloatArray, pieces: int) -> Iterator[tuple[int, int]]:
    """Blocks of steps, each with at most a fixed share of the energy that follows it; the last step is alone."""
    steps = energy.size
    if steps <= pieces:
        yield from ((t, t + 1) for t in range(steps))
        return
    before = np.concatenate(([0.0], np.cumsum(energy)))
    low, high = 1e-4, 10.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if len(_cuts(before, middle)) <= pieces + 1 else (middle, high)
    yield from pairwise(_cuts(before, high))


def _cuts(before: FloatArray, share: float) -> list[int]:
    steps = before.size - 1
    cuts = [steps, steps - 1]
    while cuts[-1] > 0:
        stop = cuts[-1]
        after = float(before[-1] - before[stop])
        first = int(np.searchsorted(before, before[stop] - share * after, side="left"))
        cuts.append(min(first, stop - 1))
    return cuts[::-1]


def _units_gained(units: FloatArray, rate: FloatArray, tail: float) -> tuple[FloatArray, float]:
    """The law of the units that these steps bring, and the probability given up."""
    law, lost = np.ones(1), 0.0
    kinds = Counter(pair for pair in zip(units.tolist(), rate.tolist(), strict=True) if pair[0] > 0)
    for (size, probability), count in kinds.items():
        coin = ShiftLaw.binomial(1.0, probability, count, tail / len(kinds))
        spread = np.zeros(int(size) * round(float(coin.values[-1])) + 1)
        # Large binomials are precise to 1e-9, and what is missing from 1 must be what was given up.
        spread[np.round(coin.values).astype(np.int64) * int(size)] = coin.probs * ((1 - coin.excess) / coin.probs.sum())
        law, lost = np.convolve(law, spread), lost + coin.excess
    return law, lost


# --- the convex minorant --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Faces:
    """Straight pieces that the convex minorant of the walk of coins may have, by ascending slope.

    From point `start` to point `stop` it rises by `units`; `probs` is how likely the walk rises so and stays above in between.
    """

    stairs: Stairs
    start: IntArray
    stop: IntArray
    units: IntArray
    probs: FloatArray
    slopes: FloatArray


def faces(run: Stairs, tail: float) -> Faces:
    """Every face with a probability that matters. Given the coins, no absorption is cheaper than the minorant's.

    Only those that end with the last piece know its length, so that the others serve whatever the noise of the release is.
    """
    x, points = run.places, len(run.coins)
    forget = tail / points**2
    before = _faces_before((*(law.tobytes() for law in run.coins),), run.lengths[:-1].tobytes(), run.most, forget)
    found = [*before, _faces_to(run.gains, x, points, forget)]
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    kept = columns[-1] > forget / 8  # what is left out is missing from the whole, and so given up
    first, stop, units, probs = (column[kept] for column in columns)
    # A quotient of whole numbers is the same number wherever the slope is the same, and rounding keeps the order: no outcome
    # of the coins is counted twice. Equal slopes follow each other from left to right.
    slopes = units / (x[stop] - x[first])
    order = np.lexsort((first, slopes))
    return Faces(run, first[order], stop[order], units[order], probs[order], slopes[order] / run.scale)


_Columns = tuple[IntArray, IntArray, IntArray, FloatArray]


@lru_cache(maxsize=16)
def _faces_before(coins: tuple[bytes, ...], lengths: bytes, most: int, forget: float) -> list[_Columns]:
    gains = [_gain_matrix(np.frombuffer(law), most) for law in coins]
    x = np.concatenate(([0.0], np.cumsum(np.frombuffer(lengths))))
    return [_faces_to(gains, x, stop, forget) for stop in range(1, len(gains))]


def _faces_to(gains: Sequence[FloatArray], x: FloatArray, stop: int, forget: float) -> _Columns:
    """Faces that end at one point: their beginnings, end, units and probabilities.

    Rows are chords from (start, 0) to (stop, units), sorted by start; columns are counts since the start.
    """
    gained, reach = np.eye(1, gains[0].shape[0])[0], np.zeros(stop, dtype=np.int64)
    for n in range(stop - 1, -1, -1):
        gained = gained @ gains[n]
        reach[n] = np.count_nonzero(np.cumsum(gained[::-1]) > forget) - 1
    rows = np.concatenate(([0], np.cumsum(reach)))
    counts = np.arange(reach.max() + 1)
    gains = [gain[: counts.size, : counts.size] for gain in gains[:stop]]
    first = np.repeat(np.arange(stop), reach)
    units = np.arange(1, rows[-1] + 1) - rows[first]
    slopes = units / (x[stop] - x[first])
    state = np.zeros((units.size, counts.size))
    state[:, 0] = 1.0
    for n, gain in enumerate(gains):
        begun = rows[n + 1]
        state[:begun] = state[:begun] @ gain
        if n + 1 < stop:
            length = x[n + 1] - x[first[:begun]]
            above = np.floor(slopes[:begun] * length)  # this many units, or one or two more, lie above the chord
            above += above / length <= slopes[:begun]
            above += above / length <= slopes[:begun]
            state[:begun] *= counts >= above[:, None]
    return first, np.full(units.size, stop), units, state[np.arange(units.size), units]


def _gain_matrix(law: FloatArray, most: int) -> FloatArray:
    """From counts before a piece to counts after it; what exceeds `most` is lost."""
    step = np.arange(most + 1) - np.arange(most + 1)[:, None]
    return np.where((step >= 0) & (step < law.size), law[np.clip(step, 0, law.size - 1)], 0.0)


def minorant(found: Faces, tail: float, coarse: Faces | None = None) -> ShiftLaw:
    """The law of M if every outcome's absorption follows its convex minorant; about `tail` may be given up.

    How far the law reaches is asked of `coarse` faces of the same run, if there are any: theirs is never shorter.
    """
    top = _top(partial(_minorant_squares, coarse or found), tail)
    return _refined(partial(_minorant_squares, found), top, found.stairs.excess)


def _top(squares: Callable[[int, float], FloatArray], tail: float) -> float:
    """The M² that a law exceeds with probability `tail`, by coarse grids: two, or more while all lies in the first cell."""
    top = _LARGEST
    for look in range(8):
        above = np.cumsum(squares(300, top)[::-1])[::-1]
        needed = max(int(np.count_nonzero(above > tail)), 1)
        top *= min(1.0, needed / 300)
        if look > 0 and needed > 2:  # cell 0, where nothing is paid, and one for all that is rounded up
            break
    return top


def _refined(squares: Callable[[int, float], FloatArray], top: float, excess: float) -> ShiftLaw:
    """A law of M² on a fine grid; what lies beyond it is given up."""
    masses = squares(_CELLS, top)
    lost = max(1 - float(masses.sum()), 0.0) + _SUM_ERROR
    return _law(np.arange(_CELLS + 1.0) * (top / _CELLS), masses, lost + excess)


def _minorant_squares(found: Faces, cells: int, top: float) -> FloatArray:
    run = found.stairs
    table = _start(run, cells, len(run.coins))
    _add_faces(table, found, slice(None), cells, top)
    return np.asarray(table[-1])


def _start(run: Stairs, cells: int, points: int) -> FloatArray:
    """The walk stays at 0 up to a point: rows are points, columns cells of M²."""
    table = np.zeros((points + 1, cells + 1))
    table[:, 0] = np.cumprod([1.0, *(float(law[0]) for law in run.coins[:points])])
    return table


def _add_faces(table: FloatArray, found: Faces, part: slice, cells: int, top: float) -> None:
    price = _cells(found.units[part] * found.slopes[part] / (top / cells), cells)
    chosen = np.flatnonzero((price <= cells) & (found.stop[part] < table.shape[0]))
    columns = (found.start[part][chosen], found.stop[part][chosen], found.probs[part][chosen], price[chosen])
    for start, stop, prob, shift in zip(*(column.tolist() for column in columns), strict=True):
        table[stop, shift:] += prob * table[start, : cells + 1 - shift]


# --- choices that need less work ------------------------------------------------------------------------------------------


def spread(gain: FloatArray, energy: FloatArray, rate: FloatArray, pieces: int, tail: float, bundle: int = 1) -> ShiftLaw:
    """The law of M if each participation is spread evenly over all later noise; arguments as for `stairs`, without growth.

    From the last piece to the first: an amount a that joins v of later ones adds (a² + 2av)/E, E the energy that is left.
    Amounts are exact, and v is followed in parts of the largest amount so far.
    """
    spans = list(_spans(energy, pieces))
    # What a block brings is absorbed after it, by what is left then; a single step's own noise takes part.
    left = np.cumsum(energy[::-1])[::-1] * (1 - 1e-12)
    left = np.append(left, left[-1])
    laws = [_units_gained((gain[a:b] > 0).astype(np.float64), rate[a:b], tail / (2 * len(spans))) for a, b in spans]
    amounts = np.array([float(gain[a:b].max()) for a, b in spans]) * bundle
    coins = [_moved(law, np.ceil(np.arange(law.size) / bundle)) for law, _ in laws]
    scale = np.maximum.accumulate(np.maximum(amounts, 1e-300)[::-1])[::-1]
    parts = 1 if np.all((amounts == 0) | (amounts > scale[0] * (1 - 1e-9))) else 8
    rows = parts * _most(coins, tail)
    excess = sum(lost for _, lost in laws)

    def squares(cells: int, top: float) -> FloatArray:
        table = np.zeros((rows + 1, cells + 1))
        table[0, 0] = 1.0
        for n in range(len(spans) - 1, -1, -1):
            a, b = spans[n]
            if n + 1 < len(spans):
                table = _driven(table, float(scale[n + 1] / scale[n]))
            law, amount, after = coins[n], amounts[n], float(left[a] if b - a == 1 else left[b])
            fresh = law[0] * table
            held = np.flatnonzero(table.any(axis=1)).tolist()
            for k in range(1, law.size):
                for row in held:
                    price = (k * amount) ** 2 + 2 * k * amount * row * scale[n] / parts
                    shift = math.ceil(min(price / after / (top / cells), 1e9) * (1 - 1e-12))
                    place = row + math.ceil(k * amount / scale[n] * parts * (1 - 1e-12))
                    if shift <= cells and place <= rows:
                        fresh[place, shift:] += law[k] * table[row, : cells + 1 - shift]
            table = fresh
        return np.asarray(table.sum(axis=0))

    return _refined(squares, _top(squares, tail), excess)


def _most(coins: Sequence[FloatArray], tail: float) -> int:
    """The largest number of units that has to be followed."""
    total = np.ones(1)
    for law in coins:
        total = np.convolve(total, law)
    above = np.cumsum(total[::-1])[::-1]
    return max(int(np.count_nonzero(above > tail / 2)) - 1, 0)


@dataclass(frozen=True)
class Grid:
    """Cells for what a run's own noise pays, of M², and for what it leaves to the last step, an amount."""

    own: float
    left: float
    cells: tuple[int, int]


@dataclass(frozen=True)
class Split:
    """The joint law of what a run's own noise has paid before the last step and what is left to that step, on a grid."""

    masses: FloatArray
    excess: float


def followed(found: Faces, slope: float, grid: Grid, scale: float) -> Split:
    """Absorb along the minorant up to a slope (units per energy), from there on at that slope; `scale` is a unit's worth.

    Every slope is valid. On a coarse grid it is one of few nearby: a search that asks for many then shares their laws.
    """
    if grid.cells[0] <= _COARSE:
        slope = 2.0 ** (math.ceil(4 * math.log2(max(slope, 1e-300)) - 0.5) / 4)
    run, x = found.stairs, found.stairs.places[:-1] * found.stairs.scale
    cells = grid.cells[0]
    walks, paid = _walks_above(run, slope), slope * (x[-1] - x)
    columns = _cells(np.maximum(np.arange(run.most + 1) - paid[:, None], 0.0) * scale / grid.left, grid.cells[1])
    left = np.zeros((x.size, grid.cells[1] + 2))  # what leaves the grid is in the last column
    np.add.at(left, (np.arange(x.size)[:, None], columns), walks)
    held = _before_slope(found, slope, cells, grid.own * cells)
    moved = np.zeros_like(held)
    for row, shift in enumerate(_cells(slope * paid / grid.own, cells).tolist()):
        moved[row, shift:] = held[row, : cells + 1 - shift]
    return Split(moved.T @ left[:, :-1], run.excess)


@lru_cache(maxsize=1024)
def _walks_above(run: Stairs, slope: float) -> FloatArray:
    """How likely the walk gains so many units (columns) and stays above a line of this slope, from a point (rows) on."""
    x, counts = run.places * run.scale, np.arange(run.most + 1)
    gains, last = run.gains, len(run.coins) - 1
    state = np.eye(1, counts.size).repeat(last + 1, axis=0)
    for t in range(last):
        begun = state[: t + 1] @ gains[t]
        state[: t + 1] = begun * (counts >= slope * (x[t + 1] - x[: t + 1, None]) * (1 - 1e-12))
    return np.asarray(state @ gains[last])


def _before_slope(found: Faces, slope: float, cells: int, top: float) -> FloatArray:
    """The minorant's law of M² up to each point before the last step, with all faces below a slope."""
    known = (_below_slopes if cells <= _COARSE else _below_slopes.__wrapped__)(found, cells, top)
    if slope not in known:
        nearest = max(other for other in tuple(known) if other < slope)
        table = known[nearest].copy()
        _add_faces(table, found, slice(_steeper(found, nearest), _steeper(found, slope)), cells, top)
        known[slope] = table
    return known[slope]


@lru_cache(maxsize=32)
def _below_slopes(found: Faces, cells: int, top: float) -> dict[float, FloatArray]:
    """The same law by slope, as far as it was asked for."""
    return {0.0: _start(found.stairs, cells, len(found.stairs.coins) - 1)}


def _steeper(found: Faces, slope: float) -> int:
    """The first face that is not below a slope."""
    return int(np.searchsorted(found.slopes, slope * (1 - 1e-9)))


def drained(run: Stairs, slope: float, grid: Grid, scale: float) -> Split:
    """Absorb at a fixed rate (units per energy) whenever there is something: no coin is looked at before it falls."""
    energies = run.lengths * run.scale
    fineness = max(1, min(4, _ROWS // max(run.most, 1)))
    rows, cells = min(fineness * max(run.most, 1), _ROWS), grid.cells[0]
    table = np.zeros((rows + 1, cells + 1))
    table[0, 0] = 1.0
    for n, law in enumerate(run.coins):
        table = _gained(table, law, fineness)
        taken = int(min(slope * energies[n] * fineness * (1 + 1e-12), rows))
        if taken and n + 1 < len(run.coins):
            table = _absorbed(table, taken, float(energies[n]) * fineness**2 * grid.own)
    masses = np.zeros((cells + 1, grid.cells[1] + 1))
    columns = _cells(np.arange(rows + 1) / fineness * scale / grid.left, grid.cells[1])
    kept = columns <= grid.cells[1]
    np.add.at(masses.T, columns[kept], table[kept])
    return Split(masses, run.excess)


def _cells(numbers: FloatArray, last: int) -> IntArray:
    """Rounded up to whole cells; everything beyond the last is just beyond it, also what is no integer of this machine."""
    return np.asarray(np.minimum(np.ceil(numbers * (1 - 1e-12)), last + 1), dtype=np.int64)


def _driven(table: FloatArray, growth: float) -> FloatArray:
    """What there is, multiplied by the growth of a step and rounded up."""
    if growth == 1:
        return table
    moved = np.zeros_like(table)
    rows = np.ceil(np.arange(table.shape[0]) * growth * (1 - 1e-12)).astype(np.int64)
    kept = rows < table.shape[0]
    np.add.at(moved, rows[kept], table[kept])
    return moved


def _gained(table: FloatArray, law: FloatArray, fineness: int) -> FloatArray:
    moved = law[0] * table
    for k in range(1, law.size):
        if k * fineness < table.shape[0]:
            moved[k * fineness :] += law[k] * table[: table.shape[0] - k * fineness]
    return np.asarray(moved)


def _absorbed(table: FloatArray, taken: int, energy: float) -> FloatArray:
    """Take so many sub-units from every row, or what there is; each pays for its own."""
    moved = np.zeros_like(table)
    for row in range(taken + 1):
        shift = math.ceil(row * row / energy * (1 - 1e-12))
        if shift < table.shape[1]:
            held = table[taken:] if row == taken else table[row : row + 1]
            moved[: held.shape[0], shift:] += held[:, : table.shape[1] - shift]
    return moved


def pooled(parts: Sequence[Split], grid: Grid, energy: float) -> ShiftLaw:
    """M² = Σ own + (Σ left)²/energy over independent runs; what falls off the grid is given up."""
    rows, columns = grid.cells
    total, given_up = parts[0].masses, parts[0].excess
    for part in parts[1:]:
        total = np.maximum(_convolved(total, part.masses), 0.0)
        given_up += part.excess + _FFT_ERROR * total.size
    squares = grid.own * np.arange(rows + 1)[:, None] + (grid.left * np.arange(columns + 1)) ** 2 / energy
    order = np.argsort(squares, axis=None)
    lost = max(1 - float(total.sum()), 0.0) + given_up
    return _law(squares.ravel()[order], total.ravel()[order], lost)


def _convolved(a: FloatArray, b: FloatArray) -> FloatArray:
    size = (2 * a.shape[0], 2 * a.shape[1])
    whole = fft.irfft2(fft.rfft2(a, size) * fft.rfft2(b, size), size)
    return np.asarray(whole[: a.shape[0], : a.shape[1]])


def _law(squares: FloatArray, masses: FloatArray, excess: float) -> ShiftLaw:
    """The shift law of these squares; where rounding counted some outcome twice, the smallest give way."""
    above = np.minimum(np.cumsum(masses[::-1])[::-1], 1.0)
    probs = above - np.append(above[1:], 0.0)
    kept = probs > 0
    if not kept.any():
        return ShiftLaw(np.array([math.inf]), np.ones(1), excess)
    return ShiftLaw(np.sqrt(squares[kept]) * _ABOVE, probs[kept], excess)
