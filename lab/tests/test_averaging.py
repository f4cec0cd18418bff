"""Training on aggregates: the recursions of Recycling Scraps step by step, in numpy and in torch loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpmerge.errors import TrainingError
from dpmerge.planning import Averaging
from dpmerge_lab.training.averaging import MovingAverage, TailMean, TrainingOn

ITERATES = st.lists(st.floats(-100, 100), min_size=1, max_size=12)


@given(ITERATES, st.integers(1, 15))
def test_tail_means_are_the_mean_of_the_last(values: list[float], last: int) -> None:
    update = TailMean(last).begin()
    for t in range(len(values)):
        said = update(np.array([values[t]]))
        assert said == pytest.approx(np.mean(values[max(0, t - last + 1) : t + 1]), abs=1e-9)


@given(ITERATES, st.floats(0.01, 1))
def test_both_conventions_of_a_moving_average_are_each_others_mirror(values: list[float], weight: float) -> None:
    new, old = MovingAverage(new_weight=weight).begin(), MovingAverage(decay=1 - weight).begin()
    for value in values:
        assert new(value) == pytest.approx(old(value), abs=1e-6)


def test_moving_averages_step_by_step() -> None:
    average = MovingAverage(new_weight=0.25).begin()
    assert [average(value) for value in (0.0, 1.0, 1.0)] == [0.0, 0.25, 0.4375]
    warmed = MovingAverage(decay=0.99, warm_up=True).begin()
    assert warmed(4.0) == 4.0
    assert warmed(0.0) == pytest.approx(4.0 * 2 / 11)  # t = 1: a decay of 2/11
    grown = MovingAverage(decay=0.1, warm_up=True).begin()  # less than 2/11 from the start
    assert [grown(value) for value in (0.0, 1.0)] == [0.0, 0.9]


@given(ITERATES, st.floats(0.01, 0.99), st.booleans(), st.booleans())
def test_moving_averages_have_the_weights_of_averages_of_checkpoints(
    values: list[float], stated: float, new: bool, warm_up: bool
) -> None:
    chosen = {"new_weight": stated} if new else {"decay": stated}
    running = MovingAverage(**chosen, warm_up=warm_up).begin()
    for value in values:
        said = running(value)
    weights = Averaging(rule="ema", checkpoints=len(values), warm_up=warm_up, **chosen).weights()
    assert said == pytest.approx(np.dot(weights, values), abs=1e-9)


def test_training_starts_from_the_aggregate_after_its_step() -> None:
    training = TrainingOn(TailMean(2), start=2)
    run = training.begin(0.0)
    assert [run.next_start(iterate) for iterate in (2.0, 4.0, 10.0)] == [2.0, 3.0, 7.0]
    assert run.current == 7.0
    assert training.begin(1.0).current == 1.0  # another run knows nothing of the first
    assert training.optimizer == "sgd from the mean of the last 2 iterates after step 2"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TailMean(0),
        lambda: MovingAverage(new_weight=0.0),
        lambda: MovingAverage(decay=1.0),
        lambda: MovingAverage(decay=0.5, new_weight=0.5),
        lambda: MovingAverage(),
        lambda: TrainingOn(TailMean(1), -1),
    ],
)
def test_refusals(wrong: Any) -> None:
    with pytest.raises(TrainingError):
        wrong()


@pytest.mark.parametrize("start", [0, 3])
def test_a_torch_loop_takes_the_same_path_as_the_recursion(start: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from dpmerge_lab.training.averaging_torch import AggregatedTraining

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
    training = TrainingOn(MovingAverage(new_weight=0.6), start)
    by_hand, loop = training.begin(flat()), AggregatedTraining(optimizer, training)
    for _ in range(6):
        gradient()
        moved = flat() - 0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
        expected = by_hand.next_start(moved)
        optimizer.step()
        assert torch.allclose(flat(), expected, atol=1e-6)
    before = flat()
    with loop.at_aggregate():
        assert torch.allclose(flat(), by_hand.current, atol=1e-6)
    assert torch.equal(flat(), before)
    assert int(model.count) == 7


@pytest.mark.parametrize("decay", [None, 0.7])
def test_averages_beside_a_model_are_torchs_own(decay: float | None) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from dpmerge_lab.training.averaging_torch import average_beside, flat

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    model.register_buffer("count", torch.tensor(0))
    beside = average_beside(model, decay)
    iterates = []
    for step in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
            model.count.fill_(step)
        iterates.append(flat(list(model.parameters())).numpy())
        beside.update_parameters(model)
    update = (MovingAverage(decay=decay) if decay is not None else TailMean(5)).begin()
    expected = [update(iterate) for iterate in iterates][-1]
    np.testing.assert_allclose(flat(list(beside.module.parameters())).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert int(beside.state_dict()["module.count"]) == 4  # as the model has it now
    with pytest.raises(TrainingError):
        average_beside(model, 1.0)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_opacus_steps_that_only_accumulate_are_no_steps() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    from dpmerge_lab.training.averaging_torch import AggregatedTraining

    torch.manual_seed(0)
    model = GradSampleModule(torch.nn.Linear(3, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=4)
    loop = AggregatedTraining(optimizer, TrainingOn(TailMean(2), 0))
    seen = []
    for skipped in (True, False, True, False):
        optimizer.signal_skip_step(do_skip=skipped)
        optimizer.zero_grad()
        (model(torch.randn(4, 3)) ** 2).mean().backward()
        optimizer.step()
        with loop.at_aggregate():
            seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[2], seen[3])


@pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing", "ignore:Secure RNG turned off", "ignore:this training can be"
)
def test_the_recorder_sees_that_training_on_aggregates_is_no_plain_sgd() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("opacus", reason="Opacus is not installed")
    from dpmerge.training import record
    from dpmerge_lab.training.averaging_torch import AggregatedTraining
    from tests.opacus_builders import private

    made = private()
    recorder = record(*made.parts, dataset="d")
    AggregatedTraining(made.optimizer, TrainingOn(TailMean(2), 0))
    made.train()
    mechanism = recorder.record().mechanism
    assert mechanism.kind == "dp-sgd" and mechanism.optimizer == "sgd(step_hooks=yes)"
