"""A trained model as a folder of a portfolio: its tensors and the record of what was run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.checkpoints.folder import new_folder
from dpmerge.records import Record


def save_model(folder: Path, tensors: Mapping[str, npt.NDArray[Any]], record: Record) -> None:
    """`model.safetensors` and `record.json` in a new folder, which appears whole."""
    from safetensors.numpy import save_file

    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder) as made:
        contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        save_file(contiguous, made / "model.safetensors", metadata={"format": "pt"})
        (made / "record.json").write_text(record.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
