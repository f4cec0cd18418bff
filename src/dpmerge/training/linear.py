"""DP-SGD for softmax and logistic regression in numpy: per-example gradient norms in closed form.

The gradient of one example is (p − y) ⊗ x, with the bias in x as a last 1, so its norm is ‖p − y‖·‖x‖, and a sum of clipped
gradients is one matrix product: no per-example gradient is ever kept. Features are bounded in norm beforehand, example by
example, so the record can state the loss' smoothness, and whether clipping ever binds, as facts.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import NORM_MARGIN, row_norms
from dpmerge.errors import TrainingError
from dpmerge.training.origin import PUBLIC, Origin
from dpmerge.training.randomness import GENERATOR, fingerprint, fresh_generator
from dpmerge.training.recipe import Recipe
from dpmerge.training.saving import Checkpoint, Tensors

Loss = Literal["softmax", "logistic"]
_ROWS = 512  # of the full batch at a time: they are read twice, the second time from the cache


def train(
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    classes: int,
    recipe: Recipe,
    *,
    norm_bound: float,
    dataset: str,
    loss: Loss = "softmax",
    run: str | None = None,
    checkpoints: Iterable[int] = (),
    on_step: Callable[[int], None] | None = None,
    origin: Origin = PUBLIC,
) -> list[Checkpoint]:
    """A private linear model after the steps asked for, and at the end. `features` are from `bounded_features`.

    It starts from zero on all data, unless `origin` says otherwise.

    Noise and batches come from two generators seeded by the operating system; the record keeps a fingerprint of the first
    state of each, by which two runs with the same randomness are recognised.
    """
    kept = recipe.kept(checkpoints)
    if loss == "logistic" and classes != 2:
        raise TrainingError(f"logistic regression has two classes, not {classes}; use softmax")
    known = _checked_labels(labels, classes, len(features))
    norms = row_norms(features).astype(np.float32)
    if not norms.max() <= norm_bound:  # what the record says of smoothness and clipping rests on it
        raise TrainingError(f"an input has norm {norms.max():.6g}, above norm_bound {norm_bound:g}; use bounded_features")
    noise, sampler = fresh_generator(), fresh_generator()
    smoothness, convex = facts_of_linear(loss, recipe.clip, norm_bound)
    said: dict[str, Any] = {
        "dataset": dataset,
        "run": run or f"linear-{secrets.token_hex(8)}",
        "noise": fingerprint(noise),
        "sampler": fingerprint(sampler),
        "noise_generator": GENERATOR,
        "smoothness": smoothness,
        "convex": convex,
        **origin.said,
    }
    examples = origin.examples or len(features)
    expected = recipe.expected_batch(examples)
    weights = _first_weights(1 if loss == "logistic" else classes, features.shape[1], origin)
    next_start = recipe.begin(weights)
    found: list[Checkpoint] = []
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are caught below
        for step, learning_rate in enumerate(recipe.learning_rates(), start=1):
            batch = recipe.batch(sampler, len(features), step)
            total = _clipped_sum(features[batch], known[batch], norms[batch], weights.astype(np.float32), recipe.clip)
            total += recipe.noise_multiplier * recipe.clip * noise.standard_normal(weights.shape)
            kept_share = 1 - learning_rate * recipe.weight_decay
            weights = next_start(kept_share * weights - learning_rate / expected * total)
            if step in kept:
                tensors = {"weight": weights[:, :-1].astype(np.float32), "bias": weights[:, -1].astype(np.float32)}
                if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
                    raise TrainingError(f"run {said['run']}: the parameters are no longer finite; use a smaller learning rate")
                record = recipe.record(step, examples, checkpoints_kept=len(found), **said)
                found.append(Checkpoint(step, tensors, record))
            if on_step is not None:
                on_step(step)
    return found


def _first_weights(outputs: int, columns: int, origin: Origin) -> npt.NDArray[np.float64]:
    if origin.start is None:
        return np.zeros((outputs, columns))
    held = origin.start.shaped({"weight": (outputs, columns - 1), "bias": (outputs,)})
    return np.concatenate((held["weight"], held["bias"][:, None]), axis=1, dtype=np.float64)


def scores(tensors: Tensors, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the model says of each row, one column for each output."""
    return np.asarray(features[:, :-1] @ tensors["weight"].T + tensors["bias"])


def accuracy(tensors: Tensors, features: npt.NDArray[np.float32], labels: npt.NDArray[Any]) -> float:
    said = scores(tensors, features)
    predicted = said.argmax(axis=1) if said.shape[1] > 1 else (said[:, 0] > 0).astype(np.int64)
    return float(np.mean(predicted == np.asarray(labels)))


def _clipped_sum(
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    norms: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
    clip: float,
) -> npt.NDArray[np.float64]:
    total = np.zeros(weights.shape)
    for start in range(0, len(features), _ROWS):
        part = slice(start, start + _ROWS)
        x = features[part]
        errors = _probabilities(x @ weights.T)
        if len(weights) == 1:
            errors[:, 0] -= labels[part]
        else:
            errors[np.arange(len(x)), labels[part]] -= 1
        sizes = np.linalg.norm(errors, axis=1) * norms[part]
        errors *= (np.minimum(1.0, clip / np.maximum(sizes, 1e-30)) * NORM_MARGIN)[:, None]
        total += errors.T @ x
    return total


def _probabilities(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if scores.shape[1] == 1:
        return np.asarray(1 / (1 + np.exp(-scores)))
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _checked_labels(labels: npt.NDArray[Any], classes: int, count: int) -> npt.NDArray[np.int64]:
    known = np.asarray(labels).astype(np.int64, copy=False)
    if len(known) != count or known.size == 0:
        raise TrainingError(f"{count} inputs but {len(known)} labels")
    if known.min() < 0 or known.max() >= classes:
        raise TrainingError(f"labels must lie between 0 and {classes - 1}; found {known.min()} to {known.max()}")
    return known


def facts_of_linear(loss: Loss, clip: float, norm_bound: float) -> tuple[float, str | None]:
    """Smoothness, and why clipped gradients are those of convex functions (docs/theory.md §3.3), for inputs with ‖x‖ ≤ r.

    Softmax: the Hessian is (diag p − ppᵀ) ⊗ xxᵀ, at most r²/2, and ‖p − y‖·‖x‖ ≤ √2·r: beyond that clipping never binds.
    Logistic: the slope changes by r²/4 at most, and clipping clips it, a monotone function of the score. The safety margin
    of clipping multiplies all gradients by one factor below 1: smoothness and convexity stay.
    """
    if loss == "logistic":
        return norm_bound**2 / 4, "glm"
    never_binds = clip * NORM_MARGIN >= math.sqrt(2) * norm_bound
    return norm_bound**2 / 2, "unclipped" if never_binds else None
