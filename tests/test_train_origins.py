"""`dpmerge train` with forks and shards: what begins where, who sees which records, and what the records say."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpmerge.checkpoints import Several, predictions, predictions_guarantee
from dpmerge.errors import DpmergeError, PortfolioError, TrainingError
from dpmerge.records import DpSgd, Portfolio, Record, Shard
from dpmerge.rules import Joint
from dpmerge.tensors import content_digest
from dpmerge.training import PortfolioFile, Recipe, data, linear, shard_of, train_portfolio
from dpmerge.training.origin import Origin, Partition, Start

DEFAULTS = {"model": "softmax", "learning_rate": 0.5, "rate": 0.1, "steps": 10, "clip": 2.01, "noise_multiplier": 1}


def trained(folder: Path, runs: dict[str, Any], **fields: Any) -> Portfolio:
    content = {"data": "digits", "norm_bound": 1.415, "defaults": DEFAULTS, "runs": runs, **fields}
    path = folder / "portfolio.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    train_portfolio(PortfolioFile.load(path), folder / "out", jobs=1)
    return Portfolio(folder / "out")


def mechanism(portfolio: Portfolio, name: str) -> DpSgd:
    found = portfolio[name].mechanism
    assert isinstance(found, DpSgd)
    return found


def test_forks_of_a_run_of_the_file_and_of_a_folder(tmp_path: Path) -> None:
    """The fork comes first in the file: it waits for its body. A checkpoint is a start, too, and so is a fork."""
    runs = {"a": {"from": "body"}, "body": {"steps": 40, "checkpoints": [30]}, "b": {"from": "body@30"}, "c": {"from": "a"}}
    portfolio = trained(tmp_path, runs)
    start = mechanism(portfolio, "a").starts_from
    assert start is not None
    assert (start.step, start.run) == (40, mechanism(portfolio, "body").run)
    assert start.digest == content_digest(tmp_path / "out" / "body")
    assert [one.name for one in portfolio["c"].starts] == [f"{portfolio['a'].run}/10", f"{portfolio['body'].run}/40"]
    assert mechanism(portfolio, "b").steps == 10
    whole = Joint(portfolio.weights(dict.fromkeys(("a", "b", "c", "body"), 0.25)))
    assert sum(count for _, count in whole.profile().factors) == 40 + 3 * 10
    again = trained(tmp_path, runs)
    assert mechanism(again, "a") == mechanism(portfolio, "a")
    # On disk, beside the file, from another portfolio.
    (tmp_path / "second").mkdir()
    other = trained(tmp_path / "second", {"d": {"from": "../out/body"}})
    assert mechanism(other, "d").starts_from == start


def test_a_fork_begins_with_the_tensors_of_its_start(tmp_path: Path) -> None:
    """Without noise and learning nearly nothing, it stays there."""
    portfolio = trained(tmp_path, {"body": {}, "a": {"from": "body", "learning_rate": 1e-9, "steps": 1}})
    held = [Start.read(tmp_path / "out" / name, portfolio.models[0].record.dataset).tensors for name in ("body", "a")]
    for name in held[0]:
        np.testing.assert_allclose(held[1][name], held[0][name], atol=1e-7)


def test_starts_that_are_refused(tmp_path: Path) -> None:
    for runs, message in (
        ({"a": {"from": "nowhere"}}, "neither a run of this file nor a model's folder"),
        ({"a": {"from": "b"}, "b": {"from": "a"}}, "start from each other"),
        ({"a": {"from": "b@7"}, "b": {}}, "keeps no model 'b@7'"),
        ({"a": {"from": "."}}, "record.json"),
    ):
        with pytest.raises(DpmergeError, match=message):
            trained(tmp_path, runs)
        assert not (tmp_path / "out" / "a").exists()
    trained(tmp_path, {"body": {}})
    (tmp_path / "second").mkdir()
    with pytest.raises(TrainingError, match="can only count a start on the same data"):
        trained(tmp_path / "second", {"a": {"from": "../out/body"}}, dataset="other")
    with pytest.raises(TrainingError, match="has the tensors"):
        trained(tmp_path / "second", {"a": {"from": "../out/body", "model": "logistic"}}, positive=[1], dataset=DATASET)


DATASET = "sklearn-digits-train-1437"


def test_shards_become_one_run_for_each_part(tmp_path: Path) -> None:
    portfolio = trained(tmp_path, {"body": {}, "net": {"shards": 3, "from": "body"}, "other": {"shards": 3, "steps": 5}})
    assert portfolio.names == ("body", "net.1", "net.2", "net.3", "other.1", "other.2", "other.3")
    shards = [mechanism(portfolio, name).shard for name in portfolio.names[1:]]
    assert [shard.part for shard in shards if shard is not None] == [1, 2, 3, 1, 2, 3]
    assert {(shard.partition, shard.of, shard.assignment) for shard in shards if shard is not None} == {
        (shards[0].partition, 3, "fair-draw")  # type: ignore[union-attr]
    }
    assert [mechanism(portfolio, f"net.{part}").expected_batch for part in (1, 2, 3)] == [pytest.approx(0.1 * 1437 / 3)] * 3
    everyone = portfolio.weights(dict.fromkeys(portfolio.names, 1 / 7))
    found = Joint(everyone)
    assert found.guarantee(delta=1e-5).theorem == "shards"
    place = found.places.all[0]
    assert sum(count for _, count in found.profile(place).factors) == 10 + 10 + 5  # body, and one of each three


def test_constants_of_a_part_do_not_follow_its_size(tmp_path: Path) -> None:
    portfolio = trained(
        tmp_path,
        {"net": {"shards": 4, "batch": 30, "epochs": 2}},
        defaults={k: v for k, v in DEFAULTS.items() if k not in ("rate", "steps")},
    )
    for name in portfolio.names:
        held = mechanism(portfolio, name)
        assert held.expected_batch == pytest.approx(30)
        assert (held.sampling.rate, held.steps) == (30 / (1437 / 4), 2 * 12)
    for whole in ({"full_batch": True}, {"rate": 1.0}, {"batch": 719}):  # of 1437 examples, so of 718.5
        with pytest.raises(TrainingError, match="a full batch of one of several parts"):
            trained(tmp_path, {"full": {"shards": 2, **whole}})
    with pytest.raises(TrainingError, match="has the name of another run"):
        trained(tmp_path, {"net.1": {}, "net": {"shards": 2}})


def test_the_parts_of_a_portfolio_are_kept(tmp_path: Path) -> None:
    first = Partition.kept(tmp_path, 5, "data")
    assert Partition.kept(tmp_path, 5, "data") == first
    assert Partition.kept(tmp_path, 4, "data").id != first.id
    with pytest.raises(TrainingError, match="the data have changed since they were divided into these 5 parts"):
        Partition.kept(tmp_path, 5, "other data")
    rows = [first.rows(part, 1000) for part in range(1, 6)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(1000))
    (tmp_path / "5-parts.json").write_text("{}")
    with pytest.raises(TrainingError, match="the key of the data's parts"):
        Partition.kept(tmp_path, 5, "data")


def test_rows_that_move_are_not_the_old_parts(tmp_path: Path) -> None:
    """A row more at the top: half of the records were in one part for the first model and in another for the second."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(201, 4)).astype(np.float32), rng.integers(0, 2, 201)
    fields = {"data": {"train": "train.npz", "test": "test.npz"}, "dataset": "clinic", "classes": 2}
    np.savez(tmp_path / "test.npz", x=features[:20], y=labels[:20])
    np.savez(tmp_path / "train.npz", x=features[1:], y=labels[1:])
    trained(tmp_path, {"a": {"shards": 2}}, **fields)
    np.savez(tmp_path / "train.npz", x=features, y=labels)
    data.load.cache_clear()
    data.features.cache_clear()
    with pytest.raises(TrainingError, match="the data have changed since they were divided"):
        trained(tmp_path, {"a": {"shards": 2}, "b": {"shards": 2}}, **fields)


def test_partitions_are_independent(tmp_path: Path) -> None:
    """Under one key: part 1 of 4 does not imply part 1 of 2, and a partition's id changes its parts."""
    key = secrets.token_bytes(32)
    quarters, halves = (shard_of(range(20_000), key, parts) for parts in (4, 2))
    both = np.mean((quarters == 1) & (halves == 1))
    assert abs(both - 1 / 8) < 6 * (1 / 8 * 7 / 8 / 20_000) ** 0.5  # 1/4 if one followed from the other
    one, other = (Partition(name, key, 2).rows(1, 20_000) for name in ("a", "b"))
    assert abs(len(set(one) & set(other)) / 20_000 - 1 / 4) < 6 * (1 / 4 * 3 / 4 / 20_000) ** 0.5


def test_a_part_has_a_public_size() -> None:
    with pytest.raises(TrainingError, match="a part's own size is private: give examples"):
        Origin(shard=Shard(partition="p", part=1, of=2, assignment="keyed-hash"))


def test_a_record_keeps_its_part_when_others_come(tmp_path: Path) -> None:
    """By id and key alone; and parts are about as likely."""
    key = secrets.token_bytes(32)
    ids = [f"user-{number}" for number in range(5000)]
    parts = shard_of(ids, key, 5)
    assert shard_of(ids[::-1], key, 5).tolist() == parts.tolist()[::-1]
    assert shard_of(ids[:10], key, 5).tolist() == parts[:10].tolist()
    assert shard_of(ids, secrets.token_bytes(32), 5).tolist() != parts.tolist()
    counts = np.bincount(parts)[1:]
    assert counts.shape == (5,)
    assert np.all(np.abs(counts - 1000) < 6 * (5000 * 0.16) ** 0.5)
    assert shard_of([1, "1", b"1"], key, 1 << 60).tolist() != [shard_of([1], key, 1 << 60)[0]] * 3
    assert len(set(shard_of([1, "1", b"1"], key, 1 << 60).tolist())) == 3


def test_ids_and_keys_that_are_refused() -> None:
    with pytest.raises(TrainingError, match="can be guessed"):
        shard_of(["a"], b"short", 2)
    with pytest.raises(TrainingError, match="2 parts or more"):
        shard_of(["a"], bytes(32), 1)
    with pytest.raises(TrainingError, match="must not depend on its content"):
        shard_of([0.5], bytes(32), 2)  # type: ignore[list-item]
    with pytest.raises(TrainingError, match="must not depend on its content"):
        shard_of(np.eye(2), bytes(32), 2)


def test_the_divisor_is_the_public_one() -> None:
    """A part of 10 examples, of which 20 are expected: updates are divided for 20."""
    features, labels = np.full((10, 3), 0.1, np.float32), np.zeros(10, np.int64)
    recipe = Recipe(steps=1, learning_rate=1.0, clip=10.0, noise_multiplier=0.0)
    whole = linear.train(features, labels, 2, recipe, norm_bound=1.0, dataset="d")[0]
    part = linear.train(features, labels, 2, recipe, norm_bound=1.0, dataset="d", origin=Origin(examples=20.0))[0]
    np.testing.assert_allclose(part.tensors["weight"], whole.tensors["weight"] / 2, rtol=1e-6)
    assert isinstance(part.record, Record)
    assert part.record.mechanism.expected_batch == 20.0  # type: ignore[union-attr]


def test_models_of_parts_vote(tmp_path: Path) -> None:
    """One model each of several runs: joint release covers what they say, and of parts it is the average over parts."""
    portfolio = trained(tmp_path, {"net": {"shards": 3}})
    said = {"net.1": [[0.0, 1.0]], "net.2": [[0.0, 1.0]], "net.3": [[9.0, 0.0]]}
    found = predictions(tmp_path / "out", "omv", lambda folder, _: np.array(said[folder.name]), np.zeros((1, 64), np.float32))
    assert found.labels.tolist() == [1]
    models = Several.of(portfolio)
    cost = predictions_guarantee(models, models.last(), delta=1e-5)
    alone = Joint(portfolio.weights({"net.1": 1.0}), looked_at=("net.2", "net.3")).guarantee(delta=1e-5)
    assert (cost.theorem, cost.epsilon) == ("shards", alone.epsilon)
    with pytest.raises(PortfolioError, match="have no last ones"):
        models.last(2)
    mixed = Portfolio([*portfolio.models, replace(portfolio.models[0], name="again")])
    with pytest.raises(PortfolioError, match="keep the checkpoints of each run in a separate folder"):
        Several.of(mixed)
