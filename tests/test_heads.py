"""Heads on public features: data from files, a public network, and trained heads that say how to use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from dpmerge import Portfolio, merge
from dpmerge.cli import app
from dpmerge.errors import CheckpointError, DataError, DpmergeError, TrainingError
from dpmerge.records import DpSgd
from dpmerge.training import HeadConfig, LinearHead, PortfolioFile, train_portfolio

RNG = np.random.default_rng(5)
CENTRES = RNG.standard_normal((3, 6))
LABELS = np.arange(90) % 3
INPUTS = (CENTRES[LABELS] + 0.3 * RNG.standard_normal((90, 6))).astype(np.float32)
ARRAYS: dict[str, Any] = {"x_train": INPUTS[:60], "y_train": LABELS[:60], "x_test": INPUTS[60:], "y_test": LABELS[60:]}
RUN = {"model": "softmax", "learning_rate": 0.2, "full_batch": True, "steps": 8, "clip": 5.0, "noise_multiplier": 0.01}


def portfolio(folder: Path, **fields: Any) -> PortfolioFile:
    content = {"data": "all.npz", "dataset": "mine", "classes": 3, "norm_bound": 3, "runs": {"a": RUN}, **fields}
    path = folder / "portfolio.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return PortfolioFile.load(path)


def write_all(folder: Path) -> None:
    """The same data in every form."""
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    np.savez(folder / "all.npz", **ARRAYS)
    save_file({name: np.ascontiguousarray(array) for name, array in ARRAYS.items()}, folder / "all.safetensors")
    for part in ("train", "test"):
        x, y = ARRAYS[f"x_{part}"], ARRAYS[f"y_{part}"]
        np.save(folder / f"{part}.npy", x)
        np.save(folder / f"{part}-labels.npy", y)
        np.savez(folder / f"{part}.npz", x=x, y=y)
        columns = {f"f{k}": x[:, k] for k in range(6)}
        pq.write_table(pa.table({**columns, "label": y}), folder / f"{part}.parquet")
        pq.write_table(pa.table({"embedding": list(x), "label": y}), folder / f"{part}-lists.parquet")


def test_features_from_every_kind_of_file(tmp_path: Path) -> None:
    write_all(tmp_path)
    forms: list[Any] = [
        "all.npz",
        "all.safetensors",
        {"train": "train.npz", "test": "test.parquet"},
        {"train": "train-lists.parquet", "test": "test.npz"},
        {"train": "train.npy", "train_labels": "train-labels.npy", "test": "test.npy", "test_labels": "test-labels.npy"},
    ]
    from dpmerge.training.data import load

    for form in forms:
        data = load(portfolio(tmp_path, data=form).source(None))
        assert np.array_equal(data.train, ARRAYS["x_train"]) and np.array_equal(data.test, ARRAYS["x_test"]), form
        assert np.array_equal(data.train_labels, ARRAYS["y_train"]) and np.array_equal(data.test_labels, ARRAYS["y_test"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "all.npz").rename(elsewhere / "all.npz")
    with pytest.raises(DataError, match=r"all\.npz: no such file"):
        load(portfolio(tmp_path).source(None))
    assert len(load(portfolio(tmp_path).source(elsewhere)).train) == 60


def test_files_that_do_not_suit_are_one_line(tmp_path: Path) -> None:
    write_all(tmp_path)
    np.savez(tmp_path / "halves.npz", **{**ARRAYS, "y_train": ARRAYS["y_train"] / 2})
    np.savez(tmp_path / "objects.npz", **{**ARRAYS, "y_train": np.array([{}] * 60, dtype=object)})
    np.savez(tmp_path / "few.npz", x_train=INPUTS)
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "text.parquet").write_text("no")
    constants: dict[str, Any] = {"mean": np.zeros(6), "deviation": np.ones(6)}
    np.savez(tmp_path / "zero.npz", **{**constants, "deviation": np.zeros(6)})
    np.savez(tmp_path / "short.npz", **{**constants, "mean": np.zeros(5)})
    both = {"train": "train.npy", "test": "test.npy"}
    for fields, text in (
        ({"data": "few.npz"}, r"few.npz: it has no array 'y_train'; it has 'x_train'"),
        ({"data": "text.npz"}, "text.npz: not an .npz file"),
        ({"data": "objects.npz"}, "objects.npz: not an .npz file of arrays: .*allow_pickle"),
        ({"data": "halves.npz"}, "'halves.npz'.*labels are float64, not whole numbers"),
        ({"data": "train.npy"}, "train.npy: it has no array 'x_train'"),
        ({"data": both}, "train.npy: a .npy file holds no labels"),
        (
            {"data": {**both, "train": "train.csv"}},
            "train.csv: features are read from .npz, .npy, .safetensors, .parquet files",
        ),
        ({"data": {"train": "text.parquet", "test": "test.npz"}}, "text.parquet: cannot be read"),
        ({"data": {"train": "train.npz", "test": "all.npz"}}, "all.npz: it has no array 'x'"),
        ({"data": {"train": "train.npz"}}, "field data"),
        ({"classes": None}, "how many classes there are must be stated"),
        ({"classes": 2}, "needs a label from 0 to 1"),
        ({"dataset": None}, "field dataset: records need a name for the data of 'all.npz'"),
        ({"normalise": {"constants": "zero.npz"}}, "every deviation above 0"),
        ({"normalise": {"constants": "short.npz"}}, "as many finite numbers"),
        ({"normalise": {"constants": "all.npz", "mean": [1]}}, "give mean and deviation, or constants"),
        ({"normalise": {"constants": "all.npz"}}, "it has no array 'mean'"),
        ({"normalise": {"constants": "network"}}, "the data go through no network"),
        ({"normalise": {"mean": [0, 0], "deviation": [1, 1]}}, "numbers for 2 channels, but the inputs have 6"),
        ({"features": "resnet"}, "field features"),
        ({"runs": {"a": {**RUN, "clip_shares": [1, 2, 3]}}}, "clip_shares belongs to one-vs-rest"),
        ({"runs": {"a": {**RUN, "model": "one-vs-rest", "clip_shares": [1, 2]}}}, "clip_shares has 2 numbers for 3 classes"),
        ({"features": "efficientnet-lite0"}, "a network takes images"),
    ):
        with pytest.raises(DpmergeError, match=text):
            train_portfolio(portfolio(tmp_path, **fields), tmp_path / "out", jobs=1)
        assert not (tmp_path / "out" / "a").exists()


def test_constants_are_public_and_features_follow_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **ARRAYS)
    np.savez(tmp_path / "public.npz", mean=np.arange(6) / 10, deviation=np.full(6, 2.0))
    stated = {"mean": [k / 10 for k in range(6)], "deviation": [2.0] * 6}
    from dpmerge.training.data import load

    for normalise in ({"constants": "public.npz"}, stated):
        data = load(portfolio(tmp_path, normalise=normalise).source(None))
        assert np.allclose(data.train, (ARRAYS["x_train"] - np.arange(6) / 10) / 2)
    one = load(portfolio(tmp_path, normalise={"mean": [1.0], "deviation": [2.0]}).source(None))
    assert np.allclose(one.test, (ARRAYS["x_test"] - 1) / 2)


@pytest.mark.parametrize("model", ["softmax", "one-vs-rest", "logistic"])
def test_a_trained_head_says_how_to_use_it(tmp_path: Path, model: str) -> None:
    torch = pytest.importorskip("torch")
    np.savez(tmp_path / "all.npz", **ARRAYS)
    normalise = {"mean": [0.1 * k for k in range(6)], "deviation": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]}
    run = {**RUN, "model": model, "steps": 40, "weight_decay": 0.01}
    positive = [0] if model == "logistic" else None
    file = portfolio(tmp_path, norm_bound=8, normalise=normalise, positive=positive, runs={"a": run, "b": run})
    done = train_portfolio(file, tmp_path / "out", jobs=1)
    head = LinearHead.load(tmp_path / "out" / "a")
    assert "array" not in repr(head)  # what a notebook shows
    labels = (ARRAYS["y_test"] == 0).astype(int) if positive else ARRAYS["y_test"]
    x = ARRAYS["x_test"]
    assert head.score(x, labels) == pytest.approx(done["models"]["a"]["accuracy"]) and head.score(x, labels) > 0.8
    said = head.predict_proba(x)
    assert said.shape == (30, 2 if positive else 3) and np.allclose(said.sum(axis=1), 1)
    assert np.array_equal(said.argmax(axis=1), head.predict(x)) and list(head.classes_) == list(range(said.shape[1]))
    layer = head.to_torch()
    assert type(layer) is torch.nn.Linear
    with torch.no_grad():
        scores = layer(torch.from_numpy(x)).numpy()
    assert np.allclose(np.squeeze(scores, 1) if positive else scores, head.decision_function(x), atol=1e-5)
    mechanism = Portfolio(tmp_path / "out")["a"].mechanism
    assert isinstance(mechanism, DpSgd) and mechanism.settings()[0].weight_decay == 0.01
    assert mechanism.convex == (None if model == "softmax" else "glm")
    with pytest.raises(DataError, match="the inputs have 5 features; the head has 6"):
        LinearHead(head.weight, head.bias, HeadConfig(loss="softmax", norm_bound=8)).predict(x[:, :5])
    # A release of several heads keeps what is needed to use it.
    weights = {"a": 0.5, "b": 0.5}
    merge(Portfolio(tmp_path / "out"), weights, out=tmp_path / "released", rule="combination", delta=1e-5, noise=0.001)
    released = LinearHead.load(tmp_path / "released")
    assert released.config == head.config and released.score(x, labels) > 0.8


@pytest.mark.parametrize("loss", ["softmax", "one-vs-rest", "logistic"])
def test_calibration_recovers_probabilities(loss: Any, tmp_path: Path) -> None:
    """A head whose scores are the true ones times 0.2 gets them back from public labels drawn by the true ones."""
    rng = np.random.default_rng(0)
    outputs = 1 if loss == "logistic" else 3
    true = LinearHead(
        rng.standard_normal((outputs, 4)) * 1.5, rng.standard_normal(outputs) / 4, HeadConfig(loss=loss, norm_bound=50)
    )
    x = rng.standard_normal((6000, 4))
    said = true.predict_proba(x)
    labels = (rng.random((len(x), 1)) > np.cumsum(said, axis=1)).sum(axis=1)
    weak = LinearHead(true.weight / 5, true.bias / 5, true.config)
    fitted = weak.calibrated(x, labels)

    def surprise(head: LinearHead) -> float:
        return float(-np.mean(np.log(head.predict_proba(x)[np.arange(len(x)), labels])))

    if loss != "one-vs-rest":
        assert np.allclose(fitted.weight, true.weight, rtol=0.12, atol=0.05)
    assert surprise(fitted) < surprise(weak) - 0.05
    fitted.save(tmp_path / "calibrated")
    assert np.allclose(LinearHead.load(tmp_path / "calibrated").predict_proba(x), fitted.predict_proba(x), atol=1e-5)


def test_heads_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        LinearHead.load(tmp_path)
    (tmp_path / "config.json").write_text(HeadConfig(loss="softmax", norm_bound=3).text())
    with pytest.raises(CheckpointError, match="it holds no linear head"):
        LinearHead.load(tmp_path)
    with pytest.raises(CheckpointError, match="no network makes this head's features"):
        LinearHead(np.zeros((2, 3)), np.zeros(2), HeadConfig(loss="softmax", norm_bound=3)).save_network(tmp_path / "x")


def test_images_through_a_public_network(tmp_path: Path) -> None:
    """Small images of two kinds; the features are extracted once and kept for other processes."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite_pytorch")
    from dpmerge.training import public_network

    rng = np.random.default_rng(2)
    labels = np.arange(24) % 2
    images = np.where(labels[:, None, None, None] == 1, 200, 60) + rng.integers(-40, 40, (24, 3, 40, 40))
    arrays: dict[str, Any] = {"x_train": images[:16].astype(np.uint8), "x_test": images[16:].astype(np.uint8)}
    np.savez(tmp_path / "all.npz", **arrays, y_train=labels[:16], y_test=labels[16:])
    fields = {
        "classes": 2,
        "norm_bound": 20,
        "features": {"network": "efficientnet-lite0", "size": 32},
        "normalise": {"constants": "network"},
    }
    run = {**RUN, "model": "logistic", "learning_rate": 0.005, "steps": 20}
    file = portfolio(tmp_path, **fields, runs={"a": run, "b": run})
    done = train_portfolio(file, tmp_path / "out", jobs=1)
    (kept,) = (tmp_path / "out" / ".training").glob("features-*.npz")
    pixels = torch.from_numpy(arrays["x_test"][:2].astype(np.float32))
    resized = torch.nn.functional.interpolate(pixels, (32, 32), mode="bilinear", antialias=True)
    network = public_network.body()
    with torch.no_grad():
        expected = network.extract_features((resized - 127) / 128).mean((2, 3)).numpy()
    with np.load(kept) as held:
        assert held["test"].shape == (8, 1280) and np.allclose(held["test"][:2], expected, atol=1e-4)
    head = LinearHead.load(tmp_path / "out" / "a")
    assert head.config.network is not None and head.config.network.white == 255
    assert head.score(arrays["x_test"], labels[16:]) == pytest.approx(done["models"]["a"]["accuracy"])
    # The head as the network's last layer, in one file.
    whole = load_file(head.save_network(tmp_path / "network.safetensors"))
    scores = expected @ whole["_fc.weight"].T + whole["_fc.bias"]
    assert whole["_fc.weight"].shape == (1, 1280) and whole.keys() == network.state_dict().keys()
    assert np.allclose(scores[:, 0], head.decision_function(arrays["x_test"][:2]), atol=1e-3)
    with pytest.raises(DataError, match="a network takes images"):
        public_network.network_features(np.zeros((2, 5), np.float32), 32, 255.0)


def test_what_the_network_says_of_its_features_is_their_mean() -> None:
    """E ReLU6(b + wZ), against an average over many Z."""
    pytest.importorskip("efficientnet_lite_pytorch")
    from dpmerge.training import public_network

    norm = public_network.body()._bn1
    b, w = norm.bias.detach().numpy()[:, None], norm.weight.detach().numpy()[:, None]
    z = np.random.default_rng(0).standard_normal((1, 20_000))
    assert np.allclose(public_network.network_centre(), np.clip(b + w * z, 0, 6).mean(axis=1), atol=0.03)


def test_the_command_trains_from_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **ARRAYS)
    file = portfolio(
        tmp_path, runs={"a": RUN, "b": {**RUN, "model": "one-vs-rest", "clip_shares": [1, 1, 2]}, "c": {**RUN, "steps": 3}}
    )
    command = ["train", str(file.path), "--out", str(tmp_path / "out"), "--jobs", "1", "--json"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0 and set(json.loads(done.stdout)["models"]) == {"a", "b", "c"}
    again = CliRunner().invoke(app, command, catch_exceptions=False)
    assert json.loads(again.stdout)["trained"] == []
    with pytest.raises(TrainingError, match="was made with steps 3"):
        train_portfolio(portfolio(tmp_path, runs={"c": RUN}), tmp_path / "out", jobs=1)
