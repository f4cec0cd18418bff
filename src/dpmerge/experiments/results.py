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
