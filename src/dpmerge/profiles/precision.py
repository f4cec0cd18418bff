"""How fine grids are. Speed is decided here, and tightness; validity is not: on any grid a bound is a bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ACCURACY: ContextVar[float] = ContextVar("accuracy", default=1e-5)


def accuracy() -> float:
    """By how much, relatively, a grid may raise ε."""
    return _ACCURACY.get()


@contextmanager
def grids_of_accuracy(value: float) -> Iterator[None]:
    """Coarser (or finer) grids in this block: for pictures of thousands of points."""
    token = _ACCURACY.set(value)
    try:
        yield
    finally:
        _ACCURACY.reset(token)
