"""The files beside the tensors: which of them a merged model keeps, and what of them.

Configuration and tokenizer files only, by name: what a trainer leaves behind (states, logs, losses) may say more about the
private data than any guarantee covers. A file is kept when it is the same, byte for byte, in every model that has weight; of a
configuration, the fields by which it is loaded (config_fields.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dpmerge.errors import CheckpointError
from dpmerge.tensors.checkpoint import Checkpoint
from dpmerge.tensors.config_fields import as_text, needed
from dpmerge.tensors.opening import ADAPTER_CONFIG, INDEX
from dpmerge.tensors.strict_files import file_inside, parse_object

CONFIG = "config.json"
_KEPT = re.compile(
    r"config\.json|adapter_config\.json|generation_config\.json|tokenizer(_config)?\.json|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.(json|txt)|merges\.txt|tokenizer\.model|(sentencepiece|spiece|source|target)\.(bpe\.)?(model|spm)"
    r"|chat_template\.(json|jinja)|(pre)?processor_config\.json|(image|video|feature)_(pre)?processor_config\.json"
)
# Names that earlier versions kept as well, under which a trainer may leave anything.
_KEPT_ONCE = re.compile(
    r"tokenizer.*\.(json|model)|sentencepiece.*\.(bpe\.)?(model|spm)|(image|video|feature)_(pre)?processor.*_config\.json"
)
# Written anew for every release, or known to everyone as not belonging to the model: no note needed.
_OURS = {"record.json", "certificate.json", "README.md", INDEX, ADAPTER_CONFIG}
_LARGEST = 256 << 20
# Fields of config.json that say where a model came from or how to load it, not what it is.
_HARMLESS = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}
# Fields that only training uses, or that change no output. `problem_type` is none of them: by it pipelines choose a softmax.
_OUTSIDE_INFERENCE = re.compile(
    r"(.*_)?(dropout|layerdrop|pdrop)(_p|_prob|_rate)?|drop_path_rate|use_cache|gradient_checkpointing"
)


# Fields that may hold a path of the machine that a model was trained on.
_ORIGINS = {CONFIG: "_name_or_path", ADAPTER_CONFIG: "base_model_name_or_path"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


WEIGHTS_FIELD = "transformers_weights"  # by which Transformers loads another file than model.safetensors


def is_hub_id(name: str) -> bool:
    """Whether this could be the name of something on a hub, NAME or OWNER/NAME: no path from the root or of more parts is."""
    return _HUB_ID.fullmatch(name) is not None


def without_paths(files: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """The files without fields that name a path of the machine where a model was trained, and a note for each that did."""
    kept, notes = dict(files), []
    for name, field in _ORIGINS.items():
        try:
            config = json.loads(files.get(name, b""))
        except (ValueError, RecursionError):
            continue  # as it is in every model
        if not isinstance(config, dict):
            continue
        value = config.get(field)
        if WEIGHTS_FIELD in config:  # the release has names of its own for its files
            config.pop(WEIGHTS_FIELD)
            kept[name] = as_text(config)
            notes.append(f"{name} has no {WEIGHTS_FIELD}: the tensors have other names here")
        if isinstance(value, str) and value and not is_hub_id(value):
            kept[name] = as_text({**config, field: None})
            notes.append(
                f"{name} says null for {field}: it named a path of your machine. Say on the model card what it stands for"
            )
    return kept, notes


def without_private(files: Mapping[str, bytes], keep: Collection[str]) -> tuple[dict[str, bytes], list[str], set[str]]:
    """What goes out of these files, a note for each that says less, and those fields in `keep` without which it would be less.

    Notes name fields, never what they say.
    """
    kept: dict[str, bytes] = {}
    notes: list[str] = []
    asked: set[str] = set()
    for name, content in files.items():
        if not _KEPT.fullmatch(name):
            notes.append(f"{name} was left out: not a configuration or tokenizer file")
            continue
        written, dropped = needed(name, content, keep)
        if written is None:
            notes.append(f"{name} was left out: it cannot be read as a JSON object")
            continue
        kept[name] = written
        asked |= {*needed(name, content)[1]} - {*dropped} if keep else set()
        if dropped:
            notes.append(
                f"{name} goes out without {quoted(dropped)}: no model needs it to load, and no guarantee covers what a "
                "training wrote there (if it is public, name it in keep_metadata)"
            )
    kept, path_notes = without_paths(kept)
    return kept, [*notes, *path_notes], asked


def quoted(names: Collection[str]) -> str:
    """Names from a file in a line of text: as they are, unless they could be taken for more than a name."""
    return ", ".join(name if re.fullmatch(r"[\w.:/-]{1,80}", name) else f"{name!r:.80}" for name in sorted(names))


def companions(checkpoints: Sequence[Checkpoint]) -> tuple[dict[str, bytes], list[str]]:
    """The files to keep, by name, and a note for each that is left out."""
    kept: dict[str, bytes] = {}
    notes: list[str] = []
    tensor_files = {file.path.name for checkpoint in checkpoints for file in checkpoint.files}
    names = sorted({path.name for checkpoint in checkpoints for path in checkpoint.folder.iterdir()} - tensor_files - _OURS)
    names = [name for name in names if not name.startswith(".")]
    if CONFIG in names:
        kept[CONFIG] = _config(checkpoints, notes)
        names.remove(CONFIG)
    for name in names:
        if not (_KEPT.fullmatch(name) or _KEPT_ONCE.fullmatch(name)):
            notes.append(f"{name} was left out: not a configuration or tokenizer file")
            continue
        contents = [_read(checkpoint, name) for checkpoint in checkpoints]
        if contents[0] is None or any(content != contents[0] for content in contents):
            notes.append(f"{name} was left out: it is not the same in every model that has weight")
        else:
            kept[name] = contents[0]
    return kept, notes


def _read(checkpoint: Checkpoint, name: str) -> bytes | None:
    if not (checkpoint.folder / name).exists():
        return None
    path = file_inside(checkpoint.folder, name, f"model {checkpoint.model!r}")
    if path.stat().st_size > _LARGEST:
        raise CheckpointError(f"model {checkpoint.model!r}, file {name}: too large for a configuration or tokenizer file")
    return path.read_bytes()


def _config(checkpoints: Sequence[Checkpoint], notes: list[str]) -> bytes:
    """The config.json of all models, which must describe one architecture; where they came from goes out if it is the same."""
    contents = []
    for checkpoint in checkpoints:
        content = _read(checkpoint, CONFIG)
        if content is None:
            raise CheckpointError(f"model {checkpoint.model!r}: no {CONFIG}, which other models have; add it, or remove theirs")
        contents.append(content)
    if any(content != contents[0] for content in contents):
        configs = [
            parse_object(content, f"model {checkpoint.model!r}, file {CONFIG}")
            for checkpoint, content in zip(checkpoints, contents, strict=True)
        ]
        models = [checkpoint.model for checkpoint in checkpoints]
        training = outside_inference(configs)
        require_agreement(configs, models, CONFIG, _HARMLESS | training)
        config = agreed(configs, _HARMLESS | training)
        silent = sorted({field for one in configs for field in one if field in _HARMLESS} - config.keys())
        notes += [f"{CONFIG} has no {', '.join(silent)}: not the same in every model"] if silent else []
        notes += left_out(configs, models, CONFIG, training)
        return as_text(config)
    return contents[0]


def outside_inference(configs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Fields in which configurations differ, and by which no trained model computes anything else.

    A dropout is a number: ESM's `token_dropout`, a switch, rescales what a trained model computes.
    """
    return {
        field
        for config in configs[1:]
        for field in configs[0].keys() | config.keys()
        if configs[0].get(field) != config.get(field)
        and _OUTSIDE_INFERENCE.fullmatch(field)
        and all(_harmless_value(field, one.get(field)) for one in configs)
    }


def _harmless_value(field: str, value: object) -> bool:
    switch = field in ("use_cache", "gradient_checkpointing")
    return value is None or (isinstance(value, bool) if switch else type(value) in (int, float))


def left_out(configs: Sequence[Mapping[str, Any]], models: Sequence[str], file: str, fields: set[str]) -> list[str]:
    """A note for each field that is not written because models differ in it: what it was in each."""
    return [
        f"{file} has no {field}, which matters in training only: "
        + ", ".join(f"{config.get(field)!r} in {model!r}" for config, model in zip(configs, models, strict=True))
        for field in sorted(fields)
    ]


def agreed(configs: Sequence[Mapping[str, Any]], harmless: set[str]) -> dict[str, Any]:
    """The first configuration, without those harmless fields that another model's configuration lacks."""
    first, *others = configs
    return {
        field: value
        for field, value in first.items()
        if field not in harmless or all(field in other and other[field] == value for other in others)
    }


def require_agreement(configs: Sequence[Mapping[str, Any]], models: Sequence[str], file: str, harmless: set[str]) -> None:
    """Refuse configurations that differ in a field that matters, naming models and field."""
    for config, model in zip(configs[1:], models[1:], strict=True):
        for field in sorted((set(configs[0]) | set(config)) - harmless):
            first, other = configs[0].get(field), config.get(field)
            if first != other:
                vocabulary = "; resize the embeddings to one vocabulary first" if field == "vocab_size" else ""
                raise CheckpointError(
                    f"models {models[0]!r} and {model!r} differ in {file}, field {field!r}: {first!r:.80} and {other!r:.80}; "
                    f"a merge needs one architecture{vocabulary}"
                )
