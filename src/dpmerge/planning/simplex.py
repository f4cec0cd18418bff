"""Grids on the simplex of weights."""

from __future__ import annotations

import itertools

import numpy as np

from dpmerge.errors import TargetError
from dpmerge.profiles import FloatArray


def simplex_grid(models: int, step: float) -> FloatArray:
    """All weight vectors whose entries are multiples of `step` (a divisor of 1), one a row; each sums to 1.

    >>> simplex_grid(2, 0.5).tolist()
    [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    """
    cells = round(1 / step) if step > 0 else 0
    if cells < 1 or abs(cells * step - 1) > 1e-9:
        raise TargetError(f"a step of {step} does not divide 1")
    rows = []
    for cuts in itertools.combinations(range(cells + models - 1), models - 1):
        edges = (-1, *cuts, cells + models - 1)
        rows.append([(b - a - 1) / cells for a, b in itertools.pairwise(edges)])
    return np.array(rows, dtype=np.float64)
