"""The safetensors format: a strict reader of headers and blocks, and the header of a new file.

A file is data from elsewhere: 8 bytes of header length, a JSON header, then the tensors, one after another, without gaps.
Written here rather than taken from the library because blocks are read into one small buffer: the library maps whole files.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Header, Tensor, TensorFile
from dpmerge.tensors.dtypes import DTYPES, Dtype
from dpmerge.tensors.strict_files import parse_object

_MOST_HELD = 256  # descriptors, of whatever, beside which a file stays open
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # how a file begins that stands for one which was not fetched
_LONGEST_HEADER = 100_000_000  # the format's own limit
_MOST_DIMENSIONS = 32  # numpy's limit; also, the product of a million large numbers takes minutes
_KEYS = {"dtype", "shape", "data_offsets"}


class FileState(NamedTuple):
    """By which one tells that a file was written to, or is another."""

    device: int
    number: int
    size: int
    written: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class SafetensorsFile:
    """An open file; a `Source` of tensors. Its header has been checked when it exists.

    Where many are open already, a file is opened anew for each block, and must be as it was: models may have hundreds of shards
    each, and a process 1024 descriptors.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self._where = f"model {model!r}, file {path.name}"
        self._descriptor: int | None = self._open()
        try:
            self._first_state = FileState.of(os.fstat(self._descriptor))
            self.size = self._first_state.size
            self.data_start, header = self._header()
            self.metadata = _metadata(header.pop("__metadata__", {}), self._where)
            self.tensors = self._tensors(model, header)
        except BaseException:
            self._close()
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_HELD if limit == resource.RLIM_INFINITY else min(_MOST_HELD, limit // 2)
        if self._descriptor >= most:  # the system gives the smallest number that is free: so many are in use
            self._close()

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as fault:
            raise CheckpointError(f"{self._where}: cannot be opened: {fault.strerror}") from None

    @contextmanager
    def _opened(self) -> Iterator[int]:
        if self._descriptor is not None:
            yield self._descriptor
            return
        descriptor = self._open()
        try:
            if FileState.of(os.fstat(descriptor)) != self._first_state:
                raise CheckpointError(f"{self._where}: was written to while it was read; use it again when it is finished")
            yield descriptor
        finally:
            os.close(descriptor)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `offset` on."""
        done = 0
        with self._opened() as descriptor:
            while done < len(into):
                try:
                    count = os.preadv(descriptor, [into[done:]], offset + done)
                except OSError as fault:
                    raise CheckpointError(f"{self._where}: cannot be read: {fault.strerror}") from None
                if count == 0:
                    raise CheckpointError(f"{self._where}: became shorter while it was read")
                done += count

    @property
    def state(self) -> FileState:
        return FileState.of(os.stat(self.path) if self._descriptor is None else os.fstat(self._descriptor))

    def as_tensor_file(self) -> TensorFile:
        """This file as one of a checkpoint's."""
        return TensorFile(self.path, self.tensors, self.metadata, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def bytes(self, offset: int, length: int) -> bytes:
        buffer = bytearray(length)
        self.read(offset, memoryview(buffer))
        return bytes(buffer)

    def _header(self) -> tuple[int, dict[str, Any]]:
        if self.size < 8:
            raise CheckpointError(f"{self._where}: {self.size} bytes are not a safetensors file")
        length = int.from_bytes(self.bytes(0, 8), "little")
        if self.bytes(0, min(self.size, len(LFS_POINTER))) == LFS_POINTER:
            raise CheckpointError(f"{self._where}: is a pointer of Git LFS in the file's place; git lfs pull fetches the file")
        if length > _LONGEST_HEADER or length > self.size - 8:
            raise CheckpointError(
                f"{self._where}: says its header has {length} bytes, which is impossible; the file is damaged"
            )
        text = self.bytes(8, length)
        if not text.startswith(b"{"):
            raise CheckpointError(f"{self._where}: not a safetensors file: its header is not a JSON object")
        return 8 + length, parse_object(text, f"{self._where}, header")

    def _tensors(self, model: str, header: dict[str, Any]) -> tuple[Tensor, ...]:
        spans = []
        for name, entry in header.items():
            where = f"{self._where}, tensor {name!r}"
            dtype, shape, begin, end = _entry(entry, where)
            if end - begin != prod(shape) * dtype.size:
                raise CheckpointError(
                    f"{where}: {end - begin} bytes cannot hold {dtype.name} of shape {list(shape)}; the file is damaged"
                )
            spans.append((begin, end, Tensor(name, dtype, shape, model, self, self.data_start + begin)))
        spans.sort(key=lambda span: span[:2])
        position = 0
        for begin, end, tensor in spans:
            if begin != position:
                fault = "overlaps the tensor before it" if begin < position else "leaves a gap before it"
                raise CheckpointError(f"{tensor}: {fault}; the file is damaged")
            position = end
        if self.data_start + position != self.size:
            raise CheckpointError(
                f"{self._where}: its tensors end at byte {self.data_start + position}, the file at {self.size}; it is damaged"
            )
        return tuple(tensor for _, _, tensor in spans)


def _entry(entry: Any, where: str) -> tuple[Dtype, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != _KEYS:
        raise CheckpointError(f"{where}: its header entry must have dtype, shape and data_offsets, and nothing else")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: shape {shape!r:.80} with offsets {offsets!r:.80} is impossible; the file is damaged")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise CheckpointError(
            f"{where}: dtype {entry['dtype']!r:.40} is not supported; convert the model to one of {', '.join(DTYPES)}"
        )
    return DTYPES[entry["dtype"]], tuple(shape), offsets[0], offsets[1]


def _counts(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= _MOST_DIMENSIONS
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def _metadata(given: Any, where: str) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise CheckpointError(f"{where}: __metadata__ must map text to text")
    return given


def header_bytes(tensors: Sequence[Header], metadata: Mapping[str, str]) -> tuple[bytes, list[int]]:
    """The beginning of a new file with these tensors, and the offset of each in it. Data is aligned to 8 bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    begins, position = [], 0
    for tensor in tensors:
        begins.append(position)
        position += tensor.nbytes
        offsets = [begins[-1], position]
        header[tensor.name] = {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, [start + begin for begin in begins]
