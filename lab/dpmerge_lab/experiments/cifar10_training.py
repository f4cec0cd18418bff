"""Private ResNet-18s on CIFAR-10, and their merges, measured where they were trained; cifar10.py accounts for them.

Every finished run and merge is one JSON file in its repetition's folder, and is not done again; tensors stay beside them in
`states/`. Noise and batches are fresh for every run; only the first parameters and the split into halves come from a seed (the
papers' 42), which is public.

`python -m dpmerge_lab.experiments.cifar10_training --data DIR --device cuda --out DIR` trains only, with torch,
Opacus and pydantic: for machines with a GPU and little else.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import platform
import secrets
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpmerge.datasets import Images
from dpmerge.errors import DpmergeError, TrainingError
from dpmerge_lab.experiments.cifar10_settings import MERGES, PRETRAININGS, RUNS, SEED, SMALL, Size, grid, wanted
from dpmerge_lab.experiments.results import laid_out
from dpmerge_lab.experiments.unfinished import Allowance
from dpmerge_lab.tasks.images import digits_as_images, load_images
from dpmerge_lab.training.augmentation import Augmentation
from dpmerge_lab.training.averaging_torch import average_beside
from dpmerge_lab.training.networks import cnn, from_seed, resnet18, small_cnn
from dpmerge_lab.training.norm_sums import NormSums
from dpmerge_lab.training.private_sgd import State, device, train
from dpmerge_lab.training.recipe import LabRecipe

CHANNEL_MEANS, CHANNEL_DEVIATIONS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Task:
    """The data on the device, the networks' first point, and where results go."""

    size: Size
    train: tuple[Tensor, Tensor]
    halves: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    where: torch.device
    out: Path

    @classmethod
    def of(cls, images: Images, where: torch.device, size: Size, out: Path) -> Task:
        """Images as tensors on the device, no augmentation; those of CIFAR-10 with their channels normalised."""
        train, labels, test, answers = as_tensors(images, where)
        parts = [(train[: size.examples], labels[: size.examples]), (test[: size.tested], answers[: size.tested])]
        order = torch.randperm(len(parts[0][1]), generator=torch.Generator().manual_seed(SEED)).to(where)
        half = len(order) // 2
        public, private = ((parts[0][0][chosen], parts[0][1][chosen]) for chosen in (order[:half], order[half:]))
        (out / "states").mkdir(parents=True, exist_ok=True)
        return cls(size, parts[0], (public, private), parts[1], where, out)

    @property
    def states(self) -> Path:
        """Where tensors are kept."""
        return self.out / "states"

    @cached_property
    def sums(self) -> NormSums:
        """Of clipped gradients, with the network that all runs use in turn: on a GPU it is compiled once."""
        fast = self.where.type == "cuda"
        return NormSums(self.built(SEED), half=fast, compiled=fast, size=self.size.micro_batch)

    def network(self, seed: int = SEED) -> nn.Module:
        """The network at the point that a seed gives."""
        network = self.sums.network
        network.load_state_dict(self.built(seed).state_dict())
        return network

    def built(self, seed: int) -> nn.Module:
        """One of its own."""
        shape = self.train[0].shape[1:]
        networks: dict[str, Callable[[], nn.Module]] = {
            "resnet18": resnet18,
            "cnn": partial(cnn, (shape[0], shape[1], shape[2])),
            "small-cnn": partial(small_cnn, shape[0]),
        }
        return from_seed(networks[self.size.network], seed).to(self.where)

    def score(self, network: nn.Module) -> dict[str, float]:
        """Accuracy and mean loss on the test images."""
        images, labels = self.test
        network.eval()
        with torch.no_grad():
            scores = torch.cat([network(part) for part in images.split(2500)]).float()
        network.train()
        loss = torch.nn.functional.cross_entropy(scores, labels)
        return {"accuracy": float((scores.argmax(1) == labels).float().mean()), "loss": float(loss)}

    def write(self, name: str, content: dict[str, Any]) -> None:
        """One JSON file, whole or not at all."""
        path = self.out / f"{name}.json"
        everything = {**content, "size": dataclasses.asdict(self.size), "software": software(self.where)}
        path.with_suffix(".part").write_text(laid_out(everything) + "\n")
        path.with_suffix(".part").replace(path)

    def is_done(self, name: str) -> bool:
        """Whether its results are there."""
        return (self.out / f"{name}.json").exists()

    def state(self, model: str) -> State:
        """The tensors of a model: the name of a run, with `@epoch` for an earlier checkpoint."""
        run, _, epoch = model.partition("@")
        path = self.states / f"{run}.pt"
        if not path.exists():
            raise TrainingError(f"{path} is missing; remove {self.out / f'{run}.json'} to train {run} again")
        kept: dict[int, State] = torch.load(path, weights_only=True, map_location=self.where)
        # Quick runs are shorter: their checkpoints are counted from the last.
        index = Size().keep.index(int(epoch)) if epoch else -1
        return list(kept.values())[index]


def as_tensors(images: Images, where: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train on and to test on; images of three channels are normalised by those of CIFAR-10."""
    found = []
    for rows, labels in ((images.train, images.train_labels), (images.test, images.test_labels)):
        pixels = torch.from_numpy(rows.reshape(-1, *images.shape)).to(where)
        if images.shape[0] == len(CHANNEL_MEANS):
            means, deviations = (torch.tensor(values, device=where) for values in (CHANNEL_MEANS, CHANNEL_DEVIATIONS))
            pixels = (pixels - means[:, None, None]) / deviations[:, None, None]
        found += [pixels.contiguous(), torch.from_numpy(labels).to(where)]
    return found[0], found[1], found[2], found[3]


def private_run(task: Task, name: str) -> None:
    """Train one private model, score it at every checkpoint, keep its records."""
    setting, size = RUNS[name], task.size
    examples, labels = task.halves[1] if setting.pretrained else task.train
    dataset = f"{size.data}-train-{size.examples}" + ("-private-half-seed42" if setting.pretrained else "")
    per_epoch = 1 if setting.full_batches else math.ceil(len(labels) / size.batch)
    epochs = setting.full_batches or (size.fine_tuning_epochs if setting.pretrained else size.epochs)
    keep = [] if setting.pretrained else [epoch * per_epoch for epoch in size.keep]
    recipe = LabRecipe(
        steps=epochs * per_epoch,
        learning_rate=setting.learning_rate,
        clip=setting.clip,
        noise_multiplier=setting.noise_multiplier,
        rate=None if setting.full_batches else size.batch / len(labels),
    )
    network = task.network(setting.seed)
    if setting.pretrained:
        network.load_state_dict(task.state(setting.pretrained))
    started, clock, run = datetime.now(UTC), time.perf_counter(), f"{name}-{secrets.token_hex(4)}"
    trained = train(network, examples, labels, recipe, dataset, run, keep, micro_batch=size.micro_batch, sums=task.sums)
    seconds = time.perf_counter() - clock
    checkpoints = []
    for point in trained:
        network.load_state_dict(point.state)
        checkpoints.append(
            {"epoch": point.steps // per_epoch, "steps": point.steps} | task.score(network) | {"record": point.record.as_dict()}
        )
    torch.save({point.steps // per_epoch: point.state for point in trained}, task.states / f"{name}.pt")
    task.write(
        name,
        {
            "setting": dataclasses.asdict(setting),
            "recipe": dataclasses.asdict(recipe),
            "starts_from": setting.pretrained or f"seed {setting.seed}",
            "gradients": task.sums.precision,
            "started": started.isoformat(timespec="seconds"),
            "training_seconds": round(seconds, 1),
            "examples_per_second": round(recipe.steps * recipe.expected_batch(len(labels)) / seconds),
            "checkpoints": checkpoints,
        },
    )


def pretrain(task: Task, name: str, learning_rate: float = 0.1, decay: float = 0.999) -> None:
    """Plain SGD without privacy on the public half; the last, incomplete batch of an epoch is left out.

    The moving average of the iterates is kept under a name of its own: Recycling Scraps §4.4.1 tunes on from there.
    """
    views, _ = PRETRAININGS[name]
    together = {called: averaged for called, (with_views, averaged) in PRETRAININGS.items() if with_views == views}
    for called in filter(task.is_done, together):
        raise TrainingError(
            f"{task.out / f'{called}.json'}: the training that makes {name} makes it anew; remove it, and its runs"
        )
    images, labels = task.halves[0]
    network = task.built(SEED)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = average_beside(network, decay)
    batch_size, moved, generator = task.size.pretraining_batch, Augmentation(copies=1), torch.Generator(task.where)
    generator.seed()
    step: Callable[..., Any] = network
    if task.where.type == "cuda":
        # Hundreds of small kernels a step: replayed as two graphs, they need not be launched one by one.
        sample = images[:batch_size].contiguous(memory_format=torch.channels_last)
        step = torch.cuda.make_graphed_callables(network, (sample,))
    optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate)
    started, clock, history = datetime.now(UTC), time.perf_counter(), []
    for epoch in range(1, task.size.pretraining_epochs + 1):
        order = torch.randperm(len(labels), device=task.where)
        for batch in order[: len(order) // batch_size * batch_size].split(batch_size):
            optimizer.zero_grad(set_to_none=True)
            x = moved(images[batch], generator) if views else images[batch]
            x = x.contiguous(memory_format=torch.channels_last)
            torch.nn.functional.cross_entropy(step(x), labels[batch]).backward()
            optimizer.step()
            average.update_parameters(network)
        if epoch % 10 == 0 or epoch == task.size.pretraining_epochs:
            history.append({"epoch": epoch, **task.score(network), "moving average": task.score(average.module)})
            print(f"{name}: epoch {epoch}, accuracy {history[-1]['accuracy']:.4f}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - clock
    for called, averaged in together.items():
        kept = (average.module if averaged else network).state_dict()
        state = {key: tensor.detach().cpu().contiguous() for key, tensor in kept.items()}
        torch.save({task.size.pretraining_epochs: state}, task.states / f"{called}.pt")
        task.write(
            called,
            {
                "optimizer": {"kind": "sgd", "learning_rate": learning_rate, "momentum": 0, "weight_decay": 0},
                "images": "moved by up to 4 pixels and mirrored" if views else "as they are",
                "kept": f"the moving average with decay {decay}" if averaged else "the last iterate",
                "dataset": f"{task.size.data}-train-{task.size.examples}-public-half-seed42",
                "started": started.isoformat(timespec="seconds"),
                "training_seconds": round(seconds, 1),
                "history": history,
            },
        )


def merge(task: Task, name: str) -> None:
    """Score the linear combinations of one group of models over a grid of weights; the corners are the models alone."""
    models = MERGES[name]
    states = [task.state(model) for model in models]
    network = task.network()
    clock, points = time.perf_counter(), []
    for weights in grid(len(models), task.size.grid):
        merged = {
            key: sum((w * state[key] for w, state in zip(weights, states, strict=True)), torch.zeros_like(states[0][key]))
            for key in states[0]
        }
        network.load_state_dict(merged)
        points.append({"weights": weights, **task.score(network)})
    seconds = time.perf_counter() - clock
    task.write(name, {"models": list(models), "seconds": round(seconds, 1), "points": points})


def software(where: torch.device) -> dict[str, str]:
    """What the numbers depend on besides the code."""
    import opacus

    found = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    found |= {"opacus": opacus.__version__, "precision": f"float32, products {torch.get_float32_matmul_precision()}"}
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else platform.machine()
    return found | {"device": name, "cuda": str(torch.version.cuda)}


def make(
    names: Sequence[str], data: Path | None, device_name: str, size: Size, out: Path, allowed: Allowance | None = None
) -> None:
    """Train and merge what is asked for and not done yet."""
    where = device(device_name)
    images = digits_as_images() if size.data == "digits" else load_images(data, size.data)
    torch.set_float32_matmul_precision("high")  # TF32 where nothing is private: sums of clipped gradients are exact
    task = Task.of(images, where, size, out)
    for name in names:
        if task.is_done(name):
            continue
        if allowed is not None:
            allowed.check()
        if name in PRETRAININGS:
            pretrain(task, name)
        elif name in RUNS:
            private_run(task, name)
        else:
            merge(task, name)
        print(f"{name}: done", file=sys.stderr, flush=True)


def command_line(module: str, what: str) -> argparse.ArgumentParser:
    """What every training on CIFAR-10 is asked."""
    parser = argparse.ArgumentParser(prog=f"python -m dpmerge_lab.experiments.{module}", description=what)
    parser.add_argument("--data", type=Path, required=True, help="a folder with cifar10.npz")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON files go")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    minutes, allowed = "end after so many; the same command goes on from there", Allowance()
    parser.add_argument("--minutes", type=Allowance.read, default=allowed, dest="allowed", metavar="MINUTES", help=minutes)
    return parser


def listed(known: Collection[Any], parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """For an option: some of these, with commas between."""

    def read(text: str) -> list[Any]:
        try:
            found = [parse(one) for one in text.split(",")]
        except ValueError:
            found = []
        if not found or not set(found) <= set(known):
            raise argparse.ArgumentTypeError(f"{text!r} is not some of {', '.join(map(str, known))}, with commas between")
        return found

    return read


def main(arguments: list[str] | None = None) -> None:
    """The training alone."""
    parser = command_line("cifar10_training", "Networks on CIFAR-10.")
    parser.add_argument("--only", help="names of runs and merges, with commas between (default: every merge)")
    parser.add_argument("--small", action="store_true", help="a small network instead of ResNet-18: for a CPU")
    parser.add_argument("--repetition", type=int, default=1, help="its number: a folder of its own")
    given = parser.parse_args(arguments)
    size = SMALL if given.small else Size()
    make(wanted(given.only), given.data, given.device, size, given.out / str(given.repetition), given.allowed)


if __name__ == "__main__":
    try:
        main()
    except DpmergeError as fault:
        sys.exit(f"error: {fault}")
