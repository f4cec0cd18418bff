"""Aggregates of softmax regressions (Recycling Scraps, Table 3, in small): the calibration, runs, numbers and pictures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.datasets import bounded_features
from dpmerge.errors import TrainingError
from dpmerge.figures import render
from dpmerge.jobs import Finished
from dpmerge.profiles import gaussian_epsilon, run_profile
from dpmerge.records import Model
from dpmerge.training import Recipe, accuracy, train
from dpmerge_lab.experiments import aggregation_mnist as experiment, aggregation_mnist_runs as runs_of
from dpmerge_lab.experiments.aggregation import AFTERWARDS, ON_TOP, TRAINED
from dpmerge_lab.experiments.aggregation_cifar10_pictures import PAPER
from dpmerge_lab.experiments.aggregation_mnist import CASES, aggregation_mnist
from dpmerge_lab.experiments.aggregation_mnist_pictures import COLUMNS, tuned_for
from dpmerge_lab.experiments.aggregation_mnist_runs import DELTA, NORM, QUICK, Case, Work
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, chosen, clear, gain, scores
from dpmerge_lab.experiments.aggregation_tuning import ALONE, WAYS, WITH_INFERENCE, Point, Tuned, price, tune
from dpmerge_lab.experiments.calibration import least_noise
from dpmerge_lab.experiments.results import Options, Result, write
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.shift import PeriodicShift
from tests.builders import dp_sgd


@pytest.fixture(scope="module")
def result() -> Result:
    return aggregation_mnist(Options(quick=True, seeds=3, jobs=1))


# --- noise for a target -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "epsilon"), [(1, 0.3), (100, 1.0), (7, 20.0)])
def test_the_least_noise_for_full_batches_is_that_of_the_closed_form(steps: int, epsilon: float) -> None:
    found = least_noise(Recipe(steps=steps, learning_rate=1.0, clip=1.0, noise_multiplier=1.0), 1000, epsilon, DELTA)
    assert gaussian_epsilon(math.sqrt(steps) / found, DELTA) <= epsilon * (1 + 1e-6)
    assert gaussian_epsilon(math.sqrt(steps) / (found - 0.001), DELTA) > epsilon
    assert found * 1000 == pytest.approx(round(found * 1000), abs=1e-9)


@pytest.mark.parametrize("shifting", [False, True])
def test_the_least_noise_for_sampled_batches(shifting: bool) -> None:
    shift = PeriodicShift.even_and_odd(np.arange(1000) % 10, 8, 50.0) if shifting else None
    rate = None if shifting else 0.05
    recipe = LabRecipe(steps=40, learning_rate=1.0, clip=1.0, noise_multiplier=1.0, rate=rate, shift=shift)
    found = least_noise(recipe, 1000, 1.0, DELTA)
    epsilons = []
    for noise in (found, found - 0.001):
        record = replace(recipe, noise_multiplier=noise).record(40, 1000, dataset="data", run="run", noise="n", sampler="s")
        epsilons.append(run_profile(Model("run", record)).profile.epsilon(DELTA))
    assert epsilons[0] <= 1.0 < epsilons[1]


# --- one run ------------------------------------------------------------------------------------------------------------------


def test_a_run_measures_what_its_own_iterates_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last iterate, a tail and the accuracy on the way there by hand, on the images with odd numbers."""
    held: list[Any] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        held.append(train(*arguments, **options))
        return held[-1]

    monkeypatch.setattr(runs_of, "train", watched)
    found = runs_of.plain(Work(QUICK, None, Case(8, True), 0.7), QUICK.learning_rate, True, 0)
    made = held[0]
    assert [model.step for model in made] == list(range(1, QUICK.steps + 1))
    images = runs_of.loaded("digits", None).images
    odd, labels = bounded_features(images.test[1::2], NORM), images.test_labels[1::2]
    measured = found["measured"]
    assert measured["No Agg"]["test"] == accuracy(made[-1].tensors, odd, labels)
    tail = int(measured["UTA inf"]["parameter"])
    used = [model.tensors for model in made[-tail:]]
    mean: Any = {name: np.mean([tensors[name] for tensors in used], axis=0) for name in used[0]}
    assert measured["UTA inf"]["test"] == pytest.approx(accuracy(mean, odd, labels), abs=1 / len(labels))
    looks = list(runs_of.looks(QUICK))
    assert looks[-1] == QUICK.steps
    assert found["history"]["No Agg"] == [accuracy(made[step - 1].tensors, odd, labels) for step in looks]
    assert found["record"] == made[-1].record.as_dict()
    assert "shift" in found["record"]["mechanism"]["optimizer"]


def test_a_run_on_aggregates_returns_the_aggregate() -> None:
    work = Work(QUICK, None, Case(8, False), 0.7)
    found = runs_of.trained(work, "UTA tr", True, Point(3, 15))
    assert len(found["history"]) == len(runs_of.looks(QUICK))
    assert found["measured"]["No Agg"]["test"] == found["history"][-1]
    assert found["record"]["mechanism"]["optimizer"] == "sgd from the mean of the last 3 iterates after step 15"
    found = runs_of.trained(work, "EMA tr", False, Point(0.2, 20))
    assert "history" not in found and 0 < found["measured"]["No Agg"]["validation"] < 1
    assert found["record"]["mechanism"]["optimizer"] == "sgd from a moving average with new weight 0.2 after step 20"


def test_inference_aggregation_is_of_what_the_run_on_aggregates_went_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail of its checkpoints by hand; after τ these are the aggregates, so the last one is what Alg. 2 returns."""
    held: list[Any] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        held.append(train(*arguments, **options))
        return held[-1]

    monkeypatch.setattr(runs_of, "train", watched)
    measured = runs_of.trained(Work(QUICK, None, Case(8, True), 0.7), "UTA tr", False, Point(3, 15))["measured"]
    assert set(measured) == {"No Agg", *AFTERWARDS}
    images = runs_of.loaded("digits", None).images
    odd, labels = bounded_features(images.test[1::2], NORM), images.test_labels[1::2]
    assert measured["No Agg"]["test"] == accuracy(held[0][-1].tensors, odd, labels)
    used = [model.tensors for model in held[0][-int(measured["UTA inf"]["parameter"]) :]]
    mean: Any = {name: np.mean([tensors[name] for tensors in used], axis=0) for name in used[0]}
    assert measured["UTA inf"]["test"] == pytest.approx(accuracy(mean, odd, labels), abs=1 / len(labels))


# --- gains --------------------------------------------------------------------------------------------------------------------


def test_gains_are_paired() -> None:
    found = gain([0.9, 0.8, 0.95], [0.85, 0.77, 0.89])
    differences = [0.05, 0.03, 0.06]
    mean = sum(differences) / 3
    error = math.sqrt(sum((one - mean) ** 2 for one in differences) / 2 / 3)
    assert found == {"mean": pytest.approx(mean), "standard error": pytest.approx(error), "ratio": pytest.approx(mean / error)}
    assert clear(found)
    assert not clear(gain([0.9, 0.8], [0.8, 0.9]))
    assert not clear(gain([0.9], [0.8])), "one run has no standard error"
    assert not clear(gain([0.5, 0.5], [0.5, 0.5]))


def test_one_inference_aggregation_is_chosen_without_a_look_at_the_test_half() -> None:
    measured = {name: {"validation": 0.5, "test": 0.9} for name in ("No Agg", *AFTERWARDS)}
    measured["OPA"] = {"validation": 0.6, "test": 0.1}
    assert chosen(measured) == measured["OPA"]
    assert scores([{"measured": measured}])[CHOSEN] == [0.1]


# --- tuning -------------------------------------------------------------------------------------------------------------------


def _measured(last: float, top: float) -> dict[str, Any]:
    """A run whose last checkpoint and inference aggregations have these validation accuracies; test accuracies are less."""
    found = {name: {"validation": top, "test": top - 0.1} for name in AFTERWARDS}
    return {"measured": {"No Agg": {"validation": last, "test": last - 0.1}, **found}}


def test_the_same_runs_choose_for_a_run_alone_and_for_what_is_on_top_of_it() -> None:
    made = {3: [(0.5, 0.9), (0.6, 0.7)], 10: [(0.9, 0.6), (0.4, 0.7)], 20: [(0.6, 0.7), (0.6, 0.6)]}
    left = {parameter: iter(values) for parameter, values in made.items()}
    grid = [Point(parameter, start) for parameter in made for start in (5,)]
    found = tune(lambda point: _measured(*next(left[int(point.parameter)])), grid, 2, jobs=1)
    assert [found.accuracy(point, ALONE) for point in grid] == pytest.approx([0.55, 0.65, 0.6])
    assert found.best(ALONE) == Point(10, 5) and found.best(WITH_INFERENCE) == Point(3, 5)
    assert found.edges(ALONE) == [] and found.edges(WITH_INFERENCE) == ["parameter"], "one value of τ has no edge"
    told = found.as_dict()
    assert [row["parameter"] for row in told["grid"]] == [3, 10, 20] and {row["runs"] for row in told["grid"]} == {2}
    assert told["grid"][0][WITH_INFERENCE] == {"validation": pytest.approx(0.8), "test": pytest.approx(0.7)}
    assert told["best"][ALONE] == {"parameter": 10, "start": 5, "rate": 1.0, "at an edge of the grid": []}


def test_of_equally_good_points_the_first_is_chosen() -> None:
    found = Tuned({Point(2): [_measured(0.5, 0.5)], Point(3): [_measured(0.5, 0.5)]})
    assert found.best(ALONE) == found.best(WITH_INFERENCE) == Point(2)


def _searched(run: str, sigma: float, last: float, top: float) -> Tuned:
    """One run, of 16 full batches."""
    record = dp_sgd(run, steps=16, sigma=sigma, run=run, noise_fingerprint=f"noise of {run}").record
    return Tuned({Point(1): [{**_measured(last, top), "record": record.as_dict()}]})


def test_the_price_is_of_all_runs_beside_that_of_the_best() -> None:
    """The best by its last checkpoint or by an inference aggregation."""
    runs = _searched("a", 8.0, 0.8, 0.7), _searched("b", 4.0, 0.6, 0.9), _searched("c", 8.0, 0.7, 0.8)
    for searches, sigma in ((runs, 4.0), (runs[::2], 8.0)):
        told = price(searches, DELTA)
        alone = told["epsilon of the best run alone, had it been the only one"]
        assert alone == pytest.approx(gaussian_epsilon(4 / sigma, DELTA), rel=1e-6)
    assert price(runs, DELTA)["epsilon of all trials together"] == pytest.approx(
        gaussian_epsilon(math.sqrt(1 + 2 / 4), DELTA), rel=1e-6
    )
    with pytest.raises(TrainingError, match="have records of one run 'a'; every trial is a run of its own"):
        price([runs[0], runs[0]], DELTA)


def test_finished_runs_need_a_name(tmp_path: Path) -> None:
    with Finished(tmp_path / "runs.jsonl") as finished, pytest.raises(TrainingError, match="found again by name"):
        tune(lambda point: _measured(0.5, 0.5), [Point(1)], 1, finished=finished, jobs=1)


# --- the experiment -----------------------------------------------------------------------------------------------------------


def test_the_table_has_every_aggregation_of_every_case(result: Result) -> None:
    assert set(CASES) == set(PAPER) <= set(result.numbers)
    for name, case in CASES.items():
        numbers = result.numbers[name]
        assert tuple(numbers["test accuracy"]) == COLUMNS and tuple(numbers["gain over no aggregation"]) == COLUMNS[1:]
        assert all(found["runs"] == 3 and 0 < found["mean"] < 1 for found in numbers["test accuracy"].values())
        assert 0.98 * case.epsilon < numbers["epsilon"]["pld"] <= case.epsilon < numbers["epsilon"]["rdp"]
        for method, found in numbers["gain over no aggregation"].items():
            difference = numbers["test accuracy"][method]["mean"] - numbers["test accuracy"]["No Agg"]["mean"]
            assert found["mean"] == pytest.approx(difference, abs=1e-12)
            assert clear(found) == (method in result.numbers["outside two standard errors"][name])
        on_top = numbers["inference aggregation on top"]
        assert list(on_top) == ["No Agg", *(tuned_for(method, way) for method in TRAINED for way in WAYS)]
        assert on_top["No Agg"]["test accuracy"][CHOSEN] == numbers["test accuracy"][CHOSEN]
        for method, top in zip(TRAINED, ON_TOP, strict=True):
            of = {way: on_top[tuned_for(method, way)]["test accuracy"] for way in WAYS}
            assert of[ALONE]["No Agg"] == numbers["test accuracy"][method], "its last checkpoint, alone"
            assert of[WITH_INFERENCE][CHOSEN] == numbers["test accuracy"][top]
            best = numbers["tuning of training on aggregates"][method]["best"]
            points = [{**best[way], "at an edge of the grid": None} for way in WAYS]
            assert (points[0] != points[1]) or of[ALONE] == of[WITH_INFERENCE], "one choice, one set of runs"
            above = of[WITH_INFERENCE][CHOSEN]["mean"] - numbers["test accuracy"][CHOSEN]["mean"]
            gained = numbers["gain over the best inference aggregation of plain runs"][top]
            assert gained["mean"] == pytest.approx(above, abs=1e-12)
        for found in on_top.values():
            own = found["gain over its own last checkpoint"]
            assert all(len(values) == 3 for values in found["chosen on the validation half"].values())
            for top in (*AFTERWARDS, CHOSEN):
                reached = found["test accuracy"][top]["mean"]
                assert own[top]["mean"] == pytest.approx(reached - found["test accuracy"]["No Agg"]["mean"], abs=1e-12)
        rates = numbers["learning rates"]
        assert list(map(float, rates)) == list(QUICK.learning_rates)
        assert numbers["best learning rate for the last iterate"] in rates
        own = rates[f"{QUICK.learning_rate:g}"]["test accuracy"]
        assert own["No Agg"] == numbers["test accuracy"]["No Agg"], "the table's own runs are shown at their rate"


def test_the_price_of_tuning_is_told(result: Result) -> None:
    for name in CASES:
        for method, values in (("EMA tr", QUICK.weights), ("UTA tr", QUICK.tails)):
            tuning = result.numbers[name]["tuning of training on aggregates"][method]
            grid = [(one["parameter"], one["start"]) for one in tuning["grid"]]
            assert grid == [(value, start) for value in values for start in QUICK.starts]
            price = tuning["price"]
            alone = price["epsilon of the best run alone, had it been the only one"]
            assert price["trials"] == QUICK.trials * len(grid) and price["epsilon of all trials together"] > alone
            assert alone == pytest.approx(result.numbers[name]["epsilon"]["pld"])
    assert result.configuration["runs to tune training on aggregates"] == {"EMA tr": 8, "UTA tr": 16}


def test_pictures_can_be_drawn_and_everything_is_strict_json(result: Result, tmp_path: Path) -> None:
    assert set(result.pictures) == {"steps", "table", "on-top", "tails", "learning-rates"}
    for document in result.pictures.values():
        assert len(document["panels"]) == 4
    assert render(result.pictures["steps"], ".png").startswith(b"\x89PNG")
    panel = result.pictures["on-top"]["panels"][0]
    assert panel["categories"] == ["alone", *AFTERWARDS, "best by validation"]
    assert [line["label"] for line in panel["lines"]] == ["plain training", "training on the EMA", "training on the UTA"]
    shown = result.pictures["table"]["panels"][0]
    cells = result.numbers["eps8"]["test accuracy"]
    assert len(shown["categories"]) == len(COLUMNS) and shown["lines"][0]["y"] == [cells[one]["mean"] for one in COLUMNS]
    assert shown["lines"][0]["high"][2] == pytest.approx(cells["EMA tr + inf"]["mean"] + cells["EMA tr + inf"]["std"] / 3**0.5)
    tails = result.pictures["tails"]["panels"][0]["lines"]
    assert [line["x"] for line in tails] == [[3, 5]] * 3
    plain = list(result.numbers["eps8"]["inference aggregation on top"]["No Agg"]["test accuracy"].values())
    assert panel["lines"][0]["y"] == [one["mean"] for one in plain]
    assert panel["lines"][0]["high"][0] == pytest.approx(plain[0]["mean"] + plain[0]["std"] / math.sqrt(3))
    write(result, tmp_path, suffixes=())
    held = json.loads((tmp_path / "aggregation-mnist.json").read_text())
    assert held["configuration"]["steps"] == QUICK.steps and set(held["numbers"]) == set(result.numbers)


def test_one_repetition_has_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "CASES", {"eps1": Case(1, False)})
    monkeypatch.setattr(experiment, "QUICK", replace(QUICK, learning_rates=(16.0,), starts=(15,), tails=(3,)))
    found = aggregation_mnist(Options(quick=True, seeds=1, jobs=1))
    assert all(one["ratio"] is None for one in found.numbers["eps1"]["gain over no aggregation"].values())
    assert found.numbers["outside two standard errors"] == {"eps1": []}
    assert render(found.pictures["table"], ".png").startswith(b"\x89PNG")
