"""A recorded model as Transformers or PEFT write it, with its record: `Recorder.save_pretrained`.

The libraries' own `save_pretrained` writes config, tensors and adapters. What it wrote is then compared with the module's
tensors, bit for bit: nothing that noise does not cover may be among them, and nothing that was trained may be missing.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dpmerge.errors import CheckpointError, TrainingError
from dpmerge.records import Record
from dpmerge.tensors import ADAPTER_CONFIG
from dpmerge.training.recorder_tensors import ModuleTensors, digests, digests_of
from dpmerge.training.saving import recorded_folder

_ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors")


def save_pretrained(folder: Path, tensors: ModuleTensors, left_out: Collection[str], record: Record, tokenizer: Any) -> None:
    """Write the module's tensors but for those left out, its config, the tokenizer if there is one, and the record."""
    module, state = tensors.module, tensors.held(left_out)
    adapter = _is_a(module, "peft", "PeftModel")
    if not adapter and not _is_a(module, "transformers", "PreTrainedModel"):
        raise TrainingError(f"{type(module).__name__} is no model of Transformers or PEFT; use save(folder)")
    if adapter and len(module.peft_config) != 1:
        names = ", ".join(map(repr, module.peft_config))
        raise TrainingError(f"the model holds several adapters ({names}); a folder is of one: delete the others")
    if adapter:  # all of it is trained, under other names
        record = record.model_copy(update={"mechanism": record.mechanism.model_copy(update={"trained": None})})
    with recorded_folder(folder, record) as made:
        if adapter:
            _write_adapter(module, made, state)
        else:
            module.save_pretrained(made, state_dict=dict(state))
        written, held = digests_of(made), digests(state)
        _require_same(folder, written, held, tensors.trained, adapter)
        if not adapter:
            _require_names(folder, written, held, tensors.trained)
        if tokenizer is not None:
            tokenizer.save_pretrained(made)


def _write_adapter(module: Any, made: Path, state: Mapping[str, Any]) -> None:
    """The adapter alone: PEFT writes a card too, and an adapter that is not called "default" into a folder of its own."""
    with tempfile.TemporaryDirectory(dir=made) as scratch:
        module.save_pretrained(scratch, save_embedding_layers=False, state_dict=dict(state))
        (config,) = Path(scratch).rglob(ADAPTER_CONFIG)
        for name in _ADAPTER_FILES:
            shutil.move(config.with_name(name), made / name)
    base = json.loads((made / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    if base and (Path(base).is_absolute() or Path(base).exists()):
        warnings.warn(
            f"{ADAPTER_CONFIG} names the base model by a path, {base!r}, which others do not have: load the base by its public "
            "name before training, or set base_model_name_or_path in the adapter's config",
            UserWarning,
            stacklevel=6,
        )


def _require_same(
    folder: Path, written: Mapping[str, str], state: Mapping[str, str], trained: Collection[str], adapter: bool
) -> None:
    """Refuse a folder with other tensors than the module's, or without one that belongs there. Names may differ."""
    held, kept = set(state.values()), set(written.values())
    if other := sorted(name for name, digest in written.items() if digest not in held):
        raise CheckpointError(
            f"{folder}: {', '.join(map(repr, other))} would be written otherwise than the module holds it (or was left out), "
            "and no record covers that; use save(folder)"
        )
    due = set(trained) if adapter else set(state)
    if missing := sorted(name for name in due & state.keys() if state[name] not in kept):
        why = "trained, but no part of the adapter" if adapter else "left out by the model's save_pretrained"
        raise CheckpointError(f"{folder}: {', '.join(map(repr, missing))}: {why}; use save(folder)")


def _require_names(folder: Path, written: Mapping[str, str], state: Mapping[str, str], trained: Collection[str]) -> None:
    """Refuse a folder in which a trained tensor has a name that the record does not list: it would go out without noise."""
    constant = {digest for name, digest in state.items() if name not in trained}
    if other := sorted(name for name, digest in written.items() if name not in trained and digest not in constant):
        raise CheckpointError(f"{folder}: {', '.join(map(repr, other))}: written under another name; use save(folder)")


def _is_a(module: Any, package: str, name: str) -> bool:
    """Whether the module is of a class of this package, which is not loaded for the question."""
    return package in sys.modules and isinstance(module, getattr(sys.modules[package], name))
