"""The closed form that full-batch runs rest on (docs/theory.md, `gaussian`)."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given, strategies as st

from dpmerge.profiles import gaussian_delta, gaussian_epsilon


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.68718, 1.0, 5.0, 18.283])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0, 8.0, 20.0])
def test_delta_has_full_relative_precision_and_is_never_below(mu: float, scale: float) -> None:
    epsilon = mu * scale
    exact = exact_delta(mu, epsilon)
    found = float(gaussian_delta(mu, epsilon))
    assert found >= float(exact) * (1 - 1e-16)
    assert found <= float(exact) * (1 + 1e-9) + 1e-299


@given(mu=st.floats(1e-3, 30), log_delta=st.floats(-200, -0.1))
def test_epsilon_is_the_smallest_that_holds(mu: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    epsilon = gaussian_epsilon(mu, delta)
    assert float(gaussian_delta(mu, epsilon)) <= delta
    if epsilon > 0:
        assert float(gaussian_delta(mu, epsilon * (1 - 1e-8))) >= delta * (1 - 1e-6)


def test_no_effect_is_perfect_privacy() -> None:
    assert gaussian_epsilon(0.0, 1e-9) == 0.0
    assert float(gaussian_delta(0.0, 0.0)) == 0.0
