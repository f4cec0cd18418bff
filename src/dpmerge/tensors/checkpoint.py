"""What a checkpoint is to a merge: named tensors that are read block by block, whatever file format they come from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np

from dpmerge.tensors.dtypes import Dtype, Floats, Raw, widened

Layout = Literal["safetensors", "sharded", "lora", "pytorch"]


class Source(Protocol):
    """Where a tensor's bytes lie."""

    @property
    def path(self) -> Path: ...

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `offset` on."""


@dataclass(frozen=True, eq=False)
class Header:
    """What is known of a tensor without its values."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.size


@dataclass(frozen=True, eq=False)
class Tensor(Header):
    """One named tensor of one model; nothing is read before it is asked for."""

    model: str
    source: Source
    offset: int  # in bytes, in the source

    def part(self, start: int, count: int) -> Raw:
        """`count` elements from `start` on, as they are stored."""
        raw = np.empty(count, self.dtype.storage)
        if count:
            self.source.read(self.offset + start * self.dtype.size, raw.data.cast("B"))
        return raw

    def load(self) -> Raw:
        """The whole tensor as it is stored."""
        return self.part(0, self.size).reshape(self.shape)

    def values(self) -> Floats:
        """The whole tensor as float64."""
        return widened(self.load(), self.dtype)

    def __str__(self) -> str:
        return f"model {self.model!r}, file {self.source.path.name}, tensor {self.name!r}"


@dataclass(frozen=True, eq=False)
class TensorFile:
    """One file of an opened model: its tensors in the order of the file, and its safetensors metadata."""

    path: Path
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]
    source: Source | None  # None where the tensors of a PyTorch file each have their own

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class Checkpoint:
    """An opened model: use it in a `with` block, which closes its files."""

    model: str
    folder: Path
    layout: Layout
    files: tuple[TensorFile, ...]
    adapter: Mapping[str, Any] = field(default_factory=dict)  # adapter_config.json of a LoRA adapter
    ties: frozenset[frozenset[str]] = frozenset()  # names that share memory in a PyTorch file
    overlaps: tuple[tuple[str, str], ...] = ()  # names that share part of it, or all in another order
    notes: tuple[str, ...] = ()
    closes: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)  # open files

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, in the order of the files."""
        return {tensor.name: tensor for file in self.files for tensor in file.tensors}

    @property
    def released_names(self) -> tuple[str, ...]:
        """What the files are called in a model made of this one. Its own names never go out: they may hold a loss."""
        if self.layout == "sharded":
            count = len(self.files)
            return tuple(f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1))
        return ("adapter_model.safetensors" if self.layout == "lora" else "model.safetensors",)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closes.close()
