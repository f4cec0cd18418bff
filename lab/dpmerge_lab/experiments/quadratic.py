"""Recycling Scraps §5.1.2 (Fig. 7): the variance of a quadratic's last iterate, estimated from checkpoints of one run.

θ ← (1 − η)θ + noise is an autoregressive process, and the sample variance of its checkpoints is a quadratic form in normal
variables: its bias and variance are also known exactly, so the simulation is checked, and its own error seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.checkpoints import variance_estimate
from dpmerge.training import fresh_generator
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed

Floats = npt.NDArray[np.float64]
ROUNDS, RATE, START = 128, 0.07, 100.0
SEPARATIONS = (1, 2, 4, 8, 16)
TOLD = (64, 2)  # the paper's best burn-in and separation


def noise_variance(rounds: int = ROUNDS) -> float:
    """Of one step, such that the iterate after so many rounds has variance 1."""
    shrunk = (1 - RATE) ** 2
    left = START**2 * shrunk**rounds
    return (1 - left) * (1 - shrunk) / (1 - shrunk**rounds)


def covariance(steps: Sequence[int]) -> Floats:
    """Of the iterates after these steps; all have mean 0."""
    at = np.asarray(steps)
    shrunk = (1 - RATE) ** (2.0 * at)
    variances = START**2 * shrunk + noise_variance() * (1 - shrunk) / (1 - (1 - RATE) ** 2)
    earlier = np.where(at[:, None] < at[None, :], variances[:, None], variances[None, :])
    return np.asarray(earlier * (1 - RATE) ** np.abs(at[:, None] - at[None, :]))


def exact_error(steps: Sequence[int]) -> dict[str, float]:
    """Bias, deviation and root mean squared error of the sample variance S = xᵀAx: E S = tr AΣ, Var S = 2 tr (AΣ)²."""
    count = len(steps)
    centred = (np.eye(count) - 1 / count) / (count - 1) @ covariance(steps)
    bias, variance = float(np.trace(centred)) - 1, 2 * float(np.trace(centred @ centred))
    return {"bias": bias, "deviation": math.sqrt(variance), "rmse": math.hypot(bias, math.sqrt(variance))}


def iterates(runs: int, generator: np.random.Generator) -> Floats:
    """Row t holds all runs after t rounds."""
    found = np.empty((ROUNDS + 1, runs))
    found[0] = START * generator.standard_normal(runs)
    noise = math.sqrt(noise_variance())
    for step in range(ROUNDS):
        found[step + 1] = (1 - RATE) * found[step] + noise * generator.standard_normal(runs)
    return found


def checkpoints(burn_in: int, separation: int) -> range:
    """The first at `burn_in`, as the paper counts; where the separation does not fit, the last is before the last round."""
    return range(burn_in, ROUNDS + 1, separation)


def simulated_error(found: Floats, steps: Sequence[int]) -> float:
    """Root mean squared error over the runs, of S for the last model (all weight p on it: Thm 5.1) against 1."""
    estimates = variance_estimate(found[list(steps)], [0.0] * (len(steps) - 1) + [1.0])
    return float(np.sqrt(np.mean((estimates - 1) ** 2)))


def quadratic(options: Options) -> Result:
    """RMSE over burn-in and separation, simulated as in the paper and exact."""
    runs, burn_ins = (200, range(16, 121, 8)) if options.quick else (1000, range(8, 121, 4))
    comparisons = 20 if options.quick else 500
    configuration: dict[str, Any] = {
        "rounds": ROUNDS,
        "learning rate": RATE,
        "standard deviation of the start": START,
        "noise variance of a step": noise_variance(),
        "variance of the last iterate": 1.0,
        "runs": runs,
        "repetitions": options.seeds,
        "comparisons of separations": comparisons,
        "burn-ins": list(burn_ins),
        "separations": list(SEPARATIONS),
    }
    with timed(Result("quadratic", configuration)) as result:
        grid = [(s, b) for s in SEPARATIONS for b in burn_ins if len(checkpoints(b, s)) > 1]
        repeated = [_errors(runs, grid) for _ in range(options.seeds)]
        rows = [
            {
                "separation": separation,
                "burn-in": burn_in,
                "checkpoints": len(checkpoints(burn_in, separation)),
                "simulated": mean_and_deviation([errors[index] for errors in repeated]),
                "exact": exact_error(checkpoints(burn_in, separation)),
            }
            for index, (separation, burn_in) in enumerate(grid)
        ]
        result.numbers = {
            "best, simulated": [_best(grid, errors) for errors in repeated],
            "best, exact": _exact_best(),
            "the paper's best (burn-in 64, separation 2), exact": exact_error(checkpoints(*TOLD)),
            "separation 1 at burn-in 64, exact": exact_error(checkpoints(TOLD[0], 1)),
            "share of comparisons in which separation 2 beats 1 at burn-in 64": _two_beats_one(runs, comparisons),
            "two independent runs of 64 rounds": _two_runs(),
            "rows": rows,
        }
        result.pictures = pictures(configuration, result.numbers)
    return result


def _errors(runs: int, grid: Sequence[tuple[int, int]]) -> list[float]:
    found = iterates(runs, fresh_generator())
    return [simulated_error(found, checkpoints(burn_in, separation)) for separation, burn_in in grid]


def _best(grid: Sequence[tuple[int, int]], errors: Sequence[float]) -> dict[str, Any]:
    error, (separation, burn_in) = min(zip(errors, grid, strict=True))
    return {"separation": separation, "burn-in": burn_in, "rmse": error}


def _exact_best() -> dict[str, Any]:
    """Over all burn-ins, for each separation and for all."""
    grid = [(s, b) for s in SEPARATIONS for b in range(1, ROUNDS) if len(checkpoints(b, s)) > 1]
    errors = [exact_error(checkpoints(b, s))["rmse"] for s, b in grid]
    of_each = {
        f"separation {s}": _best([g for g in grid if g[0] == s], [e for g, e in zip(grid, errors, strict=True) if g[0] == s])
        for s in SEPARATIONS
    }
    return {**_best(grid, errors), **of_each}


def _two_beats_one(runs: int, comparisons: int) -> float:
    """How often an experiment of the paper's size prefers separation 2: whether its preference means anything."""
    wins = 0
    for _ in range(comparisons):
        found = iterates(runs, fresh_generator())
        wins += simulated_error(found, checkpoints(64, 2)) < simulated_error(found, checkpoints(64, 1))
    return wins / comparisons


def _two_runs() -> dict[str, Any]:
    """The sample variance of two independent last iterates: σ²χ²₁, of mean σ² and variance 2σ⁴."""
    variance = float(covariance([64])[0, 0])
    return {
        "rmse, ignoring the bias of stopping at 64": math.sqrt(2),
        "rmse, with it": math.hypot(variance - 1, math.sqrt(2) * variance),
        "note": "the paper gives 2, which is the variance of the estimate, not its root mean squared error",
    }


def pictures(configuration: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """RMSE, simulated and exact."""
    return {"rmse": _picture(numbers["rows"], configuration["runs"], configuration["repetitions"])}


def _picture(rows: Sequence[dict[str, Any]], runs: int, repetitions: int) -> dict[str, Any]:
    def lines(exact: bool, first: int) -> list[dict[str, Any]]:
        drawn = []
        for separation in SEPARATIONS:
            some = [row for row in rows if row["separation"] == separation and row["burn-in"] >= first]
            line = {"label": f"separation {separation}", "x": [row["burn-in"] for row in some], "standing": "measured"}
            heights = [row["exact"]["rmse"] if exact else row["simulated"]["mean"] for row in some]
            drawn.append({**line, "y": heights})
        ends = [float(first), float(ROUNDS)]
        independent = {"label": "two runs of 64 rounds, ignoring bias", "x": ends, "y": [math.sqrt(2)] * 2}
        return [*drawn, {**independent, "standing": "reference"}]

    labels = {"x_label": "burn-in: round of the first checkpoint", "y_label": "RMSE of the variance estimate"}
    return {
        "kind": "lines",
        "title": "Estimating the last iterate's variance from checkpoints (Recycling Scraps, Fig. 7)",
        "subtitle": f"quadratic loss, {ROUNDS} rounds, η = {RATE:g}, true variance 1, start N(0, {START:g}²)",
        "caption": f"Left: {runs} simulated runs, mean over {repetitions} repetitions. Right: the same in closed form, for "
        "long burn-ins. A short burn-in leaves the start's variance in the estimate; a long one, or a large separation, "
        "leaves few checkpoints; neighbours that are close are correlated, so the estimate is too small.",
        "panels": [
            {"title": "simulated", **labels, "y_scale": "log", "lines": lines(False, 0)},
            {"title": "exact, zoomed", **labels, "lines": lines(True, 56)},
        ],
    }
