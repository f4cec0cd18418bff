"""DP-FTRL: all prefix sums of a stream, with the noise that the lab's trainings add (docs/theory.md §1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray, gaussian_epsilon
from dpmerge.rules import Joint
from dpmerge_lab.audit.scenarios.accounts import claim, even, model
from dpmerge_lab.training.banded_noise import BandedNoise
from dpmerge_lab.training.tree_noise import TreeNoise


@dataclass(frozen=True)
class PrefixSums(Game):
    """The record adds 1 to the sum of each step that it takes part in, or nothing (zero-out); every prefix sum is released."""

    steps: int = 7
    separation: int | None = None
    noise_multiplier: float = 2.0
    name: str = "tree-aggregation"
    about: str = "Prefix sums by tree aggregation, with the record in the first step, which is in a node of every height"
    delta: float = 1e-5
    trials: int = 1_000_000
    chunk: int = 100_000
    _score: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """The likelihood ratio of a Gaussian vector is that of one number: its product with Σ⁻¹ times the record's effect."""
        drawn = iter(np.eye(2 * self.steps))
        noise = np.array(self._noise(lambda: next(drawn)))
        weights = np.linalg.solve(noise @ noise.T, self._effect())
        object.__setattr__(self, "_score", weights / np.sqrt(weights @ noise @ noise.T @ weights) / self.noise_multiplier)

    def _noise(self, draw: Callable[[], Any]) -> list[Any]:
        """Of each prefix sum, as trainings draw it."""
        if self.separation is None:
            tree = TreeNoise(draw, variance_reduced=False)
            return [tree.prefix() for _ in range(self.steps)]
        return [*accumulate(BandedNoise.square_root(self.steps, self.separation).increments(draw))]

    def _effect(self) -> FloatArray:
        """Of the record on the prefix sums: once in the tree, else as often as the separation lets it."""
        taken = np.zeros(self.steps)
        taken[:: self.separation or self.steps] = 1.0
        return np.cumsum(taken)

    def claims(self, delta: float) -> list[Claim]:
        """The theorem; and by who counts the noise of one sum."""
        stated = {"noise_multiplier": self.noise_multiplier, "steps": self.steps, "restarts": 0, "separation": self.separation}
        run = model("run", {"kind": "dp-ftrl", "run": "one", "noise_fingerprint": "noise", **stated}, "zero-out")
        mu = 1 / self.noise_multiplier
        return [
            Claim("each record counts once", "refuted", partial(gaussian_epsilon, mu), mu),
            claim(self.name, Joint(even(run)), delta, is_gdp=True),
        ]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """What tells most of all prefix sums together."""
        noise = self._noise(lambda: self.noise_multiplier * generator.standard_normal(trials))
        effects = self._effect() if with_record else np.zeros(self.steps)
        return np.asarray(sum(one * (effect + y) for one, effect, y in zip(self._score, effects, noise, strict=True)))


def tree_aggregation() -> PrefixSums:
    """DP-FTRL by tree aggregation: all prefix sums, against counting the record in one node."""
    return PrefixSums()


def banded_matrix() -> PrefixSums:
    """DP-FTRL with the noise of a banded matrix: all prefix sums, of which the record is in every other step."""
    about = "Prefix sums with the noise of a banded matrix, with the record in every other step"
    return PrefixSums(steps=8, separation=2, name="banded-matrix", about=about)
