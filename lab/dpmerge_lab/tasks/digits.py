"""scikit-learn's handwritten digits: 1,797 images of 8×8, no download. Softmax regression on images of one norm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmerge.errors import EvaluationError

CLASSES, PIXELS = 10, 64
CONTRAST = 5.0  # the norm of images without their mean: beside it the bias takes little of what a record may do


@dataclass(frozen=True)
class Examples:
    """Images, one a row, all of one Euclidean norm (a change of one image changes no other), and their labels."""

    images: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]


def load(centred: bool = False) -> tuple[Examples, Examples]:
    """The training part (1,437 examples) and the test part: every fifth example, as they come.

    Images have norm 1; centred ones have lost their own mean and have norm 5.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise EvaluationError("the digits task needs scikit-learn; install dpmerge[tasks]") from None
    raw = load_digits()
    images = np.asarray(raw.data, dtype=np.float64)
    if centred:
        images -= images.mean(axis=1, keepdims=True)
    images *= (CONTRAST if centred else 1.0) / np.linalg.norm(images, axis=1, keepdims=True)
    labels = np.asarray(raw.target, dtype=np.int64)
    test = np.arange(len(labels)) % 5 == 0
    return Examples(images[~test], labels[~test]), Examples(images[test], labels[test])


def accuracy(folder: Path, centred: bool = False) -> float:
    """The share of test images that the softmax regression in `folder` labels rightly.

    Its `model.safetensors` holds `weight` (10 × 64) and `bias` (10).
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as fault:
        raise EvaluationError(f"{path}: cannot be read: {fault}") from None
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != {"weight": (CLASSES, PIXELS), "bias": (CLASSES,)}:
        raise EvaluationError(f"{path}: the digits task needs weight (10 × 64) and bias (10); the file has {shapes}")
    _, test = load(centred)
    scores = test.images @ tensors["weight"].astype(np.float64).T + tensors["bias"].astype(np.float64)
    return float(np.mean(scores.argmax(axis=1) == test.labels))


def centred_accuracy(folder: Path) -> float:
    """The same for a softmax regression that was trained on centred images."""
    return accuracy(folder, centred=True)
