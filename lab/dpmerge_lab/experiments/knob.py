"""One trained portfolio for every ε: the average of its models with noise at release, beside models trained anew for each ε.

Everything is repeated with fresh randomness: the four models, the noise at release, the models trained anew. How much noise a
target needs depends on records alone. Trained anew: by the same recipe, with the noise that composition of all steps needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dpmerge.datasets import Images, bounded_features
from dpmerge.jobs import run_all
from dpmerge.rules import least_noise
from dpmerge.training import PortfolioFile, Recipe, Tensors, accuracy, fresh_generator, train
from dpmerge_lab.experiments.calibration import least_noise as noise_of_training
from dpmerge_lab.experiments.heads import mean, noisy
from dpmerge_lab.experiments.last_iterate import portfolio_file, portfolio_of
from dpmerge_lab.experiments.results import Options, Result, error_bars, mean_and_deviation, timed, with_error
from dpmerge_lab.tasks.images import digits_as_images

DELTA = 1e-4
TARGETS = (4.0, 2.0, 1.0, 0.5)


def knob(options: Options) -> Result:
    """Test accuracy at every target, by noise at release and by training anew."""
    file = portfolio_file("knob.yaml")
    images = digits_as_images(centred=True)
    recipe = _recipe(file, len(images.train))
    targets = TARGETS[-1:] if options.quick else TARGETS
    configuration = {"delta": DELTA, "models": len(file.runs), "recipe": vars(recipe), "repetitions": options.seeds}
    with timed(Result("knob", configuration)) as result:
        portfolio = portfolio_of(file, len(images.train))
        even = portfolio.weights({name: 1 / len(file.runs) for name in file.runs})
        asked = [least_noise(even, epsilon=epsilon, delta=DELTA) for epsilon in targets]
        anew = [replace(recipe, noise_multiplier=noise_of_training(recipe, len(images.train), e, DELTA)) for e in targets]
        repeat = partial(_repetition, images, file, recipe, [noise for noise, _ in asked], anew)
        scores = np.array(run_all(repeat, range(options.seeds), jobs=options.jobs, progress=options.bar("repetitions")))
        for place, (epsilon, (noise, guarantee)) in enumerate(zip(targets, asked, strict=True)):
            result.numbers[f"{epsilon:g}"] = {
                "noise": noise,
                "epsilon": guarantee.epsilon,
                "theorem": guarantee.theorem,
                "noise at release": mean_and_deviation(scores[:, 0, place]),
                "trained anew": mean_and_deviation(scores[:, 1, place]),
                "noise multiplier of training anew": anew[place].noise_multiplier,
            }
    result.table = (
        "test accuracy of one portfolio with noise at release, and of models trained anew (mean ± standard error)",
        ["ε", "noise τ", "one portfolio", "trained anew", "its σ"],
        [_row(epsilon, row) for epsilon, row in result.numbers.items()],
    )
    result.pictures = pictures(result.numbers)
    return result


def pictures(numbers: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The table."""
    lines = [
        {"label": label, **error_bars([row[key] for row in numbers.values()])}
        for label, key in (("one portfolio, noise at release", "noise at release"), ("trained anew", "trained anew"))
    ]
    runs = next(iter(numbers.values()))["trained anew"]["runs"]
    axes = {"x_label": f"ε at δ = {DELTA:g}", "y_label": "test accuracy", "categories": [f"ε = {one}" for one in numbers]}
    title = "One portfolio for every ε, beside models trained anew"
    subtitle = f"softmax regression on digits; mean ± standard error, {runs} repetitions"
    return {"table": {"kind": "lines", "title": title, "subtitle": subtitle, **axes, "lines": lines}}


def _row(epsilon: str, row: dict[str, Any]) -> list[str]:
    by_noise, anew = with_error(row["noise at release"], 3), with_error(row["trained anew"], 3)
    return [epsilon, f"{row['noise']:.4f}", by_noise, anew, f"{row['noise multiplier of training anew']:.2f}"]


def _recipe(file: PortfolioFile, examples: int) -> Recipe:
    """The one recipe of all runs."""
    (recipe,) = {form.recipe(np.zeros(examples, dtype=np.int64)) for form in file.runs.values()}
    return recipe


def _repetition(
    images: Images, file: PortfolioFile, recipe: Recipe, noises: Sequence[float], anew: Sequence[Recipe], _: int
) -> list[list[float]]:
    bound = file.about.norm_bound
    assert bound is not None
    features, test = bounded_features(images.train, bound), bounded_features(images.test, bound)

    def trained(by: Recipe) -> Tensors:
        dataset = images.identity
        return train(features, images.train_labels, images.classes, by, norm_bound=bound, dataset=dataset)[-1].tensors

    def score(tensors: Tensors) -> float:
        return accuracy(tensors, test, images.test_labels)

    models = [trained(recipe) for _ in file.runs]
    average, generator = mean(models), fresh_generator()
    return [[score(noisy(average, noise, generator)) for noise in noises], [score(trained(by)) for by in anew]]
