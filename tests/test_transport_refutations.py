"""Two refutations of the papers' formula for linear combinations (docs/theory.md §3.2), kept as tests.

The formula composes the merged steps as if the hidden models were equal under both neighbours. They are not. It may be
printed as an assumption (`assume_smoothness=0`, conditional), and what the library calls proved must cover the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import beta, norm

from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Combination, Joint, Target
from tests.builders import dp_sgd, weighted

DELTA = 1e-5


def gaussian_delta(mu: float, epsilon: float) -> float:
    """H_ε of N(μ, 1) from N(0, 1)."""
    return float(norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon + float(norm.logsf(epsilon / mu + mu / 2))))


# --- closed form, convex ----------------------------------------------------------------------------------------------------

RECORDS = 10_000
CURVATURE = 0.39433266
STEPS = 35
LAMBDAS = (0.0048878, 0.9951122)
ETAS = (1.88367154, 0.01423987)
SIGMAS = (18.38919366, 0.32363778)


def least_squares(smoothness: float | None, convex: str | None) -> Weights:
    """Two DP-GD runs of one-dimensional least squares."""
    names = ("hot", "cold")
    models = [
        dp_sgd(name, sigma=sigma, eta=eta, steps=STEPS, batch=RECORDS, smoothness=smoothness, convex=convex)
        for name, sigma, eta in zip(names, SIGMAS, ETAS, strict=True)
    ]
    return weighted(*zip(models, LAMBDAS, strict=True))


def least_squares_mu() -> float:
    """From first principles: the record is far away and always clipped to C = 1, the common records never are.

    θ ← (1 − ηb)θ + ηC/B + noise under D, without the middle term under D′: both Gaussian with the same variance.
    """
    shift = variance = 0.0
    for weight, eta, sigma in zip(LAMBDAS, ETAS, SIGMAS, strict=True):
        mean = spread = 0.0
        for _ in range(STEPS):
            mean = (1 - eta * CURVATURE) * mean + eta / RECORDS
            spread = (1 - eta * CURVATURE) ** 2 * spread + (eta * sigma / RECORDS) ** 2
        shift += weight * mean
        variance += weight**2 * spread
    return shift / math.sqrt(variance)


def test_closed_form_reference_values() -> None:
    """True μ = 2.6212, the formula says 0.8166, joint release 18.283."""
    assert least_squares_mu() == pytest.approx(2.6212, abs=1e-4)
    joint = Joint(least_squares(None, None)).profile().mu
    assert joint == pytest.approx(18.283, abs=5e-4)
    *_, formula = Combination(least_squares(None, None), assume_smoothness=0).routes(Target(delta=DELTA))
    assert formula.theorem == "papers-formula"
    assert formula.profile.mu == pytest.approx(0.8166, abs=5e-5)


@pytest.mark.parametrize(("smoothness", "convex"), [(None, None), (CURVATURE, None), (CURVATURE, "glm")])
def test_formula_is_below_the_truth_and_never_called_proved(smoothness: float | None, convex: str | None) -> None:
    """Whatever the records say, assuming β = 0 gives a number that this attack refutes: it is conditional, and says why."""
    formula = Combination(least_squares(smoothness, convex), assume_smoothness=0).guarantee(delta=DELTA)
    assert formula.standing == "conditional"
    assert formula.theorem == "papers-formula"
    assert any("do not depend on the state" in text for text in formula.assumptions)
    assert gaussian_delta(least_squares_mu(), formula.epsilon) > 100 * DELTA


@pytest.mark.parametrize(
    ("smoothness", "convex"), [(None, None), (None, "glm"), (CURVATURE, None), (CURVATURE, "glm"), (1.0, "glm")]
)
def test_proved_guarantee_covers_least_squares(smoothness: float | None, convex: str | None) -> None:
    """By default nothing is assumed that the records do not state, and every route is at or above the true μ."""
    rule = Combination(least_squares(smoothness, convex))
    guarantee = rule.guarantee(delta=DELTA)
    mu = least_squares_mu()
    assert guarantee.standing == "proved"
    assert gaussian_delta(mu, guarantee.epsilon) <= DELTA
    assert gaussian_delta(mu, 2.0) <= rule.guarantee(epsilon=2.0).delta
    for route in rule.routes(Target(delta=DELTA)):
        assert route.profile.mu is not None
        assert route.profile.mu >= mu


def test_convexity_proves_far_less_than_joint_release() -> None:
    """The repair is worth something: a proved μ close to the truth (2.62), far below joint release (18.28)."""
    *_, route = Combination(least_squares(CURVATURE, "glm")).routes(Target(delta=DELTA))
    assert route.profile.mu is not None
    assert least_squares_mu() <= route.profile.mu < 3.1


# --- Monte Carlo, non-convex --------------------------------------------------------------------------------------------------

ATTACK_STEPS = 30
ATTACK_SIGMAS = (40.0, 0.5)
ATTACK_LAMBDAS = (0.98, 0.02)
THRESHOLD = 0.9 / RECORDS
RUNS = 250_000
CONFIDENCE = 0.99


def two_runs() -> Weights:
    """What the records of the attacked runs say: nothing of smoothness, since the gradients jump."""
    models = [
        dp_sgd(name, sigma=sigma, eta=1.0, steps=ATTACK_STEPS, batch=RECORDS)
        for name, sigma in zip(("quiet", "torn"), ATTACK_SIGMAS, strict=True)
    ]
    return weighted(*zip(models, ATTACK_LAMBDAS, strict=True))


def simulate(rng: np.random.Generator, present: bool) -> FloatArray:
    """Merged models with or without the record, C = η = 1.

    "quiet": the record adds C at every step, all others nothing. "torn": every other record has the loss −|θ − τ|, flat at
    exactly θ = 0, so the first step's noise and the record decide the direction of all later ones.
    """
    record = (1.0 if present else 0.0) / RECORDS
    others = (RECORDS - 1) / RECORDS
    quiet, torn = np.zeros(RUNS), np.zeros(RUNS)
    for _ in range(ATTACK_STEPS):
        quiet += record + ATTACK_SIGMAS[0] / RECORDS * rng.standard_normal(RUNS)
        away = np.where(torn == 0, 0.0, np.sign(torn - THRESHOLD))
        torn += others * away + record + ATTACK_SIGMAS[1] / RECORDS * rng.standard_normal(RUNS)
    return ATTACK_LAMBDAS[0] * quiet + ATTACK_LAMBDAS[1] * torn


@dataclass(frozen=True)
class Attack:
    """The test "merged > 0", with Clopper–Pearson bounds that hold together with 99 % confidence."""

    true_positives: int
    false_positives: int

    @property
    def least_power(self) -> float:
        return float(beta.ppf((1 - CONFIDENCE) / 2, self.true_positives, RUNS - self.true_positives + 1))

    @property
    def most_false_alarms(self) -> float:
        return float(beta.ppf(1 - (1 - CONFIDENCE) / 2, self.false_positives + 1, RUNS - self.false_positives))

    def least_epsilon(self, delta: float) -> float:
        """(ε, δ)-DP needs TPR ≤ e^ε FPR + δ."""
        return math.log((self.least_power - delta) / self.most_false_alarms)

    def least_delta(self, epsilon: float) -> float:
        return self.least_power - math.exp(epsilon) * self.most_false_alarms


@pytest.fixture(scope="module")
def attack() -> Attack:
    rng = np.random.default_rng(20240607)
    return Attack(int(np.sum(simulate(rng, True) > 0)), int(np.sum(simulate(rng, False) > 0)))


def test_attack_reference_values(attack: Attack) -> None:
    """TPR ≥ 0.576, FPR ≤ 0.0371: ε ≥ 2.7. The first step alone has Φ(0.2) = 0.5793 and Φ(−1.8) = 0.0359."""
    assert attack.least_power == pytest.approx(0.5793, abs=4e-3)
    assert attack.most_false_alarms == pytest.approx(0.0359, abs=1.5e-3)
    assert attack.least_power >= 0.575
    assert attack.most_false_alarms <= 0.0372
    assert attack.least_epsilon(DELTA) >= 2.7


def test_formula_is_refuted_by_the_attack_and_never_called_proved(attack: Attack) -> None:
    """It claims ε = 0.490."""
    formula = Combination(two_runs(), assume_smoothness=0).guarantee(delta=DELTA)
    assert formula.epsilon == pytest.approx(0.490, abs=1e-3)
    assert formula.standing == "conditional"
    assert formula.theorem == "papers-formula"
    assert formula.epsilon < attack.least_epsilon(DELTA) - 2
    at_two = Combination(two_runs(), assume_smoothness=0).guarantee(epsilon=2.0)
    assert at_two.standing == "conditional"
    assert at_two.delta < 1e-9 < attack.least_delta(2.0)


def test_proved_guarantee_covers_the_attack(attack: Attack) -> None:
    """Without smoothness: above what the attack shows at any ε, and no worse than joint release."""
    rule = Combination(two_runs())
    guarantee = rule.guarantee(delta=DELTA)
    assert guarantee.standing == "proved"
    assert attack.least_epsilon(DELTA) <= guarantee.epsilon <= Joint(two_runs()).guarantee(delta=DELTA).epsilon
    for epsilon in (0.0, 0.5, 1.0, 2.0, 2.7):
        assert rule.guarantee(epsilon=epsilon).delta >= attack.least_delta(epsilon)
        for route in rule.routes(Target(epsilon=epsilon)):
            assert max(route.profile.delta(epsilon)) >= attack.least_delta(epsilon)


@pytest.mark.parametrize("assumed", [1e-3, 1.0])
def test_any_assumed_smoothness_is_conditional(assumed: float) -> None:
    """A smoothness on the user's word makes no proof, if the account rests on it."""
    guarantee = Combination(two_runs(), assume_smoothness=assumed).guarantee(delta=DELTA)
    uses_it = guarantee.details["window"] > 1 or bool(guarantee.details["coupled"])
    assert (guarantee.standing == "conditional") == uses_it
