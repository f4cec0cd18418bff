"""SHA-256 of files while their blocks pass by, so that what is hashed is what was used and nothing is read twice."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import TensorFile
from dpmerge.tensors.safetensors_file import SafetensorsFile

THREADS = min(4, os.cpu_count() or 1)
_CHUNK = 1 << 17  # what was just read is still in the cache when it is hashed
T = TypeVar("T")
R = TypeVar("R")


class Stopped(Exception):
    """Another thread failed; this one need not go on."""


class PassingDigest:
    """The digest of a file whose blocks come from several threads: each waits until its offset is due.

    Blocks are handed out in the order of the file, so the thread with the earliest block never waits.
    """

    def __init__(self, beginning: bytes, size: int, stop: threading.Event) -> None:
        self._hash = hashlib.sha256(beginning)
        self._taken, self._size = len(beginning), size
        self._turn = threading.Condition()
        self._stop = stop

    def update(self, offset: int, block: memoryview) -> None:
        with self._turn:
            while self._taken != offset:
                if self._stop.is_set():
                    raise Stopped
                self._turn.wait(0.1)
        self._hash.update(block)
        with self._turn:
            self._taken += len(block)
            self._turn.notify_all()

    def hexdigest(self) -> str:
        assert self._taken == self._size, "not every block has passed by"
        return self._hash.hexdigest()


def passing_digest(file: TensorFile, order: Sequence[str], stop: threading.Event) -> PassingDigest | None:
    """A digest for a file whose tensors will be read in this order of names; None if that is not the file's own order."""
    in_file = {tensor.name: None for tensor in file.tensors if tensor.nbytes}
    if not isinstance(file.source, SafetensorsFile) or list(in_file) != [name for name in order if name in in_file]:
        return None
    return PassingDigest(file.source.bytes(0, file.source.data_start), file.source.size, stop)


def in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The function of each item, in order. Hashing, reading and numpy let other threads run."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, items))


def file_digest(path: Path) -> str:
    """The SHA-256 of a whole file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read: {fault.strerror}") from None


def folder_digest(folder: Path, name: str, *, without: str = "") -> bytes:
    """The names and digests of all files of a model's folder, as bytes to hash."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != without)
    return "".join(f"{name}/{path.name} {file_digest(path)}\n" for path in paths).encode()


def source_digest(file: TensorFile) -> str:
    """The SHA-256 of an opened file, through the same descriptor its tensors were read from where there is one."""
    if not isinstance(file.source, SafetensorsFile):
        return file_digest(file.path)
    digest = hashlib.sha256()
    for offset in range(0, file.source.size, _CHUNK):
        digest.update(file.source.bytes(offset, min(_CHUNK, file.source.size - offset)))
    return digest.hexdigest()
