"""Checkpoints of one private run, already paid for: averages, predictions, and how uncertain they are (docs/theory.md §7).

    released = dpmerge.aggregate.aggregate("run/", "out", rule="uta", last=10, delta=1e-5)
    found = dpmerge.aggregate.predictions("run/", "opa", predictor, inputs, last=10)

Nothing is loaded before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmerge.aggregate.averages import aggregate, averaging
    from dpmerge.aggregate.outputs import Predictions, predictions
    from dpmerge.aggregate.run import Run
    from dpmerge.weights.averaging import Averaging

_HOMES = {
    "Averaging": "dpmerge.weights.averaging",
    "Predictions": "dpmerge.aggregate.outputs",
    "Run": "dpmerge.aggregate.run",
    "aggregate": "dpmerge.aggregate.averages",
    "averaging": "dpmerge.aggregate.averages",
    "predictions": "dpmerge.aggregate.outputs",
}
__all__ = ["Averaging", "Predictions", "Run", "aggregate", "averaging", "predictions"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
