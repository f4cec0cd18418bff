"""The papers' formula for linear combinations, refuted where everything is convex and in closed form (docs/theory.md §3.2).

The formula counts the noise of the "hot" run in full at every step; but that run forgets its noise, as its step map contracts
by 1 − ηb = 0.26, while the "cold" run remembers the record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray, gaussian_epsilon
from dpmerge.records import Model, Weights
from dpmerge.rules import Combination, Joint
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, weighted


@dataclass(frozen=True)
class FormulaConvex(Game):
    """Two DP-GD runs of one-dimensional least squares from 0, C = 1; the merged model is released (add-remove).

    All but one of the records have gradient bθ. The record in question is far away: its gradient is always clipped to −C.
    """

    curvature: float = 0.39433266
    steps: int = 35
    records: int = 10_000
    weights: tuple[float, float] = (0.0048878, 0.9951122)
    rates: tuple[float, float] = (1.88367154, 0.01423987)
    noise_multipliers: tuple[float, float] = (18.38919366, 0.32363778)
    name: str = "formula-convex"
    about: str = "Two least-squares models, averaged: the papers' formula against the exact law"
    delta: float = 1e-5
    trials: int = 200_000

    def claims(self, delta: float) -> list[Claim]:
        """The formula, what is proved with and without smoothness, and the law itself."""
        known, unknown = self._recorded(self.curvature), self._recorded(None)
        exact = self.exact_mu()
        return [
            claim("the papers' formula", Combination(unknown, assume_smoothness=0), delta, "refuted", is_gdp=True),
            Claim("the exact law of the two worlds", "proved", partial(gaussian_epsilon, exact), exact),
            claim("linear combination", Combination(known), delta, is_gdp=True),
            claim("linear combination, smoothness unknown", Combination(unknown), delta, is_gdp=True),
            claim("joint release", Joint(unknown), delta, is_gdp=True),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The merged models: Gaussian of one variance in both worlds, so their likelihood ratio increases with them."""
        merged = np.zeros(trials)
        for weight, rate, sigma in zip(self.weights, self.rates, self.noise_multipliers, strict=True):
            model = np.zeros(trials)
            for _ in range(self.steps):
                gradients = (self.records - 1) * np.clip(self.curvature * model, -1.0, 1.0) - float(with_record)
                model -= rate * (gradients + sigma * generator.standard_normal(trials)) / self.records
            merged += weight * model
        return merged

    def exact_mu(self) -> float:
        """Clipping never binds on the common records (it would at hundreds of standard deviations): θ ← (1 − ηb′)θ + … ."""
        shift = variance = 0.0
        for weight, rate, sigma in zip(self.weights, self.rates, self.noise_multipliers, strict=True):
            kept = 1 - rate * self.curvature * (self.records - 1) / self.records
            powers = kept ** np.arange(self.steps)
            shift += weight * rate / self.records * float(powers.sum())
            variance += (weight * rate * sigma / self.records) ** 2 * float((powers**2).sum())
        return shift / math.sqrt(variance)

    def _recorded(self, smoothness: float | None) -> Weights:
        """Both runs; if their smoothness is known, so is that the model is linear."""
        convex = None if smoothness is None else "glm"
        parts = zip(("hot", "cold"), self.weights, self.rates, self.noise_multipliers, strict=True)
        return weighted(*((self._run(name, sigma, rate, smoothness, convex), weight) for name, weight, rate, sigma in parts))

    def _run(self, name: str, sigma: float, rate: float, smoothness: float | None, convex: str | None) -> Model:
        phases = [{"steps": self.steps, "learning_rate": rate}]
        batch = float(self.records)
        return dp_sgd(name, sigma, self.steps, phases=phases, expected_batch=batch, smoothness=smoothness, convex=convex)


def formula_convex() -> FormulaConvex:
    """Two least-squares models, averaged: the papers' formula against the exact law."""
    return FormulaConvex()
