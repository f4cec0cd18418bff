"""DP-SGD for softmax and logistic regression in numpy: per-example gradient norms in closed form.

The gradient of one example is (p − y) ⊗ x, with the bias in x as a last 1, so its norm is ‖p − y‖·‖x‖, and a sum of clipped
gradients is one matrix product: no per-example gradient is ever kept. Features are bounded in norm beforehand, example by
example, so the record can state the loss' smoothness, and whether clipping ever binds, as facts.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.records import Record
from dpmerge.training.randomness import fingerprint, fresh_generator

Loss = Literal["softmax", "logistic"]
Tensors = dict[str, npt.NDArray[np.float32]]
_ROWS = 8192  # of the full batch at a time: their scores stay in cache
# Norms and products are rounded to 24 bits; clipping by this much more keeps every contribution within the clip.
_MARGIN = 1 - 1e-5


@dataclass(frozen=True)
class Recipe:
    """How a run is made: Poisson batches with `rate`, or full ones without; noise of σ·clip on the sum of gradients.

    The learning rate climbs linearly to its peak over `warmup` steps, and with `decay` falls linearly towards 0 after.
    """

    steps: int
    learning_rate: float
    clip: float
    noise_multiplier: float
    rate: float | None = None
    warmup: int = 0
    decay: bool = False
    loss: Loss = "softmax"

    def __post_init__(self) -> None:
        faults = [
            (self.steps < 1, "steps must be at least 1"),
            (not self.learning_rate > 0, "learning_rate must be positive"),
            (not self.clip > 0, "clip must be positive"),
            (not self.noise_multiplier >= 0, "noise_multiplier must not be negative"),
            (self.rate is not None and not 0 < self.rate <= 1, "rate must lie in (0, 1]"),
            (not 0 <= self.warmup <= self.steps, "warmup must lie between 0 and steps"),
        ]
        for wrong, text in faults:
            if wrong:
                raise TrainingError(f"{text}: {self}")

    def learning_rates(self) -> list[float]:
        """One for each step."""
        rates = []
        for step in range(self.steps):
            if step < self.warmup:
                rates.append(self.learning_rate * (step + 1) / self.warmup)
            elif self.decay:
                rates.append(self.learning_rate * (self.steps - step) / (self.steps - self.warmup))
            else:
                rates.append(self.learning_rate)
        return rates


@dataclass(frozen=True)
class Checkpoint:
    """A model after so many steps, and the record of the run up to there."""

    step: int
    tensors: Tensors
    record: Record

    def save(self, folder: Path) -> None:
        """`model.safetensors` and `record.json` in a new folder."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True)
        contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in self.tensors.items()}
        save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "record.json").write_text(self.record.model_dump_json(by_alias=True, indent=1) + "\n")


def bounded_features(inputs: npt.NDArray[Any], norm_bound: float) -> npt.NDArray[np.float32]:
    """The inputs with a last column of ones, each row shortened to norm `norm_bound` at most, the 1 included."""
    if not norm_bound > 1:
        raise TrainingError(f"norm_bound is {norm_bound}; it includes the bias, so it must exceed 1")
    rows = np.asarray(inputs, dtype=np.float32).reshape(len(inputs), -1)
    if not np.isfinite(rows).all():
        raise TrainingError("the inputs hold NaN or infinite values")
    longest = math.sqrt(norm_bound**2 - 1) * _MARGIN
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    scaled = rows * np.minimum(1.0, longest / np.maximum(norms, 1e-300))[:, None].astype(np.float32)
    return np.hstack([scaled, np.ones((len(rows), 1), dtype=np.float32)])


def train(
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    classes: int,
    recipe: Recipe,
    *,
    norm_bound: float,
    dataset: str,
    run: str | None = None,
    checkpoints: Iterable[int] = (),
) -> list[Checkpoint]:
    """A private linear model after the steps asked for, and at the end. `features` are from `bounded_features`.

    Noise and batches come from two generators seeded by the operating system; the record keeps a fingerprint of the first
    state of each, by which two runs with the same randomness are recognised.
    """
    wanted = sorted({*checkpoints, recipe.steps})
    if wanted[0] < 1 or wanted[-1] > recipe.steps:
        raise TrainingError(f"checkpoints must lie between 1 and {recipe.steps} steps; asked for {wanted}")
    outputs = _outputs(recipe.loss, classes)
    targets = _targets(labels, classes, outputs, len(features))
    noise, sampler = fresh_generator(), fresh_generator()
    fingerprints = (fingerprint(noise), fingerprint(sampler))
    identity = run or f"linear-{secrets.token_hex(8)}"
    expected = float(len(features)) if recipe.rate is None else recipe.rate * len(features)
    norms = np.linalg.norm(features, axis=1)
    weights = np.zeros((outputs, features.shape[1]))
    rates = recipe.learning_rates()
    found = []
    for step, learning_rate in enumerate(rates, start=1):
        batch = slice(None) if recipe.rate is None else np.flatnonzero(sampler.random(len(features)) < recipe.rate)
        total = _clipped_sum(features[batch], targets[batch], norms[batch], weights.astype(np.float32), recipe)
        total += recipe.noise_multiplier * recipe.clip * noise.standard_normal(weights.shape)
        weights -= learning_rate / expected * total
        if step in wanted:
            record = _record(recipe, rates[:step], expected, norm_bound, dataset, identity, *fingerprints)
            found.append(Checkpoint(step, _named(weights), record))
    return found


def scores(tensors: Tensors, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the model says of each row, one column for each output."""
    return np.asarray(features[:, :-1] @ tensors["weight"].T + tensors["bias"])


def accuracy(tensors: Tensors, features: npt.NDArray[np.float32], labels: npt.NDArray[Any]) -> float:
    """The share of rows labelled rightly."""
    said = scores(tensors, features)
    predicted = said.argmax(axis=1) if said.shape[1] > 1 else (said[:, 0] > 0).astype(np.int64)
    return float(np.mean(predicted == np.asarray(labels)))


def _clipped_sum(
    features: npt.NDArray[np.float32],
    targets: npt.NDArray[np.float32],
    norms: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
    recipe: Recipe,
) -> npt.NDArray[np.float64]:
    total = np.zeros(weights.shape)
    for start in range(0, len(features), _ROWS):
        part = slice(start, start + _ROWS)
        x = features[part]
        errors = _probabilities(x @ weights.T) - targets[part]
        sizes = np.linalg.norm(errors, axis=1) * norms[part]
        errors *= (np.minimum(1.0, recipe.clip / np.maximum(sizes, 1e-30)) * _MARGIN)[:, None]
        total += errors.T @ x
    return total


def _probabilities(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if scores.shape[1] == 1:
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-scores)))
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _outputs(loss: Loss, classes: int) -> int:
    if loss == "logistic" and classes != 2:
        raise TrainingError(f"logistic regression has two classes, not {classes}; use softmax")
    return 1 if loss == "logistic" else classes


def _targets(labels: npt.NDArray[Any], classes: int, outputs: int, count: int) -> npt.NDArray[np.float32]:
    known = np.asarray(labels).astype(np.int64)
    if len(known) != count or known.size == 0:
        raise TrainingError(f"{count} inputs but {len(known)} labels")
    if known.min() < 0 or known.max() >= classes:
        raise TrainingError(f"labels must lie between 0 and {classes - 1}; found {known.min()} to {known.max()}")
    return known[:, None].astype(np.float32) if outputs == 1 else np.eye(classes, dtype=np.float32)[known]


def _named(weights: npt.NDArray[np.float64]) -> Tensors:
    return {"weight": weights[:, :-1].astype(np.float32), "bias": weights[:, -1].astype(np.float32)}


def _record(
    recipe: Recipe,
    rates: list[float],
    expected: float,
    norm_bound: float,
    dataset: str,
    run: str,
    noise: str,
    sampler: str,
) -> Record:
    """With ‖x‖ ≤ r: softmax has smoothness r²/2 and gradients of norm at most √2·r; logistic has r²/4, one slope to clip."""
    never_binds = recipe.clip * _MARGIN >= math.sqrt(2) * norm_bound
    convex = "glm" if recipe.loss == "logistic" else "unclipped" if never_binds else None
    smoothness = norm_bound**2 / (4 if recipe.loss == "logistic" else 2)
    mechanism = {
        "kind": "dp-sgd",
        "run": run,
        "noise_fingerprint": noise,
        "sampler_fingerprint": None if recipe.rate is None else sampler,
        "optimizer": "sgd",
        "sampling": {"scheme": "full-batch"} if recipe.rate is None else {"scheme": "poisson", "rate": recipe.rate},
        "expected_batch": expected,
        "noise_multiplier": recipe.noise_multiplier,
        "clip": recipe.clip,
        "clipping": "flat",
        "phases": [{"steps": len(list(same)), "learning_rate": value} for value, same in groupby(rates)],
        "smoothness": smoothness,
        "convex": convex,
    }
    content = {"schema": 1, "dataset": dataset, "adjacency": "add-remove", "mechanism": mechanism}
    return Record.parse(json.dumps(content), source=run)
