"""Aggregates of private networks' iterates: calibrated noise, the aggregations by hand, and the quick experiment."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import TrainingError
from dpmerge.figures import describe, render
from dpmerge.profiles import run_profile
from dpmerge.records import DpSgd, Model, Record
from dpmerge_lab.experiments.aggregation import LAST, METHODS, Watcher, accuracies, tuned
from dpmerge_lab.experiments.aggregation_cifar10 import (
    BESIDE_BEST,
    DELTA,
    OTHER_RUNS,
    aggregation_cifar10,
    aggregation_cifar10_small,
)
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, chosen
from dpmerge_lab.experiments.aggregation_settings import (
    AT_LENGTH,
    EVERY_RATE,
    EVERY_TAIL,
    IN_SMALL,
    LONG_IN_SMALL,
    OTHERWISE,
    QUICK,
    SETTINGS,
    SMALL,
    Size,
    tail,
)
from dpmerge_lab.experiments.aggregation_tuning import ALONE, TUNING, WITH_INFERENCE
from dpmerge_lab.experiments.results import Options
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.shift import PeriodicShift

KEPT = Path(__file__).parent.parent / "results"


@pytest.mark.parametrize(
    ("folder", "size", "name"),
    [
        *(("aggregation-cifar10", Size(), name) for name in SETTINGS | AT_LENGTH),
        *(
            ("aggregation-cifar10-small", SMALL, name)
            for name in IN_SMALL | LONG_IN_SMALL | EVERY_RATE | EVERY_TAIL | OTHERWISE
        ),
    ],
)
def test_kept_runs_have_the_least_noise_for_their_epsilon(folder: str, size: Size, name: str) -> None:
    setting, mechanisms, own = size.setting(name), set(), []
    names = ("run", "noise_fingerprint", "sampler_fingerprint")
    for path in (KEPT / folder).glob(f"{name}-[0-9]*.json"):
        held = json.loads(path.read_text())
        record = Record.parse(json.dumps(held["record"]))
        assert isinstance(record.mechanism, DpSgd)
        assert held["setting"] == asdict(setting)
        assert record.mechanism.steps == setting.steps
        assert record.mechanism.noise_multiplier == setting.noise_multiplier
        assert (record.mechanism.optimizer == "sgd") is (not setting.shifting and setting.copies == 1)
        mechanisms.add(record.mechanism.model_dump_json(exclude={*names}))
        own.append(tuple(getattr(record.mechanism, one) for one in names))
    if not own:
        # Not every rate was tried in every setting, and long runs of the large network not yet.
        assert name in EVERY_RATE or (size == Size() and name in AT_LENGTH)
        return
    assert len(mechanisms) == 1  # all runs of a setting have one guarantee
    assert all(len(set(column)) == len(own) for column in zip(*own, strict=True))  # and each its own randomness

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
    result = aggregation_cifar10(Options(quick=True, seeds=1, folder=tmp_path))
    assert set(result.numbers) == set(SETTINGS)
    for found in result.numbers.values():
        assert set(found["test accuracy"]) == {*METHODS, "EMA tr + inf", "UTA tr + inf", CHOSEN}
        assert found["epsilon"]["pld"] < found["epsilon"]["rdp"]
    assert "views of an image" in json.loads((tmp_path / "eps1-1.json").read_text())["record"]["mechanism"]["optimizer"]
    held = json.loads((tmp_path / "eps1-1.json").read_text())
    held["measured"]["plain"][LAST]["test"] += 0.25
    (tmp_path / "eps1-2.json").write_text(json.dumps(held))
    again = aggregation_cifar10(Options(quick=True, seeds=1, folder=tmp_path))  # nothing left to train, one run more
    assert {**again.numbers, "eps1": None} == {**result.numbers, "eps1": None}
    before, after = (one.numbers["eps1"]["test accuracy"][LAST] for one in (result, again))
    assert after["runs"] == 2
    assert after["mean"] == pytest.approx(before["mean"] + 0.125)
    assert again.numbers["eps1"]["gain over no aggregation"]["OPA"]["standard error"] == pytest.approx(0.125)


@pytest.mark.parametrize("name", AT_LENGTH)
@pytest.mark.parametrize("size", [Size(), SMALL], ids=["large", "small"])
def test_long_runs_have_the_least_noise_too(size: Size, name: str) -> None:
    setting = size.setting(name)
    shift = PeriodicShift.even_and_odd(np.arange(50_000) % 10, size.period, float(size.batch)) if setting.shifting else None
    rate = None if setting.shifting else size.batch / 50_000

    def epsilon(sigma: float) -> float:
        recipe = LabRecipe(steps=setting.steps, learning_rate=1.0, clip=1.0, noise_multiplier=sigma, rate=rate, shift=shift)
        record = recipe.record(setting.steps, 50_000, dataset="d", run="r", noise="1" * 32, sampler="2" * 32)
        return run_profile(Model(name, record)).profile.epsilon(DELTA)

    assert epsilon(setting.noise_multiplier) <= setting.epsilon < epsilon(setting.noise_multiplier - 0.001)


def test_long_runs_are_shown_where_they_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.experiments.aggregation_cifar10_training import make

    make([*SETTINGS, *AT_LENGTH], [1], None, "cpu", QUICK, tmp_path, aggregates=())
    result = aggregation_cifar10(Options(seeds=1, folder=tmp_path))  # nothing is left to train
    assert [*result.numbers] == [*SETTINGS, *AT_LENGTH]
    for name in AT_LENGTH:
        long, short = result.numbers[name], result.numbers[name.removesuffix("-long")]
        assert long["the paper's test accuracy, percent"] == short["the paper's test accuracy, percent"]
        assert (long["steps"], short["steps"]) == ([8], [4, 8])
    assert len(describe(result.pictures["table"]).panels) == len(SETTINGS | AT_LENGTH)
    panels = [[one.title for one in describe(result.pictures[name]).panels] for name in ("steps", "steps-long")]
    assert [len(titles) for titles in panels] == [len(SETTINGS), len(AT_LENGTH)]
    assert all("2,480 steps" in title or "3,068 steps" in title for title in panels[1])


def test_in_small_learning_rates_are_tried_and_tails_are_tuned(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.experiments.aggregation_cifar10_training import make

    digits = replace(QUICK, network="cnn")
    rates = [f"{name}-lr{rate}" for name in SETTINGS for rate in (1, 2)]
    make([*SETTINGS, *rates, *EVERY_TAIL, *OTHERWISE], [1], None, "cpu", digits, tmp_path)
    assert set(json.loads((tmp_path / "eps1-lr2-1.json").read_text())["measured"]) == {"plain"}
    result = aggregation_cifar10_small(Options(seeds=1, folder=tmp_path))  # nothing is left to train
    assert set(result.numbers) == set(SETTINGS)
    assert set(result.pictures) == {"steps", "table", "tuning", "decays", "learning-rates", "tails"}
    for name, found in result.numbers.items():
        assert set(found["learning rates"]) == {"1", "2"}
        held = json.loads((tmp_path / f"{name}-lr1-1.json").read_text())["measured"]["plain"]
        assert found["learning rates"]["1"]["test accuracy"][LAST]["mean"] == held[LAST]["test"]
    for name in ("eps1", "shifting-eps1"):
        measured = json.loads((tmp_path / f"{name}-tails-1.json").read_text())["measured"]
        grid = result.numbers[name][TUNING]["UTA tr"]["grid"]
        assert [(row["parameter"], row["start"]) for row in grid] == list(digits.tails)
        for row in grid:
            tried = measured[tail(int(row["parameter"]), row["start"])]
            assert row[ALONE] == tried[LAST]
            assert row[WITH_INFERENCE] == {half: chosen(tried)[half] for half in ("validation", "test")}
    for name in OTHERWISE:
        again = json.loads((tmp_path / f"{name}-1.json").read_text())["measured"]
        assert set(again) == {"plain", "EMA tr", "UTA tr"}
        gained = result.numbers[name.rpartition("-")[0]][OTHER_RUNS][BESIDE_BEST]["UTA tr + inf"]["mean"]
        assert gained == pytest.approx(chosen(again["UTA tr"])["test"] - chosen(again["plain"])["test"])
    for document in result.pictures.values():
        assert render(document, ".png").startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["eps1", "shifting-eps8"])
def test_a_run_goes_on_where_a_command_ran_out_of_time(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after every third step it measures what it does uninterrupted, with coins of its own in every command."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge_lab.experiments.aggregation_cifar10_training import make
    from dpmerge_lab.experiments.unfinished import Allowance, TimeIsUp
    from dpmerge_lab.training import private_sgd
    from dpmerge_lab.training.recipe import LabRecipe
    from dpmerge_lab.training.trainers import chained

    fresh: list[Any] = []
    begin, batch, check = private_sgd.Randomness.__init__, LabRecipe.batch, Allowance.check

    def begun(randomness: Any, where: Any) -> None:
        begin(randomness, where)
        fresh.append(randomness)

    def drawn(recipe: Any, _: Any, examples: int, step: int) -> Any:
        """A step's batch and views are always the same, and noise is left out, so that a run can be made twice."""
        fresh[-1].views.manual_seed(step)
        return batch(recipe, np.random.default_rng(step), examples, step)

    silent = {key: replace(setting, noise_multiplier=0.0) for key, setting in SETTINGS.items()}
    monkeypatch.setattr("dpmerge_lab.experiments.aggregation_settings.SETTINGS", silent)
    monkeypatch.setattr(private_sgd.Randomness, "__init__", begun)
    monkeypatch.setattr(LabRecipe, "batch", drawn)
    make([name], [1], None, "cpu", QUICK, tmp_path / "whole")

    checks = itertools.count(1)
    monkeypatch.setattr(Allowance, "check", lambda one: check(replace(one, minutes=0) if next(checks) % 4 == 0 else one))
    state, commands = tmp_path / "states" / f"{name}-1.pt", 0
    fresh.clear()
    while not (tmp_path / "parts" / f"{name}-1.json").exists():
        checks, commands = itertools.count(1), commands + 1
        with contextlib.suppress(TimeIsUp):
            make([name], [1], None, "cpu", QUICK, tmp_path / "parts", states=state.parent)
            assert not state.exists()
        if commands == 1:
            begun = torch.load(state, weights_only=True)["reached"]["name"]
    assert commands == 6  # 8 steps, and 4 on each of two aggregates
    whole, parts = (json.loads((tmp_path / which / f"{name}-1.json").read_text()) for which in ("whole", "parts"))
    assert (parts["measured"], parts["history"]) == (whole["measured"], whole["history"])
    assert list(parts) == list(whole)
    said = [one.said["noise"] for one in fresh]
    assert len(set(said)) == len(said) == 8  # three commands made the plain run, and the last of them began another
    assert parts["record"]["mechanism"]["noise_fingerprint"] == chained(said[:3])
    assert parts["record"]["mechanism"]["run"] == begun  # whoever goes on from one state twice has two records of one run


def test_a_run_that_was_begun_otherwise_is_not_gone_on_with(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from dpmerge_lab.experiments.unfinished import Allowance, TimeIsUp, Unfinished

    path, where = tmp_path / "states" / "a.pt", torch.device("cpu")
    begun = Unfinished(path, {"steps": 8}, Allowance(minutes=0))
    assert begun.begun(where) is None
    with pytest.raises(TimeIsUp, match="0 minutes are over; the same command goes on from what is kept"):
        begun.check(lambda: {"step": 3, "iterate": torch.ones(2)})
    assert (begun.begun(where) or {})["step"] == 3
    with pytest.raises(TrainingError, match=r"a\.pt: this run was begun with other settings; remove it"):
        replace(begun, asked={"steps": 9}).begun(where)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TrainingError, match=r"a\.pt: cannot be read \(.*\); remove it to begin this run anew"):
        begun.begun(where)
    begun.end()
    assert not path.exists()
    replace(begun, allowed=Allowance()).check(dict)
    assert not path.exists()


def test_a_kept_run_that_is_damaged_is_named(tmp_path: Path) -> None:
    for name in SETTINGS:
        (tmp_path / f"{name}-1.json").write_text("{")
    with pytest.raises(TrainingError, match=r"eps1-1\.json: cannot be read: .*; remove it to make it again"):
        aggregation_cifar10(Options(folder=tmp_path))


@pytest.mark.parametrize(("size", "name"), [(Size(), "eps1-lr2"), (SMALL, "eps2")])
def test_runs_of_another_size_are_refused(size: Size, name: str) -> None:
    with pytest.raises(TrainingError, match=f"no run of this size is called '{name}'; there are eps1, "):
        size.setting(name)


def test_other_learning_rates_change_nothing_else() -> None:
    for name, setting in EVERY_RATE.items():
        base, _, rate = name.rpartition("-lr")
        assert setting == replace(IN_SMALL[base], learning_rate=float(rate))


def test_what_is_followed_is_what_its_names_say() -> None:
    """As for the aggregations: iterates are scores themselves."""
    rng = np.random.default_rng(4)
    iterates, labels = [rng.normal(size=(40, 3)) for _ in range(25)], rng.integers(0, 3, 40)
    watcher, asked = Watcher(), []
    for iterate in iterates:
        watcher.see(iterate)

    def predict(scores: np.ndarray) -> np.ndarray:
        asked.append(scores)
        return np.asarray(np.exp(scores))

    seen = watcher.look(predict, labels)
    assert seen["last iterate"] == accuracies(iterates[-1], labels)
    assert seen["UTA, last 20"] == accuracies(np.mean(iterates[-20:], axis=0), labels)
    assert seen["OPA, last 20"] == accuracies(np.sum(np.exp(iterates[-20:]), axis=0), labels)
    votes = np.array([np.bincount([scores[i].argmax() for scores in iterates[-20:]], minlength=3) for i in range(40)])
    assert seen["OMV, last 20"] == accuracies(votes, labels)
    assert len(asked) == 22
    watcher.look(predict, labels)
    assert len(asked) == 24  # no iterate is asked twice, only the averages
