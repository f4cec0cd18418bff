"""Training on aggregates: the recursions of Recycling Scraps step by step, in numpy and in torch loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmerge.errors import TrainingError
from dpmerge.training.averaging import MovingAverage, TailMean, TrainingOn, new_weight

ITERATES = st.lists(st.floats(-100, 100), min_size=1, max_size=12)


@given(ITERATES, st.integers(1, 15))
def test_tail_means_are_the_mean_of_the_last(values: list[float], last: int) -> None:
    mean = TailMean(last)
    for t in range(len(values)):
        said = mean.update(np.array([values[t]]))
        assert said == pytest.approx(np.mean(values[max(0, t - last + 1) : t + 1]), abs=1e-9)


@given(ITERATES, st.floats(0.01, 1))
def test_both_conventions_of_a_moving_average_are_each_others_mirror(values: list[float], weight: float) -> None:
    new, old = MovingAverage(weight, "new"), MovingAverage(1 - weight, "old")
    for value in values:
        assert new.update(value) == pytest.approx(old.update(value), abs=1e-6)


def test_moving_averages_step_by_step() -> None:
    average = MovingAverage(0.25, "new")
    assert [average.update(value) for value in (0.0, 1.0, 1.0)] == [0.0, 0.25, 0.4375]
    warmed = MovingAverage(0.99, "old", warmup=True)
    assert warmed.update(4.0) == 4.0
    assert warmed.update(0.0) == pytest.approx(4.0 * 2 / 11)  # t = 1: a decay of 2/11
    assert new_weight(0.1, "old", 1) == pytest.approx(0.9)  # grown already


def test_training_starts_from_the_aggregate_after_its_step() -> None:
    training = TrainingOn(TailMean(2), start=2)
    starts = [training.next_start(step, float(iterate)) for step, iterate in enumerate((0, 2, 4, 10))]
    assert starts == [0.0, 2.0, 3.0, 7.0]
    assert training.current == 7.0
    assert training.optimizer == "sgd from the mean of the last 2 iterates after step 2"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TailMean(0),
        lambda: MovingAverage(0.0, "new"),
        lambda: MovingAverage(1.5, "old"),
        lambda: TrainingOn(TailMean(1), -1),
    ],
)
def test_refusals(wrong: Any) -> None:
    with pytest.raises(TrainingError):
        wrong()


@pytest.mark.parametrize("start", [0, 3])
def test_a_torch_loop_takes_the_same_path_as_the_recursion(start: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from dpmerge.training.averaging_torch import MARK, AggregatedTraining

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    model.register_buffer("count", torch.tensor(7))
    target = torch.randn(8, 3)

    def gradient() -> None:
        model.zero_grad()
        (model(target) ** 2).mean().backward()

    def flat() -> Any:
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_hand = TrainingOn(MovingAverage(0.6, "new"), start)
    expected = by_hand.next_start(0, flat())
    loop = AggregatedTraining(optimizer, TrainingOn(MovingAverage(0.6, "new"), start))
    assert getattr(optimizer, MARK).start == start
    for step in range(1, 7):
        gradient()
        moved = flat() - 0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
        expected = by_hand.next_start(step, moved)
        optimizer.step()
        assert torch.allclose(flat(), expected, atol=1e-6)
    before = flat()
    with loop.at_aggregate():
        assert torch.allclose(flat(), by_hand.current, atol=1e-6)
    assert torch.equal(flat(), before)
    assert int(model.count) == 7


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_opacus_steps_that_only_accumulate_are_no_steps() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from dpmerge.training.averaging_torch import AggregatedTraining

    torch.manual_seed(0)
    model = GradSampleModule(torch.nn.Linear(3, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=4)
    training = TrainingOn(TailMean(2), 0)
    AggregatedTraining(optimizer, training)
    seen = []
    for skipped in (True, False, True, False):
        optimizer.signal_skip_step(do_skip=skipped)
        optimizer.zero_grad()
        (model(torch.randn(4, 3)) ** 2).mean().backward()
        optimizer.step()
        seen.append(training.current.clone())
    assert torch.equal(seen[0] * 0 + seen[1], seen[2])
    assert not torch.equal(seen[2], seen[3])
