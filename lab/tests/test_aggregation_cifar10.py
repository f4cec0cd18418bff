"""Aggregates of private networks' iterates: calibrated noise, the aggregations by hand, and the quick experiment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpmerge.profiles import run_profile
from dpmerge.records import DpSgd, Model, Record
from dpmerge_lab.experiments.aggregation import Watcher, accuracies, tuned
from dpmerge_lab.experiments.aggregation_cifar10 import DELTA, METHODS, aggregation_cifar10
from dpmerge_lab.experiments.aggregation_settings import SETTINGS
from dpmerge_lab.experiments.results import Options

KEPT = Path(__file__).parent.parent / "results" / "aggregation-cifar10"


@pytest.mark.parametrize("name", SETTINGS)
def test_kept_runs_have_the_least_noise_for_their_epsilon(name: str) -> None:
    held = json.loads((KEPT / f"{name}.json").read_text())
    record, setting = Record.parse(json.dumps(held["record"])), SETTINGS[name]
    assert isinstance(record.mechanism, DpSgd)
    assert record.mechanism.steps == setting.steps
    assert record.mechanism.noise_multiplier == setting.noise_multiplier
    assert (record.mechanism.optimizer == "sgd") is not setting.shifting

    def epsilon(sigma: float) -> float:
        mechanism = record.mechanism.model_copy(update={"noise_multiplier": sigma})
        return run_profile(Model(name, record.model_copy(update={"mechanism": mechanism}))).profile.epsilon(DELTA)

    assert epsilon(setting.noise_multiplier) <= setting.epsilon < epsilon(setting.noise_multiplier - 0.001)


def test_aggregations_are_what_their_names_say() -> None:
    """Iterates are scores themselves: what is measured can be said by hand."""
    rng = np.random.default_rng(3)
    iterates = [rng.normal(size=(40, 3)) for _ in range(6)]
    labels = rng.integers(0, 3, 40)
    watcher = Watcher()
    for iterate in iterates:
        watcher.see(iterate)

    def predict(scores: np.ndarray) -> np.ndarray:
        powers = np.exp(scores)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    found = watcher.measure(predict, labels)
    assert found["No Agg"] == accuracies(iterates[-1], labels)
    every = found["every parameter"]
    assert every["uta"]["3"] == accuracies(np.mean(iterates[-3:], axis=0), labels)
    assert every["opa"]["5"] == accuracies(np.sum([predict(scores) for scores in iterates[-5:]], axis=0), labels)
    votes = np.array([np.bincount([scores[i].argmax() for scores in iterates[-3:]], minlength=3) for i in range(40)])
    assert every["omv"]["3"] == accuracies(votes, labels)
    assert set(every["uta"]) == {"3", "5"}  # there are no ten iterates
    assert found["UTA inf"] == tuned(every["uta"])


def test_equal_parameters_are_settled_by_the_first() -> None:
    same = {"validation": 0.5, "test": 0.1}
    assert tuned({"3": same, "5": {"validation": 0.5, "test": 0.9}})["parameter"] == 3.0


def test_the_quick_experiment_gives_the_table(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    result = aggregation_cifar10(Options(quick=True, folder=tmp_path))
    assert set(result.numbers) == set(SETTINGS)
    for found in result.numbers.values():
        assert set(found["test accuracy"]) == set(METHODS)
        assert found["epsilon"]["pld"] < found["epsilon"]["rdp"]
    again = aggregation_cifar10(Options(quick=True, folder=tmp_path))  # nothing left to train
    assert again.numbers == result.numbers
