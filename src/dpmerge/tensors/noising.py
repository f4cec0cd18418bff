"""Noise on an average, exactly: what is stored is a function of the real number Σ λθ + Z and of nothing else.

Definition: the number stored is h·k rounded to the tensors' own format, where k is (Σ λθ + Z)/h rounded to a whole number, Σ λθ
is the exact average of stored numbers and exact weights, Z the real noise, and h the noise's grid. Doubles do nearly all of it,
with an error bound; where the bound leaves the stored number open, it is computed again to as many bits as that takes. So the
result is the same on every machine and for any number of threads (docs/theory.md §9.6).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np

from dpmerge.tensors.dtypes import Dtype, Floats, Raw, Scratch, fits, narrowed
from dpmerge.tensors.kernel import NotFinite
from dpmerge.tensors.normals import BLOCK, ERROR, MOST, Normals, Workspace
from dpmerge.tensors.path import Noise

_HIGH_BITS = np.uint64(2**64 - 2**29)  # of a double: what has 24 bits
_GUARD = 20  # bits that mpmath may lose
_FAR = 4  # times the error of others has a sum with normals beyond `MOST`, which are below 4·`MOST` (docs/theory.md §9.6)
_ONE_AT_A_TIME = threading.Lock()  # mpmath's precision belongs to a whole context


@dataclass(frozen=True)
class TensorNoise:
    """The noise of one tensor. Tensors that are one in the models have the normals of one."""

    noise: Noise
    normals: Normals


class Noising:
    """Memory that one thread reuses from block to block."""

    def __init__(self, elements: int) -> None:
        self._low = np.empty(elements)
        self._buffers = np.empty((4, BLOCK))
        self._workspace = Workspace()

    def noised_sum(
        self,
        terms: Iterable[tuple[float, Raw]],
        dtype: Dtype,
        scratch: Scratch,
        noise: TensorNoise,
        start: int,
        exactly: Callable[[int], Fraction],
    ) -> Raw:
        """Σ w·x + Z over blocks of one size from element `start` of a tensor on; valid until the next call.

        `exactly` gives the exact average at a place of the block, for the few where doubles do not decide.
        """
        count, models, largest = 0, 0, 0.0
        for models, (weight, raw) in enumerate(terms, 1):
            count = raw.size
            largest += weight * self._add(weight, raw, dtype, scratch, models == 1)
        values, error = scratch.sum[:count], _error(noise.noise, models, largest)
        for begin in range(0, count, BLOCK):
            part = slice(begin, min(begin + BLOCK, count))
            for place in self._round(values[part], self._low[part], dtype, noise, (start + begin) // BLOCK, error):
                step = _exact_step(exactly(begin + place), noise, start + begin + place)
                try:
                    values[begin + place] = float(step * Fraction(noise.noise.spacing))
                except OverflowError:
                    raise NotFinite from None
        if not fits(values, dtype):
            raise NotFinite
        return scratch.narrow(values, dtype)

    def _add(self, weight: float, raw: Raw, dtype: Dtype, scratch: Scratch, first: bool) -> float:
        """Add weight·raw to `scratch.sum` without an error, what the sum loses to `_low`; returns the largest magnitude.

        A weight is 29 bits and 24, a number at most 24, or 24 and 29 for doubles: the product of the leading parts is exact.
        The rest is at most 2⁻²² of the whole, so its rounding is at most 2⁻⁷⁴ of that for each operation.
        """
        leading, rest = _split(weight)
        largest = 0.0
        for begin in range(0, raw.size, BLOCK):
            part = slice(begin, min(begin + BLOCK, raw.size))
            high, low = scratch.sum[part], self._low[part]
            term, product, total, back = self._buffers[:, : high.size]
            scratch.widen(raw[part], dtype, term)
            largest = max(largest, _magnitude(term))
            if first:
                low.fill(0.0)
            if dtype.precision > 24:
                np.bitwise_and(term.view(np.uint64), _HIGH_BITS, out=product.view(np.uint64))
                np.subtract(term, product, out=term)
                np.multiply(term, weight, out=term)
                np.add(low, term, out=low)
                term, product = product, term
            if rest:
                np.multiply(term, rest, out=product)
                np.add(low, product, out=low)
            np.multiply(term, leading, out=high if first else product)
            if first:
                continue
            np.add(high, product, out=total)  # the error of this sum is a double too (Knuth)
            np.subtract(total, high, out=back)
            np.subtract(product, back, out=product)
            np.subtract(total, back, out=back)
            np.subtract(high, back, out=back)
            np.add(product, back, out=product)
            np.add(low, product, out=low)
            np.copyto(high, total)
        return largest

    def _round(self, values: Floats, rest: Floats, dtype: Dtype, noise: TensorNoise, block: int, error: float) -> list[int]:
        """From the average's two parts to h·k, in place of the first; returns the places where doubles do not decide."""
        spacing = noise.noise.spacing
        whole, total, near, off = self._buffers[:, : values.size]
        np.multiply(values, 1 / spacing, out=values)
        np.rint(values, out=whole)
        np.subtract(values, whole, out=total)
        np.multiply(rest, 1 / spacing, out=rest)
        np.add(total, rest, out=total)
        rare: dict[int, float] = {}
        for part, coefficient in zip(noise.noise.parts, noise.noise.coefficients, strict=True):
            for place in self._workspace.add(noise.normals.words(part.node, block), coefficient, total):
                normal, open_by = _refined(noise.normals, part.node, block * BLOCK + place)
                total[place] += coefficient * normal
                rare[place] = rare.get(place, _FAR * error) + coefficient * open_by
        np.rint(total, out=near)
        np.subtract(total, near, out=off)
        np.abs(off, out=off)
        _stored(whole, near, spacing, values)
        close = np.flatnonzero(~(off <= 0.5 - error))
        places = np.concatenate([np.fromiter(rare, np.intp), close])
        bounds = np.concatenate([np.fromiter(rare.values(), np.float64), np.full(close.size, error)])
        # What is stored is decided where it is the same for both ends of the error, since rounding is monotone.
        ends = np.empty((2, places.size))
        for end, sign in zip(ends, (-1, 1), strict=True):
            _stored(whole[places], np.rint(total[places] + sign * bounds), spacing, end)
        low, high = (narrowed(end, dtype).view(f"u{dtype.size}") for end in ends)
        return [int(place) for place in places[(low != high) | ~np.isfinite(ends).all(axis=0)]]


def _refined(normals: Normals, node: int, element: int) -> tuple[float, float]:
    """A normal whose word is too small for the table, and how far the number that it stands for may be."""
    with _ONE_AT_A_TIME:
        mp = _context()
        mp.prec = 112
        normal, off = normals.refined(node, element, 64, mp)
        return float(normal), float(off)


def _stored(whole: Floats, near: Floats, spacing: float, out: Floats) -> None:
    """h·(whole + near); zero has no sign, which would be one of the average's."""
    np.add(whole, near, out=out)
    np.add(out, 0.0, out=out)
    np.multiply(out, spacing, out=out)


def _error(noise: Noise, models: int, largest: float) -> float:
    """How far the doubles of one block may be from the real numbers, in units of the grid."""
    size, reach = largest / noise.spacing, sum(noise.coefficients)
    sums = (len(noise.coefficients) + 8) * 2.0**-52 * (1 + MOST * reach + 2.0**-22 * size)
    return ERROR * reach + sums + models * 2.0**-70 * size


def _magnitude(values: Floats) -> float:
    found = max(float(values.max()), -float(values.min()))
    if not math.isfinite(found):
        raise NotFinite
    return found


def _split(weight: float) -> tuple[float, float]:
    """A weight as its first 29 bits and the rest, which has 24."""
    mantissa, exponent = math.frexp(weight)
    leading = math.ldexp(round(math.ldexp(mantissa, 29)), exponent - 29)
    return leading, weight - leading


def _exact_step(average: Fraction, noise: TensorNoise, element: int) -> int:
    """k, with as many bits of the normals as it takes."""
    whole, rest = divmod(average / Fraction(noise.noise.spacing), 1)
    further = 64
    with _ONE_AT_A_TIME:
        mp = _context()
        while True:
            mp.prec = further + 48
            total = size = mp.mpf(rest.numerator) / rest.denominator
            radius = mp.zero
            for node, coefficient in _exact_coefficients(noise.noise, mp.prec):
                normal, off = noise.normals.refined(node, element, further, mp)
                total += coefficient * normal
                size += coefficient * (1 + abs(normal))
                radius += coefficient * off
            near = mp.nint(total)
            if abs(total - near) + radius + mp.ldexp(1 + size, _GUARD - mp.prec) < 0.5:
                return int(whole) + int(near)
            further *= 2


@lru_cache(maxsize=8)
def _exact_coefficients(noise: Noise, precision: int) -> list[tuple[int, Any]]:
    """Each node with its coefficient in units of the grid; the caller has set this precision."""
    mp = _context()
    squares = [(part.node, part.square / Fraction(noise.spacing) ** 2) for part in noise.parts]
    return [(node, mp.sqrt(mp.mpf(square.numerator) / square.denominator)) for node, square in squares]


@cache
def _context() -> Any:
    """A context of mpmath that nobody else uses."""
    from mpmath.ctx_mp import MPContext

    return MPContext()
