"""Noise at release, as the merge adds it: one release, a ladder of them, recipients who pool (docs/theory.md §9)."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from scipy.special import expit

from dpmerge.audit import Claim, Game
from dpmerge.profiles import FloatArray
from dpmerge.records import Weights
from dpmerge.rules import Combination
from dpmerge.tensors import Noise, NoisePath, merge_models, next_rung
from dpmerge_lab.audit.scenarios.accounts import claim, dp_sgd, weighted

_RECORDS, _CLIP = 10_000, 1.0
_FEATURE = 10.0  # of the record in question, along both parameters, so that its gradient of about 7 is clipped at every step
_TENSORS = ("weight", "bias")
_REHEARSAL = b"the attacker's own, and public.."  # the key of the noise from which the attacker learns its law
_REHEARSED = 20_000


@dataclass(frozen=True)
class NoisedReleases(Game):
    """A logistic regression with two parameters, each a tensor; its last iterate is released at one or more noise levels.

    The other records have no gradient there, so that the parameters hold the record's participations, the noise of all steps
    and that of the release. Many trainings lie side by side in a tensor and are merged at once, by the code of a release: the
    noise of two elements is independent. `root` and `noises` count the largest change that one record makes in one step. The
    attacker takes the average of all releases if these are `pooled`. Else he knows the law of the
    noise, from a path of his own, and takes the combination of releases and tensors in which there is least of it.
    """

    name: str
    about: str
    root: float  # of the path
    noises: tuple[float, ...]  # of the releases, rounded up to rungs of the path
    rate: float | None = None  # of Poisson batches; none: full ones
    steps: int = 10
    noise_multiplier: float = 1.0
    pooled: bool = False
    one_path: bool = True  # else every release has noise of its own
    learning_rate: float = 0.02
    delta: float = 1e-3
    trials: int = 200_000
    chunk: int = 50_000

    @property
    def unit(self) -> float:
        """By how much one record moves the parameters in one step, at most."""
        return self.learning_rate * _CLIP / ((self.rate or 1.0) * _RECORDS)

    @property
    def deviations(self) -> tuple[float, ...]:
        """The noises as they are added."""
        return tuple(next_rung(self.root * self.unit, noise * self.unit) for noise in self.noises)

    def trained(self) -> Weights:
        """The record of the run."""
        known: dict[str, Any] = {"clip": _CLIP, "smoothness": _FEATURE**2 / 2, "convex": "glm"}
        known["expected_batch"] = (self.rate or 1.0) * _RECORDS
        phases = [{"steps": self.steps, "learning_rate": self.learning_rate}]
        return weighted((dp_sgd("logistic", self.noise_multiplier, self.steps, rate=self.rate, phases=phases, **known), 1.0))

    def claims(self, delta: float) -> list[Claim]:
        """All releases of a path cost what the least noisy one costs; with noise of their own they are one with less of it."""
        told = "its noise at release" if len(self.noises) == 1 else "the least noisy release"
        together = float(np.sum(np.power(self.deviations, -2.0)) ** -0.5)
        if self.one_path:
            return [self._claim(told, min(self.deviations), delta)]
        refuted = replace(self._claim(told, min(self.deviations), delta), standing="refuted")
        return [refuted, self._claim("one release with the noise of their mean", together, delta)]

    def _claim(self, label: str, noise: float, delta: float) -> Claim:
        return claim(label, Combination(self.trained(), noise=noise), delta, is_gdp=self.rate is None)

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """A combination of what is released: large says that the record was there."""
        return self._weights() @ self._released(self._train(generator, trials, with_record), generator.bytes(32))

    def _train(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """Both parameters of many models."""
        state = np.zeros((2, trials))
        for _ in range(self.steps):
            total = self.noise_multiplier * _CLIP * generator.standard_normal((2, trials))
            if with_record:
                sampled = 1.0 if self.rate is None else generator.random(trials) < self.rate
                gradient = _FEATURE * expit(-_FEATURE * state.sum(axis=0)) * np.sqrt(2.0)  # its length; half its square in each
                total -= sampled * np.minimum(gradient, _CLIP) / np.sqrt(2.0)
            state -= self.learning_rate / ((self.rate or 1.0) * _RECORDS) * total
        return state

    def _released(self, models: FloatArray, key: bytes) -> FloatArray:
        """What `dpmerge merge` writes at each noise: a row for each release and tensor."""
        rows: list[FloatArray] = []
        with tempfile.TemporaryDirectory() as folder:
            trained = Path(folder, "trained")
            trained.mkdir()
            tensors = dict(zip(_TENSORS, models.astype(np.float32), strict=True))
            save_file(tensors, trained / "model.safetensors", metadata={"format": "pt"})
            for number, deviation in enumerate(self.deviations):
                own = key if self.one_path else bytes([number]) + key[1:]
                out = Path(folder, f"release-{number}")
                noise = Noise(NoisePath(own, self.root * self.unit), deviation)
                merge_models({"trained": trained}, {"trained": 1.0}, out, digests=False, threads=1, noise=noise)
                made = load_file(out / "model.safetensors")
                rows += [made[name].astype(np.float64) / self.unit for name in _TENSORS]
        return np.array(rows)

    def _weights(self) -> FloatArray:
        """Of the releases' tensors in the score, which moves by 1/√2 for each participation."""
        count = len(_TENSORS) * len(self.noises)
        if self.pooled:
            return np.full(count, 1 / count)
        noise = np.cov(self._released(np.zeros((2, _REHEARSED)), _REHEARSAL))
        training = np.kron(np.ones((len(self.noises),) * 2), self.steps * self.noise_multiplier**2 * np.eye(len(_TENSORS)))
        law = training + noise + 1e-9 * np.trace(noise) * np.eye(count)  # noise may cancel, if something is wrong with it
        found = np.linalg.solve(law, np.ones(count))
        return np.asarray(found / found.sum())


def noised_release() -> NoisedReleases:
    """One convex model with noise at release, of a rung far from the root of its path: the sum of many normals."""
    about = "One convex model with noise at release, attacked through its parameters"
    return NoisedReleases("noised-release", about, 1.0, (10.0,))


def ladder() -> NoisedReleases:
    """Four releases of one path, above and below its root, attacked together: no more than the least noisy one."""
    about = "Four releases of one convex model with one noise, attacked by their best combination"
    return NoisedReleases("ladder", about, 20.0, (20.0, 14.0, 40.0, 10.0))


def pooled_recipients() -> NoisedReleases:
    """Two recipients average their releases of one path, of a model trained on Poisson batches: it gains them nothing."""
    about = "Two recipients average their releases of one convex model, which share one noise"
    return NoisedReleases("pooled-recipients", about, 2.0, (2.0, 2.15), 0.5, 4, 0.5, pooled=True)


def pooled_independent() -> NoisedReleases:
    """Two recipients average their releases, with noise of its own in each: more than the better one."""
    return replace(
        pooled_recipients(),
        name="pooled-independent",
        about="The same with independent noise in both releases, of which the average has half",
        one_path=False,
    )
