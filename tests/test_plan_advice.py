"""What a plan advises, with numbers that hold: averages of checkpoints, more noise, a draw; and what a ledger has left."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

import dpmerge as library
from dpmerge import Ledger, Utilities
from dpmerge.errors import BudgetExceeded, LedgerError
from dpmerge.records import Portfolio
from dpmerge.release import total_after
from tests import builders
from tests.release_builders import DELTA, dpmerge, on_disk, runs
from tests.run_builders import STEPS, checkpoint
from tests.test_cli import dpmerge as by_main
from tests.test_forks import start_of


def of_gaussian(epsilon: float, mu: float) -> float:
    """δ(ε) of μ-GDP, in closed form."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def advised(portfolio: Portfolio, epsilon: float = 1.0, **how: Any) -> dict[str, Any]:
    return {one.kind: one for one in library.plan(portfolio, epsilon=epsilon, delta=DELTA, **how).advice}


def networks(*sigmas: float, steps: int = 16, **changes: Any) -> Portfolio:
    """Full batches of models without a smoothness: each is μ-GDP with μ = √steps/σ, and no merge of them pays."""
    made = (builders.dp_sgd(f"m{place}", sigma=sigma, steps=steps, **changes) for place, sigma in enumerate(sigmas))
    return Portfolio(tuple(made))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_the_noise_with_which_to_train_again_is_the_least_and_meets_the_target(epsilon: float) -> None:
    found = advised(networks(3.0, 5.0), epsilon)["retrain"]
    assert (
        found.models == ("m0",)
        and "noise multiplier" in found.text
        and f"{found.noise_multiplier:g} instead of 3" in found.text
    )
    assert of_gaussian(epsilon, 4 / found.noise_multiplier) <= DELTA, "the advice holds"
    assert of_gaussian(epsilon, 4 / (found.noise_multiplier / 1.01)) > DELTA, "and is the least, to a percent"
    again = library.plan(networks(found.noise_multiplier), epsilon=epsilon, delta=DELTA, rules=("single",))
    assert again.best is not None and not {"retrain"} & {one.kind for one in again.advice}


def test_recipes_that_no_one_number_describes_get_no_number() -> None:
    phases = [{"steps": 5, "learning_rate": 0.1, "noise_multiplier": 2.0}, {"steps": 5, "learning_rate": 0.1}]
    assert "retrain" not in advised(networks(3.0, phases=phases))
    assert "retrain" not in advised(networks(0.0))
    same = [{"steps": 5, "learning_rate": 0.1}, {"steps": 11, "learning_rate": 0.05, "noise_multiplier": 3.0}]
    assert advised(networks(3.0, phases=same))["retrain"] == advised(networks(3.0))["retrain"]


def test_checkpoints_of_one_run_are_pointed_out() -> None:
    """Full batches, σ = 20: the run up to step t is μ-GDP with μ = √t/20."""
    portfolio = Portfolio(tuple(checkpoint(step) for step in STEPS))
    fits = [step for step in STEPS if of_gaussian(1.0, math.sqrt(step) / 20) <= DELTA]
    assert 1 < len(fits) < len(STEPS), "the target lies within"
    found = advised(portfolio)["checkpoints"]
    assert f"up to 'step-{fits[-1]}'" in found.text and "which fits" in found.text
    assert found.models == tuple(f"step-{step}" for step in STEPS) and "keep-checkpoints" not in advised(portfolio)
    above = advised(portfolio, 0.3)["checkpoints"].text
    assert "up to 'step-60'" in above and "which is above 0.3" in above
    assert "keep-checkpoints" in advised(networks(3.0)) and "checkpoints" not in advised(networks(3.0))


def test_averages_of_networks_need_one_start() -> None:
    """Predicted noise prefers an average wherever it fits; from different starts it would be no model."""
    portfolio = networks(3.0, 5.0)
    plan = library.plan(portfolio, epsilon=12.0, delta=DELTA)
    assert plan.best is not None and plan.best.rule == "joint" and len(plan.best.weights.used) == 2
    found = advised(portfolio, 12.0)["same-start"]
    assert found.models == ("m0", "m1") and "only if their trainings began at the same parameters" in found.text
    assert "same-start" not in advised(portfolio, 6.0), "no average fits"
    of_one_run = Portfolio(tuple(checkpoint(step) for step in STEPS))
    assert "same-start" not in advised(of_one_run, 12.0)
    body = builders.dp_sgd("body", sigma=5.0, steps=16)
    forks = Portfolio(tuple(builders.dp_sgd(name, sigma=5.0, steps=8, starts_from=start_of(body)) for name in "ab"))
    plan = library.plan(forks, epsilon=20.0, delta=DELTA)
    assert any(one.feasible and len(one.weights.used) == 2 for one in plan.options), "two runs are averaged"
    assert "same-start" not in advised(forks, 20.0), "which fork from one checkpoint"


def test_where_noise_at_release_pays_nothing_else_is_advised(tmp_path: Path) -> None:
    assert advised(runs(tmp_path)) == {}


def test_the_draw_that_covers_looking_is_named(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    looked = Utilities((0.9, 0.5, 0.7), "after-looking", "measured")
    assert "`kappa`" in advised(portfolio, utility=looked)["tempered"].text
    assert "tempered" not in advised(portfolio, utility=looked, kappa=0.5)
    told = {"schema": 1, "measured_on": "x", "models": "private", "utilities": {"a": 0.9, "b": 0.5, "c": 0.7}}
    (tmp_path / "u.json").write_text(json.dumps(told))
    asked = ("plan", tmp_path / "runs", "--epsilon", 0.5, "--delta", DELTA, "--utility", tmp_path / "u.json")
    printed = dpmerge(*asked).stdout
    assert "(--kappa, or --validation-epsilon)" in printed
    assert "infeasible: the utilities were measured on the private models" in printed, "not that the closest has ε below 0.5"
    refused = by_main("merge", *map(str, asked[1:]), "--rule", "selection", "--out", str(tmp_path / "out")).stderr
    assert "tempered selection with a strength `kappa`" in refused and "(on the command line: --kappa)" in refused


def test_the_command_prints_advice(tmp_path: Path) -> None:
    on_disk(tmp_path / "nets", *networks(3.0, 5.0).models)
    asked = ("plan", tmp_path / "nets", "--epsilon", 1, "--delta", DELTA)
    printed = dpmerge(*asked).stdout
    assert "advice: trained again by the recipe of 'm0'" in printed and "dpmerge run average" in printed
    kinds = [one["kind"] for one in json.loads(dpmerge(*asked, "--json").stdout)["advice"]]
    assert kinds == ["keep-checkpoints", "retrain"]


# --- with what a ledger has left ----------------------------------------------------------------------------------------------


def ledger(folder: Path, epsilon: float = 3.0) -> Path:
    Ledger.create(folder / "ledger.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=epsilon, delta=DELTA)
    return folder / "ledger.db"


def test_a_plan_says_what_the_total_would_be(tmp_path: Path) -> None:
    """The totals are those that releases then enter; before, options were offered that the ledger refuses."""
    portfolio, where = runs(tmp_path), ledger(tmp_path)
    half = {"a": 0.5, "c": 0.5}
    library.merge(portfolio, half, out=tmp_path / "one", rule="combination", epsilon=1.0, delta=DELTA, ledger=where)
    plan = library.plan(portfolio, epsilon=2.0, delta=DELTA, ledger=where, candidates=[half])
    assert plan.best is not None and plan.best.weights.as_dict() == {"a": 0.5, "b": 0.0, "c": 0.5}
    assert plan.best.total is not None and plan.best.total.epsilon == plan.best.epsilon, "its ladder has the same noise"
    refused = next(one for one in plan.options if one.rule == "single" and one.weights.as_dict()["c"] == 1)
    assert not refused.feasible and refused.total is not None and refused.total.epsilon > 3
    assert "the budget is ε = 3" in refused.why and "total ε" in refused.row()
    with pytest.raises(BudgetExceeded):
        library.merge(portfolio, {"c": 1.0}, out=tmp_path / "two", rule="combination", delta=DELTA, ledger=where)
    alone = next(one for one in plan.options if one.rule == "single" and one.weights.as_dict()["b"] == 1)
    entered = alone.release(tmp_path / "three").certificate.ledger
    assert alone.total is not None and entered.epsilon == pytest.approx(alone.total.epsilon, rel=1e-6)


def test_averages_of_stored_numbers_count_as_the_ledger_counts_them(tmp_path: Path) -> None:
    """Several models without noise at release: what is proved of their files is joint release (docs/theory.md §3.6)."""
    portfolio, where = runs(tmp_path), ledger(tmp_path, 9.0)
    plan = library.plan(
        portfolio,
        epsilon=8.0,
        delta=DELTA,
        ledger=where,
        rules=("combination", "selection", "joint"),
        candidates=[{"a": 0.5, "b": 0.5}],
    )
    averages = [one for one in plan.options if one.rule == "combination" and one.noise == 0 and len(one.weights.used) > 1]
    assert averages
    for place, option in enumerate([*averages, next(one for one in plan.options if one.rule == "selection")]):
        fresh = tmp_path / f"l{place}"
        fresh.mkdir()
        own = ledger(fresh, 9.0)
        entered = option.release(fresh / "out", ledger=own).certificate.ledger
        assert option.total is not None and entered.epsilon == pytest.approx(option.total.epsilon, rel=1e-6)
        assert total_after(Ledger(ledger_of_nothing(fresh)), option).guarantee == option.total


def ledger_of_nothing(folder: Path) -> Path:
    (folder / "new").mkdir()
    return ledger(folder / "new", 9.0)


def test_a_ledger_that_lost_its_ladder_counts_another(tmp_path: Path) -> None:
    portfolio, where = runs(tmp_path), ledger(tmp_path)
    half = {"a": 0.5, "c": 0.5}
    library.merge(portfolio, half, out=tmp_path / "one", rule="combination", epsilon=1.0, delta=DELTA, ledger=where)
    for path in (tmp_path / "runs" / ".dpmerge" / "ladders").iterdir():
        path.unlink()
    plan = library.plan(portfolio, epsilon=1.0, delta=DELTA, ledger=where, rules=("combination",), candidates=[half])
    again = next(one for one in plan.options if one.weights.as_dict() == {"a": 0.5, "b": 0.0, "c": 0.5})
    assert not again.feasible and again.total is not None and again.total.epsilon > 3


def test_a_ledger_of_other_data_is_refused(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "o.db", dataset="other", adjacency="add-remove", epsilon=1.0, delta=DELTA)
    portfolio = runs(tmp_path)
    for epsilon in (1.0, 1e-6):  # also where nothing fits, and nothing is counted
        with pytest.raises(LedgerError, match="is for dataset 'other'"):
            library.plan(portfolio, epsilon=epsilon, delta=DELTA, ledger=tmp_path / "o.db")


def test_the_command_plans_with_the_ledger(tmp_path: Path) -> None:
    runs(tmp_path)
    where = ledger(tmp_path, 0.6)
    asked = ("plan", tmp_path / "runs", "--epsilon", 2, "--delta", DELTA, "--ledger", where)
    told = json.loads(dpmerge(*asked, "--json").stdout)
    fits = {one["rule"]: one["total"]["epsilon"] for one in told["options"] if one["feasible"]}
    assert fits and all(total <= 0.6 for total in fits.values())
    assert any(not one["feasible"] and one["total"] and one["total"]["epsilon"] > 0.6 for one in told["options"])
    printed = dpmerge(*asked).stdout
    assert "total ε" in printed and f"--ledger {where}" in printed


def test_remaining_says_why_a_second_release_costs_more(tmp_path: Path) -> None:
    portfolio, where = runs(tmp_path), ledger(tmp_path, 9.0)
    assert json.loads(dpmerge("ledger", "remaining", where, "--json").stdout)["why_more"] == ""
    half = {"a": 0.5, "c": 0.5}
    library.merge(portfolio, half, out=tmp_path / "one", rule="combination", epsilon=1.0, delta=DELTA, ledger=where)
    told = dpmerge("ledger", "remaining", where).stdout.splitlines()[-1]
    assert "only while nothing else of their runs is known" in told
    library.merge(portfolio, {"c": 1.0}, out=tmp_path / "two", rule="joint", provenance="a-priori", delta=DELTA, ledger=where)
    total = Ledger(where).cumulative()
    assert total is not None
    from dpmerge.rules import round_up

    assert f"ε = {round_up(total.epsilon)} or more" in told, "the total after a second release is what was said"
    assert Ledger(where).why_more() == ""
