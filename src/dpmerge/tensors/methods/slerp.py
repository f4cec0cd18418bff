"""Spherical interpolation between two models (Shoemake 1985), each tensor as one vector."""

from __future__ import annotations

import math

import numpy as np

from dpmerge.errors import CheckpointError
from dpmerge.tensors.dtypes import Floats

_NEARLY_PARALLEL = 1e-6  # radians; below, the sphere is flat and the formula divides 0 by 0


def slerp(name: str, tensors: list[Floats], weights: list[float]) -> Floats:
    """Go along the great circle from the first to the second by its weight; lengths are interpolated by the sines alike."""
    if len(tensors) != 2:
        raise CheckpointError(f"tensor {name!r}: slerp goes between exactly two models that have weight, not {len(tensors)}")
    if abs(math.fsum(weights) - 1) > 1e-9:
        raise CheckpointError(f"slerp needs weights that sum to 1, not {math.fsum(weights)!r}")
    first, second = tensors
    lengths = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    if lengths == 0:
        return weights[0] * first + weights[1] * second
    angle = math.acos(max(-1.0, min(1.0, float(np.vdot(first, second)) / lengths)))
    if min(angle, math.pi - angle) < _NEARLY_PARALLEL:
        return weights[0] * first + weights[1] * second
    return (math.sin(weights[0] * angle) * first + math.sin(weights[1] * angle) * second) / math.sin(angle)
