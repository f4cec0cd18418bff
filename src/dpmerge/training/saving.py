"""A trained model as a folder of a portfolio: its tensors and the record of what was run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import CheckpointError
from dpmerge.records import Record
from dpmerge.tensors import new_folder


def save_model(folder: Path, tensors: Mapping[str, npt.NDArray[Any]], record: Record) -> None:
    """`model.safetensors` and `record.json` in a new folder, which appears whole."""
    from safetensors.numpy import save_file

    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    with recorded_folder(folder, record) as made:
        save_file(contiguous, made / "model.safetensors", metadata={"format": "pt"})


@contextmanager
def recorded_folder(folder: Path, record: Record) -> Iterator[Path]:
    """A new folder with the record, for whoever writes the tensors into it; it appears whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise CheckpointError(f"{folder.parent}: cannot be made: {fault.strerror}") from None
    with new_folder(folder) as made:
        yield made
        (made / "record.json").write_text(record.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
