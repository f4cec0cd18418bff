"""LoRA adapters in PEFT's format, and the two ways to combine them.

An adapter with factors A (r × in), B (out × r) and scaling s = α/r (α/√r with rsLoRA) adds ΔW = s·BA to a layer.

- `factors`: A and B are averaged like any other tensor, a linear map of what was trained. ΔW is then *not* the average of the
  updates, since the product is not linear. The adapters must have the same rank, scaling and layers.
- `exact`: ΔW = Σ wᵢΔWᵢ, by stacking: A = [A₁; A₂; …], B = [w₁s₁B₁, w₂s₂B₂, …], of rank Σ rᵢ. The new scaling is 1 (α = r).
  B's entries are fl(fl(wᵢ·sᵢ)·b) in float64, rounded once to the tensors' format; A is kept bit for bit.

Tensors of `modules_to_save` are ordinary tensors, and averaged in both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint, Tensor
from dpmerge.tensors.companions import agreed, left_out, require_agreement
from dpmerge.tensors.dtypes import Floats
from dpmerge.tensors.opening import ADAPTER_CONFIG
from dpmerge.tensors.stream import Output, Sum, Whole

_FACTOR = re.compile(r"(?P<layer>.+)\.lora_(?P<embedding>embedding_)?(?P<factor>[AB])(\.weight)?")
# Settings under which ΔW is more, or other, than s·BA; each must be absent or off.
_NOT_PLAIN = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "use_bdlora",
    "loftq_config",
    "corda_config",
    "lora_ga_config",
    "layer_replication",
    "megatron_config",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "target_parameters",
)
# Fields that say nothing about ΔW once it is trained.
_HARMLESS = {
    "inference_mode",
    "lora_dropout",
    "auto_mapping",
    "peft_version",
    "init_lora_weights",
    "eva_config",
    "runtime_config",
}
_MOST_RANK, _MOST_ALPHA = 2**53, 1e100  # floats hold them, and their products
_SCALING = {"r", "lora_alpha", "use_rslora"}


def check_adapter(checkpoint: Checkpoint) -> None:
    """Refuse what is not plain LoRA: a pair of factors for every layer, and whole modules besides."""
    config, where = checkpoint.adapter, f"model {checkpoint.model!r}, file {ADAPTER_CONFIG}"
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{where}: peft_type is {config.get('peft_type')!r}; only LORA adapters can be merged")
    for field in _NOT_PLAIN:
        if config.get(field):
            raise CheckpointError(f"{where}: {field} is set, so the adapter is not plain LoRA and cannot be merged as one")
    if config.get("bias", "none") != "none":
        raise CheckpointError(
            f"{where}: bias is {config['bias']!r}, which trains the base model's biases; only 'none' is merged"
        )
    if config.get("init_lora_weights", True) not in (True, False, "gaussian", "orthogonal", "eva"):
        raise CheckpointError(
            f"{where}: init_lora_weights is {config['init_lora_weights']!r}, which changes the base model; convert the adapter "
            "to plain LoRA first"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank < _MOST_RANK:
        raise CheckpointError(f"{where}: r is {rank!r:.80}; a rank is a positive integer")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < _MOST_ALPHA:
        raise CheckpointError(f"{where}: lora_alpha is {alpha!r:.80}; it must be a number")
    _check_pairs(checkpoint)


def check_factors(checkpoints: Sequence[Checkpoint]) -> None:
    """Averages of factors mean something only between adapters of one rank, scaling and set of layers."""
    _require_agreement(checkpoints, _HARMLESS)


def exact_output(checkpoints: Sequence[Checkpoint], weights: Sequence[float]) -> Callable[[tuple[Tensor, ...]], Output]:
    """The function that makes each tensor of the exact sum."""
    _require_agreement(checkpoints, _HARMLESS | _SCALING)
    for checkpoint in checkpoints:
        for field in ("rank_pattern", "alpha_pattern"):
            if checkpoint.adapter.get(field):
                raise CheckpointError(
                    f"model {checkpoint.model!r}, file {ADAPTER_CONFIG}: {field} gives layers ranks or scalings of their own, "
                    "for which there is no exact sum here; use factors"
                )
    scales = [weight * scaling(checkpoint.adapter) for weight, checkpoint in zip(weights, checkpoints, strict=True)]

    def make(inputs: tuple[Tensor, ...]) -> Output:
        first = inputs[0]
        found = _factor(first.name)
        _check_shapes(inputs, [checkpoint.adapter["r"] for checkpoint in checkpoints], found)
        if found is None:
            return Output.like_first(inputs, Sum(tuple(weights)))
        axis = 0 if found == "A" else 1
        shape = list(first.shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in inputs)

        def stack(factors: list[Floats]) -> Floats:
            if found == "B":
                factors = [scale * factor for scale, factor in zip(scales, factors, strict=True)]
            return np.concatenate(factors, axis=axis)

        return Output(first.name, first.dtype, tuple(shape), inputs, Whole(stack))

    return make


def scaling(config: Mapping[str, Any]) -> float:
    """What multiplies BA."""
    rank = config["r"]
    return float(config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank))


def merged_config(checkpoints: Sequence[Checkpoint], *, exact: bool) -> tuple[bytes, list[str]]:
    """The new adapter_config.json: what the models agree on, for the exact sum with a new rank and scaling 1; and notes."""
    configs = [checkpoint.adapter for checkpoint in checkpoints]
    config = agreed(configs, _HARMLESS)
    dropouts = {"lora_dropout"} if any("lora_dropout" in one for one in configs) else set()
    notes = left_out(configs, [one.model for one in checkpoints], ADAPTER_CONFIG, dropouts - config.keys())
    if exact:
        rank = sum(checkpoint.adapter["r"] for checkpoint in checkpoints)
        config |= {"r": rank, "lora_alpha": rank, "use_rslora": False}
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(), notes


def _factor(name: str) -> Literal["A", "B"] | None:
    found = _FACTOR.fullmatch(name)
    return None if found is None else ("A" if found["factor"] == "A" else "B")


def _check_pairs(checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors
    saved = checkpoint.adapter.get("modules_to_save") or []
    pairs = 0
    for name, tensor in tensors.items():
        found = _FACTOR.fullmatch(name)
        if found is None:
            if "lora_" in name or not any(f".{module}." in f".{name}." for module in saved):
                raise CheckpointError(f"{tensor}: neither a factor of a plain LoRA pair nor of a module in modules_to_save")
            continue
        partner = name[: found.start("factor")] + ("B" if found["factor"] == "A" else "A") + name[found.end("factor") :]
        if partner not in tensors:
            raise CheckpointError(f"{tensor}: its partner {partner!r} is missing")
        if not tensor.dtype.floating or len(tensor.shape) < 2:
            raise CheckpointError(f"{tensor}: {tensor.dtype.name} of shape {list(tensor.shape)} is not a factor of a LoRA pair")
        if found["factor"] == "A" and tensor.shape[0] != tensors[partner].shape[1]:
            raise CheckpointError(f"{tensor}: rank {tensor.shape[0]}, but its partner has rank {tensors[partner].shape[1]}")
        pairs += 1
    if not pairs:
        raise CheckpointError(f"model {checkpoint.model!r}: the adapter holds no LoRA factors")


def _check_shapes(inputs: tuple[Tensor, ...], ranks: Sequence[int], factor: Literal["A", "B"] | None) -> None:
    """Everything but the ranks agrees, and the ranks are those of the configurations."""
    axis = {"A": 0, "B": 1}.get(factor or "")
    shapes = [tensor.shape if axis is None else tensor.shape[:axis] + tensor.shape[axis + 1 :] for tensor in inputs]
    for tensor, shape, rank in zip(inputs, shapes, ranks, strict=True):
        if shape != shapes[0]:
            raise CheckpointError(
                f"{tensor}: shape {list(tensor.shape)} does not match {list(inputs[0].shape)} in model {inputs[0].model!r}"
            )
        if axis is not None and tensor.shape[axis] != rank:
            raise CheckpointError(f"{tensor}: rank {tensor.shape[axis]}, but {ADAPTER_CONFIG} says {rank}")


def _require_agreement(checkpoints: Sequence[Checkpoint], harmless: set[str]) -> None:
    configs = []
    for checkpoint in checkpoints:
        config = {field: value for field, value in checkpoint.adapter.items() if value not in (None, [], {})}
        for field in ("target_modules", "modules_to_save", "exclude_modules"):
            if isinstance(config.get(field), list):
                config[field] = sorted(config[field], key=repr)  # PEFT writes sets, in any order
        configs.append(config)
    require_agreement(configs, [checkpoint.model for checkpoint in checkpoints], ADAPTER_CONFIG, harmless)
