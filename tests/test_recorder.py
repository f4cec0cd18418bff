"""The recorder against what Opacus does: steps, settings, sampling, and every refusal."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.errors import CheckpointError, DependentRuns, PortfolioError, RecordError, TrainingError
from dpmerge.records import DpSgd, FullPhase, Model, Phase, Portfolio, Record
from dpmerge.rules import Joint

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from opacus.accountants import PRVAccountant, RDPAccountant  # noqa: E402
from opacus.optimizers import adaclipoptimizer  # noqa: E402
from opacus.schedulers import ExponentialNoise, StepGradClip, StepNoise  # noqa: E402
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim import SGD  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler  # noqa: E402

from dpmerge.training import opacus_history, record, recorder_randomness  # noqa: E402
from dpmerge.training.recorder_batches import Batches  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, examples, network, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]
MODES = ["hooks", "functorch", "ghost"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)  # the same hash, made cheap
    as_a_new_process()


def mechanism(recorder: Any) -> DpSgd:
    found = recorder.record().mechanism
    assert isinstance(found, DpSgd)
    return found


def settings(recorder: Any) -> list[FullPhase]:
    return mechanism(recorder).settings()


def epsilon(history: Any, accountant: str = "rdp") -> float:
    fresh = {"rdp": RDPAccountant, "prv": PRVAccountant}[accountant]()
    fresh.history = history
    return float(fresh.get_epsilon(1e-5, eps_error=0.5))


# --- what is followed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "accountant"), [*((mode, "rdp") for mode in MODES), ("hooks", "prv")])
def test_a_record_gives_opacus_its_own_epsilon_back(mode: str, accountant: str) -> None:
    run = private(mode, accountant=accountant)
    recorder = record(*run.parts, dataset="made-up")
    noise = StepNoise(run.optimizer, step_size=7, gamma=0.9)
    rate = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: 1 / (1 + step // 5))
    clip = [] if mode == "ghost" else [StepGradClip(run.optimizer, step_size=9, gamma=0.5)]
    run.train(noise, rate, *clip, epochs=2)
    held = Record.parse(recorder.record().model_dump_json(by_alias=True))
    history = opacus_history(held)
    assert history == run.engine.accountant.history and len(history) == 4
    live = run.engine.accountant.get_epsilon(1e-5, eps_error=0.5)  # of the loss distribution's grid; the default is slow
    assert epsilon(history, accountant) == pytest.approx(live, abs=1e-6) and live > 0.1
    assert isinstance(held.mechanism, DpSgd)
    by_step = [phase for phase in held.mechanism.settings() for _ in range(phase.steps)]
    assert len(by_step) == recorder.steps == 24
    for step, phase in enumerate(by_step):
        assert phase.noise_multiplier == pytest.approx(0.9 ** (step // 7), rel=1e-12)
        assert phase.learning_rate == pytest.approx(0.1 / (1 + step // 5), rel=1e-12)
        assert phase.clip == (1.0 if mode == "ghost" else 0.5 ** (step // 9))


@pytest.mark.parametrize("mode", MODES)
def test_an_ordinary_run(mode: str) -> None:
    run = private(mode, sigma=1.3, clip=0.7)
    recorder = record(*run.parts, dataset="made-up", run="r1", smoothness=2.0, convex="glm")
    run.train()
    held = recorder.record()
    assert (held.dataset, held.adjacency, held.source) == ("made-up", "add-remove", "recorded")
    found = mechanism(recorder)
    assert (found.run, found.optimizer, found.clipping, found.smoothness, found.convex) == ("r1", "sgd", "flat", 2.0, "glm")
    assert (found.sampling.scheme, found.sampling.rate, found.expected_batch) == ("poisson", 1 / 12, 5.0)
    assert (found.noise_multiplier, found.clip, found.phases) == (1.3, 0.7, [Phase(steps=12, learning_rate=0.1)])


def test_expanded_weights() -> None:
    run = private("ew", batch=30)
    recorder = record(*run.parts, dataset="d")
    run.train()
    assert opacus_history(recorder.record()) == run.engine.accountant.history == [(1.0, 0.5, 2)]


def by_hand(run: Private, inputs: Any, labels: Any, phase: FullPhase) -> list[Any]:
    """The parameters after one step without noise, as the record describes it."""
    inner, parameters = run.module._module, list(run.module._module.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for x, y in zip(inputs, labels, strict=True):
        plain = [parameter.detach().clone().requires_grad_() for parameter in parameters]
        names = [name for name, _ in inner.named_parameters()]
        output = nn.functional.linear(x[None], plain[0], plain[1])
        output = nn.functional.linear(torch.relu(output), plain[2], plain[3])
        assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
        gradient = torch.autograd.grad(nn.functional.cross_entropy(output, y[None]), plain)
        norm = math.sqrt(sum(float((part**2).sum()) for part in gradient))
        total = [whole + part * min(1.0, phase.clip / norm) for whole, part in zip(total, gradient, strict=True)]
    scale, kept = phase.learning_rate / phase.expected_batch, 1 - phase.learning_rate * phase.weight_decay
    return [kept * parameter.detach() - scale * part for parameter, part in zip(parameters, total, strict=True)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_the_recorded_step_is_the_step_that_was_made(mode: str, reduction: str, decay: float) -> None:
    decayed = functools.partial(SGD, lr=0.1, weight_decay=decay)
    run = private(mode, sigma=0.0, clip=0.3, loss_reduction=reduction, optimizer=decayed)
    recorder = record(*run.parts, dataset="d")
    for inputs, labels in run.loader:
        before = Private(run.engine, run.module, run.optimizer, run.loader, run.criterion)
        expected = by_hand(before, inputs, labels, recorder.next_phase())
        run.step(inputs, labels)
        for parameter, value in zip(run.module._module.parameters(), expected, strict=True):
            assert torch.allclose(parameter, value, atol=1e-5)
    (phase,) = settings(recorder)
    # The sum is written as an average too: theorems about averages take expected_batch for the size of a batch.
    assert phase.expected_batch == 5.0
    assert phase.learning_rate == pytest.approx(0.1 if reduction == "mean" else 0.5)
    assert phase.learning_rate * phase.weight_decay == pytest.approx(0.1 * decay)
    assert mechanism(recorder).optimizer == "sgd"


@pytest.mark.parametrize("mode", MODES)
def test_the_recorded_noise_is_the_noise_that_was_added(mode: str) -> None:
    run = private(mode, batch=1, sigma=1.5, clip=2.0, build=lambda: nn.Sequential(nn.Linear(4, 2000), nn.Linear(2000, 3)))
    recorder = record(*run.parts, dataset="d")
    before = run.module._module[0].weight.detach().clone()
    run.step(*next(batch for batch in run.loader if not len(batch[0])))
    (phase,) = settings(recorder)
    said = phase.learning_rate / phase.expected_batch * phase.noise_multiplier * phase.clip
    moved = float((run.module._module[0].weight.detach() - before).std())
    assert moved == pytest.approx(said, rel=0.05)  # 8,000 numbers: 0.05 is six of its deviations


def test_ghost_mode_clips_by_the_module_and_scales_noise_by_the_optimizer() -> None:
    """Opacus' schedulers of the clip reach the optimizer alone: less noise than its accountant counts. The record says so."""
    run = private("ghost", sigma=1.0, clip=1.0)
    recorder = record(*run.parts, dataset="d")
    scheduler = StepGradClip(run.optimizer, step_size=6, gamma=0.5)
    with pytest.warns(UserWarning, match=r"clipped to 1, but the noise is scaled by 0\.5"):
        run.train(scheduler)
    first, second = settings(recorder)
    assert (first.noise_multiplier, first.clip, first.steps) == (1.0, 1.0, 6)
    assert second.noise_multiplier == pytest.approx(0.5, rel=1e-12) and second.clip == 1.0 and second.steps == 6
    assert run.engine.accountant.history == [(1.0, 1 / 12, 12)]
    assert epsilon(opacus_history(recorder.record())) > 1.5 * epsilon(run.engine.accountant.history)


def test_the_rate_is_the_samplers_own() -> None:
    """For 93 batches Opacus' loader has length 92: it samples with 1/93 and accounts with 1/92."""
    run = private(batch=1, count=93)
    recorder = record(*run.parts, dataset="d")
    run.train()
    assert run.engine.accountant.history == [(1.0, 1 / 92, 92)]
    assert opacus_history(recorder.record()) == [(1.0, 1 / 93, 92)]
    odd = private(batch=7)  # 9 batches: neither B/N nor its expected size is what was asked for
    other = record(*odd.parts, dataset="d")
    odd.train()
    assert mechanism(other).sampling.rate == 1 / 9 and mechanism(other).expected_batch == 6.0


def test_small_rates_are_those_of_torchs_coins() -> None:
    coins = torch.arange(2**24, dtype=torch.float32) / 2**24
    for rate in (1e-5, 3e-7, 0.01, 0.5):
        run = private()
        run.loader.batch_sampler.sample_rate = rate
        recorded = Batches(run.loader).sampling().rate
        real = float((coins < rate).double().mean())
        assert recorded == real if rate < 1e-3 else (recorded == rate and real == pytest.approx(rate, rel=1e-4))
    sized = private()
    sized.loader.batch_sampler.sample_rate = 1.0
    assert Batches(sized.loader).sampling().scheme == "full-batch"


@pytest.mark.parametrize("mode", MODES)
def test_steps_on_empty_batches_count(mode: str) -> None:
    run = private(mode, batch=1)
    recorder = record(*run.parts, dataset="d")
    sizes = []
    for inputs, labels in run.loader:
        sizes.append(len(labels))
        run.step(inputs, labels)
    assert sizes.count(0) > 5  # about 22 of 60; fewer than 6 once in a million
    assert recorder.steps == 60
    assert opacus_history(recorder.record()) == run.engine.accountant.history == [(1.0, 1 / 60, 60)]


@pytest.mark.parametrize("mode", MODES)
def test_virtual_steps_are_not_steps(mode: str) -> None:
    run = private(mode, batch=20)
    recorder = record(*run.parts, dataset="d")
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer) as split:
        run.train(epochs=2, loader=split)
    assert recorder.steps == 6
    assert opacus_history(recorder.record()) == run.engine.accountant.history == [(1.0, 1 / 3, 6)]


def test_the_split_loader_may_be_recorded_itself() -> None:
    run = private(batch=20)
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer) as split:
        recorder = record(run.engine, run.module, run.optimizer, split, dataset="d")
        run.train(loader=split)
    assert recorder.steps == 3 and mechanism(recorder).sampling.rate == 1 / 3


def test_a_batch_whose_parts_were_clipped_differently_is_recorded_at_the_largest_clip() -> None:
    run = private(batch=30, sigma=1.0, clip=1.0)
    recorder = record(*run.parts, dataset="d")
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=4, optimizer=run.optimizer) as split:
        parts = iter(split)
        run.step(*next(parts))
        run.optimizer.max_grad_norm = 0.25
        with pytest.warns(UserWarning, match="clipped to 1, but"):
            run.train(loader=parts)
    first = settings(recorder)[0]
    assert first.clip == 1.0 and first.noise_multiplier == pytest.approx(0.25, rel=1e-12)


def test_settings_changed_by_hand_become_phases() -> None:
    run = private()
    recorder = record(*run.parts, dataset="d")
    run.train()
    run.optimizer.noise_multiplier, run.optimizer.max_grad_norm = 2.0, 0.5
    run.train()
    run.loader.batch_sampler.sample_rate, run.optimizer.expected_batch_size = 0.5, 30
    run.loader.batch_sampler.steps = 2
    run.train()
    found = mechanism(recorder)
    assert [phase.steps for phase in found.phases] == [12, 12, 2]
    assert found.phases[0].noise_multiplier is None and found.phases[1].noise_multiplier == 2.0
    last = settings(recorder)[-1]
    assert (last.sampling.rate, last.expected_batch, last.clip) == (0.5, 30.0, 0.5)


def test_another_loader_half_way() -> None:
    run = private()
    recorder = record(*run.parts, dataset="d")
    run.train()
    other = private(batch=20)
    recorder.switch_loader(other.loader)
    run.optimizer.expected_batch_size = 20
    run.train(loader=other.loader)
    assert [phase.sampling.rate for phase in settings(recorder)] == [1 / 12, 1 / 3]
    with pytest.raises(TrainingError, match="59 examples"):
        recorder.switch_loader(private(count=59).loader)


def test_a_loader_with_workers() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        run = private(loader=DataLoader(examples(), batch_size=2, num_workers=1))
        recorder = record(*run.parts, dataset="d")
        run.train()
    assert recorder.steps == 30


# --- optimizers and clipping ---------------------------------------------------------------------------------------------


class Mine(SGD):
    """Somebody's own optimizer, which may do anything."""


@pytest.mark.parametrize(
    "build, said",
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "sgd"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "sgd(momentum=0.9)"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "sgd(momentum=0.9, nesterov=True)"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01), "sgd"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, momentum=0.9), "sgd(momentum=0.9)"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, maximize=True), "sgd(maximize=True)"),
        (
            lambda p: torch.optim.SGD([{"params": [one], "weight_decay": 0.1 * i} for i, one in enumerate(p)], lr=0.1),
            "sgd(weight_decay=varying)",
        ),
        (lambda p: torch.optim.SGD(p, lr=0.1, dampening=0.5), "sgd(dampening=0.5)"),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "sgd(maximize=True)"),
        (lambda p: torch.optim.Adam(p, lr=0.1), "adam"),
        (lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01), "adam(weight_decay=0.01)"),
        (lambda p: torch.optim.AdamW(p, lr=0.1), "adamw(weight_decay=0.01)"),
        (lambda p: Mine(p, lr=0.1), "tests.test_recorder.Mine"),
        (
            lambda p: torch.optim.SGD([{"params": [one], "lr": 0.1 * i} for i, one in enumerate(p, 1)]),
            "sgd(learning_rates=different)",
        ),
    ],
)
def test_only_plain_sgd_is_sgd(build: Any, said: str) -> None:
    run = private(batch=30, optimizer=build)
    recorder = record(*run.parts, dataset="d")
    run.train()
    assert mechanism(recorder).optimizer == said
    assert settings(recorder)[0].learning_rate == pytest.approx(0.4 if "different" in said else 0.1)


def test_weight_decay_is_a_setting_of_the_phases() -> None:
    """Of plain SGD alone, and per step: other optimizers apply theirs in ways of their own."""
    run = private(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5))
    recorder = record(*run.parts, dataset="d")
    run.train()
    assert mechanism(recorder).phases == [Phase(steps=12, learning_rate=0.1, weight_decay=0.5)]
    for group in run.optimizer.param_groups:
        group["weight_decay"] = 0.0
    run.train()
    assert mechanism(recorder).phases[1] == Phase(steps=12, learning_rate=0.1)
    assert mechanism(recorder).optimizer == "sgd"
    for build in (torch.optim.AdamW, torch.optim.Adam, Mine):
        other = private(optimizer=functools.partial(build, lr=0.1, weight_decay=0.5))
        followed = record(*other.parts, dataset="d")
        other.train()
        assert settings(followed)[0].weight_decay == 0.0 and "weight_decay=0.5" in mechanism(followed).optimizer


def test_frozen_parameters_have_no_say_in_the_weight_decay() -> None:
    def build() -> Any:
        made = network()
        made[0].weight.requires_grad_(False)
        return made

    def optimizer(parameters: Any) -> Any:
        groups = [{"params": [one], "weight_decay": 0.5 if one.requires_grad else 0.1} for one in parameters]
        return torch.optim.SGD(groups, lr=0.1)

    run = private(build=build, optimizer=optimizer)
    recorder = record(*run.parts, dataset="d")
    run.train()
    assert mechanism(recorder).optimizer == "sgd" and settings(recorder)[0].weight_decay == 0.5


@pytest.mark.parametrize("decay", [-0.1, math.inf, math.nan])
def test_a_weight_decay_that_cannot_be_is_refused(decay: float) -> None:
    run = private()
    recorder = record(*run.parts, dataset="d")
    run.optimizer.param_groups[0]["weight_decay"] = decay
    with pytest.raises(TrainingError, match=r"weight decay .*: a record holds none"):
        run.train()
    assert recorder.steps == 0


def test_the_record_says_how_many_checkpoints_were_kept(tmp_path: Path) -> None:
    def kept(folder: str) -> int | None:
        found = Record.load(tmp_path / folder / "record.json").mechanism
        assert isinstance(found, DpSgd)
        return found.checkpoints_kept

    run = private()
    recorder = record(*run.parts, dataset="d")
    run.train()
    recorder.save(tmp_path / "first")
    recorder.save(tmp_path / "copy")
    assert kept("first") is None and kept("copy") is None  # of earlier steps there is none
    assert "checkpoints_kept" not in (tmp_path / "first" / "record.json").read_text()
    with pytest.raises(CheckpointError, match=r"holds model\.safetensors, record\.json already"):
        recorder.save(tmp_path / "first")
    run.train()
    recorder.save(tmp_path / "second")
    assert kept("second") == 1
    run.train()
    assert mechanism(recorder).checkpoints_kept == 2
    run, recorder = resumed(tmp_path / "second")
    recorder.save(tmp_path / "second-again")
    run.train()
    recorder.save(tmp_path / "third")
    assert kept("second-again") == 1 and kept("third") == 2
    models = [Model(name, Record.load(tmp_path / name / "record.json")) for name in ("first", "copy", "second")]
    assert len(Portfolio(models)) == 3  # they are checkpoints of one run, whatever was kept before each


def test_momentum_that_varies_and_hooks_of_the_step() -> None:
    run = private(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    recorder = record(*run.parts, dataset="d")
    run.train(torch.optim.lr_scheduler.OneCycleLR(run.optimizer, max_lr=0.1, total_steps=20))
    assert mechanism(recorder).optimizer == "sgd(momentum=varying)"
    assert len(settings(recorder)) == 12
    hooked = private()
    hooked.optimizer.original_optimizer.register_step_post_hook(lambda *_: None)
    other = record(*hooked.parts, dataset="d")
    hooked.train()
    assert mechanism(other).optimizer == "sgd(step_hooks=yes)"


def test_per_layer_clipping() -> None:
    run = private(clip=[0.1, 0.2, 0.3, 0.4], clipping="per_layer")
    recorder = record(*run.parts, dataset="d")
    run.train()
    found = mechanism(recorder)
    assert found.clipping == "per-layer" and found.noise_multiplier == 1.0
    assert found.clip == pytest.approx(math.sqrt(0.3), rel=1e-6)
    run.optimizer.max_grad_norm = 0.1  # as a scheduler would: the noise shrinks, the clips do not
    with pytest.warns(UserWarning, match=r"noise is scaled by 0\.1"):
        run.train()
    assert settings(recorder)[-1].noise_multiplier == pytest.approx(0.1 / math.sqrt(0.3), rel=1e-6)


def test_adaptive_clipping() -> None:
    run = private(
        batch=30,
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.1,
        unclipped_num_std=2.0,
    )
    with pytest.warns(UserWarning, match="size of each batch, which is private"):
        recorder = record(*run.parts, dataset="d")
    clips = []
    for inputs, labels in run.loader:
        clips.append(float(run.optimizer.max_grad_norm))
        run.step(inputs, labels)
    found = mechanism(recorder)
    # With the count of unclipped gradients, which a record moves by 1: μ² = 1/σ² + 3/(4σ_u²).
    assert found.clipping == "adaptive" and found.noise_multiplier == pytest.approx((1 + 3 / 16) ** -0.5, rel=1e-12)
    assert found.noise_multiplier**-2 >= 1 + 3 / 16
    assert [phase.clip for phase in settings(recorder)] == clips and len(set(clips)) == 2
    assert opacus_history(recorder.record()) == [(found.noise_multiplier, 0.5, 2)]
    assert run.engine.accountant.history == [(1.0, 0.5, 2)]
    single = Joint(Portfolio((Model("a", recorder.record()),)).weights({"a": 1.0})).guarantee(delta=1e-5)
    assert single.standing == "conditional" and any("batch sizes by which they were" in text for text in single.assumptions)


def test_the_noise_of_adaptive_clipping_is_what_opacus_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of a step: the sum moves by the clip, the count by 1, and the noise on each is what Opacus draws."""
    added: list[tuple[int, float]] = []
    generate = adaclipoptimizer._generate_noise

    def counted(std: float, reference: Any, **options: Any) -> Any:
        added.append((reference.numel(), float(std)))
        return generate(std=std, reference=reference, **options)

    monkeypatch.setattr(adaclipoptimizer, "_generate_noise", counted)
    how: dict[str, Any] = {
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
    }
    run = private(batch=30, clipping="adaptive", unclipped_num_std=0.7, clip=0.5, **how)
    with pytest.warns(UserWarning, match="pays for half"):
        recorder = record(*run.parts, dataset="d")
    run.step(*next(iter(run.loader)))
    (*of_sum, (_, of_count)) = added
    mu = math.hypot(0.5 / of_sum[0][1], 1 / of_count)
    assert 1 / mechanism(recorder).noise_multiplier == pytest.approx(mu, rel=1e-6) and mu > 1.5


def test_adaptive_clipping_in_ghost_mode() -> None:
    run = private("ghost", batch=30, sigma=0.1, engine=PrivacyEngineAdaptiveClipping(accountant="rdp"))
    run.criterion.criterion.reduction = "none"
    recorder = record(*run.parts, dataset="d")
    with pytest.warns(UserWarning, match="size of each batch, which is private"):
        run.train()
    assert mechanism(recorder).clipping == "adaptive"
    # Whatever the sizes of its batches were, which do not show.
    # The clip may stay as it is, and two steps are one phase then.
    assert all(phase.noise_multiplier == pytest.approx(0.05, rel=1e-12) for phase in settings(recorder))
    with (
        BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=15, optimizer=run.optimizer) as split,
        pytest.raises(TrainingError, match="pays for the last alone"),
    ):
        run.train(loader=split)


def test_frozen_parameters_are_fine() -> None:
    def frozen() -> Any:
        made = network()
        made[0].weight.requires_grad_(False)
        return made

    run = private(build=frozen)
    before = run.module._module[0].weight.clone()
    recorder = record(*run.parts, dataset="d")
    run.train()
    assert torch.equal(before, run.module._module[0].weight) and mechanism(recorder).optimizer == "sgd"


# --- how batches are drawn -----------------------------------------------------------------------------------------------


def unsampled(loader: Any) -> Private:
    return private(loader=loader, poisson_sampling=False)


def test_a_shuffling_loader_is_recorded_as_one() -> None:
    run = unsampled(DataLoader(examples(), batch_size=7, shuffle=True))
    recorder = record(*run.parts, dataset="d")
    run.train(epochs=2)
    found = mechanism(recorder)
    assert (found.sampling.scheme, found.sampling.rate, recorder.steps, found.expected_batch) == ("shuffle", None, 18, 6.0)
    with pytest.raises(TrainingError, match="about Poisson batches, not shuffle"):
        opacus_history(recorder.record())


@pytest.mark.parametrize("options", [{"batch_size": 60}, {"batch_size": 100, "shuffle": True}])
def test_a_loader_of_the_whole_dataset_is_full_batch(options: Any) -> None:
    for run in (unsampled(DataLoader(examples(), **options)), private(loader=DataLoader(examples(), **options))):
        recorder = record(*run.parts, dataset="d")
        run.train(epochs=3)
        found = mechanism(recorder)
        assert (found.sampling.scheme, found.expected_batch, recorder.steps) == ("full-batch", 60.0, 3)
        assert found.sampler_fingerprint is None
        run.optimizer.expected_batch_size = 59  # the theorem for full batches needs all of them in the divisor
        run.train()
        last = settings(recorder)[-1]
        assert last.expected_batch == 60.0 and last.learning_rate == pytest.approx(0.1 * 60 / 59)
        assert opacus_history(recorder.record()) == run.engine.accountant.history == [(1.0, 1.0, 4)]


class Own(DataLoader[Any]):
    """A loader that may do anything."""


class Forever(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(examples())


@pytest.mark.parametrize(
    "loader, match",
    [
        (lambda: DataLoader(examples(), batch_size=7), "BatchSampler of SequentialSampler"),
        (lambda: DataLoader(examples(), batch_size=7, sampler=WeightedRandomSampler([1.0] * 60, 60)), "WeightedRandomSampler"),
        (
            lambda: DataLoader(examples(), 7, sampler=RandomSampler(examples(), replacement=True)),
            "BatchSampler of RandomSampler",
        ),
        (lambda: DataLoader(examples(), 7, sampler=RandomSampler(examples(), num_samples=30)), "BatchSampler of RandomSampler"),
        (lambda: DataLoader(examples(), batch_size=None), "draws batches with none"),
        (lambda: Own(examples(), batch_size=7, shuffle=True), "the loader is a Own of TensorDataset"),
        (lambda: DataLoader(Forever(), batch_size=7), "DataLoader of Forever"),
        (lambda: [1, 2], "the loader is a list"),
    ],
)
def test_batches_that_no_theorem_is_about_are_refused(loader: Any, match: str) -> None:
    run = private()
    with pytest.raises(TrainingError, match=match):
        record(run.engine, run.module, run.optimizer, loader(), dataset="d")


def test_made_up_examples_in_empty_batches_are_refused() -> None:
    with pytest.raises(TrainingError, match="rand_on_empty"):
        record(*private(rand_on_empty=True).parts, dataset="d")


def without_empty(loader: Any) -> Any:
    return (batch for batch in loader if len(batch[1]))


def test_leaving_out_empty_batches_is_refused(tmp_path: Path) -> None:
    run = private(batch=1)
    recorder = record(*run.parts, dataset="d")
    run.train(loader=without_empty(run.loader))
    with pytest.raises(TrainingError, match="empty batches were left out"):
        recorder.save(tmp_path / "a")
    with pytest.raises(TrainingError, match="empty batches were left out"):
        run.train()
    assert list(tmp_path.iterdir()) == []


def test_drawing_ahead_is_not_leaving_out() -> None:
    run = private(batch=1)
    recorder = record(*run.parts, dataset="d")
    next(iter(run.loader))  # a look at the shapes
    for _ in range(2):
        run.train(loader=list(run.loader))
    assert recorder.steps == 120 and opacus_history(recorder.record()) == run.engine.accountant.history


def test_steps_without_a_batch_of_the_loader_are_refused() -> None:
    run = private()
    record(*run.parts, dataset="d")
    with pytest.raises(TrainingError, match="step 1 was made without a new batch"):
        run.train(loader=DataLoader(examples(), batch_size=5, shuffle=True))
    twice = private()
    record(*twice.parts, dataset="d")
    inputs, labels = next(iter(twice.loader))
    twice.step(inputs, labels)
    with pytest.raises(TrainingError, match="step 2 was made without a new batch"):
        twice.step(inputs, labels)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_an_example_that_is_several_rows_or_part_of_one_is_refused(mode: str) -> None:
    """Five rows of one record are each clipped: it moves the sum by five clips. Of a packed row, all of it may change."""
    changes: tuple[Callable[[Any], Any], ...] = (lambda one: torch.cat([one] * 5), lambda one: one[:1])
    for change in changes:
        run = private(mode, batch=20)
        record(*run.parts, dataset="d")
        inputs, labels = next(iter(run.loader))
        with pytest.raises(TrainingError, match=rf"of {len(change(labels))} examples, and {len(labels)} were drawn"):
            run.step(change(inputs), change(labels))


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_an_example_whose_gradient_is_not_finite_is_refused(mode: str) -> None:
    run = private(mode, batch=20)
    recorder = record(*run.parts, dataset="d")
    inputs, labels = next(iter(run.loader))
    inputs[0] = math.inf
    before = [one.detach().clone() for one in run.optimizer.params]
    with pytest.raises(TrainingError, match="infinite or not a number"):
        run.step(inputs, labels)
    assert recorder.steps == 0 and all(map(torch.equal, before, run.optimizer.params))


def test_batches_that_were_looked_at_pay_for_no_later_step() -> None:
    run = private()
    record(*run.parts, dataset="d")
    for _ in run.loader:
        """An evaluation on the training data."""
    inputs, labels = next(iter(run.loader))
    run.step(inputs, labels)
    with pytest.raises(TrainingError, match="step 2 was made without a new batch"):
        run.step(inputs, labels)


@pytest.mark.parametrize("mode", MODES)
def test_evaluations_on_the_training_data_within_an_epoch_are_no_matter(mode: str) -> None:
    run = private(mode, batch=1)
    recorder = record(*run.parts, dataset="d")
    for _ in range(2):
        for number, (inputs, labels) in enumerate(run.loader):
            run.step(inputs, labels)
            if number % 20 == 0:
                for _ in run.loader:
                    """Look at every example."""
    assert recorder.steps == 120 == mechanism(recorder).steps


def test_leaving_out_empty_batches_is_refused_in_epochs_that_are_broken_off() -> None:
    run = private(batch=1)
    recorder = record(*run.parts, dataset="d")
    for number, (inputs, labels) in enumerate(run.loader):
        if number == 59:
            break
        if len(labels):
            run.step(inputs, labels)
    with pytest.raises(TrainingError, match="empty batches were left out"):
        recorder.record()


# --- other refusals ------------------------------------------------------------------------------------------------------


def test_recording_begins_before_the_first_step() -> None:
    run = private()
    run.train()
    with pytest.raises(TrainingError, match="counted 12 steps already"):
        record(*run.parts, dataset="d")


def test_what_is_not_opacus_is_refused() -> None:
    run = private()
    plain = torch.optim.SGD(run.module.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match="SGD with GradSampleModule"):
        record(run.engine, run.module, plain, run.loader, dataset="d")
    with pytest.raises(TrainingError, match="DPOptimizer with Sequential"):
        record(run.engine, run.module._module, run.optimizer, run.loader, dataset="d")


def test_a_displaced_accountant_is_noticed() -> None:
    run = private()
    record(*run.parts, dataset="d")
    run.optimizer.attach_step_hook(lambda _: None)
    with pytest.raises(TrainingError, match="its hook was displaced"):
        run.train()
    other, engine = private(), private().engine
    record(engine, other.module, other.optimizer, other.loader, dataset="d")
    with pytest.raises(TrainingError, match="another engine"):
        other.train()


def test_a_hook_attached_around_the_accountants_is_no_matter() -> None:
    seen: list[float] = []
    run = private()
    recorder = record(*run.parts, dataset="d")
    accountants = run.optimizer.step_hook

    def both(optimizer: Any) -> None:
        accountants(optimizer)
        seen.append(optimizer.noise_multiplier)

    run.optimizer.attach_step_hook(both)
    run.train()
    assert recorder.steps == len(seen) == 12


def test_ghost_mode_without_its_criterion_is_refused() -> None:
    run = private("ghost")
    record(*run.parts, dataset="d")
    run.criterion = nn.CrossEntropyLoss()
    with pytest.raises(TrainingError, match="gradients were not clipped"):
        run.train()


def test_several_batches_in_one_step_are_refused() -> None:
    run = unsampled(DataLoader(examples(), batch_size=5, shuffle=True))
    record(*run.parts, dataset="d")
    batches = iter(run.loader)
    for _ in range(2):
        inputs, labels = next(batches)
        run.criterion(run.module(inputs), labels).backward()
    with pytest.raises(TrainingError, match="made from 2 batches"):
        run.optimizer.step()


@pytest.mark.parametrize(
    "options, match",
    [({"dataset": ""}, "dataset"), ({"run": ""}, "run"), ({"smoothness": -1.0}, "smoothness"), ({"convex": "yes"}, "convex")],
)
def test_what_a_record_cannot_hold_is_refused_before_training(options: Any, match: str) -> None:
    with pytest.raises(RecordError, match=match):
        record(*private().parts, **{"dataset": "d", **options})


def test_settings_that_are_not_private_are_refused() -> None:
    run = private()
    recorder = record(*run.parts, dataset="d")
    run.optimizer.max_grad_norm = math.nan
    with pytest.raises(TrainingError, match="a private step needs a positive clip"):
        run.train()
    with pytest.raises(TrainingError, match="no step has been made"):
        recorder.record()

    def frozen() -> Any:
        made = network()
        for parameter in list(made.parameters())[1:]:
            parameter.requires_grad_(False)
        return made

    still = private(build=frozen)
    still.module._module[0].weight.requires_grad_(False)
    with pytest.raises(TrainingError, match="no parameter that requires a gradient"):
        record(*still.parts, dataset="d")


# --- saving --------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two names for one matrix, and a number without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) * self.scale


@pytest.mark.parametrize("options", [{}, {"wrap_model": False}])
def test_a_saved_folder_holds_the_model_under_its_own_names(options: Any, tmp_path: Path) -> None:
    built: list[Any] = []

    def build() -> Any:
        built.append(network())
        return built[-1]

    run = private(build=build, **options)
    recorder = record(*run.parts, dataset="d")
    run.module = built[0] if options else run.module
    run.train()
    assert recorder.save(tmp_path / "runs" / "a") == tmp_path / "runs" / "a"
    held = load_file(tmp_path / "runs" / "a" / "model.safetensors")
    assert held.keys() == built[0].state_dict().keys()
    assert all(torch.equal(held[name], tensor) for name, tensor in built[0].state_dict().items())
    assert Record.load(tmp_path / "runs" / "a" / "record.json") == recorder.record()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a"]
    with pytest.raises(CheckpointError, match=r"holds model\.safetensors, record\.json already"):
        recorder.save(tmp_path / "runs" / "a")


def test_shared_tensors_and_numbers_are_saved(tmp_path: Path) -> None:
    run = private(build=Tied)
    recorder = record(*run.parts, dataset="d")
    run.train()
    held = load_file(recorder.save(tmp_path / "a") / "model.safetensors")
    assert torch.equal(held["first.weight"], held["second.weight"]) and held["scale"].shape == ()


class Stateful(nn.Identity):
    """A module with a state that is not a tensor."""

    def get_extra_state(self) -> Any:
        return {"seen": 3}


def test_tensors_that_cannot_be_merged_leave_nothing_behind(tmp_path: Path) -> None:
    run = private()
    run.module._module.register_buffer("odd", torch.zeros(2, dtype=torch.complex64))
    recorder = record(*run.parts, dataset="d")
    run.train()
    with pytest.raises(CheckpointError, match=r"complex64|C64") as caught:
        recorder.save(tmp_path / "a")
    assert list(tmp_path.iterdir()) == [] and "\n" not in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be made"):
        recorder.save(tmp_path / "file" / "a")
    stateful = private()
    stateful.module._module.register_module("extra", Stateful())
    recorder = record(*stateful.parts, dataset="d")
    stateful.train()
    with pytest.raises(TrainingError, match=r"state 'extra\._extra_state' is a dict, not a tensor"):
        recorder.save(tmp_path / "a")


# --- randomness ----------------------------------------------------------------------------------------------------------


def saved(run: Private, folder: Path, **options: Any) -> Record:
    recorder = record(*run.parts, dataset="d", **options)
    run.train()
    recorder.save(folder)
    return recorder.record()


def test_runs_from_one_seed_are_refused_together(tmp_path: Path) -> None:
    for name in ("a", "b"):
        as_a_new_process()
        torch.manual_seed(7)
        saved(private(), tmp_path / name)
    saved(private(), tmp_path / "c")
    portfolio = Portfolio(tmp_path)
    with pytest.raises(DependentRuns, match="noise_fingerprint"):
        Joint(portfolio.weights({"a": 0.5, "b": 0.5}))
    guarantee = Joint(portfolio.weights({"a": 0.5, "c": 0.5})).guarantee(delta=1e-5)
    assert not any("user" in text for text in guarantee.assumptions)


def test_generators_of_the_users_own_are_fingerprinted(tmp_path: Path) -> None:
    # A generator that nobody seeded has torch's constant seed.
    unseeded = []
    for name in ("a", "b"):
        unseeded.append(saved(private(noise_generator=torch.Generator()), tmp_path / name).mechanism)
        as_a_new_process()
    seeded = saved(private(noise_generator=torch.Generator().manual_seed(5)), tmp_path / "c").mechanism
    assert unseeded[0].noise_fingerprint == unseeded[1].noise_fingerprint != seeded.noise_fingerprint
    assert unseeded[0].sampler_fingerprint != unseeded[1].sampler_fingerprint
    coins = private(loader=DataLoader(examples(), batch_size=5, generator=torch.Generator().manual_seed(5)))
    assert saved(coins, tmp_path / "d").mechanism.sampler_fingerprint == seeded.noise_fingerprint


def test_seeds_that_torch_takes_for_one_have_one_fingerprint(tmp_path: Path) -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1 + 2**32, 2)]
    found = []
    for i, generator in enumerate(generators):
        found.append(saved(private(noise_generator=generator), tmp_path / str(i)).mechanism)
        as_a_new_process()
    assert found[0].noise_fingerprint == found[1].noise_fingerprint != found[2].noise_fingerprint
    fresh = [torch.randn(3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1 + 2**32)]
    assert torch.equal(*fresh)


def test_the_systems_entropy_is_never_shared(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        run = private(noise_generator=torch.Generator())
        run.engine.secure_mode, run.engine.secure_rng = True, run.optimizer.generator  # as if torchcsprng were there
        found.append(saved(run, tmp_path / name).mechanism.noise_fingerprint)
    assert found[0] != found[1] and all(str(one).startswith("system-") for one in found)


def test_a_generator_that_cannot_be_read_has_no_fingerprint(tmp_path: Path) -> None:
    class Sealed:
        """A generator without a state to read."""

    run = private(sigma=0.0)
    run.optimizer.generator = Sealed()
    held = saved(run, tmp_path / "a")
    assert held.mechanism.noise_fingerprint is None
    again = private(sigma=0.0)
    again.module._module.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    with pytest.raises(TrainingError, match="could not be told apart"):
        record(*again.parts, dataset="d", resume=tmp_path / "a")


@pytest.mark.parametrize("mode", MODES)
def test_noise_that_is_repeated_within_a_run_is_refused(mode: str) -> None:
    """With σ = 50 and the seed set before each step, two updates differed by a thousandth of their noise."""
    run = private(mode)
    record(*run.parts, dataset="d")
    batches = iter(run.loader)
    torch.manual_seed(0)
    run.step(*next(batches))
    inputs, labels = next(batches)
    torch.manual_seed(0)
    next(batches)  # as before the first step
    with pytest.raises(TrainingError, match=r"noise generator was in a state from which .* has used it before.*seed once"):
        run.step(inputs, labels)


def test_a_noise_generator_that_is_replaced_is_refused() -> None:
    run = private(noise_generator=torch.Generator().manual_seed(1))
    record(*run.parts, dataset="d")
    run.train()
    run.optimizer.generator = torch.Generator().manual_seed(7)
    with pytest.raises(TrainingError, match="noise generator was replaced"):
        run.train()


def test_epochs_with_the_same_batches_are_refused() -> None:
    generator = torch.Generator()
    run = private(loader=DataLoader(examples(), batch_size=5, generator=generator))
    recorder = record(*run.parts, dataset="d")
    run.train()
    state = generator.get_state()
    for _ in run.loader:
        """Batches that are looked at, and no more."""
    generator.set_state(state)
    run.train()
    generator.set_state(state)
    with pytest.raises(TrainingError, match=r"sampling generator was in a state from which .* has used it before"):
        run.train()
    assert recorder.steps == 24


def test_steps_without_noise_draw_nothing_that_could_be_repeated() -> None:
    run = private(sigma=0.0, noise_generator=torch.Generator())
    recorder = record(*run.parts, dataset="d")
    run.train(epochs=2)
    assert recorder.steps == 24


# --- crashes -------------------------------------------------------------------------------------------------------------


def resumed(folder: Path, fresh: Private | None = None, **options: Any) -> tuple[Private, Any]:
    fresh = private() if fresh is None else fresh
    fresh.module._module.load_state_dict(load_file(folder / "model.safetensors"))
    return fresh, record(*fresh.parts, **{"dataset": "d", "resume": folder, **options})


def test_a_run_that_crashed_goes_on(tmp_path: Path) -> None:
    first = private()
    recorder = record(*first.parts, dataset="d", smoothness=1.0)
    scheduler = ExponentialNoise(first.optimizer, gamma=0.9)
    first.train()
    first.engine.save_checkpoint(path=tmp_path / "opacus.pt", module=first.module, optimizer=first.optimizer)
    before = Record.load(recorder.save(tmp_path / "half") / "record.json").mechanism
    scheduler.step()
    first.train()  # lost: never released
    second = private(sigma=0.9)
    second.engine.load_checkpoint(path=tmp_path / "opacus.pt", module=second.module, optimizer=second.optimizer)
    again = record(*second.parts, dataset="d", resume=tmp_path / "half")
    second.train()
    after = Record.load(again.save(tmp_path / "whole") / "record.json").mechanism
    assert isinstance(before, DpSgd) and isinstance(after, DpSgd)
    assert after.run == before.run and again.steps == after.steps == 24 and after.smoothness == 1.0
    assert opacus_history(again.record()) == [(1.0, 1 / 12, 12), (0.9, 1 / 12, 12)] == second.engine.accountant.history
    assert str(after.noise_fingerprint).startswith(f"{before.noise_fingerprint}+") and after.optimizer == "sgd"


def test_two_continuations_are_not_one_run(tmp_path: Path) -> None:
    saved(private(), tmp_path / "half")
    portfolio = []
    for name in ("a", "b"):
        run, recorder = resumed(tmp_path / "half")
        run.train()
        portfolio.append(Model(name, recorder.record()))
    assert portfolio[0].run == portfolio[1].run
    with pytest.raises(PortfolioError, match="both claim run"):
        Portfolio(tuple(portfolio))


def test_repeated_noise_is_refused(tmp_path: Path) -> None:
    def start(seed: int) -> Private:
        return private(noise_generator=torch.Generator().manual_seed(seed))

    saved(start(3), tmp_path / "first")
    with pytest.raises(TrainingError, match="noise generator is in a state from which this run has started before"):
        resumed(tmp_path / "first", start(3))
    run, recorder = resumed(tmp_path / "first", start(4))
    run.train()
    recorder.save(tmp_path / "second")
    for seed in (3, 4):
        with pytest.raises(TrainingError, match="started before"):
            resumed(tmp_path / "second", start(seed))
    run, recorder = resumed(tmp_path / "second", start(5))
    run.train()
    assert recorder.steps == 36 and str(mechanism(recorder).noise_fingerprint).endswith("@24")


def test_repeated_batches_are_refused(tmp_path: Path) -> None:
    def start() -> Private:
        return private(loader=DataLoader(examples(), batch_size=5, generator=torch.Generator().manual_seed(1)))

    saved(start(), tmp_path / "a")
    with pytest.raises(TrainingError, match="sampling generator is in a state"):
        resumed(tmp_path / "a", start())


@pytest.mark.parametrize(
    "options, match",
    [
        ({"dataset": "other"}, "its dataset is 'd', not 'other'"),
        ({"run": "other"}, "its run is"),
        ({"smoothness": 3.0}, "its smoothness is None, not 3.0"),
        ({"convex": "glm"}, "its convex is None"),
    ],
)
def test_a_resumed_run_says_the_same_of_itself(options: Any, match: str, tmp_path: Path) -> None:
    saved(private(), tmp_path / "a")
    with pytest.raises(TrainingError, match=match):
        resumed(tmp_path / "a", **options)


def test_what_is_resumed_must_be_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    saved(private(), folder)
    with pytest.raises(TrainingError, match=r"tensor '0\.bias' is not what the module holds"):
        record(*private().parts, dataset="d", resume=folder)
    counted = private()
    counted.engine.accountant.history = [(1.0, 1 / 12, 5)]
    with pytest.raises(TrainingError, match="counted 5 steps, the record in"):
        resumed(folder, counted)
    with pytest.raises(RecordError, match="no such file"):
        record(*private().parts, dataset="d", resume=tmp_path / "nowhere")
    adaptive = private(clip=[1.0] * 4, clipping="per_layer")
    with pytest.raises(TrainingError, match="its clipping was flat, now it is per-layer"):
        resumed(folder, adaptive)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(TrainingError, match="cannot be read"):
        record(*private().parts, dataset="d", resume=folder)
    stated = json.loads((folder / "record.json").read_text()) | {"source": "stated-by-user"}
    (folder / "record.json").write_text(json.dumps(stated))
    with pytest.raises(TrainingError, match="only a record that was made by the recorder"):
        record(*private().parts, dataset="d", resume=folder)


def test_an_optimizer_that_changed_is_said(tmp_path: Path) -> None:
    saved(private(), tmp_path / "a")
    run, recorder = resumed(tmp_path / "a", private(optimizer=lambda p: torch.optim.Adam(p, lr=0.1)))
    run.train()
    assert mechanism(recorder).optimizer == "sgd, then adam"


# --- from end to end -----------------------------------------------------------------------------------------------------


def test_saved_folders_are_a_portfolio(tmp_path: Path) -> None:
    portfolio = tmp_path / "portfolio"
    for name, sigma in (("a", 1.0), ("b", 3.0)):
        run = private(sigma=sigma)
        recorder = record(*run.parts, dataset="d", smoothness=4.0)
        run.train(epochs=2)
        recorder.save(portfolio / name)
    invoke = CliRunner().invoke
    weights = ["--weights", "a=0.25,b=0.75", "--delta", "1e-5"]
    asked = invoke(app, ["account", str(portfolio), "--rule", "combination", *weights, "--json"])
    assert asked.exit_code == 0, asked.output
    guarantee = json.loads(asked.output)
    assert guarantee["standing"] == "proved" and not any("user" in text for text in guarantee["assumptions"])
    out = tmp_path / "released"
    options = ["--rule", "combination", *weights, "--out", str(out)]
    made = invoke(app, ["merge", str(portfolio), *options])
    assert made.exit_code == 0, made.output
    checked = invoke(app, ["verify", str(out), "--portfolio", str(portfolio)])
    assert checked.exit_code == 0, checked.output
    merged, parts = load_file(out / "model.safetensors"), [load_file(portfolio / n / "model.safetensors") for n in ("a", "b")]
    for name, tensor in merged.items():
        assert torch.allclose(tensor, 0.25 * parts[0][name] + 0.75 * parts[1][name], atol=1e-6)
    module = network()
    module.load_state_dict(merged)


def test_the_training_room_loads_no_torch() -> None:
    script = "import dpmerge.training, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    missing = (
        "import sys; sys.modules['torch'] = None\n"
        "import dpmerge.errors, dpmerge.training\n"
        "try: dpmerge.training.record\n"
        "except dpmerge.errors.MissingLibrary as fault: print(fault)\n"
    )
    said = subprocess.run([sys.executable, "-c", missing], check=True, capture_output=True, text=True).stdout
    assert said.startswith("record needs torch and Opacus 1.6 or newer; install dpmerge[torch]") and said.count("\n") == 1
    import dpmerge.training

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dpmerge.training.nothing  # noqa: B018


@pytest.mark.parametrize("left", ["the walk", "a part"])
def test_a_batch_that_is_left_amid_its_parts_is_not_added_to_the_next(left: str) -> None:
    run = private(batch=30)
    record(*run.parts, dataset="d")
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=2, optimizer=run.optimizer) as split:
        for place, (inputs, labels) in enumerate(split):
            if place == 1 and left == "the walk":
                break
            if run.optimizer._check_skip_next_step(pop_next=False) or left == "the walk":
                run.step(inputs, labels)
            else:
                run.optimizer._check_skip_next_step()  # the last part: its step is never made
                break
        with pytest.raises(TrainingError, match="left amid its parts"):
            run.train(loader=split)
