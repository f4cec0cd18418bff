"""Runs of aggregation_mnist.py: how one is made, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from dpmerge.datasets import Images, bounded_features
from dpmerge.records import Record
from dpmerge.training import Tensors, train
from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST, Accuracies, Probabilities, Watcher, accuracies
from dpmerge_lab.experiments.aggregation_tuning import Point
from dpmerge_lab.experiments.calibration import least_noise
from dpmerge_lab.tasks.images import digits_as_images, load_images
from dpmerge_lab.training.averaging import Aggregate, MovingAverage, TailMean, TrainingOn
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.shift import PeriodicShift

DELTA = 1e-5
NORM = 10.0  # of the pixels with the bias
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    epsilon: float
    shifting: bool


@dataclass(frozen=True)
class Design:
    """How a run is made, but for its noise; what is tried; and how often accuracy is followed."""

    data: str = "mnist"
    steps: int = 400
    batch: float = 1024.0
    clip: float = 1.0
    learning_rate: float = 32.0
    period: int = 50
    weights: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5)  # of the new iterate, in EMA tr
    tails: tuple[int, ...] = (2, 3, 5, 10, 20, 50, 100)
    starts: tuple[int, ...] = (100, 200, 300)
    trials: int = 2  # of every point
    learning_rates: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    look_every: int = 10

    def recipe(self, case: Case, labels: npt.NDArray[np.int64], learning_rate: float, noise: float = 1.0) -> LabRecipe:
        """Of one run."""
        shift = PeriodicShift.even_and_odd(labels, self.period, self.batch) if case.shifting else None
        rate = None if case.shifting else self.batch / len(labels)
        return LabRecipe(
            steps=self.steps, learning_rate=learning_rate, clip=self.clip, noise_multiplier=noise, rate=rate, shift=shift
        )


QUICK = Design("digits", 30, 200.0, 1.0, 16.0, 10, (0.2,), (3, 5), (15, 20), 1, (4.0, 16.0), 5)


@dataclass(frozen=True)
class Work:
    """What a run needs to know; small enough to be sent to another process, which loads the images for itself."""

    design: Design
    folder: Path | None
    case: Case
    noise: float


@dataclass(frozen=True, eq=False)
class Loaded:
    """The images with their features; test images with even numbers first."""

    images: Images
    features: npt.NDArray[np.float32]
    test: npt.NDArray[np.float32]
    answers: npt.NDArray[np.int64]

    def predict(self, vector: Vector) -> Probabilities:
        """What the linear model with these parameters says of the test images."""
        weights = vector.reshape(self.images.classes, -1).astype(np.float32)
        return np.asarray(softmax(self.test @ weights.T, axis=1))

    def accuracies(self, vector: Vector) -> Accuracies:
        """On both halves."""
        return accuracies(self.predict(vector), self.answers)


@lru_cache(maxsize=1)
def loaded(name: str, folder: Path | None) -> Loaded:
    """Once for each process."""
    images = digits_as_images() if name == "digits" else load_images(folder, name)
    order = np.argsort(np.arange(len(images.test)) % 2, kind="stable")
    test = bounded_features(images.test, NORM)[order]
    return Loaded(images, bounded_features(images.train, NORM), test, images.test_labels[order])


def noise(design: Design, folder: Path | None, case: Case) -> float:
    """The least for the ε of the case."""
    labels = loaded(design.data, folder).images.train_labels
    return least_noise(design.recipe(case, labels, design.learning_rate), len(labels), case.epsilon, DELTA)


def _run(work: Work, learning_rate: float, training_on: TrainingOn | None, kept: Sequence[int]) -> tuple[list[Vector], Record]:
    """The iterates asked for, the last of them at the end, and the record."""
    held = loaded(work.design.data, work.folder)
    labels = held.images.train_labels
    recipe = replace(work.design.recipe(work.case, labels, learning_rate, work.noise), training_on=training_on)
    dataset = f"{'sklearn-digits' if work.design.data == 'digits' else work.design.data}-train-{len(labels)}"
    made = train(held.features, labels, 10, recipe, norm_bound=NORM, dataset=dataset, checkpoints=kept)
    return [_flat(one.tensors) for one in made], made[-1].record


def _flat(tensors: Tensors) -> Vector:
    return np.hstack([tensors["weight"], tensors["bias"][:, None]]).astype(np.float64).ravel()


def looks(design: Design) -> range:
    """The steps after which accuracy is shown: not those at the beginning, beside which all others look alike."""
    return range(design.steps, design.steps // 4 - 1, -design.look_every)[::-1]


def _measured(work: Work, learning_rate: float, training_on: TrainingOn | None) -> tuple[list[Vector], dict[str, Any]]:
    """The checkpoints of a run from the first on, and the last of them beside every inference aggregation."""
    held = loaded(work.design.data, work.folder)
    made, record = _run(work, learning_rate, training_on, range(1, work.design.steps + 1))
    checkpoints = [np.zeros_like(made[0]), *made]
    watcher = Watcher()
    for checkpoint in checkpoints:
        watcher.see(checkpoint)
    measured = watcher.measure(held.predict, held.answers)
    found = {"measured": {method: measured[method] for method in (LAST, *AFTERWARDS)}, "record": record.as_dict()}
    return checkpoints, found


def plain(work: Work, learning_rate: float, followed: bool, _: int) -> dict[str, Any]:
    """A run without aggregates, and all of them at its end; if it is followed, also the two averages on the way there."""
    held = loaded(work.design.data, work.folder)
    iterates, found = _measured(work, learning_rate, None)
    measured = found["measured"]
    if followed:
        update = MovingAverage(decay=measured["EMA inf"]["parameter"], warm_up=True).begin()
        averages = [update(iterate) for iterate in iterates]
        tail = int(measured["UTA inf"]["parameter"])
        shown = looks(work.design)
        lines = {
            LAST: (iterates[step] for step in shown),
            "EMA inf": (averages[step] for step in shown),
            "UTA inf": (np.mean(iterates[max(0, step + 1 - tail) : step + 1], axis=0) for step in shown),
        }
        found["history"] = {line: [held.accuracies(one)["test"] for one in vectors] for line, vectors in lines.items()}
    return found


def trained(work: Work, method: str, followed: bool, point: Point) -> dict[str, Any]:
    """A run on aggregates: Alg. 2 returns the last aggregate; and inference aggregations of its checkpoints."""
    aggregate: Aggregate = MovingAverage(new_weight=point.parameter) if method == "EMA tr" else TailMean(int(point.parameter))
    checkpoints, found = _measured(work, work.design.learning_rate, TrainingOn(aggregate, point.start))
    if followed:
        held = loaded(work.design.data, work.folder)
        found["history"] = [held.accuracies(checkpoints[step])["test"] for step in looks(work.design)]
    return found
