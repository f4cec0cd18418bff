"""Intervals for private linear regression: the process has the law that is known, and coverage is nominal where it must be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dpmerge.figures import describe, render
from dpmerge.profiles import gaussian_epsilon
from dpmerge.training import Recipe
from dpmerge_lab.experiments.coverage import (
    SETTINGS,
    Regression,
    coverage,
    covers,
    exact_ratio,
    of_one_run,
    of_setting,
    regression,
    share,
    simulate,
)
from dpmerge_lab.experiments.coverage_pictures import EVERY, FAST, LAST, MEAN, ONE, RUNS, SHORT, SLOW, SOLUTION, TRUTH
from dpmerge_lab.experiments.results import Options


@pytest.fixture
def generator() -> np.random.Generator:
    """Every test's own, whichever ran before it."""
    return np.random.default_rng(5)


def small(penalty: float = 0.0) -> Regression:
    return replace(regression(SETTINGS["synthetic"], 1), penalty=penalty)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_the_solution_is_where_the_gradient_vanishes(penalty: float) -> None:
    problem = small(penalty)
    residuals = problem.x @ problem.solution - problem.y
    assert problem.x.T @ residuals / len(problem.x) + penalty * problem.solution == pytest.approx(np.zeros((4, 1)), abs=1e-12)
    assert np.linalg.norm(problem.x, axis=1).max() <= 1 + 1e-12


def test_ten_runs_in_a_row_have_the_same_labels(generator: np.random.Generator) -> None:
    problem = regression(SETTINGS["synthetic"], 40)
    distinct = np.unique(problem.solution.round(12), axis=1)
    assert problem.solution.shape == (4, 40) and distinct.shape == (4, 4)
    assert (problem.y[:, 10] == problem.y[:, 19]).all() and (problem.y[:, 9] != problem.y[:, 10]).any()
    quiet = Recipe(steps=200, learning_rate=1.0, clip=4.0, noise_multiplier=0.0)
    found = simulate(problem, quiet, 40, generator).values[SLOW][-1]
    assert found == pytest.approx(problem.directions()[SLOW] @ problem.solution, abs=1e-6)


@pytest.mark.parametrize("rate", [None, 0.1])
def test_runs_have_the_mean_and_variance_of_the_autoregressive_process(
    rate: float | None, generator: np.random.Generator
) -> None:
    """Without clipping the mean is that of gradient descent; with full batches the variance is a geometric sum."""
    recipe = Recipe(steps=30, learning_rate=0.5, clip=4.0, noise_multiplier=10.0, rate=rate)
    problem = small()
    found = simulate(problem, recipe, 1500, generator)
    assert found.clipped == 0
    curvatures = np.linalg.eigvalsh(problem.curvature)
    noise = 0.5 * 10.0 * 4.0 / recipe.expected_batch(1000)
    for name, curvature in ((SLOW, curvatures[0]), (FAST, curvatures[-1])):
        values, shrink = found.values[name][-1], 1 - 0.5 * curvature
        deviation = noise * math.sqrt((1 - shrink**60) / (1 - shrink**2))
        solution = float((problem.directions()[name] @ problem.solution)[0])
        assert values.mean() == pytest.approx(solution * (1 - shrink**30), abs=4 * values.std() / math.sqrt(1500))
        assert values.std() == pytest.approx(deviation, rel=0.08)


def test_clipped_gradients_are_no_longer_than_the_clip(generator: np.random.Generator) -> None:
    recipe = Recipe(steps=1, learning_rate=1.0, clip=0.05, noise_multiplier=0.0)
    problem = small()
    found = simulate(problem, recipe, 1, generator)
    whole = np.clip(problem.y[:, 0], -0.05, 0.05) @ problem.x / 1000  # rows have norm 1, and θ starts at 0
    assert found.values[SLOW][0, 0] == pytest.approx(float(problem.directions()[SLOW] @ whole))
    assert found.clipped == int((np.abs(problem.y) > 0.05).sum())


def test_independent_normal_values_are_covered_as_often_as_promised(generator: np.random.Generator) -> None:
    values = 3 + generator.standard_normal((10, 20_000))
    for level in (0.9, 0.95):
        found = covers(values, RUNS, level, {SOLUTION: np.array(3.0), TRUTH: np.array(4.0)}, alike=5)
        assert found[SOLUTION]["share"] == pytest.approx(level, abs=4 * found[SOLUTION]["error"])
        assert found[TRUTH]["share"] < level / 2  # an error that all runs share does not show in their spread
        assert (found[SOLUTION]["runs"], found[TRUTH]["runs"]) == (20_000, 4_000)
    assert share(np.array([True] * 90 + [False] * 10)) == {"share": 0.9, "error": pytest.approx(0.03), "runs": 100}


@pytest.mark.parametrize("shrink", [0.0, 0.5, 0.9])
def test_the_exact_ratio(shrink: float, generator: np.random.Generator) -> None:
    """1 for independent values; otherwise that of simulated stationary ones."""
    state, rows = generator.standard_normal(40_000), []
    for _ in range(8):
        rows.append(state)
        state = shrink * state + math.sqrt(1 - shrink**2) * generator.standard_normal(40_000)
    values = np.stack(rows[::2])
    measured = (values.var(axis=0, ddof=1) / 4).mean() / values.mean(axis=0).var()
    assert exact_ratio(4, 2, shrink) == pytest.approx(measured, rel=0.04)
    assert exact_ratio(4, 2, 0.0) == pytest.approx(1)


def test_neighbouring_checkpoints_cover_too_little_and_distant_ones_what_they_promise() -> None:
    found = of_setting(600, False, ("diabetes, penalty 0.1", replace(SETTINGS["diabetes, penalty 0.1"], steps=500)))
    rows = {(row["direction"], row["k"], row.get("separation")): row for row in found["rows"]}
    near, far = (rows[FAST, 10, separation] for separation in (1, 50))
    assert near[MEAN]["0.95"][SOLUTION]["share"] < 0.5
    assert near[LAST]["0.95"][SOLUTION]["share"] < 0.85
    shown = far[MEAN]["0.95"][SOLUTION]
    assert shown["share"] == pytest.approx(0.95, abs=4 * shown["error"])
    for row in (near, far):
        assert row["mean S / variance of the mean"] == pytest.approx(row["the same, exact"], rel=0.25)
    assert found["share of clipped gradients"] == 0
    noise = found["noise multiplier"]
    assert gaussian_epsilon(math.sqrt(500) / noise, 1e-5) <= 4 < gaussian_epsilon(math.sqrt(500) / (noise - 0.02), 1e-5)


def test_for_one_price_there_are_ten_short_runs_or_every_checkpoint_after_the_burn_in(generator: np.random.Generator) -> None:
    """Where all steps are independent, both hold what they promise, and widths go with the number of values."""
    values = generator.standard_normal((450, 4000))
    short, *every = of_one_run(SLOW, values, {SOLUTION: np.zeros(4000)}, 40)
    assert [row["count"] for row in (short, *every)] == [10, 361, 73, 19, 8]
    assert (short[SHORT]["0.95"][SOLUTION]["runs"], every[0][EVERY]["0.95"][SOLUTION]["runs"]) == (400, 4000)
    for one in (short[SHORT]["0.95"], *(row[EVERY]["0.95"] for row in every)):
        held = one[SOLUTION]
        assert held["share"] == pytest.approx(0.95, abs=4 * held["error"])
    widths = [one["mean width"] for one in (short[SHORT]["0.95"], every[1][EVERY]["0.95"])]
    assert widths[0] / widths[1] == pytest.approx(2.262 / 1.993 * math.sqrt(73 / 10), rel=0.05)  # Student's quantiles


def test_quick() -> None:
    result = coverage(Options(seeds=2, quick=True, jobs=1))
    assert list(result.numbers) == list(SETTINGS)
    for found in result.numbers.values():
        assert {row["k"] for row in found["rows"]} == {5, 10}
        assert all(row["first checkpoint"] >= 1 for row in found["rows"] if MEAN in row)
        assert {row["burn-in"] for row in found[ONE]} == {20}  # of 200 steps
    assert TRUTH in result.numbers["synthetic"]["rows"][0][MEAN]["0.9"]
    assert TRUTH not in result.numbers["diabetes"]["rows"][0][MEAN]["0.9"]
    assert render(result.pictures["coverage"], ".png").startswith(b"\x89PNG")
    for panel in describe(result.pictures["coverage"]).panels:
        assert panel.categories[-1] == "independent runs" and len(panel.lines) == 5
        around, last, *_ = panel.lines
        rows = [
            row for row in result.numbers[panel.title.partition(":")[0]]["rows"] if (row["direction"], row["k"]) == (SLOW, 10)
        ]
        assert around.y == [row.get(MEAN, row.get(RUNS))["0.95"][SOLUTION]["share"] for row in rows]
        held = rows[0][LAST]["0.95"][SOLUTION]
        assert last.band[0] == pytest.approx((held["share"] - held["error"], held["share"] + held["error"]))
