"""Data sets by name, which installed packages add (entry points `dpmerge.datasets`), and inputs of bounded norm."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import DataError
from dpmerge.user_code import find

# Norms and products are rounded to 24 bits; shortening by this much more keeps every result within its bound.
NORM_MARGIN = 1 - 1e-5


# Of a compressed file: what it holds may be so many times as large, or so many bytes.
MOST_TIMES, FEW_BYTES = 64, 1 << 24


@dataclass(frozen=True)
class Images:
    """Rows of pixels in [0, 1] (channel by channel, then line by line), and labels from 0 on."""

    train: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    test: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]
    shape: tuple[int, int, int]  # channels, height, width
    identity: str  # the records' name for the training part
    classes: int = 10


def load_dataset(name: str, folder: Path | None) -> Images:
    """The data set of this name; `folder` is where its files are, for one that has files."""
    found = find(name, "datasets", "the data set", DataError)(folder)
    if not isinstance(found, Images):
        raise DataError(f"the data set {name!r} gave {type(found).__name__}; it must give dpmerge's Images")
    return found


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file; a few bytes of a compressed one can stand for gigabytes, which are refused unread."""
    try:
        with zipfile.ZipFile(path) as archive:
            size, most = sum(entry.file_size for entry in archive.infolist()), largest(path)
        if size > most:
            raise DataError(f"{path}: holds {size:,} bytes; a file of its size may hold {most:,}: save it uncompressed")
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, not a file") from None
    except DataError:
        raise
    except Exception as fault:  # of zipfile, zlib and numpy, whose headers are Python
        raise DataError(f"{path}: not an .npz file of arrays: {' '.join(str(fault).split()) or type(fault).__name__}") from None


def largest(path: Path) -> int:
    """How many bytes what a compressed file holds may have."""
    return max(FEW_BYTES, MOST_TIMES * path.stat().st_size)


def bounded_features(inputs: npt.NDArray[Any], norm_bound: float) -> npt.NDArray[np.float32]:
    """What linear models see: the inputs with a last column of ones, each row of norm `norm_bound` at most, the 1 included."""
    if not 1 < norm_bound < math.inf:
        raise DataError(f"norm_bound is {norm_bound}; it includes the bias, so it must exceed 1, and be finite")
    rows = np.asarray(inputs, dtype=np.float32).reshape(len(inputs), -1)
    if not np.isfinite(rows).all():
        raise DataError("the inputs hold NaN or infinite values")
    longest = math.sqrt(norm_bound**2 - 1) * NORM_MARGIN
    features = np.ones((len(rows), rows.shape[1] + 1), dtype=np.float32)
    factors = np.minimum(1.0, longest / np.maximum(row_norms(rows), 1e-300)).astype(np.float32)
    np.multiply(rows, factors[:, None], out=features[:, :-1])
    return features


def row_norms(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Euclidean norms in double precision, without a copy of all rows in it."""
    parts = (part.astype(np.float64) for part in np.array_split(rows, max(1, len(rows) // 64)))
    return np.asarray(np.sqrt(np.concatenate([np.einsum("ij,ij->i", part, part) for part in parts])))
