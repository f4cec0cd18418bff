"""Who chose the weights: claims against what was measured, noisy choices, private validation sets."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import TargetError, UtilityError
from dpmerge.records import Portfolio
from dpmerge.rules import Joint
from dpmerge.rules.tempered import Tempered
from dpmerge.rules.validation import Validated, Validation
from dpmerge.weights import Provenance, Utilities, plan
from dpmerge.weights.draw import noisy_choice_weights, report_noisy_max, secure_draw
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


@pytest.mark.parametrize("replace_one", [False, True])
def test_noisy_choice_is_private_for_every_pair_of_neighbours(replace_one: bool) -> None:
    """Exhaustively: all counts of three candidates, all changes one record can make."""
    epsilon = 0.8
    changes = list(itertools.product((-1, 0, 1) if replace_one else (0, 1), repeat=3))
    worst = 0.0
    for counts in itertools.product((0, 1, 2, 5), repeat=3):
        odds = np.array(noisy_choice_weights(counts, epsilon, replace_one))
        for change in changes:
            moved = [count + delta for count, delta in zip(counts, change, strict=True)]
            if min(moved) < 0:
                continue
            other = np.array(noisy_choice_weights(moved, epsilon, replace_one))
            ratio = np.log(odds / odds.sum()) - np.log(other / other.sum())
            worst = max(worst, float(np.abs(ratio).max()))
    assert worst <= epsilon + 1e-12
    assert worst > 0.5 * epsilon  # the bound is about something


def test_noisy_choice_cut_off_keeps_privacy() -> None:
    for counts in ((0, 2000), (0, 699, 700), (1, 701, 1400)):
        for change in itertools.product((0, 1), repeat=len(counts)):
            odds = np.array(noisy_choice_weights(counts, 1.0))
            other = np.array(noisy_choice_weights([a + b for a, b in zip(counts, change, strict=True)], 1.0))
            assert np.abs(np.log(odds / odds.sum()) - np.log(other / other.sum())).max() <= 1 + 1e-12


def test_draws_follow_their_probabilities() -> None:
    weights = [0.1, 0.0, 0.6, 0.3]
    drawn = np.bincount([secure_draw(weights) for _ in range(20_000)], minlength=4)
    assert drawn[1] == 0
    expected = 20_000 * np.array([0.1, 0.6, 0.3])
    assert float((((drawn[[0, 2, 3]] - expected) ** 2) / expected).sum()) < 30  # χ² with 2 degrees: p < 1e-6
    assert secure_draw([0.0, 5e-324, 0.0]) == 1
    best = [report_noisy_max([10, 40, 20], 1.0) for _ in range(200)]
    assert set(best) == {1}


@pytest.mark.parametrize(
    "counts, epsilon, complaint",
    [([], 1.0, "must be given"), ([1, -1], 1.0, "not negative"), ([1], 0.0, "positive"), ([1], float("nan"), "finite")],
)
def test_bad_noisy_choices_are_refused(counts: list[int], epsilon: float, complaint: str) -> None:
    with pytest.raises(UtilityError, match=complaint):
        report_noisy_max(counts, epsilon)


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
