"""Recycling Scraps §5.1.3 (Fig. 6) in small: confidence intervals from checkpoints of one run against independent runs.

The paper trains an LSTM and a wide ResNet; here it is softmax regression on MNIST. As there, the independent runs are drawn
from a pool of 101, each at the full budget, and the checkpoints are those of the last N steps. A third way keeps to what the
theorem asks for: N checkpoints as far apart as the second half of the run allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from dpmerge.checkpoints import (
    CONFIDENCE,
    Abstention,
    Uncertainty,
    abstention_curve,
    abstention_panel,
    abstention_picture,
    chosen_steps,
    uncertainty,
)
from dpmerge.datasets import Images
from dpmerge.jobs import run_all
from dpmerge.records import Model, Portfolio, Record
from dpmerge.rules import Joint
from dpmerge.training import Recipe, Tensors, accuracy, fresh_generator, scores, train
from dpmerge_lab.experiments.calibration import least_noise
from dpmerge_lab.experiments.portfolios import DELTA, Setting
from dpmerge_lab.experiments.results import Options, Result, mean_and_deviation, timed
from dpmerge_lab.tasks.images import digits_as_images, load_images

EPSILONS = (0.5, 1.0, 2.0, 8.0)
RUNS, LAST, APART, TOP = "independent runs", "last N checkpoints", "N checkpoints over the second half", "top score"
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
Probabilities = npt.NDArray[np.floating]
Widths = Mapping[str, Mapping[int, Sequence[float]]]  # by way and N, one for each repeat
_NORM = 50.0
_SETTING = Setting({}, _NORM, as_the_papers=True)


@dataclass(frozen=True)
class Design:
    """Sizes: of the pool of runs, of the samples N, and the N for which abstention is shown."""

    recipe: Recipe
    pool: int
    counts: tuple[int, ...]
    shown: int

    @classmethod
    def of(cls, quick: bool) -> Design:
        """The paper's pool on MNIST, or a few runs on the digits."""
        if quick:
            return cls(Recipe(steps=30, learning_rate=0.5, clip=1.0, noise_multiplier=1.0, rate=0.1), 6, (3, 5), 5)
        return cls(
            Recipe(steps=705, learning_rate=0.5, clip=1.0, noise_multiplier=1.0, rate=256 / 60000),
            101,
            (5, 10, 20, 50, 100),
            20,
        )

    def steps(self, way: str, count: int) -> list[int]:
        """Of the checkpoints to use."""
        total, half = self.recipe.steps, self.recipe.steps // 2
        every = range(half, total + 1)
        return chosen_steps(every, last=count, separation=1 if way == LAST else (total - half) // (count - 1))


@dataclass(frozen=True, eq=False)
class Trained:
    """A run: its last model, and what its own checkpoints say of its uncertainty, by way and N, if that was asked for."""

    tensors: Tensors
    record: Record
    accuracy: float
    found: Mapping[tuple[str, int], Uncertainty]


def uncertainty_mnist(options: Options) -> Result:
    """Mean widths and their ratios, for several N and ε."""
    design = Design.of(options.quick)
    data = None if options.quick else options.data
    images = _images(data, options.quick)[0]
    seen = _SETTING.features(images.test)
    repeats = min(options.seeds, design.pool)
    configuration: dict[str, Any] = {
        "data": "digits" if options.quick else "mnist",
        "delta": DELTA,
        "adjacency": "add-remove",
        "recipe, but for its noise": asdict(design.recipe),
        "runs in the pool": design.pool,
        "repeats": repeats,
        "N": list(design.counts),
        "confidence": CONFIDENCE,
        "interval": "2·t·s/√N of the label with the highest mean softmax score, Student's quantile",
        "checkpoints over the second half": {n: design.steps(APART, n)[-1] - design.steps(APART, n)[-2] for n in design.counts},
    }
    with timed(Result("uncertainty-mnist", configuration)) as result:
        curves = []
        for epsilon in EPSILONS:
            noise = least_noise(design.recipe, len(images.train), epsilon, DELTA, units=10_000)
            recipe = replace(design.recipe, noise_multiplier=noise)
            work = partial(_run, replace(design, recipe=recipe), data, options.quick, repeats)
            runs = run_all(work, range(design.pool), jobs=options.jobs, progress=options.bar(f"ε = {epsilon:g}: training"))
            pool = [_probabilities(run.tensors, seen) for run in runs]
            found = compared(design, pool, [run.found for run in runs if run.found], repeats, images.test_labels)
            accuracies, records = [run.accuracy for run in runs], [run.record for run in runs]
            result.numbers[f"ε = {epsilon:g}"] = numbers(design, noise, accuracies, records, *found)
            curves.append(abstention_panel(found[1], f"ε = {epsilon:g}"))
        result.pictures = {
            **pictures(result.numbers, configuration),
            "abstention": abstention_picture(
                curves, f"{subtitle(configuration)}, N = {design.shown}, the first repeat"
            ).as_dict(),
        }
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


def _some(pool: Sequence[Probabilities], count: int) -> Iterable[Probabilities]:
    return (pool[index] for index in fresh_generator().choice(len(pool), count, replace=False))


def _epsilon(records: Sequence[Record]) -> float:
    """Of these runs together."""
    portfolio = Portfolio(tuple(Model(f"run-{index}", record) for index, record in enumerate(records)))
    weights = portfolio.weights_in_order([1 / len(records)] * len(records))
    return Joint(weights).guarantee(delta=DELTA, by="pld").epsilon


def looked_at(design: Design, probabilities: Callable[[int], Probabilities]) -> Mapping[tuple[str, int], Uncertainty]:
    """What checkpoints of one run say, by way and N; `probabilities` are those after a step."""
    return {
        (way, count): uncertainty(probabilities(step) for step in design.steps(way, count))
        for way in (LAST, APART)
        for count in design.counts
    }


def compared(
    design: Design,
    pool: Sequence[Probabilities],
    watched: Sequence[Mapping[tuple[str, int], Uncertainty]],
    repeats: int,
    answers: npt.NDArray[np.int64],
) -> tuple[Widths, dict[str, Abstention]]:
    """Mean widths of each way, and accuracy against coverage by them and by the score of the last checkpoints' mean alone."""
    drawn = {n: [uncertainty(_some(pool, n)) for _ in range(repeats)] for n in design.counts}
    widths = {RUNS: {n: [one.mean_width for one in found] for n, found in drawn.items()}}
    widths |= {way: {n: [found[way, n].mean_width for found in watched] for n in design.counts} for way in (LAST, APART)}
    shown = {RUNS: drawn[design.shown][0], **{way: watched[0][way, design.shown] for way in (LAST, APART)}}
    curves = {way: abstention_curve(one.widths, one.labels == answers) for way, one in shown.items()}
    last = shown[LAST]
    return widths, {**curves, TOP: abstention_curve(-last.scores, last.labels == answers)}


def numbers(
    design: Design,
    noise: float,
    accuracies: Sequence[float],
    records: Sequence[Record],
    widths: Widths,
    curves: Mapping[str, Abstention],
) -> dict[str, Any]:
    """Of one ε."""
    return {
        "noise multiplier": noise,
        "test accuracy": mean_and_deviation(accuracies),
        "rows": [_row(n, {way: of[n] for way, of in widths.items()}, records) for n in design.counts],
        f"accuracy where answered, N = {design.shown}": {
            label: {f"{share:g}": curve.at(share) for share in (0.5, 0.8, 0.9, 1.0)} for label, curve in curves.items()
        },
    }


def _row(count: int, widths: Mapping[str, Sequence[float]], records: Sequence[Record]) -> dict[str, Any]:
    reference = float(np.mean(widths[RUNS]))
    return {
        "N": count,
        "mean width": {way: mean_and_deviation(values) for way, values in widths.items()},
        "independent runs' width / checkpoints'": {way: reference / float(np.mean(widths[way])) for way in (LAST, APART)},
        "epsilon of one run": _epsilon(records[:1]),
        "epsilon of N runs together": _epsilon(records[:count]),
    }


def pictures(numbers: Mapping[str, Any], configuration: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Widths and ratios with their standard errors; one panel for each ε, or for each way."""
    what = f"{subtitle(configuration)}, mean ± standard error over {configuration['repeats']} repeats"
    common = {"kind": "lines", "subtitle": what}
    x = {"x_label": "N", "x_scale": "log"}
    counts = configuration["N"]

    def line(label: str, found: Sequence[tuple[float, float]], of_logarithms: bool = False) -> dict[str, Any]:
        def end(mean: float, error: float) -> float:
            return mean * math.exp(error / mean) if of_logarithms else mean + error

        low, high = ([end(mean, sign * error) for mean, error in found] for sign in (-1, 1))
        about = {"label": label, "x": counts, "standing": "measured", "markers": True}
        return {**about, "y": [mean for mean, _ in found], "low": low, "high": high}

    def reference(value: float) -> dict[str, Any]:
        return {"label": f"factor {value:g}", "x": counts, "y": [value] * len(counts), "standing": "reference"}

    widths = [
        {"title": name, **x, "y_label": "mean width", "y_scale": "log"}
        | {"lines": [line(way, [_width(row, way) for row in of["rows"]]) for way in (RUNS, LAST, APART)]}
        for name, of in numbers.items()
    ]
    ratios: list[dict[str, Any]] = [
        {"title": way, **x, "y_label": "independent runs' width / checkpoints'", "y_scale": "log"}
        | {"lines": [line(name, [ratio(row, way) for row in of["rows"]], of_logarithms=True) for name, of in numbers.items()]}
        for way in (LAST, APART)
    ]
    for panel in ratios:
        panel["lines"] += [reference(value) for value in (1.0, 2.0, 4.0)]
    caption = (
        f"Mean over the test examples of the width of the {100 * CONFIDENCE:g} % interval of the top score (Recycling Scraps, "
        "Fig. 6). Independent runs cost N times the computation and the ε of all together; checkpoints cost nothing more than "
        "their run. Bands of ratios are those of their logarithms: a ratio is positive, however uncertain."
    )
    return {
        "widths": {**common, "title": "Uncertainty from checkpoints and from runs", "caption": caption, "panels": widths},
        "ratios": {**common, "title": "How much too small checkpoints' widths are", "caption": caption, "panels": ratios},
    }


def _width(row: Mapping[str, Any], way: str) -> tuple[float, float]:
    """Mean and standard error."""
    found = row["mean width"][way]
    return found["mean"], found["std"] / math.sqrt(found["runs"])


def ratio(row: Mapping[str, Any], way: str) -> tuple[float, float]:
    """Of the width from runs to that from checkpoints; its standard error to first order, as if repeats were independent."""
    (runs, of_runs), (checkpoints, of_checkpoints) = _width(row, RUNS), _width(row, way)
    return runs / checkpoints, runs / checkpoints * math.hypot(of_runs / runs, of_checkpoints / checkpoints)


def subtitle(configuration: Mapping[str, Any]) -> str:
    data, model = configuration["data"], configuration.get("model", "softmax regression")
    return f"{model} on {NAMES.get(data, data)}, δ = {DELTA:g}"
