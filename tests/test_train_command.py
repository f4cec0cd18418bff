"""`dpmerge train`: files that are refused, portfolios that appear whole, runs that continue, one line for every mistake."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.errors import DataError, DpmergeError, TrainingError
from dpmerge.planning import Utilities
from dpmerge.records import DpSgd, Portfolio
from dpmerge.training import PortfolioFile, Recipe, data as training_data, linear, portfolio, train_portfolio
from dpmerge.training.data import DataSource, load
from dpmerge.training.trainer import find_trainer

DEFAULTS = {"model": "softmax", "learning_rate": 1.2, "rate": 0.1, "steps": 20, "clip": 2.01}
LINEAR = {
    "data": "digits",
    "norm_bound": 1.415,
    "defaults": DEFAULTS,
    "runs": {"a": {"noise_multiplier": 1, "checkpoints": [5]}, "b": {"noise_multiplier": 2.5}},
}


def written(folder: Path, content: dict[str, Any] | str = LINEAR) -> Path:
    path = folder / "portfolio.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def changed(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**LINEAR, **fields}.items() if value is not None}


def trained(path: Path, out: Path, **options: Any) -> dict[str, Any]:
    return train_portfolio(PortfolioFile.load(path), out, jobs=options.pop("jobs", 1), **options)


def mechanisms(out: Path) -> dict[str, DpSgd]:
    found = {model.name: model.mechanism for model in Portfolio(out).models}
    assert all(isinstance(mechanism, DpSgd) for mechanism in found.values())
    return found  # type: ignore[return-value]


def tree(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


# --- the whole command --------------------------------------------------------------------------------------------------------


def test_a_portfolio_from_a_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["train", str(written(tmp_path)), "--out", str(out), "--jobs", "2"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "a@5" in result.stdout and "measured on the private models" in result.stdout
    found = mechanisms(out)  # which checks that the checkpoints of a run continue each other
    assert set(found) == {"a@5", "a", "b"}
    assert found["a@5"].run == found["a"].run != found["b"].run
    assert found["a"].noise_fingerprint != found["b"].noise_fingerprint
    assert (found["a@5"].steps, found["a"].steps, found["b"].noise_multiplier) == (5, 20, 2.5)
    assert all(record.smoothness == pytest.approx(1.415**2 / 2) and record.convex == "unclipped" for record in found.values())
    assert all(model.record.dataset == "sklearn-digits-train-1437" for model in Portfolio(out).models)
    utilities = Utilities.parse(Portfolio(out), str(out / "utilities.json"))
    assert utilities.provenance == "after-looking"
    before = tree(out)
    again = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    document = json.loads(again.stdout)
    assert document["trained"] == [] and set(document["models"]) == {"a@5", "a", "b"}
    assert dict(zip(Portfolio(out).names, utilities.values, strict=True)) == {
        name: facts["accuracy"] for name, facts in document["models"].items()
    }
    assert tree(out) == before  # nothing was made again
    plan = ["plan", str(out), "--epsilon", "8", "--delta", "1e-4", "--utility", str(out / "utilities.json"), "--json"]
    assert CliRunner().invoke(app, plan, catch_exceptions=False).exit_code == 0


def test_epochs_batches_schedules_and_two_classes(tmp_path: Path) -> None:
    content = {
        "data": "digits",
        "dataset": "mine",
        "positive": [1, 3, 5, 7, 9],
        "normalise": {"mean": [0.1], "deviation": [0.5]},
        "norm_bound": 3,
        "defaults": {"model": "logistic", "learning_rate": 1e-1, "batch": 256, "epochs": 2, "clip": 1, "noise_multiplier": 1},
        "runs": {
            "batch": {"warmup": 1, "decay": True, "checkpoints": [1], "weight_decay": 1e-2},
            "full": {"full_batch": True, "steps": 3},
            "same": None,
        },
    }
    trained(written(tmp_path, content), tmp_path / "out")
    found = mechanisms(tmp_path / "out")
    assert set(found) == {"batch", "batch@6", "full", "same"}
    assert found["batch"].steps == 12  # two times ⌈1437/256⌉
    assert found["batch"].sampling.rate == 256 / 1437 and found["batch"].expected_batch == pytest.approx(256)
    rates = [phase.learning_rate for phase in found["batch"].phases for _ in range(phase.steps)]
    assert rates == Recipe(steps=12, learning_rate=0.1, clip=1.0, noise_multiplier=1.0, warmup=6, decay=True).learning_rates()
    assert {phase.weight_decay for phase in found["batch"].settings()} == {0.01}
    assert {phase.weight_decay for phase in found["same"].settings()} == {0.0}
    assert (found["batch@6"].checkpoints_kept, found["batch"].checkpoints_kept) == (None, 1)
    assert (found["full"].steps, found["full"].sampling.scheme, found["full"].expected_batch) == (3, "full-batch", 1437.0)
    assert {record.convex for record in found.values()} == {"glm"}
    assert {record.smoothness for record in found.values()} == {9 / 4}
    assert {model.record.dataset for model in Portfolio(tmp_path / "out").models} == {"mine"}


def test_training_on_aggregates_and_batches_that_shift(tmp_path: Path) -> None:
    pytest.importorskip("dpmerge_lab", reason="the laboratory is not installed")
    content = {
        "data": "digits",
        "norm_bound": 1.415,
        "defaults": {"model": "softmax", "learning_rate": 1.0, "rate": 0.1, "steps": 12, "clip": 2, "noise_multiplier": 1},
        "runs": {
            "tail": {"on_aggregates": {"start": 4, "last": 3}, "checkpoints": [8]},
            "moving": {"on_aggregates": {"start": 0, "decay": 0.5, "warm_up": True}},
            "swings": {"shift": {"period": 4}, "checkpoints": [6]},
        },
    }
    trained(written(tmp_path, content), tmp_path / "out")
    found = mechanisms(tmp_path / "out")
    assert found["tail"].optimizer == "sgd from the mean of the last 3 iterates after step 4"
    assert found["moving"].optimizer == "sgd from a moving average with decay 0.5, warmed up after step 0"
    assert "shift" in found["swings"].optimizer
    phases = [phase for phase in found["swings"].settings() for _ in range(phase.steps)]
    rates = [phase.sampling.rate for phase in phases if phase.sampling.rate]
    assert len(rates) == 12 and len(set(rates)) == 2  # the falling part's: p(0) = 1 and p(1) = ½ of it, over and over
    assert max(rates) == pytest.approx(2 * min(rates)) and found["swings"].expected_batch == pytest.approx(143.7)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"on_aggregates": {"start": 4}}, "give one of last"),
        ({"on_aggregates": {"start": 4, "last": 2, "decay": 0.5}}, "give one of last"),
        ({"on_aggregates": {"start": 4, "last": 2, "warm_up": True}}, "warm_up belongs to a moving average"),
        ({"shift": {"period": 1}}, "period"),
        ({"shift": {"period": 4}, "full_batch": True}, "full batches cannot shift"),
    ],
)
def test_aggregates_and_shifts_that_cannot_be_meant(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    pytest.importorskip("dpmerge_lab", reason="the laboratory is not installed")
    content = changed()
    content["runs"] = {"a": {"noise_multiplier": 1, **fields}}
    with pytest.raises(TrainingError, match=text):
        PortfolioFile.load(written(tmp_path, content))


def test_files_that_cannot_be_meant_are_refused_by_field(tmp_path: Path) -> None:
    runs = {"a": {"noise_multiplier": 1}}
    for content, text in (
        ("runs: {a: 1\n", "not valid YAML: expected ',' or '}'.*line 2"),
        ("data: digits\ndata: mnist\n", r"the field 'data' appears twice \(line 2\)"),
        ("data: digits\nruns: {a: {clip: 1, clip: 2}}\n", "the field 'clip' appears twice"),
        ("data: digits\nruns: {1: {clip: 1}}\n", "the name 1 is not text; quote it"),
        ("data: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("- a\n- b\n", "[Ii]nput should be an object"),
        ("", "[Ii]nput should be an object"),
        (changed(dat="x"), "field dat: unknown field"),
        (changed(data=None), "field data: missing"),
        (changed(runs={}), "field runs: .*at least 1"),
        (changed(norm_bound=1), "field norm_bound: .*greater than 1"),
        (changed(norm_bound=math.inf), "field norm_bound: .*finite"),
        (changed(normalise={"mean": [1], "deviation": [1, 2]}), "1 means but 2 deviations"),
        (changed(normalise={"mean": [0.1], "deviation": [0]}), "field normalise.deviation.0"),
        (changed(runs={"a/b": {}}), "run 'a/b': a name has letters"),
        (changed(runs={".a": {}}), "run '.a': a name has letters"),
        (changed(runs={"a": {"noise_multiplier": 1, "modle": "mlp"}}), "run 'a': field modle: unknown field"),
        (changed(runs={"a": {"model": "gpt"}}), "run 'a': field model: must be one of softmax.*got 'gpt'"),
        (changed(defaults={}, runs=runs), "run 'a': field model: must be one of"),
        (changed(runs={"a": {}}), "run 'a': field noise_multiplier: missing"),
        (changed(runs={"a": {"noise_multiplier": "1"}}), "run 'a': field noise_multiplier: .*valid number"),
        (changed(runs={"a": {"noise_multiplier": -1}}), "run 'a': field noise_multiplier"),
        (changed(runs={"a": {"noise_multiplier": 1, "weight_decay": -1}}), "run 'a': field weight_decay"),
        (changed(runs={"a": {"noise_multiplier": 1, "rate": 2}}), "run 'a': field rate"),
        (changed(runs={"a": {"noise_multiplier": 1, "steps": 2, "epochs": 1}}), "give one of steps, epochs"),
        (changed(runs={"a": {"noise_multiplier": 1, "batch": 2, "full_batch": True}}), "give one of batch, rate, full_batch"),
        (changed(runs={"a": {"noise_multiplier": 1, "warmup": 21}}), "warmup says 21, but the run has 20 steps"),
        (changed(runs={"a": {"noise_multiplier": 1, "checkpoints": [3, 30]}}), "checkpoints says 30, but the run has 20"),
        (changed(runs={"a": {"noise_multiplier": 1, "seed": 3}}), "run 'a': field seed: unknown field"),
    ):
        with pytest.raises(TrainingError, match=text) as caught:
            PortfolioFile.load(written(tmp_path, content))
        assert str(tmp_path / "portfolio.yaml") in str(caught.value)
    with pytest.raises(TrainingError, match="no such file"):
        PortfolioFile.load(tmp_path / "nowhere.yaml")
    (tmp_path / "portfolio.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(TrainingError, match="cannot be read"):
        PortfolioFile.load(tmp_path / "portfolio.yaml")


def test_a_run_may_say_the_same_otherwise_than_the_defaults(tmp_path: Path) -> None:
    text = "data: digits\ndefaults: &d {model: softmax, learning_rate: 1e-3, rate: 1.5e-1, epochs: 2, clip: 1}\n"
    text += "runs: {a: {<<: *d, noise_multiplier: 1, steps: 7, epochs: null, full_batch: true, rate: null}}\n"
    (only,) = PortfolioFile.load(written(tmp_path, text)).runs.values()
    assert (only.steps, only.epochs, only.full_batch, only.rate, only.learning_rate) == (7, None, True, None, 0.001)
    text = text.replace("<<: *d, ", "").replace(", epochs: null", "").replace(", rate: null", "")
    assert PortfolioFile.load(written(tmp_path, text)).runs["a"] == only


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"norm_bound": None}, "run 'a': softmax regression needs norm_bound"),
        ({"runs": {"a": {"noise_multiplier": 1, "model": "logistic"}}}, "run 'a': logistic regression has two classes, not 10"),
        ({"runs": {"a": {"noise_multiplier": 1, "batch": 2000}}}, "run 'a': batch is 2000, but there are 1437 examples"),
        ({"data": "imagenet"}, "no data set is named 'imagenet'"),
        ({"data": "mnist"}, "mnist.npz is needed: name the folder that holds it"),
        ({"classes": 7}, "classes is 7, but digits has 10"),
        ({"positive": [10]}, "some, not all, of the labels 0 to 9"),
        ({"positive": list(range(10))}, "some, not all, of the labels 0 to 9"),
        ({"normalise": {"mean": [0, 0], "deviation": [1, 1]}}, "numbers for 2 channels, but the inputs have 1"),
        ({"data": "tests.test_train_command:arrays"}, "how many classes there are must be stated: field classes"),
        ({"data": "tests.test_train_command:arrays", "classes": 3}, "field dataset: records need a name"),
        ({"data": "nowhere:at_all", "classes": 3}, "cannot be loaded: there is no module 'nowhere'"),
        ({"data": "tests.test_train_command:LINEAR", "classes": 3}, "is not a function"),
        ({"data": "tests.test_train_command:no_pair", "classes": 3}, "must give .train, test."),
        ({"data": "tests.test_train_command:arrays", "classes": 2}, "needs a label from 0 to 1"),
        ({"data": "tests.test_train_command:endless", "classes": 3}, "must be finite; row "),
        ({"data": "tests.test_train_command:halves", "classes": 3}, "labels are float64, not whole numbers"),
        ({"data": "tests.test_train_command:unlike", "classes": 3}, r"inputs to train on are \(4,\), inputs to test on \(5,\)"),
    ],
)
def test_data_and_runs_that_do_not_suit_are_one_line(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(DpmergeError, match=text):
        trained(written(tmp_path, changed(**fields)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["missing-folder", "empty-folder", "not-a-zip"])
def test_a_wrong_data_folder_is_one_line(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    if name != "missing-folder":
        folder.mkdir()
    if name == "not-a-zip":
        (folder / "mnist.npz").write_bytes(b"no")
    path = written(tmp_path, changed(data="mnist"))
    result = CliRunner().invoke(app, ["train", str(path), "--out", str(tmp_path / "out"), "--data", str(folder)])
    assert isinstance(result.exception, DataError)  # which the entry point prints as one line, with exit code 2
    assert "mnist.npz" in str(result.exception)
    with pytest.raises(DataError, match=r"digits .*need no folder"):
        trained(written(tmp_path), tmp_path / "out", data=tmp_path)


def test_mnist_from_a_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images: dict[str, Any] = {
        "x_train": rng.integers(0, 255, (50, 4, 4), np.uint8),
        "x_test": rng.integers(0, 255, (9, 4, 4), np.uint8),
    }
    np.savez(tmp_path / "mnist.npz", **images, y_train=np.arange(50) % 10, y_test=np.arange(9))
    document = trained(written(tmp_path, changed(data="mnist")), tmp_path / "out", data=tmp_path)
    assert document["dataset"] == "mnist-train-50"


def test_exit_code_2_and_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, changed(dat="x"))
    command = [sys.executable, "-m", "dpmerge", "train", str(path), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


# --- data of the user's -------------------------------------------------------------------------------------------------------


def arrays(count: int = 30) -> Any:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((count + 9, 4)), np.arange(count + 9) % 3
    return (x[:count], y[:count]), (x[count:], y[count:])


def no_pair() -> Any:
    return 3


def endless() -> Any:
    (x, y), test = arrays()
    return (x * np.inf, y), test


def halves() -> Any:
    (x, y), test = arrays()
    return (x, y / 2), test


def unlike() -> Any:
    train, (x, y) = arrays()
    return train, (np.hstack([x, x[:, :1]]), y)


_calls: list[int] = []


def restless() -> Any:
    _calls.append(1)
    return arrays(30 + len(_calls))


class Pairs:
    """What a torch dataset is to whoever reads it."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def datasets() -> Any:
    (x, y), (u, v) = arrays()
    return Pairs(x.reshape(-1, 2, 2), y), Pairs(u.reshape(-1, 2, 2), v)


def test_data_by_module_and_function(tmp_path: Path) -> None:
    content = changed(data="tests.test_train_command:arrays", classes=3, dataset="mine", runs={"a": {"noise_multiplier": 1}})
    assert set(trained(written(tmp_path, content), tmp_path / "out")["models"]) == {"a"}
    pairs = load(DataSource("tests.test_train_command:datasets", classes=3))
    assert pairs.shape == (1, 2, 2) and pairs.train.dtype == np.float32
    assert np.array_equal(pairs.train.reshape(-1, 4), load(DataSource("tests.test_train_command:arrays", classes=3)).train)


def test_data_that_change_between_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "load", training_data.load.__wrapped__)  # a worker's, which loads anew
    content = changed(data="tests.test_train_command:restless", classes=3, dataset="mine", runs={"a": {"noise_multiplier": 1}})
    with pytest.raises(TrainingError, match="not the same in every process"):
        trained(written(tmp_path, content), tmp_path / "out")


# --- finished, changed, removed, stopped --------------------------------------------------------------------------------------


def test_what_is_finished_is_never_made_differently(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trained(written(tmp_path), out)
    before = tree(out)
    for fields, text in (
        (
            {"runs": {"a": {"noise_multiplier": 3, "checkpoints": [5]}}},
            "run 'a' in .* was made with noise_multiplier 1.0, .* 3.0",
        ),
        ({"runs": {"b": {"noise_multiplier": 2.5, "decay": True}}}, "run 'b' in .* was made with decay None, .* True"),
        ({"norm_bound": 1.5}, "run 'a' in .* was made with norm_bound 1.415"),
        ({"dataset": "other"}, "run 'a' in .* was made with dataset None, .* 'other'"),
    ):
        with pytest.raises(TrainingError, match=text):
            trained(written(tmp_path, changed(**fields)), out)
    assert tree(out) == before
    more = changed(runs={**LINEAR["runs"], "c": {"noise_multiplier": 9}})  # type: ignore[dict-item]
    document = trained(written(tmp_path, more), out)
    assert document["trained"] == ["c"] and set(json.loads((out / "utilities.json").read_text())["utilities"]) == {
        "a@5",
        "a",
        "b",
        "c",
    }


def test_models_that_were_removed_are_made_again_and_others_are_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trained(written(tmp_path), out)
    first = mechanisms(out)
    for file in (out / "b").iterdir():
        file.unlink()
    (out / "b").rmdir()
    assert trained(written(tmp_path), out)["trained"] == ["b"]
    assert mechanisms(out)["a"] == first["a"] and mechanisms(out)["b"].run != first["b"].run
    (out / "c").mkdir()
    with pytest.raises(TrainingError, match="c exists already and was not made by this run"):
        trained(written(tmp_path, changed(runs={"c": {"noise_multiplier": 9}})), out)
    with pytest.raises(TrainingError, match="cannot be made a folder"):
        trained(written(tmp_path), tmp_path / "portfolio.yaml")
    (tmp_path / "full" / ".training").mkdir(parents=True)
    (tmp_path / "full" / ".training" / "results").write_text("in the way")
    with pytest.raises(TrainingError, match=r"summary.json: cannot be read"):
        trained(written(tmp_path), tmp_path / "full")
    (tmp_path / "full" / ".training" / "results").rename(tmp_path / "full" / ".training" / "locks")
    with pytest.raises(TrainingError, match=r"run 'a': cannot be kept in .*full"):
        trained(written(tmp_path), tmp_path / "full")


def test_a_run_whose_models_had_not_all_appeared_is_completed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trained(written(tmp_path), out)
    before = tree(out)
    (out / "a").rename(out / ".training" / "results" / "a" / "a")
    assert trained(written(tmp_path), out)["trained"] == []
    assert tree(out) == before


def test_a_run_that_fails_leaves_nothing_and_the_others_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = {"a": {"noise_multiplier": 1}, "wild": {"noise_multiplier": 1, "learning_rate": 1e30, "clip": 1e30}}
    with pytest.raises(TrainingError, match=r"run wild-.*: the parameters are no longer finite"):
        trained(written(tmp_path, changed(runs=runs)), out)
    assert Portfolio(out).names == ("a",)
    assert not list(out.glob(".training/results/*wild*"))


def test_out_of_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(linear, "train_heads", too_much)
        with pytest.raises(TrainingError, match="run 'a': the memory of this machine is too small; use fewer jobs"):
            trained(written(tmp_path), tmp_path / "out")
    monkeypatch.setattr("dpmerge.training.portfolio.load", too_much)
    with pytest.raises(TrainingError, match="the memory of this machine is too small for the data 'digits'"):
        trained(written(tmp_path), tmp_path / "out")


def test_control_c_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dpmerge_lab", reason="the laboratory is not installed")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(linear, "train_heads", interrupted)
    result = CliRunner().invoke(app, ["train", str(written(tmp_path)), "--out", str(tmp_path / "out"), "--jobs", "1"])
    assert result.exit_code == 130
    assert result.stderr.startswith("stopped; ") and result.stderr.count("\n") == 1


def test_a_portfolio_killed_in_the_middle_is_continued(tmp_path: Path) -> None:
    pytest.importorskip("dpmerge_lab", reason="the laboratory is not installed")
    out = tmp_path / "out"
    runs = {"quick": {"noise_multiplier": 1, "steps": 2}, "slow": {"noise_multiplier": 1, "steps": 10**6}}
    path = written(tmp_path, changed(runs=runs))
    command = [sys.executable, "-m", "dpmerge", "train", str(path), "--out", str(out), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    steps, end = out / ".training" / "steps" / "slow", time.monotonic() + 300
    while not ((out / "quick").exists() and steps.exists() and steps.read_text() not in ("", "0")):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run_id = mechanisms(out)["quick"].run
    runs["slow"]["steps"] = 2  # nothing of it was kept, so it may still be asked for differently
    assert trained(written(tmp_path, changed(runs=runs)), out)["trained"] == ["slow"]  # once the worker left over has given up
    assert mechanisms(out)["quick"].run == run_id


def test_without_torch_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge_lab.training.trainers.find_spec", lambda name: None)
    path = written(tmp_path, changed(runs={"a": {"noise_multiplier": 1, "model": "mlp"}}))
    with pytest.raises(TrainingError, match=r"run 'a': networks need torch and Opacus; install dpmerge\[torch\]"):
        trained(path, tmp_path / "out")
    with pytest.raises(TrainingError, match="device cuda: all runs are linear models"):
        trained(written(tmp_path), tmp_path / "out", device="cuda")


def test_the_examples_are_those_of_the_docs(tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent / "lab" / "portfolios"
    text = (Path(__file__).parent.parent / "docs" / "training.md").read_text()
    files = {path.stem: PortfolioFile.load(path) for path in folder.glob("*.yaml")}
    assert set(files) == {"mnist", "digits", "digits-mlp", "digits-forks", "knob"}
    assert all(f"```yaml\n{(folder / name).read_text()}```" in text for name in ("mnist.yaml", "digits-mlp.yaml"))
    assert files["mnist"].runs["c2-s0.5"].kept(np.zeros(60_000, dtype=np.int64)) == [705]
    document = train_portfolio(files["digits"], tmp_path / "out", jobs=1)
    assert document["models"]["noise-1"]["accuracy"] > 0.8
    assert {mechanism.convex for mechanism in mechanisms(tmp_path / "out").values()} == {"unclipped"}


# --- without the laboratory ---------------------------------------------------------------------------------------------------


def test_the_tool_alone_trains_linear_models_and_says_where_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.user_code.entry_points", lambda group: ())
    own = changed(data="tests.test_train_command:arrays", classes=3, dataset="mine", runs={"a": {"noise_multiplier": 1}})
    assert set(trained(written(tmp_path, own), tmp_path / "out")["models"]) == {"a"}
    for run, text in (
        (
            {"model": "mlp"},
            r"run 'b': field model: must be one of softmax, logistic, one-vs-rest \(got 'mlp'\); .* installed from",
        ),
        ({"shift": {"period": 4}}, "run 'b': field shift: unknown field"),
    ):
        with pytest.raises(TrainingError, match=text):
            PortfolioFile.load(written(tmp_path, changed(runs={"b": {"noise_multiplier": 1, **run}})))
    with pytest.raises(DataError, match=r"no data set is named 'digits'; give module:function; .* installed from"):
        trained(written(tmp_path), tmp_path / "other")


def test_trainers_of_other_packages_must_be_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.training.trainer.added", lambda group: {"odd": "tests.test_train_command:arrays"})
    with pytest.raises(TrainingError, match="gave tuple; it must be a Trainer"):
        find_trainer("odd")
    with pytest.raises(TrainingError, match="must be one of softmax, logistic, one-vs-rest, odd"):
        find_trainer(["softmax"])
