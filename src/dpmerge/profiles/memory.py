"""A cache that is bounded by the memory it holds, not by the number of its entries: grids differ a thousandfold in size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_BUDGET = 48 * 2**20


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
        """The function's result, computed or remembered."""
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
        """Forget everything."""
        with self._lock:
            self._held.clear()
            self._bytes = 0
