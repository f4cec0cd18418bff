"""Linear models as predictors: what the softmax or logistic regression in a folder says of inputs, one a row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import EvaluationError
from dpmerge.tensors.verify import read_tensors


def linear_scores(folder: Path, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """inputs · weightᵀ + bias of the `weight` (classes × features) and `bias` (classes) in a model's folder."""
    tensors = read_tensors(folder)
    rows = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    classes = shapes.get("bias", (0,))[:1]
    if shapes != {"weight": (*classes, rows.shape[1]), "bias": classes}:
        raise EvaluationError(
            f"{folder}: a linear model of {rows.shape[1]} features has a weight (classes × features) and a bias (classes); "
            f"this one has {', '.join(f'{name} {list(shape)}' for name, shape in sorted(shapes.items()))}"
        )
    return np.asarray(rows @ tensors["weight"].astype(np.float64).T + tensors["bias"].astype(np.float64))


def bounded(inputs: npt.NDArray[Any], norm_bound: float) -> npt.NDArray[np.float64]:
    """Rows shortened so that with a last 1 for the bias each has norm `norm_bound` at most, as linear models are trained."""
    if not 1 < norm_bound < math.inf:
        raise EvaluationError(f"the norm bound is {norm_bound}; it includes the bias, so it must exceed 1, and be finite")
    rows = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1.0, math.sqrt(norm_bound**2 - 1) / np.maximum(norms, 1e-300)))
