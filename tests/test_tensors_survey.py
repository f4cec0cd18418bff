"""One pass over a model before it is merged: the digests and spacings are those found by any other way."""

from __future__ import annotations

import hashlib
import math
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmerge.tensors.survey as survey_module
from dpmerge.errors import CheckpointError
from dpmerge.tensors import Surveys, coarsest_spacing, merge_models, open_plan
from dpmerge.tensors.digests import Stopped
from dpmerge.tensors.survey import Survey
from tests.checkpoint_builders import NUMPY, sharded, single

RNG = np.random.default_rng(5)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests are young; take their times to be settled."""
    monkeypatch.setattr(survey_module, "_SETTLED", -1)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    tensors = {"w": (40, 5), "b": (7,), "empty": (0, 3)}
    return {
        name: single(tmp_path / name, {key: RNG.standard_normal(shape).astype(np.float32) for key, shape in tensors.items()})
        for name in "ab"
    }


def merged(folders: dict[str, Path], out: Path, surveyed: Any = None) -> dict[str, str]:
    report = merge_models(folders, {"a": 0.25, "b": 0.75}, out, surveyed=surveyed)
    return {name: digest for name, files in report.inputs.items() for digest in files.values()}


@pytest.mark.usefixtures("settled")
def test_a_file_is_hashed_once(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "_CHUNK", 64)  # tensors in several parts
    with Surveys(folders).begin(folders) as surveys:
        surveyed = surveys.files(folders)
    expected = {name: sha256(folder / "model.safetensors") for name, folder in folders.items()}
    assert {name: digest for name, files in surveyed.items() for _, digest in files.values()} == expected
    # What was said of an unchanged file is believed: a wrong digest would be certified.
    false = {name: {file: (state, "0" * 64) for file, (state, _) in files.items()} for name, files in surveyed.items()}
    assert merged(folders, tmp_path / "believed", false) == {"a": "0" * 64, "b": "0" * 64}
    assert merged(folders, tmp_path / "out", surveyed) == expected


@pytest.mark.usefixtures("settled")
def test_a_file_that_changed_is_hashed_again(folders: dict[str, Path], tmp_path: Path) -> None:
    with Surveys(folders).begin(folders) as surveys:
        surveyed = surveys.files(folders)
    single(folders["a"], {"w": np.ones((40, 5), np.float32), "b": np.ones(7, np.float32), "empty": np.ones((0, 3), np.float32)})
    found = merged(folders, tmp_path / "out", surveyed)
    assert found["a"] == sha256(folders["a"] / "model.safetensors") != surveyed["a"]["model.safetensors"][1]


@pytest.mark.usefixtures("settled")
def test_a_file_written_to_while_it_is_merged(folders: dict[str, Path], tmp_path: Path) -> None:
    with Surveys(folders).begin(folders) as surveys:
        surveyed = surveys.files(folders)
    path = folders["b"] / "model.safetensors"

    def write(done: int, total: int) -> None:
        path.write_bytes(path.read_bytes())

    with pytest.raises(CheckpointError, match="was written to while it was merged"):
        merge_models(folders, {"a": 0.25, "b": 0.75}, tmp_path / "out", surveyed=surveyed, progress=write)
    assert not (tmp_path / "out").exists()


def test_a_young_file_is_not_believed_to_stay(folders: dict[str, Path]) -> None:
    """Two writes within one tick of the file system's clock leave the same times."""
    assert Survey.of(folders["a"]).files == {}


@pytest.mark.parametrize("dtype", sorted(NUMPY))
def test_spacing_is_that_of_the_plan(dtype: str, tmp_path: Path) -> None:
    values = {name: RNG.standard_normal(300_000).astype(NUMPY[dtype]) * 37 for name in ("x", "y")}
    folder = single(tmp_path / "m", {**values, "count": np.array([2**60])})
    with ExitStack() as stack:
        _, plan = open_plan(stack, {"m": folder}, {"m": 1.0})
        assert Survey.of(folder).spacing == coarsest_spacing(plan.outputs) > 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_spacing_of_numbers_that_are_not_finite(bad: float, tmp_path: Path) -> None:
    values = np.zeros(1000, np.float32)
    values[700] = bad
    assert Survey.of(single(tmp_path / "m", {"w": values})).spacing == math.inf


@pytest.mark.usefixtures("settled")
def test_shards_in_their_own_order(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"a": np.ones(3, np.float32), "c": np.ones(4, np.float32)}, {"b": np.ones(5, np.float32)})
    files = Survey.of(folder).files
    assert {name: digest for name, (_, digest) in files.items()} == {name: sha256(folder / name) for name in files}
    assert len(files) == 2


def test_a_survey_that_nobody_waits_for_ends(folders: dict[str, Path]) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        Survey.of(folders["a"], "a", stop)
