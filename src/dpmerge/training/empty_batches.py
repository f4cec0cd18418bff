"""A batch without examples, for models that cannot be called with one."""

from __future__ import annotations

from typing import Any

import torch


def noise_alone(optimizer: Any, dtype: torch.dtype | None = None) -> None:
    """Instead of forward and backward pass on an empty batch: the private optimizer's next step is one of noise alone.

    Transformers' models fail on batches without examples, and to leave the step out would tell that the batch was empty.
    `optimizer` is what make_private returned, or what accelerate made of it. `dtype` is that of the examples' gradients in
    other steps, bfloat16 under autocast: a step that is recorded otherwise would tell that its batch was empty.
    """
    private = getattr(optimizer, "optimizer", optimizer)
    for parameter in private.params:
        parameter.grad_sample = torch.zeros((0, *parameter.shape), dtype=dtype or parameter.dtype, device=parameter.device)
