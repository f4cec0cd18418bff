"""The explorer: a local HTTP API, the page that uses it, and the report, which needs no server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpmerge.explorer.report import ReportScope as ReportScope, report as report
from dpmerge.explorer.security import Door as Door

if TYPE_CHECKING:
    from dpmerge.explorer.api import Explorer as Explorer
    from dpmerge.explorer.serving import taking as taking

_SERVER = {"Explorer": "api", "taking": "serving"}  # loaded on first use: they need dpmerge[explorer]


def __getattr__(name: str) -> Any:
    if name not in _SERVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_SERVER[name]}"), name)
