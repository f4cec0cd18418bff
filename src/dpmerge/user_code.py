"""Code of users and other packages: functions named `module:function`, and tables of such names from installed packages.

The laboratory (lab/, `dpmerge_lab`) adds data sets, evaluators, trainers, audit scenarios and commands; other packages can too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from dpmerge.errors import DpmergeError, MissingLibrary

LABORATORY = "more come with the laboratory, which is installed from dpmerge's repository"
T = TypeVar("T")


def load_function(name: str, what: str, error: type[DpmergeError]) -> Callable[..., Any]:
    """Load the function, or raise a one-line error. Modules are also searched in the working folder."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        held = importlib.import_module(module)
    except ModuleNotFoundError as fault:
        if fault.name is not None and f"{module}.".startswith(f"{fault.name}."):
            raise error(
                f"{what} {name!r} cannot be loaded: there is no module {fault.name!r} in the working folder or installed"
            ) from None
        raise error(f"{what} {name!r} cannot be loaded: its module {module} needs {fault.name!r}, not installed") from fault
    except Exception as fault:  # importing runs the module's own code, which may raise anything
        raise error(f"{what} {name!r} cannot be loaded: its module {module} raised {told(fault)}") from fault
    if not hasattr(held, attribute):
        close = "".join(f"; did you mean {one}?" for one in get_close_matches(attribute, dir(held), n=1))
        raise error(f"{what} {name!r} cannot be loaded: {module} has no {attribute!r}{close}")
    found = getattr(held, attribute)
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
        raise error(f"{what}: {told(fault)}") from fault


def told(fault: BaseException) -> str:
    """An exception of someone else's code, as Python prints it."""
    return f"{type(fault).__name__}: {fault}".removesuffix(": ")


def call(name: str, function: Callable[..., T], *arguments: Any, error: type[DpmergeError]) -> T:
    """What the user's function gives; an exception of its own is shown as its own."""
    try:
        return function(*arguments)
    except DpmergeError:
        raise
    except Exception as fault:
        raise error(f"{name} raised {told(fault)}") from fault


def added(group: str) -> dict[str, str]:
    """Tables that installed packages add to the entry-point group `dpmerge.GROUP`: name → `module:function`."""
    found: dict[str, str] = {}
    for point in entry_points(group=f"dpmerge.{group}"):
        try:
            found |= point.load()
        except Exception as fault:
            package = "a package" if point.dist is None else f"the package {point.dist.name}"
            raise MissingLibrary(
                f"{package}, which adds {group} to dpmerge, cannot be loaded: {told(fault)}; install it anew, or uninstall it"
            ) from fault
    return found


def find(name: str, group: str, what: str, error: type[DpmergeError]) -> Callable[..., Any]:
    """A function that an installed package adds to the group, or the user's `module:function`."""
    known = {} if ":" in name else added(group)
    return find_in(known, name, what, error, "" if known else f"; {LABORATORY}")


def find_in(
    known: Mapping[str, str | Callable[..., Any]], name: str, what: str, error: type[DpmergeError], hint: str = ""
) -> Callable[..., Any]:
    """A function of the table, or the user's `module:function`."""
    if ":" not in name and name not in known:
        close = "".join(f"; did you mean {one}?" for one in get_close_matches(name, known, n=1))
        there = f", or one of {', '.join(known)}{close}" if known else hint
        raise error(f"no {what.removeprefix('the ')} is named {name!r}; give module:function{there}")
    found = known.get(name, name)
    return load_function(found, what, error) if isinstance(found, str) else found
