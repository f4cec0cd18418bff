"""What a run begins with, and which part of the data it sees: a private checkpoint, a shard (docs/theory.md §10)."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import CheckpointError, TrainingError
from dpmerge.files import private_folder, write_private
from dpmerge.records import DataFingerprint, DpSgd, Record, Shard, StartsFrom
from dpmerge.tensors import content_digest
from dpmerge.training.saving import Tensors

_KEY_BYTES = 32


@dataclass(frozen=True)
class Start:
    """A private checkpoint to begin with: its tensors, and what a record says of it."""

    tensors: Tensors
    said: StartsFrom

    @classmethod
    def read(
        cls, folder: Path, dataset: str, data_fingerprint: DataFingerprint | None = None, shard: Shard | None = None
    ) -> Start:
        """From a model's folder. Its record must be of DP-SGD on the same data."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        said = Kept.read(folder).start_on(dataset, data_fingerprint, shard)
        try:
            return cls(load_file(folder / "model.safetensors"), said)
        except (OSError, SafetensorError) as fault:
            raise TrainingError(f"{folder / 'model.safetensors'}: cannot be read: {fault}") from None

    def shaped(self, shapes: dict[str, tuple[int, ...]]) -> Tensors:
        """The tensors, if they have these names and shapes."""
        found = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        if found != shapes:
            raise TrainingError(
                f"step {self.said.step} of run {self.said.run!r} has the tensors {found}; who starts from it has {shapes}"
            )
        return self.tensors


@dataclass(frozen=True)
class Kept:
    """A model's folder as it was when it was read: its record, and the digest of its tensors."""

    folder: Path
    record: Record
    digest: str

    @classmethod
    def read(cls, folder: Path) -> Kept:
        record = Record.load(folder / "record.json")
        try:
            return cls(folder.resolve(), record, content_digest(folder))
        except CheckpointError as fault:
            raise TrainingError(f"{folder}: cannot be started from: {fault}") from None

    def start_on(self, dataset: str, data_fingerprint: DataFingerprint | None = None, shard: Shard | None = None) -> StartsFrom:
        """What the record of a run on these data, or this part of them, says that starts from it."""
        held, folder = self.record, self.folder
        if not isinstance(held.mechanism, DpSgd):
            raise TrainingError(f"{folder}: a {held.mechanism.kind} record; runs start from models of dp-sgd")
        if (held.dataset, held.adjacency) != (dataset, "add-remove"):
            raise TrainingError(
                f"{folder}: a model of {held.dataset!r} for {held.adjacency} neighbours; a run on {dataset!r} is recorded for "
                "add-remove ones, and its record can only count a start on the same data for the same neighbours"
            )
        known, now = held.data_fingerprint, data_fingerprint
        if known and now and (known.key, held.mechanism.shard) == (now.key, shard) and known.value != now.value:
            raise TrainingError(
                f"{folder}: a model of {dataset!r} whose data have another fingerprint than this run's (key {now.key}): the "
                "data have changed, and a record can only count a start on the same data"
            )
        run, step = held.mechanism.run, held.mechanism.steps
        return StartsFrom(run=run, step=step, digest=self.digest, mechanism=held.mechanism, source=held.source)


def starts_from(folder: Path, dataset: str) -> StartsFrom:
    """What the record of a run says that starts from the model in this folder."""
    return Kept.read(folder).start_on(dataset)


@dataclass(frozen=True)
class Origin:
    """Of a run: where it starts, if not from public parameters, and its part of the data, if not all of them.

    `examples` is the public number of examples by which updates are divided; a part's own size is not.
    """

    start: Start | None = None
    shard: Shard | None = None
    examples: float | None = None

    def __post_init__(self) -> None:
        if self.shard is not None and self.examples is None:
            raise TrainingError("a part's own size is private: give examples, the public number of examples in a part (N/k)")

    @property
    def said(self) -> dict[str, Any]:
        """What the record says of it."""
        return {
            "starts_from": None if self.start is None else self.start.said.model_dump(mode="json"),
            "shard": None if self.shard is None else self.shard.model_dump(mode="json"),
        }


PUBLIC = Origin()


@dataclass(frozen=True)
class Partition:
    """A division of the data into parts: its id, which records show, and its key, which is secret."""

    id: str
    key: bytes
    parts: int

    @classmethod
    def kept(cls, folder: Path, parts: int, data: str) -> Partition:
        """The partition of a portfolio into so many parts: made once, and kept beside unfinished models, as private as they.

        `data` is the digest of the data. Parts go by rows: in other data a row is another record, which one part of the old
        and another of the new data might hold, and guarantees would count it in one alone (docs/theory.md §10).
        """
        path = folder / f"{parts}-parts.json"
        private_folder(folder)
        fresh = {"partition": secrets.token_hex(8), "key": secrets.token_hex(_KEY_BYTES), "data": data}
        try:
            write_private(json.dumps(fresh).encode(), path)
        except FileExistsError:
            try:
                held = json.loads(path.read_text(encoding="utf-8"))
                found, divided = cls(str(held["partition"]), bytes.fromhex(held["key"]), parts), str(held["data"])
            except (OSError, ValueError, KeyError, TypeError) as fault:
                raise TrainingError(f"{path}: the key of the data's parts cannot be read: {fault!r}") from None
            if divided != data:
                raise TrainingError(
                    f"{path}: the data have changed since they were divided into these {parts} parts. Train into another "
                    "folder, or remove this file: models that are trained from then on belong to a new partition"
                ) from None
            return found
        return cls(fresh["partition"], bytes.fromhex(fresh["key"]), parts)

    def rows(self, part: int, examples: int) -> npt.NDArray[np.int64]:
        """The examples of a part. Under a secret key this is a fair draw for each, whatever their order is."""
        key = hmac.digest(self.key, self.id.encode(), hashlib.sha256)  # of this partition, whoever else has the key
        return np.flatnonzero(shard_of(range(examples), key, self.parts) == part)

    def shard(self, part: int) -> Shard:
        return Shard(partition=self.id, part=part, of=self.parts, assignment="fair-draw")


def shard_of(ids: Iterable[str | int | bytes], key: bytes, parts: int) -> npt.NDArray[np.int64]:
    """The part, from 1 to `parts`, of each record with these ids: HMAC-SHA256 under a secret key of 32 bytes or more.

    Ids name records, one or more for each, and must not be made of what a record contains. Draw the key freshly for each
    partition (`secrets.token_bytes(32)`), keep it secret, and use it for all models of the partition. Under one key, divisions
    into different numbers of parts are independent; two into equally many are the same.

    >>> shard_of(["anna", "ben", "carl"], b"\\0" * 32, 5).tolist()
    [2, 3, 5]
    """
    if len(key) < _KEY_BYTES:
        raise TrainingError(f"a key of {len(key)} bytes can be guessed, and then parts be chosen; use secrets.token_bytes(32)")
    if parts < 2:
        raise TrainingError(f"the data are divided into 2 parts or more, not {parts}")
    marks = (hmac.digest(key, b"%d:" % parts + _named(one), hashlib.sha256) for one in ids)
    return np.array([int.from_bytes(mark) % parts + 1 for mark in marks], dtype=np.int64)


def _named(identity: object) -> bytes:
    """Different ids of one type have different bytes, and so have those of different types."""
    if isinstance(identity, bytes):
        return b"b" + identity
    if isinstance(identity, str):
        return b"s" + identity.encode("utf-8", "surrogatepass")
    if isinstance(identity, int | np.integer) and not isinstance(identity, bool):
        return b"i%d" % int(identity)
    raise TrainingError(
        f"an id is text, a whole number or bytes, not {type(identity).__name__}: a record's part must not depend on its content"
    )
