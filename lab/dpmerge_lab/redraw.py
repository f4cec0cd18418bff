"""`python -m dpmerge_lab.redraw lab/results`: pictures again from kept numbers, where those are enough; no number changes.

    python -m dpmerge_lab.redraw lab/results --only coverage --only heads
    python -m dpmerge_lab.redraw lab/results --heatmaps
    python -m dpmerge_lab.redraw lab/results --soundness docs/images/soundness.png

Heatmaps depend on records alone and are accounted for anew, in two minutes. Pictures of cifar10, cifar10-pretrained,
cifar10-pretrained-small and cifar10-checkpoints come from kept runs: `dpmerge reproduce NAME --out lab/results/NAME`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmerge.errors import DpmergeError
from dpmerge.figures import Picture, draw
from dpmerge_lab.audit import summary
from dpmerge_lab.experiments import (
    aggregation_cifar10_pictures,
    aggregation_mnist_pictures,
    cifar10,
    composition,
    coverage_pictures,
    ftrl_users_pictures,
    heads_pictures,
    knob,
    last_iterate,
    mean_estimation_pictures,
    mnist,
    portfolio_pictures,
    quadratic,
    tail_averaging_pictures,
    tuning_cost,
    uncertainty,
)
from dpmerge_lab.experiments.aggregation_mnist import CASES
from dpmerge_lab.experiments.portfolios import replace_one, restated
from dpmerge_lab.experiments.results import Options, read

Documents = dict[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Kept:
    """What an experiment left, and where."""

    folder: Path
    configuration: Mapping[str, Any]
    numbers: Mapping[str, Any]


def _aggregation_mnist(kept: Kept) -> Documents:
    how = "MNIST", kept.configuration["repetitions"], kept.configuration["learning_rate"]
    return aggregation_mnist_pictures.pictures(kept.numbers, list(CASES), *how)


def _replace_one(kept: Kept) -> Documents:
    (seeds,) = {setting["repetitions"] for setting in kept.configuration.values()}
    return mnist.replace_one_pictures(kept.numbers, "MNIST", Options(seeds=seeds))


def _heads(kept: Kept, what: str) -> Documents:
    return heads_pictures.pictures(kept.numbers, what, heads_pictures.kept_beside(kept.folder), kept.configuration["delta"])


# By the folder of the results.
_PICTURES: dict[str, Callable[[Kept], Documents]] = {
    "aggregation-cifar10": lambda kept: aggregation_cifar10_pictures.pictures(kept.numbers),
    "aggregation-cifar10-small": lambda kept: aggregation_cifar10_pictures.small_pictures(kept.numbers),
    "aggregation-mnist": _aggregation_mnist,
    "cifar10-small": lambda kept: cifar10.small_pictures(kept.folder, kept.numbers),
    "composition": lambda kept: composition.pictures(kept.configuration, kept.numbers),
    "coverage": lambda kept: coverage_pictures.pictures(kept.numbers),
    "ftrl": lambda kept: ftrl_users_pictures.pictures(kept.numbers, "MNIST", kept.configuration["repetitions"]),
    "heads": lambda kept: _heads(kept, heads_pictures.IMAGES),
    "heads-text": lambda kept: _heads(kept, heads_pictures.WORDS),
    "knob": lambda kept: knob.pictures(kept.numbers),
    "last-iterate": lambda kept: last_iterate.pictures(kept.numbers),
    "mean-estimation": lambda kept: mean_estimation_pictures.pictures(kept.configuration, kept.numbers),
    "mnist-full-batch": lambda kept: mnist.full_batch_pictures(mnist.two_models(), kept.numbers, "MNIST"),
    "mnist-replace-one": _replace_one,
    "quadratic": lambda kept: quadratic.pictures(kept.configuration, kept.numbers),
    "tail-averaging": lambda kept: tail_averaging_pictures.pictures(kept.configuration, kept.numbers),
    "tuning-cost": lambda kept: tuning_cost.pictures(kept.numbers),
    "uncertainty-cifar10": lambda kept: uncertainty.pictures(kept.numbers, kept.configuration),
    "uncertainty-mnist": lambda kept: uncertainty.pictures(kept.numbers, kept.configuration),
}


def pictures(folder: Path, only: Container[str] = _PICTURES) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Where each picture goes, and its document."""
    for name, made in _PICTURES.items():
        if name in only:
            kept = read(folder / name / f"{name}.json")
            for title, document in made(Kept(folder / name, kept["configuration"], kept["numbers"])).items():
                yield folder / name / f"{name}-{title}.png", document


def heatmaps(folder: Path, options: Options) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Of the three models of version 1 and of the portfolios after version 2: ε follows from records."""
    whole = portfolio_pictures.whole_heatmap(last_iterate.of_setting(mnist.papers()), options, "MNIST")
    yield folder / "mnist" / "mnist-heatmap.png", whole.as_dict()
    settings = mnist.three_full_batches().items()
    portfolios = {name: restated(last_iterate.of_setting(setting), replace_one) for name, setting in settings}
    for title, document in mnist.replace_one_heatmaps(portfolios, options).items():
        yield folder / "mnist-replace-one" / f"mnist-replace-one-{title}.png", document


def soundness(folder: Path) -> Picture:
    """All audited scenarios."""
    kept = read(folder / "audit" / "summary.json")
    return summary.picture([summary.Row(**row) for row in kept["rows"]], kept["confidence"])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m dpmerge_lab.redraw", description="Draw pictures of kept numbers again.")
    parser.add_argument("folder", type=Path, help="the kept results")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", action="append", choices=list(_PICTURES), help="of these experiments; may be repeated")
    which.add_argument("--heatmaps", action="store_true", help="only heatmaps, which are accounted for anew")
    parser.add_argument("--soundness", type=Path, help="where to draw the audits")
    given = parser.parse_args(arguments)
    try:
        again = heatmaps(given.folder, Options(jobs=1)) if given.heatmaps else pictures(given.folder, given.only or _PICTURES)
        for path, document in again:
            draw(document, path)
        if given.soundness is not None:
            draw(soundness(given.folder), given.soundness)
    except (DpmergeError, OSError) as fault:
        sys.exit(f"error: {fault}")


if __name__ == "__main__":
    main()
