"""Transformers' Trainer with private steps: recorded as configured, saved as it is, refused where it is not private."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

import dpmerge.training
from dpmerge.errors import MissingLibrary, TrainingError
from dpmerge.records import DpSgd, Record

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("opacus", "transformers", "peft", "accelerate"):
    pytest.importorskip(library, reason=f"{library} is not installed")

from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from dpmerge.training import PrivateTrainer, guarantee_so_far, noise_alone, recorder_randomness  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, as_a_new_process, private  # noqa: E402
from tests.text_builders import Texts, classifier, language_model, private_text  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]
DELTA = 1e-5


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)
    as_a_new_process()


def arguments(folder: Path, **options: Any) -> Any:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_steps": 12}
    plain = {"use_cpu": True, "lr_scheduler_type": "constant", "num_train_epochs": 2, **quiet}
    return TrainingArguments(output_dir=str(folder / "trainer"), **{**plain, **options})


def trainer(parts: Any, folder: Path, name: str = "a", **options: Any) -> Any:
    given = options.pop("args", None) or arguments(folder)
    return PrivateTrainer(*parts, dataset="texts", out=folder / name, args=given, **options)


@pytest.mark.parametrize("build, mode", [(classifier, "hooks"), (language_model, "hooks"), (classifier, "functorch")])
def test_the_record_says_what_was_configured_and_the_tensors_are_the_models(tmp_path: Path, build: Any, mode: str) -> None:
    parts = private_text(build(), mode=mode)
    args = arguments(tmp_path, save_strategy="epoch", eval_strategy="epoch", max_grad_norm=1.0)
    run = trainer(parts, tmp_path, delta=DELTA, args=args, eval_dataset=Texts(6, language=build is language_model))
    run.train()
    found = Record.load(tmp_path / "a" / "record.json").mechanism
    assert isinstance(found, DpSgd)
    (phase,) = found.settings()
    assert (phase.steps, phase.noise_multiplier, phase.clip, phase.learning_rate) == (24, 1.3, 0.5, 0.1)
    assert phase.sampling.rate == pytest.approx(1 / 12) and phase.expected_batch == 2 and found.optimizer == "sgd"
    step = dp_event.PoissonSampledDpEvent(1 / 12, dp_event.GaussianDpEvent(1.3))
    expected = PLDAccountant().compose(dp_event.SelfComposedDpEvent(step, 24)).get_epsilon(DELTA)
    assert guarantee_so_far(run.recorder, DELTA).epsilon == pytest.approx(expected, rel=2e-3)
    adapter = build is language_model
    saved = load_file(tmp_path / "a" / ("adapter_model.safetensors" if adapter else "model.safetensors"))
    held = {name.replace(".default", ""): value for name, value in parts[1]._module.state_dict().items()}
    assert saved and all(torch.equal(saved[name], held[name]) for name in saved)
    assert all(name in saved for name in held if "lora" in name or not adapter)
    assert (tmp_path / "a" / ("adapter_config.json" if adapter else "config.json")).exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "a@12", "a@24", "trainer"]
    assert not [line for line in run.state.log_history if {"loss", "grad_norm", "train_loss", "total_flos"} & line.keys()]
    assert [line["eval_loss"] > 0 for line in run.state.log_history if "eval_loss" in line] == [True, True]
    assert run.state.log_history[0]["epsilon"] < run.state.log_history[-1]["epsilon"]
    state = json.loads((tmp_path / "trainer" / "checkpoint-24" / "trainer_state.json").read_text())
    assert not [line for line in state["log_history"] if "loss" in line or "grad_norm" in line]


def test_the_trainers_seed_does_not_seed_the_noise(tmp_path: Path) -> None:
    """Two trainings with one seed: the Trainer would give both the same noise, and 42 is known to everyone."""
    models = []
    for name in ("a", "b"):
        torch.manual_seed(1)
        run = trainer(private_text(classifier()), tmp_path, name, args=arguments(tmp_path, max_steps=2))
        run.train()
        models.append(run.recorder.record().mechanism)
    assert models[0].noise_fingerprint != models[1].noise_fingerprint


def test_an_examples_gradient_does_not_depend_on_the_others(tmp_path: Path) -> None:
    """By the Trainer's own loss, a mean over all tokens, it does: that no clip would bound."""
    engine, module, optimizer, loader = private_text(language_model())
    run = trainer((engine, module, optimizer, loader), tmp_path)
    data = Texts(24, language=True)

    def gradient(loss: Any, *rows: int) -> Any:
        module.zero_grad()
        batch = {name: torch.stack([data[row][name] for row in rows]) for name in data[0]}
        loss(module._module, batch).backward()
        return torch.cat([one.grad_sample[0].flatten() for one in optimizer.params])

    module.eval()
    module._module.train()
    alone, together = gradient(run.compute_loss, 0), gradient(run.compute_loss, 0, 5)
    assert torch.allclose(alone, together, rtol=1e-4, atol=1e-7) and alone.norm() > 0
    plain = Trainer.compute_loss
    assert not torch.allclose(gradient(lambda *given: plain(run, *given), 0, 5), alone, rtol=0.2)


def test_a_loss_without_labels_is_refused(tmp_path: Path) -> None:
    """Question answering takes the mean over the positions within a text: how many there are scales everyone's gradient."""
    run = trainer(private_text(classifier()), tmp_path)
    inputs = {name: torch.stack([value]) for name, value in Texts(24, language=False)[0].items() if name != "labels"}
    with pytest.raises(TrainingError, match="have no labels"):
        run.compute_loss(run.model, inputs)


def test_a_batch_without_examples_is_a_step_of_noise_alone() -> None:
    """The same as what Opacus makes of one, where the model can be called with it."""
    moved = []
    for empty in (True, False):
        torch.manual_seed(6)
        training = private(sigma=3.0, clip=2.0)
        before = [one.detach().clone() for one in training.optimizer.params]
        torch.manual_seed(7)
        if empty:
            training.optimizer.zero_grad()
            noise_alone(training.optimizer)
            training.optimizer.step()
        else:
            training.step(torch.empty(0, 4), torch.empty(0, dtype=torch.long))
        moved.append([one.detach() - old for one, old in zip(training.optimizer.params, before, strict=True)])
    assert all(torch.equal(one, other) for one, other in zip(*moved, strict=True))
    assert float(torch.cat([one.flatten() for one in moved[0]]).std()) == pytest.approx(0.1 * 3.0 * 2.0 / 5, rel=0.4)


@pytest.mark.filterwarnings("ignore:gradients were clipped to")
def test_in_bfloat16_a_record_does_not_tell_which_batches_were_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips are recorded as they were rounded: for every step alike."""
    empty = []

    def counted(*given: Any) -> None:
        empty.append(given)
        noise_alone(*given)

    monkeypatch.setattr("dpmerge.training.private_trainer.noise_alone", counted)
    parts = private_text(classifier(), count=20, batch=1)
    run = trainer(parts, tmp_path, args=arguments(tmp_path, bf16=True, num_train_epochs=2))
    run.train()
    (phase,) = run.recorder.record().mechanism.settings()
    assert empty and phase.steps == 40 and phase.noise_multiplier < 1.3


def test_a_first_batch_without_examples_has_the_form_of_others(tmp_path: Path) -> None:
    engine, module, optimizer, loader = private_text(classifier(), count=40, batch=1)
    run = trainer((engine, module, optimizer, loader), tmp_path)
    run.get_train_dataloader()
    assert {name: tuple(one.shape) for name, one in loader.collate_fn([]).items()} == {
        "input_ids": (0, 8),
        "attention_mask": (0, 8),
        "labels": (0,),
    }


def test_a_run_goes_on_from_a_checkpoint_with_fresh_noise(tmp_path: Path) -> None:
    keeping = arguments(tmp_path, save_strategy="epoch", num_train_epochs=1)
    trainer(private_text(classifier()), tmp_path, args=keeping).train()
    as_a_new_process()
    run = trainer(
        private_text(classifier()),
        tmp_path,
        "b",
        args=arguments(tmp_path, num_train_epochs=2),
        recording={"resume": tmp_path / "a@12"},
    )
    run.train(resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-12"))
    found = run.recorder.record().mechanism
    assert found.steps == 24 and "@12" in found.noise_fingerprint


@pytest.mark.parametrize(
    "options, why",
    [
        ({"gradient_accumulation_steps": 2}, "a step would be made of several batches"),
        ({"fp16": True}, "fp16 scales the loss"),
        ({"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}, "chosen by its score"),
        ({"label_smoothing_factor": 0.1}, "the mean over examples"),
        ({"push_to_hub": True}, "publishes checkpoints with the state of the noise generator"),
        ({"auto_find_batch_size": True}, "other batches"),
    ],
)
def test_settings_of_the_trainer_that_cannot_be_recorded_are_refused(tmp_path: Path, options: Any, why: str) -> None:
    with pytest.raises(TrainingError, match=why):
        trainer(private_text(classifier()), tmp_path, args=arguments(tmp_path, **options))


def test_modes_loaders_losses_and_folders_that_cannot_be_recorded_are_refused(tmp_path: Path) -> None:
    engine, module, optimizer, loader = private_text(classifier())
    with pytest.raises(TrainingError, match=r"is a GradSampleModuleFastGradientClipping; .* mode hooks or functorch"):
        trainer(private_text(classifier(), mode="ghost"), tmp_path)
    with pytest.raises(TrainingError, match="the mean over examples"):
        trainer((engine, module, optimizer, loader), tmp_path, compute_loss_func=lambda *given, **more: None)
    with (
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=1, optimizer=optimizer) as split,
        pytest.raises(TrainingError, match="BatchMemoryManager"),
    ):
        trainer((engine, module, optimizer, split), tmp_path)
    with pytest.raises(TrainingError, match="exists; a run is saved into a new folder"):
        PrivateTrainer(engine, module, optimizer, loader, dataset="texts", out=tmp_path, args=arguments(tmp_path))
    run = trainer((engine, module, optimizer, loader), tmp_path)
    with pytest.raises(TrainingError, match="recording starts when"):
        _ = run.recorder
    with pytest.raises(TrainingError, match="a label is -100"):
        run.compute_loss(module._module, {"labels": torch.tensor([1, -100])})


def test_private_numbers_are_logged_on_request(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=2, logging_steps=1)
    run = trainer(private_text(classifier()), tmp_path, log_private=True, args=args)
    run.train()
    assert "loss" in run.state.log_history[0]


@pytest.mark.parametrize("name, tensors", [("transformers", "adapter_model"), ("accelerate", "model")])
def test_the_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, tensors: str) -> None:
    path = Path(__file__).parent.parent / "examples" / f"{name}_training.py"
    recorder = runpy.run_path(str(path))["main"](tmp_path / "a", epochs=1)
    found = Record.load(tmp_path / "a" / "record.json").mechanism
    assert isinstance(found, DpSgd) and "one run alone" in capsys.readouterr().out
    (phase,) = found.settings()
    assert (phase.steps, phase.noise_multiplier, phase.clip, phase.learning_rate) == (12, 1.0, 1.0, 0.5)
    step = dp_event.PoissonSampledDpEvent(1 / 12, dp_event.GaussianDpEvent(1.0))
    expected = PLDAccountant().compose(dp_event.SelfComposedDpEvent(step, 12)).get_epsilon(DELTA)
    assert guarantee_so_far(recorder, DELTA).epsilon == pytest.approx(expected, rel=2e-3)
    saved, held = load_file(tmp_path / "a" / f"{tensors}.safetensors"), recorder._tensors.module.state_dict()
    held = {name.replace(".default", "").replace(".modules_to_save", ""): value for name, value in held.items()}
    assert saved and all(torch.equal(saved[name], held[name]) for name in saved)


@pytest.mark.parametrize(
    "name, home, library",
    [("PrivateTrainer", "private_trainer", "transformers"), ("LightningRecorder", "lightning_recorder", "lightning")],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, name: str, home: str, library: str) -> None:
    monkeypatch.delitem(sys.modules, f"dpmerge.training.{home}", raising=False)
    for part in [library, *(part for part in sys.modules if part.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, part, None)
    with pytest.raises(MissingLibrary, match=rf"{name} needs .*install dpmerge\[{library}\]"):
        getattr(dpmerge.training, name)
