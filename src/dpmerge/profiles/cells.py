"""From a Gaussian pair to its two loss distributions on a grid, by inverting the privacy loss on the whole grid at once.

dp-accounting builds a mixture-of-Gaussians distribution by a scalar root search per grid point.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from dpmerge.errors import GridTooLarge
from dpmerge.profiles.grids import FloatArray, SizedCache, grid
from dpmerge.profiles.law import LossPmf, connect_dots

if TYPE_CHECKING:
    from dpmerge.profiles.pairs import GaussianPair


def _size(pmfs: tuple[LossPmf, LossPmf]) -> int:
    return sum(pmf.probs.nbytes for pmf in pmfs)


@partial(SizedCache, size_of=_size)
def monotone_pmfs(pair: GaussianPair, interval: float, tail: float) -> tuple[LossPmf, LossPmf]:
    """Cells of width h in the loss are intervals in x; their masses under P and Q are differences of normal cdfs.

    One inversion serves both directions: the loss of the other is −ℓ, and the grid is symmetric.
    """
    reach = -float(ndtri(tail)) + 1e-3
    x_low = float(pair.lower[0][0]) - reach
    x_high = _upper_quantile(*pair.upper, tail)
    ends = pair.loss(np.array([x_low, x_high]))
    first, last = math.floor(float(ends[0]) / interval), math.ceil(float(ends[1]) / interval)
    if last - first > 50_000_000:
        raise GridTooLarge(f"a privacy loss of {ends[1]:.3g} on a grid of {interval:.3g} does not fit in memory")
    first = max(first, math.floor(pair.least_loss / interval)) if pair.least_loss > -math.inf else first
    last = max(last, first + 1)
    edges, slack = pair.inverse(grid(first, last, interval))
    edges = np.maximum.accumulate(edges)
    p_cells, p_below, p_above, p_rounding = _cell_masses(edges, *pair.upper)
    q_cells, q_below, q_above, q_rounding = _cell_masses(edges, *pair.lower)
    rounding = p_rounding + q_rounding
    return (
        connect_dots(interval, first, p_cells, q_cells, rounding, p_below, p_above, slack),
        connect_dots(interval, -last, q_cells[::-1], p_cells[::-1], rounding[::-1], q_above, q_below, slack),
    )


def _cell_masses(edges: FloatArray, shifts: FloatArray, probs: FloatArray) -> tuple[FloatArray, float, float, FloatArray]:
    """Masses between the edges, below the first and above the last, and the cells' relative rounding errors.

    Each difference is taken on the side of the mean where the tail is small, so tails keep their relative precision.
    """
    masses = np.zeros(edges.size - 1)
    tails = np.zeros(edges.size - 1)
    below = above = 0.0
    for shift, prob in zip(shifts, probs, strict=True):
        centred = edges - shift
        tail = ndtr(-np.abs(centred))  # the smaller of cdf and survival function
        right = centred[:-1] > 0
        left = centred[1:] <= 0
        straddle = ~(right | left)
        difference = np.where(right, tail[:-1] - tail[1:], tail[1:] - tail[:-1])
        difference = np.where(straddle, 1 - tail[:-1] - tail[1:], difference)
        masses += prob * np.maximum(difference, 0.0)
        # ndtr's relative error was measured: below 2e-16·(1 + x²) for −37 < x < 0.
        error = tail * (1 + np.minimum(np.abs(centred), 40.0) ** 2)
        tails += prob * np.where(straddle, 1.0, np.maximum(error[:-1], error[1:]))
        below += prob * float(ndtr(centred[0]))
        above += prob * float(ndtr(-centred[-1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        rounding = np.where(masses > 0, 4e-16 * tails / masses, 1.0)
    return masses, below, above, rounding


def _upper_quantile(shifts: FloatArray, probs: FloatArray, tail: float) -> float:
    """A point beyond which the mixture has at most mass `tail`."""
    low, high = float(shifts[0]), float(shifts[-1]) - float(ndtri(tail)) + 1e-3
    for _ in range(40):
        middle = (low + high) / 2
        if float(probs @ ndtr(shifts - middle)) > tail:
            low = middle
        else:
            high = middle
    return high
