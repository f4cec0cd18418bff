"""Periodic distribution shift: batches have the stated rates, and the recorded rates cost at least what either part pays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpmerge.errors import TrainingError
from dpmerge_lab.training.shift import PeriodicShift, first_share


def shift(first: int, second: int, period: int, batch: float) -> PeriodicShift:
    return PeriodicShift((np.arange(first), np.arange(first, first + second)), period, batch)


def test_shares_swing_as_the_paper_says() -> None:
    assert [first_share(step, 4) for step in range(6)] == [1.0, 0.5, 0.0, 0.5, 1.0, 0.5]


@settings(deadline=None, max_examples=200)
@given(st.integers(2, 25), st.integers(1, 80), st.integers(10, 40), st.integers(10, 40))
def test_recorded_rates_dominate_those_of_either_part_at_every_checkpoint(
    period: int, steps: int, first: int, second: int
) -> None:
    swings = shift(first, second, period, 10.0)
    recorded = sorted((swings.dominating_rate(step) for step in range(steps)), reverse=True)
    assert all(0 < rate <= 1 for rate in recorded)
    for part in (0, 1):
        paid = sorted((swings.rates(step)[part] for step in range(steps)), reverse=True)
        assert all(mine <= record + 1e-12 for mine, record in zip(paid, recorded, strict=True))


def test_nothing_is_lost_over_whole_half_periods_of_equal_parts() -> None:
    swings, steps = shift(30, 30, 10, 6.0), 40
    recorded = sum(swings.dominating_rate(step) for step in range(steps))
    paid = sum(swings.rates(step)[0] for step in range(steps))
    assert recorded == pytest.approx(paid * (1 + 2 / 10), rel=1e-12)  # one step in a half-period: the grid has two ends


def test_batches_have_the_rates_of_their_parts() -> None:
    swings, generator = shift(400, 200, 8, 50.0), np.random.default_rng(5)
    counts = np.zeros(600)
    for _ in range(4000):
        counts[swings.batch(generator, 1)] += 1
    for part, rate in zip(swings.parts, swings.rates(1), strict=True):
        seen = counts[part].mean() / 4000
        assert abs(seen - rate) < 6 * np.sqrt(rate / (4000 * len(part)))
    assert set(swings.batch(generator, 4)) <= set(swings.parts[1])  # p = 0: the second part alone


def test_even_and_odd_classes_are_the_parts() -> None:
    swings = PeriodicShift.even_and_odd(np.array([0, 1, 2, 3, 5]), 2, 1.0)
    assert [part.tolist() for part in swings.parts] == [[0, 2], [1, 3, 4]]


@pytest.mark.parametrize(
    ("first", "second", "period", "batch", "text"),
    [(5, 5, 1, 2.0, "no shift"), (5, 0, 4, 2.0, "two parts"), (5, 50, 4, 6.0, "smaller batches")],
)
def test_refusals(first: int, second: int, period: int, batch: float, text: str) -> None:
    with pytest.raises(TrainingError, match=text):
        shift(first, second, period, batch)


def test_parts_that_overlap_are_refused() -> None:
    with pytest.raises(TrainingError, match="in both"):
        PeriodicShift((np.arange(5), np.arange(4, 9)), 4, 2.0)
