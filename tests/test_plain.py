"""Plain words: the chance of a right guess against brute force, and words for every assumption of a release with noise."""

from __future__ import annotations

import math

import pytest

from dpmerge.rules import GLOSSARY, RECORD, THEOREMS, build, chance_of_guessing, meaning, plainly
from tests import builders


@pytest.mark.parametrize("epsilon, delta", [(0.0, 0.0), (0.5, 1e-5), (1.0, 0.01), (3.0, 0.1), (50.0, 0.0)])
def test_the_best_guess_against_the_worst_mechanism_is_as_often_right(epsilon: float, delta: float) -> None:
    """The mechanism that every (ε, δ)-DP one is a post-processing of has four outcomes (Kairouz, Oh and Viswanath 2015)."""
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    one = [delta, truth, 1 - delta - truth, 0.0]
    other = one[::-1]
    right = math.fsum(max(a, b) for a, b in zip(one, other, strict=True)) / 2
    assert chance_of_guessing(epsilon, delta) == pytest.approx(right, rel=1e-12)


def test_huge_numbers_mean_certainty_and_are_rounded_up() -> None:
    assert chance_of_guessing(1e6, 0.0) == 1.0
    assert "more than 73.11 % of the time" in meaning(1.0, 1e-9, "add-remove")
    assert "which of two records one person has" in meaning(1.0, 1e-9, "replace-one")


def test_every_assumption_of_a_release_with_noise_has_plain_words() -> None:
    portfolio = builders.portfolio(
        *(builders.dp_sgd(name, sigma=1.0, steps=5, sampling=0.1, smoothness=0.2, convex="unclipped") for name in "ab")
    )
    found = build("combination", portfolio.weights({"a": 0.5, "b": 0.5}), noise=0.01).guarantee(delta=1e-5)
    assert found.theorem == "hidden-run"
    for text in found.assumptions:
        assert plainly(text) != f"{text[:1].upper()}{text[1:]}.", text
    for theorem in THEOREMS.values():
        assert all(plainly(text).endswith(".") for text in theorem.assumptions)
    assert plainly("something new") == "Something new."
    assert plainly(RECORD) != RECORD
    assert {"ε", "δ", "noise", "proved", "recipients", "budget"} <= set(GLOSSARY)
