"""TIES-merging (Yadav et al. 2023): trim each model's difference from the base, elect a sign, average those that agree."""

from __future__ import annotations

import numpy as np

from dpmerge.tensors.dtypes import Floats


def ties(name: str, tensors: list[Floats], weights: list[float], density: float = 0.2) -> Floats:
    """Merge differences from a common base (give `base`, or merge adapters, which are differences already).

    Of every tensor the `density` largest magnitudes are kept; the sign of the weighted sum is elected for each element; and
    the elements of that sign are averaged by their weights.
    """
    trimmed = np.stack([_trim(tensor, density) for tensor in tensors])
    shares = np.array(weights).reshape(-1, *([1] * tensors[0].ndim))
    elected = np.sign((shares * trimmed).sum(axis=0))
    agrees = (np.sign(trimmed) == elected) & (elected != 0)
    total = (shares * agrees).sum(axis=0)
    merged: Floats = np.divide((shares * trimmed * agrees).sum(axis=0), total, out=np.zeros_like(total), where=total > 0)
    return merged


def _trim(tensor: Floats, density: float) -> Floats:
    """Keep the largest magnitudes, all that tie with the smallest kept included."""
    kept = max(1, round(density * tensor.size))
    if kept >= tensor.size:
        return tensor
    sizes = np.abs(tensor).reshape(-1)
    threshold = np.partition(sizes, tensor.size - kept)[tensor.size - kept]
    return np.where(np.abs(tensor) >= threshold, tensor, 0.0)
