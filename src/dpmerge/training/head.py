"""A trained linear head as something to use: predictions and probabilities, a torch layer, the last layer of its network.

Beside the tensors of every head lies `config.json`: public settings only (the loss, the constants by which features are centred
and scaled, the bound on their norm, the public network). A release keeps the file, so a released head says how to use it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmerge.datasets import bounded_features
from dpmerge.errors import CheckpointError, DataError
from dpmerge.records import Positive, Strict, load_strict
from dpmerge.training.data import PublicNetwork, normalised
from dpmerge.training.linear import Loss
from dpmerge.training.public_network import body, network_features

Array = npt.NDArray[Any]
CONFIG = "config.json"


class HeadConfig(Strict):
    """How inputs become features, and scores probabilities."""

    model_type: Literal["dpmerge-linear"] = "dpmerge-linear"
    loss: Loss
    norm_bound: Positive
    mean: tuple[float, ...] = ()
    deviation: tuple[Positive, ...] = ()
    network: PublicNetwork | None = None

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json", exclude_none=True), indent=1) + "\n"


@dataclass(frozen=True, eq=False)
class LinearHead:
    """A linear model with its features: `predict`, `predict_proba` and `score` as scikit-learn has them.

    Inputs are rows of features as they were given to the training, before any centring; or images, if a network makes them.
    """

    weight: Array = field(repr=False)  # a notebook that shows a private model's numbers is as private as they are
    bias: Array = field(repr=False)
    config: HeadConfig

    @classmethod
    def load(cls, folder: str | Path) -> LinearHead:
        """From the folder of a model that `dpmerge train` made, or of a release of such models."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        where = Path(folder)
        config = load_strict(HeadConfig, where / CONFIG, CheckpointError, "a head made by `dpmerge train` has one")
        try:
            held = load_file(where / "model.safetensors")
            return cls(np.asarray(held["weight"], np.float64), np.asarray(held["bias"], np.float64), config)
        except (OSError, SafetensorError, KeyError) as fault:
            raise CheckpointError(f"{where}: it holds no linear head: {fault}") from None

    @property
    def classes_(self) -> npt.NDArray[np.int64]:
        return np.arange(max(len(self.weight), 2))

    def features(self, inputs: npt.ArrayLike) -> Array:
        """What the head sees of the inputs: centred, scaled, bounded in norm."""
        rows, about = np.asarray(inputs, np.float32), self.config
        if about.network is not None and rows.ndim == 4:
            rows = network_features(rows, about.network.size, about.network.white or 255.0)
        if about.mean:
            rows = normalised(rows, about.mean, about.deviation)
        found = bounded_features(rows, about.norm_bound)[:, :-1]
        if found.shape[1] != self.weight.shape[1]:
            raise DataError(f"the inputs have {found.shape[1]} features; the head has {self.weight.shape[1]}")
        return found

    def decision_function(self, inputs: npt.ArrayLike) -> Array:
        """Scores, one column for each output; of two classes with one output, the score of class 1."""
        said = self._scores(inputs)
        return said[:, 0] if said.shape[1] == 1 else said

    def predict_proba(self, inputs: npt.ArrayLike) -> Array:
        """One column for each class; those of one-vs-rest are divided by their sum."""
        return probabilities(self._scores(inputs), self.config.loss)

    def predict(self, inputs: npt.ArrayLike) -> npt.NDArray[np.int64]:
        said = self._scores(inputs)
        return said.argmax(axis=1) if said.shape[1] > 1 else (said[:, 0] > 0).astype(np.int64)

    def score(self, inputs: npt.ArrayLike, labels: npt.ArrayLike) -> float:
        """The share of inputs that get their label."""
        return float(np.mean(self.predict(inputs) == np.asarray(labels)))

    def calibrated(self, inputs: npt.ArrayLike, labels: npt.ArrayLike) -> LinearHead:
        """The same head with probabilities fitted to *public* examples: one scale for softmax, else a scale and a shift each.

        A head that was released stays as private as it is: this is post-processing, if the examples are not private ones.
        Calibrate what was released, never a private model before its release: no guarantee covers the numbers it would add.
        """
        said, known = self._scores(inputs), np.asarray(labels)
        if self.config.loss == "softmax":
            scale, shift = _softmax_scale(said, known), np.zeros(said.shape[1])
        else:
            ones = [known == (1 if said.shape[1] == 1 else k) for k in range(said.shape[1])]
            scale, shift = np.array([_sigmoid_fit(said[:, k], one) for k, one in enumerate(ones)]).T
        return replace(self, weight=self.weight * scale[:, None], bias=self.bias * scale + shift)

    def to_torch(self) -> Any:
        """A `torch.nn.Linear` on features as they are given: centring and scaling are part of it.

        It does not shorten features to the norm bound, so inputs beyond it get other scores than `decision_function` gives.
        """
        import torch

        weight, bias = self._on_raw_features()
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        return layer

    def save(self, folder: str | Path) -> Path:
        """Write `model.safetensors` and `config.json` into a folder."""
        from safetensors.numpy import save_file

        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        tensors = {"weight": self.weight.astype(np.float32), "bias": self.bias.astype(np.float32)}
        save_file(tensors, where / "model.safetensors", metadata={"format": "pt"})
        (where / CONFIG).write_text(self.config.text(), encoding="utf-8")
        return where

    def save_network(self, path: str | Path) -> Path:
        """Write the public network with this head as its last layer into one safetensors file."""
        from safetensors.torch import save_file

        if self.config.network is None:
            raise CheckpointError("no network makes this head's features; save the head alone")
        layer = self.to_torch()
        tensors = {**body().state_dict(), "_fc.weight": layer.weight.detach(), "_fc.bias": layer.bias.detach()}
        whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(whole, str(path), metadata={"format": "pt", "network": self.config.network.network})
        return Path(path)

    def _scores(self, inputs: npt.ArrayLike) -> Array:
        return np.asarray(self.features(inputs) @ self.weight.T + self.bias)

    def _on_raw_features(self) -> tuple[Array, Array]:
        """Constants of an image's channel hold for all its pixels."""
        each = self.weight.shape[1] // max(len(self.config.mean), 1)
        mean, deviation = (np.repeat(one, each) for one in (self.config.mean or [0.0], self.config.deviation or [1.0]))
        weight = self.weight / deviation
        return weight, self.bias - (weight * mean).sum(axis=1)


def probabilities(scores: Array, loss: Loss) -> Array:
    """One column for each class."""
    if loss == "softmax":
        shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
    each = _sigmoid(scores)
    if loss == "logistic":
        return np.hstack([1 - each, each])
    return np.asarray(each / each.sum(axis=1, keepdims=True))


def _sigmoid(scores: Array) -> Array:
    from scipy.special import expit

    return np.asarray(np.maximum(expit(scores), 1e-300))


def _softmax_scale(scores: Array, labels: Array) -> Array:
    """One scale for all outputs, by the likelihood of the labels."""
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp

    rows = np.arange(len(labels))

    def loss(power: float) -> float:
        scaled = scores * np.exp(power)
        return float(np.mean(logsumexp(scaled, axis=1) - scaled[rows, labels]))

    return np.full(scores.shape[1], np.exp(minimize_scalar(loss, bounds=(-7, 7), method="bounded").x))


def _sigmoid_fit(scores: Array, positive: Array) -> tuple[float, float]:
    """Platt's scaling: σ(a·score + b), a > 0, with his targets, which a class that does not occur cannot make infinite."""
    from scipy.optimize import minimize

    count = int(positive.sum())
    target = np.where(positive, (count + 1) / (count + 2), 1 / (len(positive) - count + 2))

    def loss(at: Array) -> float:
        scaled = np.exp(at[0]) * scores + at[1]
        return float(np.mean(np.logaddexp(0, scaled) - target * scaled))

    power, shift = minimize(loss, np.zeros(2), bounds=[(-7, 7), (-50, 50)], method="L-BFGS-B").x
    return float(np.exp(power)), float(shift)
