"""What a recorded training costs up to now, if every iterate were shown (docs/theory.md §1, `single-run`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpmerge.records import Model, Portfolio
from dpmerge.rules import Guarantee, build

if TYPE_CHECKING:
    from dpmerge.training.recorder import Recorder


def guarantee_so_far(recorder: Recorder, delta: float) -> Guarantee:
    """The guarantee of the steps that were made, with whatever the run starts from. It grows with every step.

    To stop when it has reached some ε is to stop by a number that depends on settings alone, and costs nothing more.
    """
    portfolio = Portfolio([Model("this run", recorder.record())])
    return build("joint", portfolio.weights({"this run": 1.0})).guarantee(delta=delta)
