"""Draws with the operating system's secure randomness, exactly with the probabilities stated; never with a seed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from fractions import Fraction

from dpmerge.errors import UtilityError

DEEPEST = -700.0  # e^{−700} is still a normal number; the larger of two monotone functions is monotone


def secure_draw(weights: Sequence[float | Fraction]) -> int:
    """An index with probability weight / Σ weights: every float is a fraction, so the draw is exact, by integers."""
    fractions = [Fraction(weight) for weight in weights]
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    parts = [int(fraction * scale) for fraction in fractions]
    drawn = secrets.randbelow(sum(parts))
    for index, part in enumerate(parts):
        if drawn < part:
            return index
        drawn -= part
    raise AssertionError("a draw below the sum falls into one of its parts")


def noisy_choice_weights(right_answers: Sequence[int], epsilon: float, replace_one: bool = False) -> list[float]:
    """The odds of `report_noisy_max`: e^{ε·(count − largest count)}, for half the ε where records are replaced.

    Cut off at e^{−700}: the larger of two monotone functions is monotone, so privacy is not touched.
    """
    if not right_answers or any(count < 0 for count in right_answers):
        raise UtilityError("counts of right answers must be given, and not negative")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise UtilityError(f"the validation set's epsilon is {epsilon}; it must be finite and positive")
    rate = epsilon / 2 if replace_one else epsilon
    largest = max(right_answers)
    return [math.exp(max(rate * (count - largest), DEEPEST)) for count in right_answers]


def report_noisy_max(right_answers: Sequence[int], epsilon: float, replace_one: bool = False) -> int:
    """The index of the largest count, up to noise: ε-DP for the validation set's records (docs/theory.md §4).

    The largest of counts with Gumbel noise, drawn as the exponential mechanism that it is. One record raises any number
    of the counts by at most 1 when it is added; replaced, it may raise some and lower others.
    """
    return secure_draw(noisy_choice_weights(right_answers, epsilon, replace_one))
