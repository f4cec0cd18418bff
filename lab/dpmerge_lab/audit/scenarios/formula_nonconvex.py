"""The papers' formula for linear combinations, refuted by gradients that jump (docs/theory.md §3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Combination, Joint
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, weighted


@dataclass(frozen=True)
class FormulaNonconvex(Game):
    """Two DP-GD runs from 0 with C = η = 1; the merged model is released (add-remove).

    "quiet": the record adds C at every step, all others nothing. "torn": every other record has the loss −|θ − τ|, flat at
    exactly θ = 0, so the noise of the first step and the record decide the direction of all later steps.
    """

    steps: int = 30
    records: int = 10_000
    weights: tuple[float, float] = (0.98, 0.02)
    noise_multipliers: tuple[float, float] = (40.0, 0.5)
    torn_at: float = 0.9  # τ in units of what the record moves a step by
    name: str = "formula-nonconvex"
    about: str = "Two models, averaged, one of which is torn two ways: the papers' formula against simulation"
    delta: float = 1e-5
    trials: int = 400_000

    def claims(self, delta: float) -> list[Claim]:
        """The formula, and what is proved of gradients of which nothing is known."""
        recorded = self._recorded()
        return [
            claim("the papers' formula", Combination(recorded, assume_smoothness=0), delta, "refuted", is_gdp=True),
            claim("linear combination", Combination(recorded), delta, is_gdp=True),
            claim("joint release", Joint(recorded), delta, is_gdp=True),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """The merged models.

        Their likelihood ratio jumps up with the side that "torn" took; within a side it increases, but for details far below
        the noise.
        """
        record, others = float(with_record) / self.records, (self.records - 1) / self.records
        quiet_noise, torn_noise = (sigma / self.records for sigma in self.noise_multipliers)
        quiet, torn = np.zeros(trials), np.zeros(trials)
        for _ in range(self.steps):
            quiet += record + quiet_noise * generator.standard_normal(trials)
            away = np.where(torn == 0, 0.0, np.sign(torn - self.torn_at / self.records))
            torn += record + others * away + torn_noise * generator.standard_normal(trials)
        return self.weights[0] * quiet + self.weights[1] * torn

    def _recorded(self) -> Weights:
        """Nothing of smoothness, since the gradients jump."""
        parts = zip(("quiet", "torn"), self.weights, self.noise_multipliers, strict=True)
        batch = float(self.records)
        return weighted(*((dp_sgd(name, sigma, self.steps, expected_batch=batch), weight) for name, weight, sigma in parts))


def formula_nonconvex() -> FormulaNonconvex:
    """Two models, averaged, one of which is torn two ways: the papers' formula against simulation."""
    return FormulaNonconvex()
