"""Recycling Scraps Table 3 in small: seven aggregations of the iterates of a private softmax regression on MNIST, against none.

Plain and with batches that swing between even and odd digits, ε = 1 and 8, each repeated. Parameters of inference aggregations
are chosen by Alg. 4 on one half of the public test images, (p, τ) of training on aggregates by Alg. 3 on the same half with
runs of their own; the other half is reported. Runs on aggregates are measured alone and, as the paper's are, with an inference
aggregation on top. The learning rate is constant, as in the paper. It decides how noisy the last iterate is, and so what there
is to gain: the table is for a large one, and other rates are shown beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from dpmerge.datasets import Images, bounded_features
from dpmerge.jobs import run_all
from dpmerge.profiles import run_profile
from dpmerge.records import Model, Record
from dpmerge.training import Tensors, train
from dpmerge_lab.experiments.aggregation import (
    AFTERWARDS,
    LAST,
    METHODS,
    TRAINED,
    Accuracies,
    Probabilities,
    Watcher,
    accuracies,
)
from dpmerge_lab.experiments.aggregation_cifar10 import PAPER
from dpmerge_lab.experiments.aggregation_mnist_pictures import pictures
from dpmerge_lab.experiments.aggregation_scores import CHOSEN, clear, gain, parameters, scores
from dpmerge_lab.experiments.calibration import least_noise
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed
from dpmerge_lab.tasks.images import digits_as_images, load_images
from dpmerge_lab.training.averaging import MovingAverage, TailMean, TrainingOn
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.shift import PeriodicShift
from dpmerge_lab.training.tuning import TunedTraining, tune_training

DELTA = 1e-5
NORM = 10.0  # of the pixels with the bias
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    epsilon: float
    shifting: bool


CASES = {
    "eps8": Case(8, False),
    "eps1": Case(1, False),
    "shifting-eps8": Case(8, True),
    "shifting-eps1": Case(1, True),
}


@dataclass(frozen=True)
class Design:
    """How a run is made, but for its noise; what is tried; and how often accuracy is followed."""

    data: str = "mnist"
    steps: int = 400
    batch: float = 1024.0
    clip: float = 1.0
    learning_rate: float = 32.0
    period: int = 50
    decays: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95)
    tails: tuple[int, ...] = (3, 10, 20, 50)
    starts: tuple[int, ...] = (200, 300)
    learning_rates: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    look_every: int = 10

    def recipe(self, case: Case, labels: npt.NDArray[np.int64], learning_rate: float, noise: float = 1.0) -> LabRecipe:
        """Of one run."""
        shift = PeriodicShift.even_and_odd(labels, self.period, self.batch) if case.shifting else None
        rate = None if case.shifting else self.batch / len(labels)
        return LabRecipe(
            steps=self.steps, learning_rate=learning_rate, clip=self.clip, noise_multiplier=noise, rate=rate, shift=shift
        )


QUICK = Design("digits", 30, 200.0, 1.0, 16.0, 10, (0.8,), (3,), (15, 20), (4.0, 16.0), 5)


@dataclass(frozen=True)
class Work:
    """What a run needs to know; small enough to be sent to another process, which loads the images for itself."""

    design: Design
    folder: Path | None
    case: Case
    noise: float


def aggregation_mnist(options: Options) -> Result:
    """The table with what each aggregation gains over the last iterate, the price of tuning, and accuracy over the steps."""
    design, folder = (QUICK, None) if options.quick else (Design(), options.data)
    loaded = _loaded(design.data, folder)
    trials = len(CASES) * len(design.starts)
    configuration = {
        **asdict(design),
        "delta": DELTA,
        "adjacency": "add-remove",
        "repetitions": options.seeds,
        "norm_bound": NORM,
        "learning rate of the table": "set by hand after a look at test accuracy at several rates, such that the last iterate "
        "is noisy at ε = 1; it is larger than the best one for the last iterate",
        "features": "pixels from 0 to 1, shortened to the norm bound",
        "examples": len(loaded.images.train),
        "test images": "those with even numbers choose parameters, those with odd numbers are reported",
        "checkpoints of a run on aggregates": "the iterates up to step τ, then the aggregates that its steps start from",
        "runs to tune training on aggregates": {"EMA tr": trials * len(design.decays), "UTA tr": trials * len(design.tails)},
    }
    with timed(Result("aggregation-mnist", configuration)) as result:
        calibrate = partial(_noise, design, folder)
        noise = run_all(calibrate, list(CASES.values()), jobs=options.jobs, progress=options.bar("noise for ε"))
        for (name, case), sigma in zip(CASES.items(), noise, strict=True):
            result.numbers[name] = _case(name, Work(design, folder, case, sigma), options)
        result.numbers["outside two standard errors"] = {
            name: [method for method, found in result.numbers[name]["gain over no aggregation"].items() if clear(found)]
            for name in CASES
        }
        shown = "digits" if options.quick else "MNIST"
        result.pictures = pictures(result.numbers, list(CASES), shown, options.seeds, design.learning_rate)
    return result


def _case(name: str, work: Work, options: Options) -> dict[str, Any]:
    design, repeated = work.design, range(options.seeds)

    def bar(what: str) -> Any:
        return options.bar(f"{name}: {what}")

    tuned = {
        method: tune_training(partial(_validated, work, method), values, design.starts, jobs=options.jobs, progress=bar(method))
        for method, values in zip(TRAINED, (design.decays, design.tails), strict=True)
    }
    plain = run_all(partial(_plain, work, design.learning_rate, True), repeated, jobs=options.jobs, progress=bar("runs"))
    again = [(method, tuned[method].best.parameter, tuned[method].best.start) for method in TRAINED for _ in repeated]
    on_aggregates = run_all(partial(_trained, work), again, jobs=options.jobs, progress=bar("runs on aggregates"))
    trained = {method: on_aggregates[k * options.seeds :][: options.seeds] for k, method in enumerate(TRAINED)}
    on_top = {method: scores(runs) for method, runs in {LAST: plain, **trained}.items()}
    last = on_top[LAST][LAST]
    alone = {**on_top[LAST], **{method: on_top[method][LAST] for method in TRAINED}}
    history = {line: [run["history"][line] for run in plain] for line in plain[0]["history"]}
    history |= {method: [run["history"] for run in runs] for method, runs in trained.items()}
    profile = run_profile(Model(name, Record.parse(json.dumps(plain[0]["record"]), source=name))).profile
    return {
        "epsilon": {"pld": profile.epsilon(DELTA), "rdp": profile.epsilon_by_renyi(DELTA)},
        "noise multiplier": work.noise,
        "test accuracy": {method: mean_and_deviation(alone[method]) for method in METHODS},
        "gain over no aggregation": {method: gain(alone[method], last) for method in METHODS[1:]},
        "inference aggregation on top": {
            method: {
                "test accuracy": {name: mean_and_deviation(values) for name, values in found.items()},
                "gain over its own last checkpoint": {name: gain(found[name], found[LAST]) for name in (*AFTERWARDS, CHOSEN)},
                "gain over the same of plain runs": {name: gain(values, on_top[LAST][name]) for name, values in found.items()},
                "chosen on the validation half": parameters(plain if method == LAST else trained[method]),
            }
            for method, found in on_top.items()
        },
        "chosen on the validation half": parameters(plain),
        "tuning of training on aggregates": {method: _tuning(found) for method, found in tuned.items()},
        **_sweep(work, plain, options, bar),
        "steps": list(_looks(design)),
        "test accuracy over the steps": {line: mean_and_deviation(runs) for line, runs in history.items()},
        "the paper's CIFAR-10 accuracy, percent": dict(zip(METHODS, PAPER[name], strict=True)),
    }


def _sweep(work: Work, plain: Sequence[Any], options: Options, bar: Any) -> dict[str, Any]:
    """What the last iterate and its aggregates score at other learning rates; and at the one that is best for the former."""
    found, validation = {}, {}
    for rate in work.design.learning_rates:
        runs = plain
        if rate != work.design.learning_rate:
            alone = partial(_plain, work, rate, False)
            runs = run_all(alone, range(options.seeds), jobs=options.jobs, progress=bar(f"learning rate {rate:g}"))
        measured = scores(runs)
        validation[f"{rate:g}"] = float(np.mean([run["measured"][LAST]["validation"] for run in runs]))
        found[f"{rate:g}"] = {
            "test accuracy": {method: mean_and_deviation(values) for method, values in measured.items()},
            "gain over no aggregation": {m: gain(values, measured[LAST]) for m, values in measured.items() if m != LAST},
        }
    best = max(validation, key=validation.__getitem__)
    return {"learning rates": found, "best learning rate for the last iterate": best}


def _tuning(found: TunedTraining) -> dict[str, Any]:
    return {**found.as_dict(), "price": found.price(DELTA, by="pld")}


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
def _loaded(name: str, folder: Path | None) -> Loaded:
    """Once for each process."""
    images = digits_as_images() if name == "digits" else load_images(folder, name)
    order = np.argsort(np.arange(len(images.test)) % 2, kind="stable")
    test = bounded_features(images.test, NORM)[order]
    return Loaded(images, bounded_features(images.train, NORM), test, images.test_labels[order])


def _noise(design: Design, folder: Path | None, case: Case) -> float:
    labels = _loaded(design.data, folder).images.train_labels
    return least_noise(design.recipe(case, labels, design.learning_rate), len(labels), case.epsilon, DELTA)


def _run(work: Work, learning_rate: float, training_on: TrainingOn | None, kept: Sequence[int]) -> tuple[list[Vector], Record]:
    """The iterates asked for, the last of them at the end, and the record."""
    loaded = _loaded(work.design.data, work.folder)
    labels = loaded.images.train_labels
    recipe = replace(work.design.recipe(work.case, labels, learning_rate, work.noise), training_on=training_on)
    dataset = f"{'sklearn-digits' if work.design.data == 'digits' else work.design.data}-train-{len(labels)}"
    made = train(loaded.features, labels, 10, recipe, norm_bound=NORM, dataset=dataset, checkpoints=kept)
    return [_flat(one.tensors) for one in made], made[-1].record


def _flat(tensors: Tensors) -> Vector:
    return np.hstack([tensors["weight"], tensors["bias"][:, None]]).astype(np.float64).ravel()


def _looks(design: Design) -> range:
    """The steps after which accuracy is shown: not those at the beginning, beside which all others look alike."""
    return range(design.steps, design.steps // 4 - 1, -design.look_every)[::-1]


def _measured(work: Work, learning_rate: float, training_on: TrainingOn | None) -> tuple[list[Vector], dict[str, Any]]:
    """The checkpoints of a run from the first on, and the last of them beside every inference aggregation."""
    loaded = _loaded(work.design.data, work.folder)
    made, record = _run(work, learning_rate, training_on, range(1, work.design.steps + 1))
    checkpoints = [np.zeros_like(made[0]), *made]
    watcher = Watcher()
    for checkpoint in checkpoints:
        watcher.see(checkpoint)
    measured = watcher.measure(loaded.predict, loaded.answers)
    found = {"measured": {method: measured[method] for method in (LAST, *AFTERWARDS)}, "record": record.as_dict()}
    return checkpoints, found


def _plain(work: Work, learning_rate: float, followed: bool, _: int) -> dict[str, Any]:
    """A run without aggregates, and all of them at its end; if it is followed, also the two averages on the way there."""
    loaded = _loaded(work.design.data, work.folder)
    iterates, found = _measured(work, learning_rate, None)
    measured = found["measured"]
    if followed:
        update = MovingAverage(decay=measured["EMA inf"]["parameter"], warm_up=True).begin()
        averages = [update(iterate) for iterate in iterates]
        tail = int(measured["UTA inf"]["parameter"])
        looks = _looks(work.design)
        lines = {
            LAST: (iterates[step] for step in looks),
            "EMA inf": (averages[step] for step in looks),
            "UTA inf": (np.mean(iterates[max(0, step + 1 - tail) : step + 1], axis=0) for step in looks),
        }
        found["history"] = {line: [loaded.accuracies(one)["test"] for one in vectors] for line, vectors in lines.items()}
    return found


def _trained(work: Work, choice: tuple[str, float, int]) -> dict[str, Any]:
    """A run on aggregates: Alg. 2 returns the last aggregate; and inference aggregations of its checkpoints."""
    loaded = _loaded(work.design.data, work.folder)
    checkpoints, found = _measured(work, work.design.learning_rate, _training_on(*choice))
    return {**found, "history": [loaded.accuracies(checkpoints[step])["test"] for step in _looks(work.design)]}


def _validated(work: Work, method: str, parameter: float, start: int) -> tuple[float, Record]:
    """A trial of Alg. 3."""
    vectors, record = _run(work, work.design.learning_rate, _training_on(method, parameter, start), ())
    return _loaded(work.design.data, work.folder).accuracies(vectors[-1])["validation"], record


def _training_on(method: str, parameter: float, start: int) -> TrainingOn:
    aggregate = MovingAverage(decay=parameter) if method == "EMA tr" else TailMean(int(parameter))
    return TrainingOn(aggregate, start)
