"""The data of a portfolio's runs: sets by their names, files, or what a `module:function` of the user's gives."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dpmerge.datasets import bounded_features, load_dataset
from dpmerge.errors import DataError
from dpmerge.records import Positive, Strict
from dpmerge.training.feature_files import DataFiles, Part, not_finite, read_files
from dpmerge.training.public_network import NetworkName, network_features
from dpmerge.user_code import call, load_function, running, told

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class PublicNetwork(Strict):
    """The network through which images go: `size` in pixels each way, `white` the value of a white pixel."""

    network: NetworkName
    size: Annotated[int, Field(ge=32, le=1024)] = 224
    white: Positive | None = None


@dataclass(frozen=True)
class DataSource:
    """Where the data are and how they are prepared: small enough to be sent to every worker, which then loads them itself."""

    name: str
    folder: Path | None = None
    classes: int | None = None
    positive: tuple[int, ...] | None = None  # labels that count as class 1, all others as 0
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    files: str | DataFiles | None = None  # in the folder
    network: PublicNetwork | None = None
    kept: Path | None = None  # a private folder in which the network's features are kept

    @property
    def public_network(self) -> PublicNetwork | None:
        """The network with nothing left to default. Data sets with a name have pixels from 0 to 1."""
        named = self.files is None and ":" not in self.name
        return self.network and self.network.model_copy(update={"white": 1.0 if named else self.network.white or 255.0})


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs, one along the first axis (images channels first), and labels from 0 on; the test part is public."""

    train: Floats
    train_labels: Labels
    test: Floats
    test_labels: Labels
    classes: int
    identity: str | None  # the records' name for the training part; only the user knows it for data of the user's

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.shape[1:]

    def digest(self) -> str:
        """A fingerprint by which workers check that all of them train on the same examples."""
        digest = hashlib.sha256(repr((self.shape, self.classes)).encode())
        for array in (self.train, self.train_labels, self.test, self.test_labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@lru_cache(maxsize=1)
def load(source: DataSource) -> Data:
    """Read, check and prepare; once for all runs of a process."""
    if source.files is not None:
        assert source.folder is not None
        with running(f"data {source.name!r}", DataError):
            train, test = map(_arrays, read_files(source.files, source.folder))
        found = _checked(source.name, train, test, source.classes)
    elif ":" in source.name:
        if source.folder is not None:
            raise DataError(f"{source.name} is a function of yours and reads no folder")
        found = _from_function(source.name, source.classes)
    else:
        held = load_dataset(source.name, source.folder)
        images = (part.reshape(-1, *held.shape) for part in (held.train, held.test))
        found = Data(next(images), held.train_labels, next(images), held.test_labels, held.classes, held.identity)
        if source.classes not in (None, found.classes):
            raise DataError(f"classes is {source.classes}, but {source.name} has {found.classes}; leave it out")
    if source.positive is not None:
        found = _two_classes(found, source.positive)
    if source.public_network is not None:
        found = _through_network(found, source.public_network, source.kept)
    return _normalised(found, source) if source.mean else found


def as_stored(source: DataSource) -> Part:
    """Inputs and labels of the training part before anything is prepared: those of files as they are in the files."""
    if source.files is not None:
        assert source.folder is not None
        return read_files(source.files, source.folder)[0]
    found = load(replace(source, positive=None, network=None, mean=(), deviation=()))
    return found.train, found.train_labels


@lru_cache(maxsize=1)
def features(source: DataSource, norm_bound: float) -> tuple[Floats, Floats]:
    """What linear models see of the training and the test part."""
    data = load(source)
    return bounded_features(data.train, norm_bound), bounded_features(data.test, norm_bound)


def _from_function(name: str, classes: int | None) -> Data:
    """The function takes nothing and gives (train, test), each a torch dataset or a pair (inputs, labels) of arrays."""
    function = load_function(name, "data", DataError)
    given = call(name, function, error=DataError)
    try:
        train, test = map(_arrays, given)
    except Exception as fault:  # so can a dataset of the user's
        raise DataError(
            f"data {name!r}: it must give (train, test), torch datasets or pairs of arrays; taking them raised {told(fault)}"
        ) from fault
    return _checked(name, train, test, classes)


def _checked(name: str, train: tuple[Floats, Labels], test: tuple[Floats, Labels], classes: int | None) -> Data:
    if classes is None:  # counting the classes would reveal something about the private data
        raise DataError(f"data {name!r}: how many classes there are must be stated: field classes")
    (x_train, y_train), (x_test, y_test) = train, test
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if not len(x) or x.ndim not in (2, 4):
            shape = "(N, features), (N, height, width) or (N, channels, height, width)"
            raise DataError(f"data {name!r}: inputs to {part} on must be numbers of shape {shape}; got {x.shape}")
        if (fault := not_finite(x)) is not None:
            raise DataError(f"data {name!r}: inputs to {part} on must be finite; {fault}")
        if y.shape != (len(x),) or y.min() < 0 or y.max() >= classes:
            raise DataError(f"data {name!r}: each of the {len(x)} inputs to {part} on needs a label from 0 to {classes - 1}")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(f"data {name!r}: inputs to train on are {x_train.shape[1:]}, inputs to test on {x_test.shape[1:]}")
    return Data(x_train, y_train, x_test, y_test, classes, None)


def _through_network(data: Data, network: PublicNetwork, kept: Path | None) -> Data:
    """Features instead of images. They take minutes, so a private folder keeps them for other processes and other times."""
    key = hashlib.sha256(f"{network.model_dump_json()} {data.digest()}".encode()).hexdigest()[:32]
    path = None if kept is None else kept / f"features-{key}.npz"
    if path is not None and path.exists():
        with np.load(path, allow_pickle=False) as held:
            return replace(data, train=held["train"], test=held["test"])
    train, test = (network_features(part, network.size, network.white or 255.0) for part in (data.train, data.test))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{os.getpid()}-{path.name}")
        np.savez(made, train=train, test=test)
        made.replace(path)
    return replace(data, train=train, test=test)


def _arrays(part: Part | Any) -> tuple[Floats, Labels]:
    if isinstance(part, tuple):
        inputs, labels = part
    else:
        pairs = [part[index] for index in range(len(part))]
        inputs, labels = np.stack([np.asarray(x) for x, _ in pairs]), [int(y) for _, y in pairs]
    known = np.asarray(labels)
    if known.dtype.kind not in "iu":
        raise TypeError(f"labels are {known.dtype}, not whole numbers")
    rows = np.asarray(inputs, dtype=np.float32)
    return (rows[:, None] if rows.ndim == 3 else rows), known.astype(np.int64)


def _two_classes(data: Data, positive: tuple[int, ...]) -> Data:
    if max(positive) >= data.classes or len(set(positive)) >= data.classes:
        raise DataError(f"positive is {list(positive)}; it must name some, not all, of the labels 0 to {data.classes - 1}")
    train, test = (np.isin(labels, positive).astype(np.int64) for labels in (data.train_labels, data.test_labels))
    return replace(data, train_labels=train, test_labels=test, classes=2)


def _normalised(data: Data, source: DataSource) -> Data:
    """Images have constants for each channel; features for each feature, or one for all."""
    channels, numbers = data.shape[0], len(source.mean)
    if numbers != channels and not (numbers == 1 and len(data.shape) == 1):
        raise DataError(f"normalise has numbers for {numbers} channels, but the inputs have {channels}")
    train, test = (normalised(part, source.mean, source.deviation) for part in (data.train, data.test))
    return replace(data, train=train, test=test)


def normalised(inputs: Floats, mean: Sequence[float], deviation: Sequence[float]) -> Floats:
    """(x − mean)/deviation along the second axis: channels of images, or features."""
    along = (len(mean),) + (1,) * (inputs.ndim - 2)
    centre, scale = (np.array(values, np.float32).reshape(along) for values in (mean, deviation))
    return np.asarray((inputs - centre) / scale)
