"""Code that is not this package's: functions named as `module:function`, and tables of them that installed packages add.

The laboratory (lab/, `dpmerge_lab`) adds data sets, evaluators, trainers, audit scenarios and commands; any other package may.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from dpmerge.errors import DpmergeError

LABORATORY = "more come with the laboratory: install lab/ of dpmerge's repository"


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


@contextmanager
def running(what: str, error: type[DpmergeError]) -> Iterator[None]:
    """Whatever goes wrong in code of the user's becomes one line that begins with `what`; dpmerge's own errors pass."""
    try:
        yield
    except DpmergeError:
        raise
    except Exception as fault:
        raise error(f"{what}: {type(fault).__name__}: {fault}") from fault


def added(group: str) -> dict[str, str]:
    """What installed packages add to `dpmerge.GROUP`: name → `module:function`. Each of their entry points is such a table."""
    return {name: where for point in entry_points(group=f"dpmerge.{group}") for name, where in point.load().items()}


def find(name: str, group: str, what: str, error: type[DpmergeError]) -> Callable[..., Any]:
    """A function that installed packages add to the group, or the user's `module:function`."""
    known = added(group)
    return find_in(known, name, what, error, "" if known else f"; {LABORATORY}")


def find_in(
    known: Mapping[str, str | Callable[..., Any]], name: str, what: str, error: type[DpmergeError], hint: str = ""
) -> Callable[..., Any]:
    """A function of the table, or the user's `module:function`."""
    if ":" not in name and name not in known:
        there = f", or one of {', '.join(known)}" if known else hint
        raise error(f"no {what.removeprefix('the ')} is named {name!r}; give module:function{there}")
    found = known.get(name, name)
    return load_function(found, what, error) if isinstance(found, str) else found
