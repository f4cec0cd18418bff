"""Runs that take longer than a command may: what one has reached when its time is up, from which the next command goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dpmerge.errors import TrainingError

Reached = Mapping[str, Any]  # plain data with tensors in it; those that are one are kept once


class TimeIsUp(TrainingError):
    """The time that a command was given is over. What was reached is kept."""


@dataclass(frozen=True)
class Allowance:
    """How long a command may take."""

    minutes: float = math.inf
    begun: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, text: str) -> Allowance:
        """For an option."""
        minutes = float(text)
        if not minutes > 0:
            raise ValueError(text)
        return cls(minutes)

    def check(self) -> None:
        """End if it is over."""
        if time.monotonic() - self.begun >= 60 * self.minutes:
            raise TimeIsUp(f"{self.minutes:g} minutes are over; the same command goes on from what is kept")


@dataclass(frozen=True)
class Unfinished:
    """Where one run's state is kept, once the time is up."""

    path: Path
    asked: Reached  # what was asked for: a run that was begun otherwise is not gone on with
    allowed: Allowance

    def check(self, reached: Callable[[], Reached]) -> None:
        """Keep what was reached and end, if the time is up."""
        try:
            self.allowed.check()
        except TimeIsUp:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            whole = self.path.with_suffix(".part")
            torch.save({"asked": dict(self.asked), "reached": dict(reached())}, whole)
            whole.replace(self.path)
            raise

    def begun(self, where: torch.device) -> dict[str, Any] | None:
        """What was reached before, if anything, with its tensors there."""
        if not self.path.exists():
            return None
        try:
            kept: dict[str, Any] = torch.load(self.path, weights_only=True, map_location=where)
            asked, reached = kept["asked"], dict(kept["reached"])
        except Exception as fault:  # torch has no class of error for a damaged file
            raise TrainingError(f"{self.path}: cannot be read ({fault}); remove it to begin this run anew") from None
        if asked != self.asked:
            raise TrainingError(f"{self.path}: this run was begun with other settings; remove it to begin the run anew")
        return reached

    def end(self) -> None:
        """The run is finished."""
        self.path.unlink(missing_ok=True)
