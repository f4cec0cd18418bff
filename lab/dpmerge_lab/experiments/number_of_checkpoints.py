"""How many checkpoints of a run estimate its uncertainty best, by the bound of Recycling Scraps, App. A.2."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpmerge.errors import EvaluationError


@dataclass(frozen=True)
class BestCount:
    """How many checkpoints minimise the paper's bound on the mean squared error of S, and that bound."""

    exact: float
    checkpoints: int
    bound: float


def best_number_of_checkpoints(time: float, c1: float, c2: float) -> BestCount:
    """App. A.2: k* = T/(c₁ + c₂ ln(3T/c₂)), and the better of the whole numbers around it.

    `time` is T, the sum of the learning rates times the loss' strong convexity, not the number of steps; c₁ is from
    `mixing_time`, and c₂ is a constant that the paper does not state. For checkpoints at T/k, 2T/k, …, T, k* minimises
    1/k + 3·exp(−(T/k − c₁)/c₂), which the paper states for k ≥ 2 and T/k > c₁ only: elsewhere it is refused. The bound is not
    proved: Lemma A.8, which gives its first term, is false for every k (docs/theory.md §7; 2/k would hold).
    """
    for name, value in (("time", time), ("c1", c1), ("c2", c2)):
        if not 0 < value < math.inf:
            raise EvaluationError(f"{name} is {value}; it must be positive and finite")
    if time <= 2 * c1 or 3 * time <= c2:
        raise EvaluationError(f"time {time:g} is too short for c1 = {c1:g} and c2 = {c2:g}: it must exceed 2·c1 and c2/3")

    def bound(k: int) -> float:
        return 1 / k + 3 * math.exp(-(time / k - c1) / c2)

    exact = time / (c1 + c2 * math.log(3 * time / c2))
    below = max(2, math.floor(exact))
    best = min((k for k in (below, below + 1) if time / k > c1), key=bound)
    return BestCount(exact, best, bound(best))


def mixing_time(smoothness: float, dimension: int, distance: float, c2: float) -> float:
    """c₁ of Thm A.7: 1/(2M) + ln(c₂M(p + ‖θ₀ − θ*‖²)), for a loss that is 1-strongly convex and M-smooth."""
    if not 1 <= smoothness < math.inf or dimension < 1 or not 0 <= distance < math.inf or not 0 < c2 < math.inf:
        raise EvaluationError(
            f"smoothness {smoothness}, dimension {dimension}, distance {distance}, c2 {c2}: a 1-strongly convex loss has "
            "smoothness of at least 1; dimension and c2 are positive, the distance is not negative, and all are finite"
        )
    return 1 / (2 * smoothness) + math.log(c2 * smoothness * (dimension + distance**2))
