"""Functions of the user's own, named as `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpmerge.errors import DpmergeError


def load_function(name: str, what: str, error: type[DpmergeError]) -> Callable[..., Any]:
    """The function, or one line that says what cannot be loaded. Modules are also looked for in the working folder."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as fault:  # whatever the module does when it is imported
        raise error(f"{what} {name!r} cannot be loaded: {fault!r}") from None
    if not callable(found):
        raise error(f"{what} {name!r} is no function")
    return found  # type: ignore[no-any-return]
