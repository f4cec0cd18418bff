"""What a recorder leaves behind: the record of a DP-SGD run from its phases, and the folder of a model with its record."""

# torch is not installed everywhere the types are checked, so what comes from it is Any there.
# mypy: disable-error-code="import-not-found,misc,no-any-return,no-untyped-call,unused-ignore"

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmerge.checkpoints import open_model
from dpmerge.checkpoints.folder import new_folder
from dpmerge.errors import CheckpointError
from dpmerge.records import Phase, Record
from dpmerge.records.record import Source

_INHERITED = ("noise_multiplier", "clip", "sampling", "expected_batch")


def dp_sgd_record(dataset: str, mechanism: Mapping[str, Any], phases: Sequence[Phase], source: Source) -> Record:
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

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise CheckpointError(f"{folder.parent}: cannot be made: {fault.strerror}") from None
    with new_folder(folder) as made:
        try:
            save_file(dict(tensors), made / "model.safetensors", metadata={"format": "pt"})
        except (SafetensorError, ValueError, RuntimeError, KeyError) as fault:
            raise CheckpointError(f"{folder}: the tensors cannot be written as safetensors: {fault}") from None
        (made / "record.json").write_text(record.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
        with open_model(made, folder.name):
            pass  # what dpmerge could not read again is refused now
