"""PyTorch state dicts, and checkpoints of Opacus' `save_checkpoint`: the only file here that imports torch.

A pickle is a program. It is read with `weights_only=True`, which knows tensors and plain data; what needs more is refused.
"""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint, Tensor, TensorFile
from dpmerge.tensors.companions import quoted
from dpmerge.tensors.dtypes import BF16, DTYPES

# torch names its formats as numpy does, and has bfloat16 besides.
_FORMATS = {"bfloat16": BF16, **{dtype.storage.name: dtype for dtype in DTYPES.values() if dtype is not BF16}}
_OPACUS = "module_state_dict"  # where `PrivacyEngine.save_checkpoint` puts the model
_WRAPPED = "_module."  # what Opacus' GradSampleModule puts before every name
_SAFE_SINCE = (2, 6)  # before that, weights_only=True could be made to run code (CVE-2025-32434)


class ArraySource:
    """A tensor's bytes in memory, or mapped from its file; a `Source`."""

    def __init__(self, path: Path, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.path = path
        self._bytes = array.data

    def read(self, offset: int, into: memoryview) -> None:
        into[:] = self._bytes[offset : offset + len(into)]


def open_state_dict(path: Path, folder: Path, model: str) -> Checkpoint:
    """Read a `.pt` or `.pth` file. Merged models are written as safetensors."""
    where = f"model {model!r}, file {path.name}"
    state, notes = state_of(load(path, where), where)
    tensors, places = [], {}
    for name, value in state.items():
        dtype = _FORMATS.get(str(value.dtype).removeprefix("torch."))
        if dtype is None or value.layout is not _torch().strided or value.is_quantized:
            raise CheckpointError(
                f"{where}, tensor {name!r}: {value.dtype} ({value.layout}) is not supported; save a dense {', '.join(DTYPES)}"
            )
        places[name] = (value.untyped_storage().data_ptr(), value.storage_offset(), tuple(value.shape), value.stride())
        tensors.append(Tensor(name, dtype, tuple(value.shape), model, ArraySource(path, _bytes(value)), 0))
    tensors.sort(key=lambda tensor: (-tensor.dtype.size, tensor.name))  # the widest first, so that all stay aligned
    shared: dict[object, set[str]] = {}
    for tensor in tensors:
        if tensor.nbytes:
            shared.setdefault(places[tensor.name], set()).add(tensor.name)
    ties = frozenset(frozenset(names) for names in shared.values() if len(names) > 1)
    notes.append(f"model {model!r}: {path.name} is a PyTorch file; the tensors are written to model.safetensors")
    return Checkpoint(
        model,
        folder,
        "pytorch",
        (TensorFile(path, tuple(tensors), {"format": "pt"}, None),),
        ties=ties,
        overlaps=_overlaps(state),
        notes=tuple(notes),
    )


def _overlaps(state: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Tensors whose memory overlaps, but is not the same: a transposed matrix, a part of another tensor."""
    ranges = []
    for name, value in state.items():
        if value.numel():
            last = value.storage_offset() + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
            first, end = (place * value.element_size() for place in (value.storage_offset(), last + 1))
            ranges.append((value.untyped_storage().data_ptr(), first, end, (tuple(value.shape), value.stride()), name))
    found, reach = [], None
    for one in sorted(ranges):
        if reach is not None and one[0] == reach[0] and one[1] < reach[2] and one[1:4] != reach[1:4]:
            found.append((reach[4], one[4]))
        if reach is None or one[0] != reach[0] or one[2] > reach[2]:
            reach = one
    return tuple(found)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise CheckpointError("PyTorch files need torch: install dpmerge[torch], or convert the model to safetensors") from None


def load(path: Path, where: str) -> Any:
    """What a file of torch holds, read without running anything in it."""
    torch = _torch()
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _SAFE_SINCE:
        raise CheckpointError(f"{where}: torch {torch.__version__} does not read pickles safely; install torch 2.6 or newer")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as fault:  # a damaged file may make torch raise any error
        reason = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise CheckpointError(
            f"{where}: cannot be read with weights_only=True ({reason:.200}); save model.state_dict() alone, or convert it to "
            "safetensors where you trust the file"
        ) from None


def state_of(loaded: Any, where: str) -> tuple[dict[str, Any], list[str]]:
    """The named tensors of a state dict, without Opacus' wrapping."""
    state, notes = _without_the_rest(loaded, where)
    if not isinstance(state, dict) or not state:
        raise CheckpointError(f"{where}: not a state dict; save model.state_dict()")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, _torch().Tensor):
            raise CheckpointError(
                f"{where}: not a state dict: {name!r:.80} is a {type(value).__name__}, not a tensor; save model.state_dict()"
            )
    bare = [name for name in state if not name.startswith(_WRAPPED)]
    if 0 < len(bare) < len(state):
        raise CheckpointError(
            f"{where}: tensor {bare[0]!r} lacks the prefix {_WRAPPED!r} that others have; save one model's state"
        )
    return {name.removeprefix(_WRAPPED): value for name, value in state.items()}, notes


def _without_the_rest(loaded: Any, where: str) -> tuple[Any, list[str]]:
    """The state in a checkpoint of Opacus, and a note of what else was in it; anything else as it is."""
    if not isinstance(loaded, dict) or _OPACUS not in loaded:
        return loaded, []
    rest = [str(key) for key in loaded if key != _OPACUS]
    was = "was" if len(rest) == 1 else "were"
    return loaded[_OPACUS], [f"{where}: a checkpoint of Opacus; {quoted(rest)} {was} left out"] if rest else []


def _bytes(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(_torch().uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
