"""A search for violations of what is called proved: small releases with exact laws, none of which may cost more than printed.

`DPMERGE_SEARCH=50` searches fifty times as long, from other seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import ndtr

from dpmerge.profiles import FloatArray
from tests import exact_densities
from tests.effort import EFFORT
from tests.exact_densities import HiddenRun, Ramp, ReleaseLaws, Step, gaussian_delta, observed_mu, selected_mean_delta
from tests.violations import EPSILONS, Alarm, check_checkpoints, check_ledger, check_selection, check_transport, climb, examine
from tests.violations.trainings import NUMBERS, Numbers, Run, Setting, Training, corners, decoded

SEED = 7 if EFFORT == 1 else EFFORT
ROUNDING = 1e-13

numbers = st.lists(st.floats(0, 1), min_size=NUMBERS, max_size=NUMBERS).map(lambda values: Numbers(np.array(values)))


# --- the searches -----------------------------------------------------------------------------------------------------


@settings(max_examples=15 * EFFORT, deadline=None, derandomize=True)
@given(numbers)
def test_no_full_batch_training_that_hypothesis_finds_costs_more_than_proved(drawn: Numbers) -> None:
    examine(decoded(drawn, sampled=False))


@settings(max_examples=4 * EFFORT, deadline=None, derandomize=True)
@given(numbers)
def test_no_sampled_training_that_hypothesis_finds_costs_more_than_proved(drawn: Numbers) -> None:
    examine(decoded(drawn, sampled=True))


def test_no_random_full_batch_training_costs_more_than_proved() -> None:
    """Joint release, windows of every length, coupled runs: all of them are what some training is accounted by."""
    report = check_transport(60 * EFFORT, SEED + 9)  # among the first sixty of 16 are accounts of every kind
    windows = [name for name in report.seen if name.startswith("proved transport")]
    assert {name.split(", ")[1] for name in windows} == {f"window {k}" for k in (1, 2, 3, 4)}
    assert {name.split(", ")[2] for name in windows} == {f"{count} coupled" for count in (0, 1, 2)}
    assert report.largest > 0.99


def test_no_random_sampled_training_costs_more_than_proved() -> None:
    report = check_transport(5 * EFFORT, SEED, sampled=True)
    theorems = {name.split(",")[0].removeprefix("proved ") for name in report.seen}
    assert theorems == {"joint-release", "transport-poisson", "transport-replace-one", "coupled-coins", "hidden-run"}
    assert report.largest > 0.99


@pytest.mark.parametrize("account", ["1 coupled", "window 2"])
def test_climbing_towards_the_bound_stays_below_it(account: str) -> None:
    report = climb(75 * EFFORT, SEED, account=account)
    assert report.of(account) > 0.8


def test_climbing_towards_the_bound_of_coupled_coins_stays_below_it() -> None:
    report = climb(6 * EFFORT, SEED, sampled=True, account="coupled-coins")
    assert report.of("coupled-coins") > 0.5


def test_no_random_selection_costs_more_than_proved() -> None:
    report = check_selection(20 * EFFORT, SEED)
    assert report.of("selection-pld") > 1 - 1e-6
    assert min(report.of("tempered-selection"), report.of("mean-estimation-selection")) > 0.9


def test_no_average_of_checkpoints_costs_more_than_proved() -> None:
    assert check_checkpoints(100 * EFFORT, SEED).largest > 0.99


def test_no_ledger_costs_more_than_it_says() -> None:
    report = check_ledger(40 * EFFORT, SEED)
    assert report.of("several-releases") > 1 - 1e-6


# --- the searches can fail --------------------------------------------------------------------------------------------


def understated(factor: float) -> Training:
    """A training whose record says that it had `factor` times the noise that it had."""
    setting = Setting("add-remove", "smooth", 10.0)
    ran, told = (Run.steady(1, 1.0, sigma, 0.0, 1.0) for sigma in (2.0, 2.0 * factor))
    return Training(Training.balanced(setting, (told, told), 1.0).models, Training.balanced(setting, (ran, ran), 1.0).hidden)


def test_an_alarm_says_what_was_exceeded_by_what() -> None:
    examine(understated(1.0))
    with pytest.raises(Alarm, match=r"^true δ\(0\) = 0\.2763.*, proved .* says 0\.27.*: Training\("):
        examine(understated(1.001))


# --- the exact laws are exact -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_linear_runs_have_their_closed_form(count: int) -> None:
    runs = {0.3: (0.7, 0.5, 1.0), 0.7: (-0.5, 0.2, 0.3)}  # by weight: contraction, push, noise
    shift = variance = 0.0
    hidden = []
    for weight, (pull, push, noise) in runs.items():
        gradient = Ramp((-100.0, 100.0), (-25 * pull, 25 * pull))
        hidden.append(HiddenRun(weight, (Step(gradient, Ramp.constant(-push), None, 4, 1.0, noise),) * count))
        powers = (1 - pull) ** np.arange(count)
        shift += weight * push * float(powers.sum())
        variance += (weight * noise) ** 2 * float((powers**2).sum())
    laws = ReleaseLaws.of(hidden)
    for epsilon in EPSILONS:
        exact = gaussian_delta(shift / math.sqrt(variance), epsilon)
        for found in laws.delta(epsilon):
            assert exact - 1e-9 < found < exact + ROUNDING * math.exp(epsilon)


def test_sampled_steps_that_stand_still_are_mixtures_of_gaussians() -> None:
    """Three steps of a run that ends at k ∈ {0, …, 3} with binomial probabilities, against a sum over a fine partition."""
    rate, noise = 0.3, 0.8
    step = Step(Ramp.constant(0.0), Ramp.constant(-1.0), None, 5, rate, noise)
    laws = ReleaseLaws.of([HiddenRun(1.0, (step,) * 3)])
    x = np.linspace(-15, 18, 200_001)
    spread = noise * math.sqrt(3)
    masses = [np.diff(ndtr((x - k) / spread)) for k in range(4)]
    upper = sum(math.comb(3, k) * rate**k * (1 - rate) ** (3 - k) * masses[k] for k in range(4))
    for epsilon in EPSILONS:
        there = float(np.maximum(upper - math.exp(epsilon) * masses[0], 0).sum())
        back = float(np.maximum(masses[0] - math.exp(epsilon) * upper, 0).sum())
        assert laws.delta(epsilon) == pytest.approx((there, back), abs=2e-9)


@pytest.mark.parametrize("sampled", [False, True])
def test_finer_quadrature_changes_nothing(sampled: bool) -> None:
    rng = np.random.default_rng(3)
    trainings = [*corners(sampled), *(decoded(Numbers(rng.random(NUMBERS)), sampled) for _ in range(4 if sampled else 25))]
    for training in trainings:
        plain, finer = training.laws(), training.laws(finer=1.7)
        for epsilon in EPSILONS:
            # The total variation does not depend on where exactly the sign changes; elsewhere another partition shows.
            assert plain.delta(epsilon) == pytest.approx(finer.delta(epsilon), abs=exact_densities.ALLOWANCE / 5)
        assert plain.delta(0.0) == pytest.approx(finer.delta(0.0), abs=1e-10)


def simulated(training: Training, changed: bool, rng: np.random.Generator, count: int) -> FloatArray:
    """Merged models, step by step from what a training is."""
    total = np.zeros(count)
    for run in training.hidden:
        state = np.zeros(count)
        for step in run.steps:
            own = step.replacement if changed else step.record
            move = rng.binomial(step.others, step.rate, count) * step.gradient(state)
            if own is not None:
                move = move + np.where(rng.random(count) < step.rate, own(state), 0.0)
            state = state - move + step.noise * rng.standard_normal(count)
        total += run.weight * state
    return total


@pytest.mark.parametrize("sampled", [False, True])
def test_simulated_releases_follow_the_exact_laws(sampled: bool) -> None:
    """No empirical distribution is farther from its law than one in 1e9 is (Dvoretzky, Kiefer and Wolfowitz; Massart)."""
    rng = np.random.default_rng(11)
    count = 100_000
    for _ in range(6):
        training = decoded(Numbers(rng.random(NUMBERS)), sampled)
        laws = training.laws()
        for row, changed in enumerate((False, True)):
            drawn = np.sort(simulated(training, changed, rng, count))
            at = np.linspace(drawn[0], drawn[-1], 60)
            below = np.searchsorted(drawn, at, side="right") / count
            assert np.abs(below - laws.distribution(row, at)).max() < math.sqrt(math.log(2e9) / (2 * count))


def test_observed_part_of_a_shift() -> None:
    covariance, shift = np.diag([4.0, 1.0]), np.array([1.0, 1.0])
    assert observed_mu(np.array([[1.0, 0.0]]), shift, covariance) == pytest.approx(0.5)
    assert observed_mu(np.array([[0.5, 0.5]]), shift, covariance) == pytest.approx(2 / math.sqrt(5))
    assert observed_mu(np.array([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]]), shift, covariance) == pytest.approx(math.sqrt(1.25))


def test_hidden_means_by_cells_agree_with_the_reference_values() -> None:
    """docs/theory.md §3.4: π = (0.1, 0.9), σ = (0.5, 3), Δ = 1, ε = 1."""
    found = [selected_mean_delta((0.1, 0.9), (0.5, 3.0), 1.0, dimension, 1.0) for dimension in (1, 2, 10)]
    assert found == pytest.approx([1.9e-4, 9.2e-3, 0.051], rel=0.03)
    assert selected_mean_delta((1.0,), (2.0,), 1.0, 5, 0.3) == pytest.approx(gaussian_delta(0.5, 0.3), rel=1e-3)
