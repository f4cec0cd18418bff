"""The library as a user meets it: a few lines from a portfolio to a release that is verified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dpmerge
from tests.release_builders import DELTA, runs


def test_the_walk_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(tmp_path)
    monkeypatch.chdir(tmp_path)
    portfolio = dpmerge.Portfolio("runs/")
    dpmerge.Ledger.create("ledger.db", dataset=portfolio["a"].record.dataset, adjacency="add-remove", epsilon=8.0, delta=1e-4)
    dpmerge.compare(portfolio, {"a": 0.2, "b": 0.8}, delta=1e-5)
    plan = dpmerge.plan(portfolio, epsilon=3.0, delta=1e-5, ledger="ledger.db")
    assert plan.best is not None and plan.best.guarantee is not None
    released = plan.best.release("out/")
    verdict = dpmerge.verify("out/", portfolio=portfolio, ledger="ledger.db")
    assert verdict.code == 0, verdict
    assert released.guarantee.epsilon <= 3.0 and released.certificate.ledger is not None
    for shown in (portfolio, plan.best.guarantee, plan, plan.best, verdict, released):
        assert "\n" not in repr(shown) and "<table" in shown._repr_html_()


@pytest.mark.parametrize("rule", ["single", "selection", "combination", "tempered"])
def test_what_a_plan_offers_can_be_released_and_verified(rule: str, tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    utility = {"a": 0.9, "b": 0.5, "c": 0.7}
    plan = dpmerge.plan(portfolio, epsilon=2.0, delta=DELTA, utility=utility, rules=(rule,), kappa=0.5)  # type: ignore[arg-type]
    assert plan.best is not None
    released = plan.best.release(tmp_path / "out")
    assert released.guarantee.epsilon <= 2.0 and released.guarantee.delta <= DELTA
    if rule == "single":
        assert released.guarantee.epsilon == plan.best.epsilon
    assert dpmerge.verify(tmp_path / "out", portfolio=portfolio).code == 0


def test_a_planned_joint_release_needs_the_weights_of_its_merge(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    plan = dpmerge.plan(portfolio, epsilon=99.0, delta=DELTA, rules=("joint",))
    assert plan.best is not None
    with pytest.raises(dpmerge.WeightsError, match="say which one"):
        plan.best.release(tmp_path / "out")
    released = plan.best.release(tmp_path / "out", weights={"a": 0.5, "b": 0.5})
    assert released.certificate.provenance == "after-looking"
    assert dpmerge.verify(tmp_path / "out", portfolio=portfolio).code == 0


def test_options_that_do_not_fit_are_not_released(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    plan = dpmerge.plan(portfolio, epsilon=1e-3, delta=DELTA, rules=("single",))
    assert plan.best is None
    with pytest.raises(dpmerge.TargetError, match="does not meet the target"):
        plan.closest.release(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_json_of_a_plan_has_the_fields_it_had() -> None:
    plan = dpmerge.plan(dpmerge.Portfolio(dpmerge.example_portfolio()), epsilon=1.0, delta=1e-5, rules=("single", "joint"))
    plain = json.loads(json.dumps(plan.as_dict()))
    assert list(plain) == ["target", "provenance", "utilities", "utilities_source", "options", "why_no_noise"]
    fields = (
        "rule by weights epsilon delta standing theorem expected_utility feasible why utility_kind assumptions details "
        "warnings noise predicted_deviation"
    )
    assert all(" ".join(option) == fields for option in plain["options"])
