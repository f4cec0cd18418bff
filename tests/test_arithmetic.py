"""Below joint release, noise must cover the arithmetic of stored numbers (docs/theory.md §3.6); attacks/lattice_residues.py."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import dpmerge
from attacks.victim import forge
from dpmerge.errors import CheckpointError, TargetError
from dpmerge.jobs import run_all
from dpmerge.records import Portfolio
from dpmerge.release import preview, release, verify
from dpmerge.release.release import stored_spacing
from dpmerge.rules import Combination, Joint
from dpmerge.rules.arithmetic import COVER, condition
from dpmerge.tensors import DTYPES
from tests import builders
from tests.checkpoint_builders import NUMPY, single
from tests.release_builders import DELTA, WEIGHTS, certificate, chosen, on_disk, runs

# The last noise of model a of `runs`: 0.25 × 0.1 × 4 / 1000, the least of both.
LEAST = 0.25 * 0.1 * 4 / 1000


def with_tensor(portfolio: Portfolio, name: str, **tensors: Any) -> None:
    folder = next(model.folder for model in portfolio.models if model.name == name)
    assert folder is not None
    single(folder, tensors)


def scaled(portfolio: Portfolio, largest: float, dtype: str, **more: Any) -> None:
    """Random tensors of which the largest element, in one model, has this size."""
    for seed, name in enumerate(portfolio.names):
        values = np.random.default_rng(seed).uniform(-0.9, 0.9, 64) * largest
        values[5] = -largest if name == "b" else 0.0
        with_tensor(portfolio, name, weight=values.astype(NUMPY[dtype]), **more)


@given(st.floats(1e-30, 1e30), st.sampled_from(["F64", "F32"]))
def test_spacing_is_the_distance_to_the_next_number(value: float, name: str) -> None:
    stored = NUMPY[name](value)
    assert DTYPES[name].spacing(float(stored)) == float(np.spacing(np.abs(stored)))


def test_spacing_in_sixteen_bits() -> None:
    for value in (1.0, 1.99, 2.0, 0.3, 540.0):
        for name in ("F16", "BF16"):
            stored = np.asarray(value, NUMPY[name])
            above = np.nextafter(stored, np.asarray(np.inf, NUMPY[name]))
            assert DTYPES[name].spacing(float(stored)) == float(above) - float(stored), (value, name)
    assert DTYPES["BF16"].storage.itemsize == ml_dtypes.bfloat16(0).itemsize


@pytest.mark.parametrize("dtype,bits", [("F64", 53), ("F32", 24), ("F16", 11), ("BF16", 8)])
def test_the_edge_of_what_is_covered(dtype: str, bits: int, tmp_path: Path) -> None:
    """Just below the power of two at which the spacing passes 1/1024 of the least noise, and there."""
    portfolio = runs(tmp_path)
    edge = 2.0 ** (math.floor(math.log2(LEAST / COVER)) + bits)
    scaled(portfolio, edge * 0.99, dtype)
    choice = chosen(portfolio, "combination")
    assert choice.guarantee.theorem == "transport"
    made = release(portfolio, choice, tmp_path / "fine")
    assert (made.guarantee.epsilon, made.guarantee.theorem) == (choice.guarantee.epsilon, "transport")
    assert (choice.guarantee.standing, made.guarantee.standing) == ("proved", "conditional")
    assert any("known to fail for parameters near powers of two" in text for text in made.guarantee.assumptions)
    assert made.certificate.rule.arithmetic == "stored"
    assert verify(tmp_path / "fine", portfolio=portfolio).code == 0
    assert COVER * stored_spacing(portfolio, choice.form, {n: tmp_path / "runs" / n for n in portfolio.names}) <= LEAST

    scaled(portfolio, edge, dtype)
    coarse = release(portfolio, choice, tmp_path / "coarse")
    joint = Joint(portfolio.weights(WEIGHTS)).guarantee(delta=DELTA)
    assert coarse.guarantee.theorem == "joint-release"
    assert coarse.guarantee.epsilon == pytest.approx(joint.epsilon, rel=1e-9)
    assert coarse.guarantee.epsilon > choice.guarantee.epsilon
    assert certificate(tmp_path / "coarse")["rule"]["arithmetic"] == "joint"
    assert "1024 spacings" in (tmp_path / "coarse" / "README.md").read_text()
    assert verify(tmp_path / "coarse", portfolio=portfolio).code == 0
    assert preview(portfolio, choice, tmp_path / "other").choice.guarantee == coarse.guarantee


def test_a_target_that_only_finer_numbers_would_meet_is_refused(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    scaled(portfolio, 100.0, "F32")
    fits, joint = chosen(portfolio, "combination").guarantee, Joint(portfolio.weights(WEIGHTS)).guarantee(delta=DELTA)
    choice = chosen(portfolio, "combination", epsilon=(fits.epsilon + joint.epsilon) / 2)
    with pytest.raises(TargetError, match=r"less than 1024 spacings of the stored numbers.*Joint release"):
        release(portfolio, choice, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_is_equal_in_all_models_counts_too(tmp_path: Path) -> None:
    """Whether tensors are equal may depend on the data, and with it what is certified."""
    portfolio = runs(tmp_path)
    scaled(portfolio, 0.1, "F32", frozen=np.full(64, 1e6, np.float32))
    assert release(portfolio, chosen(portfolio, "combination"), tmp_path / "out").guarantee.theorem == "joint-release"


def test_what_is_not_finite_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    scaled(portfolio, 0.1, "F32")
    with_tensor(portfolio, "a", weight=np.array([0.0] * 63 + [np.nan], np.float32))
    with pytest.raises(CheckpointError, match=r"model 'a'.*element 63 is nan"):
        release(portfolio, chosen(portfolio, "combination"), tmp_path / "out")


def test_a_certificate_that_claims_finer_numbers_is_caught_with_the_portfolio(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    scaled(portfolio, 100.0, "F32")
    out = tmp_path / "out"
    release(portfolio, chosen(portfolio, "combination"), out)

    def finer(content: dict[str, Any]) -> None:
        content["rule"]["arithmetic"] = "stored"

    forge(out, finer, guarantee=True)
    assert certificate(out)["guarantee"]["theorem"] == "transport"
    found = verify(out, portfolio=portfolio)
    assert found.code == 1
    assert any("needs finer numbers than those stored" in text for text in found.broken)


def test_revealed_models_need_no_noise_and_idle_steps_do_not_count(tmp_path: Path) -> None:
    """Momentum reveals a run whole; a learning rate of 0 at the end moves nothing."""
    phases = [{"steps": 9, "learning_rate": 0.1}, {"steps": 1, "learning_rate": 0.0}]
    models = [
        builders.dp_sgd("a", sigma=40.0, phases=phases, smoothness=0.2),
        builders.dp_sgd("b", sigma=40.0, steps=10, smoothness=0.2),
        builders.dp_sgd("c", sigma=40.0, steps=10, optimizer="momentum"),
    ]
    rule = Combination(builders.portfolio(*models).weights({"a": 0.5, "b": 0.4, "c": 0.1}))
    assert rule.last_noise == pytest.approx({"a": 0.5 * 0.004, "b": 0.4 * 0.004})
    assert rule.guarantee(delta=DELTA).theorem == "transport"


def test_no_certificate_is_about_real_numbers(tmp_path: Path) -> None:
    portfolio, out = runs(tmp_path), tmp_path / "out"
    release(portfolio, chosen(portfolio, "combination"), out)

    def real(content: dict[str, Any]) -> None:
        del content["rule"]["arithmetic"]

    forge(out, real)
    assert any("contradicts itself: an average of real numbers" in text for text in verify(out).broken)


def test_the_condition_states_the_range_of_parameters() -> None:
    """0.0016 / 1024 lies between 2⁻²⁰ and 2⁻¹⁹: float32 has that spacing below 2⁴, bfloat16 below 2⁻¹²."""
    assert "F32 below 16 and BF16 below 0.000244" in condition({"a": 0.0016, "b": 0.5}, None)


def test_the_same_rule_from_the_records_alone_prints_the_condition(tmp_path: Path) -> None:
    portfolio = on_disk(tmp_path / "runs", builders.gaussian("a", noise_std=2.0), builders.gaussian("b", noise_std=20.0))
    weights = portfolio.weights({"a": 0.1, "b": 0.9})
    found = Combination(weights).guarantee(delta=DELTA)
    assert found.theorem == "mean-estimation-combination"
    assert sum("the average is one of real numbers" in text and "1024 spacings" in text for text in found.assumptions) == 1
    assert found.standing == "proved"
    assert not any("spacings" in text for text in Joint(weights).guarantee(delta=DELTA).assumptions)


def test_many_averages_state_the_condition_on_rounding_once(tmp_path: Path) -> None:
    here = partial(run_all, jobs=1)
    document = dpmerge.frontier(runs(tmp_path), delta=1e-5, epsilons=[1.0], edge_points=3, run=here).as_dict()
    assert sum("one of real numbers" in text for text in document["assumptions"]) == 1
