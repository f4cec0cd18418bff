"""The price of private hyper-parameter tuning: K runs with hyper-parameters drawn at random, of which the best is released.

From above by two theorems, of which the smaller answer counts; from below, for a Gaussian mechanism, by events that give the
best of K away: their probabilities are in closed form, so each bound is valid whatever the search for the best event finds
(docs/theory.md §7, "tuning-lower").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr

from dpmerge.errors import TargetError
from dpmerge.profiles import FloatArray, GaussianLaw, Profile, RunProfile, ShuffleAsPoisson, gaussian_delta, run_profile
from dpmerge.records import Model
from dpmerge.rules.guarantee import ProfileBound, Standing, Target, ask
from dpmerge.rules.statements import about_delta, about_records, significant
from dpmerge.rules.theorems import THEOREMS
from dpmerge.rules.tuning_bounds import pairs_of, profile_epsilon, renyi_epsilon
from dpmerge.rules.tuning_trials import Poisson, Trials

PROFILE, RENYI = "tuning-profile", "tuning-rdp"
Calibration = Literal["exact", "rdp"]

# A region in terms of two places a ≤ b on the line: the share of runs under P that beat it, and its own, then both under Q.
_Region = Callable[[FloatArray, FloatArray, float], tuple[FloatArray, FloatArray]]
LARGEST_MU = 30.0  # where one run has an ε of hundreds, and likelihood ratios begin to overflow
_SMALLEST_MU = 1e-6
_POINTS, _ZOOMS = 400, 6
_ROUNDING = 1e-7


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
        if model.start is not None:
            raise TargetError(
                f"model {model.name!r} starts from a private checkpoint: runs that share one are not independent, as those of "
                "a search must be. Tune from a public start"
            )
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
        return {**vars(self), "bounds": dict(self.bounds), "trials": self.trials.as_dict(), "base": dict(self.base)}


def tuning_cost(base: Base, trials: Trials, delta: float) -> TuningCost:
    target = Target(delta=delta)
    profile = base.run.profile
    alone = ask(ProfileBound(profile), target).epsilon
    if base.details.get("delta") == delta:
        alone = min(alone, base.details["epsilon"])  # the base was calibrated to this ε
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


def calibrated_mu(epsilon: float, delta: float, by: Calibration) -> float:
    """The largest μ with which a Gaussian mechanism is (ε, δ)-DP: by its exact curve, or by Rényi and the tight conversion."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise TargetError(f"epsilon is {epsilon:g}; the base mechanism needs a finite ε above 0")

    def excess(mu: float) -> float:
        if by == "exact":
            return math.log(float(gaussian_delta(mu, epsilon)) / delta)
        return Profile.of([(GaussianLaw(mu), 1)]).epsilon_by_renyi(delta) - epsilon

    if excess(_SMALLEST_MU) > 0 or excess(LARGEST_MU) < 0:
        raise TargetError(
            f"no Gaussian mechanism with a noise multiplier from {1 / LARGEST_MU:.2g} to {1 / _SMALLEST_MU:g} has just "
            f"ε = {epsilon:g} at δ = {delta:g}; ask for another target, or give mu"
        )
    from scipy.optimize import brentq  # slow to import, and few need it

    mu = float(brentq(excess, _SMALLEST_MU, LARGEST_MU, xtol=1e-15, rtol=1e-13))
    while excess(mu) > 0:
        mu *= 1 - 1e-13
    return mu


def worst_score_epsilon(mu: float, trials: Trials, delta: float) -> float:
    """At least this ε at δ for the best of K runs of a Gaussian mechanism, if scores may rank its outcomes in any order.

    The best are those below a, which the other dataset makes likelier; next come those above b; then all others. The event
    is "above b": the first group hides it if there are many runs, more so on the other dataset.
    """

    def region(low: FloatArray, high: FloatArray, shift: float) -> tuple[FloatArray, FloatArray]:
        return ndtr(low - shift), ndtr(shift - high)

    return _largest_epsilon(region, mu, trials, delta)


def own_score_epsilon(mu: float, trials: Trials, delta: float) -> float:
    """The same if the score of a run is its own outcome, by intervals of outcomes: smaller is better, or larger is."""

    def smaller_wins(low: FloatArray, high: FloatArray, shift: float) -> tuple[FloatArray, FloatArray]:
        return ndtr(low - shift), _between(low - shift, high - shift)

    def larger_wins(low: FloatArray, high: FloatArray, shift: float) -> tuple[FloatArray, FloatArray]:
        return ndtr(shift - high), _between(low - shift, high - shift)

    return max(_largest_epsilon(region, mu, trials, delta) for region in (smaller_wins, larger_wins))


def _between(low: FloatArray, high: FloatArray) -> FloatArray:
    """Φ(high) − Φ(low), on the side where neither is close to 1."""
    return np.asarray(np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)))


def _largest_epsilon(region: _Region, mu: float, trials: Trials, delta: float) -> float:
    """The largest log((A(S) − δ)/A′(S)) over regions S: (ε, δ)-DP says A(S) ≤ e^ε A′(S) + δ."""
    farthest = math.sqrt(2 * math.log(max(1.0, trials.mean) / delta)) + 1  # beyond it even the best of K is rarer than δ
    places = np.linspace(-farthest, farthest, _POINTS) + mu
    lows, highs = np.concatenate(([-np.inf], places)), np.concatenate((places, [np.inf]))
    best = 0.0
    for _ in range(_ZOOMS):
        values = _epsilons(region, lows[:, None], highs[None, :], mu, trials, delta)
        row, column = np.unravel_index(int(np.argmax(values)), values.shape)
        best = max(best, float(values[row, column]))
        lows, highs = _around(lows, int(row)), _around(highs, int(column))
    return max(0.0, best * (1 - _ROUNDING) - _ROUNDING)


def _epsilons(region: _Region, low: FloatArray, high: FloatArray, mu: float, trials: Trials, delta: float) -> FloatArray:
    with np.errstate(all="ignore"):
        log_here, log_there = (trials.log_mass(*region(low, high, shift)) for shift in (mu, 0.0))
        values = log_here + np.log1p(-np.exp(math.log(delta) - log_here)) - log_there
    allowed = (low < high) & (log_here > math.log(delta)) & np.isfinite(values)
    return np.where(allowed, values, -np.inf)


def _around(places: FloatArray, index: int) -> FloatArray:
    """A finer grid between the neighbours of a place, the place itself and infinite ones among them."""
    near = places[max(0, index - 3) : index + 4]
    inner = near[np.isfinite(near)]
    finer = np.linspace(inner[0], inner[-1], 49) if inner.size > 1 else inner
    return np.unique(np.concatenate((near, finer)))
