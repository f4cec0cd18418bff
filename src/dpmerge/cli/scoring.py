"""Scores of averages with noise, for `dpmerge frontier --evaluate`: nothing is released by them."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dpmerge.tensors import MergedScore, Noise, NoisePath, merge_models


@dataclass(frozen=True)
class NoisyScore(MergedScore):
    """Scores of combinations, which can also be drawn with noise; `without` are the tensors that a release would spare."""

    without: frozenset[str] = frozenset()

    def noised(self, weights: tuple[float, ...], noise: float) -> float:
        """The score with fresh noise of this standard deviation on every trained parameter; another one each time."""
        drawn = Noise(NoisePath(secrets.token_bytes(32), noise), noise, self.without)
        with tempfile.TemporaryDirectory(prefix="dpmerge-") as folder:
            merged = Path(folder) / "merged"
            named = dict(zip(self.folders, weights, strict=True))
            merge_models(self.folders, named, merged, digests=False, threads=1, noise=drawn)
            return MergedScore({"average with noise": merged}, self.evaluator, self.fingerprint)((1.0,))
