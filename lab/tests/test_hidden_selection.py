"""Private means: random selection and linear combination of Gaussian mechanisms, against brute force (docs/theory.md §3.4)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.special import ndtr
from scipy.stats import chi, norm

from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Combination, Target
from dpmerge_lab.hidden_selection import GaussianSelection, HiddenSelection
from tests.builders import dp_sgd, gaussian, weighted
from tests.effort import EFFORT

PROBABILITIES, DEVIATIONS = (0.1, 0.9), (0.5, 3.0)
# What the quadratures below leave undone, relative to the value (measured against a grid of 200,001 points at d = 1: 7e-6).
QUADRATURE = 1e-5


def selection(
    probabilities: tuple[float, ...], deviations: tuple[float, ...], dimension: int | None, sensitivity: float = 1.0
) -> Weights:
    """Means of one statistic with these noises."""
    models = [gaussian(f"mean{i}", noise_std=s, sensitivity=sensitivity, dimension=dimension) for i, s in enumerate(deviations)]
    return weighted(*zip(models, probabilities, strict=True))


def _line_integrals(weights: FloatArray, sigmas: FloatArray, shift: float, epsilon: float) -> FloatArray:
    """∫ (p − e^ε p(· − Δ))₊ with p = Σ w_i N(0, σ_i²), for each row of weights w (whatever they sum to): a very fine grid."""
    reach = 10 * float(sigmas.max()) + shift
    core = np.linspace(-8 * float(sigmas.min()) - shift, 8 * float(sigmas.min()) + 2 * shift, 10_001)
    x = np.unique(np.concatenate((core, np.linspace(-reach, reach + shift, 10_001))))
    excess = norm.pdf(x[:, None] / sigmas) / sigmas - math.exp(epsilon) * norm.pdf((x[:, None] - shift) / sigmas) / sigmas
    widths = np.diff(x)
    result = np.empty(weights.shape[0])
    for row, mixture in enumerate(weights):
        values = excess @ mixture
        left, right = values[:-1], values[1:]
        # Linear in each cell: the area above zero of a trapezoid, also where it crosses.
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.maximum(left, right) ** 2 / np.abs(right - left) / 2
        area = np.where((left > 0) & (right > 0), (left + right) / 2, np.where(left * right < 0, crossing, 0.0))
        result[row] = float(np.sum(area * widths))
    return result


def many_dimensions(probs: FloatArray, sigmas: FloatArray, shift: float, epsilon: float, dimension: int) -> float:
    """Quadrature over (x₁, ‖x_⊥‖): given the norm of the orthogonal part, the components' weights are π_i times its density."""
    edges = [0.0, *sorted({float(s) * chi.ppf(q, dimension - 1) for s in sigmas for q in (0.02, 0.5, 0.98, 1 - 1e-15)})]
    total = 0.0
    for low, high in pairwise(edges):
        radius = np.linspace(low, high, 61)
        weights = probs * chi.pdf(radius[:, None] / sigmas, dimension - 1) / sigmas
        total += float(simpson(_line_integrals(weights, sigmas, shift, epsilon), x=radius))
    return total


def brute_force(probs: tuple[float, ...], sigmas: tuple[float, ...], shift: float, epsilon: float, dimension: int) -> float:
    """δ(ε) of the release itself."""
    if dimension == 1:
        return float(_line_integrals(np.array(probs)[None, :], np.array(sigmas), shift, epsilon)[0])
    return many_dimensions(np.array(probs), np.array(sigmas), shift, epsilon, dimension)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """H_ε of N(μ, 1) from N(0, 1)."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def mixed_delta(probs: tuple[float, ...], sigmas: tuple[float, ...], shift: float, epsilon: float) -> float:
    """§2's bound: Σ π_i H_ε."""
    return sum(p * gaussian_delta(shift / s, epsilon) for p, s in zip(probs, sigmas, strict=True))


# --- random selection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dimension", "reference", "digits"), [(1, 1.9e-4, 5e-6), (2, 9.2e-3, 1e-4), (10, 0.051, 5e-4)])
def test_reference_values(dimension: int, reference: float, digits: float) -> None:
    """π = (0.1, 0.9), σ = (0.5, 3), Δ = 1, ε = 1, through the public API; §2 gives 0.0512."""
    truth = brute_force(PROBABILITIES, DEVIATIONS, 1.0, 1.0, dimension)
    assert truth == pytest.approx(reference, abs=digits)
    printed = HiddenSelection(selection(PROBABILITIES, DEVIATIONS, dimension)).guarantee(epsilon=1.0)
    assert printed.theorem == "mean-estimation-selection"
    assert printed.standing == "proved"
    assert any("which model was drawn is not published" in text for text in printed.assumptions)
    assert truth * (1 - QUADRATURE) <= printed.delta <= truth * 1.02
    assert mixed_delta(PROBABILITIES, DEVIATIONS, 1.0, 1.0) == pytest.approx(0.0512, abs=5e-5)


def test_reduction_to_the_orthogonal_norm_against_the_plane() -> None:
    """d = 2 without any reduction: a grid of points (x₁, x₂)."""
    x, y = np.linspace(-20, 21, 3001), np.linspace(-20, 20, 2001)
    square = y**2
    upper, lower = np.zeros((x.size, y.size)), np.zeros((x.size, y.size))
    for prob, sigma in zip(PROBABILITIES, DEVIATIONS, strict=True):
        across = prob / (2 * math.pi * sigma**2) * np.exp(-square / (2 * sigma**2))
        upper += np.exp(-(x**2) / (2 * sigma**2))[:, None] * across
        lower += np.exp(-((x - 1) ** 2) / (2 * sigma**2))[:, None] * across
    plane = float(np.sum(np.maximum(upper - math.e * lower, 0))) * (x[1] - x[0]) * (y[1] - y[0])
    assert brute_force(PROBABILITIES, DEVIATIONS, 1.0, 1.0, 2) == pytest.approx(plane, rel=5e-4)
    assert GaussianSelection(1.0, 2, DEVIATIONS, PROBABILITIES).delta(1.0) >= plane * (1 - 5e-4)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10])
def test_delta_is_never_below_brute_force_and_close_to_it(dimension: int) -> None:
    """Random noises, weights, sensitivities and ε; three noise levels on the line, two in space."""
    rng = np.random.default_rng([7, dimension])
    count, done = (15 if dimension == 1 else 2) * EFFORT, 0
    while done < count:
        levels = int(rng.integers(2, 4)) if dimension == 1 else 2
        sigmas = tuple(sorted(float(s) for s in np.exp(rng.uniform(-1.5, 1.5, levels))))
        probs = tuple(float(p) for p in rng.dirichlet(np.full(levels, 0.7)) * 0.98 + 0.02 / levels)
        shift, epsilon = float(np.exp(rng.uniform(-1.5, 1.5))), float(rng.choice([0.0, 0.1, 0.5, 1.0, 2.0]))
        truth = brute_force(probs, sigmas, shift, epsilon, dimension)
        bound = GaussianSelection(shift, dimension, sigmas, probs).delta(epsilon)
        assert bound >= truth * (1 - QUADRATURE) - 1e-16
        if truth > 1e-8:
            done += 1
            assert bound <= truth * 1.02


@pytest.mark.parametrize(("dimension", "delta"), [(1, 1e-2), (1, 1e-6), (2, 1e-4), (10, 1e-3)])
def test_printed_epsilon_has_the_delta_it_says(dimension: int, delta: float) -> None:
    """The other question, and not by a wide margin."""
    printed = HiddenSelection(selection((0.3, 0.7), (1.0, 4.0), dimension, sensitivity=2.0)).guarantee(delta=delta)
    assert printed.theorem == "mean-estimation-selection"
    assert brute_force((0.3, 0.7), (1.0, 4.0), 2.0, printed.epsilon, dimension) <= delta * (1 + QUADRATURE)
    assert brute_force((0.3, 0.7), (1.0, 4.0), 2.0, printed.epsilon * 0.97, dimension) > delta


@pytest.mark.parametrize("dimension", [1, 2, 10])
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_smaller_shifts_cost_less(dimension: int, epsilon: float) -> None:
    """The worst neighbours are those at full sensitivity: δ does not decrease in Δ, in truth and as printed."""
    shifts = np.geomspace(0.2, 6, 3 if EFFORT == 1 else 8).tolist()
    truth = [brute_force(PROBABILITIES, DEVIATIONS, shift, epsilon, dimension) for shift in shifts]
    bound = [GaussianSelection(shift, dimension, DEVIATIONS, PROBABILITIES).delta(epsilon) for shift in shifts]
    for values in (truth, bound):
        assert all(low <= high * (1 + QUADRATURE) + 1e-15 for low, high in pairwise(values))


def test_delta_is_never_below_the_truth_for_tiny_shifts() -> None:
    """At ε = 0 the truth is closed, Σ π_i (2Φ(Δ/2σ_i) − 1) in every dimension; rounding must not undercut it."""
    for shift in (1.0, 1e-3, 1e-6, 1e-9, 1e-12):
        truth = sum(p * math.erf(shift / (2 * s * math.sqrt(2))) for p, s in zip(PROBABILITIES, DEVIATIONS, strict=True))
        for dimension in (1, 2, 10):
            assert GaussianSelection(shift, dimension, DEVIATIONS, PROBABILITIES).delta(0.0) >= truth * (1 - 1e-12)
            printed = HiddenSelection(selection(PROBABILITIES, DEVIATIONS, dimension, sensitivity=shift)).guarantee(epsilon=0.0)
            assert truth * (1 - 1e-12) <= printed.delta <= truth * 1.001 + 1e-14


def test_high_dimension_tends_to_the_bound_that_reveals_the_model() -> None:
    """‖x_⊥‖ tells the components apart: between d = 1 and §2, increasing, and §2 itself at d = 1000."""
    for epsilon in (0.3, 1.0, 2.0):
        section_2 = mixed_delta(PROBABILITIES, DEVIATIONS, 1.0, epsilon)
        values = [
            HiddenSelection(selection(PROBABILITIES, DEVIATIONS, dimension)).guarantee(epsilon=epsilon).delta
            for dimension in (1, 2, 3, 10, 100, 1000)
        ]
        assert all(low <= high * (1 + 1e-4) for low, high in pairwise(values))
        assert values[-1] == pytest.approx(section_2, rel=1e-4)
        assert max(values) <= section_2 * (1 + 1e-9)


def test_equal_noises_are_one_gaussian_in_any_dimension() -> None:
    """Nothing to tell apart."""
    for dimension in (1, 7):
        printed = HiddenSelection(selection((0.4, 0.6), (1.3, 1.3), dimension)).guarantee(epsilon=0.5)
        assert printed.delta == pytest.approx(gaussian_delta(1 / 1.3, 0.5), rel=1e-3)
        assert printed.delta >= gaussian_delta(1 / 1.3, 0.5) * (1 - 1e-12)


def test_falls_back_to_section_2_where_the_law_is_not_known() -> None:
    """No dimension, different dimensions or sensitivities, three noise levels in space, other mechanisms: Σ π_i H_ε."""
    thirds = (0.2, 0.3, 0.5)
    different = [
        gaussian("a", noise_std=0.5, sensitivity=1.0, dimension=1),
        gaussian("b", noise_std=3.0, sensitivity=0.5, dimension=1),
    ]
    spaces = [gaussian("a", noise_std=0.5, dimension=1), gaussian("b", noise_std=3.0, dimension=2)]
    trained = [gaussian("a", noise_std=0.5, dimension=1), dp_sgd("b", sigma=3.0)]
    cases: list[tuple[Weights, float]] = [
        (selection(PROBABILITIES, DEVIATIONS, None), mixed_delta(PROBABILITIES, DEVIATIONS, 1.0, 1.0)),
        (selection(thirds, (0.5, 1.0, 3.0), 2), mixed_delta(thirds, (0.5, 1.0, 3.0), 1.0, 1.0)),
        (
            weighted(*zip(different, PROBABILITIES, strict=True)),
            0.1 * gaussian_delta(2.0, 1.0) + 0.9 * gaussian_delta(0.5 / 3, 1.0),
        ),
        (weighted(*zip(spaces, PROBABILITIES, strict=True)), mixed_delta(PROBABILITIES, DEVIATIONS, 1.0, 1.0)),
        (weighted(*zip(trained, PROBABILITIES, strict=True)), mixed_delta(PROBABILITIES, DEVIATIONS, 1.0, 1.0)),
    ]
    for weights, section_2 in cases:
        printed = HiddenSelection(weights).guarantee(epsilon=1.0)
        assert printed.theorem == "selection-pld"
        assert printed.delta == pytest.approx(section_2, rel=1e-9)
        assert not any("not published" in text for text in printed.assumptions)


def test_rdp_is_asked_for_by_name_and_keeps_section_2() -> None:
    """The exact law is a matter of hockey sticks; `by="rdp"` answers as §2 does."""
    printed = HiddenSelection(selection(PROBABILITIES, DEVIATIONS, 1)).guarantee(epsilon=1.0, by="rdp")
    assert printed.theorem == "selection-rdp"
    assert printed.delta >= mixed_delta(PROBABILITIES, DEVIATIONS, 1.0, 1.0)


# --- linear combination ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [None, 1, 1000])
def test_combination_is_exactly_gaussian(dimension: int | None) -> None:
    """N(·, Σ λ_i²σ_i²) whatever the dimension: μ = Δ/√(Σ λ_i²σ_i²), never below it and above it only by rounding."""
    rng = np.random.default_rng(8)
    for _ in range(50):
        count = int(rng.integers(2, 6))
        weights = rng.dirichlet(np.ones(count))
        sigmas, shift = np.exp(rng.normal(0, 1, count)), float(np.exp(rng.normal(0, 1)))
        rule = Combination(selection(tuple(weights.tolist()), tuple(sigmas.tolist()), dimension, sensitivity=shift))
        mu = shift / math.sqrt(float(np.sum((weights * sigmas) ** 2)))
        *_, route = rule.routes(Target(delta=1e-5))
        assert route.theorem == "mean-estimation-combination"
        assert route.profile.mu is not None
        assert mu * (1 - 1e-12) <= route.profile.mu <= mu * (1 + 1e-8)
        printed = rule.guarantee(epsilon=1.0)
        assert gaussian_delta(mu, 1.0) <= printed.delta * (1 + 1e-9) + 1e-15
        assert printed.by == "gdp"


def test_combination_adds_different_sensitivities() -> None:
    """Shifts of different sizes may all point the same way: μ = Σ λ_i Δ_i / √(Σ λ_i²σ_i²)."""
    models = [gaussian("a", noise_std=1.0, sensitivity=0.3), gaussian("b", noise_std=2.0, sensitivity=5.0)]
    *_, route = Combination(weighted((models[0], 0.75), (models[1], 0.25))).routes(Target(delta=1e-5))
    mu = (0.75 * 0.3 + 0.25 * 5.0) / math.hypot(0.75, 0.5)
    assert route.profile.mu == pytest.approx(mu, rel=1e-8)
    assert route.profile.mu is not None and route.profile.mu >= mu


def test_combination_beats_selection_in_renyi_divergence_for_small_sensitivity() -> None:
    """Thm 4.2 of Differentially Private Model Merging v1: at the same mean squared error and small Δ.

    (In Rényi divergences; not at every single ε.)
    """
    sigmas, probs, shift = np.array([1.0, 2.0]), np.array([0.5, 0.5]), 0.05
    variance = float(probs @ sigmas**2)
    # λ²σ₁² + (1−λ)²σ₂² = Σ π_i σ_i², the root in [0, 1].
    a, b, c = float(sigmas @ sigmas), -2 * float(sigmas[1] ** 2), float(sigmas[1] ** 2) - variance
    share = (-b - math.sqrt(b * b - 4 * a * c)) / (2 * a)
    *_, route = Combination(selection((share, 1 - share), (1.0, 2.0), 1, sensitivity=shift)).routes(Target(delta=1e-5))
    x = np.linspace(-25, 25, 50_001)
    upper, lower = (norm.pdf((x[:, None] - centre) / sigmas) @ (probs / sigmas) for centre in (0.0, shift))
    orders = np.array([1.5, 2.0, 4.0, 8.0])
    drawn = [math.log(float(simpson(upper * (upper / lower) ** (order - 1), x=x))) / (order - 1) for order in orders.tolist()]
    assert np.all(route.profile.renyi(orders) <= np.array(drawn))
