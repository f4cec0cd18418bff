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
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from dpmerge import plan
from dpmerge.cli import app
from dpmerge.errors import TargetError, UtilityError
from dpmerge.planning import Utilities, secure_draw, tilted_odds
from dpmerge.records import Portfolio
from dpmerge.rules import DRAWING, Joint, Provenance, Tempered, Validated, Validation
from dpmerge.rules.tempered import _tilt
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
    for stated, moves in (({"divisor": 1000}, 1), ({"records": 1000}, 2)):
        for disjoint, own, expected in ((True, 0.3, joint), (True, 9.0, 9.0), (False, 0.3, joint + 0.3)):
            utility = Utilities.parse(portfolio, validation_file(tmp_path, validation={**stated, "disjoint": disjoint}))
            noisy = plan(portfolio, epsilon=20.0, delta=1e-5, utility=utility, validation_epsilon=own, rules=("tempered",))
            (option,) = noisy.options
            assert option.epsilon == pytest.approx(expected, abs=1e-9) and option.feasible
            assert option.guarantee is not None
            assert option.guarantee.theorem == "private-validation" and option.weights.as_dict() == {"a": 0.5, "b": 0.5}
            assert option.guarantee.details["kappa"] == pytest.approx(1000 * own / moves)
            found = plan(portfolio, epsilon=20.0, delta=1e-5, utility=utility, kappa=0.5)
            assert found.provenance == "private-validation"
            by_rule = {option.rule: option for option in found.options}
            assert by_rule["tempered"].feasible and "only a draw by them is paid for" in by_rule["joint"].why
            others = [option for option in found.options if option.rule != "tempered"]
            assert not any(one.feasible or "joint release of every" in one.why for one in others)
            tempered = Tempered(by_rule["tempered"].weights, 0.5).guarantee(delta=1e-5).epsilon
            side = max(tempered, moves * 0.5 / 1000) if disjoint else tempered + moves * 0.5 / 1000
            assert by_rule["tempered"].epsilon == pytest.approx(side, abs=1e-9)


@pytest.mark.parametrize("strength", [["--kappa", "0.5"], ["--validation-epsilon", "0.5"], []], ids=["kappa", "noisy", "none"])
@pytest.mark.parametrize("output", [["--json"], []], ids=["json", "table"])
def test_plans_are_the_same_whatever_the_private_scores_are(tmp_path: Path, strength: list[str], output: list[str]) -> None:
    """Before, the weights of selection and combination, and the order of options, moved with one score."""
    models = {name: builders.gaussian(name, noise_std=1 / mu) for name, mu in zip("abc", (0.3, 0.5, 1.0), strict=True)}
    for name, model in models.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "record.json").write_text(json.dumps(model.record.as_dict()))
    printed = set()
    for scores in ((0.5, 0.9, 0.8), (0.5, 0.7, 0.8), (0, 0, 1), (1, 0, 0), (0.25, 0.25, 0.25)):
        path = validation_file(tmp_path, utilities=dict(zip("abc", scores, strict=True)))
        command = ["plan", str(tmp_path / "runs"), "--epsilon", "2", "--delta", "1e-5", "--utility", path, *strength, *output]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        printed.add(result.stdout)
    assert len(printed) == 1
    if output:
        content = json.loads(printed.pop())
        assert content["utilities"] == {} and all(option["expected_utility"] is None for option in content["options"])


def test_a_divisor_that_moves_is_charged() -> None:
    """99 records and 100, κ = 100: one model gains a right answer while the other's share falls. log-ratio 2, not 1."""
    before, after = (law((0.5, 0.5), (Fraction(a, n), Fraction(b, n)), 100.0) for a, b, n in ((0, 99, 99), (1, 99, 100)))
    ratio = log_ratio(after[0], before[0])
    assert ratio == pytest.approx(2.0, abs=1e-9)
    assert Validation(100, True).tempered_epsilon(100.0, "add-remove") == 2.0
    assert Validation(100, True, constant=True).tempered_epsilon(100.0, "add-remove") == 1.0
    for constant in (True, False):  # the number of records stays where one is zeroed or replaced
        assert Validation(100, True, constant).tempered_epsilon(100.0, "zero-out") == 1.0
        assert Validation(100, True, constant).tempered_epsilon(100.0, "replace-one") == 2.0


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=2, max_size=12), st.floats(0.1, 50), st.data())
def test_no_added_record_moves_a_draw_by_more_than_is_charged(
    answers: list[tuple[int, ...]], kappa: float, data: st.DataObject
) -> None:
    """Three models, a record of a private set removed: by the exact law of the draw, for both divisors."""
    gone = data.draw(st.integers(0, len(answers) - 1))
    sets = (answers, answers[:gone] + answers[gone + 1 :])
    for constant in (True, False):
        laws = []
        for records in sets:
            divisor = 20 if constant else len(records)
            laws.append(law((0.2, 0.3, 0.5), [Fraction(sum(right), divisor) for right in zip(*records, strict=True)], kappa))
        charged = Validation(20 if constant else len(answers), True, constant).tempered_epsilon(kappa, "add-remove")
        assert max(abs(log_ratio(one, other)) for one, other in zip(*laws, strict=True)) <= charged + DRAWING


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
        ({"validation": {"records": 10}}, None, "disjoint"),
        ({"validation": {"disjoint": True}}, None, "either the number of records, or a public constant"),
        ({"validation": {"records": 10, "divisor": 10, "disjoint": True}}, None, "either the number of records, or a public"),
        ({"validation": {"divisor": 7, "disjoint": True}}, None, "whole numbers of right answers divided by 7"),
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
    with pytest.raises(UtilityError, match="none are given"):
        Utilities.asked(portfolio, None, "after-looking")
    with pytest.raises(TargetError, match="private validation set"):
        plan(portfolio, epsilon=1.0, delta=1e-5, utility=taken, validation_epsilon=0.5)
    private = Utilities.parse(portfolio, validation_file(tmp_path))
    for kappa, own, complaint in ((1.0, 0.5, "give one of them"), (None, math.nan, "must be finite")):
        with pytest.raises(TargetError, match=complaint):
            plan(portfolio, epsilon=1.0, delta=1e-5, utility=private, kappa=kappa, validation_epsilon=own)
