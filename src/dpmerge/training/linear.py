"""DP-SGD for linear models in numpy: softmax, logistic and one-vs-rest, several at once; gradient norms in closed form.

The gradient of one example is (p − y) ⊗ x, with the bias in x as a last 1, so its norm is ‖p − y‖·‖x‖, and a sum of clipped
gradients is one matrix product: no per-example gradient is ever kept. Features are bounded in norm beforehand, example by
example, so the record can state the loss' smoothness, and whether clipping ever binds, as facts.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import NORM_MARGIN, row_norms
from dpmerge.errors import TrainingError
from dpmerge.records import Clipping, Convex
from dpmerge.training.origin import PUBLIC, Origin
from dpmerge.training.randomness import GENERATOR, fingerprint, fresh_generator
from dpmerge.training.recipe import Recipe
from dpmerge.training.saving import Checkpoint, Tensors

Loss = Literal["softmax", "logistic", "one-vs-rest"]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
_Model = tuple[Floats, Loss, float | npt.NDArray[np.float64]]  # weights, loss, clip: of all outputs together, or of each
_ROWS = 512  # of the full batch at a time: they are read twice, the second time from the cache


@dataclass(frozen=True, kw_only=True)
class Head:
    """A linear model to be trained: how, and after which steps it is kept.

    Output k of one-vs-rest is clipped to c_k, in proportion to `clip_shares`; by default all alike. √(Σ c_k²) is the clip.
    """

    recipe: Recipe
    loss: Loss = "softmax"
    clip_shares: tuple[float, ...] = ()
    run: str | None = None
    checkpoints: Iterable[int] = ()
    on_step: Callable[[int], None] | None = None
    origin: Origin = PUBLIC
    rows: npt.NDArray[np.int64] | slice = field(default_factory=lambda: slice(None))  # of the data that it sees


def train(
    features: Floats,
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

    It starts from zero on all data, unless `origin` says otherwise. Noise and batches come from two generators seeded by the
    operating system; the record keeps a fingerprint of the first state of each, by which two runs with the same randomness are
    recognised.
    """
    head = Head(recipe=recipe, loss=loss, run=run, checkpoints=checkpoints, on_step=on_step, origin=origin)
    return train_heads(features, labels, classes, [head], norm_bound=norm_bound, dataset=dataset)[0]


def train_heads(
    features: Floats,
    labels: npt.NDArray[Any],
    classes: int,
    heads: Sequence[Head],
    *,
    norm_bound: float,
    dataset: str,
) -> list[list[Checkpoint]]:
    """Several linear models on the same data, each with noise and batches of its own: what `train` gives for each.

    Heads with full batches share every look at the data: one matrix product gives the scores of all, and one their sums.
    """
    known = _checked_labels(labels, classes, len(features))
    norms = row_norms(features).astype(np.float32)
    if not norms.max() <= norm_bound:  # what the record says of smoothness and clipping rests on it
        raise TrainingError(f"an input has norm {norms.max():.6g}, above norm_bound {norm_bound:g}; use bounded_features")
    held = _Held(features, known, norms)
    going = [_Going(head, held, classes, norm_bound, dataset) for head in heads]
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are caught when a model is kept
        for step in range(1, max(head.recipe.steps for head in heads) + 1):
            active = [one for one in going if step <= one.recipe.steps]
            drawn = [(one, one.recipe.batch(one.sampler, len(one.held.features), step)) for one in active]
            together = [one for one, batch in drawn if isinstance(batch, slice) and one.held is held]
            for one, batch in drawn:
                if one not in together:
                    one.move(step, _clipped_sums(one.held.rows(batch), [one.now])[0])
            for one, total in zip(together, _clipped_sums(held, [one.now for one in together]), strict=True):
                one.move(step, total)
    return [one.found for one in going]


@dataclass(frozen=True)
class _Held:
    features: Floats
    labels: Labels
    norms: Floats

    def rows(self, which: npt.NDArray[np.int64] | slice) -> _Held:
        return _Held(self.features[which], self.labels[which], self.norms[which])

    def parts(self) -> Iterator[_Held]:
        for start in range(0, len(self.features), _ROWS):
            yield self.rows(slice(start, start + _ROWS))


class _Going:
    """One head in training."""

    def __init__(self, head: Head, held: _Held, classes: int, norm_bound: float, dataset: str) -> None:
        if head.loss == "logistic" and classes != 2:
            raise TrainingError(f"logistic regression has two classes, not {classes}; use softmax or one-vs-rest")
        self.recipe, self.loss, self._on_step = head.recipe, head.loss, head.on_step
        self._kept = set(self.recipe.kept(head.checkpoints))
        self._noise, self.sampler = fresh_generator(), fresh_generator()
        self._clip = _clips(head, classes) if head.loss == "one-vs-rest" else self.recipe.clip
        facts = facts_of_linear(head.loss, self.recipe.clip, norm_bound)
        self._said: dict[str, Any] = {
            "dataset": dataset,
            "run": head.run or f"linear-{secrets.token_hex(8)}",
            "noise": fingerprint(self._noise),
            "sampler": fingerprint(self.sampler),
            "noise_generator": GENERATOR,
            "smoothness": facts[0],
            "convex": facts[1],
            "clipping": clipping_of(head.loss),
            **head.origin.said,
        }
        self.held = held if isinstance(head.rows, slice) else held.rows(head.rows)
        self._examples = head.origin.examples or len(self.held.features)
        self._learning_rates = self.recipe.learning_rates()
        self.weights = _first_weights(1 if head.loss == "logistic" else classes, held.features.shape[1], head.origin)
        self._next_start = self.recipe.begin(self.weights)
        self.found: list[Checkpoint] = []

    @property
    def now(self) -> _Model:
        return self.weights.astype(np.float32), self.loss, self._clip

    def move(self, step: int, total: npt.NDArray[np.float64]) -> None:
        """Make a step from the sum of its batch's clipped gradients."""
        recipe, learning_rate = self.recipe, self._learning_rates[step - 1]
        total += recipe.noise_multiplier * recipe.clip * self._noise.standard_normal(total.shape)
        kept_share = 1 - learning_rate * recipe.weight_decay
        self.weights = self._next_start(
            kept_share * self.weights - learning_rate / recipe.expected_batch(self._examples) * total
        )
        if step in self._kept:
            tensors = {"weight": self.weights[:, :-1].astype(np.float32), "bias": self.weights[:, -1].astype(np.float32)}
            if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
                raise TrainingError(
                    f"run {self._said['run']}: the parameters are no longer finite; use a smaller learning rate"
                )
            record = recipe.record(step, self._examples, checkpoints_kept=len(self.found), **self._said)
            self.found.append(Checkpoint(step, tensors, record))
        if self._on_step is not None:
            self._on_step(step)


def _first_weights(outputs: int, columns: int, origin: Origin) -> npt.NDArray[np.float64]:
    if origin.start is None:
        return np.zeros((outputs, columns))
    held = origin.start.shaped({"weight": (outputs, columns - 1), "bias": (outputs,)})
    return np.concatenate((held["weight"], held["bias"][:, None]), axis=1, dtype=np.float64)


def scores(tensors: Tensors, features: Floats) -> Floats:
    """What the model says of each row, one column for each output."""
    return np.asarray(features[:, :-1] @ tensors["weight"].T + tensors["bias"])


def accuracy(tensors: Tensors, features: Floats, labels: npt.NDArray[Any]) -> float:
    said = scores(tensors, features)
    predicted = said.argmax(axis=1) if said.shape[1] > 1 else (said[:, 0] > 0).astype(np.int64)
    return float(np.mean(predicted == np.asarray(labels)))


def _clipped_sums(held: _Held, models: Sequence[_Model]) -> list[npt.NDArray[np.float64]]:
    """The sum of clipped gradients over these rows for each model."""
    if not models:
        return []
    stacked = np.concatenate([weights for weights, _, _ in models])
    ends = np.cumsum([len(weights) for weights, _, _ in models])[:-1]
    total = np.zeros(stacked.shape)
    for part in held.parts():
        errors = part.features @ stacked.T
        for (_, loss, clip), own in zip(models, np.split(errors, ends, axis=1), strict=True):
            _to_clipped_errors(own, part, loss, clip)
        total += errors.T @ part.features
    return np.split(total, ends)


def _to_clipped_errors(scores: Floats, part: _Held, loss: Loss, clip: float | npt.NDArray[np.float64]) -> None:
    """Scores become factors of x, in place: the slopes p − y, clipped all together, or each output by itself.

    One for each output: all together stay within the norm of these clips (docs/theory.md §3.3).
    """
    rows = np.arange(len(scores))
    if loss == "softmax":
        scores -= scores.max(axis=1, keepdims=True, initial=-np.inf)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
    else:
        scores[:] = 1 / (1 + np.exp(-scores))
    if loss == "logistic":
        scores[:, 0] -= part.labels
    else:
        scores[rows, part.labels] -= 1
    if loss == "one-vs-rest":
        sizes = np.abs(scores) * part.norms[:, None]
    else:
        sizes = (np.linalg.norm(scores, axis=1) * part.norms)[:, None]
    scores *= np.minimum(1.0, clip / np.maximum(sizes, 1e-30)) * NORM_MARGIN


def _clips(head: Head, classes: int) -> npt.NDArray[np.float64]:
    """The clip of each output; the norm of all is the recipe's clip."""
    shares = np.array(head.clip_shares or (1.0,) * classes)
    if shares.shape != (classes,) or not np.all((shares > 0) & np.isfinite(shares)):
        raise TrainingError(f"clip_shares needs a positive number for each of {classes} classes; got {head.clip_shares}")
    return np.asarray(head.recipe.clip * (shares / np.linalg.norm(shares)))


def _checked_labels(labels: npt.NDArray[Any], classes: int, count: int) -> Labels:
    known = np.asarray(labels).astype(np.int64, copy=False)
    if len(known) != count or known.size == 0:
        raise TrainingError(f"{count} inputs but {len(known)} labels")
    if known.min() < 0 or known.max() >= classes:
        raise TrainingError(f"labels must lie between 0 and {classes - 1}; found {known.min()} to {known.max()}")
    return known


def clipping_of(loss: Loss) -> Clipping:
    """What a record says of how this loss is clipped."""
    return "per-output" if loss == "one-vs-rest" else "flat"


def facts_of_linear(loss: Loss, clip: float, norm_bound: float) -> tuple[float, Convex | None]:
    """Smoothness, and why clipped gradients are those of convex functions (docs/theory.md §3.3), for inputs with ‖x‖ ≤ r.

    Softmax: the Hessian is (diag p − ppᵀ) ⊗ xxᵀ, at most r²/2, and ‖p − y‖·‖x‖ ≤ √2·r: beyond that clipping never binds.
    Logistic: the slope changes by r²/4 at most, and clipping clips it, a monotone function of the score. One-vs-rest is a sum
    of such models, each in parameters of its own. The safety margin of clipping multiplies all gradients by one factor below
    1: smoothness and convexity stay.
    """
    if loss != "softmax":
        return norm_bound**2 / 4, "glm"
    never_binds = clip * NORM_MARGIN >= math.sqrt(2) * norm_bound
    return norm_bound**2 / 2, "unclipped" if never_binds else None
