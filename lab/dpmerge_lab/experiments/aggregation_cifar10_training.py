"""Private WRN-16-4s on CIFAR-10 and aggregates of their iterates, measured as they are made; aggregation_cifar10.py accounts.

Each setting is trained once, and is one JSON file in the output folder. The two runs on aggregates (Alg. 2) go on from the
plain run at step τ, with noise and coins of their own from there: until then they would be the same.

`python -m dpmerge_lab.experiments.aggregation_cifar10_training --data DIR --device cuda --out DIR` does the training alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dpmerge.errors import DpmergeError
from dpmerge_lab.experiments.aggregation import Probabilities, Watcher, accuracies
from dpmerge_lab.experiments.aggregation_settings import SETTINGS, Setting, Size
from dpmerge_lab.experiments.cifar10_training import SEED, as_tensors, software
from dpmerge_lab.tasks.images import digits_as_images, load_images
from dpmerge_lab.training.averaging import MovingAverage, TailMean, TrainingOn
from dpmerge_lab.training.averaging_torch import flat, load
from dpmerge_lab.training.networks import from_seed, small_cnn, wide_resnet
from dpmerge_lab.training.private_sgd import Randomness, device, steps
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.shift import PeriodicShift

_WATCHED = 0.95  # the decay whose accuracy is followed as training goes on


def make(names: Sequence[str], data: Path | None, device_name: str, size: Size, out: Path) -> None:
    """Train the settings asked for that are not done yet."""
    where = device(device_name)
    images = digits_as_images() if size.data == "digits" else load_images(data, size.data)
    torch.set_float32_matmul_precision("high")  # TF32 in convolutions and their gradients, not in sums of clipped gradients
    train, labels, test, answers = as_tensors(images, where)
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = out / f"{name}.json"
        if path.exists():
            continue
        setting = size.scaled(SETTINGS[name])
        content = _measure(setting, (train, labels), (test, answers.cpu().numpy()), size)
        content["software"] = software(where)
        path.with_suffix(".part").write_text(json.dumps(content, indent=1) + "\n")
        path.with_suffix(".part").replace(path)
        print(f"{name}: done", file=sys.stderr, flush=True)


def _measure(setting: Setting, train: tuple[Tensor, Tensor], test: tuple[Tensor, np.ndarray], size: Size) -> dict[str, object]:
    examples, labels = train
    answers = test[1]
    build = wide_resnet if size.network == "wrn-16-4" else partial(small_cnn, examples.shape[1])
    network = from_seed(build, SEED).to(examples.device)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    predict = partial(_probabilities, network, parameters, test[0])
    recipe = _recipe(setting, size, labels)
    started, clock = datetime.now(UTC), time.perf_counter()
    take = partial(steps, network, examples, labels, run="aggregation", micro_batch=size.micro_batch)
    on = {
        "EMA tr": TrainingOn(MovingAverage(new_weight=setting.ema), setting.start),
        "UTA tr": TrainingOn(TailMean(setting.uta), setting.start),
    }
    watcher, randomness, history = Watcher(), Randomness(examples.device), []
    watched = MovingAverage(decay=_WATCHED, warm_up=True).begin()
    first = flat(parameters)
    watcher.see(first)
    watched(first)
    runs, starts = {name: training.begin(first) for name, training in on.items()}, {}
    for step in take(recipe=recipe, randomness=randomness):
        iterate = flat(parameters)
        watcher.see(iterate)
        average = watched(iterate)
        if step <= setting.start:
            starts = {name: run.next_start(iterate) for name, run in runs.items()}
        if step % size.look_every == 0:
            seen = {"last": accuracies(predict(iterate), answers), f"ema {_WATCHED}": accuracies(predict(average), answers)}
            history.append({"step": step, **seen})
            load(parameters, iterate)
    found = watcher.measure(predict, answers)
    for name, run in runs.items():
        load(parameters, starts[name])
        branch = replace(recipe, training_on=on[name])
        for _ in take(recipe=branch, randomness=Randomness(examples.device), done=setting.start, aggregated=run):
            pass
        found[name] = accuracies(predict(run.current), answers)
    known = recipe.record(
        setting.steps,
        len(labels),
        dataset=f"{size.data}-train-{len(labels)}",
        run=f"aggregation-{secrets.token_hex(4)}",
        **randomness.said,
    )
    return {
        "setting": dataclasses.asdict(setting),
        "size": dataclasses.asdict(size),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - clock, 1),
        "measured": found,
        "history": history,
        "record": known.as_dict(),
    }


def _recipe(setting: Setting, size: Size, labels: Tensor) -> LabRecipe:
    known = labels.cpu().numpy()
    shift = PeriodicShift.even_and_odd(known, size.period, float(size.batch)) if setting.shifting else None
    rate = None if setting.shifting else size.batch / len(known)
    return LabRecipe(
        steps=setting.steps,
        learning_rate=setting.learning_rate,
        clip=setting.clip,
        noise_multiplier=setting.noise_multiplier,
        rate=rate,
        shift=shift,
    )


def _probabilities(network: nn.Module, parameters: Sequence[Tensor], images: Tensor, vector: Tensor) -> Probabilities:
    load(parameters, vector)
    with torch.no_grad():
        parts = [torch.softmax(network(part).double(), dim=1) for part in images.split(2500)]
    return torch.cat(parts).cpu().numpy()


def main(arguments: list[str] | None = None) -> None:
    """The training alone."""
    program = "python -m dpmerge_lab.experiments.aggregation_cifar10_training"
    parser = argparse.ArgumentParser(prog=program, description="Aggregates of private WRN-16-4s on CIFAR-10.")
    parser.add_argument("--data", type=Path, required=True, help="a folder with cifar10.npz")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON files go")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", default=",".join(SETTINGS), help="names of settings, with commas between")
    given = parser.parse_args(arguments)
    make(given.only.split(","), given.data, given.device, Size(), given.out)


if __name__ == "__main__":
    try:
        main()
    except DpmergeError as fault:
        sys.exit(f"error: {fault}")
