"""Every iterate of a run with Poisson batches, step by step in units of its noise, and the best score of it."""

from __future__ import annotations

import math

import numpy as np

from dpmerge.profiles import FloatArray


def coins(generator: np.random.Generator, trials: int, steps: int, rate: float, with_record: bool) -> FloatArray:
    """Whether the record takes part, by trial and step; never, where it is not there."""
    return np.where(generator.random((trials, steps)) < rate, float(with_record), 0.0)


def log_ratio(updates: FloatArray, rate: float, shift: float) -> FloatArray:
    """log of the likelihood ratio of all steps: (1−q)N(0,1) + qN(shift,1) against N(0,1) at each, one trial per row."""
    present = math.log(rate) + shift * updates - shift**2 / 2
    return np.asarray(np.logaddexp(math.log1p(-rate), present).sum(axis=1))
