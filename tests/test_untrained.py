"""Tensors that training never changed are public: noise at release spares them, and nothing else (docs/theory.md §9.4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dpmerge
from dpmerge.cli.scoring import NoisyScore
from dpmerge.errors import CheckpointError
from dpmerge.records import Portfolio, trained_tensors
from dpmerge.release import spared
from dpmerge.rules.theorems import SPARED
from tests import builders
from tests.release_builders import on_disk

CONVEX: dict[str, Any] = {"sigma": 4.0, "steps": 10, "smoothness": 0.2, "convex": "unclipped", "batch": 10.0}
EVEN = {"a": 0.5, "b": 0.5}
NOISE = 0.25


def portfolio(folder: Path, **more: Any) -> Portfolio:
    return on_disk(folder / "runs", *(builders.dp_sgd(name, **CONVEX, **more) for name in "ab"))


def released(found: Portfolio, out: Path) -> tuple[dpmerge.Released, dict[str, Any]]:
    made = dpmerge.merge(found, EVEN, rule="combination", delta=1e-5, noise=NOISE, out=out)
    return made, load_file(out / "model.safetensors")


def mean(found: Portfolio) -> dict[str, Any]:
    models = [load_file(model.folder / "model.safetensors") for model in found.models if model.folder is not None]
    return {name: (models[0][name].astype(float) + models[1][name]) / 2 for name in models[0]}


def test_only_what_was_trained_gets_noise(tmp_path: Path) -> None:
    found = portfolio(tmp_path, trained=["weight"])
    made, tensors = released(found, tmp_path / "out")
    average = mean(found)
    np.testing.assert_array_equal(tensors["bias"], average["bias"])
    moved = tensors["weight"] - average["weight"]
    assert NOISE / 2 < moved.std() < 2 * NOISE and np.all(moved != 0)
    assert made.guarantee.theorem == "hidden-run" and SPARED in made.guarantee.assumptions
    assert "was added to every parameter that was trained" in (tmp_path / "out" / "README.md").read_text()
    assert dpmerge.verify(tmp_path / "out", portfolio=found).code == 0
    more = dpmerge.renoise(tmp_path / "out", out=tmp_path / "more", delta=1e-5, noise=2 * NOISE)
    again = load_file(tmp_path / "more" / "model.safetensors")
    np.testing.assert_array_equal(again["bias"], average["bias"])
    assert np.all(again["weight"] != tensors["weight"]) and SPARED in more.guarantee.assumptions
    assert dpmerge.verify(tmp_path / "more").code == 0


@pytest.mark.parametrize("trained", [None, ["weight", "bias"], ["weight", "elsewhere"]])
def test_without_such_a_record_everything_gets_noise(trained: list[str] | None, tmp_path: Path) -> None:
    found = portfolio(tmp_path, trained=trained)
    made, tensors = released(found, tmp_path / "out")
    average = mean(found)
    assert all(np.all(tensors[name] != average[name]) for name in ("weight", "bias"))
    assert (SPARED in made.guarantee.assumptions) == (trained is not None)
    assert dpmerge.verify(tmp_path / "out", portfolio=found).code == 0


def test_one_record_that_does_not_say_is_enough(tmp_path: Path) -> None:
    known, unknown = builders.dp_sgd("a", **CONVEX, trained=["weight"]), builders.dp_sgd("b", **CONVEX)
    assert (
        trained_tensors([known]) == frozenset({"weight"})
        and trained_tensors([known, unknown]) is None
        and trained_tensors([]) is None
    )
    other = builders.dp_sgd("b", **CONVEX, trained=["bias"])
    assert trained_tensors([known, other]) == frozenset({"weight", "bias"})


def test_what_a_fork_or_a_part_began_with_is_not_public() -> None:
    body = builders.dp_sgd("body", **CONVEX)
    start = {"run": body.run, "step": 10, "mechanism": body.mechanism.model_dump(mode="json")}
    assert builders.dp_sgd("a", **CONVEX, trained=["weight"], starts_from=start).trained is None
    shard = {"partition": "p", "part": 1, "of": 2, "assignment": "by-id"}
    assert builders.dp_sgd("a", **CONVEX, trained=["weight"], shard=shard).trained is None


def test_a_copy_of_what_was_trained_does_not_go_out_without_noise(tmp_path: Path) -> None:
    found = portfolio(tmp_path, trained=["weight"])
    for model in found.models:
        assert model.folder is not None
        path = model.folder / "model.safetensors"
        tensors = load_file(path)
        save_file({**tensors, "copy": tensors["weight"].copy()}, path)
    with pytest.raises(CheckpointError, match="'copy' and 'weight' hold the same numbers"):
        released(found, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_constants_may_be_there_twice_and_may_be_whole_numbers(tmp_path: Path) -> None:
    found = portfolio(tmp_path, trained=["weight"])
    twice = np.arange(8.0, dtype=np.float32)
    for model in found.models:
        assert model.folder is not None
        path = model.folder / "model.safetensors"
        save_file({**load_file(path), "one": twice, "two": twice.copy(), "positions": np.arange(4)}, path)
    tensors = released(found, tmp_path / "out")[1]
    for name, kept in (("one", twice), ("two", twice), ("positions", np.arange(4))):
        np.testing.assert_array_equal(tensors[name], kept)
    assert dpmerge.verify(tmp_path / "out", portfolio=found).code == 0


def test_scores_of_averages_with_noise_spare_the_same(tmp_path: Path) -> None:
    found = portfolio(tmp_path, trained=["weight"])
    (tmp_path / "looks.py").write_text(
        "from safetensors.numpy import load_file\n"
        "def bias(folder):\n    return float(load_file(folder / 'model.safetensors')['bias'].sum())\n"
    )
    folders = {name: tmp_path / "runs" / name for name in "ab"}
    score = NoisyScore(folders, "looks:bias", "", spared(found.models, folders["a"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert score.noised((0.5, 0.5), NOISE) == pytest.approx(mean(found)["bias"].sum(), abs=1e-12)
        assert replace(score, without=frozenset()).noised((0.5, 0.5), NOISE) != pytest.approx(
            mean(found)["bias"].sum(), abs=1e-6
        )
