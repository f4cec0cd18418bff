"""What all recipes of DP-SGD share: their schedule, their batches, and the record of a run made by one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator, Record
from dpmerge.training.averaging import TrainingOn
from dpmerge.training.randomness import poisson_batch
from dpmerge.training.shift import PeriodicShift

# Norms and products are rounded to 24 bits; clipping by this much more keeps every contribution within the clip.
CLIP_MARGIN = 1 - 1e-5


class DpSgdRecipe:
    """How a run is made: Poisson batches with `rate`, or full ones without; noise of σ·clip on the sum of clipped gradients.

    The learning rate climbs linearly to its peak over `warmup` steps, and with `decay` falls linearly towards 0 after. With a
    `shift`, batches swing between two parts of the data; with `training_on`, later steps start at aggregates of iterates.
    """

    steps: int
    learning_rate: float
    clip: float
    noise_multiplier: float
    rate: float | None
    warmup: int
    decay: bool
    shift: PeriodicShift | None
    training_on: TrainingOn | None

    def __post_init__(self) -> None:
        faults = [
            (self.steps < 1, "steps must be at least 1"),
            (not 0 < self.learning_rate < math.inf, "learning_rate must be positive and finite"),
            (not 0 < self.clip < math.inf, "clip must be positive and finite"),
            (not 0 <= self.noise_multiplier < math.inf, "noise_multiplier must be finite and not negative"),
            (self.rate is not None and not 0 < self.rate <= 1, "rate must lie in (0, 1]"),
            (not 0 <= self.warmup <= self.steps, "warmup must lie between 0 and steps"),
            (self.shift is not None and self.rate is not None, "batches that shift have no rate: it is their shift's"),
        ]
        for wrong, text in faults:
            if wrong:
                raise TrainingError(f"{text}: {self}")

    def learning_rates(self) -> list[float]:
        """One for each step."""
        rates = []
        for step in range(self.steps):
            if step < self.warmup:
                rates.append(self.learning_rate * (step + 1) / self.warmup)
            elif self.decay:
                rates.append(self.learning_rate * (self.steps - step) / (self.steps - self.warmup))
            else:
                rates.append(self.learning_rate)
        return rates

    def kept(self, checkpoints: Iterable[int]) -> list[int]:
        """The steps after which the model is kept: those asked for, and the last."""
        wanted = sorted({*checkpoints, self.steps})
        if wanted[0] < 1 or wanted[-1] > self.steps:
            raise TrainingError(f"checkpoints must lie between 1 and {self.steps} steps; asked for {wanted}")
        return wanted

    def expected_batch(self, count: int) -> float:
        """The divisor of every update."""
        if self.shift is not None:
            return self.shift.expected_batch
        return float(count) if self.rate is None else self.rate * count

    def batch(self, sampler: np.random.Generator, count: int, step: int) -> npt.NDArray[np.int64] | slice:
        """Which of `count` examples take part in this step, the first being 1."""
        if self.shift is not None:
            return self.shift.batch(sampler, step - 1)
        return slice(None) if self.rate is None else poisson_batch(sampler, count, self.rate)

    def record(
        self,
        steps: int,
        expected_batch: float,
        dataset: str,
        run: str,
        noise: str,
        sampler: str,
        smoothness: float | None = None,
        convex: str | None = None,
        *,
        noise_generator: NoiseGenerator | None = None,
    ) -> Record:
        """What was run in the first `steps`; `noise` and `sampler` are the generators' fingerprints."""
        rates = [self._sampling(step) for step in range(1, steps + 1)]
        phases = [(value, len(list(same))) for value, same in groupby(zip(self.learning_rates()[:steps], rates, strict=True))]
        first = rates[0]
        mechanism = {
            "kind": "dp-sgd",
            "run": run,
            "noise_fingerprint": noise,
            "sampler_fingerprint": None if first["scheme"] == "full-batch" else sampler,
            "optimizer": self._optimizer(),
            "sampling": first,
            "expected_batch": expected_batch,
            "noise_multiplier": self.noise_multiplier,
            "clip": self.clip,
            "clipping": "flat",
            "phases": [
                {"steps": length, "learning_rate": value} | ({} if sampling == first else {"sampling": sampling})
                for (value, sampling), length in phases
            ],
            "smoothness": smoothness,
            "convex": convex,
            "noise_generator": noise_generator,
        }
        content = {"schema": 1, "dataset": dataset, "adjacency": "add-remove", "source": "recorded", "mechanism": mechanism}
        return Record.parse(json.dumps(content), source=run)

    def _sampling(self, step: int) -> dict[str, Any]:
        if self.shift is not None:
            return {"scheme": "poisson", "rate": self.shift.dominating_rate(step - 1)}
        return {"scheme": "full-batch"} if self.rate is None else {"scheme": "poisson", "rate": self.rate}

    def _optimizer(self) -> str:
        """Only "sgd" lets the theorems on averages look into the steps, and they know plain SGD with the rates recorded."""
        moving = "" if self.shift is None else "; batches shift between two parts of the data, rates here dominate either's"
        return ("sgd" if self.training_on is None else self.training_on.optimizer) + moving
