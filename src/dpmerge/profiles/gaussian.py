"""μ-GDP in closed form: the hockey-stick divergence of N(μ, 1) from N(0, 1) (docs/theory.md, "gaussian").

Full-batch DP-GD needs nothing else: T steps with noise multiplier σ are exactly μ-GDP with μ = a√T/σ.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from dpmerge.profiles.arrays import FloatArray
from dpmerge.profiles.solve import smallest_epsilon


def gaussian_delta(mu: float, epsilon: FloatArray | float) -> FloatArray:
    """H_ε(N(μ,1), N(0,1)) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), to full relative precision.

    >>> round(float(gaussian_delta(1.0, 4.377)), 7)
    1e-05
    """
    eps = np.asarray(epsilon, dtype=np.float64)
    if mu == 0:
        return np.maximum(0.0, -np.expm1(eps))
    near, far = eps / mu - mu / 2, eps / mu + mu / 2
    # Since e^ε φ(far) = φ(near), the difference is φ(near)·(R(near) − R(far)) with Mills' ratio R: no cancellation of tails.
    with np.errstate(over="ignore", invalid="ignore"):
        mills = math.sqrt(math.pi / 2) * (erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2)))
        tail = np.exp(-near * near / 2) / math.sqrt(2 * math.pi) * mills
        bulk = ndtr(-near) - np.exp(eps + log_ndtr(-far))
    # Above the rounding of either branch, so the value is never below the true one: near² from the exponential, 1/μ from
    # the difference of nearly equal ratios; the other branch is a difference of numbers of order 1.
    rounding = 1e-15 * (1 + near * near + (2 + np.abs(near)) / mu)
    value = np.where(near > 0, tail * (1 + rounding), bulk + 1e-15)
    return np.asarray(np.clip(value + 1e-300, 0.0, 1.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 at which μ-GDP gives (ε, δ)-DP."""
    if mu == 0:
        return 0.0
    upper = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return smallest_epsilon(lambda eps: float(gaussian_delta(mu, eps)), delta, upper)
