"""LoRA adapters: averages of factors, exact sums of updates, and everything that is not plain LoRA."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpmerge.errors import CheckpointError
from dpmerge.tensors import copy_model, merge_models, open_model
from tests.checkpoint_builders import Array, adapter, bits, combine_tensors, single, verify_combination

LAYERS = ("q", "v")
WEIGHTS = {"a": 0.3, "b": 0.7}
PREFIX = "base_model.model."


def factors(seed: int, rank: int = 2, dtype: Any = np.float64) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    pairs = {}
    for layer in LAYERS:
        pairs[f"{PREFIX}{layer}.lora_A.weight"] = rng.standard_normal((rank, 5)).astype(dtype)
        pairs[f"{PREFIX}{layer}.lora_B.weight"] = rng.standard_normal((4, rank)).astype(dtype)
    return pairs


def update(folder: Path, layer: str) -> Array:
    """ΔW, as PEFT computes it."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    scaling = config["lora_alpha"] / (math.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    down, up = tensors[f"{PREFIX}{layer}.lora_A.weight"], tensors[f"{PREFIX}{layer}.lora_B.weight"]
    return np.asarray(scaling * up.reshape(up.shape[:2]) @ down.reshape(len(down), -1))


def test_factors_are_averaged(tmp_path: Path) -> None:
    models = {"a": adapter(tmp_path / "a", factors(0)), "b": adapter(tmp_path / "b", factors(1), target_modules=["v", "q"])}
    merge_models(models, WEIGHTS, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    merged = load_file(tmp_path / "out" / "adapter_model.safetensors")
    for name, tensor in factors(0).items():
        assert bits(merged[name]) == bits(0.3 * tensor + 0.7 * factors(1)[name])
    with open_model(tmp_path / "out") as checkpoint:
        assert checkpoint.adapter["r"] == 2 and checkpoint.adapter["lora_alpha"] == 4
    assert not verify_combination(models, WEIGHTS, tmp_path / "out")


def test_different_dropout_is_said_and_left_out(tmp_path: Path) -> None:
    models = {"a": adapter(tmp_path / "a", factors(0)), "b": adapter(tmp_path / "b", factors(1), lora_dropout=0.1)}
    report = merge_models(models, WEIGHTS, tmp_path / "out")
    assert "lora_dropout" not in json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert report.notes == ("adapter_config.json has no lora_dropout, which matters in training only: 0.0 in 'a', 0.1 in 'b'",)


def test_exact_sum_of_updates(tmp_path: Path) -> None:
    models = {
        "a": adapter(tmp_path / "a", factors(0)),
        "b": adapter(tmp_path / "b", factors(1, rank=3), r=3, lora_alpha=5.5, use_rslora=True),
    }
    report = merge_models(models, WEIGHTS, tmp_path / "out", lora="exact")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (5, 5, False)
    for layer in LAYERS:
        expected = 0.3 * update(models["a"], layer) + 0.7 * update(models["b"], layer)
        np.testing.assert_allclose(update(tmp_path / "out", layer), expected, rtol=1e-13, atol=1e-14)
    assert not verify_combination(models, WEIGHTS, tmp_path / "out", lora="exact")
    assert set(report.inputs["a"]) == {"adapter_model.safetensors", "adapter_config.json"}
    merged = load_file(tmp_path / "out" / "adapter_model.safetensors")
    name = f"{PREFIX}q.lora_A.weight"
    assert bits(merged[name]) == bits(np.concatenate([factors(0)[name], factors(1, rank=3)[name]]))


def test_factors_are_not_the_exact_sum(tmp_path: Path) -> None:
    """The two forms differ, so the choice must be the user's."""
    models = {name: adapter(tmp_path / name, factors(seed)) for seed, name in enumerate("ab")}
    merge_models(models, WEIGHTS, tmp_path / "factors")
    merge_models(models, WEIGHTS, tmp_path / "exact", lora="exact")
    assert np.abs(update(tmp_path / "factors", "q") - update(tmp_path / "exact", "q")).max() > 0.1


def test_exact_sum_of_embeddings_convolutions_and_saved_modules(tmp_path: Path) -> None:
    def tensors(seed: int, rank: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {
            "e.lora_embedding_A": rng.standard_normal((rank, 11)).astype(np.float32),
            "e.lora_embedding_B": rng.standard_normal((4, rank)).astype(np.float32),
            f"{PREFIX}q.lora_A.weight": rng.standard_normal((rank, 3, 2, 2)).astype(np.float32),
            f"{PREFIX}q.lora_B.weight": rng.standard_normal((4, rank, 1, 1)).astype(np.float32),
            f"{PREFIX}classifier.weight": rng.standard_normal((2, 4)).astype(np.float32),
        }

    saved = {"modules_to_save": ["classifier"]}
    models = {
        "a": adapter(tmp_path / "a", tensors(0, 2), **saved),
        "b": adapter(tmp_path / "b", tensors(1, 1), r=1, lora_alpha=8, **saved),
    }
    merge_models(models, WEIGHTS, tmp_path / "out", lora="exact")
    merged = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert merged["e.lora_embedding_A"].shape == (3, 11) and merged["e.lora_embedding_B"].shape == (4, 3)
    one, two = tensors(0, 2), tensors(1, 1)
    delta = 0.3 * 2 * one["e.lora_embedding_B"] @ one["e.lora_embedding_A"]
    delta = delta + 0.7 * 8 * two["e.lora_embedding_B"] @ two["e.lora_embedding_A"]
    np.testing.assert_allclose(merged["e.lora_embedding_B"] @ merged["e.lora_embedding_A"], delta, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        update(tmp_path / "out", "q"), 0.3 * update(models["a"], "q") + 0.7 * update(models["b"], "q"), rtol=1e-4, atol=1e-5
    )
    name = f"{PREFIX}classifier.weight"
    np.testing.assert_allclose(merged[name], 0.3 * one[name] + 0.7 * two[name], atol=1e-6)


def test_copy_of_an_adapter(tmp_path: Path) -> None:
    source = adapter(tmp_path / "a", factors(0))
    copy_model(source, tmp_path / "out")
    for path in source.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "config, message",
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is set"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"layer_replication": [[0, 4]]}, "layer_replication is set"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is set"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is .pissa., which changes the base"),
        ({"r": 0}, "r is 0"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": "4"}, "lora_alpha is '4'"),
    ],
)
def test_settings_that_are_not_plain_lora(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"model 'a', file adapter_config.json: {message}"):
        open_model(adapter(tmp_path / "a", factors(0), **config))


@pytest.mark.parametrize(
    "name, message",
    [
        (f"{PREFIX}q.lora_magnitude_vector", "neither a factor of a plain LoRA pair nor"),
        (f"{PREFIX}classifier.weight", "neither a factor of a plain LoRA pair nor"),
        (f"{PREFIX}z.lora_A.weight", "its partner 'base_model.model.z.lora_B.weight' is missing"),
    ],
)
def test_tensors_that_are_not_plain_lora(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_model(adapter(tmp_path / "a", factors(0) | {name: np.ones((2, 5))}))


def test_pairs_that_do_not_fit(tmp_path: Path) -> None:
    name = f"{PREFIX}q.lora_A.weight"
    for change, message in (
        (np.ones((3, 5)), "rank 3, but its partner has rank 2"),
        (np.ones(2), "is not a factor of a LoRA pair"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_model(adapter(tmp_path / "a", factors(0) | {name: change}))
    with pytest.raises(CheckpointError, match="holds no LoRA factors"):
        open_model(adapter(tmp_path / "b", {"c.weight": np.ones(1)}, modules_to_save=["c"]))


@pytest.mark.parametrize(
    "config, form, message",
    [
        ({"lora_alpha": 8}, "factors", "field 'lora_alpha': 4 and 8"),
        ({"use_rslora": True}, "factors", "field 'use_rslora'"),
        ({"target_modules": ["q"]}, "factors", "field 'target_modules'"),
        ({"target_modules": ["q"]}, "exact", "field 'target_modules'"),
        ({"base_model_name_or_path": "other"}, "exact", "field 'base_model_name_or_path'"),
        ({"rank_pattern": {"q": 4}}, "factors", "field 'rank_pattern'"),
        ({"r": 3}, "exact", "rank 2, but adapter_config.json says 3"),
    ],
)
def test_adapters_that_do_not_belong_together(tmp_path: Path, config: dict[str, Any], form: Any, message: str) -> None:
    models = {"a": adapter(tmp_path / "a", factors(0)), "b": adapter(tmp_path / "b", factors(1), **config)}
    with pytest.raises(CheckpointError, match=message):
        merge_models(models, WEIGHTS, tmp_path / "out", lora=form)
    assert not (tmp_path / "out").exists()


def test_patterns_have_no_exact_sum_but_equal_ones_average(tmp_path: Path) -> None:
    models = {n: adapter(tmp_path / n, factors(seed), alpha_pattern={"q": 8}) for seed, n in enumerate("ab")}
    combine_tensors(models, WEIGHTS)
    with pytest.raises(CheckpointError, match="alpha_pattern gives layers"):
        combine_tensors(models, WEIGHTS, lora="exact")


def test_exact_sums_need_layers_of_one_shape(tmp_path: Path) -> None:
    other = factors(1) | {f"{PREFIX}q.lora_A.weight": np.ones((2, 6))}
    models = {"a": adapter(tmp_path / "a", factors(0)), "b": adapter(tmp_path / "b", other)}
    with pytest.raises(CheckpointError, match=r"shape \[2, 6\] does not match \[2, 5\] in model 'a'"):
        combine_tensors(models, WEIGHTS, lora="exact")


def test_ranks_that_differ_do_not_average(tmp_path: Path) -> None:
    models = {"a": adapter(tmp_path / "a", factors(0)), "b": adapter(tmp_path / "b", factors(1, rank=3), r=3)}
    with pytest.raises(CheckpointError, match="in shapes"):
        combine_tensors(models, WEIGHTS)


def test_exact_and_a_method_contradict_each_other(tmp_path: Path) -> None:
    models = {n: adapter(tmp_path / n, factors(seed)) for seed, n in enumerate("ab")}
    with pytest.raises(CheckpointError, match="cannot be combined with the method 'ties'"):
        combine_tensors(models, WEIGHTS, lora="exact", method="ties")


def test_forms_that_do_not_exist_or_apply(tmp_path: Path) -> None:
    models = {n: adapter(tmp_path / n, factors(seed)) for seed, n in enumerate("ab")}
    with pytest.raises(CheckpointError, match="not by 'average'"):
        combine_tensors(models, WEIGHTS, lora="average")
    whole = {n: single(tmp_path / f"whole-{n}", factors(seed)) for seed, n in enumerate("ab")}
    with pytest.raises(CheckpointError, match="model 'a' is not a LoRA adapter"):
        combine_tensors(whole, WEIGHTS, lora="exact")


def test_a_value_that_is_not_finite(tmp_path: Path) -> None:
    poisoned = factors(1)
    poisoned[f"{PREFIX}v.lora_B.weight"][1, 1] = np.nan
    models = {"a": adapter(tmp_path / "a", factors(0)), "b": adapter(tmp_path / "b", poisoned)}
    with pytest.raises(
        CheckpointError, match=r"model 'b', file adapter_model.safetensors, tensor '.*v.lora_B.weight': element 3"
    ):
        merge_models(models, WEIGHTS, tmp_path / "out", lora="exact")
    assert not (tmp_path / "out").exists()
