"""Array types and the two directions in which a pair of laws is compared."""

from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# "remove": H_ε(P, Q), the record is in the upper law; "add": H_ε(Q, P). A guarantee needs both.
Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")


def grid(first: int, last: int, interval: float, origin: float = 0.0) -> FloatArray:
    """origin + k·interval for k = first … last."""
    return np.asarray(origin + np.arange(first, last + 1) * interval, dtype=np.float64)
