"""A private training by Lightning's Trainer: recorded as it was configured, saved as it is, refused where it would not be."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dpmerge.errors import TrainingError
from dpmerge.records import DpSgd, Record

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")

from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from dpmerge.training import LightningRecorder, guarantee_so_far, recorder_randomness  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, examples, private  # noqa: E402

# Lightning's own: of torch's trees, and of advice about workers and logging.
pytestmark = [
    *(pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]
DELTA = 1e-5


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)
    as_a_new_process()


class Lit(lightning.LightningModule):  # type: ignore[name-defined,misc]
    def __init__(self, training: Private, optimizer: Any = None) -> None:
        super().__init__()
        self.module, self.training_parts = training.module, training
        self.chosen = training.optimizer if optimizer is None else optimizer

    def training_step(self, batch: Any, _: int) -> Any:
        inputs, labels = batch
        return self.training_parts.criterion(self.module(inputs), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        self.module(batch[0])

    def configure_optimizers(self) -> Any:
        return self.chosen


class Manual(Lit):
    """Calls backward and step itself."""

    def __init__(self, training: Private) -> None:
        super().__init__(training)
        self.automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        super().training_step(batch, _).backward()
        optimizer.step()


def trainer(*callbacks: Any, **options: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}
    return lightning.Trainer(accelerator="cpu", callbacks=list(callbacks), **{"max_epochs": 2, **quiet, **options})


def of(training: Private, out: Path, **options: Any) -> Any:
    return LightningRecorder(*training.parts, dataset="test-data", out=out, **options)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_the_record_says_what_was_configured_and_the_tensors_are_the_modules(tmp_path: Path, mode: str) -> None:
    """A small rate, so that there are empty batches; a validation, whose first walk is before the training."""
    training = private(mode, sigma=1.5, clip=0.7, batch=1, count=12)
    recorder = of(training, tmp_path / "a", delta=DELTA, checkpoints=True)
    fit = trainer(recorder)
    fit.fit((Manual if mode == "ghost" else Lit)(training), training.loader, DataLoader(examples(10), batch_size=5))
    found = Record.load(tmp_path / "a" / "record.json").mechanism
    assert isinstance(found, DpSgd)
    (phase,) = found.settings()
    assert (phase.steps, phase.noise_multiplier, phase.clip, phase.learning_rate) == (24, 1.5, 0.7, 0.1)
    assert phase.sampling.rate == pytest.approx(1 / 12) and fit.global_step == 24
    step = dp_event.PoissonSampledDpEvent(1 / 12, dp_event.GaussianDpEvent(1.5))
    expected = PLDAccountant().compose(dp_event.SelfComposedDpEvent(step, 24)).get_epsilon(DELTA)
    epsilon = guarantee_so_far(recorder.recorder, DELTA).epsilon
    assert epsilon == pytest.approx(expected, rel=2e-3)
    assert float(fit.callback_metrics["epsilon"]) == pytest.approx(epsilon, rel=1e-6)
    saved, held = load_file(tmp_path / "a" / "model.safetensors"), training.module._module.state_dict()
    assert saved.keys() == held.keys() and all(torch.equal(saved[name], held[name]) for name in saved)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "a@12", "a@24"]
    assert found.checkpoints_kept == 1


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    training = private()
    trainer(of(training, tmp_path / "a"), max_epochs=1).fit(Lit(training), training.loader)
    as_a_new_process()
    again = private()
    again.module._module.load_state_dict(load_file(tmp_path / "a" / "model.safetensors"))
    recorder = of(again, tmp_path / "b", resume=tmp_path / "a")
    trainer(recorder, max_epochs=1).fit(Lit(again), again.loader)
    assert recorder.recorder.steps == 24


def test_lightnings_own_checkpoint_is_loaded_before_recording_goes_on(tmp_path: Path) -> None:
    training = private()
    first = trainer(of(training, tmp_path / "a"), max_epochs=1)
    first.fit(Lit(training), training.loader)
    first.save_checkpoint(tmp_path / "a.ckpt")
    as_a_new_process()
    again = private()
    recorder = of(again, tmp_path / "b", resume=tmp_path / "a")
    trainer(recorder, max_epochs=2).fit(Lit(again), again.loader, ckpt_path=tmp_path / "a.ckpt", weights_only=False)
    assert recorder.recorder.steps == 24


@pytest.mark.parametrize(
    "options, why",
    [
        ({"accumulate_grad_batches": 2}, "a step would be made of several batches"),
        ({"gradient_clip_val": 1.0}, "gradient_clip_val is set"),
        ({"precision": "16-true"}, "leaves out steps"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_settings_of_the_trainer_that_cannot_be_recorded_are_refused(tmp_path: Path, options: Any, why: str) -> None:
    training = private()
    with pytest.raises(TrainingError, match=why):
        trainer(of(training, tmp_path / "a"), **options).fit(Lit(training), training.loader)
    assert not (tmp_path / "a").exists()


def test_another_optimizer_or_loader_is_refused(tmp_path: Path) -> None:
    training = private()
    plain = torch.optim.SGD(training.module.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match="returns another optimizer"):
        trainer(of(training, tmp_path / "a")).fit(Lit(training, plain), training.loader)
    with pytest.raises(TrainingError, match="on another loader"):
        trainer(of(training, tmp_path / "a")).fit(Lit(training), DataLoader(examples(), batch_size=5))


def test_ghost_mode_with_automatic_steps_is_refused(tmp_path: Path) -> None:
    training = private("ghost")
    with pytest.raises(TrainingError, match="automatic_optimization = False"):
        trainer(of(training, tmp_path / "a")).fit(Lit(training), training.loader)


def test_split_batches_are_refused_as_lightning_may_end_an_epoch_amid_one(tmp_path: Path) -> None:
    training = private(batch=20)
    with BatchMemoryManager(data_loader=training.loader, max_physical_batch_size=4, optimizer=training.optimizer) as parts:
        recorder = LightningRecorder(
            training.engine, training.module, training.optimizer, parts, dataset="test-data", out=tmp_path / "a"
        )
        with pytest.raises(TrainingError, match="BatchMemoryManager"):
            trainer(recorder).fit(Lit(training), parts)


def test_a_folder_that_exists_and_a_recorder_that_has_not_started(tmp_path: Path) -> None:
    training = private()
    with pytest.raises(TrainingError, match="exists; a run is saved into a new folder"):
        of(training, tmp_path)
    with pytest.raises(TrainingError, match="recording starts when"):
        _ = of(training, tmp_path / "a").recorder


def test_a_buffer_that_changes_is_refused_when_the_run_is_saved(tmp_path: Path) -> None:
    def network() -> Any:
        body = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        body.register_buffer("seen", torch.zeros(1))
        return body

    training = private(build=network)

    class Counting(Lit):
        def training_step(self, batch: Any, index: int) -> Any:
            self.module._module.seen += 1
            return super().training_step(batch, index)

    with pytest.raises(TrainingError, match="'seen': changed since recording began"):
        trainer(of(training, tmp_path / "a"), max_epochs=1).fit(Counting(training), training.loader)


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent.parent / "examples" / "lightning_training.py"
    found = runpy.run_path(str(path))["main"](tmp_path / "a", epochs=1)
    assert found.steps == 10 and "one run alone" in capsys.readouterr().out
    assert (tmp_path / "a" / "model.safetensors").exists()
