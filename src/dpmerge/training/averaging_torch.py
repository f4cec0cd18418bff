"""Training on aggregates in a torch or Opacus loop of one's own: after every real step the parameters become the aggregate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dpmerge.training.averaging import TrainingOn

MARK = "dpmerge_training_on"  # by which the recorder sees that this optimizer is no plain SGD


class AggregatedTraining:
    """Attached to an optimizer (torch's, or Opacus' around it), before its first step. Alg. 2 of Recycling Scraps.

    Steps that Opacus only accumulates are no steps. Buffers are left as they are: where training is private, none may depend
    on data. Like torch's `AveragedModel`, which keeps an average beside the model for inference; here training goes on from it.
    """

    def __init__(self, optimizer: Any, training_on: TrainingOn) -> None:
        inner = getattr(optimizer, "original_optimizer", optimizer)
        self._parameters = [p for group in inner.param_groups for p in group["params"] if p.requires_grad]
        self._training_on, self._steps = training_on, 0
        self._advance()
        inner.register_step_post_hook(lambda *_: self._after_step())
        setattr(inner, MARK, training_on)

    def _after_step(self) -> None:
        self._steps += 1
        self._advance()

    def _advance(self) -> None:
        self._load(self._training_on.next_start(self._steps, self._vector()))

    def _vector(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self._parameters])

    def _load(self, vector: Tensor) -> None:
        with torch.no_grad():
            for parameter, part in zip(self._parameters, vector.split([p.numel() for p in self._parameters]), strict=True):
                parameter.copy_(part.view_as(parameter))

    @contextmanager
    def at_aggregate(self) -> Iterator[None]:
        """The model has the aggregate as its parameters here: what Alg. 2 returns. After it, training goes on where it was."""
        before = self._vector()
        self._load(self._training_on.current)
        try:
            yield
        finally:
            self._load(before)
