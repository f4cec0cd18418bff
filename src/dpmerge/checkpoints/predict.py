"""Predictions of several checkpoints together (docs/theory.md §7): the mean of their probabilities, or a vote.

Checkpoints are evaluated one at a time, and only sums are kept. The label is that of the largest mean or count; ties go to the
smallest label. A checkpoint votes for its largest probability by the same rule. Results are written as .json, .csv or .npz.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.checkpoints.predictor import Array, Predictor
from dpmerge.checkpoints.run import Run, Several
from dpmerge.errors import DataError, EvaluationError
from dpmerge.files import json_text, write_whole
from dpmerge.records import Model
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Guarantee, Looked
from dpmerge.tensors import require_absent
from dpmerge.user_code import running

OutputRule = Literal["opa", "omv"]
_PUBLIC_INPUTS = "the inputs do not depend on the private data; privacy of the inputs and of the person querying is not covered"
_FIXED = "the checkpoints used were fixed without looking at them"
_SUFFIXES = (".json", ".csv", ".npz")
_SCORES = {"opa": "probabilities", "omv": "votes"}
_SIMPLEX = 1e-5  # tolerance of a sum of probabilities: a float32 softmax over many classes


@dataclass(frozen=True, eq=False)
class Predictions:
    """For each input: the label, whether there was a tie, and the mean probability or number of votes of every class."""

    rule: OutputRule
    checkpoints: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    ties: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64] | npt.NDArray[np.int64]

    def accuracy(self, labels: npt.NDArray[np.int64]) -> float:
        return float(np.mean(self.labels == labels))


def predictions(
    run: Run | str | Path,
    rule: OutputRule,
    predictor: Predictor,
    inputs: Array,
    *,
    last: int | None = None,
    until: int | None = None,
    allow_gaps: bool = False,
    probabilities: bool = False,
    on_checkpoint: Callable[[], None] | None = None,
) -> Predictions:
    """Joint predictions of the last `last` checkpoints up to step `until` (default: all), or of one model each of several runs.

    `predictor(folder, inputs)` returns one row of scores for each input, which softmax turns into probabilities (a single
    column is the log-odds of class 1). With `probabilities`, its rows already are probabilities.
    """
    loaded = run if isinstance(run, Run) else Several.load(run)
    used = loaded.last(last, until=until, allow_gaps=allow_gaps)
    said = (asked(predictor, model, inputs, probabilities) for model in used)
    return combined(rule, said, tuple(model.name for model in used), on_checkpoint)


def predictions_guarantee(
    run: Run,
    used: Sequence[Model],
    *,
    delta: float,
    provenance: Looked = "after-looking",
    accounting: Accounting = DEFAULT_ACCOUNTING,
) -> Guarantee:
    """Cost of predictions with these checkpoints: the run up to the latest of them, for public inputs."""
    weights = {model.name: 1 / len(used) for model in used}
    found = run.choose(weights, delta=delta, provenance=provenance, accounting=accounting).guarantee
    fixed = (_FIXED,) if provenance == "a-priori" else ()
    return replace(found, weights=weights, assumptions=(*found.assumptions, *fixed, _PUBLIC_INPUTS))


def combined(
    rule: OutputRule,
    said: Iterable[npt.NDArray[np.float64]],
    names: tuple[str, ...],
    on_checkpoint: Callable[[], None] | None = None,
) -> Predictions:
    """Combine each checkpoint's probabilities (inputs × classes), one checkpoint at a time."""
    total: Any = None
    for name, one in zip(names, said, strict=True):
        vote = one if rule == "opa" else np.eye(one.shape[1], dtype=np.int64)[one.argmax(axis=1)]
        if total is not None and vote.shape != total.shape:
            raise EvaluationError(
                f"checkpoint {name!r} has {one.shape[1]} classes, {names[0]!r} has {total.shape[1]}; they must agree"
            )
        total = vote.copy() if total is None else np.add(total, vote, out=total)
        if on_checkpoint is not None:
            on_checkpoint()
    ties = (total == total.max(axis=1, keepdims=True)).sum(axis=1) > 1
    scores = total / len(names) if rule == "opa" else total
    return Predictions(rule, names, total.argmax(axis=1).astype(np.int64), ties, scores)


def probabilities_of(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Softmax of each row; a single column is the log-odds of class 1."""
    rows = np.hstack([np.zeros_like(scores), scores]) if scores.shape[1] == 1 else scores
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def asked(predictor: Predictor, model: Model, inputs: Array, probabilities: bool) -> npt.NDArray[np.float64]:
    """One checkpoint's probabilities. The predictor may be user code, so its output is checked."""
    if model.folder is None:
        raise EvaluationError(f"checkpoint {model.name!r} has no folder: load the run from disk")
    with running(f"the predictor failed on checkpoint {model.name!r}", EvaluationError):
        said = np.asarray(predictor(model.folder, inputs), dtype=np.float64)
    if said.ndim != 2 or len(said) != len(inputs) or not said.shape[1]:
        raise EvaluationError(
            f"checkpoint {model.name!r}: the predictor returned shape {list(said.shape)} for {len(inputs)} inputs; it must "
            "return one row of scores for each"
        )
    bad = np.flatnonzero(~np.isfinite(said).all(axis=1))
    if bad.size:
        raise EvaluationError(f"checkpoint {model.name!r}: the predictor's scores of input {bad[0]} are not finite")
    if not probabilities:
        return probabilities_of(said)
    bad = np.flatnonzero((said < 0).any(axis=1) | (np.abs(said.sum(axis=1) - 1) > _SIMPLEX))
    if bad.size:
        raise EvaluationError(
            f"checkpoint {model.name!r}: the predictor's probabilities of input {bad[0]} are negative, or do not sum to 1"
        )
    return said


def require_writable(path: Path) -> None:
    """Refuse an existing file, or an unknown suffix, before the computation starts."""
    if path.suffix.lower() not in _SUFFIXES:
        raise DataError(f"{path}: unknown suffix; predictions are written as {', '.join(_SUFFIXES)}")
    require_absent(path)


def write_predictions(found: Predictions, about: Mapping[str, Any], truth: npt.NDArray[np.int64] | None, path: Path) -> None:
    """Write labels, ties and scores; `about` adds checkpoints and guarantee (not in .csv)."""
    require_writable(path)
    make = {".json": _json, ".csv": _csv, ".npz": _npz}[path.suffix.lower()]
    write_whole(make(found, about, truth), path)


def _json(found: Predictions, about: Mapping[str, Any], truth: npt.NDArray[np.int64] | None) -> bytes:
    arrays = {name: array.tolist() for name, array in _arrays(found, truth).items()}
    return json_text({**about, **arrays}, indent=None).encode() + b"\n"


def _npz(found: Predictions, about: Mapping[str, Any], truth: npt.NDArray[np.int64] | None) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.array(json_text(about, indent=None)), **_arrays(found, truth))
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
