"""Grids: their points, how fine they are, and a cache that is bounded by the memory it holds.

A finer grid is slower and tighter. Bounds are valid on any grid.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import Generic, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from dpmerge.errors import GridTooLarge, TakesTooLong

FloatArray = npt.NDArray[np.float64]

# "remove": H_ε(P, Q), the record is in the upper law; "add": H_ε(Q, P). A guarantee needs both.
Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")
P = ParamSpec("P")
R = TypeVar("R")
_POINTS = 2**23  # of one grid, unless less is allowed: what a recheck allows (release/bounds.py)
_BUDGET = 48 * 2**20  # bytes: grids differ a thousandfold in size, so entries are not counted
_ACCURACY: ContextVar[float] = ContextVar("accuracy", default=1e-5)
_CLOSED_FORMS: ContextVar[bool] = ContextVar("closed_forms", default=True)
_EFFORT: ContextVar[tuple[int, float]] = ContextVar("effort", default=(_POINTS, math.inf))  # points, and until when


def grid(first: int, last: int, interval: float, origin: float = 0.0) -> FloatArray:
    """origin + k·interval for k = first … last."""
    spend(last - first + 1)
    return np.asarray(origin + np.arange(first, last + 1) * interval, dtype=np.float64)


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


@contextmanager
def effort_of_at_most(points: int, seconds: float) -> Iterator[None]:
    """No grid of more points in this block, and no new one after so many seconds: for numbers that a stranger chose."""
    token = _EFFORT.set((points, time.monotonic() + seconds))
    try:
        yield
    finally:
        _EFFORT.reset(token)


def spend(points: int = 0) -> None:
    """Refuse what would need more points, or more time, than is allowed."""
    most, until = _EFFORT.get()
    if points > most:
        raise GridTooLarge(f"a privacy loss needs {points:,} grid points; choose a coarser interval or the accountant rdp")
    if time.monotonic() > until:
        raise TakesTooLong("the guarantee takes longer to compute than it was given time for")


def closed_forms() -> bool:
    """Whether a Gaussian's curve is taken in closed form."""
    return _CLOSED_FORMS.get()


@contextmanager
def without_closed_forms(without: bool = True) -> Iterator[None]:
    """Use grids in this block even where a closed form exists, as a second path. Its answers must not be cached."""
    token = _CLOSED_FORMS.set(not without)
    try:
        yield
    finally:
        _CLOSED_FORMS.reset(token)


class SizedCache(Generic[P, R]):
    """Remembers a function's latest results as long as they fit into the budget together."""

    def __init__(self, function: Callable[P, R], size_of: Callable[[R], int]) -> None:
        wraps(function)(self)
        self._function = function
        self._size_of = size_of
        self._held: OrderedDict[Hashable, R] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(sorted(kwargs.items())))
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        result = self._function(*args, **kwargs)
        with self._lock:
            if key not in self._held:
                self._held[key] = result
                self._bytes += self._size_of(result)
            while self._bytes > _BUDGET and len(self._held) > 1:
                _, oldest = self._held.popitem(last=False)
                self._bytes -= self._size_of(oldest)
        return result

    def cache_clear(self) -> None:
        with self._lock:
            self._held.clear()
            self._bytes = 0
