"""What a training wrote beside its tensors stays behind: canaries in every file of a model, in every release."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attacks.victim import forge
from dpmerge import renoise, verify
from dpmerge.checkpoints import average
from dpmerge.files import sha256
from dpmerge.records import Portfolio
from dpmerge.release import Merge, Released, release, release_together
from dpmerge.tensors import copy_model, merge_models
from dpmerge.tensors.config_fields import needed
from tests import builders
from tests.checkpoint_builders import adapter, single
from tests.release_builders import DELTA, chosen, dpmerge, on_disk, runs, tensors
from tests.run_builders import run_on_disk
from tests.test_tensors_lora import factors

CANARY = "patient Jane Doe"
KEY = "ss_tag_frequency"
SEED = 3141592653589793238  # so long that no digest and no number has it by chance
# What a loader needs stands first in each; canaries are under names of their own, and under known names as sentences.
CONFIGS: dict[str, dict[str, Any]] = {
    "config.json": {
        "model_type": "bert",
        "hidden_size": 4,
        "id2label": {"0": "not ill", "1": "ill"},
        "text_config": {"hidden_size": 8, "vision_config": [{"hidden_act": "gelu", KEY: CANARY}], KEY: CANARY},
        "hidden_act": CANARY,
        "architectures": ["BertModel", CANARY],
        "auto_map": {"AutoModel": CANARY},
        "_name_or_path": f"{CANARY}",
        "task_specific_params": {"note": CANARY},
    },
    "adapter_config.json": {"revision": CANARY, "rank_pattern": {CANARY: 2}},
    "generation_config.json": {"max_length": 20, "assistant": {KEY: CANARY}},
    "tokenizer_config.json": {
        "tokenizer_class": "BertTokenizer",
        "pad_token": "[PAD]",
        "init_kwargs": {KEY: CANARY},
        "processor_class": CANARY,
    },
    "special_tokens_map.json": {"pad_token": {"content": "[PAD]", KEY: CANARY}},
    "tokenizer.json": {"version": "1.0", "model": {"vocab": {"a": 0}}, "trained on": CANARY},
    "vocab.json": {"a": 0, "note": CANARY},
    "added_tokens.json": {"b": 1, "note": CANARY},
    "preprocessor_config.json": {"image_mean": [0.5], "size": {"height": 4, "width": 4}, "resample": CANARY},
    "processor_config.json": {"processor_class": "X", "notes": CANARY},
    "chat_template.json": {"chat_template": "{{ messages }} in two words", KEY: CANARY},
}
LEFT = ["trainer_state.json", "training_args.bin", "tokenizer_state.json", "sentencepiece_log.model", ".notes", "losses.csv"]
LEFT += ["README.md", "image_processor_of_Jane_config.json", f"{CANARY}.txt", "optimizer.pt"]


def plant(folder: Path) -> None:
    """A canary in every file that may lie beside the tensors."""
    for name, fields in CONFIGS.items():
        path = folder / name
        if name == "adapter_config.json" and not path.exists():
            continue
        own = json.loads(path.read_text()) if path.exists() else {}
        numbers = {} if name in ("vocab.json", "added_tokens.json") else {CANARY: 1, "noise_seed": SEED}  # those are tokens
        path.write_text(json.dumps({**own, **fields, KEY: CANARY, **numbers}))
    (folder / "feature_processor_config.json").write_text(f'"{CANARY}"')
    (folder / "video_processor_config.json").write_text(f"{{{CANARY}")
    (folder / "image_processor_config.json").write_text(f'{{"size": "{CANARY}", "size": 4}}')
    for name in LEFT:
        (folder / name).write_text(CANARY)
    (folder / "logs").mkdir()
    (folder / "logs" / "log.json").write_text(CANARY)
    for path in folder.glob("*.safetensors"):
        save_file(load_file(path), path, {"format": f"pt of {CANARY}", KEY: CANARY, "noise_seed": str(SEED)})
    for path in folder.glob("*.index.json"):
        index = json.loads(path.read_text())
        path.write_text(json.dumps({**index, "metadata": {"total_size": 1, KEY: CANARY}, KEY: CANARY}))


def clean(out: Path) -> None:
    """No file of a release tells a canary, in its name or its content."""
    for path in out.rglob("*"):
        held = path.name.encode() + (path.read_bytes() if path.is_file() else b"")
        assert b"Jane" not in held and str(SEED).encode() not in held, path.name


def portfolio_in(folder: Path, make: Callable[[Path, int], None]) -> Portfolio:
    for seed, (name, sigma) in enumerate({"a": 4.0, "b": 40.0}.items()):
        model = builders.dp_sgd(name, sigma=sigma, steps=10, smoothness=0.2)
        make(folder / name, seed)
        (folder / name / "record.json").write_text(model.record.model_dump_json(by_alias=True))
        plant(folder / name)
    return Portfolio(folder)


def _sharded(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    files = {"weight": f"{seed}-{CANARY}.safetensors", "bias": f"loss-{SEED}.safetensors"}
    for name, file in files.items():
        save_file({name: tensors(seed)[name]}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def _opacus(folder: Path, seed: int) -> None:
    torch = pytest.importorskip("torch")
    folder.mkdir(parents=True)
    state = {f"_module.{name}": torch.from_numpy(value) for name, value in tensors(seed).items()}
    rest = {"optimizer_state_dict": {"note": CANARY}, KEY: CANARY, "noise_seed": SEED}
    torch.save({"module_state_dict": state, **rest}, folder / f"{CANARY} {SEED}.pt")


LAYOUTS: dict[str, Callable[[Path, int], Any]] = {
    "single": lambda folder, seed: single(folder, tensors(seed)),
    "sharded": _sharded,
    "adapter": lambda folder, seed: adapter(folder, factors(seed), base_model_name_or_path="org/base"),
    "opacus": _opacus,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", ["selection", "combination", "joint"])
def test_no_canary_goes_out_of_any_layout(rule: Any, layout: str, tmp_path: Path) -> None:
    portfolio = portfolio_in(tmp_path / "runs", LAYOUTS[layout])
    made = release(portfolio, chosen(portfolio, rule), tmp_path / "out")
    clean(made.folder)
    config = json.loads((made.folder / "config.json").read_text())
    inner = {"hidden_size": 8, "vision_config": [{"hidden_act": "gelu"}]}
    labels = {"0": "not ill", "1": "ill"}
    assert config == {"model_type": "bert", "hidden_size": 4, "id2label": labels, "text_config": inner}
    assert json.loads((made.folder / "chat_template.json").read_text()) == {"chat_template": "{{ messages }} in two words"}
    assert json.loads((made.folder / "tokenizer.json").read_text()) == {"version": "1.0", "model": {"vocab": {"a": 0}}}
    assert json.loads((made.folder / "vocab.json").read_text()) == {"a": 0}
    assert json.loads((made.folder / "preprocessor_config.json").read_text())["size"] == {"height": 4, "width": 4}
    assert verify(made.folder, portfolio=portfolio, strict=True).code == 0
    told = "\n".join(made.notes)
    assert told.count(KEY) >= 9 and f"'{CANARY}'" in told and "noise_seed" in told
    assert str(SEED) not in told.replace(f"{CANARY} {SEED}.pt", "").replace(f"loss-{SEED}", "")  # named by key, never by value
    assert "feature_processor_config.json was left out: it cannot be read as a JSON object" in told
    assert "tokenizer_state.json was left out: not a configuration or tokenizer file" in told


def test_nor_with_noise_nor_more_noise_nor_of_checkpoints_nor_coupled(tmp_path: Path) -> None:
    portfolio = portfolio_in(tmp_path / "runs", LAYOUTS["single"])
    one = portfolio.weights({"a": 1.0})
    noisy = release(portfolio, chosen(portfolio, "combination", weights=one, noise=0.5), tmp_path / "noisy")
    clean(noisy.folder)
    for bound in (None, 2.0**-20):  # below all numbers: the release is copied and cut first
        clean(renoise(noisy.folder, out=tmp_path / f"more {bound}", delta=DELTA, noise=1.0, bound=bound).folder)
    choices = {name: chosen(portfolio, "selection", weights=one) for name in ("x", "y")}
    for made in release_together(portfolio, choices, tmp_path / "coupled"):
        clean(made.folder)
    run = run_on_disk(tmp_path / "run")
    for model in run.portfolio.models:
        assert model.folder is not None
        plant(model.folder)
    clean(average(run, tmp_path / "average", rule="uniform", delta=DELTA).folder)


@pytest.fixture
def public(tmp_path: Path) -> Portfolio:
    """Models with a field and an entry that are public, under names that nothing needs."""
    portfolio = runs(tmp_path)
    for number, model in enumerate(portfolio.models):
        assert model.folder is not None
        single(model.folder, tensors(number), {"format": "pt", "author": "ann", "number": str(number)})
        (model.folder / "config.json").write_text(
            '{"model_type": "linear", "width": {"own": 4}, "depth_of": 2, "author": "ann"}'
        )
    return portfolio


def config_of(made: Released) -> Any:
    return json.loads((made.folder / "config.json").read_text())


def test_what_is_named_goes_out_and_the_certificate_says_so(public: Portfolio, tmp_path: Path) -> None:
    kept = Merge(keep_metadata=("depth_of", "author", "number", "nothing"))
    made = release(public, chosen(public, "combination"), tmp_path / "out", merge=kept)
    assert config_of(made)["depth_of"] == 2 and config_of(made)["author"] == "ann"
    assert b'"__metadata__":{"format":"pt","author":"ann"}' in (made.folder / "model.safetensors").read_bytes()
    assert made.certificate.merge.keep_metadata == ["author", "depth_of", "nothing", "number"]
    assert "metadata nothing, number was asked for, and is not the same in every file" in made.notes
    assert verify(made.folder, portfolio=public, strict=True).code == 0
    forge(made.folder, lambda content: content["merge"].update(keep_metadata=["author"]))
    broken = verify(made.folder, portfolio=public).broken
    assert broken == ["config.json is not what the merge keeps of its models' own"]


def test_the_command_names_what_it_leaves_out_and_keeps_what_it_is_told(public: Portfolio, tmp_path: Path) -> None:
    asked = ["merge", tmp_path / "runs", "--rule", "selection", "--weights", "a=1", "--delta", DELTA]
    said = dpmerge(*asked, "--out", tmp_path / "one", "--json")
    notes = json.loads(said.stdout)["notes"]
    assert any(note.startswith("config.json goes out without author, depth_of") for note in notes)
    assert any(note.startswith("metadata author, number was left out") for note in notes)
    assert "ann" not in said.stdout.replace("channel", "")
    assert "note: config.json goes out without author, depth_of" in dpmerge(*asked, "--out", tmp_path / "two").stdout
    dpmerge(*asked, "--out", tmp_path / "three", "--keep-metadata", "depth_of", "--keep-metadata", "number")
    assert json.loads((tmp_path / "three" / "config.json").read_text())["depth_of"] == 2
    assert b'"number":"0"' in (tmp_path / "three" / "model.safetensors").read_bytes()


def test_averages_of_checkpoints_and_more_noise_keep_what_is_named_too(tmp_path: Path) -> None:
    run = run_on_disk(tmp_path / "run")
    for model in run.portfolio.models:
        assert model.folder is not None
        (model.folder / "config.json").write_text('{"depth_of": 2}')
    arguments = [
        "run",
        "average",
        tmp_path / "run" / "run",
        "--rule",
        "uniform",
        "--delta",
        DELTA,
        "--out",
        tmp_path / "average",
    ]
    assert dpmerge(*arguments, "--keep-metadata", "depth_of").exit_code == 0
    assert json.loads((tmp_path / "average" / "config.json").read_text()) == {"depth_of": 2}
    model = builders.dp_sgd("a", sigma=4.0, steps=10, smoothness=0.2)
    portfolio = on_disk(tmp_path / "runs", model)
    single(tmp_path / "runs" / "a", tensors(0), {"format": "pt", "author": "ann"})
    (tmp_path / "runs" / "a" / "config.json").write_text('{"depth_of": 2}')
    choice = chosen(portfolio, "combination", weights=portfolio.weights({"a": 1.0}), noise=0.5)
    first = release(portfolio, choice, tmp_path / "first", merge=Merge(keep_metadata=("depth_of", "author")))
    for bound in (None, 2.0**-20):
        more = renoise(first.folder, out=tmp_path / f"more {bound}", delta=DELTA, noise=1.0, bound=bound)
        assert config_of(more) == {"depth_of": 2}
        assert b'"author":"ann"' in (more.folder / "model.safetensors").read_bytes()


def test_releases_of_earlier_versions_hold_with_a_warning(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    for model in portfolio.models:
        assert model.folder is not None
        (model.folder / "config.json").write_text('{"model_type": "linear", "private_val_loss": 0.3}')
        (model.folder / "tokenizer_more.json").write_text("{}")
    out = release(portfolio, chosen(portfolio, "joint"), tmp_path / "out").folder
    once = {"config.json": b'{"model_type": "linear", "private_val_loss": 0.3}', "tokenizer_more.json": b"{}"}
    for name, content in once.items():
        (out / name).write_bytes(content)
    forge(out, lambda content: content["outputs"].update({name: sha256(text) for name, text in once.items()}))
    verdict = verify(out, portfolio=portfolio)
    assert not verdict.broken and [warning.split(" is as")[0] for warning in verdict.warnings] == [*once]
    forge(out, lambda content: content["outputs"].update({"tokenizer_more.json": sha256(b"{ }")}))
    (out / "tokenizer_more.json").write_bytes(b"{ }")
    assert "tokenizer_more.json is not what the merge keeps of its models' own" in verify(out, portfolio=portfolio).broken


@pytest.mark.parametrize("name", ["x\nnote: all is well", "\x1b[2J", "k" * 200, CANARY])
def test_a_name_of_a_field_cannot_pass_for_a_line_of_the_notes(name: str, tmp_path: Path) -> None:
    one = single(tmp_path / "one", tensors(0), {"format": "pt", name: CANARY})
    (one / "config.json").write_text(json.dumps({name: CANARY}))
    for notes in (
        copy_model(one, tmp_path / "copy", keep_metadata=[f"not {name}"]).notes,
        merge_models({"one": one}, {"one": 1.0}, tmp_path / "merged").notes,
    ):
        assert len(notes) >= 2 and all(note.isprintable() and len(note) < 400 for note in notes)


def test_what_needs_no_change_goes_out_byte_for_byte() -> None:
    for content in (b'{"hidden_size":4,\n\n "id2label": {"0": "two words"}}', b'{"time_step_limit": [0.0, Infinity]}', b"{}"):
        assert needed("config.json", content) == (content, [])
    assert needed("vocab.txt", b"any words\n") == (b"any words\n", [])
    linear = (
        b'{"model_type": "dpmerge-linear", "loss": "logistic", "norm_bound": 1.0, "network": {"network": "n", "size": 224}}'
    )
    assert needed("config.json", linear) == (linear, [])
    assert needed("config.json", linear.replace(b"dpmerge-linear", b"bert"))[1] == ["loss", "network", "norm_bound"]


def test_architectures_of_transformers_keep_what_they_are_loaded_by(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name in ("bert", "gpt2", "llama", "t5", "vit", "clip", "whisper", "mistral", "mixtral", "mamba2", "gemma3", "resnet"):
        config = transformers.CONFIG_MAPPING[name]()
        written, dropped = needed("config.json", config.to_json_string(use_diff=False).encode())
        assert set(dropped) <= {"_name_or_path"}, name
        assert written is not None
        (tmp_path / "config.json").write_bytes(written)
        assert transformers.AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict(), name


def test_every_field_of_peft_is_known() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["q"], rank_pattern={"layer.1.q": 4}).to_dict()
    text = json.dumps(settings, default=sorted).encode()
    assert needed("adapter_config.json", text) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        b"[1]",
        b"{",
        b'{"a": 1, "a": 2}',
        b'{"hidden_act": "\\ud800", "a": 1}',
        b"\xff",
        b'{"vision_config":' * 700 + b"1" + b"}" * 700,
    ],
)
def test_files_that_cannot_be_read_for_certain_stay_behind(text: bytes, tmp_path: Path) -> None:
    assert needed("config.json", text) == (None, [])
    one = single(tmp_path / "one", tensors(0))
    (one / "config.json").write_bytes(text)
    report = copy_model(one, tmp_path / "copy")
    assert "config.json was left out: it cannot be read as a JSON object" in report.notes
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["model.safetensors"]


def test_a_tokenizer_keeps_its_words() -> None:
    transformers = pytest.importorskip("transformers")
    tokens = {"unk_token": "<unk nown>", "additional_special_tokens": ["two words"], "chat_template": "{{ a }} b"}
    decoder = {
        "0": {"content": "   ", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": False}
    }
    text = json.dumps({**tokens, "added_tokens_decoder": decoder, "model_max_length": 8}).encode()
    assert needed("tokenizer_config.json", text) == (text, [])
    written, dropped = needed("tokenizer_config.json", json.dumps({**tokens, "tokenizer_class": CANARY}).encode())
    assert written is not None and json.loads(written) == tokens and dropped == ["tokenizer_class"]
    generation = transformers.GenerationConfig(max_new_tokens=4, stop_strings=None).to_json_string(use_diff=False).encode()
    assert needed("generation_config.json", generation) == (generation, [])


def test_kept_fields_are_kept_whole_and_at_any_depth() -> None:
    text = json.dumps({"mine": {"own": CANARY}, "text_config": {"mine": 1, "other": 2}}).encode()
    written, dropped = needed("config.json", text, ["mine"])
    assert written is not None and json.loads(written) == {"mine": {"own": CANARY}, "text_config": {"mine": 1}}
    assert dropped == ["other"]
    assert np.all([needed(name, b"[1]") == (None, []) for name in CONFIGS])
