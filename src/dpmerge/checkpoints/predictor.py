"""Who predicts what: inputs from a bundled task or a file, and a function from a checkpoint's folder to scores of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import bounded_features, load_dataset
from dpmerge.errors import DataError, EvaluationError
from dpmerge.tensors import linear_scores
from dpmerge.user_code import load_function

Array = npt.NDArray[Any]
# From a checkpoint's folder and the inputs to one row of scores for each input, one column for each class.
Predictor = Callable[[Path, Array], npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class Inputs:
    """What is predicted of, along the first axis; and what is true of it, where that is known."""

    values: Array
    labels: npt.NDArray[np.int64] | None
    source: str


def find_predictor(name: str | None) -> Predictor:
    """A user's `module:function`, or without a name that of linear models."""
    if name is None:
        return linear_scores
    if ":" not in name:
        raise EvaluationError(f"no predictor named {name!r}; give module:function, or none for a linear model")
    return load_function(name, "the predictor", EvaluationError)


def load_inputs(task: str | None, data: Path | None, norm_bound: float | None = None) -> Inputs:
    """The public test part of a task (`data` is then the folder of its file), or the arrays of a file.

    The file is an .npz with `inputs`, one along the first axis, and if they are known `labels`, from 0 on.
    """
    found = _from_file(data) if task is None else _from_task(task, data)
    if norm_bound is None:
        return found
    return Inputs(bounded_features(found.values, norm_bound)[:, :-1], found.labels, found.source)


def _from_task(task: str, data: Path | None) -> Inputs:
    images = load_dataset(task, data)
    return Inputs(images.test, images.test_labels, f"public test part of {task}, {len(images.test)} examples")


def _from_file(path: Path | None) -> Inputs:
    if path is None:
        raise DataError("predictions are of something: name a task (--task), or a file of inputs (--data)")
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except (OSError, ValueError, AttributeError, EOFError) as fault:
        raise DataError(f"{path}: not an .npz file of arrays: {fault}") from None
    if not {"inputs"} <= arrays.keys() <= {"inputs", "labels"}:
        raise DataError(f"{path}: needs an array inputs, and labels if they are known; it has {', '.join(sorted(arrays))}")
    inputs, labels = arrays["inputs"], arrays.get("labels")
    if inputs.ndim < 1 or not len(inputs):
        raise DataError(f"{path}: inputs is empty")
    if labels is None:
        return Inputs(inputs, None, f"{path.name}, {len(inputs)} examples")
    if labels.shape != (len(inputs),) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise DataError(f"{path}: labels must hold one number from 0 on for each of the {len(inputs)} inputs")
    return Inputs(inputs, labels.astype(np.int64), f"{path.name}, {len(inputs)} examples")
