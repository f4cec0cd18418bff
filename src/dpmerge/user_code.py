"""Code of users and other packages: functions named `module:function`, and tables of such names from installed packages.

The laboratory (lab/, `dpmerge_lab`) adds data sets, evaluators, trainers, audit scenarios and commands; other packages can too.
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
    """Load the function, or raise a one-line error. Modules are also searched in the working folder."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as fault:  # importing runs the module's own code, which may raise anything
        raise error(f"{what} {name!r} cannot be loaded: {fault!r}") from None
    if not callable(found):
        raise error(f"{what} {name!r} is not a function")
    return found  # type: ignore[no-any-return]


@contextmanager
def running(what: str, error: type[DpmergeError]) -> Iterator[None]:
    """Turn any exception in the user's code into a one-line error that begins with `what`; dpmerge's own errors pass."""
    try:
        yield
    except DpmergeError:
        raise
    except Exception as fault:
        raise error(f"{what}: {type(fault).__name__}: {fault}") from fault


def added(group: str) -> dict[str, str]:
    """Tables that installed packages add to the entry-point group `dpmerge.GROUP`: name → `module:function`."""
    return {name: where for point in entry_points(group=f"dpmerge.{group}") for name, where in point.load().items()}


def find(name: str, group: str, what: str, error: type[DpmergeError]) -> Callable[..., Any]:
    """A function that an installed package adds to the group, or the user's `module:function`."""
    known = {} if ":" in name else added(group)
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
