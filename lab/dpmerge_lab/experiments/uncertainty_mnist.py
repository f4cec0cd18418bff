"""Recycling Scraps §5.1.3 (Fig. 6) in small: softmax regression on MNIST, where the paper has an LSTM and a wide ResNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from dpmerge.checkpoints import CONFIDENCE, Uncertainty
from dpmerge.datasets import Images
from dpmerge.jobs import run_all
from dpmerge.records import Record
from dpmerge.training import Recipe, Tensors, accuracy, scores, train
from dpmerge_lab.experiments.calibration import least_noise
from dpmerge_lab.experiments.portfolios import DELTA, Setting
from dpmerge_lab.experiments.results import Options, Result, timed
from dpmerge_lab.experiments.uncertainty import APART, Design, Probabilities, compared, looked_at, numbers, pictures
from dpmerge_lab.tasks.images import digits_as_images, load_images

EPSILONS = (0.5, 1.0, 2.0, 8.0)
_NORM = 50.0
_SETTING = Setting({}, _NORM, as_the_papers=True)
DESIGN = Design(
    Recipe(steps=705, learning_rate=0.5, clip=1.0, noise_multiplier=1.0, rate=256 / 60000), 401, (5, 10, 20, 50, 100), 20
)
SLOWER = 0.1  # another learning rate, at one ε: with it runs still move in their second half
_QUICK = Design(Recipe(steps=30, learning_rate=0.5, clip=1.0, noise_multiplier=1.0, rate=0.1), 6, (3, 5), 5)


@dataclass(frozen=True, eq=False)
class Trained:
    """A run: its last model, and what its own checkpoints say of its uncertainty, by way and N, if that was asked for."""

    tensors: Tensors
    record: Record
    accuracy: float
    found: Mapping[tuple[str, int], Uncertainty]


def uncertainty_mnist(options: Options) -> Result:
    """Mean widths and their ratios, for several N and ε, and once at another learning rate."""
    design = _QUICK if options.quick else DESIGN
    data = None if options.quick else options.data
    images = _images(data, options.quick)[0]
    seen = _SETTING.features(images.test)
    repeats = min(options.seeds, design.pool)
    configuration: dict[str, Any] = {
        "data": "digits" if options.quick else "mnist",
        "delta": DELTA,
        "adjacency": "add-remove",
        "recipe, but for its noise": asdict(design.recipe),
        "learning rate of the last case": SLOWER,
        "runs in the pool": design.pool,
        "repeats": repeats,
        "N": list(design.counts),
        "N for abstention": design.shown,
        "confidence": CONFIDENCE,
        "interval": "2·t·s/√N of the label with the highest mean softmax score, Student's quantile",
        "checkpoints over the second half": {n: design.steps(APART, n)[-1] - design.steps(APART, n)[-2] for n in design.counts},
    }
    with timed(Result("uncertainty-mnist", configuration)) as result:
        cases = [(f"ε = {epsilon:g}", epsilon, design.recipe.learning_rate) for epsilon in EPSILONS]
        for case, epsilon, rate in (*cases, (f"ε = 1, η = {SLOWER:g}", 1.0, SLOWER)):
            noise = least_noise(design.recipe, len(images.train), epsilon, DELTA, units=10_000)
            recipe = replace(design.recipe, noise_multiplier=noise, learning_rate=rate)
            work = partial(_run, replace(design, recipe=recipe), data, options.quick, repeats)
            runs = run_all(work, range(design.pool), jobs=options.jobs, progress=options.bar(f"{case}: training"))
            pool = [_probabilities(run.tensors, seen) for run in runs]
            found = compared(design, pool, [run.found for run in runs if run.found], repeats, images.test_labels)
            accuracies, records = [run.accuracy for run in runs], [run.record for run in runs]
            result.numbers[case] = numbers(design, noise, accuracies, records, *found)
        result.pictures = pictures(result.numbers, configuration)
    return result


@lru_cache(maxsize=1)
def _images(data: Path | None, quick: bool) -> tuple[Images, npt.NDArray[np.float32]]:
    """With the features to train on; once for each process."""
    images = digits_as_images() if quick else load_images(data, "mnist")
    return images, _SETTING.features(images.train)


def _run(design: Design, data: Path | None, quick: bool, watched: int, index: int) -> Trained:
    """Train once; the first runs of the pool, as good as any others, also keep their checkpoints and look at them."""
    images, shown = _images(data, quick)
    seen = _SETTING.features(images.test)
    half = design.recipe.steps // 2
    kept = range(half, design.recipe.steps) if index < watched else ()
    dataset = f"{'sklearn-digits' if quick else 'mnist'}-train-{len(images.train)}"
    models = train(shown, images.train_labels, 10, design.recipe, norm_bound=_NORM, dataset=dataset, checkpoints=kept)
    by_step = {model.step: model.tensors for model in models}
    found = looked_at(design, lambda step: _probabilities(by_step[step], seen)) if index < watched else {}
    last = models[-1]
    return Trained(last.tensors, last.record, accuracy(last.tensors, seen, images.test_labels), found)


def _probabilities(tensors: Tensors, seen: npt.NDArray[np.float32]) -> Probabilities:
    return np.asarray(softmax(scores(tensors, seen), axis=1))
