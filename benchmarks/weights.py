"""Weights: grids of guarantees, exact optima and the second plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from benchmarks.report import Claim, best_time
from dpmerge import example_portfolio
from dpmerge.jobs import run_all
from dpmerge.planning import (
    Mapper,
    Point,
    combination_points,
    pld_optimum,
    renyi_optimum,
    selection_frontier,
    simplex_grid,
)
from dpmerge.profiles import Profile, run_profile
from dpmerge.records import Portfolio
from dpmerge.rules import MIXTURE_ACCOUNTANTS, Accounting, Combination, MixtureAccountant, Target, selection_epsilons

DELTA = 1e-5


def _timed(function: Any, item: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = function(item)
    return result, time.process_time() - start


def _everywhere(spent: list[float]) -> Mapper:
    """The mapping function on all cores, which also adds up the processor time of every piece."""

    def run(function: Any, items: Any, *, keys: Any) -> list[Any]:
        results = run_all(partial(_timed, function), items)
        spent.append(sum(seconds for _, seconds in results))
        return [result for result, _ in results]

    return run


def _law(portfolio: Portfolio, point: Point) -> Profile:
    weights = portfolio.weights(dict(zip(portfolio.names, point, strict=True)))
    (route,) = Combination(weights, 0.0).routes(Target(delta=DELTA))
    return route.profile


def _reference(portfolio: Portfolio, point: Point) -> float:
    return _law(portfolio, point).epsilon(DELTA, interval=1e-4)


def _by_dp_accounting(portfolio: Portfolio, point: Point) -> float:
    ((law, steps),) = _law(portfolio, point).factors
    shifts, probs = law.upper  # type: ignore[attr-defined]
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(1.0, shifts.tolist(), probs.tolist())
    return float(one.self_compose(steps).get_epsilon_for_delta(DELTA))


def simplex_of_combinations() -> Iterator[Claim]:
    """The 5,151-point simplex of the portfolio of docs/theory.md §8, linear combinations by the papers' formula, PLD."""
    portfolio = Portfolio(example_portfolio())
    points = [tuple(row) for row in simplex_grid(3, 0.01).tolist()]
    spent: list[float] = []
    start = time.perf_counter()
    accounting = Accounting(assume_smoothness=0.0)
    found = combination_points(portfolio, points, DELTA, accounting, _everywhere(spent), ("proved",), ("pld",))
    wall = time.perf_counter() - start
    ours = np.array([point.accounts["proved"].epsilon["pld"] for point in found])
    reference = np.array(run_all(partial(_reference, portfolio), points))
    error = float(np.abs(ours / reference - 1).max())
    inner = [point for point in points if min(point) > 0]
    sample = [inner[index] for index in np.random.default_rng(0).choice(len(inner), 15, replace=False)]
    theirs = sum(_timed(partial(_by_dp_accounting, portfolio), point)[1] for point in sample) / len(sample) * len(points)
    yield Claim(
        f"{len(points):,} linear combinations by the papers' formula, PLD: wall time on all cores",
        f"{wall:.1f} s",
        "< 90 s",
        wall < 90,
    )
    yield Claim(
        "… processor time against dp-accounting (15 random points, extrapolated)",
        f"{spent[0]:.0f} s against {theirs:.0f} s: {theirs / spent[0]:.0f} times",
        "≥ 100 times",
        theirs / spent[0] >= 100,
    )
    yield Claim("… every point against an interval of 1e-4", f"relative error ≤ {error:.1e}", "≤ 1e-3", error <= 1e-3)


def _profiles() -> list[Profile]:
    return [run_profile(model).profile for model in Portfolio(example_portfolio()).models]


def simplex_of_selections() -> Iterator[Claim]:
    """The same simplex under random selection."""
    grid = simplex_grid(3, 0.01)

    def ours(by: MixtureAccountant) -> None:
        selection_epsilons(_profiles(), grid, DELTA, by)

    for by in MIXTURE_ACCOUNTANTS:
        seconds, _ = best_time(partial(ours, by))
        yield Claim(
            f"{len(grid):,} random selections, {by.upper()}, profiles included", f"{seconds:.2f} s", "< 1 s", seconds < 1
        )


def optima() -> Iterator[Claim]:
    """The best random selection of 200 models, and exact frontiers."""
    rng = np.random.default_rng(0)
    utilities = rng.uniform(0.5, 1.0, 200)
    costs = np.exp(rng.uniform(-3, 6, (2, 200)))
    seconds, _ = best_time(lambda: pld_optimum(costs, utilities), 5)
    yield Claim(
        "best random selection of 200 models, PLD, profiles known", f"{seconds * 1e3:.1f} ms", "< 100 ms", seconds < 0.1
    )
    orders = np.linspace(1.1, 300, 247)
    log_costs = rng.uniform(-3, 6, (200, 1)) + rng.normal(0, 1, (200, 247))
    seconds, _ = best_time(lambda: renyi_optimum(log_costs, orders, utilities), 5)
    yield Claim(
        "best random selection of 200 models, RDP, profiles known", f"{seconds * 1e3:.1f} ms", "< 100 ms", seconds < 0.1
    )
    targets = np.geomspace(0.3, 8, 200).tolist()
    seconds, _ = best_time(
        lambda: [
            selection_frontier(_profiles(), (0.91, 0.85, 0.90), targets, DELTA, Accounting(by)) for by in MIXTURE_ACCOUNTANTS
        ]
    )
    yield Claim(
        "exact frontier of random selection at 200 targets, PLD and RDP, profiles included",
        f"{seconds:.2f} s",
        "< 2 s",
        seconds < 2,
    )


def second_plan() -> Iterator[Claim]:
    """Whole processes, as a user starts them."""
    command = [sys.executable, "-m", "dpmerge", "plan", str(example_portfolio()), "--epsilon", "3", "--delta", "1e-5", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "DPMERGE_CACHE": folder}
        call = partial(subprocess.run, command, env=environment, capture_output=True, check=True, text=True)
        start = time.perf_counter()
        first = json.loads(call().stdout)
        cold = time.perf_counter() - start
        seconds, again = best_time(call, 5)
        assert json.loads(again.stdout) == first
    yield Claim("a second plan, whole process", f"{seconds:.2f} s (the first: {cold:.1f} s)", "< 0.6 s", seconds < 0.6)


ALL = (simplex_of_selections, optima, second_plan, simplex_of_combinations)
