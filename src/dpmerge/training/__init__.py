"""Private training: what makes a model, and the record of it. Nothing is loaded before it is used: torch may be absent."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpmerge.errors import TrainingError
from dpmerge.training.averaging import MovingAverage as MovingAverage, TailMean as TailMean, TrainingOn as TrainingOn
from dpmerge.training.linear import (
    Recipe as Recipe,
    Tensors as Tensors,
    accuracy as accuracy,
    bounded_features as bounded_features,
    scores as scores,
    train as train,
)
from dpmerge.training.portfolio import Pending as Pending, train_portfolio as train_portfolio
from dpmerge.training.portfolio_file import PortfolioFile as PortfolioFile
from dpmerge.training.randomness import fresh_generator as fresh_generator
from dpmerge.training.recipe import CLIP_MARGIN as CLIP_MARGIN
from dpmerge.training.saving import save_model as save_model
from dpmerge.training.shift import PeriodicShift as PeriodicShift, first_share as first_share

if TYPE_CHECKING:
    from dpmerge.training.opacus_accounting import (
        Stated as Stated,
        from_opacus as from_opacus,
        opacus_history as opacus_history,
    )
    from dpmerge.training.recorder import Recorder as Recorder, record as record

_HOMES = {
    "Recorder": "recorder",
    "Stated": "opacus_accounting",
    "from_opacus": "opacus_accounting",
    "opacus_history": "opacus_accounting",
    "record": "recorder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOMES[name]}")
    except ImportError as fault:
        raise TrainingError(f"{name} needs torch and Opacus 1.6 or newer; install dpmerge[torch] ({fault})") from None
    return getattr(home, name)
