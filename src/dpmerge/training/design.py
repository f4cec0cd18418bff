"""A recipe for runs whose average, with noise at release, serves a whole range of targets (docs/theory.md §9).

The user says how much training there is to be: learning rate × steps, and passes through the data. For the same of both, few
steps with large batches are best: what a record does in all is the same, and how often it takes part varies least. So the
learning rate is the largest that drives no two models apart. What is left is the noise of the training. By the predicted
variance of a parameter (what training leaves in the average, and the noise at release that the target needs) none at all would
be best: noise at release hides more. But then a model that is published in any other way is not private at all. So it is the
most that costs no target more than a twentieth of its deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpmerge.errors import AccountingError, TargetError, TrainingError
from dpmerge.notebook import html_table, tells
from dpmerge.planning import training_variance
from dpmerge.records import Weights
from dpmerge.rules import DEFAULT_ACCOUNTING, Combination, Target, build, least_noise, round_down, round_up
from dpmerge.training.advice import LinearSetting

_FACTORS = (0.1, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)  # of the noise that alone would serve the largest ε
_NOISES = (0.7, 2.0, 6.0, 18.0, 54.0)  # at release, in units of what a record does in one step of one run
_DEARER = 1.05  # by how much the deviation at a target may exceed the least
_LONGEST = 100_000
_FULL = 0.8  # rates from which every example may as well take part


@dataclass(frozen=True)
class Served:
    """A target: the noise at release that it needs, and the deviation predicted for a parameter."""

    epsilon: float
    release_noise: float
    deviation: float


@dataclass(frozen=True, repr=False)
class Design:
    """How to train `runs` models alike, how many to average, and what to expect of that average at each target.

    It is one average for all targets: releases of one average share their noise (docs/theory.md §9.5), those of two do not.
    `composed` is the ε of the runs that are averaged by composition, as if every step of each were published.
    """

    setting: LinearSetting
    runs: int
    averaged: int
    delta: float
    composed: float
    served: tuple[Served, ...]

    def fields(self) -> dict[str, Any]:
        """The settings as a portfolio's file states them."""
        recipe = self.setting.recipe
        batches = {"full_batch": True} if recipe.rate is None else {"rate": recipe.rate}
        decay = {"weight_decay": recipe.weight_decay} if recipe.weight_decay else {}
        rest = {"learning_rate": recipe.learning_rate, "clip": recipe.clip, "noise_multiplier": recipe.noise_multiplier}
        return {"model": self.setting.loss, "steps": recipe.steps, **batches, **rest, **decay}

    @property
    def defaults(self) -> str:
        """The same as a line of the file, between its braces."""
        return ", ".join(f"{name}: {'true' if value is True else value}" for name, value in self.fields().items())

    def rows(self) -> list[dict[str, str]]:
        """What to expect at each target, as a table."""
        composed = round_up(self.composed, 2)
        return [
            {
                "ε": f"{one.epsilon:g}",
                "noise at release": f"{one.release_noise:.4g}",
                "predicted deviation": f"{one.deviation:.4g}",
                "ε by composition": composed,
            }
            for one in self.served
        ]

    def __repr__(self) -> str:
        return f"<Design for {len(self.served)} targets, average of {self.averaged}: {self.defaults}>"

    def _repr_html_(self) -> str:
        rows = self.rows()
        return html_table([], [["defaults", self.defaults]]) + html_table(list(rows[0]), [list(row.values()) for row in rows])

    def as_dict(self) -> dict[str, Any]:
        return {
            "settings": self.fields(),
            "runs": self.runs,
            "averaged": self.averaged,
            "composed": self.composed,
            "delta": self.delta,
            "examples": self.setting.examples,
            "targets": [vars(one) for one in self.served],
        }


@tells
def design(
    setting: LinearSetting,
    *,
    runs: int,
    targets: Sequence[float],
    delta: float,
    progress: Callable[[str], None] = lambda text: None,
) -> Design:
    """The noise, steps, rate and learning rate of so many runs that serve every target at about the least predicted variance.

    `setting` says how much training there is, and the model; its noise does not matter.
    """
    if runs < 1 or not targets:
        raise TrainingError("a design needs at least one run and one target ε; name the ε that releases will be asked for")
    wanted = sorted({float(one) for one in targets})
    for epsilon in wanted:
        Target(epsilon=epsilon)
        if epsilon == 0:
            raise TargetError("epsilon is 0, which no noise gives")
    Target(delta=delta)
    paced = _paced(setting, runs, delta)
    candidates = [
        replace(paced, recipe=replace(paced.recipe, noise_multiplier=noise)) for noise in _noises(paced, wanted, delta)
    ]
    best, least = candidates[0], np.full(len(wanted), np.inf)
    for candidate in candidates:  # noisier and noisier
        progress(f"noise multiplier {candidate.recipe.noise_multiplier:g}")
        found = np.array(_deviations(candidate, runs, wanted, delta))
        least = np.minimum(least, found)
        if np.any(found > _DEARER * least):
            break
        best = candidate
    made = []
    for weights, own in _averages(best, runs):
        progress(f"noise for an average of {len(weights.used)}")
        served = [_served(weights, own, epsilon, delta) for epsilon in wanted]
        made.append((sum(math.log(one.deviation) for one in served), weights, tuple(served)))
    loss, weights, rows = min(made, key=lambda one: one[0])
    if math.isinf(loss):
        raise TargetError(f"no noise at release gives ε = {wanted[0]:g} at δ = {delta:g}; use more examples, or less training")
    composed = DEFAULT_ACCOUNTING.guarantee(build("joint", weights, provenance="a-priori"), delta=delta).epsilon
    return Design(best, runs, len(weights.used), delta, composed, rows)


def _paced(setting: LinearSetting, runs: int, delta: float) -> LinearSetting:
    """The same training in the fewest steps of which none drives two models apart; softmax with a clip that never binds."""
    recipe = setting.recipe
    if recipe.warmup or recipe.decay:
        raise TrainingError("a design has one learning rate; leave out warmup and decay")
    amount, passes = recipe.learning_rate * recipe.steps, (recipe.rate or 1.0) * recipe.steps
    least = setting.least_clip()
    clip = recipe.clip if recipe.clip >= least else math.ceil(least * 1000) / 1000
    steps = max(1, math.ceil(passes))
    while steps <= _LONGEST:
        rate = round_down(passes / steps, 4)
        moved = replace(recipe, steps=steps, rate=None if rate >= _FULL else rate, learning_rate=amount / steps, clip=clip)
        found = replace(setting, recipe=moved)
        if amount / steps <= found.largest_learning_rate(runs, delta):
            # Three digits, down: a little less training, and every limit still holds.
            return replace(found, recipe=replace(moved, learning_rate=round_down(amount / steps, 3)))
        steps = max(steps + 1, math.ceil(1.03 * steps))
    raise TrainingError(
        f"{amount:g} of learning rate × steps takes more than {_LONGEST} steps here; use less, or a smaller norm_bound"
    )


def _noises(setting: LinearSetting, targets: Sequence[float], delta: float) -> list[float]:
    """Around the noise with which the last iterate of full batches would serve the largest ε: σ = passes/(μ√T)."""
    recipe = setting.recipe
    mu = targets[-1] / math.sqrt(2 * math.log(1.25 / delta))
    middle = (recipe.rate or 1.0) * recipe.steps / (mu * math.sqrt(recipe.steps))
    return [round_down(factor * middle, 3) for factor in _FACTORS]


def _averages(setting: LinearSetting, runs: int) -> list[tuple[Weights, float]]:
    """One run, and all: with the variance that training leaves in each."""
    portfolio = setting.alike(runs)
    own = training_variance(portfolio.models[0]) or 0.0
    sizes = sorted({1, runs})
    return [(portfolio.weights(dict.fromkeys(portfolio.names[:size], 1 / size)), own / size) for size in sizes]


def _deviations(setting: LinearSetting, runs: int, targets: Sequence[float], delta: float) -> list[float]:
    """About the deviation at each target of the average of all, from the ε at a few noises and power laws between them."""
    recipe = setting.recipe
    unit = recipe.learning_rate * recipe.clip / recipe.expected_batch(setting.examples)
    weights, own = _averages(setting, runs)[-1]
    told = [_hidden(weights, noise * unit, delta) for noise in _NOISES]
    return [math.hypot(math.sqrt(own), _noise_for(epsilon, told) * unit) for epsilon in targets]


def _hidden(weights: Weights, noise: float, delta: float) -> float:
    rule = build("combination", weights, noise=noise)
    assert isinstance(rule, Combination)
    try:
        return rule.hidden_epsilon(delta, DEFAULT_ACCOUNTING.by, DEFAULT_ACCOUNTING.conversion)
    except AccountingError:
        return math.inf


def _noise_for(epsilon: float, told: Sequence[float]) -> float:
    """In units of the table's: interpolated in logarithms, beyond it as 1/ε."""
    if told[0] <= epsilon:
        return _NOISES[0]
    if told[-1] > epsilon:
        return _NOISES[-1] * told[-1] / epsilon
    finite = [(math.log(value), math.log(noise)) for value, noise in zip(told, _NOISES, strict=True) if 0 < value < math.inf]
    values, noises = np.array(finite[::-1]).T
    return math.exp(float(np.interp(math.log(epsilon), values, noises)))


def _served(weights: Weights, own: float, epsilon: float, delta: float) -> Served:
    """The least noise with which this average meets the target, as computed for it; infinite if none does."""
    try:
        noise, _ = least_noise(weights, epsilon=epsilon, delta=delta)
    except TargetError:
        noise = math.inf
    return Served(epsilon, noise, math.hypot(math.sqrt(own), noise))
