"""What a training's settings will cost, said when recording starts: while it is cheap to change them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from dpmerge.records import FullPhase
from dpmerge.rules import largest_learning_rate, round_down
from dpmerge.training.recorder_batches import Batches
from dpmerge.training.recorder_randomness import is_secure, seed_of

# Torch seeds its own generators with 53 bits of the system's entropy, so that below 2³² a user's seed is meant, but once in two
# million times; a new torch.Generator() always has this one.
_LARGE, _CONSTANT = 2**32, 67280421310721
_STEPS, _DELTA = 1000, 1e-5  # for the limit on learning rates, which hardly depends on either


class RecordingWarning(UserWarning):
    """What a recorded training cannot have later, because of how it is set up."""


def advice(engine: Any, module: Any, optimizer: Any, batches: Batches, kind: str, delta: float | None) -> list[str]:
    """Every point on which another setting would be better; none if all is well."""
    points, scheme = [], batches.sampling().scheme
    coins = [] if scheme == "full-batch" else [batches.generator or torch.default_generator]
    used = {"noise": _noise(optimizer), "batches": coins}
    seeded = [word for word, some in used.items() if any(not is_secure(engine, one) and _is_seeded(one) for one in some)]
    if seeded:
        points.append(
            f"the generator of {' and '.join(seeded)} has a seed that was set: a second run with that seed would share its "
            "randomness, and no guarantee would hold for both; whoever guesses the seed takes the noise off. To start runs "
            "alike, build the module with dpmerge.training.same_start; else do not seed"
        )
    if scheme == "shuffle":
        points.append(
            "batches are shuffled, for which no amplification theorem holds: such a run is accounted on assumption only; use "
            "Poisson sampling (make_private's poisson_sampling=True)"
        )
    if kind != "sgd":
        points.append(
            f"the optimizer is {kind}: the theorems transport and hidden-run, by which averages and last iterates cost less "
            "than all that they are made of, are about plain SGD, and are lost. torch.optim.SGD keeps them, without momentum, "
            "with any schedule of one learning rate, and weight decay"
        )
    norms = [name for name, one in module.named_modules() if isinstance(one, _NormBase) and one.training]
    if names := [name for name in norms if module.get_submodule(name).running_mean is not None]:
        points.append(changing(names))
    if delta is not None and delta * batches.examples >= 1:
        points.append(
            f"δ = {delta:g} is not below 1/n (n = {batches.examples}): publishing one record at random would satisfy it; "
            "account with a smaller δ"
        )
    return points


def about_head(norm_bound: float, phase: FullPhase, delta: float | None) -> list[str]:
    """The limits of `docs/theory.md` §9.1 for softmax regression, whose loss is known only when it is seen."""
    clip, points = math.sqrt(2) * norm_bound, []
    if phase.clip < clip:
        points.append(
            f"clip {phase.clip:g} is below √2 × norm_bound: with cross-entropy, clipping may bind, and neither averages nor "
            f"noise at release pay; a clip of {math.ceil(1000 * clip) / 1000:g} never binds"
        )
    most = largest_learning_rate(
        norm_bound**2 / 2,
        batch=phase.expected_batch,
        rate=phase.sampling.rate,
        weight_decay=phase.weight_decay,
        draws=_STEPS,
        delta=_DELTA if delta is None else delta,
    )
    if phase.learning_rate > most:
        points.append(
            f"learning rate {phase.learning_rate:g} is above {round_down(most, 3):g}: with cross-entropy, steps can drive two "
            "models apart, and neither averages nor noise at release pay"
        )
    return points


def changing(names: Iterable[str]) -> str:
    """The point on tensors that change without noise."""
    return (
        f"{', '.join(map(repr, names))} changes without noise while training, and a folder with it will be refused. Keep it "
        "constant (eval mode, GroupNorm for BatchNorm), or leave it out when saving if no loss is computed with it"
    )


def message(points: list[str]) -> str:
    """All points as one text."""
    return "\n- ".join(["this training can be recorded, but:", *points])


def _noise(optimizer: Any) -> list[Any]:
    if optimizer.generator is not None:
        return [optimizer.generator]
    devices = {parameter.device for parameter in optimizer.params}
    gpus = [torch.cuda.default_generators[device.index] for device in devices if device.type == "cuda"]
    return gpus + [torch.default_generator] * any(device.type == "cpu" for device in devices)


def _is_seeded(generator: Any) -> bool:
    seed = seed_of(generator)
    return seed is not None and (seed < _LARGE or seed == _CONSTANT)
