"""dpmerge: differentially private model merging.

    portfolio = dpmerge.Portfolio("runs/")
    guarantee = dpmerge.selection(portfolio, {"a": 0.2, "b": 0.8}).guarantee(delta=1e-5)
    print(guarantee)

Importing this package loads nothing heavy; names are resolved when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpmerge._version import __version__

if TYPE_CHECKING:
    from dpmerge._api import combination, example_portfolio, joint, merge, selection, verify
    from dpmerge.errors import (
        AccountingError,
        DependentRuns,
        DpmergeError,
        PortfolioError,
        RecordError,
        TargetError,
        UnsupportedMechanism,
        WeightsError,
    )
    from dpmerge.planning import Plan, plan
    from dpmerge.profiles import ShuffleAsPoisson
    from dpmerge.records import Model, Portfolio, Record
    from dpmerge.rules import Guarantee, compare, no_free_lunch_threshold

_HOMES = {
    "combination": "dpmerge._api",
    "example_portfolio": "dpmerge._api",
    "joint": "dpmerge._api",
    "merge": "dpmerge._api",
    "selection": "dpmerge._api",
    "verify": "dpmerge._api",
    "AccountingError": "dpmerge.errors",
    "DependentRuns": "dpmerge.errors",
    "DpmergeError": "dpmerge.errors",
    "PortfolioError": "dpmerge.errors",
    "RecordError": "dpmerge.errors",
    "TargetError": "dpmerge.errors",
    "UnsupportedMechanism": "dpmerge.errors",
    "WeightsError": "dpmerge.errors",
    "ShuffleAsPoisson": "dpmerge.profiles.runs",
    "Model": "dpmerge.records",
    "Portfolio": "dpmerge.records",
    "Record": "dpmerge.records",
    "no_free_lunch_threshold": "dpmerge.rules.baselines",
    "compare": "dpmerge.rules.compare",
    "Guarantee": "dpmerge.rules.guarantee",
    "Plan": "dpmerge.planning.plan",
    "plan": "dpmerge.planning.plan",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpmerge' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "AccountingError",
    "DependentRuns",
    "DpmergeError",
    "Guarantee",
    "Model",
    "Plan",
    "Portfolio",
    "PortfolioError",
    "Record",
    "RecordError",
    "ShuffleAsPoisson",
    "TargetError",
    "UnsupportedMechanism",
    "WeightsError",
    "__version__",
    "combination",
    "compare",
    "example_portfolio",
    "joint",
    "merge",
    "no_free_lunch_threshold",
    "plan",
    "selection",
    "verify",
]
