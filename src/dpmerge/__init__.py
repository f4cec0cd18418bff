"""dpmerge: differentially private model merging.

    portfolio = dpmerge.Portfolio("runs/")
    dpmerge.compare(portfolio, {"a": 0.2, "b": 0.8}, delta=1e-5)
    plan = dpmerge.plan(portfolio, epsilon=3.0, delta=1e-5, ledger="ledger.db")
    plan.best.guarantee
    released = plan.best.release("out/")
    dpmerge.verify("out/", portfolio=portfolio)

Importing this package loads nothing heavy: `dpmerge._api`, where all names come from, is loaded when one is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpmerge._version import __version__ as __version__

if TYPE_CHECKING:
    from dpmerge._api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    found = None if name.startswith("_") else vars(import_module("dpmerge._api")).get(name)
    if not _is_public(found):
        raise AttributeError(f"module 'dpmerge' has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    offered = vars(import_module("dpmerge._api")).items()
    return sorted(["__version__", *(name for name, found in offered if name[0] != "_" and _is_public(found))])


def _is_public(found: Any) -> bool:
    """Whether it is a class or a function of this package."""
    return callable(found) and str(getattr(found, "__module__", "")).startswith("dpmerge")
