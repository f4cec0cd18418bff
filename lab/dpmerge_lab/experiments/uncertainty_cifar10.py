"""Recycling Scraps §5.1.3 (Fig. 6) on CIFAR-10: small networks, where the paper has a wide ResNet; 101 for each ε.

What the folder of results holds is not trained again.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dpmerge.checkpoints import CONFIDENCE, Abstention
from dpmerge.records import Record
from dpmerge.training import Recipe
from dpmerge_lab.experiments.portfolios import DELTA
from dpmerge_lab.experiments.results import Options, Result, read, timed
from dpmerge_lab.experiments.uncertainty import APART, Design, numbers, pictures

# The least σ, in thousandths, whose ε by loss distributions at δ = 1e-5 does not exceed the bound: 600 steps at 512/50000.
NOISE = {0.5: 1.962, 1.0: 1.222, 2.0: 0.883, 8.0: 0.556}
_RECIPE = Recipe(steps=600, learning_rate=1.0, clip=1.0, noise_multiplier=1.0, rate=512 / 50000)
_QUICK = Recipe(steps=12, learning_rate=1.0, clip=1.0, noise_multiplier=1.0, rate=0.1)


def design_of(quick: bool) -> Design:
    """The paper's pool, or a few runs on the digits."""
    return Design(_QUICK, 5, (2, 4), 4) if quick else Design(_RECIPE, 101, (5, 10, 20, 50, 100), 20)


def kept(folder: Path, epsilon: float) -> Path:
    """The file of one ε."""
    return folder / f"eps{epsilon:g}.json"


def uncertainty_cifar10(options: Options) -> Result:
    """Mean widths and their ratios, for several N and ε."""
    design = design_of(options.quick)
    with tempfile.TemporaryDirectory() as scratch, timed(Result("uncertainty-cifar10", {})) as result:
        folder = options.folder if options.folder is not None else Path(scratch)
        missing = [epsilon for epsilon in NOISE if not kept(folder, epsilon).exists()]
        if missing:
            from dpmerge_lab.experiments.uncertainty_cifar10_training import make

            make(missing, options.data, options.device, options.quick, min(options.seeds, design.pool), folder)
        held = {epsilon: read(kept(folder, epsilon)) for epsilon in NOISE}
        result.configuration = {
            "data": "digits" if options.quick else "cifar10",
            "model": "two convolutions and a linear layer",
            "delta": DELTA,
            "adjacency": "add-remove",
            "recipe, but for its noise": asdict(design.recipe),
            "runs in the pool": design.pool,
            "repeats": held[1.0]["repeats"],
            "N": list(design.counts),
            "N for abstention": design.shown,
            "confidence": CONFIDENCE,
            "checkpoints over the second half": {
                n: design.steps(APART, n)[-1] - design.steps(APART, n)[-2] for n in design.counts
            },
            "runs": {
                f"ε = {e:g}": {key: of[key] for key in ("started", "training_seconds", "seconds", "software")}
                for e, of in held.items()
            },
        }
        for epsilon, of in held.items():
            found = {
                label: [Abstention(**{name: np.array(values) for name, values in curve.items()}) for curve in curves]
                for label, curves in of["abstention"].items()
            }
            records = [Record.parse(json.dumps(one), source=str(kept(folder, epsilon))) for one in of["records"]]
            widths = {way: {int(n): values for n, values in by_count.items()} for way, by_count in of["mean width"].items()}
            result.numbers[f"ε = {epsilon:g}"] = numbers(
                design, of["noise multiplier"], of["test accuracy"], records, widths, found
            )
        result.pictures = pictures(result.numbers, result.configuration)
    return result
