"""Releases and averages as models of another portfolio: what their record says, and beside what they are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import dpmerge
from dpmerge.checkpoints import average
from dpmerge.errors import DpmergeError, PortfolioError, RecordError
from dpmerge.files import canonical, sha256
from dpmerge.records import ApproxDp, Model, Portfolio, Record
from dpmerge.release import Ledger, choose, release, verify
from dpmerge.rules import Accounting
from tests import builders
from tests.checkpoint_builders import single
from tests.release_builders import DELTA, chosen, on_disk, runs, tensors
from tests.run_builders import run_on_disk


def joined(folder: Path, *parts: Path | Model) -> Portfolio:
    """A new portfolio of released folders and other models."""
    for part in parts:
        if isinstance(part, Path):
            shutil.copytree(part, folder / part.name)
        else:
            single(folder / part.name, tensors(7))
            (folder / part.name / "record.json").write_text(part.record.model_dump_json(by_alias=True))
            (folder / part.name / "config.json").write_text('{"model_type": "linear"}')
    return Portfolio(folder)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    portfolio = runs(tmp_path)
    return release(portfolio, chosen(portfolio, "joint", provenance="a-priori"), tmp_path / "released").folder


OTHER = builders.dp_sgd("x", sigma=20.0, steps=10)


def test_a_release_is_one_more_run_with_what_its_certificate_says(released: Path, tmp_path: Path) -> None:
    both = joined(tmp_path / "more", released, OTHER)
    mechanism = both["released"].mechanism
    assert isinstance(mechanism, ApproxDp)
    stated = json.loads((released / "certificate.json").read_text())["guarantee"]
    assert (mechanism.kind, mechanism.epsilon, mechanism.delta) == ("approx-dp", stated["epsilon"], DELTA)
    pair = {"kind": "approx-dp", "run": "y", "epsilon": stated["epsilon"], "delta": stated["delta"]}
    plain = Portfolio((builders.model("released", pair), OTHER))
    half = {"released": 0.5, "x": 0.5}
    found = dpmerge.joint(both, half, provenance="a-priori").guarantee(delta=3 * DELTA)
    assert found.epsilon == dpmerge.joint(plain, half, provenance="a-priori").guarantee(delta=3 * DELTA).epsilon
    assert found.epsilon > stated["epsilon"]
    told = " ".join(found.assumptions)
    assert "model 'released' is a release, and what its certificate assumes holds" in told
    assert all(text in told for text in stated["assumptions"])


def test_alone_a_release_costs_at_its_delta_what_it_was_certified_with(released: Path, tmp_path: Path) -> None:
    both = joined(tmp_path / "more", released, OTHER)
    stated = json.loads((released / "certificate.json").read_text())["guarantee"]
    found = dpmerge.plan(both, epsilon=stated["epsilon"], delta=DELTA)
    (alone,) = (option for option in found.options if option.rule == "single" and option.weights.used[0][0].name == "released")
    assert alone.feasible and alone.epsilon == stated["epsilon"]
    choice = choose(both, "selection", weights=both.weights({"released": 1}), delta=DELTA, provenance="a-priori")
    again = release(both, choice, tmp_path / "again")
    assert verify(again.folder, portfolio=both).code == 0


def test_a_release_of_a_release_names_every_run_and_can_be_verified(released: Path, tmp_path: Path) -> None:
    both = joined(tmp_path / "more", released, OTHER)
    choice = choose(both, "joint", weights=both.weights({"released": 0.5, "x": 0.5}), delta=3 * DELTA, provenance="a-priori")
    again = release(both, choice, tmp_path / "again")
    assert verify(again.folder, portfolio=both, strict=True).code == 0
    mechanism = json.loads((again.folder / "record.json").read_text())["mechanism"]
    first = json.loads((released / "record.json").read_text())["mechanism"]
    assert mechanism["made_of"]["runs"] == sorted([first["run"], "run-a", "run-b", "run-x"])
    with pytest.raises(PortfolioError, match="share randomness"):
        joined(tmp_path / "third", again.folder, released)


def test_beside_models_of_its_runs_a_release_is_refused(released: Path, tmp_path: Path) -> None:
    fork = builders.dp_sgd(
        "fork",
        sigma=20.0,
        run="fork",
        starts_from={"run": "run-b", "step": 10, "mechanism": beginning(tmp_path / "runs" / "b")},
    )
    portfolio = Portfolio(tmp_path / "runs")
    another = release(portfolio, chosen(portfolio, "selection"), tmp_path / "another").folder
    copy = Path(shutil.copytree(released, tmp_path / "copy"))
    others: dict[str, Path | Model] = {"a": tmp_path / "runs" / "a", "fork": fork, "another": another, "copy": copy}
    for name, other in others.items():
        with pytest.raises(PortfolioError, match=r"release that was made of run .* share randomness"):
            joined(tmp_path / f"with {name}", released, other)
    # Run c had no weight, and was not looked at.
    assert len(joined(tmp_path / "with c", released, tmp_path / "runs" / "c")) == 2


def beginning(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = Record.load(folder / "record.json").as_dict()["mechanism"]
    return found


def test_a_ledger_refuses_a_release_of_runs_that_it_counts(released: Path, tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=10 * DELTA)
    portfolio = Portfolio(tmp_path / "runs")
    release(portfolio, chosen(portfolio, "selection"), tmp_path / "first", ledger=ledger)
    both = joined(tmp_path / "more", released, OTHER)
    choice = choose(both, "joint", weights=both.weights({"released": 0.5, "x": 0.5}), delta=3 * DELTA, provenance="a-priori")
    before = len(ledger.history())
    with pytest.raises(DpmergeError, match="share randomness"):
        release(both, choice, tmp_path / "second", ledger=ledger)
    assert len(ledger.history()) == before and not (tmp_path / "second").exists()
    fresh = Ledger.create(tmp_path / "m.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=10 * DELTA)
    release(both, choice, tmp_path / "second", ledger=fresh)
    with pytest.raises(DpmergeError, match="share randomness"):
        release(portfolio, chosen(portfolio, "selection"), tmp_path / "third", ledger=fresh)


def test_an_average_of_checkpoints_joins_as_well(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    made = average(run, tmp_path / "average", rule="uta", last=3, delta=DELTA)
    both = joined(tmp_path / "more", made.folder, OTHER)
    assert both["average"].made_of >= {"one"}
    assert verify(made.folder, strict=True).code == 0
    with pytest.raises(PortfolioError, match="made of run 'one'"):
        joined(tmp_path / "with its run", made.folder, run.portfolio.models[0].folder or tmp_path)


def test_more_noise_on_a_release_is_of_the_same_runs(tmp_path: Path) -> None:
    convex: dict[str, Any] = {"convex": "unclipped", "smoothness": 0.2, "steps": 10}
    portfolio = on_disk(tmp_path / "runs", builders.dp_sgd("a", sigma=4.0, **convex))
    first = dpmerge.merge(portfolio, {"a": 1.0}, out=tmp_path / "first", rule="combination", delta=DELTA, noise=0.01)
    second = dpmerge.renoise(first.folder, out=tmp_path / "second", delta=DELTA, noise=0.02)
    assert verify(second.folder, strict=True).code == 0
    with pytest.raises(PortfolioError, match="made of run 'run-a'"):
        joined(tmp_path / "more", first.folder, second.folder)


def conditional(tmp_path: Path) -> Path:
    portfolio = runs(tmp_path, smoothness=None)
    accounting = Accounting(assume_smoothness=0.2)
    return release(portfolio, chosen(portfolio, "combination", accounting=accounting), tmp_path / "out").folder


def dependent(tmp_path: Path) -> Path:
    portfolio = runs(tmp_path)
    ledger = Ledger.create(
        tmp_path / "l.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=50, delta=DELTA, declared=[portfolio]
    )
    return release(portfolio, chosen(portfolio, "selection"), tmp_path / "out", ledger=ledger, dependent=True).folder


def without_ids(tmp_path: Path) -> Path:
    portfolio = on_disk(tmp_path / "runs", builders.gaussian("a", noise_std=4.0))
    return release(portfolio, chosen(portfolio, "joint", weights=portfolio.weights({"a": 1.0})), tmp_path / "out").folder


def of_a_part(tmp_path: Path) -> Path:
    shard = {"partition": "p", "part": 1, "of": 2, "assignment": "keyed-hash"}
    portfolio = on_disk(tmp_path / "runs", builders.dp_sgd("a", sigma=4.0, sampling=0.1, shard=shard))
    return release(portfolio, chosen(portfolio, "joint", weights=portfolio.weights({"a": 1.0})), tmp_path / "out").folder


@pytest.mark.parametrize("make", [conditional, dependent, without_ids, of_a_part])
def test_releases_whose_cost_does_not_add_carry_no_record(make: Any, tmp_path: Path) -> None:
    out = make(tmp_path)
    assert not (out / "record.json").exists()
    assert verify(out, strict=True).code == 0
    with pytest.raises(PortfolioError, match=r"is a release .* without a record\.json"):
        joined(tmp_path / "more", out, OTHER)


def test_a_record_that_says_something_else_does_not_hold(released: Path) -> None:
    record = json.loads((released / "record.json").read_text())
    record["mechanism"]["epsilon"] /= 2
    (released / "record.json").write_text(json.dumps(record))
    assert "record.json was changed" in verify(released).broken[0]
    content = json.loads((released / "certificate.json").read_text())
    content["outputs"]["record.json"] = sha256((released / "record.json").read_bytes())
    plain = {key: value for key, value in content.items() if key not in ("sha256", "signature")}
    (released / "certificate.json").write_bytes(canonical({**content, "sha256": sha256(canonical(plain))}, indent=1) + b"\n")
    assert verify(released).broken == ["record.json does not say what is certified"]


def test_a_record_beside_a_certificate_without_one_does_not_hold(tmp_path: Path) -> None:
    out = without_ids(tmp_path)
    (out / "record.json").write_text(OTHER.record.model_dump_json(by_alias=True))
    assert verify(out).code == 1


def test_a_release_with_the_record_of_a_run_is_refused(released: Path, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "runs" / "a" / "record.json", released / "record.json")
    with pytest.raises(PortfolioError, match=r"is a release .*its record\.json is that of a run"):
        joined(tmp_path / "more", released, OTHER)


@pytest.mark.parametrize("run", [None, "r"])
def test_a_release_is_a_run_of_its_own(run: str | None) -> None:
    made_of = {"runs": ["r"], "assumes": []}
    with pytest.raises(RecordError, match="a release is a run of its own"):
        builders.model("x", {"kind": "approx-dp", "run": run, "epsilon": 1.0, "delta": 0.0, "made_of": made_of})
