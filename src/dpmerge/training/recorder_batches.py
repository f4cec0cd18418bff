"""How a torch loader draws its batches: found out from its sampler, and followed batch by batch. Nothing is assumed.

The record of a run says how batches were drawn, so a loader that no theorem and no field of the record describes is refused
before the first step, and a step for which the loader drew no batch is refused when it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from dpmerge.errors import TrainingError
from dpmerge.records import Sampling
from dpmerge.training.recorder_randomness import state_of
from dpmerge.training.recorder_tensors import digests
from dpmerge.training.recorder_wrapped import loader_of

_COIN_BITS = {torch.float32: 24, torch.float64: 53}  # of the uniform numbers that Opacus' sampler compares with its rate
_POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
_NOTICEABLE = 1e-4  # a relative error of the rate above which it is recorded as it really was


@dataclass
class _Pass:
    """One walk through the loader. Evaluations walk through it too: a step belongs to the walk that drew last."""

    started: bytes | None = None  # the state of the sampler's generator at its beginning
    drawn: int = 0
    empty: int = 0
    steps: int = 0
    ended: bool = False
    last_empty: bool = False
    lag: int = 0  # batches without a step when the last one was drawn
    skipped_empty: int = 0
    skipped: int = 0
    sizes: list[int] = field(default_factory=list)  # of batches that were not yet made into steps

    def draw(self, size: int) -> None:
        lag = self.drawn - self.steps
        if lag > self.lag and self.last_empty:
            self.skipped_empty += 1
        elif lag > self.lag:
            self.skipped += 1
        self.lag = lag
        self.drawn += 1
        self.sizes.append(size)
        self.last_empty = size == 0
        self.empty += self.last_empty


class Batches:
    """The batches of one loader: their scheme, and how many were drawn and made into steps."""

    def __init__(self, loader: Any) -> None:
        loader, ahead = loader_of(loader)
        if type(loader) not in (DataLoader, DPDataLoader) or isinstance(loader.dataset, IterableDataset):
            raise TrainingError(
                f"the loader is a {type(loader).__name__} of {_name(getattr(loader, 'dataset', None))}: how it draws batches "
                "is not known here; pass the loader that make_private returned, over a dataset with a length"
            )
        sampler = loader.batch_sampler
        self._sampler = sampler.sampler if _kind(sampler) is BatchSplittingSampler else sampler
        self._dataset, self.examples = loader.dataset, len(loader.dataset)
        self._draws_ahead = ahead or loader.num_workers > 0
        self._pass = _Pass()
        self._of_parts: tuple[_Pass, int | None] = (self._pass, None)
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

    @property
    def processes(self) -> int:
        """Among how many processes the sampler divides the data."""
        return int(getattr(self._sampler, "num_replicas", 1))

    def ends(self) -> list[str] | None:
        """Digests of the first and the last example, by which other data are noticed; None if they differ between readings."""
        first, again = (self._read_ends() for _ in range(2))
        return first if first == again else None

    def _read_ends(self) -> list[str]:
        leaves = enumerate(tree_leaves([self._dataset[index] for index in (0, self.examples - 1)]))
        plain = {str(place): one for place, one in leaves if isinstance(one, torch.Tensor | np.ndarray | str | int | float)}
        return list(digests(plain).values())

    def mean_size(self, sampling: Sampling) -> float:
        """The number of examples of a batch, on average."""
        if sampling.scheme == "shuffle":
            return self.examples / len(self._sampler)
        return self.examples * (1.0 if sampling.rate is None else sampling.rate)

    def sampling(self) -> Sampling:
        """How the next batch is drawn; what the record cannot say is refused."""
        sampler = self._sampler
        if _kind(sampler) in _POISSON and getattr(sampler, "total_size", sampler.num_samples) == self.examples:
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

    def require_constants(self, part_size: float | None, divisor: float) -> None:
        """Refuse a part whose own size decides how it is trained, as Opacus has it by itself (docs/theory.md §10)."""
        rate = self.sampling().rate
        epoch = 0 if part_size is None else math.ceil(part_size / divisor)
        constant = rate is not None and part_size is not None and math.isclose(rate * part_size, divisor, rel_tol=2e-4)
        if not constant or len(self._sampler) != epoch:
            raise TrainingError(
                "how a part is trained must not depend on how many records it has: give part_size, a public number, and after "
                "make_private set loader.batch_sampler.sample_rate to the batch size over it, loader.batch_sampler.steps to "
                "one over that, rounded up, and optimizer.expected_batch_size to the batch size"
            )

    @property
    def started(self) -> bytes | None:
        """The state of the sampler's generator when the epoch began of which a first step was just made; else nothing."""
        return self._pass.started if self._pass.steps == 1 else None

    def part(self, first: bool) -> None:
        """A part of a batch is about to be added up: all parts of a step are of one batch.

        Opacus keeps the sum of a batch that was left amid its parts, and adds the next batch to it, in which a record may be
        again. Loaders that draw ahead tell only when another walk has begun.
        """
        now = (self._pass, None if self._draws_ahead else self._pass.drawn)
        if first:
            self._of_parts = now
        elif self._of_parts[0] is not now[0] or self._of_parts[1] != now[1]:
            raise TrainingError(
                "a batch was left amid its parts (BatchMemoryManager), and Opacus would add its sum to that of the next one, "
                "in which a record may be again; go through whole batches, or start the run again"
            )

    def step(self, number: int, rows: int) -> None:
        """A step was made from the gradients of so many examples; it must have had a batch of its own, and of that size.

        If a record makes several rows, each is clipped for itself, and it moves the sum by more than the clip. If several
        make one row, that changes by up to twice the clip (docs/theory.md §0).
        """
        one = self._pass
        one.steps += 1
        if one.steps > one.drawn or not one.sizes:
            raise TrainingError(
                f"step {number} was made without a new batch from the recorded loader: another loader was used, or one batch "
                "twice; train on the loader that make_private returned"
            )
        if rows not in one.sizes:  # batches may be drawn ahead, or left out: any of these
            raise TrainingError(
                f"step {number} was made from the gradients of {rows} examples, and {one.sizes[-1]} were drawn for it: every "
                "example must be one row of its batch. Texts that are packed into one row or cut into several, and copies that "
                "augment a batch, are not clipped as the record says; give an example without a loss the weight 0"
            )
        one.sizes.remove(rows)

    @property
    def _source(self) -> Any:
        return self._sampler if _kind(self._sampler) in _POISSON else self._sampler.sampler

    def require_every_batch(self) -> None:
        """Refuse an epoch in which all batches but the empty ones were made into steps.

        Loaders with workers, and accelerate's, draw ahead of the steps, so only a whole epoch tells; others draw when asked.
        """
        one = self._pass
        left_out = one.empty if one.ended and one.drawn - one.steps == one.empty else 0
        if not self._draws_ahead and one.steps and not one.skipped and one.drawn - one.steps >= one.skipped_empty:
            left_out = max(left_out, one.skipped_empty)
        if left_out:
            raise TrainingError(
                f"{left_out} empty batches were left out: a step of noise alone is due then, and without it the model tells "
                "that they were empty; make a step with every batch"
            )

    def _count(self) -> None:
        """Have the sampler tell of every batch. It stays an instance of its class, as Opacus' other parts expect."""
        kind = type(self._sampler)
        draw = _of_a_rank if _kind(self._sampler) is DistributedUniformWithReplacementSampler else kind.__iter__

        def counted(sampler: Any) -> Any:
            self.require_every_batch()
            one = _Pass(state_of(torch.default_generator if self.generator is None else self.generator))
            for batch in draw(sampler):
                one.draw(len(batch))
                self._pass = one
                yield batch
            one.ended = True

        self._sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": counted, "_counts": _kind(self._sampler)})


def _of_a_rank(sampler: Any) -> Iterator[list[int]]:
    """The batches of one process of several. Opacus leaves out empty ones, and with them steps that are due in all processes.

    Parts are disjoint and public, and each record of a part is drawn with the sampler's rate, as in Opacus.
    """
    indices = torch.arange(sampler.total_size)
    if sampler.shuffle:
        indices = torch.randperm(
            sampler.total_size, generator=torch.Generator().manual_seed(sampler.shuffle_seed + sampler.epoch)
        )
    own = indices[sampler.rank :: sampler.num_replicas]
    for _ in range(sampler.num_batches):
        yield own[torch.rand(len(own), generator=sampler.generator) < sampler.sample_rate].tolist()


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
