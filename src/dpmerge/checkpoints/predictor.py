"""Inputs, from a data set or a file, and predictors: functions from a checkpoint's folder and inputs to scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import bounded_features, load_dataset, read_npz
from dpmerge.errors import DataError, EvaluationError
from dpmerge.tensors import linear_scores
from dpmerge.user_code import find_in

Array = npt.NDArray[Any]
# From a checkpoint's folder and the inputs to one row of scores for each input, one column for each class.
Predictor = Callable[[Path, Array], npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Examples along the first axis, and their true labels if known."""

    values: Array
    labels: npt.NDArray[np.int64] | None
    source: str


def find_predictor(name: str | None) -> Predictor:
    """The user's `module:function`; without a name, a linear model."""
    if name is None:
        return linear_scores
    return find_in({}, name, "the predictor", EvaluationError, ", or omit it for a linear model")


def load_inputs(task: str | None, data: Path | None, norm_bound: float | None = None) -> Inputs:
    """The public test part of a task (`data` is then the folder of its file), or the arrays of the file `data`.

    The file is an .npz with `inputs`, examples along the first axis, and optionally `labels`, counted from 0.
    """
    if task is None:
        found = _from_file(data)
    else:
        images = load_dataset(task, data)
        found = Inputs(images.test, images.test_labels, f"public test part of {task}, {len(images.test)} examples")
    if norm_bound is None:
        return found
    return replace(found, values=bounded_features(found.values, norm_bound)[:, :-1])


def _from_file(path: Path | None) -> Inputs:
    if path is None:
        raise DataError("there are no inputs: give a `task`, or a file of inputs (`data`)")
    arrays = read_npz(path)
    if not {"inputs"} <= arrays.keys() <= {"inputs", "labels"}:
        raise DataError(f"{path}: needs an array inputs, and optionally labels; it has {', '.join(sorted(arrays))}")
    inputs, labels = arrays["inputs"], arrays.get("labels")
    if inputs.ndim < 1 or not len(inputs):
        raise DataError(f"{path}: inputs is empty")
    if labels is not None and (labels.shape != (len(inputs),) or labels.dtype.kind not in "iu" or labels.min() < 0):
        raise DataError(f"{path}: labels must be integers from 0 on, one for each of the {len(inputs)} inputs")
    known = None if labels is None else labels.astype(np.int64)
    return Inputs(inputs, known, f"{path.name}, {len(inputs)} examples")
