"""The best number of checkpoints against all others, and the paper's formula."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from dpmerge.errors import EvaluationError
from dpmerge_lab.experiments.number_of_checkpoints import best_number_of_checkpoints, mixing_time


class TestBestNumber:
    @given(st.floats(1, 1e4), st.floats(0.1, 50), st.floats(0.1, 50))
    def test_no_other_whole_number_is_better(self, time: float, c1: float, c2: float) -> None:
        assume(time > 2.001 * c1 and 3 * time > 1.001 * c2)
        found = best_number_of_checkpoints(time, c1, c2)
        allowed = [k for k in range(2, 2000) if time / k > c1]
        bounds = [1 / k + 3 * math.exp(-(time / k - c1) / c2) for k in allowed]
        assert found.bound <= min(bounds) * (1 + 1e-12)
        assert time / found.checkpoints > c1

    def test_the_papers_formula(self) -> None:
        found = best_number_of_checkpoints(1000.0, 5.0, 2.0)
        assert found.exact == pytest.approx(1000 / (5 + 2 * math.log(1500)))
        assert found.checkpoints in (50, 51)

    def test_mixing_time(self) -> None:
        assert mixing_time(2.0, 10, 3.0, 4.0) == pytest.approx(0.25 + math.log(4 * 2 * 19))
        with pytest.raises(EvaluationError, match="smoothness of at least 1"):
            mixing_time(0.5, 10, 3.0, 4.0)

    @pytest.mark.parametrize(("time", "c1", "c2"), [(10, 5, 1), (10, 1, 30), (0, 1, 1), (10, math.nan, 1), (10, 1, math.inf)])
    def test_refusals(self, time: float, c1: float, c2: float) -> None:
        with pytest.raises(EvaluationError, match=r"must exceed|must be positive and finite"):
            best_number_of_checkpoints(time, c1, c2)


def variance_of_variance(count: int, positive: float) -> float:
    """Var S of so many independent ±1, each positive with this probability: from all numbers of positive ones."""
    number = np.arange(count + 1)
    chance = np.array([math.comb(count, k) * positive**k * (1 - positive) ** (count - k) for k in number])
    mean = 2 * number / count - 1
    found = count / (count - 1) * (1 - mean**2)
    return float(chance @ found**2 - (chance @ found) ** 2)


def test_of_a_few_values_it_is_that_of_all_outcomes() -> None:
    outcomes = np.array(list(itertools.product((-1.0, 1.0), repeat=5)))
    chances = np.prod(np.where(outcomes > 0, 0.2, 0.8), axis=1)
    found = np.var(outcomes, axis=1, ddof=1)
    assert variance_of_variance(5, 0.2) == pytest.approx(chances @ found**2 - (chances @ found) ** 2)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 50, 1000])
def test_lemma_a8_is_false_for_every_number(count: int) -> None:
    """Var S ≤ 1/k for values in [−1, 1] is false, and ≤ 2/k true: the worst ±1 has (4k − 4)/(4k − 6) of 1/k."""
    spread = (2 * count - 2) / (4 * count - 6)  # 4p(1 − p)
    worst = (1 - math.sqrt(1 - spread)) / 2
    found = variance_of_variance(count, worst)
    assert found == pytest.approx((4 * count - 4) / (4 * count - 6) / count)
    assert 1 / count < found <= 2 / count * (1 + 1e-12)
    assert all(variance_of_variance(count, p) <= found * (1 + 1e-12) for p in np.linspace(0.01, 0.99, 99))
