"""What a run id stands for: one run's iterates count once, other models of it each, by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpmerge.errors import BudgetExceeded, DependentRuns, PortfolioError
from dpmerge.records import Model, Portfolio
from dpmerge.release import Ledger, choose, release
from dpmerge.rules import Combination, Exposure, Guarantee, Joint, PairComposition, Releases
from dpmerge.tensors import content_digest
from tests import builders
from tests.ledger_builders import PRECISE, joint, new, planned, total
from tests.ledger_workers import DELTA

BESIDE = "models of one run, each state what their model costs given the other models of that run, so that their costs add"


def pair(name: str, run: str = "r") -> Model:
    mechanism = {"kind": "approx-dp", "epsilon": 1.0, "delta": 1e-6, "run": run, "noise_fingerprint": run}
    return builders.model(name, mechanism)


def curve(name: str) -> Model:
    return builders.model(name, {"kind": "rdp", "run": "r", "orders": [2.0, 8.0, 32.0], "values": [0.1, 0.4, 1.6]})


def mean(name: str) -> Model:
    return builders.gaussian(name, noise_std=4.0, run="r", noise_fingerprint="n")


@pytest.mark.parametrize("kind", [pair, curve, mean])
def test_models_of_one_run_count_each_where_records_cover_one_model(kind: Callable[[str], Model]) -> None:
    one, two = Portfolio((kind("a"),)), Portfolio((kind("a"), kind("b")))
    alone = Joint(one.weights({"a": 1.0})).guarantee(delta=DELTA)
    half = two.weights({"a": 0.5, "b": 0.5})
    found: list[Guarantee] = [
        Joint(half).guarantee(delta=DELTA),
        Combination(half).guarantee(delta=DELTA),
        Releases(two, [Exposure.whole("ab")]).guarantee(delta=DELTA),
        PairComposition(half, "basic").guarantee(delta=DELTA),
    ]
    for guarantee in found:
        assert guarantee.epsilon > 1.2 * alone.epsilon
        assert f"the records of 'a', 'b', {BESIDE}" in guarantee.assumptions
    assert not any(BESIDE in text for text in alone.assumptions)


def test_what_two_pairs_of_one_run_cost_together() -> None:
    """Before: (1, 1e-5), the cost of one of them."""
    half = Portfolio((pair("a"), pair("b"))).weights({"a": 0.5, "b": 0.5})
    assert Joint(half).guarantee(delta=1e-5).epsilon == pytest.approx(2.0, abs=2e-5)
    apart = Portfolio((pair("a", "r"), pair("b", "s"))).weights({"a": 0.5, "b": 0.5})
    assert Joint(half).guarantee(delta=1e-5).epsilon == pytest.approx(Joint(apart).guarantee(delta=1e-5).epsilon)


# --- the ledger -------------------------------------------------------------------------------------------------------


def on_disk(folder: Path, *models: tuple[Model, float]) -> Portfolio:
    """Models that hold a number each."""
    for model, value in models:
        place = folder / model.name
        place.mkdir(parents=True)
        save_file({"w": np.full((2, 3), value, dtype=np.float32)}, place / "model.safetensors")
        (place / "record.json").write_text(model.record.model_dump_json(by_alias=True))
    return Portfolio(folder)


def baseline(name: str) -> Model:
    return builders.dp_sgd(name, sigma=4.0, steps=5, run="baseline", noise_fingerprint=None, sampler_fingerprint=None)


def put_out(portfolio: Portfolio, name: str, out: Path, ledger: Ledger | None = None) -> None:
    weights = portfolio.weights({name: 1.0})
    release(portfolio, choose(portfolio, "selection", delta=DELTA, weights=weights), out, ledger=ledger)


def test_another_model_at_the_same_step_of_a_run_is_refused(tmp_path: Path) -> None:
    """Before: the total stayed what it was."""
    ledger = new(tmp_path / "ledger.db")
    first = on_disk(tmp_path / "first", (baseline("m"), 1.0))
    copy = on_disk(tmp_path / "copy", (baseline("again"), 1.0))
    other = on_disk(tmp_path / "other", (baseline("m"), 2.0))
    put_out(first, "m", tmp_path / "one", ledger)
    spent = total(ledger)
    put_out(copy, "again", tmp_path / "two", ledger)
    assert total(ledger) == pytest.approx(spent, rel=PRECISE)
    with pytest.raises(DependentRuns, match=r"'m' \(entry 1\) and 'm' \(this release\) both are step 5 of run 'baseline', and"):
        put_out(other, "m", tmp_path / "three", ledger)
    assert not (tmp_path / "three").exists()
    assert len(ledger.history()) == 4


def test_two_models_at_one_step_of_a_run_are_not_released_together(tmp_path: Path) -> None:
    """With or without a ledger: the guarantee counts the run once."""
    portfolio = on_disk(tmp_path / "p", (baseline("m"), 1.0), (baseline("n"), 2.0))
    choice = choose(portfolio, "joint", delta=DELTA, weights=portfolio.weights({"m": 0.5, "n": 0.5}))
    for ledger in (None, new(tmp_path / "ledger.db")):
        with pytest.raises(
            DependentRuns, match=r"'m' and 'n' both are step 5 of run 'baseline'.*give different runs different ids"
        ):
            release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert not (tmp_path / "out").exists()
    same = on_disk(tmp_path / "same", (baseline("m"), 1.0), (baseline("n"), 1.0))
    choice = choose(same, "joint", delta=DELTA, weights=same.weights({"m": 0.5, "n": 0.5}))
    release(same, choice, tmp_path / "out")


def test_models_whose_records_cover_one_model_count_by_their_names(tmp_path: Path) -> None:
    """Before: b, which holds what a does, and c, a copy, were free; so accepting b told what it holds."""
    ledger = new(tmp_path / "ledger.db")
    first = on_disk(tmp_path / "first", (pair("a"), 1.0), (pair("b"), 1.0))
    elsewhere = on_disk(tmp_path / "elsewhere", (pair("b"), 1.0), (pair("c"), 1.0))
    expected = []
    for count in (1, 2, 2, 3):
        models = Portfolio(tuple(pair(f"m{i}", f"run {i}") for i in range(count)))
        expected.append(joint(*models.names, portfolio=models))
    for number, (portfolio, name) in enumerate([(first, "a"), (first, "b"), (elsewhere, "b"), (elsewhere, "c")]):
        put_out(portfolio, name, tmp_path / f"out{number}", ledger)
        assert total(ledger) == pytest.approx(expected[number], rel=1e-6)
    fresh = new(tmp_path / "fresh.db")
    choice = choose(first, "joint", delta=DELTA, weights=first.weights({"a": 0.5, "b": 0.5}))
    release(first, choice, tmp_path / "both", ledger=fresh)
    assert total(fresh) == pytest.approx(expected[1], rel=1e-6)
    other = on_disk(tmp_path / "other", (pair("a"), 2.0))
    with pytest.raises(
        DependentRuns, match=r"'a' of run 'r' held other tensors in entry 1 than in this release\. .*its own run id"
    ):
        put_out(other, "a", tmp_path / "refused", ledger)
    assert not (tmp_path / "refused").exists()


def coin(name: str) -> Model:
    return builders.model(name, {"kind": "approx-dp", "epsilon": 1.0, "delta": 0.0, "run": "rr"})


@pytest.mark.parametrize("bits", [(1.0, 1.0), (1.0, 0.0)])
def test_whether_a_release_is_accepted_does_not_tell_what_models_hold(tmp_path: Path, bits: tuple[float, float]) -> None:
    """Two bits by randomised response. Before: the second passed iff it equals the first, δ(1) = 0.34 of a budget (1, 1e-5)."""
    coins = on_disk(tmp_path / "coins", (coin("a"), bits[0]), (coin("b"), bits[1]))
    with pytest.raises(BudgetExceeded):
        new(tmp_path / "declared.db", epsilon=1.0, declared=[coins])
    ledger = new(tmp_path / "ledger.db", epsilon=1.0)
    put_out(coins, "a", tmp_path / "one", ledger)
    with pytest.raises(BudgetExceeded):
        put_out(coins, "b", tmp_path / "two", ledger)


@pytest.mark.parametrize("run", ["lr~1e-3", "a#b", "a@b"])
def test_a_run_id_may_hold_any_sign(tmp_path: Path, run: str) -> None:
    """Before: with ~ or # in the run id every release of one model counted anew, or runs were taken for one."""
    ledger = new(tmp_path / "ledger.db")
    portfolio = on_disk(tmp_path / "p", (pair("a", run), 1.0), (pair("b", f"{run}#2"), 1.0))
    for number in range(3):
        put_out(portfolio, "a", tmp_path / f"out{number}", ledger)
    assert total(ledger) == pytest.approx(joint("a", portfolio=portfolio), rel=1e-6)
    put_out(portfolio, "b", tmp_path / "b", ledger)
    assert total(ledger) == pytest.approx(joint("a", "b", portfolio=portfolio), rel=1e-6)


def test_records_of_one_run_that_contradict_each_other_are_refused_by_a_filter_too(tmp_path: Path) -> None:
    """Before: a run 800 times as loud passed as an earlier checkpoint of the one released, and cost nothing."""
    for number, (later, steps) in enumerate([(0.05, 9), (4.0, 10)]):
        ledger = new(tmp_path / f"ledger{number}.db", epsilon=2.0, filter_share=0.5)
        quiet = Portfolio((builders.dp_sgd("a", sigma=40.0, steps=10, run="r"),))
        loud = Portfolio((builders.dp_sgd("b", sigma=later, steps=steps, run="r"),))
        ledger.enter(planned(quiet, dependent=True, a=1.0))
        with pytest.raises(PortfolioError, match="both claim run 'r', but the record of the first is not the beginning of"):
            ledger.enter(planned(loud, dependent=True, b=1.0))


def test_the_ledger_keeps_digests_that_no_certificate_shows(tmp_path: Path) -> None:
    ledger = new(tmp_path / "ledger.db")
    portfolio = on_disk(tmp_path / "p", (baseline("m"), 1.0))
    put_out(portfolio, "m", tmp_path / "out", ledger)
    (digest,) = ledger.history()[0].content["contents"].values()
    assert digest == content_digest(tmp_path / "p" / "m")
    assert digest not in (tmp_path / "out" / "certificate.json").read_text()


def test_a_digest_is_of_tensors_and_not_of_files(tmp_path: Path) -> None:
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(2, dtype=np.float32)}
    for name in ("one", "two", "other", "shape", "torch"):
        (tmp_path / name).mkdir()
    save_file(values, tmp_path / "one" / "model.safetensors")
    save_file(dict(reversed(values.items())), tmp_path / "two" / "weights.safetensors", metadata={"format": "pt"})
    torch.save({name: torch.from_numpy(value) for name, value in values.items()}, tmp_path / "torch" / "model.pt")
    save_file({**values, "a": np.zeros(2, dtype=np.float32)}, tmp_path / "other" / "model.safetensors")
    save_file({**values, "b": values["b"].reshape(3, 2)}, tmp_path / "shape" / "model.safetensors")
    digests = {name: content_digest(tmp_path / name) for name in ("one", "two", "torch", "other", "shape")}
    assert digests["one"] == digests["two"] == digests["torch"]
    assert len(set(digests.values())) == 3


def test_models_of_one_run_are_no_independent_runs(tmp_path: Path) -> None:
    from dpmerge.checkpoints import Spread

    on_disk(tmp_path / "p", (pair("a"), 1.0), (pair("b"), 2.0))
    with pytest.raises(PortfolioError, match="'a' and 'b' are of the same run, 'r', but runs must be independent"):
        Spread.over_runs(tmp_path / "p")
