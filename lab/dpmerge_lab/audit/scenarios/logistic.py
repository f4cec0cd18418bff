"""A combination that the transport theorem proves (docs/theory.md §3.3), on logistic regression: thousands at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Combination, Joint
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, weighted

_RECORDS = 10_000  # of each label half, all with the one feature at FEATURE
_FEATURE = 2.0  # r, so that the smoothness r²/4 is 1
_CLIP = 1.02  # above r/2, the gradient at the optimum, so that clipping almost never binds


@dataclass(frozen=True)
class TransportLogistic(Game):
    """The average of two full-batch logistic regressions on one feature: a hot run with little weight, a cold one with much.

    Common records of both labels sit at the same feature, so a run's step costs one evaluation of the logistic function for
    all of them. The record in question is one more with label 1. The hot run forgets its noise, the cold one keeps the record:
    the papers' formula counts that noise at every step in full.
    """

    weights: tuple[float, float] = (0.003, 0.997)
    learning_rates: tuple[float, float] = (0.9, 0.005)
    noise_multipliers: tuple[float, float] = (40.0, 1.2)
    steps: int = 20
    name: str = "transport-logistic"
    about: str = "The average of two full-batch logistic regressions, proved by transport, attacked through its parameter"
    delta: float = 1e-5
    trials: int = 1_000_000
    chunk: int = 50_000

    def average(self) -> Weights:
        """The records."""
        facts: dict[str, Any] = {
            "clip": _CLIP,
            "expected_batch": float(_RECORDS),
            "smoothness": _FEATURE**2 / 4,
            "convex": "glm",
        }
        models = [
            dp_sgd(name, noise, self.steps, phases=[{"steps": self.steps, "learning_rate": rate}], **facts)
            for name, noise, rate in zip(("hot", "cold"), self.noise_multipliers, self.learning_rates, strict=True)
        ]
        return weighted(*zip(models, self.weights, strict=True))

    def claims(self, delta: float) -> list[Claim]:
        """The papers' formula, transport, joint release, and what holds if nothing else of the runs is ever published."""
        given = self.average()
        formula = Combination(given, assume_smoothness=0)
        return [
            claim("the papers' formula", formula, delta, "refuted", is_gdp=True),
            claim("transport", Combination(given, only_release=False), delta, is_gdp=True),
            claim("hidden runs", Combination(given), delta, is_gdp=True),
            claim("joint release", Joint(given), delta, is_gdp=True),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The averaged parameter."""
        merged = np.zeros(trials)
        settings = zip(self.weights, self.learning_rates, self.noise_multipliers, strict=True)
        for weight, rate, noise in settings:
            state = np.zeros(trials)
            for _ in range(self.steps):
                slope = _FEATURE * expit(_FEATURE * state)  # the gradient of label 0; that of label 1 is r below it
                zero, one = (np.clip(gradient, -_CLIP, _CLIP) for gradient in (slope, slope - _FEATURE))
                total = _RECORDS / 2 * (zero + one) + float(with_record) * one
                state = state - rate / _RECORDS * (total + noise * _CLIP * generator.standard_normal(trials))
            merged = merged + weight * state
        return merged


def transport_logistic() -> TransportLogistic:
    """The average of two full-batch logistic regressions: transport holds, the papers' formula does not."""
    return TransportLogistic()
