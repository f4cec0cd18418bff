"""The weighted sum, against exact rational arithmetic and against other people's casts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpmerge.tensors import DTYPES, Scratch, weighted_sum
from dpmerge.tensors.dtypes import Dtype, Raw, fits, narrowed, widened
from dpmerge.tensors.kernel import BLOCK, NotFinite
from tests.checkpoint_builders import NUMPY

FLOATING = [dtype for dtype in DTYPES.values() if dtype.floating]
# Bits of precision, and the exponent of the smallest subnormal.
GRIDS = {"F64": (53, -1074), "F32": (24, -149), "F16": (11, -24), "BF16": (8, -133)}
LARGEST = {"F64": 1.7976931348623157e308, "F32": 3.4028234663852886e38, "F16": 65504.0, "BF16": 3.3895313892515355e38}


def exactly_rounded(value: float, dtype: Dtype) -> Fraction:
    """Nearest value of the format, ties to even, in integers."""
    if value == 0:
        return Fraction(0)
    precision, lowest = GRIDS[dtype.name]
    exact = Fraction(value)
    exponent = max(math.frexp(value)[1] - precision, lowest)
    unit = Fraction(2) ** exponent
    return round(exact / unit) * unit  # Fraction rounds ties to even


def stored(values: list[float], dtype: Dtype) -> Raw:
    """Values that the format holds, as its bytes."""
    return np.array(values).astype(NUMPY[dtype.name]).view(dtype.storage)


def as_floats(raw: Raw, dtype: Dtype) -> list[float]:
    return [float(value) for value in raw.view(NUMPY[dtype.name])]


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_value_widens_and_comes_back(name: str) -> None:
    dtype = DTYPES[name]
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.storage)
    values = widened(every, dtype)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(values, every.view(NUMPY[name]).astype(np.float64))
    finite = np.isfinite(values)
    assert narrowed(values[finite], dtype).tobytes() == every[finite].tobytes()


def test_bfloat16_rounds_like_ml_dtypes_wherever_one_rounding_is_all_there_is() -> None:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    patterns[: 1 << 16] = np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000  # every tie
    singles = patterns.view(np.float32)
    singles = singles[np.abs(singles) < 3.3e38]
    assert narrowed(singles.astype(np.float64), DTYPES["BF16"]).tobytes() == singles.astype(ml_dtypes.bfloat16).tobytes()


def test_bfloat16_is_rounded_once_not_twice() -> None:
    value = 1 + 2**-8 + 2**-40  # rounds to a tie in float32, and the tie to 1
    assert float(np.float64(value).astype(np.float32).astype(ml_dtypes.bfloat16)) == 1.0
    for sign in (1, -1):
        assert as_floats(narrowed(np.array([sign * value]), DTYPES["BF16"]), DTYPES["BF16"]) == [sign * (1 + 2**-7)]
        below = sign * (1 + 3 * 2**-8 - 2**-40)  # the tie would go up, to even
        assert as_floats(narrowed(np.array([below]), DTYPES["BF16"]), DTYPES["BF16"]) == [sign * (1 + 2**-7)]


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("dtype", FLOATING, ids=lambda dtype: dtype.name)
def test_rounding_is_exact(dtype: Dtype, data: Any) -> None:
    largest = dtype.overflow or math.inf
    bound = largest * (1 - 2**-52) if math.isfinite(largest) else 1.7e308
    value = data.draw(st.floats(-bound, bound))
    precision, _ = GRIDS[dtype.name]
    near = data.draw(st.sampled_from([0, 1, -1, 2**20, -(2**20)]))
    if value and dtype.name != "F64":  # the neighbourhood of a tie is where rounding goes wrong
        mantissa, exponent = math.frexp(value)
        tie = math.ldexp(round(mantissa * 2 ** (precision + 1)) | 1, exponent - precision - 1)
        candidate = tie + math.ldexp(near, exponent - 53)
        value = candidate if abs(candidate) < largest else value
    assert Fraction(as_floats(narrowed(np.array([value]), dtype), dtype)[0]) == exactly_rounded(value, dtype)


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("dtype", FLOATING, ids=lambda dtype: dtype.name)
def test_weighted_sum_is_the_definition(dtype: Dtype, data: Any) -> None:
    count = data.draw(st.integers(1, 5))
    size = data.draw(st.integers(1, 9))
    values = st.floats(width=32 if dtype.name != "F64" else 64, allow_nan=False, allow_infinity=False)
    weights = [data.draw(st.floats(5e-324, 1)) for _ in range(count)]
    weights = [weight / max(1.0, math.fsum(weights)) or 5e-324 for weight in weights]
    bound = min(LARGEST[dtype.name], 1e300)
    raws = []
    for _ in range(count):
        drawn = np.array(data.draw(st.lists(values, min_size=size, max_size=size)))
        raws.append(stored(list(np.clip(drawn, -bound, bound)), dtype))
    result = weighted_sum(zip(weights, raws, strict=True), dtype, Scratch(BLOCK))
    for place, value in enumerate(as_floats(result, dtype)):
        total = weights[0] * as_floats(raws[0], dtype)[place]
        for weight, raw in zip(weights[1:], raws[1:], strict=True):
            total += weight * as_floats(raw, dtype)[place]
        assert Fraction(value) == exactly_rounded(total, dtype)
        assert math.copysign(1, value) == math.copysign(1, total)


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("weight", [1.0, 0.5, 5e-324])
def test_what_is_not_finite_is_seen_whatever_its_weight(dtype: Dtype, bad: float, weight: float) -> None:
    good, poisoned = stored([1.0] * 100, dtype), stored([1.0] * 99 + [bad], dtype)
    opposite = stored([1.0] * 99 + [-bad], dtype)
    for terms in ([(weight, poisoned)], [(1.0, good), (weight, poisoned)], [(weight, poisoned), (weight, opposite)]):
        with np.errstate(all="ignore"), pytest.raises(NotFinite):
            weighted_sum(terms, dtype, Scratch(100))


def test_every_nan_pattern_of_16_bits_is_seen() -> None:
    for name in ("F16", "BF16"):
        every = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[name].storage)
        for raw in every[~np.isfinite(widened(every, DTYPES[name]))]:
            assert not fits(widened(np.array([raw]), DTYPES[name]), DTYPES[name])


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda dtype: dtype.name)
def test_the_largest_values_are_no_false_alarm(dtype: Dtype) -> None:
    largest = LARGEST[dtype.name]
    raw = stored([largest, -largest] * 500, dtype)
    assert weighted_sum([(0.5, raw), (0.25, raw), (0.25, raw)], dtype, Scratch(1000)).tobytes() == raw.tobytes()
    third = 1 / 3 + 2e-10  # the sum of weights may be off by 1e-9
    if dtype.name != "F64":
        assert weighted_sum([(third, raw)] * 3, dtype, Scratch(1000)).tobytes() == raw.tobytes()
    with np.errstate(all="ignore"), pytest.raises(NotFinite):
        weighted_sum([(1.0, raw), (1.0, raw)], dtype, Scratch(1000))


@pytest.mark.parametrize("dtype", [DTYPES[name] for name in ("F32", "F16", "BF16")], ids=lambda dtype: dtype.name)
def test_the_threshold_of_overflow_is_the_formats(dtype: Dtype) -> None:
    assert dtype.overflow is not None
    below = math.nextafter(dtype.overflow, 0)
    assert fits(np.array([below, -below]), dtype)
    assert math.isfinite(as_floats(narrowed(np.array([below]), dtype), dtype)[0])
    assert not fits(np.array([dtype.overflow]), dtype) and not fits(np.array([-dtype.overflow]), dtype)
    with np.errstate(over="ignore"):
        assert not np.isfinite(np.array([dtype.overflow]).astype(NUMPY[dtype.name]).astype(np.float64))


def test_negative_zero_is_kept() -> None:
    raw = stored([-0.0], DTYPES["F32"])
    assert (
        math.copysign(1, as_floats(weighted_sum([(0.5, raw), (0.5, raw)], DTYPES["F32"], Scratch(1)), DTYPES["F32"])[0]) == -1
    )
