"""Private networks on CIFAR-10 and aggregates of their iterates, measured as they are made; aggregation_cifar10.py accounts.

Each run of a setting is one JSON file in the output folder, so another day can add runs. The two runs on aggregates (Alg. 2) go
on from the plain run at step τ, with noise and coins of their own from there: until then they would be the same. Their
checkpoints, too, are aggregated for inference, as the paper's are.

`python -m dpmerge_lab.experiments.aggregation_cifar10_training --data DIR --device cuda --out DIR` does the training alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpmerge.errors import DpmergeError
from dpmerge.training import together
from dpmerge_lab.experiments.aggregation import AFTERWARDS, LAST, TRAINED, Probabilities, Watcher
from dpmerge_lab.experiments.aggregation_settings import (
    AT_LENGTH,
    EVERY_RATE,
    EVERY_TAIL,
    OTHERWISE,
    SETTINGS,
    SMALL,
    Setting,
    Size,
    tail,
)
from dpmerge_lab.experiments.cifar10_settings import SEED
from dpmerge_lab.experiments.cifar10_training import as_tensors, command_line, listed, software
from dpmerge_lab.experiments.results import laid_out
from dpmerge_lab.experiments.unfinished import Allowance, Reached, Unfinished
from dpmerge_lab.tasks.images import digits_as_images, load_images
from dpmerge_lab.training.augmentation import Augmentation
from dpmerge_lab.training.averaging import AggregatedRun, MovingAverage, TailMean, TrainingOn
from dpmerge_lab.training.averaging_torch import flat, load
from dpmerge_lab.training.networks import cnn, from_seed, small_cnn, wide_resnet
from dpmerge_lab.training.norm_sums import NormSums
from dpmerge_lab.training.private_sgd import Randomness, device, steps
from dpmerge_lab.training.recipe import LabRecipe
from dpmerge_lab.training.shift import PeriodicShift
from dpmerge_lab.training.trainers import chained

_PLAIN = "plain"  # what the plain run is called beside those on aggregates


def make(
    names: Sequence[str],
    numbers: Sequence[int],
    data: Path | None,
    device_name: str,
    size: Size,
    out: Path,
    aggregates: Sequence[str] = TRAINED,
    allowed: Allowance | None = None,
    states: Path | None = None,
) -> None:
    """Train the runs of these numbers in the settings asked for, and on from their `aggregates`, if they are not done yet.

    A run that is not done when the time `allowed` is over goes on from its file in `states` the next time.
    """
    allowed = Allowance() if allowed is None else allowed
    settings, where = {name: size.setting(name) for name in names}, device(device_name)
    images = digits_as_images() if size.data == "digits" else load_images(data, size.data)
    out.mkdir(parents=True, exist_ok=True)
    programs: dict[bool, Program] = {}
    train, labels, test, answers = as_tensors(images, where)
    for number, (name, setting) in itertools.product(numbers, settings.items()):
        path = out / f"{name}-{number}.json"
        if path.exists():
            continue
        allowed.check()
        if setting.standardised not in programs:
            programs[setting.standardised] = Program.of(size, setting.standardised, train, test)
        program = programs[setting.standardised]
        at = size
        if name in EVERY_RATE | EVERY_TAIL:  # where parameters are tried, runs are scored at their end only
            at = replace(size, look_every=setting.steps)
        elif name in AT_LENGTH:  # about as often in all as shorter ones, and in as many phases of the shift
            at = replace(size, look_every=min(3 * size.look_every, setting.steps))
        on = _training_on(name, setting, size, aggregates)
        asked = {"setting": dataclasses.asdict(setting), "size": dataclasses.asdict(at), "number": number}
        begun = {**asked, "on": {called: training.optimizer for called, training in on.items()}}
        unfinished = Unfinished((states or out / "states") / f"{name}-{number}.pt", begun, allowed)
        for found in _measured(setting, number, program, (train, labels), answers.cpu().numpy(), at, on, unfinished):
            content = {**asked, **found, "software": software(where) | {"gradients": program.sums.precision}}
            path.with_suffix(".part").write_text(laid_out(content) + "\n")
        path.with_suffix(".part").replace(path)
        unfinished.end()
        print(f"{name}, run {number}: done", file=sys.stderr, flush=True)


def _training_on(name: str, setting: Setting, size: Size, aggregates: Sequence[str]) -> dict[str, TrainingOn]:
    """From which aggregates training goes on, by what they are called in the file."""
    if name in EVERY_RATE:
        return {}
    if name in EVERY_TAIL:
        return {tail(count, start): TrainingOn(TailMean(count), start) for count, start in size.tails}
    ema = TrainingOn(MovingAverage(new_weight=setting.ema), setting.ema_start)
    known = dict(zip(TRAINED, (ema, TrainingOn(TailMean(setting.uta), setting.uta_start)), strict=True))
    return {one: known[one] for one in aggregates}


@dataclass(frozen=True)
class Program:
    """A network, the sums of its clipped gradients and its predictions: compiled once, for runs that begin anywhere."""

    build: Callable[[], nn.Module]
    network: nn.Module
    sums: NormSums
    predict: Callable[[Tensor], Probabilities]

    @classmethod
    def of(cls, size: Size, standardised: bool, train: Tensor, test: Tensor) -> Program:
        """Where the images are. On a GPU in bfloat16, where that decides no norm and no sum; see `NormSums`."""
        shape = train.shape[1:]
        networks: dict[str, Callable[[], nn.Module]] = {
            "wrn-16-4": partial(wide_resnet, standardised=standardised),
            "cnn": partial(cnn, (shape[0], shape[1], shape[2])),
            "small-cnn": partial(small_cnn, shape[0]),
        }
        build = networks[size.network]
        fast = train.device.type == "cuda"
        network = build().to(train.device)
        assert isinstance(network, nn.Sequential)
        body, head = network[:-1], network[-1]
        seen = torch.compile(body) if fast else body

        images = test.split(2500 if fast else 500)  # small parts stay in a processor's cache

        def predict(vector: Tensor) -> Probabilities:
            load(trained(network), vector)
            with torch.no_grad():
                with torch.autocast(train.device.type, torch.bfloat16, enabled=fast):
                    features = [seen(part) for part in images]
                scores = torch.cat([torch.softmax(head(part.float()).double(), dim=1) for part in features])
            return scores.cpu().numpy()

        return cls(build, network, NormSums(network, half=fast, compiled=fast, size=size.micro_batch), predict)

    def begin(self, seed: int) -> Tensor:
        """The first iterate, from a public seed; the network is there then."""
        first = flat(trained(from_seed(self.build, seed))).to(next(self.network.parameters()).device)
        load(trained(self.network), first)
        return first


def trained(network: nn.Module) -> list[Tensor]:
    """The parameters that are."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


@dataclass
class _Run:
    """A run of a setting, and what it has reached: the plain run, or after it one on aggregates."""

    on: Mapping[str, TrainingOn]
    iterate: Tensor
    stage: str = _PLAIN
    step: int = 0
    spent: float = 0.0  # seconds, by earlier commands
    name: str = field(default_factory=lambda: f"aggregation-{secrets.token_hex(4)}")  # of two that go on from one state too
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    clock: float = field(default_factory=time.perf_counter)
    said: list[dict[str, Any]] = field(default_factory=list)  # of the plain run's randomness, by every command
    history: list[dict[str, Any]] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)  # what is known so far

    def __post_init__(self) -> None:
        self.watchers = {name: Watcher() for name in (_PLAIN, *self.on)}
        for watcher in self.watchers.values():
            watcher.see(self.iterate)
        self.aggregated = {name: training.begin(self.iterate) for name, training in self.on.items()}
        self.starts = dict.fromkeys(self.on, self.iterate)  # where runs on aggregates begin

    _KEPT = ("iterate", "stage", "step", "name", "started", "said", "history", "content", "starts")

    @property
    def seconds(self) -> float:
        """So far."""
        return self.spent + time.perf_counter() - self.clock

    def state(self) -> Reached:
        """By which another command goes on."""
        return {
            **{key: getattr(self, key) for key in self._KEPT},
            "spent": self.seconds,
            "watchers": {name: watcher.state for name, watcher in self.watchers.items()},
            "aggregated": {name: one.state for name, one in self.aggregated.items()},
        }

    def go_on_from(self, reached: Reached) -> None:
        """Where another command was."""
        for key in (*self._KEPT, "spent"):
            setattr(self, key, reached[key])
        for name, watcher in self.watchers.items():
            watcher.state = reached["watchers"][name]
        for name, one in self.aggregated.items():
            one.state = reached["aggregated"][name]


def _measured(
    setting: Setting,
    number: int,
    program: Program,
    train: tuple[Tensor, Tensor],
    answers: np.ndarray,
    size: Size,
    on: Mapping[str, TrainingOn],
    unfinished: Unfinished,
) -> Iterator[dict[str, Any]]:
    """What is known after the plain run, and after each of those on aggregates."""
    examples, labels = train
    parameters, predict = trained(program.network), program.predict
    recipe = _recipe(setting, size, labels)
    take = partial(steps, program.network, examples, labels, run="aggregation", micro_batch=size.micro_batch, sums=program.sums)
    at = _Run(on, program.begin(SEED + number - 1))
    if (reached := unfinished.begun(examples.device)) is not None:
        at.go_on_from(reached)

    def taken(recipe: LabRecipe, randomness: Randomness, aggregated: AggregatedRun | None = None) -> Iterator[Tensor]:
        """The iterates from where the run is on. Noise and coins are fresh: those of every step are independent anyway."""
        load(parameters, at.iterate)
        for step in take(recipe=recipe, randomness=randomness, done=at.step, aggregated=aggregated):
            at.step = step
            at.iterate = flat(parameters)
            yield at.iterate
            unfinished.check(at.state)

    if at.stage == _PLAIN:
        randomness = Randomness(examples.device)
        at.said.append(randomness.said)
        for iterate in taken(recipe, randomness):
            at.watchers[_PLAIN].see(iterate)
            for name, one in at.aggregated.items():
                if at.step <= on[name].start:
                    at.starts[name] = one.next_start(iterate)
                    at.watchers[name].see(at.starts[name])
            if at.step % size.look_every == 0:
                at.history.append({"step": at.step, **at.watchers[_PLAIN].look(predict, answers)})
                load(parameters, iterate)
                print(f"step {at.step}, {at.seconds:.0f} s", file=sys.stderr, flush=True)
        known = recipe.record(
            setting.steps,
            len(labels),
            dataset=f"{size.data}-train-{len(labels)}",
            run=at.name,
            noise=chained([one["noise"] for one in at.said]),
            sampler=chained([one["sampler"] for one in at.said]),
            noise_generator=together([one["noise_generator"] for one in at.said]),
        )
        at.content = {
            "started": at.started,
            "seconds": round(at.seconds, 1),
            "measured": {_PLAIN: at.watchers[_PLAIN].measure(predict, answers)},
            "history": at.history,
            "record": known.as_dict(),
        }
        yield at.content
    for name in [name for name in on if name not in at.content["measured"]]:
        if at.stage != name:
            at.stage, at.step, at.iterate = name, on[name].start, at.starts[name]
        branch = replace(recipe, training_on=on[name])
        for iterate in taken(branch, Randomness(examples.device), at.aggregated[name]):
            at.watchers[name].see(iterate)
        found = at.watchers[name].measure(predict, answers)
        at.content["seconds"] = round(at.seconds, 1)
        at.content["measured"][name] = {method: found[method] for method in (LAST, *AFTERWARDS)}
        yield at.content


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
        augmentation=Augmentation(setting.copies) if setting.copies > 1 else None,
    )


def main(arguments: list[str] | None = None) -> None:
    """The training alone."""
    parser = command_line("aggregation_cifar10_training", "Aggregates of private networks on CIFAR-10.")
    known = [*SETTINGS, *AT_LENGTH, *EVERY_RATE, *EVERY_TAIL, *OTHERWISE]
    names, numbers, aggregates = listed(known, str), listed(range(1, 10), int), listed(TRAINED, str)
    parser.add_argument("--only", type=names, default=[*SETTINGS], help="names of settings, with commas between")
    parser.add_argument(
        "--runs", type=numbers, default=[1], help="numbers of runs, each with a start of its own; commas between"
    )
    parser.add_argument("--on", type=aggregates, default=TRAINED, help="the aggregates to train on, with commas between")
    parser.add_argument("--small", action="store_true", help="a small network instead of WRN-16-4: for a CPU")
    parser.add_argument("--states", type=Path, help="where a run is kept that --minutes cut off (default: states in --out)")
    given = parser.parse_args(arguments)
    size = SMALL if given.small else Size()
    make(given.only, given.runs, given.data, given.device, size, given.out, given.on, given.allowed, given.states)


if __name__ == "__main__":
    try:
        main()
    except DpmergeError as fault:
        sys.exit(f"error: {fault}")
