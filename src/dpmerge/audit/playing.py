"""Play a game in parallel, on cores or a cluster. Each piece of work has its own randomness; its result is stored."""

from __future__ import annotations

import base64
import hashlib
import pickle
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from dpmerge.audit.game import BoolArray, CanaryGame, Game
from dpmerge.cache import code_fingerprint
from dpmerge.errors import EvaluationError
from dpmerge.jobs import Finished, Progress, run_all
from dpmerge.profiles import FloatArray
from dpmerge.training import fresh_generator
from dpmerge.user_code import running

AnyGame = TypeVar("AnyGame", bound=Game | CanaryGame)

# Stored scores are discarded if any of this code changes.
_CODE = ("audit", "training", "checkpoints", "release", "tensors", "planning", "rules", "profiles", "records")


@dataclass(frozen=True)
class Where:
    """Where work runs and where results are stored: arguments of `run_all`."""

    jobs: int = -1
    cluster: str | None = None
    finished: Finished | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Plays:
    """Scores of both worlds: one half chooses the attack, the other half is counted and never used to choose."""

    choose_with: FloatArray
    choose_without: FloatArray
    count_with: FloatArray
    count_without: FloatArray
    seconds: float  # summed over all workers


@dataclass(frozen=True)
class _Piece:
    counted: bool
    with_record: bool
    index: int
    size: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Unique in this audit: used as spawn key and as name."""
        return int(self.counted), int(self.with_record), self.index


def play(game: Game, trials: int, seed: int | None, where: Where) -> Plays:
    """`trials` plays per world; half select the attack. With a seed, the scores do not depend on where the work runs."""
    pieces = [
        _Piece(counted, with_record, index, size)
        for counted, half in ((False, trials // 2), (True, trials - trials // 2))
        for index, size in enumerate(min(game.chunk, half - start) for start in range(0, half, game.chunk))
        for with_record in (True, False)
    ]
    audit = _fingerprint(game, trials, seed, where)
    keys = [f"{audit}/{'-'.join(map(str, piece.place))}" for piece in pieces]
    results = run_all(partial(_play, _Sent(game), seed), pieces, keys=keys, **vars(where))

    def scores(counted: bool, with_record: bool) -> FloatArray:
        chosen = [
            _unpacked(result["scores"])
            for piece, result in zip(pieces, results, strict=True)
            if (piece.counted, piece.with_record) == (counted, with_record)
        ]
        return np.concatenate(chosen)

    return Plays(
        choose_with=scores(False, True),
        choose_without=scores(False, False),
        count_with=scores(True, True),
        count_without=scores(True, False),
        seconds=sum(float(result["seconds"]) for result in results),
    )


def play_once(game: CanaryGame, canaries: int, seed: int | None, where: Where) -> tuple[BoolArray, FloatArray, float]:
    """Coins and scores of one run with this number of canaries, and its duration in seconds."""
    key = f"{_fingerprint(game, canaries, seed, where)}/once"
    [result] = run_all(partial(_play_once, _Sent(game), seed), [canaries], keys=[key], **vars(where))
    return _unpacked(result["included"]) > 0, _unpacked(result["scores"]), float(result["seconds"])


def _generator(seed: int | None, place: tuple[int, ...]) -> np.random.Generator:
    """A piece's own generator: from the system's entropy, or spawned from the seed under the piece's unique key."""
    if seed is None:
        return fresh_generator()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=place)))


class _Sent(Generic[AnyGame]):
    """A game sent to a worker, together with the working folder, where the worker looks for the user's module."""

    def __init__(self, game: AnyGame) -> None:
        self.game = game

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (str(Path.cwd()), pickle.dumps(self.game))


def _received(folder: str, content: bytes) -> _Sent[Any]:
    if folder not in sys.path:
        sys.path.append(folder)
    return _Sent(pickle.loads(content))


def _play(sent: _Sent[Game], seed: int | None, piece: _Piece) -> dict[str, Any]:
    game, generator, start = sent.game, _generator(seed, piece.place), time.perf_counter()
    with running(f"{game.name}: a play failed", EvaluationError):
        scores = game.play(generator, piece.size, piece.with_record)
    return {"scores": _packed(_checked(game.name, scores, piece.size)), "seconds": time.perf_counter() - start}


def _play_once(sent: _Sent[CanaryGame], seed: int | None, canaries: int) -> dict[str, Any]:
    game, generator, start = sent.game, _generator(seed, ()), time.perf_counter()
    with running(f"{game.name}: the run failed", EvaluationError):
        included, scores = game.play_once(generator, canaries)
    coins = np.asarray(included)
    if coins.dtype != np.bool_:
        raise EvaluationError(f"{game.name}: the coins have type {coins.dtype}; they must be true (included) or false")
    packed = [_packed(_checked(game.name, values, canaries)) for values in (coins, scores)]
    return {"included": packed[0], "scores": packed[1], "seconds": time.perf_counter() - start}


def _checked(name: str, scores: Any, count: int) -> FloatArray:
    """Require one finite number for every trial."""
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise EvaluationError(f"{name}: the scores are not numbers; give one finite number for each trial") from None
    if values.shape != (count,):
        raise EvaluationError(f"{name}: scores of shape {values.shape}, but {count} trials; give one number for each")
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise EvaluationError(f"{name}: a score is {bad}; scores must be finite (use a large number for infinity)")
    return values


def _packed(values: FloatArray) -> str:
    """Exact, and a third of the size of decimal text."""
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def _unpacked(text: str) -> FloatArray:
    return np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64)


def _fingerprint(game: Game | CanaryGame, trials: int, seed: int | None, where: Where) -> str:
    """Identifies stored results: the same game, code, seed and number of trials.

    The number of trials is included because trials added after seeing a result would invalidate the confidence.
    """
    if where.finished is None and where.cluster is None and where.jobs == 1:
        return ""  # nothing is stored or sent
    try:
        digest = hashlib.sha256(pickle.dumps(game))
    except Exception as fault:
        raise EvaluationError(f"{game.name}: this game cannot be stored or sent to workers: {fault}") from None
    digest.update(f"{trials} {seed} {getattr(game, 'chunk', '')} {code_fingerprint(*_CODE)}".encode())
    parts = [type(game), *(value for value in vars(game).values() if callable(value))]
    for name in sorted({getattr(part, "__module__", None) or "" for part in parts}):
        module = sys.modules.get(name)
        source = getattr(module, "__file__", None)
        if source:  # include the other files of its package, which it may import
            files = sorted(Path(source).parent.glob("*.py")) if getattr(module, "__package__", None) else [Path(source)]
            digest.update(b"".join(path.read_bytes() for path in files))
    return digest.hexdigest()[:24]
