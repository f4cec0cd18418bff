"""Uncertainty from checkpoints: Recycling Scraps' estimator (Thm A.1) against closed forms, abstention against brute force."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import t as student

from dpmerge.checkpoints import (
    abstention_curve,
    chosen_steps,
    uncertainty,
    variance_estimate,
)
from dpmerge.checkpoints.uncertainty import interval_widths
from dpmerge.checkpoints.uncertainty_files import abstention_picture, histogram_line, widths_picture
from dpmerge.errors import CheckpointError, EvaluationError, WeightsError
from dpmerge.figures import render

GENERATOR = np.random.default_rng(20240607)
weights_strategy = st.lists(st.floats(0.01, 1), min_size=2, max_size=8).map(lambda w: [value / math.fsum(w) for value in w])
values_strategy = st.lists(st.floats(-1, 1), min_size=2, max_size=12)


def autoregressive(correlation: float, length: int, paths: int) -> np.ndarray:
    """Stationary Gaussian paths of variance 1, one a column."""
    found = np.empty((length, paths))
    found[0] = GENERATOR.standard_normal(paths)
    for row in range(1, length):
        found[row] = correlation * found[row - 1] + math.sqrt(1 - correlation**2) * GENERATOR.standard_normal(paths)
    return found


def expected_estimate(correlation: float, count: int) -> float:
    """E s² of a stationary AR(1) path: 1 − 2/(k(k−1))·Σ (k−j) ρ^j."""
    pairs = sum((count - lag) * correlation**lag for lag in range(1, count))
    return 1 - 2 * pairs / (count * (count - 1))


class TestEstimator:
    @pytest.mark.parametrize("weights", [None, (0.0, 0.0, 1.0), (0.2, 0.3, 0.5)])
    def test_unbiased_for_independent_values(self, weights: tuple[float, ...] | None) -> None:
        """E S = Var(Σ p_i x_i), by counting all outcomes of three fair dice with sides 0, 1, 5."""
        sides = (0.0, 1.0, 5.0)
        outcomes = np.array([(a, b, c) for a in sides for b in sides for c in sides]).T
        p = weights or (1 / 3,) * 3
        truth = np.var(np.asarray(p) @ outcomes)
        assert np.mean(variance_estimate(outcomes, weights)) == pytest.approx(truth, rel=1e-12)

    @pytest.mark.parametrize("correlation", [0.3, 0.93])
    @pytest.mark.parametrize("count", [2, 5, 20])
    def test_bias_for_a_stationary_process_is_the_known_one(self, correlation: float, count: int) -> None:
        estimates = variance_estimate(autoregressive(correlation, count, 40_000), [0.0] * (count - 1) + [1.0])
        error = estimates.std() / math.sqrt(len(estimates))
        assert estimates.mean() == pytest.approx(expected_estimate(correlation, count), abs=5 * error)
        assert estimates.mean() < 1  # correlation makes it too small

    @pytest.mark.parametrize("apart", [1, 10, 60])
    def test_separation_takes_the_bias_away(self, apart: int) -> None:
        """What the theorem says: the bias falls like ρ^γ."""
        bias = 1 - expected_estimate(0.93**apart, 5)
        assert bias <= 0.93**apart
        assert bias >= 0.4 * 0.93**apart

    @pytest.mark.parametrize("correlation", [0.3, 0.93])
    @pytest.mark.parametrize("weights", [(0.25,) * 4, (0.0, 0.0, 0.0, 1.0)])
    def test_bias_is_the_mean_covariance_for_the_mean_and_for_the_last(
        self, correlation: float, weights: tuple[float, ...]
    ) -> None:
        """docs/theory.md §7: E S − V = −c̄ in both cases."""
        lags = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
        covariances = correlation**lags
        # S is a quadratic form: for x = Rz with independent z, its expectation is the sum of its values at R's columns.
        expected = variance_estimate(np.linalg.cholesky(covariances), weights).sum()
        truth = np.array(weights) @ covariances @ np.array(weights)
        assert expected - truth == pytest.approx(-covariances[lags > 0].mean(), rel=1e-9)

    @given(values_strategy, st.floats(-5, 5), st.floats(-3, 3))
    def test_shift_and_scale(self, values: list[float], shift: float, scale: float) -> None:
        moved = variance_estimate([shift + scale * value for value in values])
        assert moved == pytest.approx(scale**2 * variance_estimate(values), rel=1e-6, abs=1e-12)

    @given(values_strategy, st.randoms())
    def test_order_does_not_matter(self, values: list[float], random: object) -> None:
        shuffled = list(values)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        assert variance_estimate(shuffled) == pytest.approx(variance_estimate(values), rel=1e-9, abs=1e-15)

    @given(weights_strategy)
    def test_equal_weights_estimate_least_and_one_model_most(self, weights: list[float]) -> None:
        values = np.linspace(0, 1, len(weights)) ** 2
        found = variance_estimate(values, weights)
        assert variance_estimate(values) <= found * (1 + 1e-12)
        assert found <= np.var(values, ddof=1) * (1 + 1e-12)

    def test_refusals(self) -> None:
        with pytest.raises(EvaluationError, match="at least two models; got 1"):
            variance_estimate([0.5])
        with pytest.raises(WeightsError, match="2 weights for 3 models"):
            variance_estimate([0.1, 0.2, 0.3], [0.5, 0.5])
        with pytest.raises(WeightsError, match=r"sum to 0\.9"):
            variance_estimate([0.1, 0.2], [0.5, 0.4])
        with pytest.raises(WeightsError, match="not negative"):
            variance_estimate([0.1, 0.2], [1.5, -0.5])


class TestWidths:
    def test_students_interval(self) -> None:
        said = GENERATOR.random((7, 40, 3))
        found = uncertainty(list(said))
        top = said.mean(axis=0).argmax(axis=1)
        assert np.array_equal(found.labels, top)
        values = said[:, np.arange(40), top]
        expected = 2 * student.ppf(0.975, 6) * values.std(axis=0, ddof=1) / math.sqrt(7)
        assert found.widths == pytest.approx(expected, rel=1e-12)
        assert found.scores == pytest.approx(values.mean(axis=0), rel=1e-12)
        assert found.mean_width == pytest.approx(expected.mean(), rel=1e-12)

    def test_covers_as_often_as_it_says(self) -> None:
        """Independent normal scores: the interval around the mean holds the true score in 95 of 100 cases."""
        said = 0.9 + 0.01 * GENERATOR.standard_normal((4, 20_000, 1))
        found = uncertainty(said)
        covered = np.mean(np.abs(found.scores - 0.9) <= found.widths / 2)
        assert covered == pytest.approx(0.95, abs=5 * math.sqrt(0.95 * 0.05 / 20_000))

    def test_all_weight_on_the_last_is_about_the_last(self) -> None:
        said = GENERATOR.random((5, 30, 4))
        found = uncertainty(said, [0.0, 0.0, 0.0, 0.0, 1.0])
        assert np.array_equal(found.labels, said[-1].argmax(axis=1))
        assert found.scores == pytest.approx(said[-1].max(axis=1))
        spread = said[:, np.arange(30), found.labels].std(axis=0, ddof=1)
        assert found.widths == pytest.approx(2 * student.ppf(0.975, 4) * spread, rel=1e-12)

    def test_equal_models_have_no_width_and_ties_go_to_the_smallest_label(self) -> None:
        found = uncertainty([np.array([[0.5, 0.5], [0.2, 0.8]])] * 3)
        assert found.widths.tolist() == [0.0, 0.0]
        assert found.labels.tolist() == [0, 1]

    def test_models_are_read_one_at_a_time(self) -> None:
        read = []

        def models() -> object:
            for index in range(3):
                read.append(index)
                yield np.full((2, 2), index / 10)

        assert uncertainty(models()).models == 3  # type: ignore[arg-type]
        assert read == [0, 1, 2]

    @given(st.floats(0.01, 0.98), st.integers(2, 40))
    def test_more_confidence_is_wider(self, confidence: float, models: int) -> None:
        assert interval_widths(1.0, models, confidence) < interval_widths(1.0, models, confidence + 0.01)

    def test_refusals(self) -> None:
        good = np.full((3, 2), 0.5)
        with pytest.raises(EvaluationError, match="at least two models; got 1"):
            uncertainty([good])
        with pytest.raises(EvaluationError, match="at least two models; got 0"):
            uncertainty([])
        with pytest.raises(EvaluationError, match=r"model 2 has scores of shape \(3, 3\), the first of shape \(3, 2\)"):
            uncertainty([good, np.full((3, 3), 0.3)])
        with pytest.raises(EvaluationError, match=r"shape \(3,\); they must be examples"):
            uncertainty([good, good[:, 0]])
        with pytest.raises(EvaluationError, match="model 2 has scores that are not finite"):
            uncertainty([good, good * np.nan])
        with pytest.raises(WeightsError, match="more models than the 2 weights"):
            uncertainty([good] * 3, [0.5, 0.5])
        with pytest.raises(WeightsError, match="3 weights for 2 models"):
            uncertainty([good] * 2, [0.5, 0.25, 0.25])
        with pytest.raises(EvaluationError, match="confidence is 1"):
            uncertainty([good] * 2, confidence=1.0)


class TestChosenSteps:
    def test_all_last_burn_in_and_separation(self) -> None:
        every_ten = range(10, 101, 10)
        assert chosen_steps(every_ten) == list(every_ten)
        assert chosen_steps(every_ten, last=3) == [80, 90, 100]
        assert chosen_steps(every_ten, burn_in=75) == [80, 90, 100]
        assert chosen_steps(every_ten, separation=30) == [10, 40, 70, 100]
        assert chosen_steps(every_ten, burn_in=20, separation=40) == [20, 60, 100]
        assert chosen_steps(every_ten, last=2, separation=30) == [70, 100]

    @given(
        st.integers(2, 300),
        st.integers(1, 20),
        st.none() | st.integers(0, 200),
        st.none() | st.integers(1, 5),
        st.none() | st.integers(2, 9),
    )
    def test_what_is_chosen_keeps_its_promises(
        self, count: int, apart: int, burn_in: int | None, times: int | None, last: int | None
    ) -> None:
        steps = [apart * (index + 1) for index in range(count)]
        separation = None if times is None else apart * times
        there = range(steps[-1], max(burn_in or 0, steps[0]) - 1, -(separation or apart))
        if len(there) < (last or 2):
            with pytest.raises(CheckpointError, match=r"longer than the run|at least two|there are only"):
                chosen_steps(steps, last=last, burn_in=burn_in, separation=separation)
            return
        chosen = chosen_steps(steps, last=last, burn_in=burn_in, separation=separation)
        assert chosen[-1] == steps[-1]
        assert set(chosen) <= set(steps)
        assert chosen[0] >= (burn_in or 0)
        assert all(later - earlier >= (separation or 1) for earlier, later in pairwise(chosen))
        assert last is None or len(chosen) == last

    def test_refusals(self) -> None:
        every_ten = range(10, 101, 10)
        with pytest.raises(CheckpointError, match="last is 1; it must be at least 2"):
            chosen_steps(every_ten, last=1)
        with pytest.raises(CheckpointError, match="burn-in of 101 steps is longer than the run, which ends at step 100"):
            chosen_steps(every_ten, burn_in=101)
        with pytest.raises(CheckpointError, match="at least two checkpoints; from step 95 to 100 there is only one"):
            chosen_steps(every_ten, burn_in=95)
        with pytest.raises(CheckpointError, match="separation of 15 steps needs the checkpoint of step 85, which is missing"):
            chosen_steps(every_ten, separation=15)
        with pytest.raises(CheckpointError, match="`last` is 11, but from step 0 to 100 there are only 10"):
            chosen_steps(every_ten, last=11)
        with pytest.raises(CheckpointError, match="separation is 0"):
            chosen_steps(every_ten, separation=0)
        with pytest.raises(CheckpointError, match="burn_in is -1"):
            chosen_steps(every_ten, burn_in=-1)
        with pytest.raises(CheckpointError, match="no checkpoints"):
            chosen_steps([])


class TestAbstention:
    @given(
        st.lists(
            st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]) | st.floats(0, 1), st.booleans()), min_size=1, max_size=30
        )
    )
    def test_against_brute_force(self, examples: list[tuple[float, bool]]) -> None:
        doubts, correct = zip(*examples, strict=True)
        curve = abstention_curve(doubts, correct)
        assert curve.thresholds.tolist() == sorted(set(doubts))
        for threshold, coverage, accuracy in zip(curve.thresholds, curve.coverage, curve.accuracy, strict=True):
            answered = [right for doubt, right in examples if doubt <= threshold]
            assert coverage == len(answered) / len(examples)
            assert accuracy == pytest.approx(sum(answered) / len(answered), rel=1e-12)
        assert curve.coverage[-1] == 1

    def test_at_a_share_and_thinned(self) -> None:
        curve = abstention_curve(np.arange(1000.0), np.arange(1000) < 500)
        assert curve.at(0.5) == 1.0
        assert curve.at(1.0) == 0.5
        assert curve.at(0.001) == 1.0
        thin = curve.thinned(10)
        assert thin.coverage.tolist() == pytest.approx([0.1 * share for share in range(1, 11)])
        assert thin.accuracy[-1] == 0.5

    def test_refusals(self) -> None:
        with pytest.raises(EvaluationError, match=r"one doubt and one verdict.*\(2,\) and \(3,\)"):
            abstention_curve([0.1, 0.2], [True, False, True])
        with pytest.raises(EvaluationError, match="one doubt"):
            abstention_curve([], [])
        with pytest.raises(EvaluationError, match="not finite"):
            abstention_curve([math.nan], [True])


class TestPictures:
    def test_histogram_counts_everything_once(self) -> None:
        widths = GENERATOR.random(500) ** 2
        line = histogram_line(widths, "widths")
        edges, heights = line.x[::2], [y or 0.0 for y in line.y[1:-1:2]]
        assert sum(heights) == pytest.approx(1)
        assert edges[0] == widths.min()
        assert edges[-1] == widths.max()
        for low, high, share in zip(edges, edges[1:-1], heights, strict=False):
            assert share == pytest.approx(np.mean((widths >= low) & (widths < high)))

    def test_both_can_be_drawn(self) -> None:
        curve = abstention_curve(GENERATOR.random(300), GENERATOR.random(300) < 0.8)
        for document in (
            widths_picture([histogram_line(np.zeros(5), "no width")], "a run", 0.95, "heuristic"),
            abstention_picture({"by width": curve}, "a run"),
        ):
            assert render(document, ".png").startswith(b"\x89PNG")
