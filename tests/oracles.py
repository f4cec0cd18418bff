"""Slow, independent ways to the same numbers: brute force, high precision, and the papers' own sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import mpmath
import numpy as np
from scipy.stats import norm


def hockey_stick(
    upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], epsilon: float, sigma: float = 1.0
) -> float:
    """H_ε between mixtures of (mean, probability) Gaussians, by a fine Riemann sum on cells with exact masses.

    Sums of positive parts over cells never exceed the integral, so this is a lower bound that a guarantee must clear.
    """
    means = [mean for mean, _ in (*upper, *lower)]
    x = np.linspace(min(means) - 12 * sigma, max(means) + 12 * sigma, 400_001)

    def masses(mixture: Sequence[tuple[float, float]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        total = np.zeros(x.size - 1)
        for mean, prob in mixture:
            z = (x - mean) / sigma
            total += prob * np.where(z[:-1] > 0, norm.sf(z[:-1]) - norm.sf(z[1:]), norm.cdf(z[1:]) - norm.cdf(z[:-1]))
        return total

    return float(np.maximum(masses(upper) - math.exp(epsilon) * masses(lower), 0.0).sum())


def mixture(shifts: Sequence[float], probs: Sequence[float]) -> list[tuple[float, float]]:
    """As (mean, probability) pairs."""
    return list(zip(shifts, probs, strict=True))


def subsets(shifts: Sequence[float], rates: Sequence[float]) -> list[tuple[float, float]]:
    """Every subset of coins: the sum of its shifts and its probability."""
    result = []
    for chosen in itertools.product((0, 1), repeat=len(shifts)):
        shift = math.fsum(s for s, z in zip(shifts, chosen, strict=True) if z)
        result.append((shift, math.prod(q if z else 1 - q for q, z in zip(rates, chosen, strict=True))))
    return result


def renyi_moment(shifts: Sequence[float], probs: Sequence[float], power: float) -> float:
    """log E_{z~N(0,1)}[(Σ ρ_j e^{zΔ_j − Δ_j²/2})^power] in 40 digits, by the trapezoidal rule.

    The integrand is analytic near the real line, so the error falls exponentially with the number of points: sixteen per unit
    leave less than 1e-20 of the logarithm here, as adaptive quadrature in 40 digits confirms.
    """
    with mpmath.workdps(40):
        s = [mpmath.mpf(v) for v in shifts]
        p = [mpmath.mpf(v) for v in probs]
        p[0] = 1 - mpmath.fsum(p[1:])  # a float near 1 hides what a rate of 1e-10 is about

        def integrand(z: mpmath.mpf) -> mpmath.mpf:
            ratio = mpmath.fsum(w * mpmath.exp(z * d - d * d / 2) for w, d in zip(p, s, strict=True))
            return ratio**power * mpmath.npdf(z)

        reach = math.ceil(16 * (15 + abs(power) * max(shifts)))
        return float(mpmath.log(mpmath.fsum(integrand(mpmath.mpf(k) / 16) for k in range(-reach, reach + 1)) / 16))


def literal_equation_nine(shifts: Sequence[float], rates: Sequence[float], alpha: int) -> float:
    """Eq. (9) of Differentially Private Model Merging v1 as it stands; returns ε_α of one step.

    A sum over all ways to distribute α among the 2^N subsets.
    """
    atoms = subsets(shifts, rates)
    total = mpmath.mpf(0)
    with mpmath.workdps(40):
        for cut in itertools.combinations(range(alpha + len(atoms) - 1), len(atoms) - 1):
            edges = (-1, *cut, alpha + len(atoms) - 1)
            gamma = [b - a - 1 for a, b in itertools.pairwise(edges)]
            term = mpmath.factorial(alpha)
            first = second = mpmath.mpf(0)
            for g, (shift, prob) in zip(gamma, atoms, strict=True):
                term *= mpmath.mpf(prob) ** g / mpmath.factorial(g)
                first += g * mpmath.mpf(shift)
                second += g * mpmath.mpf(shift) ** 2
            total += term * mpmath.exp((first**2 - second) / 2)
        return float(mpmath.log(total) / (alpha - 1))


def equation_nine_terms(alpha: int, models: int) -> int:
    """How many terms that sum has."""
    return math.comb(alpha + 2**models - 1, 2**models - 1)


def kairouz_oh_viswanath(epsilon: float, delta: float, count: int, at: float) -> float:
    """The optimal composition of `count` equal (ε, δ) pairs, δ at ε = `at`, in closed form (binomial sum)."""
    keep = 1 / (1 + math.exp(-epsilon))
    inner = 0.0
    for k in range(count + 1):
        loss = (2 * k - count) * epsilon
        inner += math.comb(count, k) * keep**k * (1 - keep) ** (count - k) * max(0.0, -math.expm1(at - loss))
    return 1 - (1 - delta) ** count * (1 - inner)
