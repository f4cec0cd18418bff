"""Root finding that ends on the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable


def smallest_epsilon(delta_at: Callable[[float], float], delta: float, upper: float, lower: float = 0.0) -> float:
    """The smallest ε ≥ lower with delta_at(ε) ≤ δ, for a non-increasing bound; infinite if none is found.

    Whatever the root finder returns is moved up until the bound really holds there: an ε is never rounded down.
    """
    from scipy.optimize import brentq  # slow to import, and a cached answer needs no root

    if delta_at(lower) <= delta:
        return lower
    upper = max(upper, lower + 1e-12)
    while delta_at(upper) > delta:
        if upper > 1e6:
            return math.inf
        upper = 2 * upper

    def gap(epsilon: float) -> float:
        value = delta_at(epsilon)
        return math.log(value / delta) if value > 0 else -800.0

    root = float(brentq(gap, lower, upper, xtol=1e-11 * max(1e-3, upper), rtol=1e-12, maxiter=200))
    step = 1e-12 * max(1e-3, root)
    while delta_at(root) > delta:
        root += step
        step *= 2
    return min(root, upper)
