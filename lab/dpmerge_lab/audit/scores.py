"""Scores of what was released, one per trial and all at once: large says that the record was there.

Any score gives a valid lower bound; a better one gives a larger. By Neyman and Pearson nothing beats the likelihood ratio.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from dpmerge.profiles import FloatArray

Law = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]  # of a Gaussian mixture: probabilities, means, standard deviations


def dot_product(models: npt.ArrayLike, gradient: npt.ArrayLike, start: npt.ArrayLike = 0.0) -> FloatArray:
    """White box: how far each model has moved from `start` against the canary's gradient, whose length does not count.

    `models` has one flat model per row; `gradient` and `start` are one, or one per row. Descent on the canary moves a model
    against its gradient.
    """
    against = np.asarray(gradient, dtype=np.float64)
    moved = np.asarray(models, dtype=np.float64) - np.asarray(start, dtype=np.float64)
    length = np.linalg.norm(against, axis=-1)
    return np.asarray(-np.sum(moved * against, axis=-1) / np.where(length > 0, length, 1.0))


def gaussian_log_ratio(
    released: npt.ArrayLike, mean_with: npt.ArrayLike, mean_without: npt.ArrayLike, deviation: float
) -> FloatArray:
    """log of the likelihood ratio of N(mean_with, deviation² I) to N(mean_without, deviation² I).

    `released` is a number per trial, or a vector per row if the means are vectors.
    """
    x, p, q = (np.asarray(value, dtype=np.float64) for value in (released, mean_with, mean_without))
    ratio = (p - q) * (x - (p + q) / 2) / deviation**2
    return np.asarray(ratio.sum(axis=-1) if p.ndim or q.ndim else ratio)


def mixture_log_ratio(released: npt.ArrayLike, law_with: Law, law_without: Law) -> FloatArray:
    """log of the likelihood ratio of two mixtures of isotropic Gaussians, each (probabilities, means, deviations).

    `released` is a number per trial with a mean for each component, or a vector per row with a row of means for each.
    """
    return mixture_log_density(released, law_with) - mixture_log_density(released, law_without)


def mixture_log_density(released: npt.ArrayLike, law: Law) -> FloatArray:
    """log density, up to the same constant for all laws of one dimension."""
    probabilities, means, deviations = (np.asarray(value, dtype=np.float64) for value in law)
    x = np.asarray(released, dtype=np.float64)
    if means.ndim == 1:
        x, means = x[:, None], means[:, None]
    squares = np.square(x[:, None, :] - means[None, :, :]).sum(axis=-1)
    exponents = -squares / (2 * deviations**2) - x.shape[1] * np.log(deviations)
    with np.errstate(divide="ignore"):  # a component of probability 0 is none
        return np.asarray(logsumexp(exponents + np.log(probabilities), axis=1))
