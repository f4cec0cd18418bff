"""Draws with the operating system's secure randomness, exactly with the probabilities stated; never with a seed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from fractions import Fraction

DEEPEST = -700.0  # e^{−700} is still a normal float; docs/theory.md §4 proves that this cut-off keeps every guarantee


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


def tilted_odds(weights: Sequence[float], scores: Sequence[float | Fraction], kappa: float) -> list[Fraction]:
    """The odds weight·e^{κ·score} of a tempered draw, as they are drawn: cut off at e^{−700} of the best score.

    Only models with weight count for the best score: a model without weight must not change the odds. Each exponent is
    rounded once, whatever κ is.
    """
    best = max(Fraction(score) for weight, score in zip(weights, scores, strict=True) if weight > 0)
    odds = []
    for weight, score in zip(weights, scores, strict=True):
        exponent = float(Fraction(kappa) * (Fraction(score) - best)) if weight > 0 else DEEPEST
        odds.append(Fraction(weight) * Fraction(math.exp(max(exponent, DEEPEST))))
    return odds
