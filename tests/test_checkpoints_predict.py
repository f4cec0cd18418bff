"""Predictions of several checkpoints together: means, votes, ties, files, what is printed, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from dpmerge.checkpoints import Run, find_predictor, load_inputs, predictions, predictions_guarantee
from dpmerge.checkpoints.predict import combined, probabilities_of
from dpmerge.datasets import bounded_features
from dpmerge.errors import DataError, DpmergeError, EvaluationError, PortfolioError
from dpmerge.rules import Joint
from dpmerge.tensors import linear
from dpmerge.training import Recipe, accuracy as training_accuracy, scores as training_scores, train
from dpmerge_lab.tasks import digits
from tests.checkpoint_builders import single
from tests.release_builders import DELTA, dpmerge
from tests.run_builders import run_on_disk

Scores = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A private softmax regression on the digits, kept every five steps."""
    folder = tmp_path_factory.mktemp("digits")
    train_part, _ = digits.load()
    features = bounded_features(train_part.images, math.sqrt(2))
    recipe = Recipe(steps=30, learning_rate=1.2, clip=2.001, noise_multiplier=2.0, rate=0.1)
    kept = train(
        features, train_part.labels, 10, recipe, norm_bound=math.sqrt(2), dataset="digits", checkpoints=range(5, 30, 5)
    )
    for model in kept:
        model.save(folder / "run" / f"step-{model.step}")
    return Run.load(folder / "run")


def folder_of(run: Run) -> Path:
    folder = run.checkpoints[0].folder
    assert folder is not None
    return folder.parent


def by_name(answers: dict[str, Any]) -> Any:
    """A predictor that says what it was told to say."""
    return lambda folder, _: answers[folder.name]


def complaint(*arguments: object) -> str:
    result = dpmerge(*arguments)
    assert isinstance(result.exception, DpmergeError), result.output
    return str(result.exception)


# --- means and votes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["opa", "omv"])
def test_one_checkpoint_gives_its_own_predictions(rule: Any, trained: Run) -> None:
    _, test = digits.load()
    for model in trained.checkpoints:
        assert model.folder is not None
        found = predictions(trained, rule, linear.linear_scores, test.images, last=1, until=model.mechanism.steps)  # type: ignore[union-attr]
        own = linear.linear_scores(model.folder, test.images)
        assert found.checkpoints == (model.name,)
        assert (found.labels == own.argmax(axis=1)).all() and not found.ties.any()
        assert found.accuracy(test.labels) == digits.accuracy(model.folder)


def test_means_and_votes_by_brute_force(trained: Run) -> None:
    _, test = digits.load()
    said = [linear.linear_scores(folder_of(trained) / model.name, test.images) for model in trained.last(4)]
    opa = predictions(trained, "opa", linear.linear_scores, test.images, last=4)
    omv = predictions(trained, "omv", linear.linear_scores, test.images, last=4)
    disputed = 0
    for row in range(len(test.images)):
        powers = [[math.exp(score) for score in one[row]] for one in said]
        mean = [math.fsum(power[c] / math.fsum(power) for power in powers) / 4 for c in range(10)]
        assert opa.scores[row] == pytest.approx(mean, rel=1e-12)
        assert opa.labels[row] == max(range(10), key=mean.__getitem__)
        votes = [sum(int(one[row].argmax() == c) for one in said) for c in range(10)]
        disputed += max(votes) < 4
        assert list(omv.scores[row]) == votes
        assert omv.labels[row] == min(c for c in range(10) if votes[c] == max(votes))
        assert omv.ties[row] == (votes.count(max(votes)) > 1)
    assert disputed, "checkpoints that always agree say nothing about votes"


def test_ties_are_counted_and_go_to_the_smallest_label(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path, (10, 20))
    first, second = [[0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [[0.0, 0.0, 1.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    told = by_name({"step-10": first, "step-20": second})
    for rule in ("opa", "omv"):
        found = predictions(run, rule, told, np.zeros(3))
        assert found.labels.tolist() == [1, 0, 1] and found.ties.tolist() == [True, False, True]


def test_one_column_is_the_log_odds_of_class_1(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path, (10, 20))
    told = by_name({"step-10": [[-1.0], [0.0], [800.0]], "step-20": [[2.0], [0.0], [-1.0]]})
    found = predictions(run, "opa", told, np.zeros(3))
    odds = [(1 / (1 + math.exp(1)) + 1 / (1 + math.exp(-2))) / 2, 0.5, (1 + 1 / (1 + math.exp(1))) / 2]
    assert found.scores[:, 1] == pytest.approx(odds, rel=1e-12)
    assert found.labels.tolist() == [1, 0, 1] and found.ties.tolist() == [False, True, False]


@settings(deadline=None, max_examples=60)
@given(arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 4)), elements=st.floats(-700, 700)))
def test_probabilities_and_votes_of_any_scores(scores: Any) -> None:
    said = [probabilities_of(one) for one in scores]
    names = tuple(map(str, range(len(said))))
    opa, omv = combined("opa", iter(said), names), combined("omv", iter(said), names)
    assert opa.scores.min() >= 0 and np.allclose(opa.scores.sum(axis=1), 1)
    assert (omv.scores.sum(axis=1) == len(said)).all()
    for found in (opa, omv):
        assert (found.scores[np.arange(len(found.labels)), found.labels] == found.scores.max(axis=1)).all()
    if len(said) == 1:
        assert (opa.labels == omv.labels).all() and (opa.labels == said[0].argmax(axis=1)).all()


def test_checkpoints_are_asked_one_at_a_time(trained: Run) -> None:
    asked: list[str] = []
    alive: list[weakref.ref[Scores]] = []

    def predictor(folder: Path, inputs: Any) -> Scores:
        assert sum(reference() is not None for reference in alive) <= 1, "scores of earlier checkpoints are kept"
        said = linear.linear_scores(folder, inputs)
        asked.append(folder.name)
        alive.append(weakref.ref(said))
        return said

    seen: list[int] = []
    predictions(trained, "opa", predictor, digits.load()[1].images, on_checkpoint=lambda: seen.append(len(asked)))
    assert asked == [model.name for model in trained.checkpoints]
    assert seen == list(range(1, len(asked) + 1))


def test_rows_that_are_probabilities_already(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path, (10, 20))
    told = by_name({"step-10": [[0.9, 0.1]], "step-20": [[0.3, 0.7]]})
    assert predictions(run, "opa", told, np.zeros(1), probabilities=True).scores == pytest.approx(np.array([[0.6, 0.4]]))
    for bad in ([[0.9, 0.2]], [[1.1, -0.1]]):
        with pytest.raises(EvaluationError, match=r"checkpoint 'step-20'.*input 0 are negative, or do not sum"):
            predictions(run, "opa", by_name({"step-10": [[0.9, 0.1]], "step-20": bad}), np.zeros(1), probabilities=True)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([[1.0, math.nan], [0.0, 0.0]], "scores of input 0 are not finite"),
        ([[1.0, 0.0], [math.inf, 0.0]], "scores of input 1 are not finite"),
        ([[1.0, 0.0]], r"shape \[1, 2\] for 2 inputs"),
        ([1.0, 0.0], r"shape \[2\] for 2 inputs"),
        ([[], []], r"shape \[2, 0\] for 2 inputs"),
        ([[1.0, 0.0, 0.0]] * 2, "has 3 classes, 'step-10' has 2"),
        ("nonsense", "the predictor failed"),
    ],
)
def test_what_a_predictor_may_not_say(answer: Any, reason: str, tmp_path: Path) -> None:
    run = run_on_disk(tmp_path, (10, 20))
    told = by_name({"step-10": [[1.0, 0.0]] * 2, "step-20": answer})
    with pytest.raises(EvaluationError, match=rf"checkpoint 'step-20'.*{reason}|{reason}.*'step-20'"):
        predictions(run, "opa", told, np.zeros(2))


def test_a_predictor_that_fails_is_one_line(trained: Run) -> None:
    def predictor(folder: Path, inputs: Any) -> Scores:
        raise KeyError("no such tensor")

    with pytest.raises(EvaluationError, match=r"failed on checkpoint 'step-5': KeyError: 'no such tensor'"):
        predictions(trained, "opa", predictor, np.zeros(2))
    with pytest.raises(PortfolioError, match="`last` is 7"):
        predictions(trained, "opa", predictor, np.zeros(2), last=7)


# --- linear models and inputs -------------------------------------------------------------------------------------------------


def test_the_linear_predictor_is_the_trainings_own(trained: Run) -> None:
    """With the norm bound that it was trained with: shortened rows, and the bias."""
    generator = np.random.default_rng(0)
    inputs = generator.random((200, 64)).astype(np.float32)
    folder = folder_of(trained) / "step-30"
    tensors: dict[str, Any] = {"weight": generator.normal(size=(10, 64)).astype(np.float32), "bias": generator.normal(size=10)}
    for bound in (math.sqrt(2), 3.0, 100.0):
        features = bounded_features(inputs, bound)
        found = linear.linear_scores(single(folder.parent.parent / f"m{bound}", tensors), features[:, :-1])
        assert found == pytest.approx(training_scores(tensors, features), abs=1e-3)
        labels = found.argmax(axis=1)
        assert training_accuracy(tensors, features, labels) == 1


def test_a_model_that_is_not_linear_is_refused(tmp_path: Path) -> None:
    single(tmp_path / "a", {"weight": np.zeros((3, 4)), "bias": np.zeros(2)})
    single(tmp_path / "b", {"weight": np.zeros((3, 4)), "bias": np.zeros(3), "more": np.zeros(1)})
    for name in "ab":
        with pytest.raises(EvaluationError, match="a linear model of 4 features"):
            linear.linear_scores(tmp_path / name, np.zeros((5, 4)))
    with pytest.raises(DataError, match="must exceed 1"):
        bounded_features(np.zeros((2, 4)), 1.0)


def test_inputs_from_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", inputs=np.ones((3, 2)), labels=np.array([0, 1, 1]))
    found = load_inputs(None, tmp_path / "both.npz", norm_bound=math.sqrt(2))
    assert found.labels is not None and found.labels.tolist() == [0, 1, 1]
    assert found.values == pytest.approx(np.full((3, 2), math.sqrt(0.5)), rel=2e-5)  # with the margin of the training
    np.savez(tmp_path / "inputs.npz", inputs=np.ones((3, 2)))
    assert load_inputs(None, tmp_path / "inputs.npz").labels is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"x": np.ones(3)}, "needs an array inputs"),
        ({"inputs": np.ones(3), "y": np.ones(3)}, "needs an array inputs"),
        ({"inputs": np.ones((0, 3))}, "inputs is empty"),
        ({"inputs": np.ones((2, 3)), "labels": np.array([0, 1, 2])}, "integers from 0 on"),
        ({"inputs": np.ones((2, 3)), "labels": np.array([0.0, 1.0])}, "integers from 0 on"),
        ({"inputs": np.ones((2, 3)), "labels": np.array([0, -1])}, "integers from 0 on"),
        ({"inputs": np.array([object()])}, "not an .npz file"),
    ],
)
def test_files_that_are_no_inputs(content: dict[str, Any], reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", **content)
    with pytest.raises(DataError, match=reason):
        load_inputs(None, tmp_path / "file.npz")


def test_inputs_that_are_not_there(tmp_path: Path) -> None:
    for task, data, reason in (
        (None, None, "give a `task`"),
        (None, tmp_path / "none.npz", "no such file"),
        ("digits", tmp_path, "need no folder"),
        ("mnist", tmp_path, "no such file"),
        ("letters", None, "no data set is named .letters."),
    ):
        with pytest.raises(DataError, match=reason):
            load_inputs(task, data)
    with pytest.raises(EvaluationError, match="no predictor is named 'digits'"):
        find_predictor("digits")
    with pytest.raises(EvaluationError, match="cannot be loaded"):
        find_predictor("no_such_module:function")


# --- the guarantee, and the command -------------------------------------------------------------------------------------------


def test_predictions_cost_what_the_run_costs_up_to_the_latest_checkpoint(trained: Run) -> None:
    used = trained.last(2, until=20)

    def alone(name: str) -> float:
        return Joint(trained.portfolio.weights({name: 1.0})).guarantee(delta=DELTA).epsilon

    looked = predictions_guarantee(trained, used, delta=DELTA)
    fixed = predictions_guarantee(trained, used, delta=DELTA, provenance="a-priori")
    assert looked.epsilon == alone("step-30") > alone("step-20") == fixed.epsilon
    for found in (looked, fixed):
        assert any("the inputs do not depend on the private data" in text for text in found.assumptions)
    assert [("fixed without looking" in " ".join(one.assumptions)) for one in (looked, fixed)] == [False, True]


@pytest.mark.parametrize("rule", ["opa", "omv"])
def test_the_command_writes_what_the_library_says(rule: Any, trained: Run, tmp_path: Path) -> None:
    _, test = digits.load()
    found = predictions(trained, rule, linear.linear_scores, test.images.astype(np.float32), last=3)
    name = {"opa": "probabilities", "omv": "votes"}[rule]
    common = ("run", "predict", folder_of(trained), "--rule", rule, "--last", 3, "--task", "digits", "--delta", DELTA)
    shown = {}
    for suffix in ("json", "csv", "npz"):
        result = dpmerge(*common, "--out", tmp_path / f"said.{suffix}", "--json")
        assert result.exit_code == 0, result.output
        shown[suffix] = json.loads(result.stdout)
    document = json.loads((tmp_path / "said.json").read_text())
    assert document["labels"] == found.labels.tolist() and document[name] == found.scores.tolist()
    assert document["accuracy"] == found.accuracy(test.labels) == shown["json"]["accuracy"]
    assert document["number_of_ties"] == sum(document["ties"]) == int(found.ties.sum())
    assert document["ties_broken_by"] == "the smallest label"
    assert document["checkpoints"] == {"step-20": 20, "step-25": 25, "step-30": 30}
    assert document["guarantee"]["epsilon"] == predictions_guarantee(trained, trained.last(3), delta=DELTA).epsilon
    with (tmp_path / "said.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["label"]) for row in rows] == document["labels"]
    assert [[float(row[f"{name}_{c}"]) for c in range(10)] for row in rows] == document[name]
    assert [int(row["truth"]) for row in rows] == test.labels.tolist() == document["truth"]
    with np.load(tmp_path / "said.npz") as held:
        assert held["labels"].tolist() == document["labels"] and held[name].tolist() == document[name]
        assert json.loads(str(held["about"]))["guarantee"] == document["guarantee"]


def test_the_command_says_what_is_covered(trained: Run, tmp_path: Path) -> None:
    common = ("run", "predict", folder_of(trained), "--rule", "omv", "--delta", DELTA, "--task", "digits")
    result = dpmerge(*common, "--until", 20, "--out", tmp_path / "said.csv")
    assert result.exit_code == 0, result.output
    assert "OMV of 4 checkpoints, steps 5 to 20" in result.output and "ties, broken by the smallest label" in result.output
    assert "the inputs do not depend on the private data" in result.output
    assert "checkpoints up to step 30 are covered" in result.output
    assert "exists already" in complaint(*common, "--out", tmp_path / "said.csv")
    assert "unknown suffix" in complaint(*common, "--out", tmp_path / "said.txt")
    assert "must exceed 1" in complaint(*common, "--norm-bound", 0.5, "--out", tmp_path / "more.csv")
    assert "no predictor is named" in complaint(*common, "--predict", "linear", "--out", tmp_path / "more.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"said.csv"}


def test_a_predictor_of_the_users(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:function` from the working folder, on inputs from a file, labels unknown."""
    code = (
        "from dpmerge.tensors import linear_scores\n\ndef predict(folder, inputs):\n    return linear_scores(folder, inputs)\n"
    )
    (tmp_path / "users_predictor.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    _, test = digits.load()
    np.savez(tmp_path / "public.npz", inputs=test.images[:50])
    common = ("run", "predict", folder_of(trained), "--rule", "opa", "--delta", DELTA, "--data", tmp_path / "public.npz")
    own = dpmerge(*common, "--predict", "users_predictor:predict", "--out", tmp_path / "own.json", "--json")
    assert own.exit_code == 0, own.output
    assert json.loads(own.stdout)["accuracy"] is None
    document = json.loads((tmp_path / "own.json").read_text())
    assert document["labels"] == predictions(trained, "opa", linear.linear_scores, test.images[:50]).labels.tolist()
    assert "truth" not in document
