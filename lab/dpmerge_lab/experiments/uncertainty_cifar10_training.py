"""101 private runs of a small network on CIFAR-10 in one program, and what they and checkpoints of a few say of uncertainty.

Each ε is one JSON file in the output folder; uncertainty_cifar10.py accounts for it.

`python -m dpmerge_lab.experiments.uncertainty_cifar10_training --data DIR --device cuda --out DIR` does the training alone.
"""

from __future__ import annotations

import dataclasses
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from dpmerge.errors import DpmergeError
from dpmerge_lab.experiments.cifar10_settings import SEED
from dpmerge_lab.experiments.cifar10_training import as_tensors, command_line, listed, software
from dpmerge_lab.experiments.results import laid_out
from dpmerge_lab.experiments.uncertainty import Design, Probabilities, compared, looked_at
from dpmerge_lab.experiments.uncertainty_cifar10 import NOISE, design_of, kept
from dpmerge_lab.experiments.unfinished import Allowance
from dpmerge_lab.tasks.images import digits_as_images, load_images
from dpmerge_lab.training.private_sgd import Randomness, device
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.together import Networks, first, patches, probabilities, steps


def make(
    epsilons: Sequence[float],
    data: Path | None,
    device_name: str,
    quick: bool,
    repeats: int,
    out: Path,
    allowed: Allowance | None = None,
) -> None:
    """What is not kept yet, one ε after the other."""
    where, design = device(device_name), design_of(quick)
    images = digits_as_images() if quick else load_images(data, "cifar10")
    out.mkdir(parents=True, exist_ok=True)
    train, labels, test, answers = as_tensors(images, where)
    seen, asked = patches(train), patches(test)
    for epsilon in epsilons:
        path = kept(out, epsilon)
        if path.exists():
            continue
        if allowed is not None:
            allowed.check()
        recipe = LabRecipe(**dataclasses.asdict(replace(design.recipe, noise_multiplier=NOISE[epsilon])))
        started, clock = datetime.now(UTC), time.perf_counter()
        randomness = [Randomness(where) for _ in range(design.pool)]
        networks = first(images.shape, SEED, design.pool, where)
        checkpoints: dict[int, Networks] = {}
        for step in steps(networks, seen, labels, recipe, randomness):
            if step >= recipe.steps // 2:
                checkpoints[step] = {name: tensor[:repeats].clone() for name, tensor in networks.items()}
            if step % 100 == 0:
                print(f"ε = {epsilon:g}: step {step}, {time.perf_counter() - clock:.0f} s", file=sys.stderr, flush=True)
        seconds = time.perf_counter() - clock
        content = _measured(design, networks, checkpoints, asked, answers, repeats)
        dataset, token = f"{'sklearn-digits' if quick else 'cifar10'}-train-{len(labels)}", secrets.token_hex(4)
        records = [
            recipe.record(recipe.steps, len(labels), dataset=dataset, run=f"uncertainty-{token}-{index}", **one.said).as_dict()
            for index, one in enumerate(randomness)
        ]
        content |= {"epsilon": epsilon, "recipe": dataclasses.asdict(design.recipe), "noise multiplier": NOISE[epsilon]}
        content |= {"repeats": repeats, "started": started.isoformat(timespec="seconds"), "training_seconds": round(seconds, 1)}
        content |= {"seconds": round(time.perf_counter() - clock, 1), "software": software(where), "records": records}
        path.with_suffix(".part").write_text(laid_out(content) + "\n")
        path.with_suffix(".part").replace(path)
        print(f"ε = {epsilon:g}: done, {content['seconds']} s", file=sys.stderr, flush=True)


def _measured(
    design: Design, networks: Networks, checkpoints: dict[int, Networks], asked: Tensor, answers: Tensor, repeats: int
) -> dict[str, Any]:
    known = answers.cpu().numpy()

    def of(chosen: Networks) -> Probabilities:
        return probabilities(chosen, asked)[0].float().cpu().numpy()

    pool = [of({name: tensor[index : index + 1] for name, tensor in networks.items()}) for index in range(design.pool)]
    watched = []
    for index in range(repeats):
        mine = {step: {name: tensor[index : index + 1] for name, tensor in held.items()} for step, held in checkpoints.items()}
        watched.append(looked_at(design, lambda step, mine=mine: of(mine[step])))  # type: ignore[misc]
    widths, curves = compared(design, pool, watched, repeats, known)
    return {
        "test accuracy": [float((one.argmax(1) == known).mean()) for one in pool],
        "mean width": widths,
        "abstention": {
            label: [
                {name: getattr(curve, name).tolist() for name in ("thresholds", "coverage", "accuracy")}
                for curve in (one.thinned() for one in found)
            ]
            for label, found in curves.items()
        },
    }


def main(arguments: list[str] | None = None) -> None:
    """The training alone."""
    parser = command_line("uncertainty_cifar10_training", "101 small private networks on CIFAR-10.")
    parser.add_argument("--only", type=listed(NOISE, float), default=[*NOISE], help="the ε, with commas between")
    given = parser.parse_args(arguments)
    make(given.only, given.data, given.device, False, 5, given.out, given.allowed)


if __name__ == "__main__":
    try:
        main()
    except DpmergeError as fault:
        sys.exit(f"error: {fault}")
