"""Data sets of images from files: read rightly, and refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import DataError
from dpmerge_lab.tasks.images import digits_as_images, load_images

PIXELS = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
LABELS = np.array([1, 2])


def save(folder: Path, **changed: Any) -> Path:
    np.savez(folder / "mnist.npz", **{"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS, "y_test": LABELS} | changed)
    return folder


def test_data_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name the folder"):
        load_images(None, "mnist")
    with pytest.raises(DataError, match="no such file"):
        load_images(tmp_path, "mnist")
    (tmp_path / "mnist.npz").write_bytes(b"not a zip")
    with pytest.raises(DataError, match="not a data set"):
        load_images(tmp_path, "mnist")
    np.savez(tmp_path / "mnist.npz", x_train=PIXELS)
    with pytest.raises(DataError, match="not a data set"):
        load_images(tmp_path, "mnist")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"x_train": PIXELS / 255}, "x_train must hold images of bytes"),
        ({"x_test": PIXELS.reshape(2, 16)}, "x_test must hold images of bytes"),
        ({"y_train": np.array([1, 2, 3])}, "y_train must hold one label"),
        ({"y_test": np.array([1, 10])}, "y_test must hold one label"),
        ({"y_test": np.array([0.5, 1])}, "y_test must hold one label"),
        ({"x_test": PIXELS.reshape(2, 2, 8)}, "images to test on"),
    ],
)
def test_data_that_are_no_images_are_one_line(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        load_images(save(tmp_path, **changed), "mnist")


def test_images_are_rows_between_0_and_1(tmp_path: Path) -> None:
    images = load_images(save(tmp_path), "mnist")
    assert images.train.shape == (2, 16)
    assert images.shape == (1, 4, 4)
    assert images.train[0, 15] == pytest.approx(15 / 255)


def test_channels_come_first_in_a_row(tmp_path: Path) -> None:
    coloured = np.stack([PIXELS, PIXELS + 50, PIXELS + 100], axis=-1)
    images = load_images(save(tmp_path, x_train=coloured, x_test=coloured), "mnist")
    assert images.shape == (3, 4, 4)
    np.testing.assert_allclose(images.train.reshape(2, 3, 4, 4)[:, 1] * 255, PIXELS + 50, rtol=1e-6)


def test_digits_have_their_shape() -> None:
    images = digits_as_images()
    assert images.train.shape == (1437, 64)
    assert images.shape == (1, 8, 8)
