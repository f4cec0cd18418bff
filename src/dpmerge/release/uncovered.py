"""Files in a release's folder that its certificate does not cover: which of them could change what a user loads.

Hubs, git and people add files. Those that no loader takes are listed. Weights in any format, code, configuration, templates and
tokenizers beside the certified ones break the verdict: "it holds" means that what is loaded from the folder was certified.
"""

from __future__ import annotations

import json
import os
import re
from itertools import islice
from pathlib import Path

from dpmerge.errors import CheckpointError, printable
from dpmerge.release.bounds import MOST_BYTES
from dpmerge.tensors import CONFIG, WEIGHTS_FIELD, read_inside

_WEIGHTS = re.compile(
    r".*\.(safetensors|bin|pth?|pt2|ckpt|h5|hdf5|keras|msgpack|gguf|ggml|onnx|ort|ot|np[zy]|pkl|pickle|joblib|dill|tflite|pb"
    r"|mlmodel|mlpackage|nemo|engine|torchscript|ptl|pte)(\.index)?"
)
_CODE = re.compile(r".*\.(pyc?|pyd|pyx|so|dll|dylib)|.*\.so\..*")
_SETTINGS = re.compile(
    r".*\.(jinja2?|model|spm|bpe|codes|tiktoken|tokenizer|vocab)|(.*[_.-])?(vocab|merges|dict)([_.-].*)?\.txt"
)
_JSON = re.compile(r".*\.(json5?|jsonl)")
# Measurements, which trainers write beside models and no loader reads.
_MEASURED = re.compile(r"(.*[_-])?(results|metrics|trainer_state)\.json")
# Folders that Transformers looks into on its own.
_FOLDERS = {"additional_chat_templates", "custom_generate"}
_MOST = 1000  # files of a sub-folder that are looked at
MOST_FILES = 10_000  # of a released folder


def loaded(name: str) -> str | None:
    """What a loader would take a file of this name for, in any spelling; nothing if none would."""
    name = name.lower()
    if _MEASURED.fullmatch(name):
        return None
    kinds = {"code": _CODE, "weights": _WEIGHTS, "configuration or tokenizer": _SETTINGS, "configuration": _JSON}
    return next((kind for kind, pattern in kinds.items() if pattern.fullmatch(name)), None)


def uncovered(folder: Path, covered: set[str]) -> tuple[list[str], list[str], list[str]]:
    """What the folder holds beside the covered names: faults, warnings, and all other names. A sub-folder is one name."""
    faults, warnings, others = [], [], []
    there = list(islice(folder.iterdir(), MOST_FILES + 1))
    if len(there) > MOST_FILES:
        return [f"the folder has more than {MOST_FILES:,} files: they were not looked at"], [], []
    for path in sorted(there):
        if path.name in covered:
            continue
        name, kind = printable(path.name), loaded(path.name)
        if path.is_dir():
            others.append(f"{name}/")
            inside = None if name.startswith(".") or path.is_symlink() else _inside(path)
            if path.name.lower() in _FOLDERS:
                faults.append(f"{name}/ is not part of what was certified, and Transformers loads from it")
            elif inside is not None:
                warnings.append(f"{name}/ is not certified: whoever loads {inside} loads something else than what is")
        elif kind is not None:
            faults.append(f"{name} is not part of what was certified, and a loader may take it for the model's {kind}")
        else:
            others.append(name)
    return faults, warnings, others


def elsewhere(folder: Path, covered: set[str]) -> tuple[list[str], list[str]]:
    """Faults and warnings about a configuration that makes Transformers load other weights, or code, than what is certified."""
    try:
        config = json.loads(read_inside(folder, CONFIG, MOST_BYTES))
    except (CheckpointError, ValueError, RecursionError):
        return [], []
    if not isinstance(config, dict):
        return [], []
    weights, code = config.get(WEIGHTS_FIELD), config.get("auto_map")
    certified = weights is None or (isinstance(weights, str) and weights in covered)
    faults = [] if certified else [f"{CONFIG} makes Transformers load {weights!r:.80}, which is not certified"]
    return faults, [f"{CONFIG} names code that is not certified (auto_map); it runs if it is trusted"] if code else []


def _inside(folder: Path) -> str | None:
    """A file in a sub-folder that a loader would take, among the first ones; links to other folders are not followed."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            seen += 1
            if loaded(name) is not None:
                return printable((Path(place) / name).relative_to(folder.parent).as_posix())
            if seen >= _MOST:
                return f"one of more than {_MOST} files there"
    return None
