"""Recycling Scraps, Thm 3.2: DP-GD on convex Lipschitz losses, its last iterate against averages of its iterates.

Algorithm 1 as the theorem's proof sets it: the unit ball, T = ⌈nρ⌉ steps, learning rates c/√t (Shamir and Zhang, 2013). Optima
are known: a linear program, Newton's method, or in closed form. Every average has a bound with constants: for the T₁ = T + 1
points w₁ … and E‖g‖² ≤ G², summing E[F(w_t) − F*] ≤ (d_t − d_{t+1})/2η_t + η_t G²/2 over the last m of them gives
D²√T₁/2c + cG²(√T₁ − √(T₁ − m)) for their sum, and weights that never fall are a mixture of such averages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, linprog
from scipy.sparse import csc_array, eye_array, hstack
from scipy.special import expit

from dpmerge.jobs import run_all
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed
from dpmerge_lab.experiments.tail_averaging_pictures import LAST as LAST, RATIO, TAIL as TAIL, pictures

Floats = npt.NDArray[np.float64]
LIPSCHITZ, DIAMETER, RHO, DIMENSION = 1.0, 2.0, 1.0, 16
DECAYS = {"mean of all": 0, "PDA, γ = 1": 1, "PDA, γ = 3": 3}  # γ of polynomial-decay averaging
WAYS = (LAST, TAIL, *DECAYS)
FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)  # of the learning rate that the bound on the last iterate asks for
SEED = 20


@dataclass(frozen=True)
class Problem:
    """n losses, 1-Lipschitz and convex on the unit ball: gradient and value of their mean for points in columns."""

    records: int
    dimension: int
    gradient: Callable[[Floats], Floats]
    risk: Callable[[Floats], Floats]
    optimum: Floats
    least: float


def absolute(records: int) -> Problem:
    """|⟨x, θ⟩ − y|, ‖x‖ = 1: convex and not smooth. The optimum is that of a linear program."""
    x, truth, generator = _data(records)
    y = x @ truth + generator.laplace(scale=0.1, size=records)
    parts = eye_array(records, format="csc")
    cost = np.concatenate((np.zeros(DIMENSION), np.ones(2 * records)))
    free, positive = [(None, None)] * DIMENSION, [(0, None)] * (2 * records)
    found = linprog(cost, A_eq=hstack([csc_array(x), parts, -parts]), b_eq=y, bounds=free + positive)
    optimum = np.asarray(found.x[:DIMENSION], dtype=np.float64)
    assert np.linalg.norm(optimum) < 1  # so the ball changes nothing

    def gradient(theta: Floats) -> Floats:
        return np.asarray(x.T @ np.sign(x @ theta - y[:, None]) / records)

    def risk(theta: Floats) -> Floats:
        return np.asarray(np.abs(x @ theta - y[:, None]).mean(axis=0))

    return Problem(records, DIMENSION, gradient, risk, optimum, float(risk(optimum[:, None])[0]))


def logistic(records: int) -> Problem:
    """log(1 + e^{−y⟨x, θ⟩}), ‖x‖ = 1: convex and smooth. The optimum in the ball is found by Newton's method."""
    x, truth, generator = _data(records)
    y = np.where(generator.random(records) < expit(8 * x @ truth), 1.0, -1.0)
    signed = y[:, None] * x

    def gradient(theta: Floats) -> Floats:
        return np.asarray(-signed.T @ expit(-signed @ theta) / records)

    def risk(theta: Floats) -> Floats:
        margins = signed @ theta
        return np.asarray((np.maximum(-margins, 0) + np.log1p(np.exp(-np.abs(margins)))).mean(axis=0))

    def pulled(strength: float) -> Floats:
        """The minimiser with `strength`/2·‖θ‖² added."""
        theta = np.zeros(DIMENSION)
        for _ in range(100):
            slopes = expit(signed @ theta)
            curvature = signed.T @ ((slopes * (1 - slopes))[:, None] * signed) / records + strength * np.eye(DIMENSION)
            step = np.linalg.solve(curvature, gradient(theta[:, None])[:, 0] + strength * theta)
            theta = theta - step
            if np.linalg.norm(step) < 1e-14:
                break
        return theta

    # At the boundary the optimum is the regularised minimiser whose multiplier makes its norm 1.
    free = brentq(lambda strength: float(np.linalg.norm(pulled(strength))) - 1, 1e-6, 1.0, xtol=1e-15)
    optimum = pulled(free)
    return Problem(records, DIMENSION, gradient, risk, optimum, float(risk(optimum[:, None])[0]))


def worst_case(records: int) -> Problem:
    """Harvey et al. (2019): the maximum of T + 1 linear functions on which the last of T iterates suffers the factor log T.

    Every record has this loss. Its optimum makes all functions equal: the multipliers that prove it are positive.
    """
    steps = math.ceil(records * RHO)
    size = steps + 1
    counted = np.arange(1, size + 1)
    a, b = 1 / (8 * np.maximum(size - counted, 1)), np.sqrt(counted / steps) / 2

    def heights(theta: Floats) -> Floats:
        before = np.cumsum(a[:, None] * theta, axis=0) - a[:, None] * theta
        return np.asarray(before - b[:, None] * theta)

    def gradient(theta: Floats) -> Floats:
        highest = heights(theta).argmax(axis=0)  # the first of several
        slope = np.where(np.arange(size)[:, None] < highest, a[:, None], 0.0)
        slope[highest, np.arange(theta.shape[1])] = -b[highest]
        return slope

    def risk(theta: Floats) -> Floats:
        return np.asarray(heights(theta).max(axis=0))

    optimum = np.empty(size)
    so_far = 0.0
    for i in range(size):
        optimum[i] = (1 + so_far) / b[i]
        so_far += a[i] * optimum[i]
    optimum /= np.linalg.norm(optimum)
    return Problem(records, size, gradient, risk, optimum, float(risk(optimum[:, None])[0]))


PROBLEMS: dict[str, Callable[[int], Problem]] = {"absolute": absolute, "logistic": logistic, "worst case": worst_case}


def _data(records: int) -> tuple[Floats, Floats, np.random.Generator]:
    generator = np.random.default_rng([SEED, records])
    x = generator.standard_normal((records, DIMENSION))
    truth = np.full(DIMENSION, 0.5 / math.sqrt(DIMENSION))
    return x / np.linalg.norm(x, axis=1, keepdims=True), truth, generator


def noise_deviation(records: int, steps: int) -> float:
    """For ρ-zCDP if one record's gradient, of norm at most 1, may be taken out of the mean: T/(2n²σ²) = ρ."""
    return LIPSCHITZ * math.sqrt(steps / (2 * RHO)) / records


def descend(problem: Problem, steps: int, noise: float, rates: Floats, generator: np.random.Generator) -> dict[str, Floats]:
    """DP-GD from 0 with learning rates c/√t, a column for each c, and the aggregates of its iterates."""
    theta = np.zeros((problem.dimension, len(rates)))
    tail, decayed = np.zeros_like(theta), {way: np.zeros_like(theta) for way in DECAYS}
    for step in range(1, steps + 1):
        gradient = problem.gradient(theta)
        if noise > 0:
            gradient = gradient + noise * generator.standard_normal(theta.shape)
        theta = theta - rates / math.sqrt(step) * gradient
        theta = theta / np.maximum(np.linalg.norm(theta, axis=0), 1.0)
        if step > steps - steps // 2:
            tail += theta / (steps // 2)
        for way, gamma in DECAYS.items():
            share = (gamma + 1) / (step + gamma)
            decayed[way] = (1 - share) * decayed[way] + share * theta
    return {LAST: theta, TAIL: tail, **decayed}


def weights(way: str, steps: int) -> Floats:
    """Of the iterates 1 … T in the aggregate; they never fall."""
    if way == LAST:
        return np.asarray(np.eye(1, steps, steps - 1)[0], dtype=np.float64)
    if way == TAIL:
        return np.asarray((np.arange(steps) >= steps - steps // 2) / (steps // 2), dtype=np.float64)
    gamma, counted = DECAYS[way], np.arange(1, steps + 1)
    shares = (gamma + 1) / (counted + gamma)
    kept = np.concatenate((np.cumprod((1 - shares[1:])[::-1])[::-1], [1.0]))
    return np.asarray(shares * kept)


def bound(way: str, steps: int, rate: float, gradients: float) -> float:
    """On the expected excess risk, where E‖g‖² ≤ `gradients`²; of the last iterate Thm 2 of Shamir and Zhang."""
    points = steps + 1  # the start is the first
    if way == LAST:
        return (DIAMETER**2 / rate + rate * gradients**2) * (2 + math.log(points)) / math.sqrt(points)
    rises = np.diff(np.concatenate(([0.0, 0.0], weights(way, steps))))[::-1]
    sizes = np.arange(1, points + 1)
    sums = DIAMETER**2 * math.sqrt(points) / (2 * rate) + rate * gradients**2 * (math.sqrt(points) - np.sqrt(points - sizes))
    return float(rises @ sums)


def ratio_of_means(above: Floats, below: Floats) -> dict[str, float]:
    """Of pairs, of one run or of two, and its standard error to first order: how they vary together counts."""
    found = float(above.mean() / below.mean())
    left = (above - found * below) / below.mean()
    return {"ratio": found, "standard error": float(left.std(ddof=1)) / math.sqrt(left.size) if left.size > 1 else 0.0}


def measured(runs: int, case: tuple[str, int, bool]) -> dict[str, Any]:
    """One problem of one size, with the noise that privacy needs or without any: every way at every learning rate."""
    name, records, private = case
    problem = PROBLEMS[name](records)
    steps = math.ceil(records * RHO)
    noise = noise_deviation(records, steps) if private else 0.0
    gradients = math.hypot(LIPSCHITZ, noise * math.sqrt(problem.dimension))
    runs = runs if private else 1
    base = DIAMETER / gradients
    generator = np.random.default_rng([SEED, records, list(PROBLEMS).index(name), private])
    found = descend(problem, steps, noise, np.repeat(base * np.array(FACTORS), runs), generator)
    ways: dict[str, dict[str, Any]] = {}
    excess: dict[str, dict[float, Floats]] = {}
    for way, theta in found.items():
        excess[way] = dict(zip(FACTORS, (problem.risk(theta) - problem.least).reshape(len(FACTORS), runs), strict=True))
        rows = {factor: mean_and_deviation(row) for factor, row in excess[way].items()}
        best = min(FACTORS, key=lambda factor: rows[factor]["mean"])
        ways[way] = {
            "excess risk": rows[1.0],
            "its bound": bound(way, steps, base, gradients),
            "best factor of the learning rate": best,
            "excess risk at the best": rows[best],
            "at every factor": [rows[factor]["mean"] for factor in FACTORS],
        }
    best_of = [excess[way][ways[way]["best factor of the learning rate"]] for way in (LAST, TAIL)]
    stated = LIPSCHITZ * DIAMETER * math.sqrt(problem.dimension) / (records * RHO)
    return {
        "loss": name,
        "private": private,
        "n": records,
        "T": steps,
        "dimension": problem.dimension,
        "noise": noise,
        "least risk": problem.least,
        "L‖C‖√p/(nρ)": stated,
        "ways": ways,
        RATIO: {
            "excess risk": ratio_of_means(excess[LAST][1.0], excess[TAIL][1.0]),
            "excess risk at the best": ratio_of_means(*best_of),
        },
    }


def tail_averaging(options: Options) -> Result:
    """Excess empirical risk over T, for every way, next to its bound and to the rate that the theorem states."""
    sizes, runs = ((32, 64), 2 * options.seeds) if options.quick else ((32, 128, 512, 2048), 5 * options.seeds)
    configuration: dict[str, Any] = {
        "ρ": RHO,
        "dimension": DIMENSION,
        "constraint": "unit ball",
        "learning rate": "factor · D/(G√t)",
        "factors": list(FACTORS),
        "runs": runs,
        "seed": SEED,
        "n": list(sizes),
    }
    cases = [(name, n, True) for name in PROBLEMS for n in sizes] + [("worst case", n, False) for n in sizes]
    with timed(Result("tail-averaging", configuration)) as result:
        rows = run_all(partial(measured, runs), cases, jobs=options.jobs, progress=options.bar("descents"))
        result.numbers = {"rows": rows}
        result.pictures = pictures(configuration, result.numbers)
    return result
