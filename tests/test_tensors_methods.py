"""Merges for joint release: any function of whole tensors."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import CheckpointError
from dpmerge.tensors import merge_models
from dpmerge.tensors.methods import slerp, ties
from tests.checkpoint_builders import NUMPY, bits, combine_tensors, single, verify_combination

WEIGHTS = {"a": 0.25, "b": 0.75}


def models(root: Path, dtype: str = "F32") -> dict[str, Path]:
    rng = np.random.default_rng(0)
    return {n: single(root / n, {"x": rng.standard_normal((6, 7)).astype(NUMPY[dtype]), "n": np.array(3)}) for n in "ab"}


def largest(name: str, tensors: list[Any], weights: list[float]) -> Any:
    """A user's method."""
    assert name == "x" and weights == [0.25, 0.75]
    return np.maximum(*tensors)


def wrong_shape(name: str, tensors: list[Any], weights: list[float]) -> Any:
    return tensors[0].reshape(-1)


def not_finite(name: str, tensors: list[Any], weights: list[float]) -> Any:
    return tensors[0] / 0.0


def raises(name: str, tensors: list[Any], weights: list[float]) -> Any:
    raise KeyError("scale")


def no_numbers(name: str, tensors: list[Any], weights: list[float]) -> Any:
    return "no numbers"


NOT_A_FUNCTION = 3


def test_a_users_method(tmp_path: Path) -> None:
    inputs = models(tmp_path)
    method = f"{__name__}:largest"
    report = merge_models(inputs, WEIGHTS, tmp_path / "out", method=method)
    found = combine_tensors(inputs, WEIGHTS, method=method)
    parts = [combine_tensors(inputs, {name: 1.0})["x"] for name in "ab"]
    assert bits(found["x"]) == bits(np.maximum(*parts)) and found["n"] == 3
    assert not verify_combination(inputs, WEIGHTS, tmp_path / "out", method=method)
    assert verify_combination(inputs, WEIGHTS, tmp_path / "out")
    assert report.parameters == 42


@pytest.mark.parametrize(
    "method, message",
    [
        (f"{__name__}:wrong_shape", r"tensor 'x': the method returned shape \[42\], not \[6, 7\]"),
        (f"{__name__}:not_finite", "tensor 'x': the method returned values that are not finite in F32"),
        (f"{__name__}:gone", "cannot be loaded"),
        (f"{__name__}:NOT_A_FUNCTION", "is not a function"),
        ("no_such_module:f", "cannot be loaded"),
        ("raises_when_imported:f", "cannot be loaded: its module raises_when_imported raised ZeroDivisionError"),
        (f"{__name__}:raises", r"tensor 'x': the method raised KeyError\('scale'\)"),
        (f"{__name__}:no_numbers", "tensor 'x': the method raised ValueError"),
        ("linear", "no method is named 'linear'; give module:function, or one of slerp, ties"),
    ],
)
def test_methods_that_fail(tmp_path: Path, method: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_when_imported.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        merge_models(models(tmp_path), WEIGHTS, tmp_path / "out", method=method)
    assert not (tmp_path / "out").exists()


def test_slerp() -> None:
    x, y = np.array([1.0, 0.0]), np.array([0.0, 2.0])
    middle = slerp("x", [x, y], [0.5, 0.5])
    np.testing.assert_allclose(middle, [math.sqrt(0.5), 2 * math.sqrt(0.5)])
    np.testing.assert_allclose(slerp("x", [x, y], [1.0, 0.0]), x, atol=1e-15)
    on_circle = slerp("x", [x, y / 2], [0.3, 0.7])
    np.testing.assert_allclose(on_circle, [math.cos(0.35 * math.pi), math.sin(0.35 * math.pi)])
    np.testing.assert_allclose(slerp("x", [x, 3 * x], [0.5, 0.5]), 2 * x)
    np.testing.assert_allclose(slerp("x", [x, 0 * x], [0.5, 0.5]), x / 2)
    with pytest.raises(CheckpointError, match="exactly two models"):
        slerp("x", [x], [1.0])
    with pytest.raises(CheckpointError, match="sum to 1"):
        slerp("x", [x, y], [0.5, 0.6])


def test_ties() -> None:
    one = np.array([4.0, -3.0, 0.1, 2.0, 0.0])
    two = np.array([2.0, 1.0, 0.2, -5.0, 0.0])
    # Kept: {4, −3} and {2, −5}; elected signs +, −, 0, −.
    merged = ties("x", [one, two], [0.5, 0.5], density=0.4)
    np.testing.assert_allclose(merged, [3.0, -3.0, 0.0, -5.0, 0.0])
    np.testing.assert_allclose(ties("x", [one], [1.0], density=1.0), one)


def test_ties_on_differences_from_a_base(tmp_path: Path) -> None:
    inputs = models(tmp_path, "BF16")
    base = single(tmp_path / "base", {"x": np.ones((6, 7), NUMPY["BF16"]), "n": np.array(3)})
    found = combine_tensors(inputs, WEIGHTS, method="ties", base=base)["x"].astype(np.float64)
    parts = [combine_tensors(inputs, {name: 1.0})["x"].astype(np.float64) - 1 for name in "ab"]
    np.testing.assert_allclose(found, 1 + ties("x", parts, [0.25, 0.75]), rtol=2**-8, atol=1e-12)
    assert (found == 1).sum() > 20  # most differences are trimmed
    report = merge_models(inputs, WEIGHTS, tmp_path / "out", method="ties", base=base)
    for name in ("a", "b", "base"):
        digest = hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()
        assert report.inputs[name] == {"model.safetensors": digest}
    with pytest.raises(CheckpointError, match="a model is named 'base'"):
        combine_tensors({"base": base}, {"base": 1.0}, method="ties", base=base)
    with pytest.raises(CheckpointError, match="a weighted sum needs none"):
        combine_tensors(inputs, WEIGHTS, base=base)
    single(base, {"x": np.ones((6, 8), NUMPY["BF16"]), "n": np.array(3)})
    with pytest.raises(CheckpointError, match="models 'a' and 'base' hold tensor 'x' in shapes"):
        combine_tensors(inputs, WEIGHTS, method="ties", base=base)
