"""Features to train linear heads on: CIFAR-10 through a public network, and what they are made of when no file is there.

`python -m dpmerge_lab.tasks.features --data DIR [--device cuda]` makes `cifar10-efficientnet-lite0.npz` of the `cifar10.npz` in
that folder: half an hour on one core, seconds on a GPU.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import bounded_features
from dpmerge.errors import DataError, DpmergeError
from dpmerge.training import network_centre, network_features
from dpmerge_lab.tasks.images import digits_as_images, load_images

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
CIFAR10 = "cifar10-efficientnet-lite0"
SIZE = 128  # pixels each way, in which the network sees an image
_ARRAYS = ("x_train", "y_train", "x_test", "y_test", "centre")


@dataclass(frozen=True)
class Features:
    """Rows of norm `bound`, with a 1 for the bias, and their labels."""

    train: Floats
    train_labels: Labels
    test: Floats
    test_labels: Labels
    bound: float
    identity: str
    classes: int = 10

    @classmethod
    def of(cls, parts: tuple[Floats, Labels, Floats, Labels], bound: float, identity: str) -> Features:
        """Each row is stretched to one norm by itself: a public function of one record."""
        x_train, y_train, x_test, y_test = parts
        train, test = (bounded_features(_stretched(rows, 2 * bound), bound) for rows in (x_train, x_test))
        return cls(train, y_train, test, y_test, bound, identity, int(y_test.max()) + 1)


def cifar10_features(folder: Path | None, bound: float) -> Features:
    """From the file in this folder, centred by what the network says of its own features."""
    if folder is None or not (folder / f"{CIFAR10}.npz").is_file():
        raise DataError(f"{CIFAR10}.npz is needed: `python -m dpmerge_lab.tasks.features --data DIR` makes it of cifar10.npz")
    with np.load(folder / f"{CIFAR10}.npz", allow_pickle=False) as held:
        x_train, y_train, x_test, y_test, centre = (held[name] for name in _ARRAYS)
    parts = (x_train.astype(np.float32) - centre, y_train, x_test.astype(np.float32) - centre, y_test)
    return Features.of(parts, bound, f"cifar10-train-{len(y_train)}")


def digits_features(bound: float) -> Features:
    """The digits without their own means, for quick runs."""
    held = digits_as_images(centred=True)
    return Features.of((held.train, held.train_labels, held.test, held.test_labels), bound, held.identity)


def _stretched(rows: Floats, norm: float) -> Floats:
    return np.asarray(rows * (norm / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)), dtype=np.float32)


def make(folder: Path, device: str) -> Path:
    """Write the features of CIFAR-10, in half precision."""
    held = load_images(folder, "cifar10")
    train, test = (
        network_features(rows.reshape(-1, *held.shape), SIZE, white=1.0, device=device).astype(np.float16)
        for rows in (held.train, held.test)
    )
    path, centre = folder / f"{CIFAR10}.npz", np.array(network_centre(), np.float32)
    np.savez(path, x_train=train, y_train=held.train_labels, x_test=test, y_test=held.test_labels, centre=centre)
    return path


def main() -> None:
    """The command of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    try:
        print(make(asked.data, asked.device))
    except DpmergeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
