"""How DP-FTRL is run: its numbers, which users take part when, and the record. All that its guarantee rests on but the noise.

The guarantee (docs/theory.md, `tree-aggregation`) is for users who take part at most once in each tree, under zero-out: what a
user contributes is there, or it is zero. With a banded matrix (`banded-matrix`) users take part at most once in so many rounds
as it says. Any other schedule is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator, Record
from dpmerge_lab.training.banded_noise import BandedNoise
from dpmerge_lab.training.tree_noise import TreeNoise

Users = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FtrlRecipe:
    """A run of `rounds` with `users_per_round` each; the tree is begun anew `restarts` times at equal distances.

    Noise has standard deviation noise_multiplier·clip at each node of the tree, on sums of clipped updates. A user takes
    `local_epochs` passes over its own examples in batches of `batch`, in their order, by SGD with the client learning rate.

    With `banded` there is no tree: that standard deviation is the one of its uncorrelated noise.
    """

    rounds: int
    users_per_round: int
    clip: float
    noise_multiplier: float
    server_learning_rate: float
    client_learning_rate: float
    momentum: float = 0.0
    restarts: int = 0
    batch: int = 16
    local_epochs: int = 1
    variance_reduced: bool = True
    banded: BandedNoise | None = None

    def __post_init__(self) -> None:
        faults = [
            (self.rounds < 1, "rounds must be at least 1"),
            (self.users_per_round < 1, "users_per_round must be at least 1"),
            (not 0 < self.clip < math.inf, "clip must be positive and finite"),
            (not 0 <= self.noise_multiplier < math.inf, "noise_multiplier must be finite and not negative"),
            (not 0 < self.server_learning_rate < math.inf, "server_learning_rate must be positive and finite"),
            (not 0 < self.client_learning_rate < math.inf, "client_learning_rate must be positive and finite"),
            (not 0 <= self.momentum < 1, "momentum must lie in [0, 1)"),
            (not 0 <= self.restarts < self.rounds, "restarts must lie between 0 and rounds - 1"),
            (self.batch < 1, "batch must be at least 1"),
            (self.local_epochs < 1, "local_epochs must be at least 1"),
            (self.banded is not None and self.restarts > 0, "a banded matrix has no trees, so there are no restarts"),
            (
                self.banded is not None and len(self.banded.columns) != self.rounds,
                "the banded matrix must have a column for every round",
            ),
        ]
        for wrong, text in faults:
            if wrong:
                raise TrainingError(f"{text}: {self}")
        if len(self.trees(self.rounds)) != self.restarts + 1:
            raise TrainingError(
                f"{self.restarts} restarts at equal distances do not fit into {self.rounds} rounds: every {self.tree_rounds} "
                f"rounds there would be {len(self.trees(self.rounds)) - 1}; use that many, or a number of rounds that "
                f"{self.restarts + 1} divides"
            )

    @property
    def tree_rounds(self) -> int:
        """How many rounds a tree has; the last one may have fewer."""
        return -(-self.rounds // (self.restarts + 1))

    def trees(self, rounds: int) -> list[int]:
        """How many rounds each tree has after so many in all."""
        whole, rest = divmod(rounds, self.tree_rounds)
        return [self.tree_rounds] * whole + [rest] * (rest > 0)

    def begins_tree(self, step: int) -> bool:
        """Whether a new tree begins with this round, counted from 0."""
        return step % self.tree_rounds == 0

    @property
    def once_in(self) -> int:
        """Within how many rounds nobody may take part twice: those of a tree, or any so many."""
        return self.tree_rounds if self.banded is None else self.banded.separation

    def increments(self, draw: Callable[[], Any]) -> Iterator[Any]:
        """What noise each round adds to its own sum, in units of the noise that `draw` gives."""
        if self.banded is not None:
            yield from self.banded.increments(draw)
            return
        tree = TreeNoise(draw, self.variance_reduced)
        for step in range(self.rounds):
            if self.begins_tree(step):
                tree.restart()
            yield tree.increment()

    def kept(self, checkpoints: Iterable[int]) -> list[int]:
        """The rounds after which the model is kept: those asked for, and the last."""
        wanted = sorted({*checkpoints, self.rounds})
        if wanted[0] < 1 or wanted[-1] > self.rounds:
            raise TrainingError(f"checkpoints must lie between 1 and {self.rounds} rounds; asked for {wanted}")
        return wanted

    def draw_users(self, generator: np.random.Generator, users: int) -> list[Users]:
        """Who takes part in each round, as far as all users in random order are needed.

        In every tree the order is a fresh one. For a banded matrix one order is repeated: so turns are as far apart as can be.
        """
        needed = min(self.once_in, self.rounds) * self.users_per_round
        if needed > users:
            where, fewer = ("in one tree", "more restarts") if self.banded is None else ("within them", "a smaller separation")
            raise TrainingError(
                f"{self.once_in} rounds {'between restarts ' if self.banded is None else ''}with {self.users_per_round} users "
                f"each need {needed} users, and there are {users}: someone would take part twice {where}, which the guarantee "
                f"does not cover; use fewer rounds, fewer users a round, or {fewer}"
            )

        def drawn() -> npt.NDArray[np.int64]:
            return generator.permutation(users)[:needed].reshape(-1, self.users_per_round)

        times = -(-self.rounds // self.once_in)
        orders = [drawn()] * times if self.banded is not None else [drawn() for _ in range(times)]
        return list(np.concatenate(orders)[: self.rounds])

    def check_users(self, order: Sequence[Sequence[int] | Users], users: int) -> list[Users]:
        """An order of the caller's, which must not depend on what the users' data are: refused if it is not covered."""
        rounds = [np.asarray(members, dtype=np.int64) for members in order]
        if len(rounds) != self.rounds:
            raise TrainingError(f"the order of users has {len(rounds)} rounds; the recipe has {self.rounds}")
        seen: dict[int, int] = {}
        for step, members in enumerate(rounds):
            if self.banded is None and self.begins_tree(step):
                seen.clear()
            if members.size > self.users_per_round:
                raise TrainingError(f"round {step + 1} has {members.size} users; the recipe has {self.users_per_round}")
            for user in members.tolist():
                if not 0 <= user < users:
                    raise TrainingError(f"round {step + 1} names user {user}; they are numbered from 0 to {users - 1}")
                if user in seen and step - seen[user] < self.once_in:
                    covered = (
                        "of one tree, and its guarantee covers one; leave it out there, or restart the tree in between"
                        if self.banded is None
                        else f"and the guarantee covers one in any {self.once_in}; leave it out there"
                    )
                    raise TrainingError(f"user {user} takes part in rounds {seen[user] + 1} and {step + 1} {covered}")
                seen[user] = step
        return rounds

    def record(
        self, rounds: int, dataset: str, run: str, noise: str, order: str | None, noise_generator: NoiseGenerator | None = None
    ) -> Record:
        """What was run up to a round: `noise` and `order` are the fingerprints of what drew them."""
        mechanism = {
            "kind": "dp-ftrl",
            "run": run,
            "noise_fingerprint": noise,
            "sampler_fingerprint": order,
            "noise_multiplier": self.noise_multiplier,
            "steps": rounds,
            "restarts": len(self.trees(rounds)) - 1,
            "noise_generator": noise_generator,
            **({"tree_steps": self.tree_rounds} if self.banded is None else {"separation": self.once_in}),
        }
        content = {"schema": 1, "dataset": dataset, "adjacency": "zero-out", "source": "recorded", "mechanism": mechanism}
        return Record.parse(json.dumps(content), source=run)


def nodes_above(leaves: int) -> int:
    """In how many nodes a step can be, in a tree over so many: ⌈log₂(n+1)⌉."""
    return leaves.bit_length()


# Recycling Scraps, Table 8, "Baseline": 2,000 rounds of 100 of the 342,477 users, so nobody takes part twice. Its noise
# multipliers 0.341 and 0.682 are those of a matrix mechanism (Denisov et al. 2022) whose whole stream has sensitivity C; a tree
# over 2,000 rounds has C·√11, so its nodes need √11 times as much noise for the same guarantee.
_NON_PRIVATE = FtrlRecipe(
    rounds=2000,
    users_per_round=100,
    clip=1.0,
    noise_multiplier=0.0,
    server_learning_rate=3.0,
    client_learning_rate=0.5,
    momentum=0.9,
)
_PRIVATE = replace(_NON_PRIVATE, client_learning_rate=1.0, momentum=0.95)
STACKOVERFLOW = {
    "inf": _NON_PRIVATE,
    "18.9": replace(_PRIVATE, noise_multiplier=0.341 * math.sqrt(nodes_above(2000)), server_learning_rate=0.5),
    "8.2": replace(_PRIVATE, noise_multiplier=0.682 * math.sqrt(nodes_above(2000)), server_learning_rate=0.25),
}
