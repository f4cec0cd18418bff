"""Random selections by the hundred, all at once: what the rule says of each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpmerge.planning import simplex_grid
from dpmerge.profiles import grids_of_accuracy, run_profile
from dpmerge.rules import Selection, selection_epsilons
from tests import builders

DELTA = 1e-5
NOISE = {"a": 0.6, "b": 0.9, "c": 2.0}
SAMPLED: dict[str, Any] = {"steps": 30, "sampling": 0.05, "batch": 50}


@pytest.mark.parametrize("by", ["pld", "rdp"])
def test_many_selections_are_the_rule_for_each(by: Any) -> None:
    portfolio = builders.portfolio(*(builders.dp_sgd(name, sigma=sigma, **SAMPLED) for name, sigma in NOISE.items()))
    profiles = [run_profile(model).profile for model in portfolio.models]
    grid = simplex_grid(3, 0.25)
    found = selection_epsilons(profiles, grid, DELTA, by)
    for row, value in zip(grid.tolist(), found.tolist(), strict=True):
        rule = Selection(portfolio.weights(dict(zip(portfolio.names, row, strict=True))))
        assert value == pytest.approx(rule.guarantee(delta=DELTA, by=by).epsilon, rel=1e-4)
        with grids_of_accuracy(1e-6):  # never below what a much finer grid gives
            assert value >= rule.guarantee(delta=DELTA, by=by).epsilon * (1 - 1e-9)


@pytest.mark.parametrize("by", ["pld", "rdp"])
def test_many_selections_with_a_model_without_privacy(by: Any) -> None:
    portfolio = builders.portfolio(
        builders.gaussian("g", noise_std=1.0),
        builders.model("n", {"kind": "non-private"}),
        builders.dp_sgd("s", sigma=1.0, sampling=0.1, steps=20),
    )
    profiles = [run_profile(model).profile for model in portfolio.models]
    rows = np.array([[1, 0, 0], [0, 0, 1], [0.5, 0, 0.5], [0.9, 0.1, 0], [1 - 5e-6, 5e-6, 0], [0.5, 9.9e-6, 0.5 - 9.9e-6]])
    found = selection_epsilons(profiles, rows, DELTA, by)
    for row, value in zip(rows.tolist(), found.tolist(), strict=True):
        rule = Selection(portfolio.weights(dict(zip(portfolio.names, row, strict=True))))
        assert value == pytest.approx(rule.guarantee(delta=DELTA, by=by).epsilon, rel=1e-3)
    assert math.isinf(found[3])
