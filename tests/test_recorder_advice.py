"""What the recorder says when it is cheap to change, and runs that start alike with independent noise."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from dpmerge.records import DpSgd  # noqa: E402
from dpmerge.training import RecordingWarning, record, recorder_randomness, same_start  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, examples, network, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)  # the same hash, made cheap
    as_a_new_process()
    torch.seed()


def said(run: Private, **options: Any) -> list[str]:
    """The advice at the beginning; one warning holds all of it, and there is none without."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recorder = record(*run.parts, dataset="d", **options)
    texts = [str(one.message) for one in caught if issubclass(one.category, RecordingWarning)]
    assert len(texts) == bool(recorder.advice)
    assert all(point in texts[0] for point in recorder.advice)
    assert all(one.filename == __file__ for one in caught if issubclass(one.category, RecordingWarning))
    return recorder.advice


def test_a_good_set_up_gives_no_warning() -> None:
    for mode in ("hooks", "functorch", "ew", "ghost"):
        assert said(private(mode), delta=1e-5) == []
    whole = private(loader=DataLoader(examples(), batch_size=60), poisson_sampling=False)
    assert said(whole) == []


def test_seeds() -> None:
    torch.manual_seed(7)
    (point,) = said(private())
    assert "generator of noise and batches has a seed" in point and "same_start" in point
    torch.seed()
    (point,) = said(private(noise_generator=torch.Generator()))  # not seeded, and always the same
    assert "generator of noise has a seed" in point
    (point,) = said(private(loader=DataLoader(examples(), batch_size=5, generator=torch.Generator().manual_seed(2**31))))
    assert "generator of batches has a seed" in point
    fresh = torch.Generator()
    fresh.seed()
    assert said(private(noise_generator=fresh)) == []


def test_shuffled_batches() -> None:
    (point,) = said(private(poisson_sampling=False))
    assert "batches are shuffled" in point and "Poisson" in point


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), "sgd(momentum=0.9)"),
        (lambda parameters: torch.optim.Adam(parameters, lr=0.1), "adam"),
    ],
)
def test_optimizers_that_rule_out_averages(optimizer: Any, name: str) -> None:
    (point,) = said(private(optimizer=optimizer))
    assert f"the optimizer is {name}: the theorems transport and hidden-run" in point
    decayed = private(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1))
    assert said(decayed) == []


def test_running_statistics() -> None:

    run = private()
    run.module._module.add_module("norm", nn.BatchNorm1d(3, affine=False))  # Opacus refuses it only when asked
    (point,) = said(run)
    assert "'norm' changes without noise" in point
    run = private()
    run.module._module.add_module("norm", nn.BatchNorm1d(3, affine=False).eval())
    assert said(run) == []


def test_other_buffers_are_named_when_the_first_steps_change_them() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 3)
            self.seen: Any
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, inputs: Any) -> Any:
            self.seen += len(inputs) + 1
            return self.body(inputs)

    run = private(build=Counting)
    recorder = record(*run.parts, dataset="d")
    assert recorder.advice == []
    with pytest.warns(RecordingWarning, match="'seen' changes without noise") as caught:
        run.train(epochs=2)
    assert len([one for one in caught if one.category is RecordingWarning]) == len(recorder.advice) == 1


@pytest.mark.parametrize(("delta", "points"), [(1e-5, 0), (1 / 61, 0), (1 / 60, 1), (0.1, 1)])
def test_delta(delta: float, points: int) -> None:
    found = said(private(count=60), delta=delta)
    assert len(found) == points and all("not below 1/n (n = 60)" in point for point in found)


def test_points_come_together() -> None:
    torch.manual_seed(1)
    run = private(poisson_sampling=False, optimizer=lambda parameters: torch.optim.Adam(parameters))
    assert len(said(run, delta=0.5)) == 4


def test_runs_that_start_alike_have_independent_noise() -> None:
    def trained() -> tuple[Any, DpSgd, Any]:
        module = same_start(network, seed=5)
        start = {name: value.clone() for name, value in module.state_dict().items()}
        run = private(build=lambda: module)
        recorder = record(*run.parts, dataset="d")
        assert recorder.advice == []
        run.train()
        held = recorder.record().mechanism
        assert isinstance(held, DpSgd)
        return start, held, module.state_dict()

    (start, first, end), (other_start, second, other_end) = trained(), trained()
    assert all(torch.equal(start[name], other_start[name]) for name in start)
    assert not any(torch.equal(end[name], other_end[name]) for name in end)
    assert first.noise_fingerprint != second.noise_fingerprint and first.sampler_fingerprint != second.sampler_fingerprint
    torch.manual_seed(5)
    assert torch.equal(network()[0].weight, start["0.weight"])


def test_a_module_that_cannot_be_built_leaves_no_seed() -> None:
    def fails() -> None:
        raise RuntimeError("no module")

    with pytest.raises(RuntimeError, match="no module"):
        same_start(fails, seed=5)
    assert torch.initial_seed() != 5
