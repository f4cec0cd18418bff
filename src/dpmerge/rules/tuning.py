"""The price of private hyper-parameter tuning: K runs with hyper-parameters drawn at random, of which the best is released.

From above by two theorems, of which the smaller answer counts; from below, for a Gaussian mechanism, by events that give the
best of K away (docs/theory.md §7).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpmerge.errors import TargetError
from dpmerge.profiles import GaussianLaw, Profile, RunProfile, ShuffleAsPoisson, run_profile
from dpmerge.records import Model
from dpmerge.rules.deltas import about_delta
from dpmerge.rules.guarantee import ProfileBound, Standing, Target, about_records, ask, significant
from dpmerge.rules.theorems import THEOREMS
from dpmerge.rules.tuning_bounds import pairs_of, profile_epsilon, renyi_epsilon
from dpmerge.rules.tuning_gaussian import LARGEST_MU, Calibration, calibrated_mu, own_score_epsilon, worst_score_epsilon
from dpmerge.rules.tuning_trials import Poisson, Trials

PROFILE, RENYI = "tuning-profile", "tuning-rdp"


@dataclass(frozen=True)
class Base:
    """One run of the search: its profile, what that assumes, and how it was stated."""

    run: RunProfile
    statement: str
    details: Mapping[str, Any]
    models: tuple[Model, ...] = ()
    shuffle: ShuffleAsPoisson | None = None

    @classmethod
    def gaussian(cls, mu: float, details: Mapping[str, Any] | None = None) -> Base:
        """A Gaussian mechanism: sensitivity μ for noise of standard deviation 1."""
        if not 0 < mu <= LARGEST_MU:
            raise TargetError(
                f"one run has μ = {mu:g}; μ must lie in (0, {LARGEST_MU:g}], and a noise multiplier, which is 1/μ, must be at "
                f"least {1 / LARGEST_MU:.3g}"
            )
        statement = (
            "every run, with any hyper-parameters, is a Gaussian mechanism with a noise multiplier of at least "
            f"{significant(1 / mu)}, or no less private than that at every ε; an (ε, δ) alone would not do"
        )
        known = {"kind": "gaussian", "mu": mu, "noise_multiplier": 1 / mu}
        return cls(RunProfile(Profile.of([(GaussianLaw(mu), 1)])), statement, {**known, **(details or {})})

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, calibrate: Calibration = "exact") -> Base:
        """The Gaussian mechanism with just the noise that this (ε, δ) needs."""
        Target(delta=delta)
        mu = calibrated_mu(epsilon, delta, calibrate)
        return cls.gaussian(mu, {"epsilon": epsilon, "delta": delta, "calibrate": calibrate})

    @classmethod
    def recorded(cls, model: Model, shuffle: ShuffleAsPoisson | None = None) -> Base:
        """The run that a record describes."""
        statement = f"every run, with any hyper-parameters, is at least as private as the record of model {model.name!r} says"
        details = {"kind": model.mechanism.kind, "model": model.name, "adjacency": model.record.adjacency}
        run = run_profile(model, shuffle)
        run = replace(run, assumptions=(*about_records([model]), *run.assumptions))
        return cls(run, statement, details, (model,), shuffle)


@dataclass(frozen=True)
class TuningCost:
    """Releasing the best of K runs is (epsilon, delta)-DP by `theorem`, if `assumptions` hold; and how far that is from tight.

    `bounds` has the answer of every theorem. `lower` is an ε that a Gaussian base with some score really has at δ, so that
    no theorem can promise less; `lower_own_score` is the one if its outcome is the score itself. Other bases have neither.
    """

    epsilon: float
    delta: float
    theorem: str
    assumptions: tuple[str, ...]
    standing: Standing
    bounds: Mapping[str, float]
    lower: float | None
    lower_own_score: float | None
    alone: float
    trials: Trials
    base: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "bounds": dict(self.bounds), "trials": self.trials.as_dict(), "base": dict(self.base)}


def tuning_cost(base: Base, trials: Trials, delta: float) -> TuningCost:
    """ε at δ of the best of K runs."""
    target = Target(delta=delta)
    profile = base.run.profile
    alone = ask(ProfileBound(profile), target).epsilon
    if base.details.get("delta") == delta:
        alone = min(alone, base.details["epsilon"])  # calibrated to have it
    bounds = {PROFILE: math.inf, RENYI: math.inf}
    if profile.is_private:
        pairs = pairs_of(profile)
        bounds[RENYI] = renyi_epsilon(profile, pairs, trials, delta)
        bounds[PROFILE] = max(profile_epsilon(pair, trials, delta, bounds[RENYI]) for pair in pairs)
    theorem = min(bounds, key=lambda name: bounds[name])
    own = worst = None
    if profile.mu:
        own = own_score_epsilon(profile.mu, trials, delta)
        worst = max(own, worst_score_epsilon(profile.mu, trials, delta))
    return TuningCost(
        epsilon=bounds[theorem],
        delta=delta,
        theorem=theorem,
        assumptions=(*THEOREMS[theorem].assumptions, base.statement, *base.run.assumptions, *_about_none(trials)),
        standing="conditional" if base.run.conditional else "proved",
        bounds=bounds,
        lower=worst,
        lower_own_score=own,
        alone=alone,
        trials=trials,
        base=base.details,
        warnings=about_delta(delta, base.models, base.shuffle),
    )


def _about_none(trials: Trials) -> tuple[str, ...]:
    if not isinstance(trials, Poisson):
        return ()
    return (f"if no run is drawn (probability {significant(trials.nothing, 3)}), what is released does not depend on the data",)
