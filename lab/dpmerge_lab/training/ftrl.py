"""DP-FTRL for torch networks, user by user: the server follows noisy prefix sums of clipped updates (Kairouz et al. 2021).

In a round each of its users starts from the server's parameters, takes SGD steps over its own examples, and contributes the
difference, clipped to norm C over all parameters together. What the server learns of them is their prefix sums with noise, of a
tree or of a banded matrix.
Its update is written with the differences of those sums, which say the same:

    g_t = (Σ clipped updates of round t + z_t − z_{t−1}) / users_per_round      z: the noise of the prefix sums
    v_t = γ v_{t−1} + g_t,   θ_{t+1} = θ_t − η v_t

Without momentum that is θ_{t+1} = θ_1 − η S_t with the noisy prefix sum S_t, and with it the paper's θ_1 − η Σ_s γ^{t−s} S_s.
Where a tree is restarted, the noise of its last sum stays in θ, and momentum goes on: without noise, restarts change nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpmerge.datasets import NORM_MARGIN
from dpmerge.errors import TrainingError
from dpmerge.jobs import Progress
from dpmerge.tensors import require_absent
from dpmerge.training import fresh_generator, save_model
from dpmerge_lab.training.averaging import TrainingOn
from dpmerge_lab.training.averaging_torch import flat, load
from dpmerge_lab.training.ftrl_recipe import FtrlRecipe, Users
from dpmerge_lab.training.private_sgd import Randomness, Trained, require_no_buffers, snapshot
from dpmerge_lab.training.shift import first_share

Examples = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Clients(Protocol):
    """Users with examples of their own, numbered from 0; `tasks.user_text.UserText`, or any other."""

    def __len__(self) -> int:
        """How many users there are."""

    def examples(self, user: int, step: int) -> Examples:
        """What a user trains on if its turn is in this round, counted from 0: inputs and targets, one a row, maybe none."""


@dataclass(frozen=True)
class ShiftingClients:
    """Periodic distribution shift (Recycling Scraps §4.1.2): in round t a user shows its first examples with probability p(t).

    Otherwise its second ones: in the paper a user's questions, and its answers. Either way it takes part once.
    """

    first: Clients
    second: Clients
    period: int
    _coins: np.random.Generator = field(default_factory=fresh_generator, repr=False)

    def __post_init__(self) -> None:
        if len(self.first) != len(self.second):
            raise TrainingError(f"the two parts must be of the same users; they have {len(self.first)} and {len(self.second)}")
        if self.period < 2:
            raise TrainingError(f"a period of {self.period} rounds is no shift; give at least 2")

    def __len__(self) -> int:
        return len(self.first)

    def examples(self, user: int, step: int) -> Examples:
        """One of its two parts."""
        shown = self.first if self._coins.random() < first_share(step, self.period) else self.second
        return shown.examples(user, step)


def train_ftrl(
    network: nn.Module,
    clients: Clients,
    recipe: FtrlRecipe,
    loss: Loss,
    *,
    dataset: str,
    out: Path,
    name: str = "ftrl",
    keep: Sequence[int] = (),
    order: Sequence[Sequence[int] | Users] | None = None,
    training_on: TrainingOn | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Train, and write the model after the rounds in `keep` and after the last one to folders OUT/NAME@ROUND, as they come.

    They are checkpoints of one run: one run id, records that continue each other. `dataset` names the users it protects.
    """
    folders = {rounds: out / f"{name}@{rounds}" for rounds in recipe.kept(keep)}
    made = checkpoints(
        network,
        clients,
        recipe,
        loss,
        dataset=dataset,
        run=f"{name}-{secrets.token_hex(8)}",
        keep=keep,
        order=order,
        training_on=training_on,
        progress=progress,
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise TrainingError(f"{out}: no folder can be made there: {fault.strerror or fault}") from None
    for folder in folders.values():
        require_absent(folder)
    for trained in made:
        tensors = {key: tensor.numpy() for key, tensor in trained.state.items()}
        save_model(folders[trained.steps], tensors, trained.record)
    return list(folders.values())


def checkpoints(
    network: nn.Module,
    clients: Clients,
    recipe: FtrlRecipe,
    loss: Loss,
    *,
    dataset: str,
    run: str,
    keep: Sequence[int] = (),
    order: Sequence[Sequence[int] | Users] | None = None,
    training_on: TrainingOn | None = None,
    together: bool = False,
    progress: Progress | None = None,
) -> Iterator[Trained]:
    """Train where the network is, and give it after the rounds in `keep` and after the last one.

    `loss(network, inputs, targets)` is the mean loss of one batch of one user. Who takes part is drawn afresh for every run, or
    stated in `order` by number, and then must not depend on anyone's data. Everything is checked before the first round.
    `together` trains the users of a round side by side: the same but for rounding, and faster where the network is small.
    """
    kept, parameters = recipe.kept(keep), _trained(network)
    randomness = Randomness(parameters[0].device)
    users = len(clients)
    rounds = recipe.draw_users(randomness.sampler, users) if order is None else recipe.check_users(order, users)
    said = randomness.said
    facts = (dataset, run, said["noise"], said["sampler"] if order is None else None, said["noise_generator"])
    recipe.record(recipe.rounds, *facts)

    updates = _together if together else _one_by_one

    def made() -> Iterator[Trained]:
        for step in _rounds(parameters, network, clients, rounds, recipe, loss, randomness, training_on, updates, progress):
            if step in kept:
                yield Trained(step, snapshot(network, run), recipe.record(step, *facts))

    return made()


def _rounds(
    parameters: list[Tensor],
    network: nn.Module,
    clients: Clients,
    rounds: list[Users],
    recipe: FtrlRecipe,
    loss: Loss,
    randomness: Randomness,
    training_on: TrainingOn | None,
    updates: Callable[..., Iterator[Tensor]],
    progress: Progress | None,
) -> Iterator[int]:
    """Take the rounds; each is answered by its number once it is taken, with the server's parameters in the network."""
    current = flat(parameters)
    noise = recipe.increments(lambda: randomness.noise.like([current])[0])
    velocity, scale = torch.zeros_like(current), recipe.noise_multiplier * recipe.clip
    start, aggregated = current, None if training_on is None else training_on.begin(current)
    if progress is not None:
        progress.start(recipe.rounds, "rounds of DP-FTRL")
    try:
        for step, users in enumerate(rounds):
            network.train()
            total = torch.zeros_like(current)
            shown = [clients.examples(user, step) for user in users.tolist()]
            for update in updates(parameters, network, start, shown, recipe, loss):
                total += clipped(update, recipe.clip)
            if scale > 0:
                total += scale * next(noise)
            velocity = recipe.momentum * velocity + total / recipe.users_per_round
            current = torch.add(start, velocity, alpha=-recipe.server_learning_rate)
            load(parameters, current)
            yield step + 1
            start = current if aggregated is None else aggregated.next_start(current)
            if progress is not None:
                progress.advance()
    finally:
        if progress is not None:
            progress.finish()


def _one_by_one(
    parameters: list[Tensor], network: nn.Module, start: Tensor, shown: Sequence[Examples], recipe: FtrlRecipe, loss: Loss
) -> Iterator[Tensor]:
    """Each user's update: by how much its own SGD steps lower the parameters."""
    for examples in shown:
        inputs, targets = (torch.from_numpy(part).to(start.device) for part in examples)
        load(parameters, start)
        for x, y in _batches(inputs, targets, 0, recipe):
            gradients = torch.autograd.grad(loss(network, x, y), parameters, materialize_grads=True)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-recipe.client_learning_rate)
        yield start - flat(parameters)


def _together(
    parameters: list[Tensor], network: nn.Module, start: Tensor, shown: Sequence[Examples], recipe: FtrlRecipe, loss: Loss
) -> Iterator[Tensor]:
    """The same, at once for all users with equally many examples."""
    names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    shapes = [parameter.shape for parameter in parameters]

    def of_one(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = vector.split([shape.numel() for shape in shapes])
        own = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        called: Any = partial(torch.func.functional_call, network, own)  # all that a loss asks of a network
        return loss(called, x, y)

    gradients = torch.func.vmap(torch.func.grad(of_one))
    for size in sorted({len(labels) for _, labels in shown}):
        alike = [examples for examples in shown if len(examples[1]) == size]
        inputs, targets = (torch.from_numpy(np.stack(part)).to(start.device) for part in zip(*alike, strict=True))
        current = start.expand(len(alike), -1)
        for x, y in _batches(inputs, targets, 1, recipe):
            current = current - recipe.client_learning_rate * gradients(current, x, y)
        yield from start - current


def _batches(inputs: Tensor, targets: Tensor, axis: int, recipe: FtrlRecipe) -> Iterator[tuple[Tensor, Tensor]]:
    """What a user takes steps on; of a user without examples nothing, though torch splits it into one empty batch."""
    for _ in range(recipe.local_epochs if inputs.shape[axis] else 0):
        yield from zip(inputs.split(recipe.batch, axis), targets.split(recipe.batch, axis), strict=True)


def clipped(update: Tensor, clip: float) -> Tensor:
    """An update, shortened to norm `clip` if it is longer; one that is not finite counts as zero: that is within every norm."""
    # In double precision: over millions of numbers torch's norm of floats on a CPU comes out too small by 4e-5.
    norm = float(torch.linalg.vector_norm(update, dtype=torch.float64))
    if not norm < torch.inf:
        return torch.zeros_like(update)
    return update * min(1.0, clip * NORM_MARGIN / max(norm, 1e-30))


def _trained(network: nn.Module) -> list[Tensor]:
    """The parameters that are trained; refused where something beside them would learn from the users without noise."""
    found: list[Tensor] = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not found:
        raise TrainingError("the network has no parameters to train")
    kinds = {parameter.dtype for parameter in found}
    if kinds != {torch.float32}:
        raise TrainingError(f"the parameters must be float32 numbers; they are {', '.join(sorted(map(str, kinds)))}")
    require_no_buffers(network)
    return found
