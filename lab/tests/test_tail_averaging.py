"""Thm 3.2 of Recycling Scraps on losses whose optima are known: the optima, the aggregates, and the bounds beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpmerge.figures import describe, render
from dpmerge_lab.experiments.results import Options, Result
from dpmerge_lab.experiments.tail_averaging import (
    FACTORS,
    LAST,
    PROBLEMS,
    TAIL,
    WAYS,
    Floats,
    Problem,
    absolute,
    bound,
    descend,
    logistic,
    measured,
    noise_deviation,
    ratio_of_means,
    tail_averaging,
    weights,
    worst_case,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return tail_averaging(Options(seeds=2, quick=True, jobs=1))


@pytest.mark.parametrize("name", PROBLEMS)
def test_losses_are_lipschitz_and_nothing_in_the_ball_is_below_the_optimum(name: str) -> None:
    problem = PROBLEMS[name](40)
    generator = np.random.default_rng(1)
    assert np.linalg.norm(problem.optimum) <= 1 + 1e-9
    for size in (1e-4, 1e-2, 1.0):
        points = problem.optimum[:, None] + size * generator.standard_normal((problem.dimension, 500))
        points /= np.maximum(np.linalg.norm(points, axis=0), 1)
        gradients = problem.gradient(points)
        assert np.linalg.norm(gradients, axis=0).max() <= 1 + 1e-12
        assert (problem.risk(points) >= problem.least - 1e-12).all()
        # Convexity, and that these are subgradients: the tangent plane is below the optimum's value.
        tangent = problem.risk(points) + (gradients * (problem.optimum[:, None] - points)).sum(axis=0)
        assert (tangent <= problem.least + 1e-12).all()


def test_multipliers_prove_the_optima() -> None:
    smooth = logistic(64)
    slope = smooth.gradient(smooth.optimum[:, None])[:, 0]
    assert smooth.optimum @ slope == pytest.approx(-np.linalg.norm(slope), rel=1e-9)  # it pushes straight out of the ball
    piecewise = worst_case(10)
    rows = np.stack([piecewise.gradient(np.eye(11)[:, [i]] * -1.0)[:, 0] for i in range(11)])  # −e_i: function i is highest
    assert rows @ piecewise.optimum == pytest.approx(np.full(11, piecewise.least))
    multipliers = np.linalg.solve(rows.T, -piecewise.optimum)
    assert (multipliers > 0).all()
    sharp = absolute(64)
    assert np.abs(sharp.gradient(sharp.optimum[:, None])).max() < 16 / 64  # as many residuals vanish as there are columns


def test_aggregates_have_their_weights() -> None:
    seen: list[Floats] = []

    def gradient(theta: Floats) -> Floats:
        seen.append(theta)
        return np.sign(theta - 0.3)

    toy = Problem(20, 1, gradient, lambda theta: np.abs(theta - 0.3)[0], np.array([0.3]), 0.0)
    found = descend(toy, 20, 0.0, np.array([0.5, 1.0]), np.random.default_rng(0))
    iterates = np.stack([*seen[1:], found[LAST]])
    for way in WAYS:
        own = weights(way, 20)
        assert own.sum() == pytest.approx(1) and (np.diff(own) >= -1e-15).all()
        assert found[way] == pytest.approx(np.einsum("t,tij->ij", own, iterates))


def test_bounds_are_those_of_the_proof() -> None:
    """The average of all points but the start, and of the last half, by hand."""
    rate, gradients, steps = 1.5, 1.1, 64
    total = 4 * math.sqrt(65) / (2 * rate) + rate * gradients**2 * (math.sqrt(65) - 1)
    assert bound("mean of all", steps, rate, gradients) == pytest.approx(total / 64)
    tail = 4 * math.sqrt(65) / (2 * rate) + rate * gradients**2 * (math.sqrt(65) - math.sqrt(33))
    assert bound(TAIL, steps, rate, gradients) == pytest.approx(tail / 32)


def test_nothing_measured_is_above_its_bound(result: Result) -> None:
    rows = result.numbers["rows"]
    assert len(rows) == 8
    for row in rows:
        for found in row["ways"].values():
            assert 0 < found["excess risk"]["mean"] < found["its bound"]
            assert found["excess risk at the best"]["mean"] == min(found["at every factor"])
        if row["private"]:
            assert row["T"] / (2 * row["n"] ** 2 * row["noise"] ** 2) == pytest.approx(1.0)
    assert noise_deviation(100, 50) == pytest.approx(0.05)
    for document in result.pictures.values():
        assert render(document, ".png").startswith(b"\x89PNG")
    titles = [panel.title for panel in describe(result.pictures["risk"]).panels]
    assert titles == ["absolute: 4 runs", "logistic: 4 runs", "worst case: 4 runs", "worst case, no noise: one run"]


def test_a_ratio_has_this_error() -> None:
    """Of runs whose risks vary fully together, or against each other, or not at all."""
    generator = np.random.default_rng(3)
    first, other = 1 + 0.02 * generator.standard_normal((2, 2000, 25))
    errors = []
    for second in (2 * first, 4 - 2 * first, 2 * other):
        found = [ratio_of_means(a, b) for a, b in zip(first, second, strict=True)]
        errors.append(float(np.mean([one["standard error"] for one in found])))
        assert np.std([one["ratio"] for one in found]) == pytest.approx(errors[-1], rel=0.05, abs=1e-12)
        assert np.mean([one["ratio"] for one in found]) == pytest.approx(0.5, rel=1e-3)
    assert errors[0] < 1e-12 and errors[1] == pytest.approx(math.sqrt(2) * errors[2], rel=0.05)


def test_without_noise_the_worst_case_shows_the_logarithm() -> None:
    """Harvey et al. prove f ≥ log T/(32√T) for the last iterate with rates 1/√t, above f(0) = 0; averages lose no factor."""
    ratios = []
    for steps in (32, 128, 512):
        found = measured(1, ("worst case", steps, False))
        last, tail = (found["ways"][way]["at every factor"][FACTORS.index(0.5)] for way in (LAST, TAIL))
        assert last + found["least risk"] >= math.log(steps) / (32 * math.sqrt(steps))
        assert tail * math.sqrt(steps) < 0.35
        ratios.append(last / tail)
    assert ratios[0] > 1.3 and ratios[1] > ratios[0] + 0.2 and ratios[2] > ratios[1] + 0.2
