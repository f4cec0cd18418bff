"""PyTorch state dicts, and checkpoints of Opacus' `save_checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint, Header, Tensor, TensorFile
from dpmerge.tensors.companions import quoted
from dpmerge.tensors.dtypes import BF16, DTYPES
from dpmerge.tensors.torch_pickle import StoredTensor, TorchFile, read

# torch names its formats as numpy does, and has bfloat16 besides.
_FORMATS = {"bfloat16": BF16, **{dtype.storage.name: dtype for dtype in DTYPES.values() if dtype is not BF16}}
_OPACUS = "module_state_dict"  # where `PrivacyEngine.save_checkpoint` puts the model
_WRAPPED = "_module."  # what Opacus' GradSampleModule puts before every name
# Tensors may be views of one storage, tied or expanded: together they are at most so many times the file, or so many bytes.
_MOST_TIMES, _FEW_BYTES = 4, 1 << 20


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
    file = load(path, where)
    state, notes = state_of(file.content, where)
    tensors = tensors_of(state, file, path, model, where)
    shared: dict[object, set[str]] = {}
    for tensor in tensors:
        if tensor.nbytes:
            view = state[tensor.name]
            assert view.storage is not None
            shared.setdefault((view.storage.key, view.offset, view.shape, view.stride), set()).add(tensor.name)
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


def tensors_of(state: dict[str, StoredTensor], file: TorchFile, path: Path, model: str, where: str) -> list[Tensor]:
    """The tensors of a state dict, the widest first, so that all stay aligned. What is no plain tensor is refused."""
    total, most = 0, max(_FEW_BYTES, _MOST_TIMES * len(file.bytes))
    for name, view in state.items():
        dtype = _FORMATS.get(view.dtype)
        if dtype is None or view.odd:
            what = view.odd or f"torch.{view.dtype}"
            raise CheckpointError(f"{where}, tensor {name!r}: {what} is not supported; save a dense {', '.join(DTYPES)}")
        total += Header(name, dtype, view.shape).nbytes
        if total > most:
            raise CheckpointError(
                f"{where}, tensor {name!r}: the tensors have more than {most:,} bytes and the file {len(file.bytes):,}, so "
                "some of them are expanded; save clones of them"
            )
    made = [
        Tensor(name, _FORMATS[view.dtype], view.shape, model, ArraySource(path, _bytes(view, file)), 0)
        for name, view in state.items()
    ]
    return sorted(made, key=lambda tensor: (-tensor.dtype.size, tensor.name))


def _overlaps(state: dict[str, StoredTensor]) -> tuple[tuple[str, str], ...]:
    """Tensors whose memory overlaps, but is not the same: a transposed matrix, a part of another tensor."""
    ranges = []
    for name, view in state.items():
        first, end = (place * _FORMATS[view.dtype].size for place in view.span)
        if first < end and view.storage is not None:
            ranges.append((view.storage.key, first, end, (view.shape, view.stride), name))
    found, reach = [], None
    for one in sorted(ranges):
        if reach is not None and one[0] == reach[0] and one[1] < reach[2] and one[1:4] != reach[1:4]:
            found.append((reach[4], one[4]))
        if reach is None or one[0] != reach[0] or one[2] > reach[2]:
            reach = one
    return tuple(found)


def load(path: Path, where: str) -> TorchFile:
    """What a file of torch holds; nothing in it is run."""
    try:
        return read(path)
    except (ValueError, OSError) as fault:
        reason = str(fault.strerror if isinstance(fault, OSError) else fault)
        raise CheckpointError(
            f"{where}: cannot be read without running it ({reason:.200}); save model.state_dict() alone, or convert it to "
            "safetensors where you trust the file"
        ) from None


def state_of(loaded: Any, where: str) -> tuple[dict[str, StoredTensor], list[str]]:
    """The named tensors of a state dict, without Opacus' wrapping."""
    state, notes = _without_the_rest(loaded, where)
    if not isinstance(state, dict) or not state:
        raise CheckpointError(f"{where}: not a state dict; save model.state_dict()")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, StoredTensor):
            raise CheckpointError(
                f"{where}: not a state dict: {name!r:.80} is a {type(value).__name__}, not a tensor of that name; "
                "save model.state_dict()"
            )
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise CheckpointError(
                f"{where}: the name {name!r:.80} has half a surrogate pair, which no file can hold; rename it"
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


def _bytes(view: StoredTensor, file: TorchFile) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The tensor's bytes in the order of its elements: mapped from the file if they lie there so, else copied."""
    if 0 in view.shape:
        return np.empty(0, np.uint8)
    storage = _FORMATS[view.dtype].storage
    first, end = view.span
    flat = np.frombuffer(file.part(view)[first * storage.itemsize : end * storage.itemsize], storage)
    strides = tuple(step * storage.itemsize if count > 1 else 0 for count, step in zip(view.shape, view.stride, strict=True))
    array = np.lib.stride_tricks.as_strided(flat, view.shape, strides, writeable=False)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
