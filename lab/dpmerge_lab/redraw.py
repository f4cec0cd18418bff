"""`python -m dpmerge_lab.redraw lab/results`: pictures again from kept numbers, where those are enough; no number changes.

    python -m dpmerge_lab.redraw lab/results --soundness docs/images/soundness.png

Pictures of aggregation-cifar10 and cifar10 come from kept runs: `dpmerge reproduce NAME --out lab/results/NAME`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpmerge.errors import DpmergeError
from dpmerge.figures import Picture, draw
from dpmerge_lab.audit import summary
from dpmerge_lab.experiments import (
    aggregation_mnist_pictures,
    knob,
    last_iterate,
    mean_estimation_pictures,
    mnist,
    uncertainty_mnist,
)
from dpmerge_lab.experiments.aggregation_mnist import CASES

Documents = dict[str, Mapping[str, Any]]


def _aggregation_mnist(setting: Mapping[str, Any], numbers: Mapping[str, Any]) -> Documents:
    how = "MNIST", setting["repetitions"], setting["learning_rate"]
    return aggregation_mnist_pictures.pictures(numbers, list(CASES), *how)


# By the folder of the results: from configuration and numbers to documents.
_PICTURES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Documents]] = {
    "aggregation-mnist": _aggregation_mnist,
    "knob": lambda _, numbers: knob.pictures(numbers),
    "last-iterate": lambda _, numbers: last_iterate.pictures(numbers),
    "mean-estimation": mean_estimation_pictures.pictures,
    "uncertainty-mnist": lambda setting, numbers: uncertainty_mnist.pictures(numbers, setting),
    "uncertainty-cifar10": lambda setting, numbers: uncertainty_mnist.pictures(numbers, setting),
    "mnist-full-batch": lambda _, numbers: mnist.full_batch_pictures(mnist.two_models(), numbers, "MNIST"),
}


def pictures(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Where each picture goes, and its document."""
    for name, made in _PICTURES.items():
        kept = json.loads((folder / name / f"{name}.json").read_text())
        for title, document in made(kept["configuration"], kept["numbers"]).items():
            yield folder / name / f"{name}-{title}.png", document


def soundness(folder: Path) -> Picture:
    """All audited scenarios."""
    kept = json.loads((folder / "audit" / "summary.json").read_text())
    return summary.picture([summary.Row(**row) for row in kept["rows"]], kept["confidence"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m dpmerge_lab.redraw", description="Draw pictures of kept numbers again.")
    parser.add_argument("folder", type=Path, help="the kept results")
    parser.add_argument("--soundness", type=Path, help="where to draw the audits")
    given = parser.parse_args()
    try:
        for path, document in pictures(given.folder):
            draw(document, path)
        if given.soundness is not None:
            draw(soundness(given.folder), given.soundness)
    except (DpmergeError, OSError) as fault:
        sys.exit(f"error: {fault}")
