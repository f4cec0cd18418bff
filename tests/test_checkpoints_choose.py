"""Tuning: aggregates of one run by Alg. 4, training on aggregates by Alg. 3, what each costs, and what is refused."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpmerge.checkpoints import Grid, Run, Score, Search, Tuned, average, averaging, predictions
from dpmerge.datasets import bounded_features
from dpmerge.errors import DataError, DependentRuns, DpmergeError, EvaluationError, PortfolioError, TrainingError, WeightsError
from dpmerge.jobs import Finished, run_all
from dpmerge.profiles import gaussian_epsilon
from dpmerge.records import Record
from dpmerge.rules import Joint
from dpmerge.tensors import linear, read_tensors
from dpmerge.training import Recipe, train
from dpmerge_lab.tasks import digits
from dpmerge_lab.training.averaging import MovingAverage, TrainingOn
from dpmerge_lab.training.tuning import Trial, TunedTraining, tune_training
from tests import builders
from tests.release_builders import DELTA, dpmerge

NORM = math.sqrt(2)
STEPS, EVERY = 24, 2
here = partial(run_all, jobs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A noisy private softmax regression on the digits, kept every two steps."""
    home = tmp_path_factory.mktemp("tuning") / "run"
    part, _ = digits.load()
    recipe = Recipe(steps=STEPS, learning_rate=8.0, clip=2.001, noise_multiplier=8.0, rate=0.1)
    kept = range(EVERY, STEPS, EVERY)
    features = bounded_features(part.images, NORM)
    for model in train(features, part.labels, 10, recipe, norm_bound=NORM, dataset="digits", checkpoints=kept):
        model.save(home / f"step-{model.step}")
    return home


def search(folder: Path, grid: Grid, **changes: Any) -> Search:
    return Search.of(folder, grid, **{"validation_is_public": True, "task": "digits", "norm_bound": NORM, **changes})


def inputs() -> tuple[Any, Any]:
    _, test = digits.load()
    return bounded_features(test.images, NORM)[:, :-1], test.labels


def complaint(*arguments: object) -> str:
    result = dpmerge(*arguments)
    assert isinstance(result.exception, DpmergeError), result.output
    return str(result.exception)


# --- Alg. 4: the scores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["opa", "omv"])
def test_scores_of_predictions_are_those_of_predict(rule: Any, folder: Path) -> None:
    values, labels = inputs()
    found = search(folder, Grid(rule, "last", (1, 3, 7, 12))).tuned(here)
    for score in found.scores:
        assert score.value is not None
        own = predictions(folder, rule, linear.linear_scores, values, last=int(score.value))
        assert score.validation == own.accuracy(labels) and score.rest is None
    assert found.last.value is None and found.last.validation == found.scores[0].validation
    assert len({score.validation for score in found.scores}) > 1, "aggregates that all score alike say nothing"


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid("uta", "last", (3, 12)), [{"last": 3}, {"last": 12}]),
        (Grid("ema", "decay", (0.5, 0.9), warm_up=True), [{"decay": 0.5, "warm_up": True}, {"decay": 0.9, "warm_up": True}]),
        (Grid("ema", "new_weight", (0.3,)), [{"new_weight": 0.3}]),
        (Grid("pda", "gamma", (0.0, 8.0)), [{"gamma": 0.0}, {"gamma": 8.0}]),
    ],
)
def test_scores_of_averages_are_those_of_what_is_released(grid: Grid, options: Any, folder: Path, tmp_path: Path) -> None:
    values, labels = inputs()
    found = search(folder, grid).tuned(here)
    for place, (score, option) in enumerate(zip(found.scores, options, strict=True)):
        released = average(folder, tmp_path / str(place), rule=grid.rule, delta=DELTA, **option)  # type: ignore[arg-type]
        said = linear.linear_scores(released.folder, values)
        assert score.validation == float(np.mean(said.argmax(axis=1) == labels))


def test_a_tail_of_one_is_the_last_checkpoint_and_until_counts_back_from_there(folder: Path) -> None:
    values, labels = inputs()
    found = search(folder, Grid("uta", "last", (1, 2)), until=10).tuned(here)
    own = linear.linear_scores(folder / "step-10", values).argmax(axis=1)
    assert found.scores[0].validation == found.last.validation == float(np.mean(own == labels))
    both = [read_tensors(folder / f"step-{step}") for step in (8, 10)]
    mean = {name: (both[0][name].astype(float) + both[1][name]) / 2 for name in both[0]}
    labels_of_mean = (values @ mean["weight"].T + mean["bias"]).argmax(axis=1)
    assert found.scores[1].validation == pytest.approx(float(np.mean(labels_of_mean == labels)), abs=1 / len(labels))


def test_some_examples_choose_and_the_others_measure(folder: Path) -> None:
    values, labels = inputs()
    found = search(folder, Grid("opa", "last", (3, 9)), validation=100).tuned(here)
    for score in found.scores:
        assert score.value is not None
        right = predictions(folder, "opa", linear.linear_scores, values, last=int(score.value)).labels == labels
        assert (score.validation, score.rest) == (right[:100].mean(), right[100:].mean())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_the_best_is_the_one_of_algorithm_4(right: list[int]) -> None:
    grid = Grid("uta", "last", tuple(range(1, len(right) + 1)))
    scores = tuple(Score(value, count / 4, None) for value, count in zip(grid.values, right, strict=True))
    most, best = 0.0, 1.0
    for score in scores:  # as the paper writes it
        if score.validation > most:
            assert score.value is not None
            most, best = score.validation, score.value
    assert Tuned(grid, scores, scores[0]).best.value == best


def test_many_processes_find_the_same(folder: Path) -> None:
    asked = search(folder, Grid("uta", "last", (2, 4, 6)))
    assert asked.tuned(partial(run_all, jobs=2)) == asked.tuned(here)


# --- Alg. 4: kept, and found again --------------------------------------------------------------------------------------------


def kept(path: Path, asked: Search) -> Tuned:
    with Finished(path) as finished:
        return asked.tuned(partial(run_all, jobs=1, finished=finished))


def test_a_search_that_was_killed_continues(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tried, truly = tmp_path / "points.jsonl", [], Search.__call__

    def counted(self: Search, value: float | None) -> tuple[int, int]:
        tried.append(value)
        if value == 5:
            raise EvaluationError("killed")
        return truly(self, value)

    monkeypatch.setattr(Search, "__call__", counted)
    with pytest.raises(EvaluationError, match="killed"):
        kept(path, search(folder, Grid("uta", "last", (3, 5, 7))))
    assert tried == [None, 3, 5]
    monkeypatch.setattr(Search, "__call__", truly)
    found = kept(path, search(folder, Grid("uta", "last", (3, 5, 7))))
    assert found == search(folder, Grid("uta", "last", (3, 5, 7))).tuned(here)
    monkeypatch.setattr(Search, "__call__", counted)
    assert kept(path, search(folder, Grid("uta", "last", (7, 5, 3)))).scores == found.scores[::-1]
    assert tried == [None, 3, 5], "what was finished is not done again"


def test_scores_of_something_else_are_not_mistaken_for_these(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    grid = Grid("uta", "last", (3,))
    prints = [search(folder, grid).fingerprint, search(copy, grid).fingerprint]
    assert prints[0] == prints[1], "the same files elsewhere are the same"
    shutil.copy(folder / "step-2" / "model.safetensors", copy / "step-4" / "model.safetensors")
    prints += [
        search(copy, grid).fingerprint,
        search(folder, grid, validation=100).fingerprint,
        search(folder, grid, norm_bound=2.0).fingerprint,
        search(folder, grid, until=20).fingerprint,
        search(folder, Grid("opa", "last", (3,))).fingerprint,
    ]
    assert len({*prints[1:]}) == len(prints) - 1


# --- Alg. 4: what it costs ----------------------------------------------------------------------------------------------------


def test_choosing_costs_the_run_up_to_its_last_checkpoint(folder: Path) -> None:
    run = Run.load(folder)
    alone = {
        model.name: Joint(run.portfolio.weights({model.name: 1.0})).guarantee(delta=DELTA).epsilon for model in run.checkpoints
    }
    for until in (None, 8):
        found = search(folder, Grid("uta", "last", (1, 2)), until=until).guarantee(DELTA)
        assert found.epsilon == alone[f"step-{STEPS}"] > alone["step-8"]
        assert (
            found.theorem == "single-run" and "labels that predictions are compared with, are public" in found.assumptions[-1]
        )


# --- Alg. 4: the command ------------------------------------------------------------------------------------------------------


def command(folder: Path, out: Path, *more: object) -> tuple[object, ...]:
    return (
        "run",
        "choose",
        folder,
        "--task",
        "digits",
        "--norm-bound",
        NORM,
        "--delta",
        DELTA,
        "--out",
        out,
        "--jobs",
        1,
        *more,
    )


def test_the_command_says_what_the_library_says(folder: Path, tmp_path: Path) -> None:
    asked = search(folder, Grid("ema", "decay", (0.5, 0.9), warm_up=True), validation=180)
    options = ("--rule", "ema", "--decays", "0.5,0.9", "--warm-up", "--validation", 180, "--validation-is-public")
    result = dpmerge(*command(folder, tmp_path / "out", *options, "--json"))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told.items() >= asked.tuned(here).as_dict().items()
    assert told["guarantee"]["epsilon"] == asked.guarantee(DELTA).epsilon
    held = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert {"file": str(tmp_path / "out" / "tuning.json"), **held} == told
    plain = dpmerge(*command(folder, tmp_path / "out", *options))
    best = asked.tuned(here).best
    assert f"│ {best.value:g} " in plain.output and "the last checkpoint alone" in plain.output and "best" in plain.output
    assert "cost as much as the run up to its last checkpoint" in plain.output and "are public" in plain.output


@pytest.mark.parametrize(
    "options",
    [("uta", "--values", "2,4"), ("omv", "--values", "3"), ("ema", "--new-weights", "0.25"), ("pda", "--values", "0.5")],
)
def test_the_command_that_it_proposes_makes_what_was_scored(options: Any, folder: Path, tmp_path: Path) -> None:
    result = dpmerge(*command(folder, tmp_path / "out", "--rule", *options, "--until", 20, "--validation-is-public", "--json"))
    told = json.loads(result.stdout)
    proposed = shlex.split(told["release"])
    assert proposed[0] == "dpmerge" and proposed[-1] == "…"
    values, labels = inputs()
    if options[0] == "omv":
        made = dpmerge(*proposed[1:-1], tmp_path / "said.json", "--task", "digits", "--norm-bound", NORM, "--json")
        assert json.loads(made.stdout)["accuracy"] == told["best"]["validation"]
    else:
        made = dpmerge(*proposed[1:-1], tmp_path / "model")
        said = linear.linear_scores(tmp_path / "model", values)
        assert float(np.mean(said.argmax(axis=1) == labels)) == told["best"]["validation"]
    assert made.exit_code == 0, made.output


def test_what_the_command_refuses_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    public = "--validation-is-public"
    for options, reason in (
        (("--rule", "uta", "--values", "3"), "report-noisy-max"),
        (("--rule", "uta", public), "uta is tuned over --values"),
        (("--rule", "uta", "--decays", "0.5", public), "uta is tuned over --values"),
        (("--rule", "ema", "--values", "3", public), "ema is tuned over --decays or --new-weights"),
        (("--rule", "ema", "--decays", "0.5", "--new-weights", "0.5", public), "ema is tuned over --decays or --new-weights"),
        (("--rule", "uta", "--values", "3,x", public), "cannot read the values '3,x'"),
        (("--rule", "uta", "--values", "3,3", public), "distinct values"),
        (("--rule", "omv", "--values", "2.5", public), "a whole number of last checkpoints, not 2.5"),
        (("--rule", "omv", "--values", "nan", public), "a whole number of last checkpoints, not nan"),
        (("--rule", "uta", "--values", "0", public), "`last` is 0"),
        (("--rule", "uta", "--values", "13", public), "`last` is 13"),
        (("--rule", "ema", "--decays", "0.5,1", public), "decay"),
        (("--rule", "pda", "--values", "-1", public), "gamma"),
        (("--rule", "uta", "--values", "3", "--warm-up", public), "the warm-up belongs to ema"),
        (("--rule", "uta", "--values", "3", "--until", "5", public), "no checkpoint of step 5"),
        (("--rule", "uta", "--values", "3", "--validation", "0", public), "`validation` is 0"),
        (("--rule", "uta", "--values", "3", "--validation", "361", public), "`validation` is 361"),
        (("--rule", "uta", "--values", "3", "--predict", "nothing", public), "no predictor is named"),
    ):
        assert reason in complaint(*command(folder, out, *options))
        assert not out.exists()


def test_gaps_and_missing_labels_are_refused(folder: Path, tmp_path: Path) -> None:
    gapped = tmp_path / "run"
    shutil.copytree(folder, gapped)
    shutil.rmtree(gapped / "step-12")
    with pytest.raises(PortfolioError, match="step 12 is missing"):
        search(gapped, Grid("uta", "last", (3,)))
    assert len(search(gapped, Grid("uta", "last", (3,)), allow_gaps=True).tuned(here).scores) == 1
    np.savez(tmp_path / "unlabelled.npz", inputs=np.zeros((3, 64)))
    with pytest.raises(DataError, match="tuning needs labels"):
        search(folder, Grid("uta", "last", (3,)), task=None, data=tmp_path / "unlabelled.npz")


@pytest.mark.parametrize(
    ("rule", "parameter", "reason"),
    [("mean", "last", "no rule to tune"), ("uta", "decay", "no parameter decay"), ("ema", "last", "decay or new_weight")],
)
def test_grids_that_are_none(rule: Any, parameter: Any, reason: str) -> None:
    with pytest.raises(WeightsError, match=reason):
        Grid(rule, parameter, (1.0,))


# --- Alg. 3 -------------------------------------------------------------------------------------------------------------------

SIGMA, T = 20.0, 30


def record(run: str, **changes: Any) -> Record:
    """Of a full-batch run, whose guarantee is a closed form."""
    return builders.dp_sgd(run, steps=T, sigma=SIGMA, run=run, **{"noise_fingerprint": f"noise of {run}", **changes}).record


def scored(parameter: float, start: int) -> tuple[float, Record]:
    """As good as (p, τ) is close to (0.9, 20)."""
    return 1 - abs(parameter - 0.9) - abs(start - 20) / 100, record(f"{parameter} {start}")


def test_every_point_of_the_grid_is_tried_and_the_first_best_wins() -> None:
    found = tune_training(scored, (0.8, 0.9), (10, 20), jobs=1)
    assert [(one.parameter, one.start) for one in found.trials] == [(0.8, 10), (0.8, 20), (0.9, 10), (0.9, 20)]
    assert [one.accuracy for one in found.trials] == [scored(one.parameter, one.start)[0] for one in found.trials]
    assert (found.best.parameter, found.best.start) == (0.9, 20)
    tied = TunedTraining(tuple(Trial(p, 0, 0.5, record(str(p))) for p in (3, 1, 2)))
    assert tied.best.parameter == 3
    assert tied.as_dict()["best"] == {"parameter": 3, "start": 0, "accuracy": 0.5}


@pytest.mark.parametrize("trials", [1, 4, 9])
def test_choosing_among_runs_costs_all_of_them(trials: int) -> None:
    found = tune_training(scored, [0.1 * k for k in range(trials)], (10,), jobs=1)
    together = gaussian_epsilon(math.sqrt(trials * T) / SIGMA, DELTA)
    assert found.guarantee(DELTA).epsilon == pytest.approx(together, rel=1e-6)
    assert found.guarantee(DELTA).theorem == ("joint-release" if trials > 1 else "single-run")
    price = found.price(DELTA)
    assert price["trials"] == trials
    assert price["epsilon of all trials together"] == found.guarantee(DELTA).epsilon
    alone = price["epsilon of the best run alone, had it been the only one"]
    assert alone == pytest.approx(gaussian_epsilon(math.sqrt(T) / SIGMA, DELTA), rel=1e-6)
    assert "account --tuning" in price["why"]


def killed(calls: list[tuple[float, int]], parameter: float, start: int) -> tuple[float, Record]:
    calls.append((parameter, start))
    if len(calls) == 2:
        raise TrainingError("killed")
    return scored(parameter, start)


def test_finished_trials_are_not_made_again(tmp_path: Path) -> None:
    calls: list[tuple[float, int]] = []
    make = partial(killed, calls)
    with Finished(tmp_path / "trials.jsonl") as finished:
        with pytest.raises(TrainingError, match="killed"):
            tune_training(make, (0.8, 0.9), (10, 20), name="a", finished=finished, jobs=1)
        found = tune_training(make, (0.8, 0.9), (10, 20), name="a", finished=finished, jobs=1)
        assert calls == [(0.8, 10), (0.8, 20), (0.8, 20), (0.9, 10), (0.9, 20)]
        tune_training(make, (0.8,), (10,), name="another search", finished=finished, jobs=1)
        assert calls[-1] == (0.8, 10)
    assert found == tune_training(scored, (0.8, 0.9), (10, 20), jobs=1)


def test_what_tuning_of_training_refuses(tmp_path: Path) -> None:
    for parameters, starts in (((), (1,)), ((1.0,), ()), ((1.0, 1.0), (1,)), ((1.0,), (2, 2))):
        with pytest.raises(TrainingError, match="each of them once"):
            tune_training(scored, parameters, starts, jobs=1)
    with Finished(tmp_path / "trials.jsonl") as finished, pytest.raises(TrainingError, match="found again by name"):
        tune_training(scored, (0.8,), (10,), finished=finished, jobs=1)
    with pytest.raises(TrainingError, match=r"p = 0.8, τ = 10: the accuracy is nan"):
        tune_training(lambda p, start: (math.nan, record("a")), (0.8,), (10,), jobs=1)
    with pytest.raises(TrainingError, match=r"p = 0.8, τ = 10 and p = 0.9, τ = 10 have records of one run"):
        tune_training(lambda p, start: (0.5, record("a")), (0.8, 0.9), (10,), jobs=1)
    shared = tune_training(lambda p, start: (0.5, record(str(p), noise_fingerprint="same")), (0.8, 0.9), (10,), jobs=1)
    with pytest.raises(DependentRuns):
        shared.guarantee(DELTA)


def test_training_on_a_moving_average_makes_smaller_steps() -> None:
    """docs/checkpoints.md: with new weight b it is plain training at b times the learning rate, from the average on."""
    rate, new, start = 0.3, 0.25, 4
    run = TrainingOn(MovingAverage(new_weight=new), start).begin(np.array([5.0, -2.0]))
    slopes = np.array([1.0, 0.3])
    theta = expected = np.array([5.0, -2.0])
    for step in range(1, 12):
        theta = run.next_start(theta - rate * slopes * theta)
        expected = run.current if step <= start else expected - new * rate * slopes * expected
        assert step < start or theta == pytest.approx(expected, rel=1e-12)


def test_weights_that_a_grid_stands_for() -> None:
    assert Grid("ema", "decay", (0.9,), warm_up=True).average(0.9, 5) == averaging("ema", 5, decay=0.9, warm_up=True)
    assert Grid("uta", "last", (3,)).average(3, 3).weights() == [1 / 3] * 3
