"""Sums of coins: exact while they can be, rounded up beyond, never down (docs/theory.md §3.5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binom

from dpmerge.profiles import MixtureLaw, Profile, ShiftLaw, sum_of_coins
from dpmerge.profiles.curves import ShiftCurve
from tests import oracles


def exact(shifts: list[float], rates: list[float]) -> ShiftLaw:
    atoms: dict[float, float] = {}
    for shift, prob in oracles.subsets(shifts, rates):
        atoms[shift] = atoms.get(shift, 0.0) + prob
    values = np.array(sorted(atoms))
    return ShiftLaw(values, np.array([atoms[v] for v in values.tolist()]))


def dominates(large: ShiftLaw, small: ShiftLaw) -> bool:
    """Whether P(large > x) + given up ≥ P(small > x) for every x: first-order dominance, up to rounding."""
    points = np.concatenate((large.values, small.values, [0.0]))
    for point in points.tolist():
        x = point * (1 + 1e-9)
        above_large = float(large.probs[large.values > x].sum()) + large.excess
        above_small = float(small.probs[small.values > x].sum())
        if above_large < above_small * (1 - 1e-9) - 1e-15:
            return False
    return True


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 3), st.floats(0.001, 0.999)), min_size=1, max_size=8))
def test_few_coins_are_enumerated_exactly(coins: list[tuple[float, float]]) -> None:
    shifts, rates = [s for s, _ in coins], [q for _, q in coins]
    found = sum_of_coins([ShiftLaw.coin(s, q) for s, q in coins], 0.0)
    assert found.excess == 0
    assert float(found.probs.sum()) == pytest.approx(1, abs=1e-12)
    assert float(found.values @ found.probs) == pytest.approx(sum(s * q for s, q in coins), rel=1e-9)
    assert dominates(found, exact(shifts, rates))


def test_many_coins_are_rounded_up_and_close() -> None:
    rng = np.random.default_rng(3)
    shifts, rates = rng.uniform(0.01, 0.3, 14).tolist(), rng.uniform(0.01, 0.2, 14).tolist()
    found = sum_of_coins([ShiftLaw.coin(s, q) for s, q in zip(shifts, rates, strict=True)], 1e-15)
    truth = exact(shifts, rates)
    assert found.values.size <= 512
    assert dominates(found, truth)
    mean = float(truth.values @ truth.probs)
    assert mean <= float(found.values @ found.probs) <= mean * 1.002


def test_coarser_atoms_never_lower_epsilon() -> None:
    rng = np.random.default_rng(4)
    shifts, rates = rng.uniform(0.05, 0.5, 10).tolist(), rng.uniform(0.01, 0.2, 10).tolist()
    truth = exact(shifts, rates)
    fine = Profile.of([(MixtureLaw.of(truth), 20)]).epsilon(1e-6)
    for atoms in (256, 64, 16):
        coarse = truth.coarsened(atoms)
        assert coarse.values.size <= atoms
        epsilon = Profile.of([(MixtureLaw.of(coarse), 20)]).epsilon(1e-6)
        assert epsilon >= fine * (1 - 1e-6)
    assert Profile.of([(MixtureLaw.of(truth.coarsened(256)), 20)]).epsilon(1e-6) <= fine * 1.002


@pytest.mark.parametrize("count,rate", [(705, 256 / 60000), (40, 0.5), (100_000, 0.01)])
def test_binomials_keep_their_tails(count: int, rate: float) -> None:
    law = ShiftLaw.binomial(0.1, rate, count, 1e-18)
    k = np.rint(law.values / 0.1)
    assert law.probs == pytest.approx(binom.pmf(k, count, rate), rel=1e-8)
    assert law.excess <= 1.1e-18
    assert float(law.probs.sum()) + law.excess == pytest.approx(1, abs=1e-9)


def test_trimming_gives_up_no_more_than_allowed() -> None:
    law = ShiftLaw(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.9, 0.09, 0.009, 0.001]))
    assert law.trimmed(1e-4) is law
    cut = law.trimmed(0.002)
    assert cut.values.tolist() == [0.0, 1.0, 2.0]
    assert cut.excess == pytest.approx(0.001)


def test_epsilon_of_one_shift_by_its_edge_is_that_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        values = np.sort(rng.random(int(rng.integers(2, 90)))) * 10 ** rng.uniform(-3, 1.2)
        values[0] *= rng.random() < 0.5
        probs = rng.random(values.size) ** rng.uniform(0.5, 12)
        delta = float(10 ** rng.uniform(-9, -2))
        profile = Profile.of([(MixtureLaw.of(ShiftLaw(values, probs / probs.sum())), 1)], float(rng.choice([0.0, delta / 20])))
        found = profile.epsilon(delta)
        assert max(profile.delta(found)) <= delta
        with monkeypatch.context() as patched:
            patched.setattr(ShiftCurve, "around", lambda self, delta: None)
            assert found == pytest.approx(profile.epsilon(delta), rel=1e-7, abs=1e-12)
