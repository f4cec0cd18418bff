"""Linear models as predictors: what the softmax or logistic regression in a folder says of inputs, one a row."""

from __future__ import annotations

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
