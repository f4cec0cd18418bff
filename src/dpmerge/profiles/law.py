"""What a law is: the dominating pair of one step, with its privacy loss distribution on a grid.

Grids are made by connect-the-dots (Doroshenko et al. 2022), from masses instead of divergences.

dp-accounting gets the grid masses from second differences of δ, so rounding errors of 1e-16 in δ are divided by the grid
interval twice. Here every grid cell gets the mass P and Q have in it, and splits the first between the cell's two ends so
that both are preserved: the same least dominating law on the grid, with errors that stay inside their cell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dpmerge.profiles.grids import Direction, FloatArray

# A Gaussian at this distance has a privacy loss of 1800: no ε that anyone prints depends on what lies beyond.
MAX_SHIFT = 60.0
_ROUNDING = 1e-15


@dataclass(frozen=True)
class LossPmf:
    """Masses `probs` at the losses (lower + k)·interval, and `infinity` at +∞.

    `loss_slack` is how far a loss may lie above its grid point: the error of a numerical inverse. Evaluating at
    ε − (sum of slacks) keeps the bound valid.
    """

    interval: float
    lower: int
    probs: FloatArray
    infinity: float
    loss_slack: float = 0.0


def connect_dots(
    interval: float,
    lower: int,
    upper_mass: FloatArray,
    lower_mass: FloatArray,
    uncertainty: FloatArray,
    below: float,
    infinity: float,
    loss_slack: float,
) -> LossPmf:
    """The least law on the grid that dominates one with these masses in the cells [(lower+k)h, (lower+k+1)h].

    A cell's upper mass u and lower mass v become u·(1−f) at its left end and u·f at its right end with
    f = (1 − (v/u)·e^ε)/(1 − e^−h): u and v are both kept, hence the hockey-stick divergence at every grid point.
    `uncertainty` is the relative rounding error of v/u; f is raised by what it and `loss_slack` can amount to. `below`
    is upper mass at losses under the grid, rounded up onto its first point.
    """
    cells = lower + np.arange(upper_mass.size)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.exp(np.log(lower_mass) - np.log(upper_mass) + cells * interval)
        doubt = (uncertainty + 2 * loss_slack) * np.minimum(ratio, 2.0) + _ROUNDING
        share = (1 - ratio + doubt) / -np.expm1(-interval)
    share = np.clip(np.where(upper_mass > 0, np.nan_to_num(share, nan=1.0), 0.0), 0.0, 1.0)
    probs = np.zeros(upper_mass.size + 1)
    probs[:-1] = upper_mass * (1 - share)
    probs[1:] += upper_mass * share
    probs[0] += below
    return LossPmf(interval, lower, probs * (1 + 4 * _ROUNDING), infinity * (1 + 4 * _ROUNDING), loss_slack)


class Law(ABC):
    """A dominating pair (P, Q)."""

    @abstractmethod
    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """(α−1)·D_α of the upper law from the lower one, for each order α > 1; never below the true value."""

    def finite_log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """The same moment over finite losses only: a hint where to search, not a bound."""
        return self.log_moment(orders, direction)

    def bounded(self) -> tuple[Law | None, float]:
        """The law without outcomes that give everything away (shifts beyond MAX_SHIFT), and their probability.

        Given up as failures they cost δ what they would cost anyway, and grids stay finite. Nothing is left at
        probability 1.
        """
        return self, 0.0

    @abstractmethod
    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """The privacy loss distribution on a grid, with at most `tail` moved to +∞."""

    @abstractmethod
    def loss_variance(self) -> float:
        """The variance of the privacy loss under P: the scale on which a grid must be fine."""
