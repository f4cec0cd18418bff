"""A trained model as a folder of a portfolio: its tensors and the record of what was run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import CheckpointError
from dpmerge.records import Record
from dpmerge.tensors import new_folder, open_model

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A model after `step` steps, and the record of the run up to there."""

    step: int
    tensors: Tensors
    record: Record
    config: str | None = None  # the text of config.json, where there is one: public settings only

    def save(self, folder: Path) -> None:
        save_model(folder, self.tensors, self.record, self.config)


def save_model(folder: Path, tensors: Tensors, record: Record, config: str | None = None) -> None:
    """Write `model.safetensors` and `record.json` into a new folder, which appears whole; and perhaps `config.json`."""
    from safetensors.numpy import save_file

    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    with _recorded_folder(folder, record) as made:
        save_file(contiguous, made / "model.safetensors", metadata={"format": "pt"})
        if config is not None:
            (made / "config.json").write_text(config, encoding="utf-8")


def save_torch_model(folder: Path, tensors: Mapping[str, Any], record: Record) -> None:
    """The same for torch tensors, each in memory of its own. A model that dpmerge could not read again is refused."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with _recorded_folder(folder, record) as made:
        try:
            save_file(dict(tensors), made / "model.safetensors", metadata={"format": "pt"})
        except (SafetensorError, ValueError, RuntimeError, KeyError) as fault:
            raise CheckpointError(f"{folder}: the tensors cannot be written as safetensors: {fault}") from None
        with open_model(made, folder.name):
            pass


@contextmanager
def _recorded_folder(folder: Path, record: Record) -> Iterator[Path]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise CheckpointError(f"{folder.parent}: cannot be made: {fault.strerror}") from None
    with new_folder(folder) as made:
        yield made
        (made / "record.json").write_text(record.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
