"""`python -m dpmerge_lab.redraw lab/results`: pictures again from kept numbers, where those are enough; no number changes.

    python -m dpmerge_lab.redraw lab/results --soundness docs/images/soundness.png

Pictures of aggregation-cifar10 and cifar10 come from kept runs: `dpmerge reproduce NAME --out lab/results/NAME`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpmerge.errors import DpmergeError
from dpmerge.figures import Picture, draw
from dpmerge_lab.audit import summary
from dpmerge_lab.experiments import aggregation_mnist_pictures, mean_estimation_pictures
from dpmerge_lab.experiments.aggregation_mnist import CASES


def pictures(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Where each picture goes, and its document."""
    for name in ("aggregation-mnist", "mean-estimation"):
        kept = json.loads((folder / name / f"{name}.json").read_text())
        numbers, setting = kept["numbers"], kept["configuration"]
        if name == "mean-estimation":
            found = mean_estimation_pictures.pictures(setting, numbers)
        else:
            how = "MNIST", setting["repetitions"], setting["learning_rate"]
            found = aggregation_mnist_pictures.pictures(numbers, list(CASES), *how)
        for title, document in found.items():
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
