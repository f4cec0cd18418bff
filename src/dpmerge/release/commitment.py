"""Commitments to files that no guarantee lets anyone publish a digest of (Halevi and Micali 1996; docs/theory.md §5).

Published: SHA-256(x) for a uniform x of 1024 bits, a random Toeplitz matrix h, and digest ⊕ h(x). Without x that is within
2^−256 of independent of the digest, whatever computing power is used; with x it opens, and to nothing else.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from dpmerge.release.canonical import sha256

_SECRET_BITS, _DIGEST_BITS = 1024, 256
_MATRIX_BITS = _SECRET_BITS + _DIGEST_BITS - 1


@dataclass(frozen=True)
class Commitment:
    """What is published about a digest, in hexadecimal digits."""

    hash: str
    matrix: str
    masked: str

    def opens(self, secret: str, digest: str) -> bool:
        """Whether this is a commitment to `digest`, by the secret kept for it."""
        try:
            x = int(secret, 16)
            mask = _toeplitz(int(self.matrix, 16), x)
            return sha256(_bytes(x)) == self.hash and int(self.masked, 16) ^ mask == int(digest, 16)
        except (ValueError, OverflowError):
            return False


def commit(digest: str) -> tuple[Commitment, str]:
    """A commitment to a SHA-256 digest, and the secret that opens it."""
    x, matrix = secrets.randbits(_SECRET_BITS), secrets.randbits(_MATRIX_BITS)
    masked = int(digest, 16) ^ _toeplitz(matrix, x)
    return Commitment(sha256(_bytes(x)), f"{matrix:x}", f"{masked:064x}"), f"{x:0256x}"


def _bytes(x: int) -> bytes:
    return x.to_bytes(_SECRET_BITS // 8, "big")


def _toeplitz(matrix: int, x: int) -> int:
    """The matrix with entries m_{i+j} times x over GF(2): bit i is the parity of (matrix >> i) & x."""
    result = 0
    for row in range(_DIGEST_BITS):
        result |= (((matrix >> row) & x).bit_count() & 1) << row
    return result
