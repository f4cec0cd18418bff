"""Discretised privacy losses: at the grid exact, between its points above, never below; and dp-accounting's traps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
from hypothesis import given, settings, strategies as st

from dpmerge.profiles import (
    ApproxDpLaw,
    GaussianLaw,
    Law,
    MixtureLaw,
    Profile,
    RevealedShiftLaw,
    gaussian_delta,
    mixture_epsilon,
)
from dpmerge.profiles.law import LossPmf
from dpmerge.profiles.pairs import ReplaceOnePoissonLaw
from tests import oracles
from tests.effort import EFFORT

RATE = 256 / 60000


def delta_of(pmf: LossPmf, epsilon: float) -> float:
    losses = (pmf.lower + np.arange(pmf.probs.size)) * pmf.interval
    above = losses > epsilon
    return float(pmf.infinity + pmf.probs[above] @ -np.expm1(epsilon - losses[above]))


LAWS: list[tuple[Law, list[tuple[float, float]], list[tuple[float, float]]]] = [
    (GaussianLaw(0.7), [(0.7, 1.0)], [(0.0, 1.0)]),
    (MixtureLaw.poisson(0.1, 2.0), [(0.0, 0.9), (2.0, 0.1)], [(0.0, 1.0)]),
    (MixtureLaw((0.0, 0.3, 1.0, 1.3), (0.6, 0.2, 0.15, 0.05)), [(0, 0.6), (0.3, 0.2), (1.0, 0.15), (1.3, 0.05)], [(0, 1)]),
    (MixtureLaw((0.2, 0.5, 1.2), (0.6, 0.3, 0.1)), [(0.2, 0.6), (0.5, 0.3), (1.2, 0.1)], [(0.0, 1.0)]),
    (ReplaceOnePoissonLaw(0.2, 1.1), [(0.0, 0.8), (1.1, 0.2)], [(0.0, 0.8), (-1.1, 0.2)]),
]


@pytest.mark.parametrize("law,upper,lower", LAWS)
@pytest.mark.parametrize("epsilon", [0.0, 0.0131, 3.0])
def test_divergence_is_never_below_brute_force_and_tight(
    law: Law, upper: list[tuple[float, float]], lower: list[tuple[float, float]], epsilon: float
) -> None:
    for direction, (p, q) in (("remove", (upper, lower)), ("add", (lower, upper))):
        exact = oracles.hockey_stick(p, q, epsilon)
        found = delta_of(law.pmf(direction, 1e-3, 1e-20), epsilon)  # type: ignore[arg-type]
        assert found >= exact * (1 - 1e-9) - 1e-15
        assert found <= exact * 1.001 + 2e-7


@pytest.mark.parametrize("law,upper,lower", LAWS)
def test_total_mass_is_one_and_both_masses_are_kept(
    law: Law, upper: list[tuple[float, float]], lower: list[tuple[float, float]]
) -> None:
    for direction in ("remove", "add"):
        pmf = law.pmf(direction, 1e-3, 1e-20)
        losses = (pmf.lower + np.arange(pmf.probs.size)) * pmf.interval
        assert float(pmf.probs.sum()) + pmf.infinity == pytest.approx(1, abs=1e-12)
        # Σ p·e^−l is the lower law's mass: all of it but what rounding pushed up.
        assert float(pmf.probs @ np.exp(-losses)) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_grid_masses_are_dp_accountings_connect_the_dots(sigma: float) -> None:
    interval = 1e-3
    ours = MixtureLaw.poisson(RATE, 1 / sigma).pmf("remove", interval, 1e-22)
    mechanism = privacy_loss_mechanism.GaussianPrivacyLoss(
        sigma, sampling_prob=RATE, adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE
    )
    rounded = np.arange(ours.lower, ours.lower + ours.probs.size)
    deltas = mechanism.get_delta_for_epsilon(rounded * interval)
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, rounded[0], rounded[-1], deltas).to_dense_pmf()
    assert ours.probs[:-1] == pytest.approx(theirs._probs[:-1], abs=1e-11)


def test_handed_to_dp_accounting_it_composes_to_the_same_epsilon() -> None:
    law = MixtureLaw.poisson(RATE, 2.0)
    pmfs = [law.pmf(direction, 1e-4, 1e-22) for direction in ("remove", "add")]
    pair = [pld_pmf.DensePLDPmf(pmf.interval, pmf.lower, pmf.probs.copy(), pmf.infinity, True) for pmf in pmfs]
    theirs = privacy_loss_distribution.PrivacyLossDistribution(*pair).self_compose(705).get_epsilon_for_delta(1e-5)
    assert Profile.of([(law, 705)]).epsilon(1e-5, interval=1e-4) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(
    "shifts,rates",
    [((0.4062, 0.8125, 0.4062), (RATE, RATE, RATE)), ((1.0, 0.2), (0.05, 0.5))],
)
def test_mixture_agrees_with_dp_accountings_where_its_own_is_right(shifts: tuple[float, ...], rates: tuple[float, ...]) -> None:
    """Normalised to unit noise (its inverse has an absolute precision of 1e-6), total probability far above 1e-8."""
    atoms = oracles.subsets(shifts, rates)
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0, [s for s, _ in atoms], [p for _, p in atoms], value_discretization_interval=1e-3
    ).self_compose(40)
    merged: dict[float, float] = {}
    for shift, prob in atoms:
        merged[round(shift, 12)] = merged.get(round(shift, 12), 0.0) + prob
    law = MixtureLaw(tuple(sorted(merged)), tuple(merged[s] for s in sorted(merged)))
    ours = Profile.of([(law, 40)]).epsilon(1e-5, interval=1e-3)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), abs=1e-6)


def test_trap_unnormalised_mixture_is_wrong_in_dp_accounting_and_cannot_happen_here() -> None:
    """Shifts and noise of 1e-6: dp-accounting's inverse precision is absolute. Laws here have unit noise by construction."""
    scale = 1e-6
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        scale, [0.0, scale], [0.9, 0.1], value_discretization_interval=1e-3
    )
    exact = oracles.hockey_stick([(0.0, 0.9), (1.0, 0.1)], [(0.0, 1.0)], 0.5)
    assert abs(theirs.get_delta_for_epsilon(0.5) / exact - 1) > 0.01
    assert max(Profile.of([(MixtureLaw.poisson(0.1, 1.0), 1)]).delta(0.5)) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("rate", [1e-8, 1e-9, 1e-11])
def test_trap_tiny_sampling_probability_is_not_underestimated(rate: float) -> None:
    """H_0 of one step is rate·(Φ(Δ/2) − Φ(−Δ/2)): a closed form that dp-accounting's mixture route undercuts."""
    exact = rate * (1 - 2 * 0.5 * math.erfc(2.0 / 2 / math.sqrt(2)))
    found = Profile.of([(MixtureLaw.poisson(rate, 2.0), 1)]).delta(0.0)
    assert min(found) >= exact * (1 - 1e-6)
    assert max(found) <= exact * 1.5  # losses over ten orders of magnitude on one even grid: valid, not tight


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-11, 1e-13, 1e-16, 1e-30, 1e-100])
def test_trap_small_delta_is_never_optimistic(delta: float) -> None:
    """400 Gaussian steps through the FFT against the closed form; dp-accounting's transform loses its way below 1e-11."""
    law = MixtureLaw((0.05,), (1.0,))  # the same Gaussian, but taken through the grid
    found = Profile(((law, 400),)).epsilon(delta)
    exact = Profile.of([(GaussianLaw(1.0), 1)]).epsilon(delta)
    assert found >= exact * (1 - 1e-12)
    assert found <= exact * (1 + 1e-4)


def test_trap_dp_accounting_is_noise_below_its_resolution() -> None:
    """The reason for tilting: at δ = 1e-13 dp-accounting's composition of Gaussians is off by more than a part in 2000.

    Its error is that of a transform without tilting: by processor and version of SciPy less than the truth, or more.
    """
    theirs = privacy_loss_distribution.from_gaussian_mechanism(50.0, value_discretization_interval=1e-4).self_compose(2500)
    exact = Profile.of([(GaussianLaw(1.0), 1)]).epsilon(1e-13)
    assert abs(theirs.get_epsilon_for_delta(1e-13) - exact) > exact * 5e-4
    gridded = Profile(((MixtureLaw((0.02,), (1.0,)), 2500),)).epsilon(1e-13)
    assert exact <= gridded <= exact * (1 + 1e-4)


def test_trap_coarse_grid_hurts_small_epsilon_so_the_grid_is_chosen() -> None:
    law = MixtureLaw.poisson(RATE, 0.5)
    fine = Profile.of([(law, 705)]).epsilon(1e-5, interval=1e-5)
    assert Profile.of([(law, 705)]).epsilon(1e-5, interval=1e-3) > fine * 1.01
    assert Profile.of([(law, 705)]).epsilon(1e-5) == pytest.approx(fine, rel=1e-4)


def test_reference_single_runs() -> None:
    assert Profile.of([(MixtureLaw.poisson(RATE, 2.0), 705)]).epsilon(1e-5) == pytest.approx(6.458, rel=2e-3)
    assert Profile.of([(MixtureLaw.poisson(RATE, 0.5), 705)]).epsilon(1e-5) == pytest.approx(0.2043, rel=2e-3)


@pytest.mark.parametrize("interval", [1e-2, 1e-3, 1e-4])
def test_every_interval_is_valid_and_finer_ones_are_smaller(interval: float) -> None:
    profile = Profile(((MixtureLaw((0.1,), (1.0,)), 100),))
    exact = Profile.of([(GaussianLaw(1.0), 1)]).epsilon(1e-6)
    coarse, fine = profile.epsilon(1e-6, interval), profile.epsilon(1e-6, interval / 2)
    assert exact <= fine <= coarse


def test_replace_one_poisson_agrees_with_dp_accounting() -> None:
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        0.8,
        sampling_prob=0.01,
        value_discretization_interval=1e-4,
        neighboring_relation=privacy_loss_distribution.NeighborRel.REPLACE_ONE,
    ).self_compose(200)
    ours = Profile.of([(ReplaceOnePoissonLaw(0.01, 1 / 0.8), 200)]).epsilon(1e-5, interval=1e-4)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), abs=1e-5)


@pytest.mark.parametrize("count", [1, 5, 30])
@pytest.mark.parametrize("at", [0.0, 0.7, 1.9])
def test_approximate_pairs_compose_to_the_closed_form(count: int, at: float) -> None:
    profile = Profile.of([(ApproxDpLaw(0.3, 1e-7), count)])
    exact = oracles.kairouz_oh_viswanath(0.3, 1e-7, count, at)
    found = max(profile.delta(at, interval=1e-3))
    assert found >= exact * (1 - 1e-9)
    assert found <= exact * 1.001 + 1e-9


@settings(max_examples=50 * EFFORT, deadline=None)
@given(epsilon=st.floats(1e-6, 30), log_delta=st.floats(-40, -1), share=st.floats(0, 1.5), factor=st.floats(1, 100))
def test_one_pair_needs_no_grid(epsilon: float, log_delta: float, share: float, factor: float) -> None:
    delta = math.exp(log_delta)
    pair = Profile.of([(ApproxDpLaw(epsilon, delta), 1)])
    assert pair.epsilon(delta) == epsilon and pair.epsilon(delta * (1 - 1e-12)) == math.inf
    at = share * epsilon
    exact = oracles.kairouz_oh_viswanath(epsilon, delta, 1, at)
    assert exact - 1e-15 <= max(pair.delta(at)) <= exact * (1 + 1e-12) + 1e-15
    found = pair.epsilon(min(factor * delta, 0.9))
    assert found <= epsilon and max(pair.delta(found)) <= min(factor * delta, 0.9)
    assert found == 0 or max(pair.delta(found * (1 - 1e-6) - 1e-12)) > min(factor * delta, 0.9)


@settings(max_examples=20 * EFFORT, deadline=None)
@given(parts=st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.1, 5)), min_size=2, max_size=4))
def test_a_draw_of_pairs_with_one_delta_costs_the_largest_epsilon_there(parts: list[tuple[float, float]]) -> None:
    total = sum(weight for weight, _ in parts)
    draw = [(weight / total, Profile.of([(ApproxDpLaw(epsilon, 1e-5), 1)])) for weight, epsilon in parts]
    assert mixture_epsilon(draw, 1e-5) == pytest.approx(max(epsilon for _, epsilon in parts), rel=1e-9)


def test_revealed_coins_are_a_mixture_of_gaussians() -> None:
    law = RevealedShiftLaw((0.0, 0.5, 2.0), (0.5, 0.3, 0.2))
    for epsilon in (0.0, 0.4, 2.0):
        exact = 0.3 * float(gaussian_delta(0.5, epsilon)) + 0.2 * float(gaussian_delta(2.0, epsilon))
        found = Profile.of([(law, 1)]).delta(epsilon)
        assert min(found) >= exact * (1 - 1e-12)
        assert max(found) <= exact * 1.001


def test_thousand_different_phases_compose_like_dp_accounting() -> None:
    sigmas = np.linspace(0.9, 1.5, 12)
    theirs = privacy_loss_distribution.identity(1e-3)
    for sigma in sigmas:
        theirs = theirs.compose(
            privacy_loss_distribution.from_gaussian_mechanism(sigma, sampling_prob=0.02, value_discretization_interval=1e-3)
        )
    ours = Profile.of([(MixtureLaw.poisson(0.02, 1 / s), 1) for s in sigmas]).epsilon(1e-6, interval=1e-3)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=1e-5)


@settings(max_examples=4 * EFFORT, deadline=None)
@given(
    rate=st.floats(1e-4, 0.5),
    sigma=st.floats(0.4, 4),
    steps=st.integers(1, 300),
    log_delta=st.floats(-40, -3),
)
def test_pld_is_never_above_renyi_and_grows_with_steps(rate: float, sigma: float, steps: int, log_delta: float) -> None:
    delta = math.exp(log_delta)
    profile = Profile.of([(MixtureLaw.poisson(rate, 1 / sigma), steps)])
    epsilon = profile.epsilon(delta)
    assert epsilon <= profile.epsilon_by_renyi(delta) * (1 + 1e-4) + 1e-9
    assert epsilon <= Profile.of([(MixtureLaw.poisson(rate, 1 / sigma), steps + 1)]).epsilon(delta) * (1 + 1e-4) + 1e-9
    assert max(profile.delta(epsilon)) == pytest.approx(delta, rel=1e-2) or epsilon == 0
    # A full batch every time is worse than any sampling.
    assert epsilon <= Profile.of([(GaussianLaw(1 / sigma), steps)]).epsilon(delta) * (1 + 1e-4) + 1e-9
