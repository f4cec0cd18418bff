"""Predictions as a file: .json, .csv or .npz, which appears whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.checkpoints.outputs import Predictions
from dpmerge.errors import DataError
from dpmerge.files import write_whole
from dpmerge.tensors import require_absent

SUFFIXES = (".json", ".csv", ".npz")
_SCORES = {"opa": "probabilities", "omv": "votes"}


def require_writable(path: Path) -> None:
    """Refuse a name that exists, or has none of the suffixes, before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: predictions are written as {', '.join(SUFFIXES)}; choose one by the suffix")
    require_absent(path)


def write_predictions(found: Predictions, about: Mapping[str, Any], truth: npt.NDArray[np.int64] | None, path: Path) -> None:
    """Labels, ties and what they are from; `about` says which checkpoints and what is guaranteed (.csv has no room for it)."""
    require_writable(path)
    make = {".json": _json, ".csv": _csv, ".npz": _npz}[path.suffix.lower()]
    write_whole(make(found, about, truth), path)


def _json(found: Predictions, about: Mapping[str, Any], truth: npt.NDArray[np.int64] | None) -> bytes:
    arrays = {name: array.tolist() for name, array in _arrays(found, truth).items()}
    return json.dumps({**about, **arrays}, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _npz(found: Predictions, about: Mapping[str, Any], truth: npt.NDArray[np.int64] | None) -> bytes:
    buffer = io.BytesIO()
    text = json.dumps(dict(about), ensure_ascii=False, allow_nan=False)
    np.savez_compressed(buffer, about=np.array(text), **_arrays(found, truth))
    return buffer.getvalue()


def _csv(found: Predictions, about: Mapping[str, Any], truth: npt.NDArray[np.int64] | None) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    known = [] if truth is None else ["truth"]
    rows.writerow(["input", "label", "tie", *known, *(f"{_SCORES[found.rule]}_{c}" for c in range(found.scores.shape[1]))])
    for place, (label, tie, scores) in enumerate(zip(found.labels, found.ties, found.scores.tolist(), strict=True)):
        rows.writerow([place, label, int(tie), *([] if truth is None else [truth[place]]), *scores])
    return text.getvalue().encode()


def _arrays(found: Predictions, truth: npt.NDArray[np.int64] | None) -> dict[str, Any]:
    known = {} if truth is None else {"truth": truth}
    return {"labels": found.labels, "ties": found.ties, **known, _SCORES[found.rule]: found.scores}
