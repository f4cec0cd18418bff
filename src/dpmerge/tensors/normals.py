"""Standard normals as real numbers: doubles with an error bound, and as many bits more as anybody asks for.

ξ = Φ⁻¹(U) for a uniform real U, whose bits come from ChaCha20 with a key of its own for every node, tensor and block: the same
numbers on every machine, in any order. A 64-bit word gives the sign and the first 63 bits of the tail's probability p < ½; the
bits that follow are another stream's, asked for only where a rounding depends on them (docs/theory.md §9.6).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmerge.tensors.dtypes import Floats

BLOCK = 1 << 16  # words of one stream; part of the definition of the noise, so it never changes
MOST = 5.1  # |ξ| where the bound below holds
ERROR = 2.0**-43  # of a double here: truncation of U at most 2⁻⁴⁴, scipy's ndtri below 2⁻⁴⁹ wherever it was measured
_RARE = 1 << 42  # a word below has p < 2⁻²²: the bound does not hold, and the number is left to `refined`
_BITS = np.uint64((1 << 63) - 1)
_GUARD = 20  # bits that mpmath may lose


@dataclass(frozen=True)
class Normals:
    """The normals of one key and one tensor."""

    key: bytes = field(repr=False)
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
        return hashlib.blake2b(message, digest_size=32, key=self.key, person=b"dpmerge " + use).digest()


class Workspace:
    """Memory that one thread reuses for doubles."""

    def __init__(self, elements: int) -> None:
        self._nothing = bytes(8 * elements)
        self._words = np.empty(elements, np.uint64)
        self._bits = np.empty(elements, np.uint64)
        self._values = np.empty(elements)

    def add(self, stream: Any, coefficient: float, total: Floats) -> NDArray[np.intp]:
        """Add coefficient·ξ of the stream's next words to `total`; returns the places whose words are too small for doubles."""
        from scipy.special import ndtri

        count = total.size
        words, bits, values = self._words[:count], self._bits[:count], self._values[:count]
        stream.update_into(memoryview(self._nothing)[: 8 * count], words.view(np.uint8))
        np.bitwise_and(words, _BITS, out=bits)
        np.copyto(values, bits.view(np.int64))
        np.multiply(values, 2.0**-64, out=values)
        ndtri(values, out=values)
        np.multiply(values, coefficient, out=values)
        np.copysign(values, words.view(np.float64), out=values)
        np.add(total, values, out=total)
        return np.flatnonzero(bits < _RARE) if bits.min() < _RARE else np.empty(0, np.intp)


def _stream(key: bytes, counter: int) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, counter.to_bytes(16, "little")), None).encryptor()


def _upper_quantile(tail: Any, mp: Any) -> Any:
    """x with 1 − Φ(x) = tail, from a double by steps that triple the correct digits."""
    from scipy.special import ndtri

    found = mp.mpf(-float(ndtri(float(tail))))
    while True:
        step = (mp.erfc(found / mp.sqrt(2)) / 2 - tail) / mp.npdf(found)
        found += step + found * step**2 / 2
        if abs(step) < mp.ldexp(1, -(mp.prec // 3) - 4):
            return found
