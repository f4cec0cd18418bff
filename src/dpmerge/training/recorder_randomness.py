"""Fingerprints of torch's generators, by which runs with the same randomness are recognised. No state may be used twice.

Torch keeps 32 bits of a seed on the CPU, 64 on a GPU. Whoever has the hash of a state could try all seeds, and with the
seed take the noise off the model; so the hash is scrypt's, 32 megabytes and a tenth of a second each, and certificates do
not publish it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from dpmerge.errors import TrainingError
from dpmerge.records import NoiseGenerator
from dpmerge.training.randomness import together

Module = TypeVar("Module")
_SALT = b"dpmerge: the state of a generator"
_COST = 2**15
_GENERATORS: dict[str, NoiseGenerator] = {"cpu": "torch-mt19937", "cuda": "torch-philox"}


# States from which recorded trainings of this process have used a generator, by what it was used for. One that comes again
# repeats its numbers: between two steps of a run, and between a run and its fork, noise cancels.
_USED: dict[str, set[bytes]] = {"noise": set(), "sampling": set()}


def same_start(make_module: Callable[[], Module], seed: int = 42) -> Module:
    """The module that `make_module` builds with this public seed; noise and batches then come from a seed of the system's.

    Runs that are built so start alike, and their randomness is independent:

        module = dpmerge.training.same_start(lambda: Network(classes=10), seed=42)
    """
    torch.manual_seed(seed)
    try:
        return make_module()
    finally:
        torch.seed()  # of all devices


def note_use(word: str, state: bytes | None) -> None:
    """Note that the generator was used from this state; None: it could not be read."""
    if state is None:
        return
    mark = hashlib.blake2b(state, digest_size=16).digest()
    if mark in _USED[word]:
        raise TrainingError(
            f"the {word} generator was in a state from which a recorded training of this process has used it before: its "
            f"{word} is repeated, and no guarantee holds; seed once, before the first training, and never restore a state, "
            "neither while training nor with the checkpoint that another training begins with"
        )
    _USED[word].add(mark)


def noise_state(engine: Any, optimizer: Any) -> bytes | None:
    """The fingerprint of the noise generator; None if it cannot be read, or is the system's entropy."""
    if optimizer.generator is not None:
        return None if is_secure(engine, optimizer.generator) else state_of(optimizer.generator)
    states = []
    for device in sorted({parameter.device for parameter in optimizer.params}, key=str):
        if device.type == "cpu":
            states.append(_stream(torch.default_generator))
        elif device.type == "cuda":
            states.append(_stream(torch.cuda.default_generators[device.index]))
        else:
            return None
    return b"".join(states)


def noise_fingerprint(engine: Any, optimizer: Any) -> str | None:
    """The fingerprint of the noise generator's current state; None if that cannot be read."""
    return _fingerprint(is_secure(engine, optimizer.generator), noise_state(engine, optimizer))


def noise_generator(engine: Any, optimizer: Any) -> NoiseGenerator:
    """Which generator the noise comes from, in the record's words."""
    generator = optimizer.generator
    if is_secure(engine, generator):
        return "operating-system"
    if generator is not None and type(generator) is not torch.Generator:
        return "other"
    devices = {p.device for p in optimizer.params} if generator is None else {generator.device}
    found: set[NoiseGenerator | None] = {_GENERATORS.get(device.type, "other") for device in devices}
    return together(list(found)) or "other"


def sampler_fingerprint(engine: Any, generator: Any) -> str | None:
    """The fingerprint of the sampling generator; without one of its own, a sampler uses torch's on the CPU."""
    secure = is_secure(engine, generator)
    return _fingerprint(secure, None if secure else state_of(torch.default_generator if generator is None else generator))


def continued(recorded: str | None, steps: int, now: str | None, word: str) -> str:
    """The fingerprint of a run that goes on after `steps` with a generator in the state `now`: `recorded+now@steps`.

    A beginning alone would not tell two continuations of one checkpoint apart: both would pass for the same run, and be
    counted once. A state that the run has started from before would repeat its randomness.
    """
    if recorded is None or now is None:
        raise TrainingError(
            f"the state of the {word} generator cannot be read, so two continuations of this run could not be told apart; "
            "start a new run"
        )
    if now in re.split(r"\+|@\d+", recorded):
        raise TrainingError(
            f"the {word} generator is in a state from which this run has started before: its {word} would be repeated, and no "
            "guarantee would hold; seed it freshly before resuming"
        )
    return f"{recorded}+{now}@{steps}"


def is_secure(engine: Any, generator: Any) -> bool:
    """Whether the generator is the system's entropy: it has no state that two runs could share, or one run could return to."""
    return bool(generator is not None and engine.secure_mode and generator is engine.secure_rng)


def state_of(generator: Any) -> bytes | None:
    """The state that determines the next numbers; None if it cannot be read."""
    try:
        return _stream(generator)
    except (AttributeError, RuntimeError):
        return None


def seed_of(generator: Any) -> int | None:
    """The seed from which the generator started; None if it cannot be read."""
    try:
        return int(generator.initial_seed())
    except (AttributeError, RuntimeError):
        return None


def _fingerprint(secure: bool, state: bytes | None) -> str | None:
    if secure:
        return f"system-{secrets.token_hex(16)}"
    if state is None:
        return None
    return hashlib.scrypt(state, salt=_SALT, n=_COST, r=8, p=1, maxmem=2**26, dklen=16).hex()


def _stream(generator: Any) -> bytes:
    """What determines the next numbers. On the CPU a state begins with its 64-bit seed, of which only 32 bits were used."""
    state = bytes(generator.get_state().cpu().numpy())
    return state[8:] if generator.device.type == "cpu" else state
