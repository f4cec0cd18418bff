"""Small trainings in one dimension whose release has an exact law, and the records that describe them (docs/theory.md §3.3).

Two runs of at most four steps. Gradients are piecewise linear functions of the state with slopes and sizes up to what the
records state; what the record in question contributes is any function of the state, jumps included. A training is decoded
from numbers in [0, 1], so that random search, Hypothesis and hill climbing search the same space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np

from dpmerge.profiles import FloatArray
from dpmerge.records import Adjacency, Model
from dpmerge.rules import Combination
from tests.builders import dp_sgd, weighted
from tests.exact_densities import HiddenRun, Ramp, ReleaseLaws, Step

Knowledge = Literal["non-expansive", "smooth", "nothing"]
T = TypeVar("T")
NUMBERS = 160
_OTHERS = 7  # common records under Poisson sampling, at most: every batch size is enumerated


@dataclass
class Numbers:
    """Numbers from [0, 1], read one after another as choices."""

    values: FloatArray
    place: int = 0

    def share(self) -> float:
        """The next number; from the beginning again after the last."""
        self.place += 1
        return float(self.values[(self.place - 1) % self.values.size])

    def choice(self, *options: T) -> T:
        return options[min(int(self.share() * len(options)), len(options) - 1)]

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.share()

    def scaled(self, low: float, high: float) -> float:
        """Evenly in the logarithm."""
        return low * math.exp(self.share() * math.log(high / low))


@dataclass(frozen=True)
class Setting:
    """What both runs share. C = 1; under Poisson sampling D has as many records as SIZE allows, or `_OTHERS` + 1."""

    adjacency: Adjacency
    knowledge: Knowledge
    batch: float
    rate: float = 1.0

    @property
    def most_records(self) -> int:
        """n of SIZE, or of FULL."""
        return math.ceil((self.batch + 1) / self.rate) if self.rate < 1 else int(self.batch)

    @property
    def others(self) -> int:
        """How many common records there are."""
        return min(self.most_records - 1, _OTHERS) if self.rate < 1 else self.most_records - 1


@dataclass(frozen=True)
class Run:
    """One run, entries by step: learning rates, noise multipliers, and clipped gradients as functions of the state."""

    etas: tuple[float, ...]
    sigmas: tuple[float, ...]
    smoothness: float
    gradients: tuple[Ramp, ...]
    records: tuple[Ramp, ...]
    replacements: tuple[Ramp, ...]

    @classmethod
    def steady(cls, steps: int, eta: float, sigma: float, slope: float, smoothness: float) -> Run:
        """Gradients slope × state up to C, a record that pushes up by C at every step, and a replacement that pushes down."""
        reach = 1 / slope if slope else 1.0
        ramp = Ramp((-abs(reach), abs(reach)), (-slope * abs(reach), slope * abs(reach)))
        up, down = Ramp.constant(-1.0), Ramp.constant(1.0)
        return cls((eta,) * steps, (sigma,) * steps, smoothness, (ramp,) * steps, (up,) * steps, (down,) * steps)


@dataclass(frozen=True)
class Training:
    """Models with their records, and what was really run."""

    models: tuple[Model, ...]
    hidden: tuple[HiddenRun, ...]

    @classmethod
    def of(cls, setting: Setting, runs: Sequence[Run], weights: Sequence[float]) -> Training:
        """Runs with these weights (which sum to 1); refuses gradients that are not what the records would say."""
        parts = list(zip("abcd", runs, weights, strict=False))
        return cls(
            tuple(_model(name, setting, run) for name, run, _ in parts),
            tuple(HiddenRun(weight, _steps(setting, run)) for _, run, weight in parts),
        )

    @classmethod
    def balanced(cls, setting: Setting, runs: Sequence[Run], ratio: float) -> Training:
        """Two runs, the first with `ratio` times the other's part in the last noise; a noiseless one counts its effect."""
        one, other = (run.etas[-1] * (run.sigmas[-1] or 1.0) for run in runs)
        odds = ratio * other / one
        return cls.of(setting, runs, (odds / (1 + odds), 1 / (1 + odds)))

    def rule(self, only_release: bool = False) -> Combination:
        """What the library is asked: of every step, or of the last iterates alone."""
        weights = weighted(*((model, run.weight) for model, run in zip(self.models, self.hidden, strict=True)))
        return Combination(weights, only_release=only_release)

    def laws(self, finer: float = 1.0) -> ReleaseLaws:
        """What is released."""
        return ReleaseLaws.of(self.hidden, finer)


def _model(name: str, setting: Setting, run: Run) -> Model:
    convex, known = setting.knowledge == "non-expansive", setting.knowledge != "nothing"
    for ramp in run.gradients:
        assert max(map(abs, ramp.values)) <= 1
        assert not known or (ramp.steepest <= run.smoothness * (1 + 1e-9) and not ramp.jumps)
        assert not convex or all(a <= b for a, b in pairwise(ramp.values))
    assert all(abs(value) <= 1 for ramp in (*run.records, *run.replacements) for value in ramp.values)
    return dp_sgd(
        name,
        sigma=run.sigmas[0],
        batch=setting.batch,
        sampling=setting.rate if setting.rate < 1 else None,
        smoothness=run.smoothness if known else None,
        convex="glm" if convex else None,
        adjacency=setting.adjacency,
        phases=[{"steps": 1, "learning_rate": e, "noise_multiplier": s} for e, s in zip(run.etas, run.sigmas, strict=True)],
    )


def _steps(setting: Setting, run: Run) -> tuple[Step, ...]:
    steps = []
    for eta, sigma, *ramps in zip(run.etas, run.sigmas, run.gradients, run.records, run.replacements, strict=True):
        unit = eta / setting.batch
        gradient, record, replacement = (Ramp(ramp.knots, tuple(unit * v for v in ramp.values)) for ramp in ramps)
        replaced = replacement if setting.adjacency == "replace-one" else None
        steps.append(Step(gradient, record, replaced, setting.others, setting.rate, unit * sigma))
    return tuple(steps)


# --- from numbers -----------------------------------------------------------------------------------------------------


def decoded(numbers: Numbers, sampled: bool) -> Training:
    """Any training: adjacency, knowledge, lengths, schedules, noises down to none, weights, and gradients."""
    sampling = [(2.0, 0.5), (2.0, 0.9), (1.0, 0.2), (1.0, 0.05)] if sampled else [(2.0, 1.0), (4.0, 1.0), (20.0, 1.0)]
    batch, rate = numbers.choice(*sampling)
    adjacency: Adjacency = numbers.choice("add-remove", "replace-one", "zero-out")
    setting = Setting(adjacency, numbers.choice("non-expansive", "smooth", "smooth", "nothing"), batch, rate)
    first = _run(numbers, setting, quiet=False)
    second = _run(numbers, setting, quiet=numbers.choice(False, False, False, True))
    return Training.balanced(setting, (second, first), numbers.choice(1.0, numbers.scaled(0.05, 20)))


def _run(numbers: Numbers, setting: Setting, quiet: bool) -> Run:
    steps = numbers.choice(2, 3, 4, 1)
    eta, sigma = numbers.scaled(0.1, 10), 0.0 if quiet else numbers.scaled(0.5, 10)
    varying, same_gradients = numbers.choice(False, True), numbers.choice(False, True)
    etas = tuple(eta * (numbers.scaled(0.4, 2.5) if varying else 1.0) for _ in range(steps))
    sigmas = tuple(sigma * (numbers.scaled(0.5, 2) if varying else 1.0) for _ in range(steps))
    growth = numbers.choice(numbers.scaled(0.02, 2), 1.0, 2.0)  # L, the largest of all steps
    smoothness = growth * setting.batch / (max(etas) * setting.most_records)
    shapes: list[tuple[Ramp, Ramp, Ramp]] = []
    spread = 0.0  # of the state, roughly: where knots are worth placing
    for eta, sigma in zip(etas, sigmas, strict=True):
        unit = eta / setting.batch
        if not (same_gradients and shapes):
            around = 1.5 * unit * (1 + sigma) if same_gradients else spread
            gradient = _gradient(numbers, around, smoothness, setting.knowledge)
            shapes.append((gradient, _push(numbers, around), _push(numbers, around)))
        spread = math.hypot((1 + min(growth, 1.5)) * spread, unit * sigma) + unit
    gradients, records, replacements = zip(*(shapes * steps if same_gradients else shapes), strict=True)
    return Run(etas, sigmas, smoothness, gradients, records, replacements)


def _gradient(numbers: Numbers, spread: float, slope: float, knowledge: Knowledge) -> Ramp:
    """Three pieces around the state, with the largest slopes or others; a jump from −C to C where nothing is known."""
    if spread == 0:
        return Ramp.constant(0.0)
    if knowledge == "nothing" and numbers.choice(False, True):
        return Ramp.jump(spread * numbers.between(-1.5, 1.5), *numbers.choice((-1.0, 1.0), (1.0, -1.0)))
    lowest = 0.0 if knowledge == "non-expansive" else -1.0
    widths = np.array([spread * numbers.scaled(0.2, 5) for _ in range(3)])
    slopes = np.array([slope * numbers.choice(1.0, lowest, 0.0, numbers.between(lowest, 1)) for _ in range(3)])
    knots = np.concatenate(([0.0], np.cumsum(widths))) - widths.sum() / 2 + spread * numbers.between(-1.5, 1.5)
    values = np.concatenate(([0.0], np.cumsum(slopes * widths)))
    return _clipped(Ramp(tuple(knots.tolist()), tuple((values - (values[1] + values[2]) / 2).tolist())))


def _push(numbers: Numbers, spread: float) -> Ramp:
    """What one record contributes: C up or down, or anything in between, the same everywhere or with a jump."""
    below, above = (numbers.choice(-1.0, 1.0, numbers.between(-1, 1)) for _ in range(2))
    return numbers.choice(Ramp.constant(below), Ramp.jump(spread * numbers.between(-2, 2), below, above))


def _clipped(ramp: Ramp) -> Ramp:
    """Clipped to C = 1: no slope grows by clipping the values at the knots."""
    return Ramp(ramp.knots, tuple(min(max(value, -1.0), 1.0) for value in ramp.values))


# --- known worst cases ------------------------------------------------------------------------------------------------


def corners(sampled: bool) -> list[Training]:
    """Trainings for which a bound is attained, or nearly; or would be exceeded if some term of it were missing."""
    batch, rate = (2.0, 0.5) if sampled else (10.0, 1.0)
    adjacencies: tuple[Adjacency, ...] = ("add-remove", "replace-one")
    found = []
    for adjacency in adjacencies:
        convex, smooth = Setting(adjacency, "non-expansive", batch, rate), Setting(adjacency, "smooth", batch, rate)
        slope = batch / convex.most_records  # ηβM/B = 1
        once, cover = Run.steady(1, 1.0, 2.0, 0.0, slope), Run.steady(1, 1.0, 40.0, 0.0, slope)
        forgets, remembers = Run.steady(4, 1.0, 40.0, slope, slope), Run.steady(4, 1.0, 2.0, 0.0, slope)
        found += [
            Training.balanced(smooth, (once, once), 1.0),  # one step: equality
            Training.balanced(convex, (forgets, remembers), 5.0),  # the one's noise is gone, the other's record is not
            Training.balanced(smooth, (cover, Run.steady(2, 1.0, 2.0, -slope, slope)), 10.0),  # drives its copies apart
            Training.balanced(convex, (Run.steady(3, 200.0, 0.0, 0.0, slope / 200), remembers), 0.2),  # no noise, little weight
        ]
    return found
