"""The papers' experiments, quickly, on the digits: they run, and their numbers are those of the rules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpmerge.experiments.mnist import mnist_full_batch
from dpmerge.experiments.results import Options, mean_and_deviation, write


def test_bounded_features_make_averages_cheap_where_runs_couple(tmp_path: Path) -> None:
    result = mnist_full_batch(Options(seeds=2, quick=True, jobs=1))
    for numbers in (result.numbers, result.numbers["poisson twin"]):
        for row in numbers["merges"]:
            assert row["linear combination, papers' formula"] <= row["linear combination, proved"] * (1 + 1e-6)
            assert row["linear combination, proved"] <= row["joint release"] * (1 + 1e-6)
            assert row["random selection"] <= row["joint release"]
        accuracies = numbers["test accuracy of averages"]
        assert accuracies["runs"] == 2
        assert len(accuracies["mean"]) == len(numbers["weights"]) == 15
    paths = write(result, tmp_path / "results")
    held = json.loads(paths[0].read_text())
    assert held["configuration"]["data"] == "digits"
    assert held["software"]["numpy"] == np.__version__
    assert [path.suffix for path in paths[1:]] == [".png", ".svg", ".png", ".svg"]
    assert all(path.stat().st_size > 1000 for path in paths[1:])


def test_deviations_are_those_of_single_runs() -> None:
    assert mean_and_deviation([[1.0, 2.0], [3.0, 2.0]]) == {"mean": [2.0, 2.0], "std": [pytest.approx(2**0.5), 0.0], "runs": 2}
