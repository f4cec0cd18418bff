"""One pass over a model's files, before it is merged: what its tensors are, what its file is, and how coarse its numbers."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from dpmerge.tensors.checkpoint import Checkpoint, Source, Tensor
from dpmerge.tensors.digests import THREADS, PassingDigest, Stopped, passing_digest
from dpmerge.tensors.dtypes import Raw, coarsest
from dpmerge.tensors.opening import open_model
from dpmerge.tensors.safetensors_file import FileState, SafetensorsFile

_CHUNK = 1 << 23  # bytes. Accounting runs beside: with small chunks, each would wait for the interpreter to be free
_SETTLED = 2e9  # nanoseconds after which a second write to a file shows in its times


@dataclass(frozen=True)
class Survey:
    """What was read of a model.

    `content` is the SHA-256 of its tensors by name, whatever the files are that hold them: their formats, shapes and bytes.
    `spacing` is how far its floating-point numbers lie apart at the largest; infinite if one of them is not finite.
    `files` are digests of files that were read in their own order, each with the state in which the file was.
    """

    content: str
    spacing: float
    files: Mapping[str, tuple[FileState, str]]

    @classmethod
    def of(cls, folder: Path, name: str | None = None, stop: threading.Event | None = None) -> Survey:
        stop = stop or threading.Event()
        content, widest, buffer = hashlib.sha256(), 0.0, np.empty(_CHUNK, np.uint8)
        with open_model(folder, name) as model:
            tensors = [tensor for _, tensor in sorted(model.tensors.items())]
            passing = _Passing.of(model, [tensor.name for tensor in tensors], stop)
            for tensor in tensors:
                # A length before each part, so that no two models are the same sequence of bytes.
                head = json.dumps([tensor.name, tensor.dtype.name, list(tensor.shape), tensor.nbytes]).encode()
                content.update(len(head).to_bytes(8, "big") + head)
                for offset, raw in _chunks(tensor, buffer, stop):
                    block = raw.data.cast("B")
                    content.update(block)
                    if tensor.source in passing:
                        passing[tensor.source].digest.update(offset, block)
                    if tensor.dtype.floating:
                        widest = max(widest, coarsest(raw, tensor.dtype))
            files = {source.path.name: (one.state, one.digest.hexdigest()) for source, one in passing.items() if one.holds}
        return cls(content.hexdigest(), widest, files)


@dataclass(frozen=True)
class _Passing:
    """A file that is hashed while its tensors are read, and the state it was in before."""

    source: SafetensorsFile
    state: FileState
    digest: PassingDigest

    @classmethod
    def of(cls, model: Checkpoint, order: Sequence[str], stop: threading.Event) -> dict[Source, _Passing]:
        """The files whose tensors lie in this order; not one just written to, whose times may not show the next write."""
        found: dict[Source, _Passing] = {}
        for file in model.files:
            digest = passing_digest(file, order, stop)
            if digest is not None and isinstance(file.source, SafetensorsFile):
                state = file.source.state
                if time.time_ns() - state.changed > _SETTLED:
                    found[file.source] = cls(file.source, state, digest)
        return found

    @property
    def holds(self) -> bool:
        return self.source.state == self.state


def _chunks(tensor: Tensor, buffer: Raw, stop: threading.Event) -> Iterator[tuple[int, Raw]]:
    """The tensor's bytes, each part with its offset in the source; a part is valid until the next."""
    step = buffer.size // tensor.dtype.size
    for start in range(0, tensor.size, step):
        if stop.is_set():
            raise Stopped
        offset = tensor.offset + start * tensor.dtype.size
        part = buffer[: min(step, tensor.size - start) * tensor.dtype.size]
        tensor.source.read(offset, part.data)
        yield offset, part.view(tensor.dtype.storage)


def content_digest(folder: Path, name: str | None = None) -> str:
    """The SHA-256 of a model's tensors."""
    return Survey.of(folder, name).content


class Surveys:
    """Surveys of several models, each made once, in threads beside the accounting. Leaving the block ends what still runs."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS)
        self._begun: dict[str, Future[Survey]] = {}

    def begin(self, names: Iterable[str]) -> Self:
        for name in names:
            if name not in self._begun:
                self._begun[name] = self._pool.submit(Survey.of, self._folders[name], name, self._stop)
        return self

    def __getitem__(self, name: str) -> Survey:
        return self.begin([name])._begun[name].result()

    def files(self, names: Iterable[str]) -> dict[str, Mapping[str, tuple[FileState, str]]]:
        """Of those models that were surveyed: the digests of their files."""
        return {name: self[name].files for name in names if name in self._begun}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
