"""What an Opacus training of a linear head shows of its loss at every step: the facts on which averages and noise rest.

A head is one `torch.nn.Linear`, the only thing that is trained. At every backward pass its inputs are measured against the
bound that the user stated, and the gradient at its outputs is compared with that of cross-entropy or binary cross-entropy. What
holds at every step becomes `smoothness` and `convex` (docs/theory.md §3.3); what cannot be checked is left out, and `lost` says
why. The bound is public: the largest norm seen would be an answer about the data.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from dpmerge.datasets import NORM_MARGIN
from dpmerge.errors import TrainingError
from dpmerge.records import Convex

_NEAR = 1e-4  # how far a gradient in single precision may be from that of the loss, in probability
_ADDED = 1e-6  # Opacus clips by C/(norm + 1e-6)


@dataclass(frozen=True)
class Facts:
    smoothness: float | None = None
    convex: Convex | None = None
    established: str | None = None


class HeadWatch:
    """Follows the one linear layer that is trained."""

    def __init__(self, module: Any, optimizer: Any, norm_bound: float) -> None:
        if not 0 < norm_bound < math.inf:
            raise TrainingError(f"norm_bound is {norm_bound}; it must be positive and finite")
        self._bound, self._optimizer = norm_bound, optimizer
        self.lost: str | None = None
        self._loss: str | None = None
        self._rows = 0
        self._module = module
        self._layer: Any = None
        layers = self._trained_layers()
        if type(module) is not GradSampleModule:
            self._lose(f"gradients are computed by {type(module).__name__}; only those of mode hooks are checked")
        elif len(layers) != 1 or type(layers[0]) is not nn.Linear:
            names = ", ".join(type(layer).__name__ for layer in layers)
            self._lose(f"what is trained is {names}; only a single torch.nn.Linear is checked")
        else:
            self._layer = layers[0]
            self._layer.register_forward_hook(self._forward)

    def _trained_layers(self) -> list[Any]:
        modules = self._module._module.modules()
        return [one for one in modules if any(p.requires_grad for p in one.parameters(recurse=False))]

    def part(self) -> None:
        """A batch, or one part of it, is about to be clipped: it must be the one that was looked at, and nothing else."""
        if self.lost is None:
            given = self._layer.weight.grad_sample
            rows = sum(map(len, given)) if isinstance(given, list) else 0 if given is None else len(given)
            own = {id(parameter) for parameter in self._layer.parameters()}
            if self._trained_layers() != [self._layer] or {id(p) for p in self._optimizer.params} - own:
                self._lose("something else than the linear layer is trained")
            elif rows != self._rows:
                self._lose(f"{rows} gradients were clipped, but the layer's outputs were seen for {self._rows} examples")
        self._rows = 0

    def facts(self, least_clip: float) -> Facts:
        """What holds of every step so far, if none clipped by less than this."""
        if self.lost is not None or self._loss is None:
            return Facts()
        r, outputs = self._bound, self._layer.out_features
        convex: Convex | None
        if self._loss == "cross-entropy":
            smoothness, largest = r**2 / 2, math.sqrt(2) * r
        else:  # the mean over outputs: each has a Kth of the slope
            smoothness, largest = r**2 / 4 / outputs, r / math.sqrt(outputs)
        if self._loss != "cross-entropy" and outputs == 1:
            convex = "glm"
        else:
            convex = "unclipped" if least_clip * NORM_MARGIN >= largest + _ADDED else None
        bias = "" if self._layer.bias is None else "; the bias counts as an input of 1"
        how = (
            "checked at every step: only a torch.nn.Linear was trained, the norm of its inputs was at most "
            f"{r:g} (stated by the user{bias}), and the loss was {self._loss}"
        )
        return Facts(smoothness, convex, how)

    def _forward(self, layer: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self.lost is None and torch.is_grad_enabled() and output.requires_grad:
            rows, scores = inputs[0].detach(), output.detach()
            if inputs[0].requires_grad:
                self._lose("the inputs of the linear layer depend on something that is trained")
            output.register_hook(lambda gradient: self._seen(rows, scores, gradient.detach()))

    def _seen(self, inputs: Any, scores: Any, gradient: Any) -> None:
        if self.lost is not None:
            return
        if inputs.dim() != 2:
            return self._lose(f"the linear layer's inputs have shape {tuple(inputs.shape)}; only rows are checked")
        self._rows += len(inputs)
        if not len(inputs):
            return None
        squares = inputs.double().square().sum(dim=1) + (0.0 if self._layer.bias is None else 1.0)
        if not float(squares.max()) <= self._bound**2:  # also where one is not a number
            return self._lose(f"an input of the linear layer is longer than norm_bound {self._bound:g}")
        mean = self._optimizer.loss_reduction == "mean"
        slopes = gradient.double() * (len(inputs) if mean else 1)
        found = _loss_of(scores.double(), slopes)
        if found is None or self._loss not in (None, found):
            return self._lose(
                "the gradient at the linear layer's outputs is not that of cross-entropy, nor of binary cross-entropy"
            )
        self._loss = found
        return None

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            warnings.warn(f"smoothness and convex are left out of the record: {why}", UserWarning, stacklevel=2)


def _loss_of(scores: Any, slopes: Any) -> str | None:
    """Which loss has these slopes at these scores, for labels that are classes, or zeros and ones."""
    outputs = scores.shape[1]
    if outputs > 1:
        labels = torch.softmax(scores, dim=1) - slopes
        known = nn.functional.one_hot(labels.argmax(dim=1), outputs)
        if float((labels - known).abs().max()) <= _NEAR:
            return "cross-entropy"
    labels = torch.sigmoid(scores) - slopes * outputs
    near = torch.minimum(labels.abs(), (labels - 1).abs())
    return "binary cross-entropy" if float(near.max()) <= _NEAR * outputs else None
