"""Noise for prefix sums by a banded matrix: C y = z, where z is fresh noise and y is what the steps add to their sums.

C is lower triangular with b bands and columns of norm 1. A user who takes part at most once in any b steps then costs √k/σ,
however often it is looked at: k is how often it takes part (docs/theory.md, `banded-matrix`). Among all such C the best is the
one with the least mean squared error of the prefix sums (Choquette-Choo et al. 2023, BandMF). Held are b vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from dpmerge.errors import TrainingError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BandedNoise:
    """C by its columns: row s has C_ss, C_{s+1,s} … below each other; what would lie below the matrix is 0."""

    columns: Floats
    separation: int

    def __post_init__(self) -> None:
        rounds, bands = self.columns.shape
        if not 1 <= bands <= min(self.separation, rounds):
            raise TrainingError(
                f"{bands} bands over {rounds} rounds for users who take part once in {self.separation}: contributions of one "
                "user would meet in a row; use at most as many bands as either"
            )
        # Clips are a hair below their norm, far more than this.
        if np.linalg.norm(self.columns, axis=1).max() > 1 + 1e-12 or not (self.columns[:, 0] > 0).all():
            raise TrainingError("the matrix needs columns of norm at most 1 and a positive diagonal")
        if self.columns[~_inside(rounds, bands)].any():
            raise TrainingError("entries that would lie below the matrix must be 0")

    @classmethod
    def square_root(cls, rounds: int, bands: int, separation: int | None = None) -> BandedNoise:
        """The first bands of the square root of the prefix sums (Fichtenberger et al. 2023), columns brought to norm 1."""
        index = np.arange(1, bands)
        root = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / index]))
        return cls(_normalised(np.tile(root, (rounds, 1)) * _inside(rounds, bands)), separation or bands)

    @classmethod
    def best(cls, rounds: int, bands: int, separation: int | None = None, iterations: int = 200) -> BandedNoise:
        """The least mean squared error of all prefix sums, found from the square root on by L-BFGS."""
        start, inside = cls.square_root(rounds, bands, separation), _inside(rounds, bands)

        def loss(free: Floats) -> tuple[float, Floats]:
            raw = np.zeros((rounds, bands))
            raw[inside] = free
            norms = np.linalg.norm(raw, axis=1, keepdims=True)
            columns = raw / norms
            inverse = solve_triangular(_dense(columns), np.eye(rounds), lower=True)
            errors = np.cumsum(inverse, axis=0)
            slope = _columns_of(-2 / rounds * (errors.T @ errors) @ inverse.T, bands)
            # Along a column norms do not matter: what is left of the slope is across it.
            slope = (slope - (slope * columns).sum(axis=1, keepdims=True) * columns) / norms
            return float((errors**2).sum() / rounds), slope[inside]

        # Without this bound a long first step lands beyond a matrix that has no inverse, and does not find back.
        least = np.where(np.arange(bands) == 0, 0.01, -np.inf) * np.ones((rounds, 1))
        found = minimize(
            loss,
            start.columns[inside],
            jac=True,
            method="L-BFGS-B",
            bounds=[(low, None) for low in least[inside]],
            options={"maxiter": iterations},
        )
        raw = np.zeros((rounds, bands))
        raw[inside] = found.x
        return cls(_normalised(raw), start.separation)

    def matrix(self) -> Floats:
        """C."""
        return _dense(self.columns)

    def squared_errors(self) -> Floats:
        """The variance of the noise of each prefix sum, z having variance 1."""
        errors = np.cumsum(solve_triangular(self.matrix(), np.eye(len(self.columns)), lower=True), axis=0)
        return np.asarray((errors**2).sum(axis=1))

    def increments(self, draw: Callable[[], Any]) -> Iterator[Any]:
        """y, step by step: what is added to a step's own sum. `draw` gives z: fresh each time, an array or a tensor."""
        rounds, bands = self.columns.shape
        held: deque[Any] = deque(maxlen=bands - 1)  # the last first
        for step in range(rounds):
            left = draw()
            for back, earlier in enumerate(held, start=1):
                left = left - float(self.columns[step - back, back]) * earlier
            held.appendleft(left / float(self.columns[step, 0]))
            yield left / float(self.columns[step, 0])


def _inside(rounds: int, bands: int) -> npt.NDArray[np.bool_]:
    return np.asarray(np.add.outer(np.arange(rounds), np.arange(bands)) < rounds)


def _normalised(columns: Floats) -> Floats:
    return np.asarray(columns / np.linalg.norm(columns, axis=1, keepdims=True))


def _dense(columns: Floats) -> Floats:
    rounds, bands = columns.shape
    matrix = np.zeros((rounds, rounds))
    matrix[_places(rounds, bands)] = columns[_inside(rounds, bands)]
    return matrix


def _columns_of(matrix: Floats, bands: int) -> Floats:
    rounds = len(matrix)
    found = np.zeros((rounds, bands))
    found[_inside(rounds, bands)] = matrix[_places(rounds, bands)]
    return found


def _places(rounds: int, bands: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows and columns of the entries within the bands, column by column."""
    column, back = np.nonzero(_inside(rounds, bands))
    return column + back, column
