"""Differentially Private Model Merging §8.1: the mean of 100 clipped normal samples, released twice, drawn or averaged.

The papers state neither the two noises nor the sensitivity. Here n is public and neighbours replace one record, so the mean of
values in [−1, 1] has sensitivity 2/n, and the noises are one and five times that. Random selection is accounted as the
papers do (Rényi divergences with their conversion, loss distributions) and by the law of what is released, which holds as
long as nobody learns which model was drawn (docs/theory.md §3.4).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import norm

from dpmerge.jobs import run_all
from dpmerge.profiles import FloatArray, epsilon_from_renyi
from dpmerge.records import Adjacency, Model, Portfolio, Record
from dpmerge.rules import Combination, Joint, Selection
from dpmerge.training import fresh_generator
from dpmerge_lab.experiments.mean_estimation_pictures import pictures
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed
from dpmerge_lab.hidden_selection import HiddenSelection

DELTA = 1e-5


@dataclass(frozen=True)
class Setting:
    """n samples of N(0, 1), clipped to [−1, 1]; a precise and a noisy release of their mean."""

    samples: int = 100
    deviations: tuple[float, float] = (0.02, 0.1)

    @property
    def sensitivity(self) -> float:
        """Of the mean, if one record is replaced."""
        return 2 / self.samples

    @property
    def sampling_error(self) -> float:
        """The mean squared error without privacy: the variance of a clipped sample over n. The mean is 0, clipped or not."""
        inside = (2 * ndtr(1.0) - 1) - 2 * norm.pdf(1.0)
        return float((inside + 2 * ndtr(-1.0)) / self.samples)

    @property
    def portfolio(self) -> Portfolio:
        """The two releases."""
        return Portfolio(
            tuple(gaussian_model(f"σ = {s:g}", self.sensitivity, s, "replace-one", dimension=1) for s in self.deviations)
        )

    def selection_noise(self, weight: float) -> float:
        """The variance of the noise in a draw that is the precise release with this probability."""
        precise, noisy = self.deviations
        return weight * precise**2 + (1 - weight) * noisy**2

    def combination_noise(self, weight: float) -> float:
        """The variance of the noise in an average with this weight on the precise release."""
        precise, noisy = self.deviations
        return (weight * precise) ** 2 + ((1 - weight) * noisy) ** 2

    @property
    def best_weight(self) -> float:
        """Of the average with the least noise; it reveals as much as both releases together."""
        precise, noisy = self.deviations
        return noisy**2 / (precise**2 + noisy**2)

    def weight_of_equal_error(self, noise: float) -> float:
        """The smaller weight at which an average has this variance (between the least possible and the noisy release's)."""
        precise, noisy = self.deviations
        spread = precise**2 + noisy**2
        root = math.sqrt(max(0.0, noisy**4 - spread * (noisy**2 - noise)))
        return min(1.0, max(0.0, (noisy**2 - root) / spread))


def gaussian_model(
    name: str, sensitivity: float, noise_std: float, adjacency: Adjacency, dimension: int | None = None
) -> Model:
    """One Gaussian mechanism."""
    mechanism = {"kind": "gaussian", "sensitivity": sensitivity, "noise_std": noise_std, "dimension": dimension}
    record = {"schema": 1, "dataset": "synthetic", "adjacency": adjacency, "mechanism": mechanism}
    return Model(name, Record.parse(json.dumps(record), source=name))


def mean_estimation(options: Options) -> Result:
    """ε and error of draws and averages over their weights, in closed form and measured."""
    setting = Setting()
    repetitions = 20_000 if options.quick else 200_000
    configuration = {
        "samples": setting.samples,
        "data": "N(0, 1), clipped to [-1, 1], drawn afresh in every repetition",
        "adjacency": "replace-one",
        "sensitivity": setting.sensitivity,
        "noise_std": list(setting.deviations),
        "delta": DELTA,
        "seeds": options.seeds,
        "repetitions of each seed": repetitions,
        "rdp conversion": "the papers'",
    }
    with timed(Result("mean-estimation", configuration)) as result:
        weights = _weights(options.quick)
        accounted = run_all(partial(_account, setting), weights.tolist(), jobs=options.jobs, progress=options.bar("weights"))
        measured = run_all(
            partial(_measure, setting, weights, repetitions),
            list(range(options.seeds)),
            jobs=options.jobs,
            progress=options.bar("seeds"),
        )
        result.numbers = _numbers(setting, weights, accounted, measured)
        result.pictures = pictures(result.configuration, result.numbers)
    return result


def _weights(quick: bool) -> FloatArray:
    """Of the precise release: evenly, and closer to 0 and 1, where the loss distribution of a draw changes most."""
    close = np.geomspace(1e-7, 1e-2, 4 if quick else 16)
    even = np.linspace(0.05, 0.95, 7) if quick else np.linspace(0.02, 0.98, 49)
    return np.unique(np.concatenate(([0.0, 1.0], close, even, 1 - close)))


def _account(setting: Setting, weight: float) -> dict[str, dict[str, float]]:
    """ε of a draw and of an average with this weight, and of the average whose error is that of the draw."""
    given = setting.portfolio.weights_in_order((weight, 1 - weight))
    match = setting.weight_of_equal_error(setting.selection_noise(weight))
    equal = setting.portfolio.weights_in_order((match, 1 - match))
    return {
        "selection": {
            "rdp": Selection(given).guarantee(delta=DELTA, by="rdp", conversion="paper").epsilon,
            "pld": Selection(given).guarantee(delta=DELTA, by="pld").epsilon,
            "exact": HiddenSelection(given).guarantee(delta=DELTA).epsilon,
        },
        "combination": _both(Combination(given)),
        "equal error": _both(Combination(equal)) | {"weight": match},
    }


def _both(rule: Combination | Joint) -> dict[str, float]:
    return {
        "rdp": rule.guarantee(delta=DELTA, by="rdp", conversion="paper").epsilon,
        "pld": rule.guarantee(delta=DELTA, by="pld").epsilon,
    }


def _measure(setting: Setting, weights: FloatArray, repetitions: int, seed: int) -> dict[str, list[float]]:
    """Mean squared errors over repetitions with fresh data, noise and draws (a seed is only a number)."""
    generator = fresh_generator()
    totals = {"selection": np.zeros(len(weights)), "combination": np.zeros(len(weights))}
    for size in [10_000] * (repetitions // 10_000):
        means = np.clip(generator.standard_normal((size, setting.samples)), -1, 1).mean(axis=1)
        precise, noisy = (means + s * generator.standard_normal(size) for s in setting.deviations)
        drawn = generator.random(size)
        for index, weight in enumerate(weights):
            totals["selection"][index] += np.sum(np.where(drawn < weight, precise, noisy) ** 2)
            totals["combination"][index] += np.sum((weight * precise + (1 - weight) * noisy) ** 2)
    return {rule: (total / repetitions).tolist() for rule, total in totals.items()}


def _numbers(setting: Setting, weights: FloatArray, accounted: list[Any], measured: list[Any]) -> dict[str, Any]:
    """Everything that was computed, and the comparisons that the papers make."""
    base, noise = setting.sampling_error, {"selection": setting.selection_noise, "combination": setting.combination_noise}
    numbers: dict[str, Any] = {
        "error without privacy": base,
        "alone": {
            name: _both(Joint(setting.portfolio.weights({name: 1.0}))) | {"error": base + s**2}
            for name, s in zip(setting.portfolio.names, setting.deviations, strict=True)
        },
        "joint release": _both(Joint(setting.portfolio.weights_in_order((0.5, 0.5))))
        | {"best weight": setting.best_weight, "error": base + setting.combination_noise(setting.best_weight)},
    }
    for rule, variance in noise.items():
        numbers[rule] = {
            "weight": weights.tolist(),
            **{by: [point[rule][by] for point in accounted] for by in accounted[0][rule]},
            "error": [base + variance(weight) for weight in weights.tolist()],
            "measured error": mean_and_deviation([one[rule] for one in measured]),
        }
    equal = {by: [point["equal error"][by] for point in accounted] for by in accounted[0]["equal error"]}
    numbers["combination of the same error as selection"] = equal
    numbers["renyi"] = _renyi(setting, 0.5)
    numbers["comparisons"] = _comparisons(numbers, equal)
    return numbers


def _comparisons(numbers: dict[str, Any], equal: dict[str, list[float]]) -> dict[str, Any]:
    """What the papers claim, as ratios; the two single releases, where everything agrees, are left out."""
    weight = np.array(numbers["selection"]["weight"])
    inner = (weight > 0) & (weight < 1)
    drawn = {by: np.array(numbers["selection"][by])[inner] for by in ("rdp", "pld", "exact")}
    averaged = {by: np.array(numbers["combination"][by])[inner] for by in ("rdp", "pld")}
    matched = {by: np.array(equal[by])[inner] for by in ("rdp", "pld")}
    ratio = drawn["exact"] / matched["pld"]
    best = int(np.argmin(ratio))
    off = [
        float(np.max(np.abs(np.array(numbers[rule]["measured error"]["mean"]) / np.array(numbers[rule]["error"]) - 1)))
        for rule in ("selection", "combination")
    ]
    orders, selection, combination = (np.array(numbers["renyi"][key]) for key in ("order", "selection", "combination"))
    below = orders[selection < combination]
    return {
        "largest PLD ε / RDP ε of selection": float(np.max(drawn["pld"] / drawn["rdp"])),
        "largest PLD ε / RDP ε of combination": float(np.max(averaged["pld"] / averaged["rdp"])),
        "largest combination ε / selection ε at equal error, RDP": float(np.max(matched["rdp"] / drawn["rdp"])),
        "largest combination ε / selection ε at equal error, PLD": float(np.max(matched["pld"] / drawn["pld"])),
        "smallest exact selection ε / combination ε at equal error": float(ratio[best]),
        "reached at weight": float(weight[inner][best]),
        "largest exact selection ε / combination ε at equal error": float(np.max(ratio)),
        "largest relative difference of measured and true error": max(off),
        "first order at which exact selection has the smaller Rényi divergence": float(below[0]) if below.size else None,
    }


def _renyi(setting: Setting, weight: float) -> dict[str, Any]:
    """Lemma 4.1 beyond small sensitivities: D_α of a draw, its bound by Thm 5.1, and D_α of an average of equal error."""
    orders = np.concatenate((np.linspace(1.1, 4, 30), np.geomspace(4.2, 100, 40)))
    spread, mu = setting.selection_noise(weight), setting.sensitivity / np.array(setting.deviations)
    shares = np.array([weight, 1 - weight])[:, None]
    bound = logsumexp((orders - 1) * orders * mu[:, None] ** 2 / 2, axis=0, b=shares) / (orders - 1)
    curves = {
        "selection": np.array([_released_renyi(setting, weight, float(order)) for order in orders]),
        "selection, bound": bound,
        "combination": orders * setting.sensitivity**2 / (2 * spread),
    }
    return {
        "weight": weight,
        "order": orders.tolist(),
        **{name: curve.tolist() for name, curve in curves.items()},
        "ε by these orders": {
            name: float(np.min(epsilon_from_renyi(orders, curve, DELTA, "paper"))) for name, curve in curves.items()
        },
    }


def _released_renyi(setting: Setting, weight: float, order: float) -> float:
    """D_α of the mixture of two centred normals and the same moved by the sensitivity, by the trapezoid rule."""
    reach = 14 * max(setting.deviations)
    x = np.arange(-order * setting.sensitivity - reach, setting.sensitivity + reach, min(setting.deviations) / 50)
    shares = np.array([[weight], [1 - weight]])
    deviations = np.array(setting.deviations)[:, None]
    p, q = (logsumexp(norm.logpdf(at, scale=deviations), axis=0, b=shares) for at in (x, x - setting.sensitivity))
    return float((logsumexp(order * p + (1 - order) * q) + math.log(x[1] - x[0])) / (order - 1))
