"""A search over hyper-parameters in which each trial is chosen by what earlier ones showed (docs/theory.md §7, `sweep`).

Trials that differ in their noise may not be added up along the path taken (§5). So a bound on every trial is fixed before the
first one, and so is their number: then it does not matter what a trial is chosen by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from dpmerge.errors import TargetError, UnsupportedMechanism
from dpmerge.profiles import Profile, RunProfile, step_law
from dpmerge.records import DpSgd, FullPhase, Model, require_independent
from dpmerge.rules.guarantee import Answer, Guarantee, ProfileBound, Target, ask
from dpmerge.rules.statements import about_delta, about_records
from dpmerge.rules.theorems import THEOREMS
from dpmerge.rules.tuning import Base


@dataclass(frozen=True)
class Sweep:
    """Trials of DP-SGD for add-remove neighbours, each with at most this rate and these steps, and at least this noise."""

    noise_multiplier: float
    rate: float  # of Poisson sampling; 1 for full batches
    steps: int

    def __post_init__(self) -> None:
        for wrong, text in (
            (not 0 < self.noise_multiplier < math.inf, "the noise multiplier of every trial must be positive and finite"),
            (not 0 < self.rate <= 1, "the rate of every trial must lie in (0, 1]"),
            (self.steps < 1, "every trial needs at least one step"),
        ):
            if wrong:
                raise TargetError(f"{text}: {self}")

    def __str__(self) -> str:
        return (
            f"at most {self.steps} steps with Poisson sampling of rate {self.rate!r} or less and a noise multiplier "
            f"of at least {self.noise_multiplier!r}"
        )

    @cached_property
    def base(self) -> Base:
        """One trial, as the price of tuning takes it."""
        law = step_law(self.rate, self.noise_multiplier, "add-remove")
        statement = f"every trial, with any hyper-parameters, has {self}"
        details = {"kind": "dp-sgd", "noise_multiplier": self.noise_multiplier, "rate": self.rate, "steps": self.steps}
        return Base(RunProfile(Profile.of([(law, self.steps)])), statement, details)

    def epsilon(self, trials: int, delta: float) -> float:
        """What so many trials cost together, if their number was fixed before the first."""
        return self._together(trials, delta).epsilon

    def most(self, epsilon: float, delta: float) -> int:
        """How many trials fit into (ε, δ)."""
        Target(epsilon=epsilon)
        if self.epsilon(1, delta) > epsilon:
            raise TargetError(
                f"not even one trial fits into ε = {epsilon:g} at δ = {delta:g}: one costs {self.epsilon(1, delta):.4g}; give "
                "trials more noise or fewer steps, or a larger budget"
            )
        low = 1
        while self.epsilon(2 * low, delta) <= epsilon:
            low *= 2
        high = 2 * low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle, delta) <= epsilon else (low, middle)
        return low

    def guarantee(self, trials: int, delta: float, made: Iterable[Model] = ()) -> Guarantee:
        """Everything that so many trials show, whatever each was chosen by. `made` are the trials that are recorded."""
        models = tuple(made)
        for model in models:
            self.require_within(model)
        found = self._together(trials, delta)
        bound = f"there are at most {trials} trials, which was decided before the first, and every one has {self}"
        return Guarantee(
            epsilon=found.epsilon,
            delta=found.delta,
            adjacency="add-remove",
            theorem="sweep",
            assumptions=(*THEOREMS["sweep"].assumptions, bound, *about_records(models), *require_independent(models)),
            standing="proved",
            by=found.by,
            rule="sweep",
            weights={},
            conversion="tight" if found.by == "rdp" else None,
            details={"trials": trials, "recorded": len(models), **self.base.details},
            warnings=about_delta(delta, models, None),
        )

    def require_within(self, model: Model) -> None:
        """Refuse a trial that may cost more than was stated for every one."""
        run = model.mechanism
        why = None
        if not isinstance(run, DpSgd) or model.record.adjacency != "add-remove":
            why = "it is no run of DP-SGD for add-remove neighbours"
        elif run.starts_from is not None:
            why = "it starts from a private checkpoint, which costs something too"
        elif run.clipping == "adaptive":
            why = "its clip was adapted to the data, so its guarantee is conditional"
        elif run.steps > self.steps:
            why = f"it has {run.steps} steps"
        else:
            why = next((text for phase in run.settings() if (text := self._beyond(phase)) is not None), None)
        if why is not None:
            raise UnsupportedMechanism(f"{model.name}: {why}; every trial was to have {self}")

    def _beyond(self, phase: FullPhase) -> str | None:
        if phase.noise_multiplier < self.noise_multiplier:
            return f"its noise multiplier is {phase.noise_multiplier!r}"
        if phase.sampling.scheme not in ("poisson", "full-batch"):
            return f"its batches are drawn by the scheme {phase.sampling.scheme}"
        rate = 1.0 if phase.sampling.rate is None else phase.sampling.rate
        return f"its rate is {rate!r}" if rate > self.rate else None

    def _together(self, trials: int, delta: float) -> Answer:
        return ask(ProfileBound(Profile.composed([self.base.run.profile] * trials)), Target(delta=delta))
