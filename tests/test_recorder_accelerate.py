"""The recorder with what accelerate makes of Opacus' objects: looked through where the training is the same, else refused."""

from __future__ import annotations

from typing import Any

import pytest

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate import Accelerator, DataLoaderConfiguration  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from dpmerge.training import opacus_history, record, recorder_randomness  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, examples, network, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)  # the same hash, made cheap
    as_a_new_process()


def prepared(run: Private, **options: Any) -> tuple[Private, Any]:
    """The training with the objects that accelerate returns."""
    accelerator = Accelerator(cpu=True, **options)
    module, optimizer, loader = accelerator.prepare(run.module, run.optimizer, run.loader)
    return Private(run.engine, module, optimizer, loader, run.criterion), accelerator


def train(run: Private, accelerator: Any, epochs: int = 1) -> None:
    for _ in range(epochs):
        for inputs, labels in run.loader:
            with accelerator.accumulate(run.module):
                run.optimizer.zero_grad()
                accelerator.backward(run.criterion(run.module(inputs), labels))
                run.optimizer.step()


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_prepared_training_is_recorded_as_it_is(mode: str, tmp_path: Any) -> None:
    run, accelerator = prepared(private(mode, batch=2, count=20))  # a seventh of the batches is empty
    recorder = record(*run.parts, dataset="d")
    train(run, accelerator, epochs=3)
    held = recorder.record().mechanism
    assert isinstance(held, DpSgd)
    assert (held.optimizer, held.sampling.scheme, held.sampling.rate, recorder.steps) == ("sgd", "poisson", 0.1, 30)
    assert opacus_history(recorder.record()) == run.engine.accountant.history
    assert sorted(path.name for path in recorder.save(tmp_path / "a").iterdir()) == ["model.safetensors", "record.json"]


def test_what_was_prepared_before_make_private_is_plain_too() -> None:
    accelerator = Accelerator(cpu=True)
    run = private(
        build=lambda: accelerator.prepare(network()),
        optimizer=lambda parameters: accelerator.prepare(torch.optim.SGD(parameters, lr=0.1)),
        loader=accelerator.prepare(DataLoader(examples(), batch_size=5)),
    )
    recorder = record(*run.parts, dataset="d")
    train(run, accelerator)
    held = recorder.record().mechanism
    assert isinstance(held, DpSgd) and (held.optimizer, held.steps, held.sampling.rate) == ("sgd", 12, 1 / 12)
    run.optimizer.original_optimizer.scaler = object()
    with pytest.raises(TrainingError, match="scales the loss"):
        train(run, accelerator)


def test_batches_are_those_of_the_poisson_sampler() -> None:
    torch.manual_seed(5)
    plain = private()
    accelerated, _ = prepared(private())
    record(*accelerated.parts, dataset="d")
    batches = []
    for loader in (plain.loader, accelerated.loader):
        torch.manual_seed(6)  # nothing else draws while the loaders are read
        batches.append([inputs for inputs, _ in loader])
    assert len(batches[0]) == len(batches[1]) == 12
    assert all(torch.equal(one, other) for one, other in zip(*batches, strict=True))


def test_accelerates_own_clip_changes_nothing_where_opacus_makes_the_gradient() -> None:
    torch.manual_seed(3)
    run, accelerator = prepared(private(sigma=0.0))
    start = [parameter.detach().clone() for parameter in run.module.parameters()]
    record(*run.parts, dataset="d")
    inputs, labels = next(iter(run.loader))
    run.optimizer.zero_grad()
    accelerator.backward(run.criterion(run.module(inputs), labels))
    accelerator.clip_grad_norm_(run.module.parameters(), 1e-4)
    run.optimizer.step()
    moved = [(one - two).norm() for one, two in zip(run.module.parameters(), start, strict=True)]
    assert torch.stack(moved).norm() > 0.1 * 1e-4 * 10  # ten times as far as the clip would let it


def test_in_ghost_mode_it_is_refused() -> None:
    run, accelerator = prepared(private("ghost"))
    record(*run.parts, dataset="d")
    inputs, labels = next(iter(run.loader))
    run.optimizer.zero_grad()
    accelerator.backward(run.criterion(run.module(inputs), labels))
    accelerator.clip_grad_norm_(run.module.parameters(), 1e-4)
    with pytest.raises(TrainingError, match="changed between backward and step"):
        run.optimizer.step()


@pytest.mark.filterwarnings("ignore:gradients were clipped to 1.01975 at most")
def test_bfloat16_is_recorded_with_the_clip_that_is_certain() -> None:
    run, accelerator = prepared(private(sigma=2.0), mixed_precision="bf16")
    recorder = record(*run.parts, dataset="d")
    largest = 0.0
    inner, original = run.optimizer.optimizer, run.optimizer.optimizer.clip_and_accumulate

    def measured() -> None:
        nonlocal largest
        exact = [one.double().flatten(1) for one in inner.grad_samples]
        original()
        if len(exact[0]):
            norms = torch.stack([one.flatten(1).norm(dim=1) for one in inner.grad_samples], 1).norm(dim=1)
            factors = (inner.max_grad_norm / (norms + 1e-6)).clamp(max=1).double()
            largest = max(largest, float((torch.cat(exact, 1).norm(dim=1) * factors).max()))

    inner.clip_and_accumulate = measured
    train(run, accelerator, epochs=10)
    held = recorder.record().mechanism
    assert isinstance(held, DpSgd)
    (phase,) = held.settings()
    assert 1 < largest <= phase.clip < 1.02  # Opacus' clip of 1 does not hold
    assert phase.noise_multiplier * phase.clip <= 2.0
    assert phase.noise_multiplier * phase.clip == pytest.approx(2.0, rel=1e-12)


def test_bfloat16_in_ghost_mode_and_bfloat16_parameters_are_refused() -> None:
    run, accelerator = prepared(private("ghost"), mixed_precision="bf16")
    record(*run.parts, dataset="d")
    with pytest.raises(TrainingError, match="ghost mode under autocast"):
        train(run, accelerator)
    half = private(build=lambda: nn.Linear(4, 3).to(torch.bfloat16))
    with pytest.raises(TrainingError, match="trained parameters are torch"):
        record(*half.parts, dataset="d")


def test_float16_is_refused() -> None:
    run = private()
    record(*run.parts, dataset="d")
    inputs, labels = examples(3).tensors
    with torch.autocast("cpu", dtype=torch.float16):
        loss = run.criterion(run.module(inputs).float(), labels)
    loss.backward()
    with pytest.raises(TrainingError, match="in float16"):
        run.optimizer.step()


def test_what_no_record_can_say_is_refused() -> None:
    run, _ = prepared(private(), gradient_accumulation_steps=4)
    with pytest.raises(TrainingError, match="accumulates gradients over 4 batches"):
        record(*run.parts, dataset="d")
    as_a_new_process()
    run, _ = prepared(private())
    run.optimizer.scaler = object()
    with pytest.raises(TrainingError, match="scales the loss"):
        record(*run.parts, dataset="d")
    dispatching = DataLoaderConfiguration(dispatch_batches=True)
    run, _ = prepared(private(), dataloader_config=dispatching)
    with pytest.raises(TrainingError, match="DataLoaderDispatcher"):
        record(*run.parts, dataset="d")
    shuffled = private(poisson_sampling=False, loader=DataLoader(examples(), batch_size=5, shuffle=True))
    run, _ = prepared(shuffled, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    with pytest.raises(TrainingError, match="SeedableRandomSampler"):
        record(*run.parts, dataset="d")


def test_skipped_batches_are_refused() -> None:
    run, accelerator = prepared(private())
    later = Private(run.engine, run.module, run.optimizer, accelerator.skip_first_batches(run.loader, 2), run.criterion)
    with pytest.raises(TrainingError, match="SkipBatchSampler"):
        record(*later.parts, dataset="d")
