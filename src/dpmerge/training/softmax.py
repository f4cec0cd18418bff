"""DP-SGD for softmax regression in numpy: per-example gradient norms in closed form, so no per-example gradient is kept.

The gradient of one example is (p − y) ⊗ x with the bias in x as a last 1, so its norm is ‖p − y‖·‖x‖, and a sum of clipped
gradients is one matrix product.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmerge.records import Record

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recipe:
    """How a run is made. Poisson sampling with `rate`; noise with standard deviation noise_multiplier · clip on the sum."""

    steps: int
    rate: float
    learning_rate: float
    clip: float
    noise_multiplier: float


def train(
    images: FloatArray, labels: npt.NDArray[np.int64], classes: int, recipe: Recipe, dataset: str, run: str
) -> tuple[dict[str, npt.NDArray[np.float32]], Record]:
    """A private softmax regression and its record. Every row of `images` has norm at most 1.

    Noise and batches come from two generators seeded by the operating system; the record keeps a fingerprint of each one's
    first state, by which two runs with the same randomness are recognised.
    """
    noise, sampler = _fresh_generator(), _fresh_generator()
    fingerprints = [_fingerprint(generator) for generator in (noise, sampler)]
    features = np.hstack([images, np.ones((len(labels), 1))])
    norms = np.linalg.norm(features, axis=1)
    expected = recipe.rate * len(labels)
    weights = np.zeros((classes, features.shape[1]))
    for _ in range(recipe.steps):
        batch = np.flatnonzero(sampler.random(len(labels)) < recipe.rate)
        x = features[batch]
        errors = _softmax(x @ weights.T)
        errors[np.arange(batch.size), labels[batch]] -= 1
        sizes = np.linalg.norm(errors, axis=1) * norms[batch]
        errors *= np.minimum(1.0, recipe.clip / np.maximum(sizes, 1e-300))[:, None]
        total = errors.T @ x + recipe.noise_multiplier * recipe.clip * noise.standard_normal(weights.shape)
        weights -= recipe.learning_rate * total / expected
    tensors = {"weight": weights[:, :-1].astype(np.float32), "bias": weights[:, -1].astype(np.float32)}
    return tensors, _record(recipe, expected, dataset, run, *fingerprints)


def save(folder: Path, tensors: dict[str, npt.NDArray[np.float32]], record: Record) -> None:
    """`model.safetensors` and `record.json` in a new folder."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "record.json").write_text(record.model_dump_json(by_alias=True, indent=1) + "\n")


def _record(recipe: Recipe, expected: float, dataset: str, run: str, noise: str, sampler: str) -> Record:
    """Features with the bias have norm at most r = √2: smoothness r²/2 = 1, and clipping at 2 = √2·r or more never binds."""
    mechanism = {
        "kind": "dp-sgd",
        "run": run,
        "noise_fingerprint": noise,
        "sampler_fingerprint": sampler,
        "optimizer": "sgd",
        "sampling": {"scheme": "poisson", "rate": recipe.rate},
        "expected_batch": expected,
        "noise_multiplier": recipe.noise_multiplier,
        "clip": recipe.clip,
        "clipping": "flat",
        "phases": [{"steps": recipe.steps, "learning_rate": recipe.learning_rate}],
        "smoothness": 1.0,
        "convex": "unclipped" if recipe.clip >= 2.0 else None,
    }
    content = {"schema": 1, "dataset": dataset, "adjacency": "add-remove", "mechanism": mechanism}
    return Record.parse(json.dumps(content), source=run)


def _softmax(scores: FloatArray) -> FloatArray:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True)) if scores.size else scores
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True)) if scores.size else scores


def _fresh_generator() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(secrets.randbits(256)))


def _fingerprint(generator: np.random.Generator) -> str:
    return hashlib.sha256(repr(generator.bit_generator.state).encode()).hexdigest()[:32]
