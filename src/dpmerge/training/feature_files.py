"""Features and labels from files: .npz, .npy, .safetensors and .parquet. Nothing in a file is ever executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dpmerge.datasets import largest, read_npz
from dpmerge.errors import DataError, MissingLibrary
from dpmerge.records import Strict

Array = npt.NDArray[Any]
Part = tuple[Array, Array]
Name = Annotated[str, Field(min_length=1)]
_LABEL = "label"  # the column of a table, or the array of a file with one part, is "y"


class DataFiles(Strict):
    """A file for each part. A .npy file holds one array, so its labels are in a file of their own."""

    train: Name
    test: Name
    train_labels: Name | None = None
    test_labels: Name | None = None


def is_file(name: str) -> bool:
    return Path(name).suffix.lower() in _READERS


def read_files(files: str | DataFiles, folder: Path) -> tuple[Part, Part]:
    """The training and the test part, each inputs and labels.

    One file for both holds the arrays x_train, y_train, x_test and y_test; a file for one part holds x and y, or is a table
    whose column `label` is the label and whose other columns are the features.
    """
    if isinstance(files, str):
        held = _arrays(folder / files)
        return tuple((_one(held, f"x_{part}", files), _one(held, f"y_{part}", files)) for part in ("train", "test"))  # type: ignore[return-value]
    return _part(folder, files.train, files.train_labels), _part(folder, files.test, files.test_labels)


def read_training(path: Path) -> tuple[Array, ...]:
    """The arrays of a file's training part as they are stored: x_train and y_train, x and y, or the one of a .npy file."""
    held = _arrays(path)
    if set(held) == {_SINGLE}:
        return (held[_SINGLE],)
    names = ("x_train", "y_train") if "x_train" in held else ("x", "y")
    return tuple(_one(held, name, str(path)) for name in names)


def read_constants(path: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The arrays `mean` and `deviation` of a file of public constants."""
    held = _arrays(path)
    mean, deviation = (np.atleast_1d(_one(held, name, path.name)) for name in ("mean", "deviation"))
    numbers = mean.ndim == 1 and mean.shape == deviation.shape and {mean.dtype.kind, deviation.dtype.kind} <= set("fiu")
    if not numbers or not np.isfinite(mean).all() or not np.all((deviation > 0) & np.isfinite(deviation)):
        raise DataError(f"{path}: mean and deviation must be as many finite numbers, every deviation above 0")
    return tuple(mean.astype(float).tolist()), tuple(deviation.astype(float).tolist())


def _part(folder: Path, inputs: str, labels: str | None) -> Part:
    held = _arrays(folder / inputs)
    if labels is None:
        if set(held) == {_SINGLE}:
            raise DataError(f"{inputs}: a .npy file holds no labels; name the file of its labels as well")
        return _one(held, "x", inputs), _one(held, "y", inputs)
    apart = _arrays(folder / labels)
    return held.get(_SINGLE, held.get("x", _MISSING)), apart.get(_SINGLE, apart.get("y", _MISSING))


_SINGLE, _MISSING = "", np.zeros(0)


def not_finite(array: Array, columns: Sequence[str] = ()) -> str | None:
    """Where the first number of an array is that is NaN or infinite, counted from 0; and how many are."""
    if array.dtype.kind != "f" or (finite := np.isfinite(array)).all():
        return None
    row, *rest = map(int, np.unravel_index(int(np.argmin(finite)), array.shape))
    place = f"row {row}"
    if len(rest) == 1:
        place += f", column {repr(columns[rest[0]]) if columns else rest[0]}"
    elif rest:
        place += f", position {tuple(rest)}"
    more = int(finite.size - np.count_nonzero(finite)) - 1
    return f"{place} (counted from 0) is {array[(row, *rest)]}" + (f", and {more} more are not finite" if more else "")


def _finite(array: Array, path: Path, name: str, columns: Sequence[str] = ()) -> Array:
    if (fault := not_finite(array, columns)) is not None:
        of = f" of {name}" if name else ""
        raise DataError(f"{path}: all numbers{of} must be finite; {fault}")
    return array


def _one(held: Mapping[str, Array], name: str, file: str) -> Array:
    if name not in held:
        raise DataError(f"{file}: it has no array {name!r}; it has {', '.join(map(repr, held)) or 'none'}")
    return held[name]


def _arrays(path: Path) -> Mapping[str, Array]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: features are read from {', '.join(_READERS)} files")
    try:
        return {name: _finite(array, path, name) for name, array in reader(path).items()}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, not a file") from None
    except (DataError, MissingLibrary):
        raise
    except Exception as fault:  # each library raises its own
        raise DataError(f"{path}: cannot be read: {' '.join(str(fault).split()) or type(fault).__name__}") from None


def _npy(path: Path) -> Mapping[str, Array]:
    return {_SINGLE: np.load(path, allow_pickle=False)}


def _safetensors(path: Path) -> Mapping[str, Array]:
    from safetensors.numpy import load_file

    return load_file(path)


def _parquet(path: Path) -> Mapping[str, Array]:
    if not path.exists():
        raise FileNotFoundError
    try:
        from pyarrow import Table
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingLibrary(f"{path}: tables are read with pyarrow; install dpmerge[features]") from None
    read, batches, most = 0, [], largest(path)
    with ParquetFile(path) as file:
        for batch in file.iter_batches():  # part by part: how much there is, a file may say wrongly
            batches.append(batch)
            read += batch.nbytes
            if read > most:
                raise DataError(f"{path}: holds more than {most:,} bytes, which no file of its size may; save it uncompressed")
        table = Table.from_batches(batches, file.schema_arrow)
    if _LABEL not in table.column_names:
        raise DataError(f"{path}: a table needs a column {_LABEL!r}; it has {', '.join(map(repr, table.column_names))}")
    columns = [name for name in table.column_names if name != _LABEL]
    holes = [name for name in table.column_names if table.column(name).null_count]
    if holes:
        row = int(np.argmax(table.column(holes[0]).is_null().to_numpy()))
        raise DataError(f"{path}: column {holes[0]!r} has missing values, the first in row {row} (counted from 0)")
    if len(columns) == 1 and str(table.schema.field(columns[0]).type).startswith(("list", "fixed_size_list")):
        inputs = np.array(table.column(columns[0]).to_pylist())
    else:
        inputs = np.stack([table.column(name).to_numpy() for name in columns], axis=1)
        _finite(inputs, path, "the features", columns)
    return {"x": inputs, "y": table.column(_LABEL).to_numpy()}


_READERS: dict[str, Callable[[Path], Mapping[str, Array]]] = {
    ".npz": read_npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
}
