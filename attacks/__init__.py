"""Attempts to break releases, certificates and the ledger. Each must fail; `python -m attacks` runs them all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

Attack = Callable[[Path], str]


def all_attacks() -> dict[str, Attack]:
    """Every script here that has an `attack`, by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name != "__main__")
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module.attack for name, module in modules.items() if hasattr(module, "attack")}
