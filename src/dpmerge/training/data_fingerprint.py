"""A fingerprint of a dataset under a secret key, by which records of the same data are recognised (docs/records.md).

HMAC-SHA-256 of every example, and of the sorted list of these: the order of the examples does not matter, their number does.
The key stays with the data's owner. Without it a fingerprint tells nothing but whether two of them are equal; with it, whoever
knows all examples but one can test guesses of that one.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import DataError, SignatureError
from dpmerge.files import write_private
from dpmerge.records import DataFingerprint
from dpmerge.training.feature_files import is_file, read_training

_KEY_BYTES, _LEAST_BYTES, _MARK_BYTES = 32, 16, 32
# What a value of the HMAC is of: no two uses of the key have an input in common.
_EXAMPLE, _WHOLE, _KEY = b"dpmerge data 1, example\0", b"dpmerge data 1, whole\0", b"dpmerge data 1, key\0"
_READ_TWICE = 16
_ARRAYS = ("__array__", "__array_interface__")
_IMAGES = {"1", "L", "I", "F", "RGB", "RGBA"}
_REFUSED = (
    "it holds a {}; examples are numbers, text, bytes, arrays (not masked), images in grey, RGB or RGBA, and lists or "
    "dictionaries of these"
)


def data_fingerprint(*data: Any, key: bytes) -> DataFingerprint:
    """Of a torch Dataset or another sequence of examples, or of several arrays, whose rows together are the examples.

    An example is numbers, text, bytes, arrays or tensors, or lists and dictionaries of these. Fingerprint the data as they are
    stored: two scalings of one image are different data, and a dataset is refused if its first examples, read a second time,
    are others, as by random transforms.

    >>> key = bytes(32)  # for this example; make yours with secrets.token_bytes(32), or new_data_key
    >>> images, labels = np.arange(8, dtype=np.uint8).reshape(4, 2), np.array([0, 1, 2, 1])
    >>> one = data_fingerprint(images, labels, key=key)
    >>> one == data_fingerprint(images[::-1], labels[::-1], key=key), one == data_fingerprint(images, labels[::-1], key=key)
    (True, False)
    """
    if not data:
        raise DataError("there are no data to fingerprint")
    if len(data) == 1:
        _require_steady(data[0], key)
        return _fingerprint(_rows(data[0]), key)
    lengths = [_length(column) for column in data]
    if len(set(lengths)) > 1:
        raise DataError(f"arrays with {', '.join(map(str, lengths))} rows: each example needs one row of every array")
    return _fingerprint(zip(*map(_rows, data), strict=True), key)


def fingerprint_of(path: Path, key: bytes) -> DataFingerprint:
    """Of files: every file of a folder, every row of a .csv file, or every example of the training part of a file of arrays."""
    if os.path.isdir(path):  # False, not an error, where that may not be asked
        return _fingerprint(_files(path), key)
    if path.suffix.lower() == ".csv":
        return _fingerprint(_csv_rows(path), key)
    if not is_file(path.name):
        raise DataError(f"{path}: data are a folder of files, a .csv file, or arrays (.npz, .npy, .safetensors, .parquet)")
    return data_fingerprint(*read_training(path), key=key)


def new_data_key(path: Path) -> str:
    """Write a fresh key to `path`, readable by its owner alone; return its public id."""
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        write_private(key.hex().encode() + b"\n", path)
    except FileExistsError:
        raise SignatureError(f"{path}: exists already; a key is never overwritten") from None
    except OSError as fault:
        raise SignatureError(f"{path}: cannot be written: {fault.strerror}") from None
    return data_key_id(key)


def read_data_key(path: Path) -> bytes:
    """The key in a file: hexadecimal digits."""
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        raise SignatureError(
            f"{path}: holds no key for fingerprints of data, one line of hexadecimal digits; dpmerge record key makes one"
        ) from None
    data_key_id(key)
    return key


def data_key_id(key: bytes) -> str:
    """What records call the key: pseudo-random, like the fingerprints under it."""
    if len(key) < _LEAST_BYTES:
        raise SignatureError(
            f"a key of {len(key)} bytes can be guessed, and then the data be tested for records; use secrets.token_bytes(32)"
        )
    return hmac.digest(key, _KEY, hashlib.sha256)[:16].hex()


def _fingerprint(examples: Iterable[Any], key: bytes) -> DataFingerprint:
    named, mark, marks = data_key_id(key), _marker(key), bytearray()
    for place, example in enumerate(examples):
        marks += mark(example, place)
    if not marks:
        raise DataError("there are no examples, so there is nothing to know the data by")
    np.frombuffer(marks, dtype=f"S{_MARK_BYTES}").sort()  # in place
    count = len(marks) // _MARK_BYTES
    whole = hmac.new(key, _WHOLE + b"%d:" % count, hashlib.sha256)
    whole.update(marks)
    return DataFingerprint(key=named, value=whole.hexdigest())


def _marker(key: bytes) -> Callable[[Any, int], bytes]:
    begun = hmac.new(key, _EXAMPLE, hashlib.sha256)

    def mark(example: Any, place: int) -> bytes:
        made = begun.copy()
        try:
            for piece in _canonical(example):
                made.update(piece)
        except (TypeError, ValueError, RuntimeError, RecursionError) as fault:
            raise DataError(f"example {place} (counted from 0) cannot be fingerprinted: {fault}") from None
        return made.digest()

    return mark


def _require_steady(data: Any, key: bytes) -> None:
    """Refuse a dataset whose examples are others each time they are read."""
    if not hasattr(data, "__getitem__"):
        return
    mark = _marker(key)
    for place, (one, again) in enumerate(islice(zip(_rows(data), _rows(data), strict=True), _READ_TWICE)):
        if mark(one, place) != mark(again, place):
            raise DataError(
                f"example {place} (counted from 0) is another one each time it is read, by random transforms; fingerprint the "
                "data as they are stored, without them"
            )


def _rows(data: Any) -> Iterator[Any]:
    other = isinstance(data, Mapping | str | bytes) or _is_table(data) or hasattr(data, "batch_sampler")  # a DataLoader
    if other or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise DataError(
            f"a {type(data).__name__} is no sequence of examples; give a Dataset (not its loader), a list, or arrays one by "
            "one (of a pandas table: to_numpy())"
        )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):  # a torch Dataset need not end when it is iterated over
        return (data[place] for place in range(_length(data)))
    return iter(data)


def _length(data: Any) -> int:
    try:
        return len(data)
    except TypeError as fault:  # an array of no dimension, an iterator, a sparse matrix
        raise DataError(f"a {type(data).__name__} has no rows that could be counted: {fault}") from None


def _is_table(value: Any) -> bool:
    """Of pandas, polars or arrow: its places are columns or labels, and its numbers alone leave out their names."""
    return hasattr(value, "iloc") or (hasattr(value, "columns") and hasattr(value, "shape"))


def _canonical(value: Any) -> Iterator[bytes]:
    """Bytes that are different for different values, whatever follows them. A number in an array of no dimension is itself."""
    if value is None or isinstance(value, bool):
        yield {None: b"n", False: b"0", True: b"1"}[value]
    elif isinstance(value, int):
        yield b"i%d;" % value
    elif isinstance(value, float):
        yield b"f" + struct.pack("<d", value)
    elif isinstance(value, str | bytes):
        text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        yield (b"s%d:" if isinstance(value, str) else b"b%d:") % len(text)
        yield text
    elif isinstance(value, list | tuple):
        yield b"l%d:" % len(value)
        for one in value:
            yield from _canonical(one)
    elif isinstance(value, Mapping):
        yield b"d%d:" % len(value)
        for name in sorted(value):
            yield from _canonical(name)
            yield from _canonical(value[name])
    elif _is_array(value):
        yield from _array(np.asarray(value), type(value).__name__)
    else:
        raise TypeError(_REFUSED.format(type(value).__name__))


def _is_array(value: Any) -> bool:
    """Whether its numbers are all there is to it: no mask, no palette, no names. Numpy would read nearly anything."""
    if isinstance(value, np.ndarray | np.generic):
        return not isinstance(value, np.ma.MaskedArray)
    if _is_table(value):
        return False
    if hasattr(value, "getpalette"):  # an image of PIL
        return value.mode in _IMAGES
    return isinstance(value, complex | bytearray | memoryview) or any(map(partial(hasattr, value), _ARRAYS))


def _array(array: np.ndarray[Any, Any], name: str) -> Iterator[bytes]:
    """Type, shape and the numbers row by row, little end first."""
    if array.dtype.char in "gG":
        raise TypeError("a long double has other bytes on every kind of machine; use float64")
    if array.dtype.kind in "US" or (array.ndim == 0 and array.dtype.kind in "biuf"):
        yield from _canonical(array.tolist())
    elif array.dtype.kind in "biufc":
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        shape = "x".join(map(str, array.shape))
        yield f"a{array.dtype.kind}{array.dtype.itemsize}:{shape}:".encode()
        yield little.tobytes()
    else:
        raise TypeError(_REFUSED.format(name))


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file: its path in the folder, which often is its label, and the hash of what it holds."""
    for path in _below(folder):
        try:
            if path.is_dir() and not path.is_symlink():
                continue
            if not path.is_file() or path.is_symlink():
                raise DataError(f"{path}: is a link or no file; a fingerprint is of files that lie in the folder themselves")
            with path.open("rb") as file:
                yield path.relative_to(folder).as_posix(), hashlib.file_digest(file, "sha256").digest()
        except OSError as fault:
            raise DataError(f"{path}: cannot be read: {fault.strerror}") from None


def _below(folder: Path) -> Iterator[Path]:
    """Everything in it; a folder that may not be listed is refused, which rglob passes over."""

    def refuse(fault: OSError) -> None:
        raise DataError(f"{fault.filename}: cannot be read: {fault.strerror}") from None

    for where, folders, files in os.walk(folder, onerror=refuse):
        yield from (Path(where, name) for name in (*folders, *files))


def _csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """Every row after the first, which names the columns, as text by column."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            names = next(rows, [])
            if not names or len(set(names)) < len(names):
                raise DataError(f"{path}: its first row must name the columns, each once")
            for row in rows:
                if len(row) != len(names):
                    raise DataError(f"{path}: line {rows.line_num} has {len(row)} fields; there are {len(names)} columns")
                yield dict(zip(names, row, strict=True))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise DataError(f"{path}: cannot be read: {fault}") from None
