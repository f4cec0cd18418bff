"""What an experiment leaves: numbers with the configuration that made them, and pictures of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError


@dataclass(frozen=True)
class Options:
    """What the command line says about a run of an experiment."""

    data: Path | None = None
    seeds: int = 5
    quick: bool = False
    jobs: int = -1


@dataclass
class Result:
    """Numbers and configuration as plain data, and the documents to draw, by name."""

    name: str
    configuration: dict[str, Any]
    numbers: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything but the pictures, with what it was computed with."""
        return {
            "experiment": self.name,
            "configuration": self.configuration,
            "numbers": self.numbers,
            "wall_seconds": round(self.seconds, 1),
            "software": _software(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        }


@contextmanager
def timed(result: Result) -> Iterator[Result]:
    """Measure the wall time of the block."""
    start = time.perf_counter()
    yield result
    result.seconds = time.perf_counter() - start


def mean_and_deviation(values: npt.ArrayLike) -> dict[str, Any]:
    """Over the first axis; the deviation is that of single runs, not of the mean."""
    array = np.asarray(values, dtype=np.float64)
    spread = array.std(axis=0, ddof=1) if len(array) > 1 else np.zeros(array.shape[1:])
    return {"mean": array.mean(axis=0).tolist(), "std": spread.tolist(), "runs": len(array)}


@dataclass(frozen=True)
class Images:
    """A data set of images: rows of pixels in [0, 1], and labels."""

    train: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    test: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]


def load_images(folder: Path | None, name: str) -> Images:
    """`mnist.npz` or `cifar10.npz` from a folder that the user names: x_train, y_train, x_test, y_test."""
    if folder is None:
        raise TrainingError(f"this experiment needs {name}.npz: name its folder with --data, or use --quick for the digits")
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise TrainingError(f"{path}: no such file; --data names a folder that holds {name}.npz")
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = [held[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    except (OSError, ValueError, KeyError) as fault:
        raise TrainingError(f"{path}: not a data set of images with x_train, y_train, x_test, y_test: {fault}") from None
    x_train, y_train, x_test, y_test = arrays
    return Images(_rows(x_train), y_train.astype(np.int64), _rows(x_test), y_test.astype(np.int64))


def digits_as_images() -> Images:
    """The digits that ship with scikit-learn, for quick runs."""
    from dpmerge.tasks import digits

    train, test = digits.load()
    return Images(train.images.astype(np.float32), train.labels, test.images.astype(np.float32), test.labels)


def _rows(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return (images.reshape(len(images), -1) / np.float32(255)).astype(np.float32)


def write(result: Result, folder: Path) -> list[Path]:
    """The numbers as JSON, and every picture as PNG and SVG."""
    from dpmerge.figures import draw
    from dpmerge.figures.writing import finite_or_null, write_json

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{result.name}.json"]
    write_json(result.as_dict(), paths[0])
    for name, document in result.pictures.items():
        for suffix in (".png", ".svg"):
            paths.append(folder / f"{result.name}-{name}{suffix}")
            draw(finite_or_null(document), paths[-1])
    return paths


def _software() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("dpmerge", "numpy", "scipy", "dp-accounting", "torch", "opacus"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
