"""Whole merges: what comes out, what is refused before a byte is written, what is reported."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from dpmerge.errors import CheckpointError
from dpmerge.tensors import MergeReport, copy_model, merge_models, read_tensors
from dpmerge.tensors.kernel import BLOCK
from tests.checkpoint_builders import (
    NUMPY,
    Array,
    adapter,
    bits,
    combine_tensors,
    sharded,
    single,
    verify_combination,
    write_raw,
)

WEIGHTS = {"a": 0.2, "b": 0.5, "c": 0.3}


def tensors(seed: int, dtype: Any = np.float32) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"big": (3, BLOCK // 2), "bias": (5,), "scalar": (), "none": (0, 3)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def three(root: Path, dtype: Any = np.float32) -> dict[str, Path]:
    return {name: single(root / name, tensors(seed, dtype)) for seed, name in enumerate("abc")}


def expected(models: Mapping[str, Path], weights: Mapping[str, float]) -> dict[str, Array]:
    """The definition, whole tensors at a time; formats of 16 bits through Python's own rounding are tested with the kernel."""
    found: dict[str, Array] = {}
    for name, first in read_tensors(next(iter(models.values()))).items():
        total = None
        for model, weight in weights.items():
            term = weight * read_tensors(models[model])[name].astype(np.float64)
            total = term if total is None else total + term
        assert total is not None
        found[name] = np.asarray(total).astype(first.dtype)
    return found


def refused(root: Path, models: Mapping[str, Path], message: str, **options: Any) -> None:
    """One line, and nothing is left behind."""
    before = sorted(root.iterdir())
    weights = {name: 1 / len(models) for name in models}
    with pytest.raises(CheckpointError, match=message) as caught:
        merge_models(models, weights, root / "out", **options)
    assert "\n" not in str(caught.value)
    assert sorted(root.iterdir()) == before


@pytest.mark.parametrize("name", ["F64", "F32", "F16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_merge_is_the_definition(tmp_path: Path, name: str, threads: int) -> None:
    models = three(tmp_path, NUMPY[name])
    report = merge_models(models, WEIGHTS, tmp_path / "out", threads=threads)
    merged = load_file(tmp_path / "out" / "model.safetensors")
    for tensor, value in expected(models, WEIGHTS).items():
        assert merged[tensor].shape == value.shape and bits(merged[tensor]) == bits(value), tensor
    assert report.parameters == 3 * (BLOCK // 2) + 5 + 1
    assert report.dtypes == {name: report.parameters}


def test_bfloat16_keeps_its_format(tmp_path: Path) -> None:
    models = three(tmp_path, ml_dtypes.bfloat16)
    merge_models(models, WEIGHTS, tmp_path / "out")
    merged = read_tensors(tmp_path / "out")
    assert merged["big"].dtype == ml_dtypes.bfloat16
    sums = sum(w * read_tensors(models[m])["big"].astype(np.float64) for m, w in WEIGHTS.items())
    assert (np.abs(merged["big"].astype(np.float64) - sums) <= 2**-8 * np.abs(sums)).all()  # half a unit in the last place


def test_one_model_with_all_the_weight_is_that_model(tmp_path: Path) -> None:
    models = three(tmp_path)
    merge_models(models, {"b": 1.0}, tmp_path / "out")
    for name, tensor in read_tensors(models["b"]).items():
        assert bits(read_tensors(tmp_path / "out")[name]) == bits(tensor)


def test_models_without_weight_are_not_opened(tmp_path: Path) -> None:
    models = three(tmp_path) | {"gone": tmp_path / "gone"}
    report = merge_models(models, WEIGHTS | {"gone": 0.0}, tmp_path / "out")
    assert set(report.inputs) == {"a", "b", "c"}


def test_order_of_summation_is_the_models_not_the_weights(tmp_path: Path) -> None:
    models = three(tmp_path)
    merge_models(models, dict(reversed(WEIGHTS.items())), tmp_path / "out")
    assert not verify_combination(models, WEIGHTS, tmp_path / "out")


def test_shards_and_index_are_kept(tmp_path: Path) -> None:
    first, second = tensors(1), tensors(2)
    shards = [("big",), ("bias", "scalar", "none")]
    a = sharded(tmp_path / "a", *({name: first[name] for name in shard} for shard in shards))
    b = single(tmp_path / "b", second)  # sharded otherwise: tensors are merged by name
    models, weights = {"a": a, "b": b}, {"a": 0.5, "b": 0.5}
    report = merge_models(models, weights, tmp_path / "out")
    out = tmp_path / "out"
    index = "model.safetensors.index.json"
    assert {path.name for path in out.iterdir()} == {path.name for path in a.iterdir()}
    assert json.loads((out / index).read_text()) == json.loads((a / index).read_text())
    assert not verify_combination(models, weights, out)
    assert report.outputs == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}
    merge_models({"b": b, "a": a}, weights, tmp_path / "one")
    assert {path.name for path in (tmp_path / "one").iterdir()} == {"model.safetensors"}


def reordered(folder: Path, content: Mapping[str, Array], order: list[str]) -> Path:
    """The same tensors in another order of the file, which the library would not write."""
    header, data = {}, b""
    for name in order:
        begin = len(data)
        data += bits(content[name])
        header[name] = {"dtype": "F32", "shape": list(content[name].shape), "data_offsets": [begin, len(data)]}
    return write_raw(folder, header, data)


@pytest.mark.parametrize("threads", [1, 4])
def test_digests_are_those_of_the_files(tmp_path: Path, threads: int) -> None:
    models = three(tmp_path)
    models["d"] = reordered(tmp_path / "d", tensors(7), ["bias", "none", "big", "scalar"])
    models["e"] = reordered(tmp_path / "e", tensors(8), ["scalar", "big", "bias", "none"])
    report = merge_models(models, dict.fromkeys(models, 0.2), tmp_path / "out", threads=threads)
    for name, folder in models.items():
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        assert report.inputs[name] == {"model.safetensors": digest}
    out = tmp_path / "out" / "model.safetensors"
    assert report.outputs == {"model.safetensors": hashlib.sha256(out.read_bytes()).hexdigest()}
    without = merge_models(models, dict.fromkeys(models, 0.2), tmp_path / "again", digests=False)
    assert without.inputs == {} and without.outputs == {}
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == out.read_bytes()


def test_extra_files_appear_with_the_rest(tmp_path: Path) -> None:
    seen: list[MergeReport] = []

    def add(folder: Path, report: MergeReport) -> None:
        assert not (tmp_path / "out").exists()
        seen.append(report)
        (folder / "certificate.json").write_text(json.dumps(dict(report.outputs)))

    report = merge_models(three(tmp_path), WEIGHTS, tmp_path / "out", extra_files=add)
    assert seen == [report]
    assert json.loads((tmp_path / "out" / "certificate.json").read_text()) == report.outputs

    def fail(folder: Path, report: MergeReport) -> None:
        raise ValueError("no certificate")

    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="no certificate"):
        merge_models({"a": tmp_path / "a"}, {"a": 1.0}, tmp_path / "second", extra_files=fail)
    assert sorted(tmp_path.iterdir()) == before


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    merge_models(three(tmp_path), WEIGHTS, tmp_path / "out", progress=lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] == 4 * (3 * BLOCK // 2 + 6)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


# Refusals.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, BLOCK + 7])
def test_one_value_that_is_not_finite(tmp_path: Path, bad: float, place: int) -> None:
    models = three(tmp_path)
    poisoned = tensors(1)
    poisoned["big"].reshape(-1)[place] = bad
    single(models["b"], poisoned)
    refused(tmp_path, models, rf"model 'b', file model.safetensors, tensor 'big': element {place} is ")


def test_a_sum_beyond_the_format(tmp_path: Path) -> None:
    models = {n: single(tmp_path / n, {"x": np.full(3, 60000, np.float16)}) for n in "ab"}
    with pytest.raises(CheckpointError, match="tensor 'x': the weighted sum is beyond the range of F16"):
        merge_models(models, {"a": 1.0, "b": 1.0}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"bias": None}, "model 'b' lacks tensor 'bias', which model 'a' has"),
        ({"more": np.ones(1, np.float32)}, "model 'a' lacks tensor 'more', which model 'b' has"),
        ({"bias": np.ones(5, np.float16)}, "tensor 'bias' as F32 and F16"),
        (
            {"bias": np.ones((5, 1), np.float32)},
            r"tensor 'bias' in shapes \[5\] and \[5, 1\]; they are not of one architecture",
        ),
        ({"embed.weight": np.ones((7, 2), np.float32)}, "vocabularies have different sizes"),
    ],
)
def test_models_that_do_not_belong_together(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    base = tensors(0) | ({"embed.weight": np.ones((6, 2), np.float32)} if "embed.weight" in change else {})
    other = {name: value for name, value in (base | change).items() if value is not None}
    refused(tmp_path, {"a": single(tmp_path / "a", base), "b": single(tmp_path / "b", other)}, message)


def test_integers_are_equal_or_taken_from_one_model(tmp_path: Path) -> None:
    def model(name: str, steps: int) -> Path:
        return single(tmp_path / name, {"x": np.ones(3, np.float32), "steps": np.array(steps), "mask": np.array([True])})

    same = {name: model(name, 7) for name in "ab"}
    merge_models(same, {"a": 0.5, "b": 0.5}, tmp_path / "same")
    assert read_tensors(tmp_path / "same")["steps"] == 7
    models = {"a": model("a", 1), "b": model("b", 2), "c": model("c", 1)}
    message = "models 'a' and 'b' differ in tensor 'steps', which holds I64 and cannot be averaged"
    refused(tmp_path, models, message)
    report = merge_models(models, {"a": 0.25, "b": 0.5, "c": 0.25}, tmp_path / "out", take_from="b")
    assert read_tensors(tmp_path / "out")["steps"] == 2
    assert "tensor 'steps' is that of model 'b': the models differ in it" in report.notes
    for name in models:
        digest = hashlib.sha256((models[name] / "model.safetensors").read_bytes()).hexdigest()
        assert report.inputs[name]["model.safetensors"] == digest
    with pytest.raises(CheckpointError, match="cannot be taken from 'z'"):
        merge_models(models, {"a": 1.0}, tmp_path / "never", take_from="z")


@pytest.mark.parametrize(
    "weights, message",
    [
        ({"z": 1.0}, "no model named 'z'"),
        ({"a": -0.1}, "weights are finite and non-negative"),
        ({"a": np.nan}, "weights are finite"),
        ({"a": 0.0}, "no model has weight"),
        ({}, "no model has weight"),
    ],
)
def test_weights_that_mean_nothing(tmp_path: Path, weights: dict[str, float], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        merge_models(three(tmp_path), weights, tmp_path / "out")


def test_other_refusals(tmp_path: Path) -> None:
    models = three(tmp_path)
    (tmp_path / "there").mkdir()
    for target in (tmp_path / "there", models["a"] / "model.safetensors"):
        with pytest.raises(CheckpointError, match="exists already"):
            merge_models(models, WEIGHTS, target)
    with pytest.raises(CheckpointError, match="make it first"):
        merge_models(models, WEIGHTS, tmp_path / "no" / "out")
    with pytest.raises(CheckpointError, match="0 threads"):
        merge_models(models, WEIGHTS, tmp_path / "out", threads=0)
    refused(tmp_path, {"e": single(tmp_path / "e", {})}, "no tensors in its files")
    lora = {"q.lora_A.weight": np.ones((2, 3), np.float32), "q.lora_B.weight": np.ones((3, 2), np.float32)}
    refused(tmp_path, {"a": models["a"], "l": adapter(tmp_path / "l", lora)}, "one is a LoRA adapter")


# What lies beside the tensors.


def test_configuration_and_tokenizer_are_kept_when_they_agree(tmp_path: Path) -> None:
    models = three(tmp_path)
    for name, folder in models.items():
        (folder / "config.json").write_text(json.dumps({"hidden_size": 4, "_name_or_path": name}))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "vocab.txt").write_text("same" if name != "c" else "other")
        for left in ("record.json", "certificate.json", "README.md", "trainer_state.json", "optimizer.pt", "losses.csv"):
            (folder / left).write_text("{}")
    report = merge_models(models, WEIGHTS, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors", "config.json", "tokenizer.json"}
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"hidden_size": 4}
    assert set(report.outputs) == {"model.safetensors", "config.json", "tokenizer.json"}
    notes = "\n".join(report.notes)
    assert "vocab.txt was left out: it is not the same" in notes and "losses.csv was left out" in notes
    assert "config.json has no _name_or_path: not the same in every model" in notes and "record.json" not in notes


def test_settings_of_training_may_differ_and_are_left_out(tmp_path: Path) -> None:
    models = {name: single(tmp_path / name, tensors(0)) for name in "ab"}
    same = {"hidden_size": 4, "attention_dropout": 0.5}
    first = {**same, "hidden_dropout_prob": 0.1, "resid_pdrop": 0, "classifier_dropout": None, "use_cache": True}
    second = {**same, "hidden_dropout_prob": 0.2, "resid_pdrop": 0.1, "classifier_dropout": 0.3, "encoder_layerdrop": 0.1}
    (models["a"] / "config.json").write_text(json.dumps(first))
    (models["b"] / "config.json").write_text(json.dumps(second))
    report = merge_models(models, {"a": 0.2, "b": 0.8}, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == same
    assert [note for note in report.notes if "hidden_dropout_prob" in note] == [
        "config.json has no hidden_dropout_prob, which matters in training only: 0.1 in 'a', 0.2 in 'b'"
    ]
    assert len(report.notes) == 5
    assert not verify_combination(models, {"a": 0.2, "b": 0.8}, tmp_path / "out")


@pytest.mark.parametrize(
    "field, values",
    [
        ("token_dropout", (True, False)),  # ESM rescales embeddings by it, also of a trained model
        ("hidden_dropout_prob", (0.1, "0.2")),
        ("problem_type", ("single_label_classification", "multi_label_classification")),  # pipelines take softmax or sigmoid
        ("layer_norm_eps", (1e-5, 1e-12)),
        ("dropout_layers", (1, 2)),
        ("use_cache", (True, {})),
    ],
)
def test_settings_that_change_what_a_model_computes_may_not_differ(
    field: str, values: tuple[object, object], tmp_path: Path
) -> None:
    models = {name: single(tmp_path / name, tensors(0)) for name in "ab"}
    for folder, value in zip(models.values(), values, strict=True):
        (folder / "config.json").write_text(json.dumps({field: value}))
    refused(tmp_path, models, f"field '{field}'")


@pytest.mark.parametrize(
    "config, message",
    [({"vocab_size": 9}, "field 'vocab_size': 8 and 9; .*resize the embeddings"), (None, "model 'b': no config.json")],
)
def test_configurations_that_differ(tmp_path: Path, config: object, message: str) -> None:
    models = {name: single(tmp_path / name, tensors(0)) for name in "ab"}
    (models["a"] / "config.json").write_text(json.dumps({"vocab_size": 8}))
    if config is not None:
        (models["b"] / "config.json").write_text(json.dumps(config))
    refused(tmp_path, models, message)


def test_a_link_to_a_secret_is_not_copied(tmp_path: Path) -> None:
    models = three(tmp_path)
    (tmp_path / "secret").write_text("secret")
    for folder in models.values():
        (folder / "tokenizer.json").symlink_to(tmp_path / "secret")
    refused(tmp_path, models, "tokenizer.json is a link out of the model's folder")


def metadata_of(folder: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "numpy") as file:
        found: dict[str, str] = file.metadata()
    return found


def test_metadata_is_kept_only_if_asked_for_by_name(tmp_path: Path) -> None:
    a = single(tmp_path / "a", tensors(0), {"format": "pt", "author": "x", "note": "1"})
    b = single(tmp_path / "b", tensors(1), {"format": "pt", "author": "x", "note": "2"})
    models, weights = {"a": a, "b": b}, {"a": 0.5, "b": 0.5}
    report = merge_models(models, weights, tmp_path / "out")
    assert metadata_of(tmp_path / "out") == {"format": "pt"}
    assert any("metadata author, note was left out" in note for note in report.notes)
    report = merge_models(models, weights, tmp_path / "kept", keep_metadata=["author", "note"])
    assert metadata_of(tmp_path / "kept") == {"format": "pt", "author": "x"}
    notes = "\n".join(report.notes)
    assert "metadata note was left out" in notes and "metadata note was asked for, and is not the same in every file" in notes
    copy_model(a, tmp_path / "copy", keep_metadata=["note"])
    assert metadata_of(tmp_path / "copy") == {"format": "pt", "note": "1"}


@pytest.mark.parametrize("given, written", [({}, "pt"), ({"format": "np"}, "np"), ({"format": "pt, loss 0.3"}, "pt")])
def test_the_format_is_a_word_that_loaders_know(given: dict[str, str], written: str, tmp_path: Path) -> None:
    a = single(tmp_path / "a", tensors(0), given)
    report = merge_models({"a": a}, {"a": 1.0}, tmp_path / "out")
    assert metadata_of(tmp_path / "out") == {"format": written}
    assert (("a", "model.safetensors") in report.plain) == ("loss" not in given.get("format", ""))


# Copies, recomputation, evaluation.


def test_a_copy_has_the_tensors_and_nothing_else_of_the_files(tmp_path: Path) -> None:
    one = single(tmp_path / "one", tensors(0), {"odd": "metadata"})
    (one / "config.json").write_text("{}")
    (one / "trainer_state.json").write_text("{}")

    def add(folder: Path, _: MergeReport) -> None:
        (folder / "README.md").write_text("x")

    report = copy_model(one, tmp_path / "out", extra_files=add)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors", "config.json", "README.md"}
    copied = read_tensors(tmp_path / "out")
    assert {name: tensor.tobytes() for name, tensor in copied.items()} == {k: t.tobytes() for k, t in tensors(0).items()}
    assert metadata_of(tmp_path / "out") == {"format": "pt"}
    digests = [hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() for folder in (one, tmp_path / "out")]
    assert report.inputs == {"one": {"model.safetensors": digests[0]}} and report.outputs["model.safetensors"] == digests[1]
    several = sharded(tmp_path / "several", {"x": tensors(0)["big"]}, {"y": tensors(1)["bias"]})
    index = several / "model.safetensors.index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "metadata": {"total_size": 1, "loss": 0.3}, "more": 1}))
    copy_model(several, tmp_path / "copy", digests=False)
    for path in several.glob("*.safetensors"):
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()
    total = sum(tensor.nbytes for tensor in read_tensors(several).values())
    held = json.loads((tmp_path / "copy" / index.name).read_text())
    assert held["metadata"] == {"total_size": total} and set(held) == {"metadata", "weight_map"}
    with pytest.raises(CheckpointError, match="exists already"):
        copy_model(one, tmp_path / "copy")


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_verification_names_the_first_difference(tmp_path: Path, dtype: str) -> None:
    models = three(tmp_path, NUMPY[dtype])
    merge_models(models, WEIGHTS, tmp_path / "out")
    assert verify_combination(models, WEIGHTS, tmp_path / "out") == []
    found = read_tensors(tmp_path / "out")
    changed = found["big"].copy()
    changed.reshape(-1)[[BLOCK + 3, BLOCK + 9, 70]] *= 2
    single(tmp_path / "out", {**found, "big": changed})
    (difference,) = verify_combination(models, WEIGHTS, tmp_path / "out", threads=3)
    assert (difference.tensor, difference.index) == ("big", 70)
    assert "tensor 'big': element 70 is " in str(difference)


def test_verification_of_other_tensors(tmp_path: Path) -> None:
    models = three(tmp_path)
    zero = {"x": np.array([0.0], np.float32), "y": np.ones(2, np.float32), "z": np.ones(1, np.float32)}
    for folder in models.values():
        single(folder, zero)
    single(tmp_path / "out", {"x": np.array([-0.0], np.float32), "y": np.ones((2, 1), np.float32), "more": zero["z"]})
    found = {difference.tensor: str(difference) for difference in verify_combination(models, {"a": 1.0}, tmp_path / "out")}
    assert "element 0 is -0.0, not 0.0" in found["x"]
    assert "is F32 [2, 1], not F32 [2]" in found["y"]
    assert "is missing" in found["z"] and "is not part of the merge" in found["more"]


def test_combination_in_memory_is_the_one_on_disk(tmp_path: Path) -> None:
    models = three(tmp_path, ml_dtypes.bfloat16)
    merge_models(models, WEIGHTS, tmp_path / "out")
    on_disk = read_tensors(tmp_path / "out")
    for name, tensor in combine_tensors(models, WEIGHTS).items():
        assert tensor.dtype == on_disk[name].dtype and tensor.shape == on_disk[name].shape
        assert bits(tensor) == bits(on_disk[name])


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    three(tmp_path)
    script = (
        "import sys; from pathlib import Path; from dpmerge.tensors import merge_models\n"
        "from tests.checkpoint_builders import verify_combination\n"
        "root = Path(sys.argv[1]); models = {n: root / n for n in 'abc'}; w = {'a': .5, 'b': .5}\n"
        "merge_models(models, w, root / 'out'); assert not verify_combination(models, w, root / 'out')\n"
        "assert 'torch' not in sys.modules and 'scipy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("shards", [1, 4])
def test_memory_does_not_grow_with_the_model(tmp_path: Path, shards: int) -> None:
    big = np.ones(16 << 20, np.float32)  # 64 MB
    parts = [{f"x{n}": part} for n, part in enumerate(np.split(big, shards))]
    for name in "ab":
        sharded(tmp_path / name, *parts) if shards > 1 else single(tmp_path / name, parts[0])
    script = (
        "import sys; from pathlib import Path; from dpmerge.tensors import merge_models\n"
        "def peak(): return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM')) / 1024\n"
        "root, before = Path(sys.argv[1]), peak()\n"
        "merge_models({n: root / n for n in 'ab'}, {'a': .5, 'b': .5}, root / 'out', threads=2)\n"
        "print(peak() - before, peak())\n"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True, capture_output=True)
    growth, peak = map(float, result.stdout.split())
    assert growth < 32 and peak < 150


def test_torch_loads_the_output(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from safetensors.torch import load_file as load_with_torch

    merge_models(three(tmp_path, ml_dtypes.bfloat16), WEIGHTS, tmp_path / "out")
    assert str(load_with_torch(tmp_path / "out" / "model.safetensors")["big"].dtype) == "torch.bfloat16"
