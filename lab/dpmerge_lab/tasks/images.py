"""Images to train on: the digits that ship with scikit-learn, and `mnist.npz` or `cifar10.npz` from a folder the user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import Images
from dpmerge.errors import DataError
from dpmerge_lab.tasks import digits as sklearn_digits

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def load_images(folder: Path | None, name: str) -> Images:
    """`NAME.npz` with x_train, y_train, x_test and y_test: bytes, one image after the other, channels last if there are any."""
    if folder is None:
        raise DataError(f"{name}.npz is needed: name the folder that holds it")
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise DataError(f"{path}: no such file; name a folder that holds {name}.npz")
    try:
        with np.load(path, allow_pickle=False) as held:
            x_train, y_train, x_test, y_test = (held[key] for key in _ARRAYS)
    except (OSError, ValueError, KeyError) as fault:
        raise DataError(f"{path}: not a data set of images with {', '.join(_ARRAYS)}: {fault}") from None
    for part, images, labels in (("train", x_train, y_train), ("test", x_test, y_test)):
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or not len(images):
            raise DataError(f"{path}: x_{part} must hold images of bytes; it is {images.dtype} of shape {images.shape}")
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() > 9:
            raise DataError(f"{path}: y_{part} must hold one label from 0 to 9 for each of the {len(images)} images")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(f"{path}: images to train on are {x_train.shape[1:]}, images to test on {x_test.shape[1:]}")
    height, width, *channels = x_train.shape[1:]
    shape = (channels[0] if channels else 1, height, width)
    parts = (_rows(x_train), y_train.astype(np.int64), _rows(x_test), y_test.astype(np.int64))
    return Images(*parts, shape, f"{name}-train-{len(x_train)}")


def digits_as_images(centred: bool = False) -> Images:
    """The digits in the same form: 1,437 to train on, 360 to test on."""
    train, test = sklearn_digits.load(centred)
    parts = (train.images.astype(np.float32), train.labels, test.images.astype(np.float32), test.labels)
    return Images(*parts, (1, 8, 8), "sklearn-digits-train-1437")


def digits(folder: Path | None) -> Images:
    """For `dpmerge train` and `dpmerge run`: the digits ship with scikit-learn."""
    if folder is not None:
        raise DataError("the digits ship with scikit-learn and need no folder")
    return digits_as_images()


def centred_digits(folder: Path | None) -> Images:
    """The same without each image's own mean, of norm 5."""
    digits(folder)
    return digits_as_images(centred=True)


def mnist(folder: Path | None) -> Images:
    """`mnist.npz` in the folder."""
    return load_images(folder, "mnist")


def cifar10(folder: Path | None) -> Images:
    """`cifar10.npz` in the folder."""
    return load_images(folder, "cifar10")


def _rows(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    ordered = np.moveaxis(images, -1, 1) if images.ndim == 4 else images
    return (ordered.reshape(len(images), -1) / np.float32(255)).astype(np.float32)
