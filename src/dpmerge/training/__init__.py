"""Private training: what makes a model, and the record of it. Nothing is loaded before it is used: torch may be absent."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpmerge.errors import TrainingError

if TYPE_CHECKING:
    from dpmerge.training.opacus_accounting import Stated, from_opacus, opacus_history
    from dpmerge.training.recorder import Recorder, record

_HOMES = {
    "Recorder": "recorder",
    "Stated": "opacus_accounting",
    "from_opacus": "opacus_accounting",
    "opacus_history": "opacus_accounting",
    "record": "recorder",
}
__all__ = ["Recorder", "Stated", "from_opacus", "opacus_history", "record"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOMES[name]}")
    except ImportError as fault:
        raise TrainingError(f"{name} needs torch and Opacus 1.6 or newer; install dpmerge[torch] ({fault})") from None
    return getattr(home, name)
