"""Standard normals as real numbers: doubles with an error bound, and as many bits more as anybody asks for.

ξ = Φ⁻¹(U) for a uniform real U, whose bits come from ChaCha20 with a key of its own for every node, tensor and block: the same
numbers on every machine, in any order. A 64-bit word gives the sign and the first 63 bits of the tail's probability p < ½; the
bits that follow are another stream's, asked for only where a rounding depends on them (docs/theory.md §9.6).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmerge.tensors.dtypes import Floats

BLOCK = 1 << 16  # words of one stream; part of the definition of the noise, so it never changes
MOST = 5.1  # at most, |ξ| where the bound below holds
ERROR = 2.0**-45  # of a double here (docs/theory.md §9.6)
_RARE = 1 << 43  # a word below has p < 2⁻²¹: the bound does not hold, and the number is left to `refined`
_SIGN, _BITS = np.uint64(1 << 63), np.uint64((1 << 63) - 1)
# Of a double: the bits that name a piece of the table, 1024 in each octave from 2⁴² on, and the middle of a piece.
_PIECE, _FIRST, _MIDDLE = 42, (1023 + 42) << 10, 1 << 41
_GUARD = 20  # bits that mpmath may lose
_NORMAL = NormalDist()  # as good as scipy's quantile, which takes longer to load than ten million normals


@dataclass(frozen=True)
class Normals:
    """The normals of one path and one tensor."""

    seed: bytes = field(repr=False)
    tensor: str

    def words(self, node: int, block: int, first: int = 0) -> Any:
        """The stream of a block's words, from a multiple of 8 on."""
        return _stream(self._subkey(b"words", node, block), first // 8)

    def refined(self, node: int, element: int, further: int, mp: Any) -> tuple[Any, Any]:
        """ξ from 64 + `further` bits, and how far it may be from the real number; at the precision of an mpmath context."""
        block, place = divmod(element, BLOCK)
        first = bytearray(64)
        self.words(node, block, place).update_into(bytes(64), first)
        word = int.from_bytes(first[place % 8 * 8 :][:8], "little")
        more = _stream(self._subkey(b"further", node, element), 0).update(bytes(further // 8))
        low = (word & int(_BITS)) << further | int.from_bytes(more, "big")
        if low == 0:
            return mp.zero, mp.inf
        # The tail's p lies between low and low + 1 units; φ ≥ 0.79 p there, so Φ⁻¹ moves by less than 1/low.
        tail = mp.ldexp(mp.mpf(2 * low + 1), -65 - further)
        found = _upper_quantile(tail, mp)
        return (-found if word >> 63 else found), mp.one / low + mp.ldexp(1 + found, _GUARD - mp.prec)

    def _subkey(self, use: bytes, node: int, place: int) -> bytes:
        message = node.to_bytes(8, "little", signed=True) + place.to_bytes(8, "little") + self.tensor.encode()
        return hashlib.blake2b(message, digest_size=32, key=self.seed, person=b"dpmerge " + use).digest()


class Workspace:
    """Memory that one thread reuses for the doubles of a block."""

    def __init__(self) -> None:
        self._nothing = bytes(8 * BLOCK)
        self._words = np.empty((2, BLOCK), np.uint64)
        self._places = np.empty(BLOCK, np.int64)
        self._doubles = np.empty((3, BLOCK))

    def add(self, stream: Any, coefficient: float, total: Floats) -> list[int]:
        """Add coefficient·ξ of a stream's first words to `total`, but for the places it returns, whose words are too small."""
        count = total.size
        words, bits = self._words[:, :count]
        stream.update_into(memoryview(self._nothing)[: 8 * count], words.view(np.uint8))
        np.bitwise_and(words, _BITS, out=bits)
        normals = self._upper_quantiles(bits.view(np.int64))
        np.multiply(normals, coefficient, out=normals)
        np.bitwise_and(words, _SIGN, out=words)
        np.bitwise_xor(normals.view(np.uint64), words, out=normals.view(np.uint64))
        rare = np.flatnonzero(bits < _RARE) if bits.min() < _RARE else np.empty(0, np.intp)
        normals[rare] = 0.0
        np.add(total, normals, out=total)
        return rare.tolist()

    def _upper_quantiles(self, tails: NDArray[np.int64]) -> Floats:
        """x with 1 − Φ(x) = (tails + ½)·2⁻⁶⁴: the cubic of the piece in which each lies. Valid until the next call."""
        found: Floats
        offset, found, coefficient = self._doubles[:, : tails.size]
        places = self._places[: tails.size]
        np.copyto(offset, tails)
        bits, middle = offset.view(np.int64), found
        np.right_shift(bits, _PIECE, out=places)
        np.subtract(places, _FIRST, out=places)
        np.bitwise_and(bits, -2 * _MIDDLE, out=middle.view(np.int64))
        np.bitwise_or(middle.view(np.int64), _MIDDLE, out=middle.view(np.int64))
        np.subtract(offset, middle, out=offset)
        highest, *lower = _cubics()
        np.take(highest, places, out=found, mode="clip")
        for table in lower:
            np.multiply(found, offset, out=found)
            np.take(table, places, out=coefficient, mode="clip")
            np.add(found, coefficient, out=found)
        return found


@cache
def _cubics() -> Floats:
    """The Taylor polynomials of the upper quantile at the middles of all pieces, highest coefficients first.

    Each is moved by half a unit: a word stands for all p between it and the next one.
    """
    bits = np.arange(_FIRST, _FIRST + (22 << 10)) << _PIECE | _MIDDLE
    x = np.array([_tail_quantile(p) for p in (bits.view(np.float64) * 2.0**-64).tolist()])
    slope = -(2.0**-64) * np.sqrt(2 * np.pi) * np.exp(x * x / 2)  # dx/dp = −1/φ(x), and d/dp of that again and again
    return np.stack([slope**3 * (1 + 2 * x * x) / 6, slope**2 * x / 2, slope, x + slope / 2])


def _tail_quantile(tail: float) -> float:
    """x with 1 − Φ(x) = tail, in doubles: Python's quantile, and a step by its complementary error function, which is finer."""
    found = -_NORMAL.inv_cdf(tail)
    return found + (math.erfc(found * math.sqrt(0.5)) / 2 - tail) * math.sqrt(2 * math.pi) * math.exp(found * found / 2)


def _stream(key: bytes, counter: int) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, counter.to_bytes(16, "little")), None).encryptor()


def _upper_quantile(tail: Any, mp: Any) -> Any:
    """x with 1 − Φ(x) = tail, from a double by steps that triple the correct digits."""
    found = mp.mpf(_tail_quantile(float(tail)))
    half = mp.sqrt(mp.mpf(0.5))
    scale = mp.sqrt(mp.pi) * half
    while True:
        step = (mp.erfc(found * half) - 2 * tail) * scale * mp.exp(found * found / 2)
        found += step + found * step**2 / 2
        if abs(step) < mp.ldexp(1, -(mp.prec // 3) - 4):
            return found
