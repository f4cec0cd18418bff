"""How fine grids are. Speed is decided here, and tightness; validity is not: on any grid a bound is a bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ACCURACY: ContextVar[float] = ContextVar("accuracy", default=1e-5)
_CLOSED_FORMS: ContextVar[bool] = ContextVar("closed_forms", default=True)


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


def closed_forms() -> bool:
    """Whether a Gaussian's curve is taken in closed form."""
    return _CLOSED_FORMS.get()


@contextmanager
def without_closed_forms() -> Iterator[None]:
    """Everything on grids in this block: a second path to numbers that need none. Not for answers that are cached."""
    token = _CLOSED_FORMS.set(False)
    try:
        yield
    finally:
        _CLOSED_FORMS.reset(token)
