"""What an experiment leaves: numbers with the configuration that made them, and pictures of them."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.files import json_text
from dpmerge.jobs import Progress


@dataclass(frozen=True)
class Options:
    """What the command line says about a run of an experiment.

    `folder` is where finished pieces may be kept, so that a killed run continues; `progress` makes a bar for pieces of work
    with a title. Without them nothing is kept, and nothing is shown.
    """

    data: Path | None = None
    seeds: int = 5
    quick: bool = False
    jobs: int = -1
    device: str = "cpu"
    folder: Path | None = None
    progress: Callable[[str], Progress] | None = None

    def bar(self, title: str) -> Progress | None:
        """A progress bar, as `run_all` takes it."""
        return None if self.progress is None else self.progress(title)


@dataclass
class Result:
    """Numbers and configuration as plain data, and the documents to draw, by name.

    A document is what dpmerge.figures draws: of kind "frontier", "heatmap" or "lines".
    """

    name: str
    configuration: dict[str, Any]
    numbers: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    table: tuple[str, list[str], list[list[str]]] | None = None  # a title, headings and rows to print

    def as_dict(self) -> dict[str, Any]:
        """Everything but pictures and table, with what it was computed with."""
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


def with_error(of: Mapping[str, Any], digits: int = 4) -> str:
    """A mean and its standard error, of what `mean_and_deviation` gives."""
    return f"{of['mean']:.{digits}f} ± {of['std'] / of['runs'] ** 0.5:.{digits}f}"


def error_bars(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means with their standard errors, of what `mean_and_deviation` gives, on the names of a picture's axis."""
    return {"x": list(range(len(found))), **band(found), "standing": "measured", "joined": False}


def band(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means with their standard errors, of what `mean_and_deviation` gives, as heights of a picture's line."""
    return around([one["mean"] for one in found], [one["std"] / one["runs"] ** 0.5 for one in found])


def around(heights: Sequence[float], widths: Sequence[float]) -> dict[str, Any]:
    """Heights of a picture's line, with what lies so far to both sides."""
    low, high = ([one + sign * width for one, width in zip(heights, widths, strict=True)] for sign in (-1, 1))
    return {"y": list(heights), "low": low, "high": high}


def counted(numbers: Iterable[int], what: str) -> str:
    """How many there are, where it may not be the same everywhere.

    >>> counted([1, 1], "run"), counted([3], "run"), counted([5, 1], "repeat")
    ('one run', '3 runs', '1 or 5 repeats')
    """
    found = sorted(set(numbers))
    return f"one {what}" if found == [1] else f"{' or '.join(map(str, found))} {what}s"


def read(path: Path) -> dict[str, Any]:
    """What is kept of a run."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise TrainingError(f"{path}: cannot be read: {fault}; remove it to make it again") from None
    return content


def laid_out(value: Any, before: str = "", width: int = 200) -> str:
    """JSON in which every part is one line, where that is no longer than so; what holds numbers or texts alone always is.

    What is not finite is null.

    >>> print(laid_out({"epsilon": 1.5, "runs": [{"number": 1}, {"number": 2}]}, width=28))
    {
     "epsilon": 1.5,
     "runs": [
      {"number": 1},
      {"number": 2}
     ]
    }
    """
    line = json_text(value, indent=None)
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    if len(before) + len(line) <= width or not any(isinstance(part, dict | list | tuple) for part in parts):
        return line
    inner = before + " "
    if isinstance(value, dict):
        lines = [
            f"{inner}{json.dumps(str(key), ensure_ascii=False)}: {laid_out(part, inner, width)}" for key, part in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{before}}}"
    return "[\n" + ",\n".join(inner + laid_out(part, inner, width) for part in parts) + f"\n{before}]"


def write(result: Result, folder: Path, suffixes: Sequence[str] = (".png",)) -> list[Path]:
    """The numbers as NAME.json, and every picture as NAME-PICTURE in each format.

    Everything is drawn before anything is written, and each file appears whole.
    """
    from dpmerge.figures import render
    from dpmerge.files import write_whole

    text = laid_out(result.as_dict()) + "\n"
    contents = {folder / f"{result.name}.json": text.encode()}
    for name, document in result.pictures.items():
        for suffix in suffixes:
            contents[folder / f"{result.name}-{name}{suffix}"] = render(document, suffix)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise TrainingError(f"{folder}: no folder for results can be made there: {fault.strerror or fault}") from None
    for path, content in contents.items():
        write_whole(content, path)
    return list(contents)


def check_writable(folder: Path) -> None:
    """Refuse a folder that could not be made or written into, before there is anything to write."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise TrainingError(f"{folder}: no folder for results can be made there; {existing} is no folder that can be written")


def _software() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("dpmerge", "numpy", "scipy", "dp-accounting", "torch", "opacus"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
