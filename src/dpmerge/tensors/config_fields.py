"""Which fields of a configuration go out: those by which Transformers or PEFT load a model, and those that a user names.

A training may write anything into a configuration, and no guarantee covers it. The names are those of every architecture,
tokenizer and processor of Transformers and of PEFT's LoRA (config_fields.txt, written by tools/config_fields.py). Of all
architectures only two separators of one have white space in a value by default: text of several words is no setting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dpmerge.records import refuse_duplicates

FILE = Path(__file__).with_name("config_fields.txt")
# Fields with names of their own inside: of labels, tokens, modules or classes.
FREE_KEYS = frozenset(
    {
        "id2label",
        "label2id",
        "extra_special_tokens",
        "model_specific_special_tokens",
        "rank_pattern",
        "alpha_pattern",
        "auto_map",
    }
)
# Names of the libraries' fields by which no model is loaded: where it comes from, what it is for, what it was made with.
NEVER = frozenset({"_name_or_path", "name_or_path", "task_specific_params", "finetuning_task", "seed"})
NEVER |= {"data", "dataset", "dataset_revision", "dataset_split", "loss", "name", "text", "original_text", "header_text"}
# Of a linear model that `dpmerge train` made (training/head.py), which reads no other fields.
_HEAD = frozenset({"model_type", "loss", "norm_bound", "mean", "deviation", "network", "size", "white"})
_TOKENIZER = frozenset({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor"})
_TOKENIZER |= {"decoder", "model"}
_BLANK = re.compile(r"\s")
_OF_NUMBERS = re.compile(r"(vocab|added_tokens)\.json")
_TEXTS = re.compile(r"id2label|label2id|chat_template|content|.*_tokens?")  # what a model reads or says: of many words, perhaps


def needed(file: str, content: bytes, keep: Collection[str] = ()) -> tuple[bytes | None, list[str]]:
    """What goes out of this file of a model's folder, and the names of the fields that do not.

    Nothing, if it should be a JSON object and is not. What has no other fields goes out byte for byte. Fields in `keep` do.
    """
    if not file.endswith(".json"):
        return content, []
    dropped: set[str] = set()
    whole = {*(_TOKENIZER if file == "tokenizer.json" else FREE_KEYS), *keep}
    try:
        config = json.loads(content.decode("utf-8"), object_pairs_hook=refuse_duplicates)  # what a duplicate hides goes out too
        if not isinstance(config, dict):
            return None, []
        kept = _inside(config, _accepts(file, config, keep), whole, dropped)
        return (as_text(kept) if dropped else content), sorted(dropped)
    except (ValueError, RecursionError):  # also text that cannot be written again, and objects too deep to be walked
        return None, []


def as_text(config: Mapping[str, Any]) -> bytes:
    """A configuration, as the libraries write it."""
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _accepts(file: str, config: Mapping[str, Any], keep: Collection[str]) -> Callable[[str, Any], bool]:
    """Whether a field of this name and value goes out."""
    if _OF_NUMBERS.fullmatch(file):
        return lambda name, value: name in keep or type(value) is int
    if file == "tokenizer.json":
        return lambda name, value: name in keep or name in _TOKENIZER
    names = _HEAD if config.get("model_type") == "dpmerge-linear" else known_fields()

    def accepts(name: str, value: Any) -> bool:
        words = _TEXTS.fullmatch(name) is not None or not any(map(_BLANK.search, _texts(value, name in FREE_KEYS)))
        return name in keep or ((name in names or name.isdecimal()) and words)

    return accepts


def _inside(value: Any, accepts: Callable[[str, Any], bool], whole: Collection[str], dropped: set[str]) -> Any:
    """The value without fields that do not go out, at any depth but in `whole` fields; their names are added to `dropped`."""
    if isinstance(value, list):
        return [_inside(one, accepts, whole, dropped) for one in value]
    if not isinstance(value, dict):
        return value
    dropped |= {name for name, inner in value.items() if not accepts(name, inner)}
    return {
        name: inner if name in whole else _inside(inner, accepts, whole, dropped)
        for name, inner in value.items()
        if accepts(name, inner)
    }


def _texts(value: Any, inside: bool) -> list[str]:
    """The texts in a value; in objects only if asked to, since fields are judged one by one."""
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in _texts(one, inside)] if inside else []
    if isinstance(value, list):
        return [text for one in value for text in _texts(one, inside)]
    return [value] if isinstance(value, str) else []


@cache
def known_fields() -> frozenset[str]:
    return frozenset(FILE.read_text(encoding="utf-8").split())
