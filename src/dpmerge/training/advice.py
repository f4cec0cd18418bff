"""Which settings of a linear model make averages and noise at release pay, and what it costs not to have them, in numbers.

Two conditions (docs/theory.md §9.1): clipping keeps gradients those of convex functions, which for softmax regression needs a
clip of √2·r, and the learning rate is at most 2B/(βM), so that no step drives two models apart. Where they fail, guarantees
are still valid, but larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpmerge.datasets import NORM_MARGIN
from dpmerge.errors import AccountingError
from dpmerge.planning import training_variance
from dpmerge.records import Model, Portfolio
from dpmerge.rules import DEFAULT_ACCOUNTING, build, largest_learning_rate, round_down, round_up
from dpmerge.training.linear import Loss, clipping_of, facts_of_linear
from dpmerge.training.recipe import Recipe


@dataclass(frozen=True)
class LinearSetting:
    """What a record of a linear model will say, before it is trained."""

    recipe: Recipe
    loss: Loss
    examples: int
    norm_bound: float

    @property
    def facts(self) -> tuple[float, str | None]:
        return facts_of_linear(self.loss, self.recipe.clip, self.norm_bound)

    def alike(self, count: int, **also: Any) -> Portfolio:
        """The records of so many independent runs, without models. They say `also` what is given beside."""
        smoothness, convex = self.facts
        also = {"dataset": "planned", "noise_generator": "chacha20", **also}
        return Portfolio(
            Model(
                f"run-{index}",
                self.recipe.record(
                    self.recipe.steps,
                    self.examples,
                    run=f"run-{index}",
                    noise=f"noise-{index}",
                    sampler=f"sampler-{index}",
                    smoothness=smoothness,
                    convex=convex,
                    clipping=clipping_of(self.loss),
                    **also,
                ),
            )
            for index in range(count)
        )

    def least_clip(self) -> float:
        """From here on clipping never binds in softmax regression; other models need no clip."""
        return math.sqrt(2) * self.norm_bound / NORM_MARGIN * (1 + 1e-12) if self.loss == "softmax" else 0.0

    def largest_learning_rate(self, runs: int, delta: float) -> float:
        """η with ηβM/B ≤ 2 − 2ηω, for the batch size M that these runs exceed with probability δ/10 in all."""
        recipe = self.recipe
        return largest_learning_rate(
            self.facts[0],
            batch=recipe.expected_batch(self.examples),
            rate=recipe.rate,
            weight_decay=recipe.weight_decay,
            draws=runs * recipe.steps,
            delta=delta,
        )

    def epsilon_of_average(self, runs: int, delta: float) -> float:
        """Of equal weights, with as much noise at release as training leaves in the average."""
        portfolio = self.alike(runs)
        noise = math.sqrt((training_variance(portfolio.models[0]) or 0.0) / runs)
        weights = portfolio.weights(dict.fromkeys(portfolio.names, 1 / runs))
        return DEFAULT_ACCOUNTING.guarantee(build("combination", weights, noise=noise), delta=delta).epsilon


def limits(setting: LinearSetting, runs: int, delta: float) -> dict[str, float]:
    """Within these, averages and noise pay; rounded so that both still hold."""
    return {
        "least_clip": math.ceil(setting.least_clip() * 1000) / 1000,
        "largest_learning_rate": round_down(setting.largest_learning_rate(runs, delta), 3),
    }


def advice(settings: Iterable[tuple[str, LinearSetting]], delta: float) -> list[str]:
    """A sentence for every setting of these runs that keeps averages and noise from paying; runs alike are told together."""
    groups: dict[LinearSetting, list[str]] = {}
    for name, setting in settings:
        recipe = setting.recipe
        plain = recipe.optimizer == "sgd" and all(recipe.rate_at(step) == recipe.rate for step in (1, recipe.steps))
        if plain and recipe.noise_multiplier > 0:
            groups.setdefault(setting, []).append(name)
    return [text for setting, names in groups.items() for text in _about(setting, names, delta)]


def _about(setting: LinearSetting, names: Sequence[str], delta: float) -> Iterable[str]:
    runs, recipe, clip = len(names), setting.recipe, setting.least_clip()
    limit = setting.largest_learning_rate(runs, delta)
    most = round_down(limit, 3)
    if recipe.clip >= clip and recipe.learning_rate <= limit:
        return
    what = f"the average of {', '.join(names)}" if runs > 1 else f"{names[0]} alone"
    whole = f"proved ε of {what} with as much noise at release as its training left, at δ = {delta:g}"
    now = _number(setting, runs, delta)
    slow = replace(recipe, learning_rate=min(recipe.learning_rate, most))
    if recipe.clip < clip:
        least = limits(setting, runs, delta)["least_clip"]
        wide = _number(replace(setting, recipe=replace(slow, clip=least)), runs, delta)
        other = replace(setting, loss="one-vs-rest")
        pace = min(recipe.learning_rate, round_down(other.largest_learning_rate(runs, delta), 3))
        single = _number(replace(other, recipe=replace(recipe, learning_rate=pace)), runs, delta)
        yield (
            f"clip {recipe.clip:g} is below {least:g}, √2 times norm_bound {setting.norm_bound:g}, so clipping may bind: "
            f"{whole}: {now}; with clip {least:g}: {wide}; with model one-vs-rest at this clip: {single}"
            + ("" if recipe.learning_rate <= limit else f" (learning rates at most {most:g} and {pace:g})")
        )
    else:
        below = _number(replace(setting, recipe=slow), runs, delta)
        yield f"learning rate {recipe.learning_rate:g} is above {most:g}: {whole}: {now}; at {most:g}: {below}"


def _number(setting: LinearSetting, runs: int, delta: float) -> str:
    try:
        return round_up(setting.epsilon_of_average(runs, delta), 2)
    except (AccountingError, ArithmeticError):  # a training does not fail because a number for its warning cannot be computed
        return "unknown"
