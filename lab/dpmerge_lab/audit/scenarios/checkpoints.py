"""Two checkpoints of one run, averaged: their noise is shared, and averaging may take it away (docs/theory.md §0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Combination
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, even

_RECORDS = 100_000


@dataclass(frozen=True)
class Checkpoints(Game):
    """One-dimensional least squares with curvature 1: a long, noisy step, then a short one with little noise.

    The second step overshoots (η = 2): it reflects the state at the common records' optimum, 0, so that the average of the
    checkpoints before and after it is half of the second update alone, with little noise. Two independent runs with these
    records would hide the second update behind the noise of the first. The record in question lies far away: it is always
    clipped to 1; the common ones are clipped with probability below 1e-100.
    """

    learning_rates: tuple[float, float] = (200.0, 2.0)
    noise_multipliers: tuple[float, float] = (20.0, 1.0)
    name: str = "checkpoints"
    about: str = "The average of two checkpoints of one run, in which the noise of the first step cancels"
    delta: float = 1e-5
    trials: int = 1_000_000
    chunk: int = 50_000

    def average(self, one_run: bool) -> Weights:
        """The records of both checkpoints: of one run, or, falsely, of two."""
        phases = [
            {"steps": 1, "learning_rate": rate, "noise_multiplier": noise}
            for rate, noise in zip(self.learning_rates, self.noise_multipliers, strict=True)
        ]
        facts: dict[str, Any] = {"expected_batch": float(_RECORDS), "smoothness": 1.0, "convex": "glm"}
        shared: dict[str, Any] = {"run": "one", "noise_fingerprint": "noise of one"} if one_run else {}
        stages = ("before", phases[:1]), ("after", phases)
        return even(*(dp_sgd(name, self.noise_multipliers[0], 1, phases=done, **facts, **shared) for name, done in stages))

    def claims(self, delta: float) -> list[Claim]:
        """As two runs; and as one, which counts once."""
        return [
            claim("as if two runs", Combination(self.average(one_run=False)), delta, "refuted", is_gdp=True),
            claim("one run, counted once", Combination(self.average(one_run=True)), delta, is_gdp=True),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The averaged parameter."""
        state, kept = np.zeros(trials), []
        for rate, noise in zip(self.learning_rates, self.noise_multipliers, strict=True):
            total = -_RECORDS * np.clip(state, -1, 1) + float(with_record) + noise * generator.standard_normal(trials)
            state = state + rate / _RECORDS * total
            kept.append(state)
        return np.asarray((kept[0] + kept[1]) / 2)


def checkpoints() -> Checkpoints:
    """Two checkpoints of one run averaged: broken if accounted as two runs, covered if the run counts once."""
    return Checkpoints()
