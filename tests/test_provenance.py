"""Who chose the weights: claims against what was measured, noisy choices, private validation sets."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmerge.errors import TargetError, UtilityError
from dpmerge.records import Portfolio
from dpmerge.rules import Joint
from dpmerge.rules.tempered import DRAWING, Tempered, _tilt
from dpmerge.rules.validation import Validated, Validation
from dpmerge.weights import Provenance, Utilities, plan
from dpmerge.weights.draw import secure_draw, tilted_odds
from tests import builders


def gaussians(mus: list[float]) -> Portfolio:
    return builders.portfolio(*(builders.gaussian(n, noise_std=1 / mu) for n, mu in zip("ab", mus, strict=True)))


def validation_file(tmp_path: Path, **changes: Any) -> str:
    content = {
        "schema": 1,
        "measured_on": "holdout",
        "models": "private",
        "utilities": {"a": 0.5, "b": 0.9},
        "validation": {"records": 1000, "disjoint": True},
        **changes,
    }
    path = tmp_path / "scores.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_private_validation_pays_on_both_sides(tmp_path: Path) -> None:
    portfolio = gaussians([0.5, 1.0])
    joint = Joint(portfolio.weights({"a": 0.5, "b": 0.5})).guarantee(delta=1e-5).epsilon
    for disjoint, own, expected in ((True, 0.3, joint), (True, 9.0, 9.0), (False, 0.3, joint + 0.3)):
        utility = Utilities.parse(portfolio, validation_file(tmp_path, validation={"records": 1000, "disjoint": disjoint}))
        found = plan(portfolio, epsilon=20.0, delta=1e-5, utility=utility, kappa=0.5, validation_epsilon=own)
        assert found.provenance == "private-validation"
        assert found.utilities == {}
        assert all(option.expected_utility is None for option in found.options)  # private scores are not shown
        by_rule = {option.rule: option for option in found.options}
        assert by_rule["joint"].epsilon == pytest.approx(expected, abs=1e-9)
        assert by_rule["joint"].theorem == "private-validation"
        assert by_rule["joint"].feasible and by_rule["tempered"].feasible
        assert not by_rule["selection"].feasible and not by_rule["combination"].feasible
        tempered = Tempered(portfolio.weights(by_rule["tempered"].weights), 0.5).guarantee(delta=1e-5).epsilon
        side = max(tempered, 0.5 / 1000) if disjoint else tempered + 0.5 / 1000
        assert by_rule["tempered"].epsilon == pytest.approx(side, abs=1e-9)
    without = plan(portfolio, epsilon=20.0, delta=1e-5, utility=utility)
    assert "--validation-epsilon" in next(option.why for option in without.options if option.rule == "joint")


def test_validated_answers_epsilon_targets_consistently() -> None:
    portfolio = gaussians([0.5, 1.0])
    inner = Joint(portfolio.weights({"a": 0.5, "b": 0.5}))
    for disjoint in (True, False):
        rule = Validated(inner, Validation(100, disjoint), 0.7)
        for epsilon in (0.0, 0.3, 0.7, 2.0, 5.0):
            delta = rule.guarantee(epsilon=epsilon).delta
            if 0 < delta < 1:
                assert rule.guarantee(delta=delta).epsilon >= epsilon - 1e-6 or disjoint
            assert delta >= inner.guarantee(epsilon=epsilon).delta
        assert rule.guarantee(epsilon=0.3).delta >= (math.exp(0.7) - math.exp(0.3)) / (math.exp(0.7) + 1)
    assert Validated(inner, Validation(100, True), 0.7).guarantee(epsilon=2.0).delta == inner.guarantee(epsilon=2.0).delta


# --- the law of a tempered draw -----------------------------------------------------------------------------------------------


def law(weights: Sequence[float], scores: Sequence[float | Fraction], kappa: float) -> list[Fraction]:
    odds = tilted_odds(weights, scores, kappa)
    return [odd / sum(odds) for odd in odds]


def log_ratio(one: Fraction, other: Fraction) -> float:
    """log(one/other), also where a float cannot hold the quotient."""
    quotient = one / other
    return (math.log(quotient.numerator) - math.log(quotient.denominator)) if one != other else 0.0


def test_a_model_without_weight_moves_no_odds() -> None:
    """Before, the cut-off was taken below its score: at κ = 800 odds of e^80 : 1 became 1 : 1."""
    _, first, second = law((0.0, 0.5, 0.5), (1.0, 0.1, 0.0), 800.0)
    assert log_ratio(first, second) == pytest.approx(80)
    for kappa in (1.0, 800.0, 1e6):
        for score in (0.0, 0.3, 1.0):
            assert law((0.0, 0.25, 0.75), (score, 0.1, 0.04), kappa)[1:] == law((0.25, 0.75), (0.1, 0.04), kappa)


@given(
    kappa=st.floats(0, 3000),
    weights=st.lists(st.floats(1e-9, 1), min_size=3, max_size=3),
    scores=st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_what_is_drawn_keeps_the_bounds_of_its_theorem(kappa: float, weights: list[float], scores: list[float]) -> None:
    """The probability of a model is at most w̄, and changes by e^{κ_i} at most with the others' scores: cut off or not."""
    share = weights[0] / math.fsum(weights)
    most, shift = _tilt(share, kappa + DRAWING)
    one, other = (law(weights, (scores[0], *rest), kappa)[0] for rest in (scores[1:3], scores[3:]))
    assert max(one, other) <= most * (1 + 1e-12)
    assert abs(log_ratio(one, other)) <= shift + 1e-9 * (share > 1 - 1e-9) + 1e-12


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("scale", [1, 350])
def test_a_draw_by_counts_is_private_for_every_pair_of_neighbours(replaced: bool, scale: int) -> None:
    """Exhaustively: all counts of three models, all changes one record can make; some of them beyond the cut-off."""
    size, worst, weights = 5 * scale, 0.0, (0.2, 0.3, 0.5)
    kappa = 0.8 * size  # κ/n = 0.8
    for counts in itertools.product((0, 1, 2 * scale, size - 1), repeat=3):
        here = law(weights, [Fraction(count, size) for count in counts], kappa)
        for change in itertools.product((-1, 0, 1) if replaced else (0, 1), repeat=3):
            moved = [count + step for count, step in zip(counts, change, strict=True)]
            if min(moved) >= 0:
                there = law(weights, [Fraction(count, size) for count in moved], kappa)
                worst = max(worst, *(abs(log_ratio(one, other)) for one, other in zip(here, there, strict=True)))
    most = 1.6 if replaced else 0.8
    assert 0.9 * most < worst <= most + DRAWING


def test_draws_follow_their_probabilities() -> None:
    weights = [0.1, 0.0, 0.6, 0.3]
    drawn = np.bincount([secure_draw(weights) for _ in range(20_000)], minlength=4)
    assert drawn[1] == 0
    expected = 20_000 * np.array([0.1, 0.6, 0.3])
    assert float((((drawn[[0, 2, 3]] - expected) ** 2) / expected).sum()) < 30  # χ² with 2 degrees: p < 1e-6
    assert secure_draw([0.0, 5e-324, 0.0]) == 1


@pytest.mark.parametrize(
    "changes, claim, complaint",
    [
        ({"validation": None}, "a-priori", "not a-priori"),
        ({}, "a-priori", "not a-priori"),
        ({}, "after-looking", "not after-looking"),
        ({"validation": None, "models": "stand-ins"}, "private-validation", "`validation` field"),
        ({"models": "stand-ins"}, None, "stand-ins is not covered"),
        ({"utilities": {"a": 0.5, "b": 1.2}}, None, "fractions of right answers"),
        ({"validation": {"records": 0, "disjoint": True}}, None, "records"),
        ({"validation": {"records": 5}}, None, "disjoint"),
    ],
)
def test_provenance_claims_against_the_file_are_refused(
    tmp_path: Path, changes: dict[str, Any], claim: Provenance | None, complaint: str
) -> None:
    portfolio = gaussians([0.5, 1.0])
    with pytest.raises(UtilityError, match=complaint):
        Utilities.asked(portfolio, validation_file(tmp_path, **changes), claim)


def test_a_stricter_claim_is_taken(tmp_path: Path) -> None:
    portfolio = gaussians([0.5, 1.0])
    taken = Utilities.asked(portfolio, "a=0.5,b=0.9", "after-looking")
    assert taken is not None and taken.provenance == "after-looking"
    with pytest.raises(UtilityError, match="give them with --utility"):
        Utilities.asked(portfolio, None, "after-looking")
    with pytest.raises(TargetError, match="private validation set"):
        plan(portfolio, epsilon=1.0, delta=1e-5, utility=taken, validation_epsilon=0.5)
