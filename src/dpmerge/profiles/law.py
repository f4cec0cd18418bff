"""What a law is: the dominating pair of one step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dpmerge.profiles.arrays import Direction, FloatArray
from dpmerge.profiles.pmf import LossPmf

# A Gaussian at this distance has a privacy loss of 1800: no ε that anyone prints depends on what lies beyond.
MAX_SHIFT = 60.0


class Law(ABC):
    """A dominating pair (P, Q)."""

    @abstractmethod
    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """(α−1)·D_α of the upper law from the lower one, for each order α > 1; never below the true value."""

    def finite_log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """The same moment over finite losses only; a hint where to look, not a bound."""
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
