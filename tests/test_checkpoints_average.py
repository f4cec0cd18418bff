"""Averages of the checkpoints of one run: weights against the recursion, tensors, certificates, and what is refused by name."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attacks.victim import forge
from dpmerge.checkpoints import Run, average, averaging
from dpmerge.errors import (
    BudgetExceeded,
    CertificateError,
    CheckpointError,
    DpmergeError,
    PortfolioError,
    TargetError,
    WeightsError,
)
from dpmerge.planning import Averaging
from dpmerge.records import Portfolio
from dpmerge.release import Certificate, Ledger, Merge, Signer, choose, new_keys, release, trusted_key, verify
from dpmerge.release.certificate import MergeForm
from dpmerge.rules import Joint
from dpmerge.tensors import read_tensors
from tests import builders
from tests.checkpoint_builders import NUMPY, bits, single
from tests.release_builders import DELTA, certificate, dpmerge, on_disk
from tests.run_builders import STEPS, checkpoint, run_in_memory, run_on_disk

RULES: list[dict[str, Any]] = [
    {"rule": "uta", "last": 4},
    {"rule": "uniform"},
    {"rule": "ema", "decay": 0.8},
    {"rule": "ema", "new_weight": 0.7},
    {"rule": "ema", "decay": 0.99, "warm_up": True},
    {"rule": "ema", "new_weight": 0.9, "warm_up": True, "last": 3},
    {"rule": "pda", "gamma": 2.5},
]


def epsilon(*steps: int) -> float:
    """What a run up to the last of these steps costs: its own accounting, without any of this."""
    models = [checkpoint(step) for step in steps]
    portfolio = Portfolio(tuple(models))
    return Joint(portfolio.weights({model.name: 1 / len(models) for model in models})).guarantee(delta=DELTA).epsilon


def complaint(*arguments: object) -> str:
    """The one line of a command that must fail on purpose."""
    result = dpmerge(*arguments)
    assert isinstance(result.exception, DpmergeError), result.output
    return str(result.exception)


# --- weights ------------------------------------------------------------------------------------------------------------------


def recursion(new_weight: Callable[[int], Fraction], count: int) -> list[Fraction]:
    """The average as a vector over the checkpoints, step by step in exact numbers; `new_weight(i)` for i = 1, 2, …."""
    average = [Fraction(int(i == 0)) for i in range(count)]
    for i in range(1, count):
        b = new_weight(i)
        average = [(1 - b) * value + b * int(place == i) for place, value in enumerate(average)]
    return average


def close(found: list[float], exact: list[Fraction]) -> None:
    """Half a unit in the last place of every weight; 0 only below the range of floats."""
    assert len(found) == len(exact)
    for weight, value in zip(found, exact, strict=True):
        assert weight >= 0
        assert abs(Fraction(weight) - value) <= value / 2**53 + Fraction(2) ** -1022


counts = st.integers(1, 12)
below_one = st.floats(0, 1, exclude_max=True)
above_zero = st.floats(0, 1, exclude_min=True)


@settings(deadline=None, max_examples=60)
@given(counts, below_one, st.booleans())
def test_decay_is_the_recursion(count: int, decay: float, warm_up: bool) -> None:
    def new_weight(t: int) -> Fraction:
        return 1 - (min(Fraction(decay), Fraction(1 + t, 10 + t)) if warm_up else Fraction(decay))

    close(averaging("ema", count, decay=decay, warm_up=warm_up).weights(), recursion(new_weight, count))


@settings(deadline=None, max_examples=60)
@given(counts, above_zero, st.booleans())
def test_new_weight_is_the_recursion(count: int, weight: float, warm_up: bool) -> None:
    def new_weight(t: int) -> Fraction:
        return min(Fraction(weight), Fraction(1 + t, 10 + t)) if warm_up else Fraction(weight)

    close(averaging("ema", count, new_weight=weight, warm_up=warm_up).weights(), recursion(new_weight, count))


@settings(deadline=None, max_examples=60)
@given(counts, st.floats(0, 1e6))
def test_polynomial_decay_is_the_recursion(count: int, gamma: float) -> None:
    """Eq. (8) of Recycling Scraps counts from 1."""
    exact = recursion(lambda i: (Fraction(gamma) + 1) / (i + 1 + Fraction(gamma)), count)
    close(averaging("pda", count, gamma=gamma).weights(), exact)


@settings(deadline=None, max_examples=60)
@given(counts)
def test_equal_weights(count: int) -> None:
    equal = [1 / count] * count
    assert averaging("uta", count).weights() == averaging("uniform", count).weights() == equal
    assert averaging("pda", count, gamma=0.0).weights() == equal


rules = st.one_of(
    st.fixed_dictionaries({"rule": st.just("ema"), "decay": below_one, "warm_up": st.booleans()}),
    st.fixed_dictionaries({"rule": st.just("ema"), "new_weight": above_zero, "warm_up": st.booleans()}),
    st.fixed_dictionaries({"rule": st.just("pda"), "gamma": st.floats(0, 1e300)}),
    st.sampled_from([{"rule": "uta"}, {"rule": "uniform"}]),
)


@settings(deadline=None, max_examples=60)
@given(rules, st.integers(1, 3000))
def test_weights_lie_on_the_simplex(rule: dict[str, Any], count: int) -> None:
    weights = averaging(checkpoints=count, **rule).weights()
    assert len(weights) == count and min(weights) >= 0 and weights[-1] > 0
    assert abs(math.fsum(weights) - 1) < 1e-14
    zeros = [weight == 0 for weight in weights]
    assert zeros == sorted(zeros, reverse=True), "only the oldest have none"
    if not rule.get("warm_up"):
        later = weights[1:] if rule["rule"] == "ema" else weights  # the first of an EMA holds all that came before
        assert later == sorted(later)


def test_the_two_conventions_and_their_warm_ups() -> None:
    assert averaging("ema", 5, decay=0.75).weights() == averaging("ema", 5, new_weight=0.25).weights()
    # t = 1 and 2: (1 + t)/(10 + t) = 2/11 and 3/12
    assert averaging("ema", 3, decay=0.99, warm_up=True).weights() == [float(Fraction(1, 22)), float(Fraction(9, 44)), 0.75]
    found = averaging("ema", 3, new_weight=0.99, warm_up=True).weights()
    assert found == [float(Fraction(27, 44)), float(Fraction(6, 44)), 0.25]
    texts = {str(averaging("ema", 3, **{name: 0.9})) for name in ("decay", "new_weight")}  # type: ignore[arg-type]
    assert texts == {
        "EMA with decay 0.9: b·average + (1 − b)·checkpoint, over 3 checkpoints",
        "EMA with new weight 0.9: (1 − b)·average + b·checkpoint, over 3 checkpoints",
    }


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"rule": "ema"}, "either a decay"),
        ({"rule": "ema", "decay": 0.9, "new_weight": 0.1}, "not both"),
        ({"rule": "ema", "decay": 1.0}, "field decay"),
        ({"rule": "ema", "decay": -0.1}, "field decay"),
        ({"rule": "ema", "decay": math.nan}, "the average 'ema'"),
        ({"rule": "ema", "new_weight": 0.0}, "field new_weight"),
        ({"rule": "ema", "new_weight": 1.1}, "field new_weight"),
        ({"rule": "uta", "decay": 0.9, "last": 2}, "belong to ema"),
        ({"rule": "uniform", "warm_up": True}, "belong to ema"),
        ({"rule": "pda"}, "pda needs it"),
        ({"rule": "pda", "gamma": -1.0}, "field gamma"),
        ({"rule": "uta", "gamma": 1.0, "last": 2}, "belongs to pda"),
        ({"rule": "uta"}, r"their number \(`last`\)"),
        ({"rule": "uniform", "last": 3}, "uniform averages all"),
    ],
)
def test_parameters_that_are_not_the_rules_are_refused(given: dict[str, Any], reason: str, tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    with pytest.raises(WeightsError, match=reason):
        average(run, tmp_path / "out", delta=DELTA, **given)
    assert not (tmp_path / "out").exists()


# --- the checkpoints of a run -------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_records(tmp_path: Path) -> None:
    """Alphabetically 100 comes before 90; the trainer names the last checkpoint after the run alone."""
    names = {80: "a@80", 90: "a@90", 100: "a@100", 105: "a"}
    run = Run.of(on_disk(tmp_path / "run", *(checkpoint(step, name) for step, name in names.items())))
    assert [model.name for model in run.checkpoints] == list(names.values())
    assert [model.name for model in run.last(2)] == ["a@100", "a"]
    assert [model.name for model in run.last(2, until=100)] == ["a@90", "a@100"]
    assert Run.load(tmp_path / "run") == run


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        (
            [checkpoint(10), checkpoint(20), checkpoint(30, run="two")],
            "'step-30' is a checkpoint of run 'two', 'step-10' of run",
        ),
        ([checkpoint(10, "a"), checkpoint(10, "b")], "'a' and 'b' are both of step 10"),
        ([checkpoint(10, "step-20"), checkpoint(20, "step-10")], "'step-20' and 'step-10' are out of order"),
        ([checkpoint(10, "a1"), checkpoint(20, "a3"), checkpoint(30, "a2")], "'a3' and 'a2' are out of order"),
        ([checkpoint(10), checkpoint(20, eta=0.2)], "not the beginning of the second"),
        ([checkpoint(10), checkpoint(20, sigma=30.0)], "not the beginning of the second"),
        ([builders.model("a", {"kind": "approx-dp", "epsilon": 1.0, "delta": 0.0, "run": "one"})], "has no steps"),
        (
            [builders.model("a", {"kind": "dp-ftrl", "noise_multiplier": 1.0, "steps": 8, "restarts": 0}, "zero-out")],
            "its record has no run",
        ),
    ],
)
def test_checkpoints_that_are_not_one_run_in_order_are_refused_by_name(models: list[Any], reason: str, tmp_path: Path) -> None:
    for model in models:
        single(tmp_path / "run" / model.name, {"x": np.zeros(3, np.float32)})
        (tmp_path / "run" / model.name / "record.json").write_text(model.record.model_dump_json(by_alias=True))
    with pytest.raises(PortfolioError, match=reason):
        Run.load(tmp_path / "run")
    command = ("run", "average", tmp_path / "run", "--rule", "uniform", "--delta", DELTA, "--out", tmp_path / "out")
    assert complaint(*command) and not (tmp_path / "out").exists()


def test_numbers_in_other_places_of_the_names_mean_nothing() -> None:
    names = {10: "lr0.5-z", 20: "lr0.25-y", 30: "7@9", 40: "6@10", 50: "6"}
    run = Run.of(Portfolio(tuple(checkpoint(step, name) for step, name in names.items())))
    assert [model.name for model in run.checkpoints] == list(names.values())


@pytest.mark.parametrize(
    ("steps", "last", "reason"),
    [
        ((10, 20, 40, 50), None, "between 'step-20' and 'step-40' the checkpoint of step 30 is missing"),
        ((10, 20, 30, 60), 2, "between 'step-30' and 'step-60' the checkpoint of step 40, 50 is missing"),
        ((10, 40, 50, 60), None, "between 'step-10' and 'step-40' the checkpoint of step 20, 30 is missing"),
        ((10, 40, 50, 60), 3, None),
        ((10, 20, 30, 35), None, None),  # a run need not end with a multiple
        ((100, 105), None, None),
        ((100, 200, 205), None, None),
        ((100, 200, 300, 310, 320, 330), 3, None),
        ((100, 200, 300, 310, 320, 330), 4, None),
        ((100, 200, 300, 400, 410, 420, 430), 3, None),
        ((100, 200, 300, 400, 410, 420, 430), 5, "not equally far apart: 100, 10, 10, 10"),
        ((10, 20, 30, 35, 45), None, "not equally far apart: 10, 10, 5, 10"),
        ((7,), None, None),
    ],
)
def test_missing_checkpoints_are_named(steps: tuple[int, ...], last: int | None, reason: str | None) -> None:
    run = run_in_memory(steps)
    if reason is None:
        assert len(run.last(last)) == (last or len(steps))
        return
    with pytest.raises(PortfolioError, match=reason):
        run.last(last)
    assert len(run.last(last, allow_gaps=True)) == (last or len(steps))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(1, 50), st.integers(3, 12), st.data())
def test_a_checkpoint_taken_out_of_the_middle_is_missed(first: int, apart: int, count: int, data: st.DataObject) -> None:
    """Of four or more; of three at equal distances the two outer ones are as equally far apart as any two."""
    steps = [first + apart * place for place in range(count + 1)]
    gone = data.draw(st.integers(1, count - 1))
    left = [step for place, step in enumerate(steps) if place != gone]
    assert len(run_in_memory(steps).last()) == count + 1
    if count > 3 or gone == 2:  # 10, 30, 40 may be a run that ended early after its second checkpoint
        with pytest.raises(PortfolioError, match=f"the checkpoint of step {steps[gone]} is missing"):
            run_in_memory(left).last()


def test_fewer_checkpoints_than_asked_for_are_refused() -> None:
    run = run_in_memory()
    with pytest.raises(PortfolioError, match=r"`last` is 10, but there are 6 checkpoints up to step 60"):
        run.last(10)
    with pytest.raises(PortfolioError, match=r"`last` is 4, but there are 3 checkpoints up to step 30"):
        run.last(4, until=30)
    with pytest.raises(PortfolioError, match="`last` is 0"):
        run.last(0)
    with pytest.raises(PortfolioError, match=r"no checkpoint of step 35; there are 10, 20, 30, 40, 50, 60"):
        run.last(until=35)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"weight": np.zeros((8, 4), np.float32), "bias": np.zeros(5)}, "tensor 'weight' in shapes"),
        ({"weight": np.zeros((8, 5), np.float32)}, "lacks tensor 'bias'"),
        ({"weight": np.zeros((8, 5), np.float16), "bias": np.zeros(5)}, "tensor 'weight' as F32 and F16"),
        ({"weight": np.full((8, 5), np.nan, np.float32), "bias": np.zeros(5)}, "tensor 'weight': element 0 is nan"),
    ],
)
def test_other_tensors_are_refused_by_name(tensors: dict[str, Any], reason: str, tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    single(tmp_path / "run" / "step-40", tensors)
    with pytest.raises(CheckpointError, match=reason) as fault:
        average(run, tmp_path / "out", rule="uniform", delta=DELTA)
    assert "'step-40'" in str(fault.value)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


# --- tensors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_tensors_are_the_recursion_to_one_rounding(rule: dict[str, Any], tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    released = average(run, tmp_path / "out", delta=DELTA, **rule)
    used = run.last(rule.get("last"))
    weights = averaging(
        rule["rule"], len(used), **{name: value for name, value in rule.items() if name not in ("rule", "last")}
    ).weights()
    found = read_tensors(released.folder)
    for name in ("weight", "bias"):
        values = [read_tensors(tmp_path / "run" / model.name)[name] for model in used]
        exact = [
            sum(Fraction(float(value.flat[place])) * Fraction(weight) for value, weight in zip(values, weights, strict=True))
            for place in range(values[0].size)
        ]
        ulp = np.spacing(np.abs(found[name])).reshape(-1)
        largest = max(float(np.abs(value).max()) for value in values)
        for place, value in enumerate(exact):
            allowed = 0.5 * float(ulp[place]) + 2 * len(used) * 2.0**-53 * largest
            assert abs(float(Fraction(float(found[name].flat[place])) - value)) <= allowed


@pytest.mark.parametrize("dtype", list(NUMPY))
def test_uta_1_is_the_last_checkpoint_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    special = np.array([0.0, -0.0, 1e-40, -6e-8, 65504.0, 1 / 3], NUMPY[dtype])
    for model in run.checkpoints:
        values = np.random.default_rng(len(model.name)).normal(size=500).astype(NUMPY[dtype])
        single(tmp_path / "run" / model.name, {"x": np.concatenate([special, values]), "n": np.arange(3)})
    average(run, tmp_path / "out", rule="uta", last=1, delta=DELTA)
    found, last = read_tensors(tmp_path / "out"), read_tensors(tmp_path / "run" / "step-60")
    assert found.keys() == last.keys()
    assert all(found[name].dtype == last[name].dtype and bits(found[name]) == bits(last[name]) for name in last)


def test_uta_of_all_is_pda_0_and_uniform(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    for rule in ({"rule": "uta", "last": 6}, {"rule": "pda", "gamma": 0.0}, {"rule": "uniform"}):
        average(run, tmp_path / str(rule["rule"]), delta=DELTA, **rule)
    uta, pda, uniform = (read_tensors(tmp_path / name) for name in ("uta", "pda", "uniform"))
    assert all(bits(uta[name]) == bits(pda[name]) == bits(uniform[name]) for name in uta)


def test_integers_are_those_of_the_latest_checkpoint_used(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    for number, model in enumerate(run.checkpoints):
        tensors = {"running_mean": np.full(3, float(number), np.float32), "num_batches_tracked": np.array(number)}
        single(tmp_path / "run" / model.name, tensors)
    released = average(run, tmp_path / "out", rule="uta", last=2, until=40, delta=DELTA)
    found = read_tensors(tmp_path / "out")
    assert found["num_batches_tracked"] == 3 and (found["running_mean"] == 2.5).all()
    assert any("'num_batches_tracked' is that of model 'step-40'" in note for note in released.notes)
    assert verify(released.folder, portfolio=run.portfolio).code == 0


def test_weights_below_the_range_of_floats_take_no_part(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path, range(1, 31))
    released = average(run, tmp_path / "out", rule="ema", decay=1e-30, delta=DELTA)
    used = released.certificate.rule.values
    assert set(used) == {f"step-{step}" for step in range(20, 31)}
    assert any("the 19 earliest checkpoints" in note for note in released.notes)
    assert verify(released.folder, portfolio=run.portfolio).code == 0


MEASURE = """
import sys
from pathlib import Path
from dpmerge.checkpoints import average
folder, last = Path(sys.argv[1]), int(sys.argv[2])
average(folder / "run", folder / "out", rule="uta", last=last, delta=1e-5)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_memory_grows_neither_with_the_model_nor_with_the_checkpoints(tmp_path: Path) -> None:
    """Eight checkpoints of 100 MB; the real thing, 50 of 500 MB, takes a minute and was measured once (docs/checkpoints.md)."""
    peaks = {}
    for megabytes in (1, 100):
        folder = tmp_path / str(megabytes)
        run_on_disk(folder, STEPS if megabytes == 1 else range(1, 9))
        first, *others = sorted((folder / "run").iterdir())
        values = np.random.default_rng(0).standard_normal(megabytes << 16, dtype=np.float32)
        single(first, {f"layer{number}": values for number in range(4)})
        for other in others:
            (other / "model.safetensors").unlink()
            os.link(first / "model.safetensors", other / "model.safetensors")
        command = [sys.executable, "-c", MEASURE, str(folder), str(len(others) + 1)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks[megabytes] = int(done.stdout) / 1024
    assert peaks[100] < 200, peaks
    assert peaks[100] - peaks[1] < 30, peaks


# --- the guarantee ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=6, unique=True).map(sorted),
    rules,
    st.data(),
)
def test_an_average_never_claims_better_than_its_run(steps: list[int], rule: dict[str, Any], data: st.DataObject) -> None:
    run = run_in_memory(steps)
    until = data.draw(st.sampled_from(steps))
    before = [step for step in steps if step <= until]
    used = run.last(data.draw(st.integers(1, len(before))), until=until, allow_gaps=True)
    weights = averaging(checkpoints=len(used), **rule).weights()
    named = dict(zip((model.name for model in used), weights, strict=True))
    fixed = run.choose(named, delta=DELTA, provenance="a-priori").guarantee
    looked = run.choose(named, delta=DELTA).guarantee
    assert fixed.epsilon == epsilon(until) and looked.epsilon == epsilon(steps[-1])
    assert looked.epsilon >= fixed.epsilon
    assert fixed.theorem == looked.theorem == "single-run"


def test_the_guarantee_of_a_sampled_run_is_the_runs(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path, (50, 100, 150), sampling=0.02, sigma=1.0)
    found = average(run, tmp_path / "out", rule="ema", decay=0.5, delta=DELTA).certificate.guarantee
    alone = Joint(run.portfolio.weights({"step-150": 1.0})).guarantee(delta=DELTA)
    assert found.epsilon == alone.epsilon and found.standing == "proved"
    assert verify(tmp_path / "out", portfolio=run.portfolio).code == 0


def test_checkpoints_left_out_are_covered_unless_they_were_not_looked_at(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    looked = average(run, tmp_path / "looked", rule="uta", last=2, until=40, delta=DELTA)
    fixed = average(run, tmp_path / "fixed", rule="uta", last=2, until=40, delta=DELTA, provenance="a-priori")
    assert looked.certificate.guarantee.epsilon == epsilon(60) > epsilon(40) == fixed.certificate.guarantee.epsilon
    assert set(looked.certificate.records) == set(run.portfolio.names)
    assert set(fixed.certificate.records) == {"step-30", "step-40"}
    assert any("checkpoints up to step 60 are covered" in note for note in looked.notes)
    assert any("if step 40 was fixed without looking" in note for note in fixed.notes)
    for released in (looked, fixed):
        verdict = verify(released.folder, portfolio=run.portfolio)
        assert verdict.code == 0, verdict


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_certified_and_rechecked(rule: dict[str, Any], tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    released = average(run, tmp_path / "out", delta=DELTA, **rule)
    stated = certificate(released.folder)["merge"]["average"]
    given = {"decay": None, "new_weight": None, "warm_up": False, "gamma": None, **rule}
    assert stated == {**{k: v for k, v in given.items() if k != "last"}, "checkpoints": rule.get("last", 6)}
    assert str(released.certificate.merge.average) in (released.folder / "README.md").read_text()
    verdict = verify(released.folder, portfolio=run.portfolio)
    assert verdict.code == 0, verdict
    assert "the tensors are the stated combination, bit for bit" in verdict.holds


def test_signed_and_within_a_target(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    new_keys(tmp_path / "key")
    average(run, tmp_path / "out", rule="uniform", delta=DELTA, epsilon=epsilon(60) * 1.01, signer=Signer(tmp_path / "key"))
    assert verify(tmp_path / "out", portfolio=run.portfolio, trust=trusted_key(tmp_path / "key.pub")).code == 0
    with pytest.raises(TargetError, match="which is above"):
        average(run, tmp_path / "other", rule="uniform", delta=DELTA, epsilon=epsilon(60) * 0.9)
    with pytest.raises(CheckpointError, match="exists already"):
        average(run, tmp_path / "out", rule="uniform", delta=DELTA)


def test_a_ledger_counts_a_run_once_up_to_its_latest_checkpoint(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    total = epsilon(50) * 1.0001
    budget: dict[str, Any] = {
        "dataset": builders.DATASET,
        "adjacency": run.portfolio.adjacency,
        "epsilon": total,
        "delta": DELTA,
    }
    ledger = Ledger.create(tmp_path / "ledger.db", **budget)
    for number, until in enumerate((30, 50, 40)):
        out = tmp_path / f"out-{number}"
        released = average(run, out, rule="uta", last=2, until=until, delta=DELTA, provenance="a-priori", ledger=ledger)
        latest = max((30, 50, 40)[: number + 1])
        assert released.certificate.ledger is not None
        assert released.certificate.ledger.epsilon == pytest.approx(epsilon(latest), rel=1e-9)
        assert verify(out, portfolio=run.portfolio, ledger=ledger).code == 0
    with pytest.raises(BudgetExceeded, match="would bring the total"):
        average(run, tmp_path / "more", rule="uta", last=2, delta=DELTA, ledger=ledger)
    assert not (tmp_path / "more").exists()


# --- forgeries ----------------------------------------------------------------------------------------------------------------


def as_decay(content: dict[str, Any]) -> None:
    content["merge"]["average"].update(decay=0.7, new_weight=None)


def as_another_rule(content: dict[str, Any]) -> None:
    content["merge"]["average"] = {
        "rule": "uta",
        "checkpoints": 6,
        "decay": None,
        "new_weight": None,
        "warm_up": False,
        "gamma": None,
    }


def other_weights(content: dict[str, Any]) -> None:
    weights = content["rule"]["weights"]
    weights["step-50"], weights["step-60"] = weights["step-60"], weights["step-50"]


def more_checkpoints(content: dict[str, Any]) -> None:
    content["merge"]["average"]["checkpoints"] = 7


def by_a_method(content: dict[str, Any]) -> None:
    content["merge"]["method"] = "slerp"


def fewer_steps(content: dict[str, Any]) -> None:
    """The last checkpoint is said to be of step 45: less noise to account for, and no longer the last."""
    content["records"]["step-60"]["record"]["mechanism"]["phases"][0]["steps"] = 45


@pytest.mark.parametrize("change", [as_decay, as_another_rule, other_weights, more_checkpoints, by_a_method, fewer_steps])
def test_a_forged_average_contradicts_itself(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    out = average(run, tmp_path / "out", rule="ema", new_weight=0.7, delta=DELTA).folder
    forge(out, change, guarantee=True)
    verdict = verify(out)
    assert verdict.code == 1
    assert any("an average of checkpoints with other weights than its rule gives" in fault for fault in verdict.broken), verdict


def test_a_checkpoint_left_out_is_seen_with_the_portfolio(tmp_path: Path) -> None:
    """Averaged without step 40, which then returns: the certificate alone cannot know."""
    run_on_disk(tmp_path)
    shutil.move(tmp_path / "run" / "step-40", tmp_path / "aside")
    average(tmp_path / "run", tmp_path / "out", rule="uta", last=4, allow_gaps=True, delta=DELTA, provenance="a-priori")
    assert verify(tmp_path / "out", portfolio=Portfolio(tmp_path / "run")).code == 0
    shutil.move(tmp_path / "aside", tmp_path / "run" / "step-40")
    verdict = verify(tmp_path / "out", portfolio=Portfolio(tmp_path / "run"))
    assert verdict.broken == ["the models averaged are not checkpoints that follow each other in the portfolio"]


def test_an_average_that_was_not_made_is_not_certified(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    weights = run.portfolio.weights({"step-50": 0.25, "step-60": 0.75})
    choice = choose(run.portfolio, "joint", weights=weights, delta=DELTA)
    with pytest.raises(CertificateError, match="not the weights of UTA, the last 2"):
        release(run.portfolio, choice, tmp_path / "out", merge=Merge(average=averaging("uta", 2)))
    alone = choose(run.portfolio, "selection", weights=run.portfolio.weights({"step-60": 1.0}), delta=DELTA)
    with pytest.raises(CertificateError, match="an average needs joint release"):
        release(run.portfolio, alone, tmp_path / "out", merge=Merge(average=averaging("uta", 1)))
    assert not (tmp_path / "out").exists()


def test_a_certificate_of_another_merge_does_not_know_averages(tmp_path: Path) -> None:
    """Its bytes, and so its hash, are what they were before there were averages."""
    assert MergeForm().model_dump() == {"method": None, "lora": None, "take_from": None, "base": None}
    run = run_on_disk(tmp_path)
    choice = choose(run.portfolio, "joint", weights=run.portfolio.weights({"step-60": 1.0}), delta=DELTA)
    out = release(run.portfolio, choice, tmp_path / "out").folder
    assert "average" not in certificate(out)["merge"]
    text = (out / "certificate.json").read_text().replace('"base": null', '"average": {"rule": "uta"}, "base": null')
    with pytest.raises(CertificateError, match="checkpoints"):
        Certificate.parse(text.encode(), "certificate.json")


def test_nobody_waits_for_the_weights_of_a_forged_average() -> None:
    with pytest.raises(WeightsError, match="field checkpoints"):
        averaging("pda", 10**12, gamma=0.0)
    assert not Averaging(rule="uta", checkpoints=2).gives({"a": 0.5, "b": 0.5}, {})


# --- the command --------------------------------------------------------------------------------------------------------------


def test_command_and_library_release_the_same(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path)
    options = ("--rule", "ema", "--decay", "0.9", "--warm-up", "--until", "50", "--delta", DELTA)
    result = dpmerge("run", "average", tmp_path / "run", *options, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    library = average(run, tmp_path / "library", rule="ema", decay=0.9, warm_up=True, until=50, delta=DELTA).certificate
    shown = json.loads(result.stdout)
    assert shown["certificate"] == certificate(tmp_path / "out")
    plain = library.model_dump(mode="json", by_alias=True)
    for field in ("rule", "merge", "guarantee", "numerics", "records", "provenance", "inputs"):
        assert shown["certificate"][field] == plain[field], field
    assert bits(read_tensors(tmp_path / "out")["weight"]) == bits(read_tensors(tmp_path / "library")["weight"])
    again = dpmerge("verify", tmp_path / "out", "--portfolio", tmp_path / "run")
    assert again.exit_code == 0, again.output


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    run_on_disk(tmp_path)
    made = dpmerge("ledger", "new", tmp_path / "l.db", "--dataset", builders.DATASET, "--epsilon", 9, "--delta", DELTA)
    assert made.exit_code == 0, made.output
    common = ("run", "average", tmp_path / "run", "--delta", DELTA, "--out", tmp_path / "out")
    result = dpmerge(*common, "--rule", "uta", "--last", 2, "--ledger", tmp_path / "l.db")
    assert result.exit_code == 0, result.output
    assert "UTA, the last 2 checkpoints with equal weights" in result.output
    assert "weights: step-50=0.5, step-60=0.5\n" in result.output
    assert "proved: one run alone" in result.output and "entry 1 of the ledger" in result.output
    assert "`last` is 10, but there are 6 checkpoints up to step 60" in complaint(*common, "--rule", "uta", "--last", 10)
    assert "not both" in complaint(*common, "--rule", "ema", "--decay", 0.9, "--new-weight", 0.1)
    shutil.rmtree(tmp_path / "run" / "step-30")
    assert "the checkpoint of step 30 is missing" in complaint(*common, "--rule", "uniform")


def test_pytorch_checkpoints(tmp_path: Path) -> None:
    """State dicts with a counter, as a trainer leaves them; the average is written as safetensors."""
    torch = pytest.importorskip("torch")
    run = run_on_disk(tmp_path, (10, 20, 30))
    for model in run.checkpoints:
        folder = tmp_path / "run" / model.name
        (folder / "model.safetensors").unlink()
        value = float(model.name.removeprefix("step-"))
        torch.save({"weight": torch.full((3, 2), value), "batches": torch.tensor(int(value))}, folder / "model.pt")
    released = average(run, tmp_path / "out", rule="uta", last=2, delta=DELTA)
    found = read_tensors(released.folder)
    assert (found["weight"] == 25).all() and found["batches"] == 30
    assert verify(released.folder, portfolio=run.portfolio).code == 0
