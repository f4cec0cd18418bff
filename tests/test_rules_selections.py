"""Random selections by the hundred, all at once: what the rule says of each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpmerge.planning import Landscape, simplex_grid
from dpmerge.profiles import grids_of_accuracy, run_profile
from dpmerge.rules import Accounting, Selection, selection_epsilons, selections
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


def test_many_guarantees_at_once_say_what_each_says() -> None:
    """Also of some models of a portfolio only, and with every word that a guarantee of its own has."""
    models = [builders.dp_sgd(name, sigma=sigma, **SAMPLED) for name, sigma in {**NOISE, "unused": 0.1}.items()]
    portfolio = builders.portfolio(*models)
    many = [portfolio.weights(dict(zip("abc", row, strict=True))) for row in simplex_grid(3, 0.5).tolist()]
    for weights, found in zip(many, selections(many, DELTA), strict=True):
        own = Selection(weights).guarantee(delta=DELTA, by="pld")
        assert found.epsilon == pytest.approx(own.epsilon, rel=1e-4)
        assert replace(found, epsilon=own.epsilon) == own


def test_a_grid_of_models_without_loss_distributions_is_not_drawn_at_once() -> None:
    stated = [builders.model(name, {"kind": "rdp", "orders": [2.0, 8.0], "values": [0.1, 0.4]}) for name in "ab"]
    grid = Landscape(builders.portfolio(*stated), ("a", "b"), twice=True)
    assert grid.draw(DELTA, Accounting()) == [] and grid.done == 0 and not grid.found["selection"]
    known = Landscape(builders.portfolio(*(builders.gaussian(name, noise_std=2.0) for name in "ab")), ("a", "b"), twice=True)
    assert len(known.draw(DELTA, Accounting())) == known.done == len(known.found["selection"]) == 51
