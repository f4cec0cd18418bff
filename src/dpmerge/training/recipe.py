"""How a model is trained by DP-SGD, and the record of such a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.records import Clipping, FullPhase, NoiseGenerator, Record, Sampling, Source
from dpmerge.training.randomness import poisson_batch

# Fields that a phase may inherit from the run.
_INHERITED = ("noise_multiplier", "clip", "sampling", "expected_batch")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Poisson batches with `rate`, or full ones without; noise of σ·clip on the sum of clipped gradients.

    The learning rate climbs linearly to its peak over `warmup` steps; with `decay` it then falls linearly towards 0.
    `weight_decay` ω shrinks the parameters outside clip and noise: θ ← (1 − ηω)θ − η(…).
    A recipe that draws other batches, or does more than SGD, overrides `expected_batch`, `batch`, `rate_at`, `optimizer` and
    `begin`: its record then says so.
    """

    steps: int
    learning_rate: float
    clip: float
    noise_multiplier: float
    rate: float | None = None
    warmup: int = 0
    decay: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        faults = [
            (self.steps < 1, "steps must be at least 1"),
            (not 0 < self.learning_rate < math.inf, "learning_rate must be positive and finite"),
            (not 0 < self.clip < math.inf, "clip must be positive and finite"),
            (not 0 <= self.noise_multiplier < math.inf, "noise_multiplier must be finite and not negative"),
            (self.rate is not None and not 0 < self.rate <= 1, "rate must lie in (0, 1]"),
            (not 0 <= self.weight_decay < math.inf, "weight_decay must be finite and not negative"),
            (not 0 <= self.warmup <= self.steps, "warmup must lie between 0 and steps"),
        ]
        for wrong, text in faults:
            if wrong:
                raise TrainingError(f"{text}: {self}")

    def learning_rates(self) -> list[float]:
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

    def expected_batch(self, examples: float) -> float:
        """The divisor of every update."""
        return float(examples) if self.rate is None else self.rate * examples

    def batch(self, sampler: np.random.Generator, examples: int, step: int) -> npt.NDArray[np.int64] | slice:
        """Which examples take part in this step, counted from 1."""
        return slice(None) if self.rate is None else poisson_batch(sampler, examples, self.rate)

    def rate_at(self, step: int) -> float | None:
        """The Poisson rate that the record states for this step, counted from 1; none for a full batch."""
        return self.rate

    @property
    def optimizer(self) -> str:
        """For the record. Only "sgd" lets the theorems on averages look into the steps: plain SGD with the rates recorded."""
        return "sgd"

    def begin(self, first: Any) -> Callable[[Any], Any]:
        """From a run's first iterate, the function that maps each step's result to where the next step starts."""
        return lambda iterate: iterate

    def record(
        self,
        steps: int,
        examples: float,
        *,
        dataset: str,
        run: str,
        noise: str,
        sampler: str,
        noise_generator: NoiseGenerator | None = None,
        smoothness: float | None = None,
        convex: str | None = None,
        clipping: Clipping = "flat",
        checkpoints_kept: int = 0,
        starts_from: Mapping[str, Any] | None = None,
        shard: Mapping[str, Any] | None = None,
    ) -> Record:
        """What was run in the first `steps`; `noise` and `sampler` are the generators' fingerprints.

        `checkpoints_kept` is how many models of earlier steps were kept.
        """
        settings = [(rate, self.rate_at(step)) for step, rate in enumerate(self.learning_rates()[:steps], start=1)]
        phases = [
            FullPhase(
                steps=len(list(same)),
                learning_rate=rate,
                noise_multiplier=self.noise_multiplier,
                clip=self.clip,
                sampling=Sampling(scheme="full-batch") if sampled is None else Sampling(scheme="poisson", rate=sampled),
                expected_batch=self.expected_batch(examples),
                weight_decay=self.weight_decay,
            )
            for (rate, sampled), same in groupby(settings)
        ]
        mechanism = {
            "run": run,
            "noise_fingerprint": noise,
            "sampler_fingerprint": None if settings[0][1] is None else sampler,
            "optimizer": self.optimizer,
            "clipping": clipping,
            "smoothness": smoothness,
            "convex": convex,
            "noise_generator": noise_generator,
            "checkpoints_kept": checkpoints_kept or None,
            "starts_from": starts_from,
            "shard": shard,
        }
        return dp_sgd_record(dataset, mechanism, phases, "recorded")


def dp_sgd_record(
    dataset: str,
    mechanism: Mapping[str, Any],
    phases: Sequence[FullPhase],
    source: Source,
    data_fingerprint: Mapping[str, Any] | None = None,
) -> Record:
    """The record of a run; `phases` state every setting, and the record repeats only those that differ from the first's.

    A weight decay of 0 is not written: the record is as it was before there was one.
    """
    rows = [phase.model_dump(mode="json") for phase in phases]
    common = {name: rows[0][name] for name in _INHERITED}
    implied = {**common, "weight_decay": 0.0}
    different = [{name: row[name] for name in row if implied.get(name) != row[name]} for row in rows]
    content = {
        "schema": 1,
        "dataset": dataset,
        "adjacency": "add-remove",
        "source": source,
        "data_fingerprint": data_fingerprint,
        "mechanism": {"kind": "dp-sgd", **mechanism, **common, "phases": different},
    }
    return Record.parse(json.dumps(content), source=f"run {mechanism['run']}")
