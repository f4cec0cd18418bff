"""Number formats of stored tensors: what their bytes are, how they widen to float64, and one rounding back.

Every finite value of every floating format here is a float64, so widening is exact and a result is rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Raw = NDArray[np.generic]
_PART = 1 << 17  # elements that are widened at a time


@dataclass(frozen=True)
class Dtype:
    """One format: safetensors' name for it, and how numpy holds its bytes (little endian; bfloat16 as its 16 bits)."""

    name: str
    storage: np.dtype[np.generic]
    overflow: float | None = None  # the smallest magnitude that no longer rounds to a finite value; None for integers
    precision: int = 0  # bits of a significand, the hidden one included

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return self.storage.itemsize

    @property
    def floating(self) -> bool:
        """Whether tensors of this format are averaged; integers and booleans are not."""
        return self.overflow is not None

    def spacing(self, value: float) -> float:
        """How far the numbers of this format lie apart at `value`: the unit in the last place."""
        return math.ldexp(1.0, math.frexp(value)[1] - self.precision)


def _formats() -> dict[str, Dtype]:
    floats = [
        Dtype("F64", np.dtype("<f8"), math.inf, 53),
        Dtype("F32", np.dtype("<f4"), math.ldexp(2 - 2**-24, 127), 24),
        Dtype("F16", np.dtype("<f2"), math.ldexp(2 - 2**-11, 15), 11),
        Dtype("BF16", np.dtype("<u2"), math.ldexp(2 - 2**-8, 127), 8),
    ]
    integers = [Dtype(f"{kind.upper()}{8 * size}", np.dtype(f"<{kind}{size}")) for kind in "iu" for size in (8, 4, 2, 1)]
    return {dtype.name: dtype for dtype in [*floats, *integers, Dtype("BOOL", np.dtype("?"))]}


DTYPES = _formats()
BF16 = DTYPES["BF16"]


class Scratch:
    """Memory that one thread reuses from block to block, so that blocks stay in the cache and nothing is allocated."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.raw = np.empty(8 * elements, np.uint8)  # a block as it lies in the file
        self.sum = np.empty(elements, np.float64)
        self.term = np.empty(elements, np.float64)
        self._single = np.empty(elements, np.float32)
        self._bits = np.empty(elements, np.uint32)
        self._rounded = np.empty(8 * elements, np.uint8)

    def widen(self, raw: Raw, dtype: Dtype, out: Floats) -> None:
        """Write the stored values to `out` as float64: exact."""
        if dtype is BF16:
            bits = self._bits[: raw.size]
            np.copyto(bits, raw)
            np.left_shift(bits, 16, out=bits)  # bfloat16 is the upper half of a float32
            raw = bits.view(np.float32)
        np.copyto(out, raw)

    def narrow(self, values: Floats, dtype: Dtype) -> Raw:
        """Round once to `dtype`, ties to even; the caller has checked that nothing overflows. Valid until the next call."""
        out = self._rounded[: values.size * dtype.size].view(dtype.storage)
        if dtype is BF16:
            self._round_to_bfloat16(values, out)
        else:
            np.copyto(out, values, casting="same_kind")
        return out

    def _round_to_bfloat16(self, values: Floats, out: Raw) -> None:
        single, rounded = self._single[: values.size], self._bits[: values.size]
        np.copyto(single, values, casting="same_kind")
        bits = single.view(np.uint32)
        # Two roundings differ from one only where the first lands exactly halfway between two bfloat16 and dropped something:
        # there, what it dropped decides, not the tie. One float32 to that side of the tie is enough to tell.
        np.copyto(out, bits, casting="unsafe")
        halfway = np.flatnonzero(out == 0x8000)
        if halfway.size:
            halfway = halfway[single.take(halfway) != values.take(halfway)]
            outward = np.abs(values[halfway]) > np.abs(single[halfway])
            bits[halfway] = np.where(outward, bits[halfway] + 1, bits[halfway] - 1)
        np.right_shift(bits, 16, out=rounded)
        np.bitwise_and(rounded, 1, out=rounded)
        np.add(rounded, 0x7FFF, out=rounded)
        np.add(rounded, bits, out=rounded)
        np.right_shift(rounded, 16, out=rounded)
        np.copyto(out, rounded, casting="unsafe")


def widened(raw: Raw, dtype: Dtype) -> Floats:
    """Stored values as a new float64 array of the same shape."""
    out = np.empty(raw.size, np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value here; callers that reject NaN check for it
        Scratch(raw.size).widen(raw.reshape(-1), dtype, out)
    return out.reshape(raw.shape)


def narrowed(values: Floats, dtype: Dtype) -> Raw:
    """Values rounded once to `dtype`, as a new array of the same shape."""
    flat = np.ascontiguousarray(values, np.float64).reshape(-1)
    return Scratch(flat.size).narrow(flat, dtype).reshape(values.shape)


def coarsest(raw: Raw, dtype: Dtype) -> float:
    """How far stored numbers of a floating format lie apart at the largest of them; infinite if one is not finite."""
    # numpy has no bfloat16, and a slow float16
    parts = [raw] if dtype.size >= 4 else (widened(raw[at : at + _PART], dtype) for at in range(0, raw.size, _PART))
    largest = [max(float(part.max()), -float(part.min())) for part in parts if part.size]  # both are NaN if one number is
    return dtype.spacing(max(largest, default=0.0)) if all(map(math.isfinite, largest)) else math.inf


def fits(values: Floats, dtype: Dtype) -> bool:
    """Whether every value is finite and rounds to a finite value of `dtype`. A NaN makes both extremes NaN, so it is seen."""
    if dtype.overflow is None or values.size == 0:
        return True
    return bool(values.max() < dtype.overflow and values.min() > -dtype.overflow)
