"""How a torch loader draws its batches: found out from its sampler, and followed batch by batch. Nothing is assumed.

The record of a run says how batches were drawn, so a loader that no theorem and no field of the record describes is refused
before the first step, and a step for which the loader drew no batch is refused when it is made.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from dpmerge.errors import TrainingError
from dpmerge.records import Sampling

_COIN_BITS = {torch.float32: 24, torch.float64: 53}  # of the uniform numbers that Opacus' sampler compares with its rate
_NOTICEABLE = 1e-4  # a relative error of the rate above which it is recorded as it really was


class Batches:
    """The batches of one loader: their scheme, and how many were drawn and made into steps."""

    def __init__(self, loader: Any) -> None:
        if type(loader) not in (DataLoader, DPDataLoader) or isinstance(loader.dataset, IterableDataset):
            raise TrainingError(
                f"the loader is a {type(loader).__name__} of {_name(getattr(loader, 'dataset', None))}: how it draws batches "
                "is not known here; pass the loader that make_private returned, over a dataset with a length"
            )
        sampler = loader.batch_sampler
        self._sampler = sampler.sampler if _kind(sampler) is BatchSplittingSampler else sampler
        self.examples = len(loader.dataset)
        self._ahead = 0  # batches drawn and not made into steps yet, or left out
        self._begin()
        if getattr(loader.collate_fn, "rand_on_empty", False):
            raise TrainingError(
                "the loader puts a made-up example into empty batches (rand_on_empty=True), which no theorem here covers; "
                "use rand_on_empty=False"
            )
        self.sampling()
        self._count()

    @property
    def generator(self) -> Any:
        """The generator of the coins; none if it is torch's own."""
        return getattr(self._source, "generator", None)

    def mean_size(self, sampling: Sampling) -> float:
        """The number of examples of a batch, on average."""
        if sampling.scheme == "shuffle":
            return self.examples / len(self._sampler)
        return self.examples * (1.0 if sampling.rate is None else sampling.rate)

    def sampling(self) -> Sampling:
        """How the next batch is drawn; what the record cannot say is refused."""
        sampler = self._sampler
        if _kind(sampler) is UniformWithReplacementSampler and sampler.num_samples == self.examples:
            rate = _rate_of_coins(sampler.sample_rate)
            return Sampling(scheme="full-batch") if rate >= 1 else Sampling(scheme="poisson", rate=rate)
        if _kind(sampler) is BatchSampler and _kind(sampler.sampler) in (RandomSampler, SequentialSampler):
            order = sampler.sampler
            whole = len(order) == self.examples and not getattr(order, "replacement", False)
            if whole and len(sampler) == 1 and sampler.batch_size >= self.examples:
                return Sampling(scheme="full-batch")
            if whole and _kind(order) is RandomSampler:
                return Sampling(scheme="shuffle")
        raise TrainingError(
            f"the loader draws batches with {_name(sampler)} of {_name(getattr(sampler, 'sampler', None))}: no theorem here "
            "is about such batches; use Poisson sampling (make_private's poisson_sampling=True) or full batches"
        )

    def step(self, number: int) -> None:
        """A step was made; it must have had a batch of its own."""
        self._ahead -= 1
        self._steps += 1
        if self._ahead < 0:
            raise TrainingError(
                f"step {number} was made without a new batch from the recorded loader: another loader was used, or one batch "
                "twice; train on the loader that make_private returned"
            )

    @property
    def _source(self) -> Any:
        """The object that tosses the coins."""
        return self._sampler if _kind(self._sampler) is UniformWithReplacementSampler else self._sampler.sampler

    def require_every_batch(self) -> None:
        """Refuse an epoch in which all batches but the empty ones were made into steps.

        Loaders may draw ahead of the steps, so only a whole epoch tells.
        """
        if self._ended and self._drawn - self._steps == self._empty > 0:
            raise TrainingError(
                f"{self._empty} empty batches were left out: a step of noise alone is due then, and without it the model tells "
                "that they were empty; make a step with every batch"
            )

    def _begin(self) -> None:
        self._drawn = self._steps = self._empty = 0  # in this epoch
        self._ended = False

    def _count(self) -> None:
        """Have the sampler tell of every batch. It stays an instance of its class, as Opacus' other parts expect."""
        kind = type(self._sampler)

        def counted(sampler: Any) -> Any:
            self.require_every_batch()
            self._begin()
            for batch in kind.__iter__(sampler):
                self._drawn += 1
                self._ahead += 1
                self._empty += len(batch) == 0
                yield batch
            self._ended = True

        self._sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": counted, "_counts": _kind(self._sampler)})


def _rate_of_coins(rate: float) -> float:
    """The probability with which a uniform number of torch falls below `rate`, where that differs noticeably from it.

    Such a number is a multiple of 2^-24, so the probability is the next multiple: for rates of 1e-5 up to 0.6 % more.
    """
    bits = _COIN_BITS.get(torch.get_default_dtype())
    if bits is None:
        raise TrainingError(f"torch's default type is {torch.get_default_dtype()}: sampling coins need float32 or float64")
    below = float(torch.tensor(rate))  # as the comparison rounds it
    real = math.ceil(below * 2.0**bits) / 2.0**bits
    return min(1.0, real if real > rate * (1 + _NOTICEABLE) else float(rate))


def _kind(sampler: Any) -> type:
    """The sampler's class, whether its batches are being counted or not."""
    return getattr(type(sampler), "_counts", type(sampler))


def _name(thing: Any) -> str:
    return "none" if thing is None else _kind(thing).__name__
