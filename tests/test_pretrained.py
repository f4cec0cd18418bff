"""Folders of Transformers and PEFT with a record, from training to a release that these libraries load; folders that exist."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.errors import CheckpointError, TrainingError
from dpmerge.records import DpSgd, Record

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("opacus", reason="Opacus is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
peft = pytest.importorskip("peft", reason="PEFT is not installed")

from safetensors.torch import load_file  # noqa: E402

from dpmerge.training import record, recorder_randomness, same_start  # noqa: E402
from tests.opacus_builders import OPACUS_WARNINGS, Private, as_a_new_process, private  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in OPACUS_WARNINGS]
SIZES = {
    "vocab_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_labels": 3,
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(recorder_randomness, "_COST", 2)  # the same hash, made cheap
    as_a_new_process()


def bert() -> Any:
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))
    model.bert.embeddings.position_embeddings.requires_grad_(False)  # its input has no dimension for examples
    return model.train()


def tied() -> Any:
    """A language model whose output layer is its embedding."""
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    model.transformer.wpe.requires_grad_(False)
    return model.train()


def llama() -> Any:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return transformers.LlamaForSequenceClassification(config)


def lora(base: Any = llama, adapter: str = "default", **options: Any) -> Any:
    settings = {"task_type": "SEQ_CLS", "r": 2, "target_modules": ["q_proj", "v_proj"], **options}
    return peft.get_peft_model(same_start(base, seed=1), peft.LoraConfig(**settings), adapter_name=adapter).train()


def trained(build: Any) -> tuple[Private, Any]:
    """Three steps, from the same start in every run."""
    run = private(build=lambda: same_start(build), batch=20)
    recorder = record(*run.parts, dataset="made-up")
    for inputs, labels in run.loader:
        tokens = (inputs.abs() * 10).long().clamp(min=1, max=29)
        run.optimizer.zero_grad()
        targets = tokens if build is tied else labels
        run.module(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=targets).loss.backward()
        run.optimizer.step()
    return run, recorder


def tokenizer(folder: Path) -> Any:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (folder / "vocab.txt").write_text("\n".join(words))
    return transformers.BertTokenizer(str(folder / "vocab.txt"))


def merged(portfolio: Path, out: Path) -> Path:
    command = ["merge", portfolio, "--rule", "combination", "--weights", "a=0.5,b=0.5", "--delta", 1e-3, "--out", out]
    made = CliRunner().invoke(app, [*map(str, command)])
    assert made.exit_code == 0, made.output
    return out


def test_a_transformers_folder_from_training_to_release(tmp_path: Path) -> None:
    words = tokenizer(tmp_path)
    runs = {}
    for name in ("a", "b"):
        runs[name], recorder = trained(bert)
        path = recorder.save_pretrained(tmp_path / "runs" / name, words)
        files = {one.name for one in path.iterdir()}
        assert {"config.json", "model.safetensors", "record.json", "tokenizer_config.json"} <= files
        assert not files & {"README.md", "optimizer.pt", "training_args.bin"}
        state = runs[name].module._module.state_dict()
        written = load_file(path / "model.safetensors")
        assert written.keys() == state.keys() and all(torch.equal(written[key], state[key]) for key in state)
        held = Record.load(path / "record.json").mechanism
        assert isinstance(held, DpSgd) and held.steps == 3
        again = transformers.AutoModelForSequenceClassification.from_pretrained(path).state_dict()
        assert all(torch.equal(again[key], state[key]) for key in state)
    out = merged(tmp_path / "runs", tmp_path / "out")
    released = transformers.AutoModelForSequenceClassification.from_pretrained(out).state_dict()
    states = [run.module._module.state_dict() for run in runs.values()]
    for key, value in released.items():
        assert torch.allclose(value, (states[0][key].double() + states[1][key].double()).div(2).float(), atol=1e-6), key
    assert len(transformers.AutoTokenizer.from_pretrained(out)("a b c")["input_ids"]) == 5


def test_a_lora_portfolio_from_training_to_release(tmp_path: Path) -> None:
    states = []
    for name in ("a", "b"):
        run, recorder = trained(lora)
        path = recorder.save_pretrained(tmp_path / "runs" / name)
        assert sorted(one.name for one in path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors", "record.json"]
        written = load_file(path / "adapter_model.safetensors")
        assert len(written) == 9 and all("lora_" in key or "score" in key for key in written)  # nothing of the base
        states.append(run.module._module.state_dict())
        assert all(torch.equal(value, states[-1][_name_in(key)]) for key, value in written.items())
    out = merged(tmp_path / "runs", tmp_path / "out")
    released = peft.PeftModel.from_pretrained(same_start(llama, seed=1), out).state_dict()
    for key, value in released.items():
        if "lora_" in key or "modules_to_save" in key:
            assert torch.allclose(value, (states[0][key] + states[1][key]) / 2, atol=1e-6), key
        else:
            assert torch.equal(value, states[0][key]), key


def _name_in(key: str) -> str:
    """PEFT's name of an adapter's tensor in the module."""
    for part in ("lora_A", "lora_B"):
        key = key.replace(f"{part}.weight", f"{part}.default.weight")
    return key.replace("score.weight", "score.modules_to_save.default.weight")


def test_tied_weights_are_written_once_and_a_run_goes_on_from_them(tmp_path: Path) -> None:
    run, recorder = trained(tied)
    path = recorder.save_pretrained(tmp_path / "a")
    written = load_file(path / "model.safetensors")
    assert "lm_head.weight" not in written and "transformer.wte.weight" in written
    inner = run.module._module
    again = transformers.GPT2LMHeadModel.from_pretrained(path)
    assert (
        torch.equal(again.lm_head.weight, inner.transformer.wte.weight) and again.lm_head.weight is again.transformer.wte.weight
    )
    as_a_new_process()
    other = private(build=tied, batch=20)
    other.module._module.load_state_dict(inner.state_dict())
    assert record(*other.parts, dataset="made-up", resume=path).steps == 3


def test_an_adapter_with_a_name_of_its_own(tmp_path: Path) -> None:
    _, recorder = trained(lambda: lora(adapter="mine"))
    path = recorder.save_pretrained(tmp_path / "a")
    assert sorted(one.name for one in path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors", "record.json"]


def test_a_base_that_is_a_path_is_said(tmp_path: Path) -> None:
    base = tmp_path / "base"
    same_start(llama, seed=1).save_pretrained(base)
    run, recorder = trained(lambda: lora(lambda: transformers.LlamaForSequenceClassification.from_pretrained(base)))
    assert run.module._module.peft_config["default"].base_model_name_or_path == str(base)
    with pytest.warns(UserWarning, match="names the base model by a path") as caught:
        recorder.save_pretrained(tmp_path / "a")
    assert caught[0].filename == __file__


def test_adapters_that_are_not_the_whole_training_are_refused(tmp_path: Path) -> None:
    def more() -> Any:
        model = lora()
        model.base_model.model.model.norm.weight.requires_grad_(True)
        return model

    _, recorder = trained(more)
    with pytest.raises(CheckpointError, match=r"norm.weight': trained, but no part of the adapter"):
        recorder.save_pretrained(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    recorder.save(tmp_path / "a")
    _, recorder = trained(lora)
    recorder._tensors.module.add_adapter("other", peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj"]))
    with pytest.raises(TrainingError, match="several adapters"):
        recorder.save_pretrained(tmp_path / "b", leave_out=[n for n in recorder._tensors.module.state_dict() if "other" in n])


def test_other_modules_and_resumed_adapters_are_refused(tmp_path: Path) -> None:
    run = private()
    recorder = record(*run.parts, dataset="d")
    run.train()
    with pytest.raises(TrainingError, match="Sequential is no model of Transformers or PEFT"):
        recorder.save_pretrained(tmp_path / "a")
    _, recorder = trained(lora)
    path = recorder.save_pretrained(tmp_path / "b")
    again = private(build=lambda: same_start(lora), batch=20)
    with pytest.raises(TrainingError, match="an adapter without its base cannot be resumed"):
        record(*again.parts, dataset="made-up", resume=path)


def test_what_the_library_writes_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, recorder = trained(bert)
    model = run.module._module
    original = model.save_pretrained

    def rounded(folder: Any, state_dict: Any) -> None:
        original(folder, state_dict={name: value.to(torch.bfloat16).float() for name, value in state_dict.items()})

    monkeypatch.setattr(model, "save_pretrained", rounded)
    with pytest.raises(CheckpointError, match="would be written otherwise than the module holds it"):
        recorder.save_pretrained(tmp_path / "a")

    def fewer(folder: Any, state_dict: Any) -> None:
        original(folder, state_dict={name: value for name, value in state_dict.items() if "classifier" not in name})

    monkeypatch.setattr(model, "save_pretrained", fewer)
    with pytest.raises(CheckpointError, match=r"'classifier.weight': left out by the model"):
        recorder.save_pretrained(tmp_path / "a")
    assert not (tmp_path / "a").exists()


# --- folders that exist --------------------------------------------------------------------------------------------------


def small() -> Any:
    run = private()
    recorder = record(*run.parts, dataset="d")
    run.train()
    return recorder


def test_a_folder_without_a_model_gets_one(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "optimizer.pt", "training_args.bin", "rng_state.pth", "trainer_state.json"):
        (tmp_path / name).write_text("theirs")
    small().save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"model.safetensors", "record.json", "tokenizer.json"} <= names and len(names) == 7
    assert (tmp_path / "tokenizer.json").read_text() == "theirs"


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "other.safetensors", "pytorch_model.bin", "record.json", "adapter_config.json", "certificate.json",
     "model.safetensors.index.json", "model.pt"],
)  # fmt: skip
def test_a_folder_with_a_model_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(CheckpointError, match=f"holds {name} already"):
        small().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "theirs"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.link

    def late(source: Any, target: Any) -> None:
        if Path(target).name == "record.json":
            Path(target).write_text("theirs")
        original(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(CheckpointError, match=r"record\.json: exists already"):
        small().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"] and (tmp_path / "record.json").read_text() == "theirs"


def test_config_that_exists_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"mine": 1}))
    _, recorder = trained(bert)
    with pytest.raises(CheckpointError, match=r"config\.json: exists already"):
        recorder.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
