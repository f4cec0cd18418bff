"""Timing, and one line of report for each claim."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any


@dataclass(frozen=True)
class Claim:
    """What was promised, what was measured, and whether it holds."""

    name: str
    measured: str
    limit: str
    holds: bool


def best_time(function: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The shortest of several runs, in seconds, and the last result."""
    best, result = float("inf"), None
    for _ in range(repeat):
        start = time.perf_counter()
        result = function()
        best = min(best, time.perf_counter() - start)
    return best, result


def machine() -> str:
    """Where and with what this was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("dpmerge", "dp-accounting", "numpy", "scipy"))
    return f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores"
