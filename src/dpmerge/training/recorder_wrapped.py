"""What accelerate makes of Opacus' objects: looked through where the training is the same, else refused by name.

`Accelerator.prepare` in one process leaves the module as it is, puts a shell around the optimizer, and a loader that draws one
batch ahead around the sampler. What it can do beyond that is in none of Opacus' accounts: loss scaling decides by single
examples whether a step is made, and several processes each add their own noise.
"""

from __future__ import annotations

from typing import Any

from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch.nn.parallel import DistributedDataParallel

from dpmerge.errors import TrainingError


def prepared(thing: Any) -> str | None:
    """The name of accelerate's class, if this is an object of it. The package itself is not needed to tell."""
    kind = type(thing)
    return kind.__name__ if kind.__module__.startswith("accelerate.") else None


def module_of(module: Any) -> Any:
    """The module that make_private returned."""
    if isinstance(module, DistributedDataParallel):
        raise TrainingError(
            "the private module was put into DistributedDataParallel afterwards (accelerate does so with several processes): "
            "each process then adds noise of its own to its own gradient, and the models drift apart. Put the plain module "
            "into Opacus' DifferentiallyPrivateDistributedDataParallel, then call make_private"
        )
    return module


def inner_of(module: Any) -> Any:
    """The user's own module."""
    inner = module._module
    shells = (DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel)
    return inner.module if isinstance(inner, shells) else inner


def optimizer_of(optimizer: Any) -> Any:
    """The optimizer within accelerate's, if that calls its step for every batch."""
    if prepared(optimizer) is None:
        return optimizer
    if optimizer.scaler is not None:
        raise TrainingError(
            "accelerate scales the loss (mixed precision fp16): clips then hold for scaled gradients, and a step is left out "
            "where one example overflows, which no record can say; use bf16 or no mixed precision"
        )
    if optimizer.gradient_state.num_steps != 1:
        raise TrainingError(
            f"accelerate accumulates gradients over {optimizer.gradient_state.num_steps} batches: a record may be in each of "
            "them, which no theorem here covers; use gradient_accumulation_steps=1, and Opacus' BatchMemoryManager to split "
            "large batches"
        )
    return optimizer.optimizer


def loader_of(loader: Any) -> tuple[Any, bool]:
    """The torch loader, and whether batches are drawn from it before they are asked for."""
    kind = prepared(loader)
    if kind is None:
        return loader, False
    if kind != "DataLoaderShard":
        raise TrainingError(
            f"accelerate's {kind} puts batches together and takes them apart again, which no record can say; prepare the "
            "loader with dispatch_batches=False"
        )
    return loader.base_dataloader, True
