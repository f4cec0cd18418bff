"""What a recorder leaves behind: the record of a DP-SGD run from its phases, and the folder of a model with its record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmerge.errors import CheckpointError
from dpmerge.records import FullPhase, Record, Source
from dpmerge.tensors import open_model
from dpmerge.training.saving import recorded_folder

_INHERITED = ("noise_multiplier", "clip", "sampling", "expected_batch")


def dp_sgd_record(dataset: str, mechanism: Mapping[str, Any], phases: Sequence[FullPhase], source: Source) -> Record:
    """The record of a run; `phases` state every setting, and the record repeats only those that differ from the first's."""
    rows = [phase.model_dump(mode="json") for phase in phases]
    common = {name: rows[0][name] for name in _INHERITED}
    different = [{name: row[name] for name in row if common.get(name) != row[name]} for row in rows]
    content = {
        "schema": 1,
        "dataset": dataset,
        "adjacency": "add-remove",
        "source": source,
        "mechanism": {"kind": "dp-sgd", **mechanism, **common, "phases": different},
    }
    return Record.parse(json.dumps(content), source=f"run {mechanism['run']}")


def save_folder(folder: Path, tensors: Mapping[str, Any], record: Record) -> None:
    """`model.safetensors` and `record.json` in a new folder, which appears whole; torch tensors, each in memory of its own."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with recorded_folder(folder, record) as made:
        try:
            save_file(dict(tensors), made / "model.safetensors", metadata={"format": "pt"})
        except (SafetensorError, ValueError, RuntimeError, KeyError) as fault:
            raise CheckpointError(f"{folder}: the tensors cannot be written as safetensors: {fault}") from None
        with open_model(made, folder.name):
            pass  # what dpmerge could not read again is refused now
