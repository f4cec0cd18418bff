"""Rényi divergences against 40-digit integrals, the papers' literal sum, and dp-accounting (docs/theory.md §3.5)."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import example, given, settings, strategies as st

from dpmerge.profiles import GaussianLaw, MixtureLaw, RevealedShiftLaw, ShiftLaw, sum_of_coins
from dpmerge.profiles.laws import RenyiLaw
from dpmerge.profiles.pairs import ReplaceOnePoissonLaw
from tests import oracles

REFERENCE_RATE = 256 / 60000


def papers_portfolio_step() -> tuple[list[float], list[float]]:
    """One step of App. H.1 of Differentially Private Model Merging v1 with λ = (⅓,⅓,⅓): w_i/s_λ and the rates (η/B cancels)."""
    clips, sigmas = (1.0, 2.0, 1.0), (0.5, 0.5, 2.0)
    s_lambda = math.sqrt(sum((c * s / 3) ** 2 for c, s in zip(clips, sigmas, strict=True)))
    return [c / 3 / s_lambda for c in clips], [REFERENCE_RATE] * 3


@pytest.mark.parametrize(
    "shifts,probs",
    [
        ((0.0, 2.0), (1 - REFERENCE_RATE, REFERENCE_RATE)),
        ((0.0, 0.5), (0.9, 0.1)),
        ((0.0, 1.0), (1 - 1e-10, 1e-10)),
        ((0.3, 1.1, 2.0), (0.5, 0.3, 0.2)),
    ],
)
@pytest.mark.parametrize("order", [1.01, 2.0, 2.35, 20.0])
def test_mixture_moments_are_exact_and_never_below(shifts: tuple[float, ...], probs: tuple[float, ...], order: float) -> None:
    law = MixtureLaw(shifts, probs)
    for direction, power in (("remove", order), ("add", 1 - order)):
        exact = oracles.renyi_moment(shifts, probs, power)
        found = float(law.log_moment(np.array([order]), direction)[0])  # type: ignore[arg-type]
        assert found >= exact * (1 - 1e-13) - 1e-18
        assert found == pytest.approx(exact, rel=2e-9, abs=2e-13 if exact > 0.4 else 1e-22)


def log_moment_of(upper: dict[float, float], lower: dict[float, float], power: float) -> tuple[float, float]:
    """log ∫ p^s q^(1−s) by a fine sum in extended precision, far beyond every mean and peak; and what its rounding may be."""
    peaks = [power * a + (1 - power) * b for a in upper for b in lower] + [*upper, *lower]
    x = np.arange(int(256 * (min(peaks) - 20)), 256 * (max(peaks) + 20)).astype(np.longdouble) / 256
    logs = []
    for mixture in (upper, lower):
        total = sum(np.longdouble(w) for w in mixture.values())
        logs.append(np.logaddexp.reduce([np.log(np.longdouble(w) / total) - (x - m) ** 2 / 2 for m, w in mixture.items()]))
    exponent = power * logs[0] + (1 - power) * logs[1]
    top = exponent.max()
    found = top + np.log(np.exp(exponent - top).sum() / 256) - np.log(2 * np.arccos(np.longdouble(-1))) / 2
    size = float(np.abs(exponent).max() + abs(power) * np.abs(logs).max())
    return float(found), 4 * size * float(np.finfo(np.longdouble).eps)


def check_never_below(law: MixtureLaw | ReplaceOnePoissonLaw, order: float, slack: float = 2e-9) -> None:
    upper: dict[float, float] = {}
    lower: dict[float, float] = {}
    for mixture, side in ((upper, law.upper), (lower, law.lower)):
        for mean, weight in zip(*map(np.ndarray.tolist, side), strict=True):
            mixture[mean] = mixture.get(mean, 0.0) + weight  # two components may have one mean
    for direction, power in (("remove", order), ("add", 1 - order)):
        found = float(law.log_moment(np.array([order]), direction)[0])  # type: ignore[arg-type]
        exact, rounding = log_moment_of(upper, lower, power)
        assert found >= exact * (1 - 1e-12) - rounding, (law, order, direction)
        assert found <= exact * (1 + slack) + rounding + 1e-12, (law, order, direction)


def test_far_means_are_on_the_grid() -> None:
    """Near order 1 the sum is over p and q themselves, too: before, (0, 14.03) gave 0.0327 instead of 0.0575."""
    shifts, probs = (0.0, 14.03), (1 - 0.184, 0.184)
    exact = oracles.renyi_moment(shifts, probs, 1 - 1.283)
    assert exact == pytest.approx(0.0575454815, rel=1e-9)
    found = float(MixtureLaw(shifts, probs).log_moment(np.array([1.283]), "add")[0])
    assert exact <= found <= exact * (1 + 2e-9)


@settings(max_examples=40, deadline=None)
@given(
    shift=st.floats(0.05, 60),
    middle=st.none() | st.floats(0.01, 0.99),
    rate=st.floats(1e-3, 0.999),
    order=st.floats(1.0001, 1.6) | st.floats(1.6, 3),
)
@example(shift=1.0, middle=0.1, rate=0.5, order=1.5)
def test_no_mixture_is_below(shift: float, middle: float | None, rate: float, order: float) -> None:
    check_never_below(ReplaceOnePoissonLaw(rate, shift / 2), order)
    check_never_below(MixtureLaw.poisson(rate, shift), order)
    if middle is not None:
        check_never_below(MixtureLaw((0.1 * shift, middle * shift, shift), (0.5, 0.5 * (1 - rate), 0.5 * rate)), order)


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("order", [30.0, 100.0, 300.0])
@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_negative_power_makes_the_integrand_narrow(shift: float, order: float, place: float) -> None:
    """Its peak may lie where one component takes over from the other: the grid must be finer there (theory.md §3.5)."""
    odds = math.exp(-shift * (shift / 2 + order * shift * place))
    if odds > 1e-300:
        check_never_below(MixtureLaw((0.0, shift), (odds / (1 + odds), 1 / (1 + odds))), order)


@pytest.mark.parametrize("alpha,expected", [(2, 7.01106e-5), (3, 1.059978e-4), (4, 1.424710e-4)])
def test_equation_nine_reference_values(alpha: int, expected: float) -> None:
    shifts, rates = papers_portfolio_step()
    law = MixtureLaw.of(sum_of_coins([ShiftLaw.coin(s, q) for s, q in zip(shifts, rates, strict=True)], 0.0))
    found = float(law.log_moment(np.array([float(alpha)]), "remove")[0]) / (alpha - 1)
    assert found == pytest.approx(expected, rel=2e-6)
    if alpha < 4:
        assert found == pytest.approx(oracles.literal_equation_nine(shifts, rates, alpha), rel=1e-8)


@pytest.mark.parametrize("alpha", [2, 3, 5])
def test_quadrature_equals_the_literal_sum(alpha: int) -> None:
    shifts, rates = (0.7, 1.9), (0.2, 0.05)
    law = MixtureLaw.of(sum_of_coins([ShiftLaw.coin(s, q) for s, q in zip(shifts, rates, strict=True)], 0.0))
    found = float(law.log_moment(np.array([float(alpha)]), "remove")[0]) / (alpha - 1)
    assert found == pytest.approx(oracles.literal_equation_nine(shifts, rates, alpha), rel=1e-9)


def test_integer_orders_agree_with_dp_accounting_and_fractional_ones_are_not_looser() -> None:
    orders = [1.5, 2.0, 2.15, 3.0, 7.3, 16.0]
    accountant = rdp.RdpAccountant(orders)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(REFERENCE_RATE, dp_accounting.GaussianDpEvent(0.5)))
    ours = MixtureLaw.poisson(REFERENCE_RATE, 2.0).log_moment(np.array(orders), "remove") / (np.array(orders) - 1)
    integers = [i for i, order in enumerate(orders) if order == int(order)]
    assert ours[integers] == pytest.approx(accountant.rdp[integers], rel=1e-8)
    assert np.all(ours <= accountant.rdp * (1 + 1e-9))
    # dp-accounting 0.6.0 is 10 % above the true divergence at order 1.5; ours is the integral.
    assert ours[0] == pytest.approx(oracles.renyi_moment((0, 2), (1 - REFERENCE_RATE, REFERENCE_RATE), 1.5) / 0.5, rel=1e-8)


def test_replace_one_gaussian_has_the_factor_dp_accounting_forgets() -> None:
    """σ = 1, one record replaced: μ = 2, exactly ε = 9.997 at δ = 1e-5; dp-accounting 0.6.0's RDP says 4.73."""
    from dpmerge.profiles import Profile

    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.GaussianDpEvent(1.0))
    assert accountant.get_epsilon(1e-5) == pytest.approx(4.73, abs=0.01)
    exact = Profile.of([(GaussianLaw(2.0), 1)])
    assert exact.epsilon(1e-5) == pytest.approx(9.997, abs=0.001)
    assert 9.997 < exact.epsilon_by_renyi(1e-5) < 11


@pytest.mark.parametrize("order", [1.2, 2.0, 6.0, 30.0])
def test_replace_one_poisson_moment_is_symmetric_and_exact(order: float) -> None:
    q, s = 0.05, 1.3
    law = ReplaceOnePoissonLaw(q, s)
    x = np.linspace(-60, 60, 2_000_001)
    p = np.logaddexp(math.log1p(-q) - x**2 / 2, math.log(q) - (x - s) ** 2 / 2)
    r = np.logaddexp(math.log1p(-q) - x**2 / 2, math.log(q) - (x + s) ** 2 / 2)
    exponent = order * p + (1 - order) * r - math.log(2 * math.pi) / 2
    top = exponent.max()
    exact = float(top + math.log(np.exp(exponent - top).sum() * (120 / 2_000_000)))
    remove, add = (float(law.log_moment(np.array([order]), d)[0]) for d in ("remove", "add"))
    assert remove == pytest.approx(exact, rel=1e-8)
    assert add == pytest.approx(remove, rel=1e-10)


def test_revealed_coins_moment() -> None:
    law = RevealedShiftLaw((0.0, 0.4, 1.5), (0.9, 0.09, 0.01))
    exact = math.log(0.9 + 0.09 * math.exp(3 * 0.16) + 0.01 * math.exp(3 * 2.25))
    assert float(law.log_moment(np.array([3.0]), "remove")[0]) == pytest.approx(exact, rel=1e-9)


def test_orders_beyond_any_grid_are_bounded_by_the_farthest_component() -> None:
    found = float(MixtureLaw.poisson(1e-3, 5.0).log_moment(np.array([20_000.0]), "remove")[0])
    assert found == pytest.approx(20_000 * 19_999 * 12.5)


@given(order=st.floats(1.001, 80))
def test_interpolated_curve_lies_above_the_true_one(order: float) -> None:
    """Chords of (α−1)D_α: a Gaussian curve known at three orders, asked anywhere (docs/theory.md, renyi-interpolation)."""
    law = RenyiLaw((2.0, 8.0, 64.0), (1.0, 4.0, 32.0))  # D_α = α/2
    found = float(law.log_moment(np.array([order]), "remove")[0])
    assert found >= order * (order - 1) / 2 * (1 - 1e-12)
    assert (found == math.inf) == (order > 64)


@settings(max_examples=40, deadline=None)
@given(rate=st.floats(1e-6, 0.9), shift=st.floats(0.05, 4), order=st.floats(1.05, 12))
def test_moments_grow_with_rate_shift_and_order(rate: float, shift: float, order: float) -> None:
    def divergence(q: float, s: float, a: float) -> float:
        law = MixtureLaw.poisson(q, s)
        return max(float(law.log_moment(np.array([a]), d)[0]) / (a - 1) for d in ("remove", "add"))

    here = divergence(rate, shift, order)
    slack = 1 + 1e-8
    assert here <= divergence(min(1.0, rate * 1.1), shift, order) * slack
    assert here <= divergence(rate, shift * 1.1, order) * slack
    assert here <= divergence(rate, shift, order * 1.1) * slack
