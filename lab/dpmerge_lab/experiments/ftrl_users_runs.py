"""Runs of ftrl_users.py: how users and runs are made, and what is measured of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from torch import Tensor, nn

from dpmerge.records import Record
from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST, Probabilities, Watcher, accuracies
from dpmerge_lab.experiments.aggregation_scores import chosen
from dpmerge_lab.experiments.aggregation_tuning import Point
from dpmerge_lab.tasks.images import digits_as_images, load_images
from dpmerge_lab.tasks.user_images import UserImages
from dpmerge_lab.training.averaging import Aggregate, MovingAverage, TailMean, TrainingOn
from dpmerge_lab.training.banded_noise import BandedNoise
from dpmerge_lab.training.ftrl import Clients, ShiftingClients, checkpoints
from dpmerge_lab.training.ftrl_recipe import FtrlRecipe

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    epsilon: float
    shifting: bool
    banded: bool = False

    @property
    def name(self) -> str:
        """For keys and files."""
        return f"{'shifting-' * self.shifting}eps{self.epsilon:g}{'-banded' * self.banded}"


@dataclass(frozen=True)
class Design:
    """How users are made, how a run is made, and what is tried."""

    data: str = "mnist"
    users: int = 7366
    images_each: int = 8
    epoch: int = 127  # rounds of one pass; a tree of 127 leaves is 7 nodes high, one of 128 is 8
    epochs: int = 4
    users_per_round: int = 58
    clip: float = 1.0
    client_learning_rate: float = 0.2
    momentum: float = 0.9
    period: int = 50
    server_learning_rates: tuple[float, ...] = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
    weights: tuple[float, ...] = (0.5, 0.95)  # of the new iterate, in EMA tr
    tails: tuple[int, ...] = (3, 5, 10, 30)
    factors: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the server's learning rate, in EMA tr and UTA tr
    trials: int = 2  # of every point
    looks: int = 200
    look_every: int = 4
    bands: tuple[int, ...] = (1, 4, 16, 64, 127)

    @property
    def rounds(self) -> int:
        """In all."""
        return self.epoch * self.epochs

    def recipe(self, banded: BandedNoise | None, learning_rate: float = 1.0, noise: float = 0.0) -> FtrlRecipe:
        """Of one run; a user takes one step with all that it shows."""
        return FtrlRecipe(
            rounds=self.rounds,
            users_per_round=self.users_per_round,
            clip=self.clip,
            noise_multiplier=noise,
            server_learning_rate=learning_rate,
            client_learning_rate=self.client_learning_rate,
            momentum=self.momentum,
            restarts=0 if banded is not None else self.epochs - 1,
            batch=self.images_each,
            banded=banded,
        )


QUICK = Design("digits", 84, 16, 7, 2, 12, 1.0, 1.0, 0.5, 4, (1.0, 8.0), (0.8,), (3,), (1.0, 2.0), 1, 6, 3, (1, 7))


@dataclass(frozen=True, eq=False)
class Work:
    """What a run needs to know; small enough to be sent to another process, which loads the images for itself."""

    design: Design
    folder: Path | None
    case: Case
    noise: float
    banded: BandedNoise | None
    device: str = "cpu"
    learning_rate: float = 1.0


@dataclass(frozen=True, eq=False)
class Loaded:
    """Users with their images, and test images: those with even numbers first."""

    users: UserImages
    dataset: str
    test: Vector
    answers: npt.NDArray[np.int64]

    def predict(self, vector: Vector) -> Probabilities:
        """What the linear model with these parameters says of the test images."""
        weights, bias = np.split(vector, [-10])
        return np.asarray(softmax(self.test @ weights.reshape(10, -1).T + bias, axis=1))

    def accuracies(self, vector: Vector) -> dict[str, float]:
        """On both halves."""
        return accuracies(self.predict(vector), self.answers)


@lru_cache(maxsize=1)
def loaded(design: Design, folder: Path | None) -> Loaded:
    """Once for each process."""
    images = digits_as_images() if design.data == "digits" else load_images(folder, design.data)
    users = UserImages.share_out(images.train, images.train_labels, design.users, design.images_each)
    order = np.argsort(np.arange(len(images.test)) % 2, kind="stable")
    return Loaded(users, f"{design.data}-{design.users}-users", images.test[order], images.test_labels[order])


def _loss(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network(inputs), targets)


def _run(work: Work, training_on: TrainingOn | None) -> tuple[list[Vector], Record]:
    """Every iterate from the start on, and the record at the end."""
    torch.set_num_threads(1)  # processes are as many as there are cores
    held, design = loaded(work.design, work.folder), work.design
    clients: Clients = held.users
    if work.case.shifting:
        clients = ShiftingClients(held.users.only("even"), held.users.only("odd"), design.period)
    network = nn.Linear(held.test.shape[1], 10, device=work.device)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    made = checkpoints(
        network,
        clients,
        design.recipe(work.banded, work.learning_rate, work.noise),
        _loss,
        dataset=held.dataset,
        run=uuid4().hex,
        keep=range(1, design.rounds),
        training_on=training_on,
        together=True,
    )
    iterates, record = [np.zeros(network.weight.numel() + 10, dtype=np.float32)], None
    for one in made:
        iterates.append(torch.cat([one.state["weight"].flatten(), one.state["bias"]]).numpy())
        record = one.record
    assert record is not None
    return iterates, record


def looks(design: Design) -> range:
    """The rounds after which accuracy is shown: the last ones."""
    return range(design.rounds, design.rounds - design.looks - 1, -design.look_every)[::-1]


def _watched(checkpoints: Sequence[Vector], held: Loaded) -> dict[str, Any]:
    """The last of them, and every inference aggregation."""
    watcher = Watcher()
    for checkpoint in checkpoints:
        watcher.see(checkpoint)
    measured = watcher.measure(held.predict, held.answers)
    return {method: measured[method] for method in (LAST, *AFTERWARDS)}


def plain_run(work: Work, followed: bool, point: Point) -> dict[str, Any]:
    """A run without aggregates at this server learning rate, all of them at its end, and the two averages on the way there."""
    held = loaded(work.design, work.folder)
    iterates, record = _run(replace(work, learning_rate=point.parameter), None)
    measured = _watched(iterates, held)
    found: dict[str, Any] = {"measured": measured, "record": record.as_dict()}
    if followed:
        ema = _aggregates(MovingAverage(decay=measured["EMA inf"]["parameter"], warm_up=True), iterates)
        uta = _aggregates(TailMean(int(measured["UTA inf"]["parameter"])), iterates)
        lines = {LAST: iterates, "EMA inf": ema, "UTA inf": uta}
        found["history"] = {line: _history(work.design, held, one) for line, one in lines.items()}
    return found


def aggregated_run(work: Work, method: str, followed: bool, point: Point) -> dict[str, Any]:
    """A run on aggregates: the last aggregate, which Alg. 2 returns, and inference aggregations of all aggregates.

    The paper speaks of the checkpoints that Alg. 2 generates, which may also be its iterates: those are kept beside.
    EMA tr is as Eq. (3) has it: p is the weight of the new iterate. The mean of the last k iterates lags behind, and steps of
    length s move UTA tr by 2s/(k + 1) only: its learning rate is (k + 1)/2 times as large, times the factor that is tuned.
    """
    held, rate = loaded(work.design, work.folder), work.learning_rate * point.rate
    if method == "EMA tr":
        aggregate: Aggregate = MovingAverage(new_weight=point.parameter)
    else:
        aggregate, rate = TailMean(int(point.parameter)), rate * (point.parameter + 1) / 2
    iterates, record = _run(replace(work, learning_rate=rate), TrainingOn(aggregate, 0))
    aggregates = _aggregates(aggregate, iterates)
    found: dict[str, Any] = {"measured": _watched(aggregates, held), "record": record.as_dict()}
    if followed:
        found["history"] = _history(work.design, held, aggregates)
        found["on top of the iterates"] = chosen(_watched(iterates, held))
    return found


def _history(design: Design, held: Loaded, checkpoints: Sequence[Vector]) -> list[float]:
    return [held.accuracies(checkpoints[step])["test"] for step in looks(design)]


def _aggregates(aggregate: Aggregate, iterates: Sequence[Vector]) -> list[Vector]:
    update = aggregate.begin()
    return [update(iterate) for iterate in iterates]
