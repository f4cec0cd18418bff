"""Several processes that train one model with Opacus: what they must have in common, and what not.

Each process draws from its own part of the data, every record of it with the sampler's rate, and clips; the first adds the
noise; the sum over processes makes the step. So the union of the batches is a Poisson batch of the whole data, whatever the
parts are, and the step is the Gaussian mechanism on its sum (docs/theory.md §1), if three things hold, which are looked at
here: coins are independent between processes, clip and rate are the same in all, and none saw a tensor change without noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import torch
from opacus.optimizers import DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping
from torch import distributed

from dpmerge.errors import TrainingError
from dpmerge.records import FullPhase
from dpmerge.training.recorder_batches import Batches
from dpmerge.training.recorder_randomness import is_secure, sampler_fingerprint, seed_of, state_of

DISTRIBUTED = (DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping)


class Ranks:
    """The processes of one training; mostly there is one."""

    def __init__(self, optimizer: Any) -> None:
        several = isinstance(optimizer, DISTRIBUTED)
        self.size: int = optimizer.world_size if several else 1
        self.first: bool = not several or optimizer.rank == 0

    def require_parts(self, batches: Batches) -> None:
        """Refuse loaders that do not divide the same data among these processes."""
        if batches.processes != self.size:
            raise TrainingError(
                f"the loader divides the data among {batches.processes} processes, and {self.size} add up their gradients, "
                "so a record may be in several batches of one step, or in none; train with Poisson sampling on the loader of "
                "make_private"
            )
        if self.size > 1 and len({str(one) for one in self._gather((batches.examples, batches.ends()))}) > 1:
            raise TrainingError(
                "the processes have different data: Opacus gives each a part of its own data only, and which one changes "
                "with their number. Give every process the whole dataset, in the same order"
            )

    def require_plain(self, options: Collection[object]) -> None:
        """Refuse what is checked in one process only, or depends on the size of a part."""
        if self.size > 1 and any(option is not None for option in options):
            raise TrainingError("norm_bound and shard are for a training in one process; leave them out, or train in one")

    def require_independent(self, engine: Any, optimizer: Any, sampler: Any) -> None:
        """Refuse equal coins in two processes: who is drawn in one would then tell who is drawn in the other."""
        if self.size == 1:
            return
        own = optimizer.generator if self.first else None  # of the noise, which only the first process draws
        found = self._gather((_known(engine, torch.default_generator if sampler is None else sampler), _known(engine, own)))
        coins = [one for one, _ in found if one is not None]
        if any(None in one for one in coins):
            raise TrainingError("the sampling generator of a process cannot be read, so equal coins would not be noticed")
        for values in zip(*coins, strict=True):
            if len(set(values)) < len(values):
                raise TrainingError(
                    "processes of this training draw their batches from generators with the same seed: who is drawn in one "
                    "then tells who is drawn in another, and sampling hides nothing. Seed each process differently after the "
                    "module is built (torch.seed()), or not at all; the first process hands its parameters to all"
                )
            if found[0][1] is not None and set(values) & set(found[0][1]):
                raise TrainingError(
                    "the noise generator has the seed of a process' batches: seed them differently, or not at all"
                )

    def fingerprint(self, engine: Any, generator: Any) -> str | None:
        """Of the sampling generators of all processes."""
        each = self._gather(sampler_fingerprint(engine, generator))
        if self.size == 1 or None in each:
            return each[0] if self.size == 1 else None
        return hashlib.blake2b(" ".join(each).encode(), digest_size=16).hexdigest()

    def agree(self, phase: FullPhase, changed: Collection[str]) -> set[str]:
        """A step is made in all processes: it must be the same in each. Returns what changed without noise in any."""
        found = self._gather((phase.model_dump(mode="json"), sorted(changed)))
        for name in FullPhase.model_fields:
            values = [settings[name] for settings, _ in found]
            if any(value != values[0] for value in values):
                raise TrainingError(
                    f"{name} differs between the processes of this training ({', '.join(map(str, values))}); a record needs one"
                )
        return set().union(*(names for _, names in found))

    def _gather(self, mine: Any) -> list[Any]:
        if self.size == 1:
            return [mine]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, mine)
        return found


def _known(engine: Any, generator: Any) -> tuple[bytes | None, int | None] | None:
    """State and seed of a generator; None if there is none, or it is the system's entropy."""
    if generator is None or is_secure(engine, generator):
        return None
    seed = seed_of(generator)
    if seed is not None and generator.device.type == "cpu":
        seed &= 0xFFFFFFFF  # torch uses no more of it there
    return state_of(generator), seed
