"""A merge computed again and compared with what was released; and a model's tensors in memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dpmerge.tensors.checkpoint import Tensor
from dpmerge.tensors.dtypes import BF16, Dtype, Raw
from dpmerge.tensors.opening import open_model
from dpmerge.tensors.plan import MergePlan
from dpmerge.tensors.stream import Output

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Difference:
    """A tensor that is not what it should be; `index` is the first element that differs, if the tensor is there at all."""

    tensor: str
    index: int | None
    message: str

    def __str__(self) -> str:
        return f"tensor {self.tensor!r}: {self.message}"


def verify_plan(plan: MergePlan, out: Path, threads: int | None = None) -> list[Difference]:
    """Compute the merge again and compare it bit for bit with the tensors in `out`; empty if they are the same."""
    with open_model(Path(out), Path(out).name) as model:
        held, outputs = model.tensors, plan.outputs
        more = held.keys() - {output.name for output in outputs}
        found = {name: Difference(name, None, "is not part of the merge") for name in more}
        for output in outputs:
            fault = _header_difference(output, held.get(output.name))
            if fault is not None:
                found[output.name] = Difference(output.name, None, fault)
        lock = threading.Lock()

        def compare(place: int, start: int, block: memoryview) -> None:
            output = outputs[place]
            known = found.get(output.name)
            if known is not None and known.index is None:
                return
            expected = np.frombuffer(block, output.dtype.storage)
            index = _first_difference(expected, held[output.name].part(start, expected.size))
            if index is None:
                return
            with lock:
                known = found.get(output.name)
                if known is None or (known.index is not None and start + index < known.index):
                    is_, should = held[output.name].part(start + index, 1), expected[index : index + 1]
                    message = f"element {start + index} is {_shown(is_, output.dtype)}, not {_shown(should, output.dtype)}"
                    found[output.name] = Difference(output.name, start + index, message)

        plan.stream(threads).run(compare, {})
    return [found[name] for name in sorted(found)]


def read_tensors(folder: Path) -> dict[str, Array]:
    """All tensors of one model, in memory; bfloat16 as ml_dtypes' type."""
    with open_model(Path(folder)) as checkpoint:
        return {name: _typed(tensor.load(), tensor.dtype) for name, tensor in checkpoint.tensors.items()}


def _typed(raw: Raw, dtype: Dtype) -> Array:
    return raw.view(ml_dtypes.bfloat16) if dtype is BF16 else raw


def _shown(raw: Raw, dtype: Dtype) -> str:
    return str(_typed(raw, dtype)[0])


def _header_difference(output: Output, tensor: Tensor | None) -> str | None:
    if tensor is None:
        return "is missing"
    if (tensor.dtype, tensor.shape) != (output.dtype, output.shape):
        return f"is {tensor.dtype.name} {list(tensor.shape)}, not {output.dtype.name} {list(output.shape)}"
    return None


def _first_difference(one: Raw, other: Raw) -> int | None:
    """By bits: −0 is not 0."""
    bits = f"u{one.dtype.itemsize}"
    places = np.flatnonzero(one.view(bits) != other.view(bits))
    return int(places[0]) if places.size else None
