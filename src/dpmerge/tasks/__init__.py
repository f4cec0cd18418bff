"""Bundled tasks: data that ships with a dependency, and how well a model does on its public test part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpmerge.tasks import digits

EVALUATORS: dict[str, Callable[[Path], float]] = {"digits": digits.accuracy}

__all__ = ["EVALUATORS", "digits"]
