"""Releases of forks and shards, from files to a ledger: certified, verified, and counted with what they share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dpmerge
from dpmerge.records import Model, Portfolio
from dpmerge.release import Ledger, release, verify
from dpmerge.rules import Joint, RuleName
from tests import builders
from tests.release_builders import DELTA, RULES, chosen, on_disk, scores
from tests.test_forks import start_of

BODY = builders.dp_sgd("body", sigma=8.0, steps=20, smoothness=0.2)


def forks(folder: Path) -> Portfolio:
    """The runs of the usual tests, begun with one private checkpoint."""
    noise = {"a": 4.0, "b": 40.0, "c": 10.0}
    models = [
        builders.dp_sgd(name, sigma=sigma, steps=10, smoothness=0.2, starts_from=start_of(BODY))
        for name, sigma in noise.items()
    ]
    return on_disk(folder / "runs", *models)


def shards(folder: Path, assignment: str = "keyed-hash", **more: Any) -> Portfolio:
    settings: dict[str, Any] = {"sigma": 4.0, "steps": 10, "sampling": 0.1, "batch": 100.0, **more}
    where = {"a": 1, "b": 2, "c": 2}
    return on_disk(
        folder / "runs",
        *(
            builders.dp_sgd(name, **settings, shard={"partition": "p", "part": part, "of": 4, "assignment": assignment})
            for name, part in where.items()
        ),
    )


@pytest.mark.parametrize("make", [forks, shards])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_certified_and_verified(make: Any, rule: RuleName, tmp_path: Path) -> None:
    portfolio = make(tmp_path)
    out = tmp_path / "out"
    release(portfolio, chosen(portfolio, rule), out)
    held = json.loads((out / "certificate.json").read_text())
    assert "0" * 64 not in json.dumps(held["records"])  # no digest of what a fork starts from
    found = verify(out, portfolio=portfolio)
    assert not found.broken
    assert not verify(out).broken
    said = "starts from a private checkpoint" if make is forks else "which part of the data a record is in"
    assert said in " ".join(held["guarantee"]["assumptions"])


def test_a_certificate_whose_start_was_edited_is_noticed(tmp_path: Path) -> None:
    portfolio = forks(tmp_path)
    out = tmp_path / "out"
    release(portfolio, chosen(portfolio, "joint"), out)
    path = out / "certificate.json"
    held = json.loads(path.read_text())
    held["records"]["a"]["record"]["mechanism"]["starts_from"]["mechanism"]["noise_multiplier"] = 80.0
    path.write_text(json.dumps(held))
    assert verify(out).broken


def test_a_ledger_counts_the_start_once(tmp_path: Path) -> None:
    """Forks released on different days, and then their body."""
    portfolio = forks(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50.0, delta=DELTA)
    for name in ("a", "b"):
        release(
            portfolio,
            chosen(portfolio, "joint", weights=portfolio.weights({name: 1.0}), provenance="a-priori"),
            tmp_path / name,
            ledger=ledger,
        )
    total = ledger.cumulative()
    assert total is not None
    both = Joint(portfolio.weights({"a": 0.5, "b": 0.5}), looked_at=()).guarantee(delta=DELTA)
    assert total.epsilon == pytest.approx(both.epsilon, rel=1e-6)


def test_a_ledger_refuses_another_start_of_the_same_name(tmp_path: Path) -> None:
    portfolio = forks(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50.0, delta=DELTA)
    alone: dict[str, Any] = {"provenance": "a-priori"}
    release(
        portfolio, chosen(portfolio, "joint", weights=portfolio.weights({"a": 1.0}), **alone), tmp_path / "a", ledger=ledger
    )
    # The body itself: its tensors are not those that the fork says it started from.
    body = on_disk(tmp_path / "other", BODY)
    with pytest.raises(dpmerge.errors.DependentRuns, match="step 20 of run 'run-body'"):
        release(body, chosen(body, "joint", weights=body.weights({"body": 1.0}), **alone), tmp_path / "body", ledger=ledger)


def test_a_start_beside_other_tensors_of_its_step_is_refused(tmp_path: Path) -> None:
    """Without a ledger too, where the body is looked at: they would count as one."""
    portfolio = forks(tmp_path)
    both = on_disk(tmp_path / "both", BODY, *(Model(model.name, model.record) for model in portfolio))
    with pytest.raises(dpmerge.errors.DependentRuns, match="the start of"):
        release(both, chosen(both, "joint"), tmp_path / "out")


def test_parts_in_a_ledger_are_averaged_last(tmp_path: Path) -> None:
    portfolio = shards(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50.0, delta=DELTA)
    for name in portfolio.names:
        one = chosen(portfolio, "joint", weights=portfolio.weights({name: 1.0}), provenance="a-priori")
        release(portfolio, one, tmp_path / name, ledger=ledger)
    total = ledger.cumulative()
    assert total is not None
    whole = Joint(portfolio.weights({"a": 0.5, "b": 0.25, "c": 0.25}), looked_at=()).guarantee(delta=DELTA)
    assert total.epsilon == pytest.approx(whole.epsilon, rel=1e-6)
    unsharded = [
        Model(m.name, m.record.model_copy(update={"mechanism": m.mechanism.model_copy(update={"shard": None})}))
        for m in portfolio
    ]
    plain = Portfolio(unsharded)
    assert total.epsilon < Joint(plain.weights({"a": 0.5, "b": 0.25, "c": 0.25}), looked_at=()).guarantee(delta=DELTA).epsilon


def test_plans_and_noise_for_forks_and_shards(tmp_path: Path) -> None:
    """Convex models: the release goes through a ladder, and the ledger keeps it beside other releases."""
    tame: dict[str, Any] = {"smoothness": 0.5, "convex": "glm", "eta": 0.1, "sigma": 0.8}
    portfolio = shards(tmp_path, **tame)
    found = dpmerge.plan(portfolio, epsilon=0.8, delta=DELTA, ledger=None)
    assert found.best is not None
    ledger = Ledger.create(tmp_path / "ledger.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50.0, delta=DELTA)
    noised = chosen(portfolio, "combination", weights=portfolio.weights({"a": 0.5, "b": 0.5}), noise=0.5)
    assert noised.guarantee.theorem == "hidden-run"
    release(portfolio, noised, tmp_path / "ab", ledger=ledger)
    assert not verify(tmp_path / "ab", portfolio=portfolio).broken
    first = ledger.cumulative()
    one = chosen(portfolio, "joint", weights=portfolio.weights({"c": 1.0}), provenance="a-priori")
    release(portfolio, one, tmp_path / "c", ledger=ledger)
    total = ledger.cumulative()
    assert first is not None
    assert total is not None
    assert first.epsilon < total.epsilon
    assert total.details["alone"] == [{"weights": total.details["alone"][0]["weights"], "theorem": "hidden-run"}]


def test_scores_of_forks(tmp_path: Path) -> None:
    """Tempered draws and utilities know forks by name."""
    portfolio = forks(tmp_path)
    found = dpmerge.plan(portfolio, epsilon=30.0, delta=DELTA, utility=scores(portfolio))
    assert found.best is not None
