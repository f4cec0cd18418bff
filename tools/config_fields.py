"""Writes src/dpmerge/tensors/config_fields.txt: the names by which Transformers and PEFT read configurations.

Run it where new versions of both are installed, and commit what it writes: `python tools/config_fields.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import peft
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dpmerge.tensors.config_fields import FILE, FREE_KEYS, NEVER

# Files of Transformers whose classes are made from the files of a model's folder.
_SOURCES = ("configuration_*.py", "tokenization_*.py", "processing_*.py", "*image_processing_*.py", "video_processing_*.py")
_SOURCES += ("feature_extraction_*.py", "modeling_rope_utils.py", "quantization_config.py", "*feature_extraction_utils.py")
# Written by the libraries without being a field of a class.
_WRITTEN = {
    "auto_map",
    "processor_class",
    "image_processor_type",
    "feature_extractor_type",
    "video_processor_type",
    "transformers_weights",
    "tokenizer_class",
}
_WRITTEN |= {"added_tokens_decoder", "model_max_length", "content", "lstrip", "rstrip", "normalized", "single_word", "special"}
_WRITTEN |= {"__type", "__float__", "base_model_class", "parent_library", "transformers_version", "backend", "is_local"}
_WRITTEN |= {"height", "width", "shortest_edge", "longest_edge", "max_height", "max_width"}
# Of version 4, whose models are still merged.
_WRITTEN |= {
    "torch_dtype",
    "rope_scaling",
    "rope_theta",
    "type",
    "factor",
    "cross_attention_hidden_size",
    "tie_encoder_decoder",
}
_WRITTEN |= {"pruned_heads", "use_bfloat16", "torchscript", "tf_legacy_loss", "_attn_implementation_autoset"}
_WRITTEN |= {"do_basic_tokenize", "never_split"}
_PLACE = re.compile(r"^(?!use_|base_model).*_(file|path)$")  # places on a machine; a model's own files have fixed names


def main() -> None:
    found = set(_WRITTEN)
    root = Path(transformers.__file__).parent
    for pattern in _SOURCES:
        for path in sorted(root.rglob(pattern)):
            found |= set(_stated(ast.parse(path.read_text(encoding="utf-8"))))
    for name in CONFIG_MAPPING:
        with suppress(Exception):  # two architectures cannot be made without arguments; their source was read
            found |= set(_keys(json.loads(CONFIG_MAPPING[name]().to_json_string(use_diff=False))))
    found |= set(transformers.GenerationConfig().to_dict()) | {field.name for field in fields(peft.LoraConfig)}
    kept = sorted(name for name in found - NEVER - {"self", "args", "kwargs"} if not (name.isdigit() or _PLACE.search(name)))
    FILE.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _stated(tree: ast.Module) -> Iterator[str]:
    """The fields that classes declare, and what they are made with."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                yield part.target.id
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                yield from (argument.arg for argument in (*part.args.args, *part.args.kwonlyargs))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from () if name in FREE_KEYS else _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


if __name__ == "__main__":
    main()
