"""Timing, and one line of report for each claim."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from dpmerge.cache import without_cache


@dataclass(frozen=True)
class Claim:
    """What was promised, what was measured, and whether it holds."""

    name: str
    measured: str
    limit: str
    holds: bool


def best_time(function: Callable[[], Any], repeat: int = 1) -> tuple[float, Any]:
    """The shortest of several runs, in seconds, and the last result. Every run starts with empty caches, and keeps none."""
    best, result = float("inf"), None
    for _ in range(repeat):
        forget()
        with without_cache():
            start = time.perf_counter()
            result = function()
            best = min(best, time.perf_counter() - start)
    return best, result


def forget() -> None:
    """Empty every cache in memory that a module of dpmerge's, or a class in one, holds."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "dpmerge":
            held = list(vars(module).values())
            for thing in [*held, *(value for kind in held if isinstance(kind, type) for value in vars(kind).values())]:
                if not isinstance(thing, type) and hasattr(thing, "cache_clear"):
                    thing.cache_clear()


def machine() -> str:
    """Where and with what this was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("dpmerge", "dp-accounting", "numpy", "scipy"))
    return f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores"
