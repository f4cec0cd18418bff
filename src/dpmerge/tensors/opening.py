"""From a model's folder to its tensors: finds the format, and refuses what it would have to guess."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint, Layout
from dpmerge.tensors.safetensors_file import SafetensorsFile
from dpmerge.tensors.strict_files import file_inside, read_object

INDEX = "model.safetensors.index.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER = "adapter_model.safetensors"
_TENSORS = re.compile(r".*\.safetensors|.*\.pth?|(pytorch|adapter)_model.*\.bin")
# What trainers leave beside a model: never read, never copied.
_LEFTOVERS = re.compile(r"(optimizer|scheduler|scaler|training_args).*|(rng|random)_states?.*")


def open_model(folder: Path, name: str | None = None) -> Checkpoint:
    """Open a model's folder and check its headers; `name` is the model's name in errors (the folder's, if not given).

    The folder holds one of: one `*.safetensors` file; `model.safetensors.index.json` with its shards; a PEFT adapter
    (`adapter_config.json`, `adapter_model.safetensors`); one PyTorch state dict (`*.pt`, `*.pth`, `pytorch_model.bin`).
    """
    model = folder.name if name is None else name
    where = f"model {model!r}"
    if not folder.is_dir():
        raise CheckpointError(f"{where}: no such folder: {folder}")
    found = sorted(p.name for p in folder.iterdir() if _TENSORS.fullmatch(p.name) and not _LEFTOVERS.fullmatch(p.name))
    if (folder / ADAPTER_CONFIG).exists():
        return _open_adapter(folder, model, found)
    if (folder / INDEX).exists():
        return _open_sharded(folder, model, found)
    if not found:
        raise CheckpointError(
            f"{where}: no tensors in {folder}; put a *.safetensors file, {INDEX} with its shards, a LoRA adapter or a PyTorch "
            "state dict there"
        )
    if len(found) > 1:
        raise CheckpointError(f"{where}: which of {', '.join(found)} is the model? Keep one, or convert it to safetensors")
    path = file_inside(folder, found[0], where)
    if path.suffix == ".safetensors":
        return _opened(folder, model, "safetensors", [path], {}, lambda _: None)
    from dpmerge.tensors.pytorch import open_state_dict  # only here: it needs names of this file

    return open_state_dict(path, folder, model)


def _opened(
    folder: Path, model: str, layout: Layout, paths: list[Path], adapter: Mapping[str, Any], check: Callable[[Checkpoint], None]
) -> Checkpoint:
    """Open the files, and close them again if the check refuses them."""
    with ExitStack() as stack:
        files = tuple(stack.enter_context(SafetensorsFile(path, model)).as_tensor_file() for path in paths)
        checkpoint = Checkpoint(model, folder, layout, files, adapter)
        check(checkpoint)
        checkpoint.closes.push(stack.pop_all())
        return checkpoint


def _open_adapter(folder: Path, model: str, found: list[str]) -> Checkpoint:
    from dpmerge.tensors.lora import check_adapter

    where = f"model {model!r}"
    if found != [ADAPTER] or (folder / INDEX).exists():
        raise CheckpointError(
            f"{where}: an adapter's folder holds {ADAPTER_CONFIG} and {ADAPTER} and no other tensors; "
            f"found {', '.join(found) or 'none'}"
        )
    path = file_inside(folder, ADAPTER, where)
    config = read_object(file_inside(folder, ADAPTER_CONFIG, where), f"{where}, file {ADAPTER_CONFIG}")
    return _opened(folder, model, "lora", [path], config, check_adapter)


def _open_sharded(folder: Path, model: str, found: list[str]) -> Checkpoint:
    where = f"model {model!r}, file {INDEX}"
    where_is = read_object(file_inside(folder, INDEX, f"model {model!r}"), where).get("weight_map")
    if not isinstance(where_is, dict) or not where_is or not all(isinstance(shard, str) for shard in where_is.values()):
        raise CheckpointError(f"{where}: needs a weight_map from tensor names to files")
    shards = sorted(set(where_is.values()))
    paths = [file_inside(folder, shard, where) for shard in shards]
    others = sorted(set(found) - set(shards))
    if others:
        raise CheckpointError(f"{where}: does not mention {', '.join(others)}; keep only the files of one model")
    return _opened(folder, model, "sharded", paths, {}, partial(_check_index, where_is, where))


def _check_index(where_is: dict[str, str], where: str, checkpoint: Checkpoint) -> None:
    held = {(tensor.name, file.name) for file in checkpoint.files for tensor in file.tensors}
    for name, shard in sorted(where_is.items()):
        if (name, shard) not in held:
            raise CheckpointError(f"{where}: says that tensor {name!r} lies in {shard}, which does not hold it")
    for name, shard in sorted(held):
        if where_is.get(name) != shard:
            raise CheckpointError(
                f"{where}: {shard} holds tensor {name!r}, which the index places elsewhere or does not mention"
            )
