"""Data sets by name: what the laboratory or another installed package adds (entry points `dpmerge.datasets`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmerge.errors import DataError
from dpmerge.user_code import added, find


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


def dataset_names() -> list[str]:
    """Every name that `load_dataset` knows here."""
    return list(added("datasets"))


def load_dataset(name: str, folder: Path | None) -> Images:
    """The data set of this name; `folder` is where its files are, for one that has files."""
    found = find(name, "datasets", "the data set", DataError)(folder)
    if not isinstance(found, Images):
        raise DataError(f"the data set {name!r} gave {type(found).__name__}; it must give dpmerge's Images")
    return found
