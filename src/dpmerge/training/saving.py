"""A trained model as a folder of a portfolio: its tensors and the record of what was run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import CheckpointError
from dpmerge.files import private_folder, write_private
from dpmerge.records import Record
from dpmerge.tensors import Tensor, header_bytes, new_folder, open_model, temporary_folder

Tensors = Mapping[str, npt.NDArray[Any]]
_RECORD = "record.json"
# What would make a folder that of another model, or of two; what trainers leave beside a model is no model.
_MODEL = re.compile(
    r".*\.(safetensors|bin|pth?|ckpt|np[zy]|h5|msgpack|gguf|onnx)|.*\.(safetensors|bin)\.index\.json"
    r"|adapter_config\.json|record\.json|certificate\.json"
)
_LEFTOVERS = re.compile(r"(optimizer|scheduler|scaler|training_args).*|(rng|random)_states?.*")


@dataclass(frozen=True)
class Checkpoint:
    """A model after `step` steps, and the record of the run up to there."""

    step: int
    tensors: Tensors = field(repr=False)
    record: Record
    config: str | None = None  # the text of config.json, where there is one: public settings only

    def save(self, folder: Path) -> None:
        save_model(folder, self.tensors, self.record, self.config)


def save_model(folder: Path, tensors: Tensors, record: Record, config: str | None = None) -> None:
    """Write `model.safetensors` and `record.json` into a new folder, which appears whole; and perhaps `config.json`."""
    from safetensors.numpy import save_file

    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    _make_parent(folder)
    with new_folder(folder, private=True) as made:
        save_file(contiguous, made / "model.safetensors", metadata={"format": "pt"})
        if config is not None:
            (made / "config.json").write_text(config, encoding="utf-8")
        _write_record(made, record)


def save_torch_model(folder: Path, tensors: Mapping[str, Any], record: Record) -> None:
    """The same for torch tensors, each in memory of its own, also into a folder that holds no model yet."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with recorded_folder(folder, record) as made:
        try:
            save_file(dict(tensors), made / "model.safetensors", metadata={"format": "pt"})
        except (SafetensorError, ValueError, RuntimeError, KeyError) as fault:
            raise CheckpointError(f"{folder}: the tensors cannot be written as safetensors: {fault}") from None


def save_tensors(folder: Path, tensors: Sequence[Tensor], record: Record) -> None:
    """The same for tensors of another file, bit for bit."""
    header, _ = header_bytes(tensors, {"format": "pt"})
    with recorded_folder(folder, record) as made, (made / "model.safetensors").open("wb") as file:
        file.write(header)
        for tensor in tensors:
            file.write(tensor.load().data)
        file.close()  # before the folder is looked at


@contextmanager
def recorded_folder(folder: Path, record: Record) -> Iterator[Path]:
    """Yield a folder for a model's files. With the record they become `folder`, or part of it if it holds no model yet.

    A model that dpmerge could not read again is refused.
    """
    _make_parent(folder)
    if not folder.is_dir():
        with new_folder(folder, private=True) as made:
            yield made
            _finish(made, folder.name, record)
        return
    held = sorted(path.name for path in folder.iterdir() if _MODEL.fullmatch(path.name) and not _LEFTOVERS.fullmatch(path.name))
    if held:
        raise CheckpointError(f"{folder}: holds {', '.join(held)} already; a model is never overwritten: choose another folder")
    try:
        with temporary_folder(folder / "model") as made:
            yield made
            _finish(made, folder.name, record)
            _add(made, folder)
    except OSError as fault:
        raise CheckpointError(f"{folder}: cannot be written: {fault.strerror or fault}") from fault


def _finish(made: Path, name: str, record: Record) -> None:
    with open_model(made, name):
        pass
    _write_record(made, record)


def _add(made: Path, folder: Path) -> None:
    """Move files into a folder, the record last: with it they are a model. A file that is there is never replaced."""
    names = sorted((path.name for path in made.iterdir()), key=lambda name: (name == _RECORD, name))
    for name in names:
        with (made / name).open("rb") as file:
            os.fchmod(file.fileno(), 0o600)  # the folder is the user's, and may be open to others
            os.fsync(file.fileno())
    added: list[Path] = []
    try:
        for name in names:
            os.link(made / name, folder / name)
            added.append(folder / name)
    except OSError as fault:
        for path in added:
            path.unlink()
        if isinstance(fault, FileExistsError):
            raise CheckpointError(f"{folder / name}: exists already; it is never overwritten: choose another folder") from None
        raise


def _make_parent(folder: Path) -> None:
    try:
        private_folder(folder.parent)
    except OSError as fault:
        raise CheckpointError(f"{folder.parent}: cannot be made: {fault.strerror}") from None


def _write_record(made: Path, record: Record) -> None:
    write_private(record.model_dump_json(by_alias=True, indent=1).encode() + b"\n", made / _RECORD)
