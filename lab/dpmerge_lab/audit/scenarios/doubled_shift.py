"""A record replaced, Poisson sampling, two runs averaged: the mixture with doubled shifts is no bound (docs/theory.md §3.3).

Under add-remove a merged step is a mixture of shifts against none. Doubling the shifts looks like the natural analogue for
replaced records; but then the coins are at work in both worlds, in opposite directions. At a large δ the analogue falls short.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray, MixtureLaw, Profile, ShiftLaw, sum_of_coins
from dpmerge.records import Model, Weights
from dpmerge.rules import Combination, Joint
from dpmerge_lab.audit.scenarios.accounts import dp_sgd, even
from dpmerge_lab.audit.scores import mixture_log_ratio


@dataclass(frozen=True)
class DoubledShift(Game):
    """One step of two runs with η = 1, averaged half and half; the record has gradients −C, the one in its place +C.

    All others have gradient 0. Batches are Poisson: each run has a coin for the record, the same law in both worlds.
    """

    clips: tuple[float, float] = (1.8, 0.9)
    noise_multipliers: tuple[float, float] = (0.2, 1.6)
    rates: tuple[float, float] = (0.3, 0.9)
    records: int = 1_000
    name: str = "doubled-shift"
    about: str = "A record replaced, two Poisson-sampled models averaged: doubled shifts against the law of the average"
    delta: float = 0.45
    trials: int = 400_000
    chunk: int = 50_000

    def claims(self, delta: float) -> list[Claim]:
        """Doubled shifts, as add-remove has them; the coins revealed; and each run's own law, both released."""
        coins = [ShiftLaw.coin(2 * shift, rate) for shift, rate in zip(self.shifts(), self.rates, strict=True)]
        doubled = Profile.of([(MixtureLaw.of(sum_of_coins(coins, 0.0)), 1)])
        recorded = self._recorded()
        merged, joint = (rule.guarantee(delta=delta) for rule in (Combination(recorded), Joint(recorded)))
        return [  # numbers: curves from δ = 0.45 on would take long, and say little
            Claim("the mixture with doubled shifts", "refuted", doubled.epsilon(delta)),
            Claim("linear combination", merged.standing, merged.epsilon),
            Claim("joint release", joint.standing, joint.epsilon),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """log of the likelihood ratio of the average, a mixture over both coins."""
        merged = np.zeros(trials)
        for clip, sigma, rate in zip(self.clips, self.noise_multipliers, self.rates, strict=True):
            gradient = (-clip if with_record else clip) * (generator.random(trials) < rate)
            merged -= 0.5 * (gradient + sigma * clip * generator.standard_normal(trials)) / (rate * self.records)
        return self._log_ratio(merged / self._noise())

    def _log_ratio(self, merged: FloatArray) -> FloatArray:
        """In units of the merged noise."""
        parts = [((0.0, shift), (1 - rate, rate)) for shift, rate in zip(self.shifts(), self.rates, strict=True)]
        means = np.array([sum(shifts) for shifts in itertools.product(*(part[0] for part in parts))])
        chances = [math.prod(chance) for chance in itertools.product(*(part[1] for part in parts))]
        ones = np.ones(means.size)
        return mixture_log_ratio(merged, (chances, means, ones), (chances, -means, ones))

    def _effects(self) -> list[float]:
        """What one record does to the average, by its run."""
        return [0.5 * clip / (rate * self.records) for clip, rate in zip(self.clips, self.rates, strict=True)]

    def _noise(self) -> float:
        return math.hypot(*(effect * sigma for effect, sigma in zip(self._effects(), self.noise_multipliers, strict=True)))

    def shifts(self) -> list[float]:
        """The same in units of the merged noise."""
        return [effect / self._noise() for effect in self._effects()]

    def _recorded(self) -> Weights:
        runs = zip(("rare", "frequent"), self.clips, self.noise_multipliers, self.rates, strict=True)
        return even(*(self._run(*run) for run in runs))

    def _run(self, name: str, clip: float, sigma: float, rate: float) -> Model:
        batch = rate * self.records
        return dp_sgd(name, sigma, 1, rate=rate, adjacency="replace-one", clip=clip, expected_batch=batch)


def doubled_shift() -> DoubledShift:
    """A record replaced, two Poisson-sampled models averaged: doubled shifts against the law of the average."""
    return DoubledShift()
