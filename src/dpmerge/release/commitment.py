"""Commitments to files that no guarantee lets anyone publish a digest of (Halevi and Micali 1996; docs/theory.md §5).

Published: SHA-256(x) for a uniform x of 1024 bits, a random Toeplitz matrix h, and digest ⊕ h(x). Without x that is within
2^−256 of independent of the digest, whatever computing power is used; with x it opens, and to nothing else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dpmerge.errors import CertificateError
from dpmerge.files import private_folder, sha256, write_private
from dpmerge.records import Strict, load_strict

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_USUAL = re.compile(r"(model|(pytorch|adapter)_model)(-\d{5}-of-\d{5})?\.(safetensors|bin|pth?)|adapter_config\.json")
_SECRET_BITS, _DIGEST_BITS = 1024, 256
_MATRIX_BITS = _SECRET_BITS + _DIGEST_BITS - 1


class Opening(Strict):
    """What opens a commitment: the digest, and the secret x."""

    sha256: Digest
    secret: Annotated[str, Field(pattern=r"^[0-9a-f]{256}$")]


class Commitment(Strict):
    """What is published about a digest, in hexadecimal digits."""

    hash: Digest
    matrix: Annotated[str, Field(pattern=r"^[0-9a-f]{320}$")]
    masked: Digest

    def opens(self, opening: Opening) -> bool:
        mask = _toeplitz(int(self.matrix, 16), int(opening.secret, 16))
        same = int(self.masked, 16) ^ mask == int(opening.sha256, 16)
        return same and sha256(bytes.fromhex(opening.secret)) == self.hash


def commit(digest: str) -> tuple[Commitment, Opening]:
    x, matrix = secrets.randbits(_SECRET_BITS), secrets.randbits(_MATRIX_BITS)
    opening = Opening(sha256=digest, secret=f"{x:0256x}")
    masked = int(digest, 16) ^ _toeplitz(matrix, x)
    return Commitment(hash=sha256(bytes.fromhex(opening.secret)), matrix=f"{matrix:0320x}", masked=f"{masked:064x}"), opening


def input_names(files: Iterable[str]) -> list[str]:
    """What a certificate calls the files of a model: by number, unless the name is one that every training uses.

    A trainer may write a loss into the name of a checkpoint, and no guarantee covers it.
    """
    return [name if _USUAL.fullmatch(name) else f"file {number}" for number, name in enumerate(files, 1)]


class Openings(Strict):
    """What opens a certificate's commitments, by model and file; stays with the private portfolio."""

    openings: dict[str, dict[str, Opening]]

    @staticmethod
    def path(portfolio: Path, certificate: str) -> Path:
        """Where they are kept, by the hash of the certificate: in a folder that no portfolio takes for a model."""
        return portfolio / ".dpmerge" / "openings" / f"{certificate}.json"

    @classmethod
    def load(cls, path: Path) -> Openings:
        return load_strict(cls, path, CertificateError, "it was written into the portfolio when the release was made")

    def keep(self, path: Path) -> None:
        """Write the file, readable by its owner alone."""
        private_folder(path.parent)
        write_private(self.model_dump_json().encode(), path)


def _toeplitz(matrix: int, x: int) -> int:
    """The matrix with entries m_{i+j} times x over GF(2): bit i is the parity of (matrix >> i) & x."""
    result = 0
    for row in range(_DIGEST_BITS):
        result |= (((matrix >> row) & x).bit_count() & 1) << row
    return result
