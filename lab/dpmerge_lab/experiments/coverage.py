"""Confidence intervals for private linear regression, where the assumptions of Recycling Scraps' Thm A.1 can hold.

Least squares is strongly convex and smooth, and with a clip that no gradient reaches DP-GD is the theorem's process but for its
discrete time: each eigenvector of the curvature has an autoregressive process of its own. The intervals are those of §5.1.3
there, from checkpoints of one run or from independent runs; also, as §5.1.1 compares them, of one run's steps: all checkpoints
after a burn-in, or as many runs of its length as the steps allow. They are asked for two things: what the run would find
without noise (the least squares solution), which they are about, and the truth behind the data, which they are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit
from sklearn.datasets import load_diabetes

from dpmerge.checkpoints import variance_estimate
from dpmerge.jobs import run_all
from dpmerge.training import Recipe
from dpmerge_lab.experiments.calibration import least_noise
from dpmerge_lab.experiments.coverage_pictures import (
    COUNTS,
    EVERY,
    FAST,
    LAST,
    MEAN,
    ONE,
    PREDICTION,
    RUNS,
    SHORT,
    SLOW,
    SOLUTION,
    TRUTH,
    pictures,
)
from dpmerge_lab.experiments.portfolios import DELTA
from dpmerge_lab.experiments.results import Options, Result, timed

Floats = npt.NDArray[np.float64]
SEED, LEVELS = 30, (0.9, 0.95)
ALIKE = 10  # runs in a row on the same labels: as many as the largest group of independent runs
_AT_ONCE = 500  # runs, so that the residuals fit into a cache
SEPARATIONS = (1, 5, 20, 50)
SHORTER, BURN_INS = 10, (20, 40, 100)  # how many such runs, and their length in steps


@dataclass(frozen=True)
class Setting:
    """How a regression is trained: n records with ‖x‖ ≤ 1, and a quadratic penalty, which costs no privacy."""

    data: str
    epsilon: float
    steps: int
    learning_rate: float
    clip: float
    penalty: float = 0.0
    rate: float | None = None

    def recipe(self, examples: int) -> Recipe:
        """With the least noise for ε."""
        recipe = Recipe(
            steps=self.steps, learning_rate=self.learning_rate, clip=self.clip, noise_multiplier=1.0, rate=self.rate
        )
        return replace(recipe, noise_multiplier=least_noise(recipe, examples, self.epsilon, DELTA, units=100))


SETTINGS = {
    "synthetic": Setting("synthetic", 1.0, 1000, 0.5, 2.0),
    "synthetic, ε = 16": Setting("synthetic", 16.0, 1000, 0.5, 2.0),
    "synthetic, Poisson batches": Setting("synthetic", 1.0, 1000, 0.5, 2.0, rate=0.1),
    "diabetes": Setting("diabetes", 4.0, 1000, 0.5, 2.0),
    "diabetes, penalty 0.1": Setting("diabetes", 4.0, 1000, 0.5, 2.0, penalty=0.1),
}


@dataclass(frozen=True)
class Regression:
    """Data and what is known of them: curvature, least squares solution, the truth where there is one.

    `y` has one column, or one for each run: `ALIKE` runs in a row then have the same labels.
    """

    x: Floats
    y: Floats
    penalty: float
    truth: Floats | None

    @property
    def curvature(self) -> Floats:
        return np.asarray(self.x.T @ self.x / len(self.x) + self.penalty * np.eye(self.x.shape[1]))

    @property
    def solution(self) -> Floats:
        """A column for each of y."""
        return np.asarray(np.linalg.solve(self.curvature, self.x.T @ self.y / len(self.x)))

    def directions(self) -> dict[str, Floats]:
        """What is to be estimated: θ along an eigenvector, or the prediction at the mean of the first ten rows."""
        vectors = np.linalg.eigh(self.curvature)[1]
        return {SLOW: vectors[:, 0], FAST: vectors[:, -1], PREDICTION: self.x[:10].mean(axis=0)}


def regression(setting: Setting, runs: int) -> Regression:
    """Synthetic rows on the unit sphere with fresh labels; or diabetes, of 442 patients, which ships with scikit-learn."""
    if setting.data == "diabetes":
        held = load_diabetes()
        x = held.data / 0.3  # the published columns are centred; one row is longer than this
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
        return Regression(x, (held.target[:, None] - 150) / 200, setting.penalty, None)
    generator = np.random.default_rng(SEED)
    x = generator.standard_normal((1000, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    truth = np.array([0.5, -0.4, 0.3, 0.2])
    errors = np.repeat(0.2 * generator.standard_normal((1000, math.ceil(runs / ALIKE))), ALIKE, axis=1)[:, :runs]
    return Regression(x, (x @ truth)[:, None] + errors, setting.penalty, truth)


@dataclass(frozen=True)
class Simulated:
    """Values of every direction after every step (steps × runs), and how many gradients were clipped."""

    values: dict[str, Floats]
    clipped: int


def simulate(problem: Regression, recipe: Recipe, runs: int, generator: np.random.Generator) -> Simulated:
    """Many runs from 0, of DP-GD or of DP-SGD with Poisson batches."""
    parts = []
    for first in range(0, runs, _AT_ONCE):
        size = min(_AT_ONCE, runs - first)
        labels = problem.y if problem.y.shape[1] == 1 else problem.y[:, first : first + size]
        parts.append(_simulate(replace(problem, y=labels), recipe, size, generator))
    values = {name: np.concatenate([part.values[name] for part in parts], axis=1) for name in parts[0].values}
    return Simulated(values, sum(part.clipped for part in parts))


def _simulate(problem: Regression, recipe: Recipe, runs: int, generator: np.random.Generator) -> Simulated:
    x, y = problem.x, problem.y
    theta = np.zeros((x.shape[1], runs))
    limits, batch = recipe.clip / np.linalg.norm(x, axis=1, keepdims=True), recipe.expected_batch(len(x))
    noise = recipe.noise_multiplier * recipe.clip / batch
    directions = np.stack(list(problem.directions().values()))
    kept, clipped = np.empty((recipe.steps, len(directions), runs)), 0
    whole, mean = x.T @ x / len(x), x.T @ y / len(x)
    largest = np.abs(y).max(axis=0)
    for step, rate in enumerate(recipe.learning_rates()):
        gradient = whole @ theta - mean + problem.penalty * theta
        # As ‖x‖ ≤ 1, no gradient of a full batch reaches the clip where ‖θ‖ + |y| does not.
        each = np.flatnonzero((np.linalg.norm(theta, axis=0) + largest > recipe.clip) | (recipe.rate is not None))
        if each.size:
            residuals = x @ theta[:, each] - (y if y.shape[1] == 1 else y[:, each])
            if recipe.rate is not None:
                residuals *= generator.random(residuals.shape) < recipe.rate
            clipped += int((np.abs(residuals) > limits).sum())
            gradient[:, each] = x.T @ np.clip(residuals, -limits, limits) / batch + problem.penalty * theta[:, each]
        theta = theta - rate * (gradient + noise * generator.standard_normal(theta.shape))
        kept[step] = directions @ theta
    found = {name: kept[:, index] for index, name in enumerate(problem.directions())}
    return Simulated(found, clipped)


def share(covered: npt.NDArray[np.bool_]) -> dict[str, float]:
    """With its binomial standard error."""
    mean = float(covered.mean())
    return {"share": mean, "error": math.sqrt(mean * (1 - mean) / covered.size), "runs": covered.size}


def covers(values: Floats, way: str, level: float, targets: Mapping[str, Floats], alike: int = 1) -> dict[str, Any]:
    """How often the interval from k values (the first axis) holds each target; Student's quantile, as in dpmerge.

    Of the truth only one in `alike` intervals counts: given the labels they miss it together.
    """
    count = len(values)
    weights = [0.0] * (count - 1) + [1.0] if way == LAST else None
    centre = values[-1] if way == LAST else values.mean(axis=0)
    half = stdtrit(count - 1, (1 + level) / 2) * np.sqrt(variance_estimate(values, weights))
    held = {name: np.abs(centre - target) <= half for name, target in targets.items()}
    found: dict[str, Any] = {name: share(hits[:: alike if name == TRUTH else 1]) for name, hits in held.items()}
    return {**found, "mean width": float(2 * half.mean())}


def exact_ratio(count: int, separation: int, shrink: float) -> float:
    """E S over the variance of the mean of so many stationary checkpoints, each step shrinking a deviation by `shrink`."""
    apart = separation * np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    correlations = shrink**apart
    mean = float(correlations.mean())
    return (1 - mean) / (count - 1) / mean


def of_setting(runs: int, quick: bool, case: tuple[str, Setting]) -> dict[str, Any]:
    """Coverage and widths, for one way to train."""
    name, setting = case
    setting = replace(setting, steps=200) if quick else setting
    runs = runs // 5 if setting.rate is not None else runs  # each needs batches of its own
    problem = regression(setting, runs)
    recipe = setting.recipe(len(problem.x))
    generator = np.random.default_rng([SEED, list(SETTINGS).index(name)])
    found = simulate(problem, recipe, runs, generator)
    curvatures = np.linalg.eigvalsh(problem.curvature)
    rows: list[dict[str, Any]] = []
    of_one: list[dict[str, Any]] = []
    for direction, vector in problem.directions().items():
        targets = {SOLUTION: np.broadcast_to(vector @ problem.solution, runs)}
        if problem.truth is not None:
            targets[TRUTH] = np.full(runs, vector @ problem.truth)
        values = found.values[direction]
        for count in COUNTS:
            for separation in SEPARATIONS:
                steps = [recipe.steps - 1 - separation * back for back in range(count)][::-1]
                if steps[0] < 0:
                    continue
                row = {"direction": direction, "k": count, "separation": separation, "first checkpoint": steps[0] + 1}
                for way in (MEAN, LAST):
                    row[way] = {f"{level:g}": covers(values[steps], way, level, targets, ALIKE) for level in LEVELS}
                spread = (values[steps].mean(axis=0) - targets[SOLUTION]).var(ddof=1)
                row["mean S / variance of the mean"] = float(variance_estimate(values[steps]).mean() / spread)
                if recipe.rate is None and direction != PREDICTION:
                    curvature = curvatures[0 if direction == SLOW else -1]
                    row["the same, exact"] = exact_ratio(count, separation, 1 - recipe.learning_rate * float(curvature))
                rows.append(row)
            groups = values[-1].reshape(-1, count).T
            own = {name: target[::count] for name, target in targets.items()}
            alone = {f"{level:g}": covers(groups, RUNS, level, own, ALIKE // count) for level in LEVELS}
            rows.append({"direction": direction, "k": count, RUNS: alone})
        for burn_in in BURN_INS:
            if SHORTER * burn_in <= recipe.steps:
                of_one += of_one_run(direction, values, targets, burn_in)
    bounded = {direction: float((np.abs(values) > 1).mean()) for direction, values in found.values.items()}
    return {
        "n": len(problem.x),
        "runs": runs,
        "noise multiplier": recipe.noise_multiplier,
        "epsilon of one run": setting.epsilon,
        "curvature": [float(curvatures[0]), float(curvatures[-1])],
        "M, where the strong convexity is 1": float(curvatures[-1] / curvatures[0]),
        "time of a run, in units of the slowest direction": float(recipe.steps * recipe.learning_rate * curvatures[0]),
        "share of clipped gradients": found.clipped / (recipe.steps * len(problem.x) * runs),
        "share of values outside [-1, 1]": bounded,
        "rows": rows,
        ONE: of_one,
    }


def of_one_run(direction: str, values: Floats, targets: Mapping[str, Floats], burn_in: int) -> list[dict[str, Any]]:
    """Intervals that cost what one run costs: from as many runs of the burn-in's length, or from its checkpoints after that."""
    values, own = values[: SHORTER * burn_in], {name: target[::SHORTER] for name, target in targets.items()}
    row = {"direction": direction, "burn-in": burn_in}
    groups = values[burn_in - 1].reshape(-1, SHORTER).T
    short = {f"{level:g}": covers(groups, SHORT, level, own, ALIKE // SHORTER) for level in LEVELS}
    rows: list[dict[str, Any]] = [{**row, "count": SHORTER, SHORT: short}]
    for separation in SEPARATIONS:
        some = values[::-1][: (SHORTER - 1) * burn_in + 1 : separation]
        every = {f"{level:g}": covers(some, EVERY, level, targets, ALIKE) for level in LEVELS}
        rows.append({**row, "count": len(some), "separation": separation, EVERY: every})
    return rows


def coverage(options: Options) -> Result:
    """How often intervals from checkpoints hold what they are for, beside those from independent runs."""
    runs = (50 if options.quick else 1000) * options.seeds
    configuration: dict[str, Any] = {"delta": DELTA, "seed": SEED, "levels": list(LEVELS)}
    configuration["settings"] = {name: asdict(setting) for name, setting in SETTINGS.items()}
    with timed(Result("coverage", configuration)) as result:
        account = partial(of_setting, runs, options.quick)
        found = run_all(account, list(SETTINGS.items()), jobs=options.jobs, progress=options.bar("settings"))
        result.numbers = dict(zip(SETTINGS, found, strict=True))
        result.pictures = pictures(result.numbers)
    return result
