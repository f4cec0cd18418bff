"""Aggregates in a torch or Opacus loop of one's own: to train on, or to keep beside the model for inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dpmerge_lab.training.averaging import MovingAverage, TrainingOn


class AggregatedTraining:
    """Attached to an optimizer (torch's, or Opacus' around it), before its first step. Alg. 2 of Recycling Scraps.

    Steps that Opacus only accumulates are no steps. Buffers are left as they are: where training is private, none may depend
    on data. The recorder sees that steps have a hook, and records no plain SGD.
    """

    def __init__(self, optimizer: Any, training_on: TrainingOn) -> None:
        inner = getattr(optimizer, "original_optimizer", optimizer)
        self._parameters = [p for group in inner.param_groups for p in group["params"] if p.requires_grad]
        self._run = training_on.begin(flat(self._parameters))
        inner.register_step_post_hook(lambda *_: load(self._parameters, self._run.next_start(flat(self._parameters))))

    @contextmanager
    def at_aggregate(self) -> Iterator[None]:
        """The model has the aggregate as its parameters here: what Alg. 2 returns. After it, training goes on where it was."""
        before = flat(self._parameters)
        load(self._parameters, self._run.current)
        try:
            yield
        finally:
            load(self._parameters, before)


def average_beside(module: nn.Module, decay: float | None = None) -> AveragedModel:
    """torch's own average of a model's iterates, for inference alone: call its `update_parameters(module)` after every step.

    The mean of all iterates that it is given, or with a decay their moving average from the first on. Parameters are averaged,
    buffers are those of the model as it is. A model that Opacus wrapped is unwrapped.
    """
    if decay is not None:
        MovingAverage(decay=decay)  # refuses what is no decay
    return AveragedModel(
        getattr(module, "_module", module),
        multi_avg_fn=None if decay is None else get_ema_multi_avg_fn(decay),
        use_buffers=False,
    )


def flat(parameters: Sequence[Tensor]) -> Tensor:
    """A copy of them all as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def load(parameters: Sequence[Tensor], vector: Tensor) -> None:
    """Give the parameters the values of such a vector."""
    with torch.no_grad():
        for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))
