"""Small checkpoints on disk, written by the safetensors library: a second opinion on the format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from dpmerge.tensors import Difference, merge_models, open_plan, read_tensors, verify_plan

Array = np.ndarray[Any, np.dtype[Any]]
NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def single(folder: Path, tensors: Mapping[str, Array], metadata: dict[str, str] | None = None) -> Path:
    """A model in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "model.safetensors", {"format": "pt"} if metadata is None else metadata)
    return folder


def sharded(folder: Path, *shards: Mapping[str, Array]) -> Path:
    """A model in several files, with Hugging Face's index."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(dict(shard), folder / name, {"format": "pt"})
    where = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    return folder


def adapter(folder: Path, tensors: Mapping[str, Array], **config: Any) -> Path:
    """A LoRA adapter as PEFT saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors", {"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": "base",
        "r": 2,
        "lora_alpha": 4,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "target_modules": ["q", "v"],
        "modules_to_save": None,
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    return folder


def write_raw(folder: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    """A safetensors file with any header at all: bytes as they are, anything else as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + text + data)
    return folder


def bits(array: Array) -> bytes:
    """The bytes of an array, to compare bit for bit."""
    return np.ascontiguousarray(array).tobytes()


def verify_combination(
    models: Mapping[str, Path], weights: Mapping[str, float], out: Path, threads: int | None = None, **options: Any
) -> list[Difference]:
    """How `out` differs from the merge that these models and weights make."""
    with ExitStack() as stack:
        return verify_plan(open_plan(stack, models, weights, **options)[1], out, threads)


def combine_tensors(models: Mapping[str, Path], weights: Mapping[str, float], **options: Any) -> dict[str, Array]:
    """The tensors that a merge writes."""
    with TemporaryDirectory() as folder:
        merge_models(models, weights, Path(folder) / "merged", **options)
        return read_tensors(Path(folder) / "merged")
