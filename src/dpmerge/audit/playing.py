"""The plays of a game, in pieces over cores or a cluster, each with randomness of its own and kept when it is done."""

from __future__ import annotations

import base64
import hashlib
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from dpmerge.audit.game import BoolArray, CanaryGame, Game
from dpmerge.cache import code_fingerprint
from dpmerge.errors import DpmergeError, EvaluationError
from dpmerge.jobs import Finished, Progress, run_all
from dpmerge.profiles import FloatArray
from dpmerge.training import fresh_generator

AnyGame = TypeVar("AnyGame", bound=Game | CanaryGame)

# A score that was kept is worth nothing once the code that made it has changed.
_CODE = ("audit", "training", "release", "planning", "rules", "profiles", "records")


@dataclass(frozen=True)
class Where:
    """Where pieces of work run and what becomes of them, as `run_all` takes it."""

    jobs: int = -1
    cluster: str | None = None
    finished: Finished | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Plays:
    """Scores of both worlds: those that choose an attack and those that are counted, which have no part in the choice."""

    choose_with: FloatArray
    choose_without: FloatArray
    count_with: FloatArray
    count_without: FloatArray
    seconds: float  # of all workers together


@dataclass(frozen=True)
class _Piece:
    counted: bool
    with_record: bool
    index: int
    size: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Among all pieces of the audit: its spawn key and its name."""
        return int(self.counted), int(self.with_record), self.index


def play(game: Game, trials: int, seed: int | None, where: Where) -> Plays:
    """So many plays of each world, half of them to choose by. What is played depends on the seed, not on where."""
    pieces = [
        _Piece(counted, with_record, index, size)
        for counted, half in ((False, trials // 2), (True, trials - trials // 2))
        for index, size in enumerate(_sizes(half, game.chunk))
        for with_record in (True, False)
    ]
    audit = _fingerprint(game, trials, seed, where)
    keys = [f"{audit}/{'-'.join(map(str, piece.place))}" for piece in pieces]
    results = _run(partial(_play, _Sent(game), seed), pieces, keys, where)

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
    """Coins and scores of one run with so many canaries, and the seconds it took."""
    key = f"{_fingerprint(game, canaries, seed, where)}/once"
    [result] = _run(partial(_play_once, _Sent(game), seed), [canaries], [key], where)
    return _unpacked(result["included"]) > 0, _unpacked(result["scores"]), float(result["seconds"])


def _run(function: Any, items: Sequence[Any], keys: Sequence[str], where: Where) -> list[Mapping[str, Any]]:
    options = {"cluster": where.cluster, "jobs": where.jobs, "progress": where.progress}
    return run_all(function, items, keys=keys, finished=where.finished, **options)  # type: ignore[arg-type]


def _sizes(total: int, chunk: int) -> list[int]:
    return [min(chunk, total - start) for start in range(0, total, chunk)]


def _generator(seed: int | None, place: tuple[int, ...]) -> np.random.Generator:
    """A piece's own: from the system's entropy, or spawned from the seed at its place, where no other piece is."""
    if seed is None:
        return fresh_generator()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=place)))


class _Sent(Generic[AnyGame]):
    """A game on its way to a worker, which may have to look for the user's module in the folder we work in."""

    def __init__(self, game: AnyGame) -> None:
        self.game = game

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (str(Path.cwd()), pickle.dumps(self.game))


def _received(folder: str, content: bytes) -> _Sent[Any]:
    if folder not in sys.path:
        sys.path.append(folder)
    return _Sent(pickle.loads(content))


def _play(sent: _Sent[Game], seed: int | None, piece: _Piece) -> dict[str, Any]:
    game = sent.game
    generator = _generator(seed, piece.place)
    start = time.perf_counter()
    try:
        scores = game.play(generator, piece.size, piece.with_record)
    except DpmergeError:
        raise
    except Exception as fault:
        raise EvaluationError(f"{game.name}: a play failed: {type(fault).__name__}: {fault}") from fault
    return {"scores": _packed(_checked(game.name, scores, piece.size)), "seconds": time.perf_counter() - start}


def _play_once(sent: _Sent[CanaryGame], seed: int | None, canaries: int) -> dict[str, Any]:
    game = sent.game
    generator = _generator(seed, ())
    start = time.perf_counter()
    try:
        included, scores = game.play_once(generator, canaries)
    except DpmergeError:
        raise
    except Exception as fault:
        raise EvaluationError(f"{game.name}: the run failed: {type(fault).__name__}: {fault}") from fault
    coins = np.asarray(included)
    if coins.dtype != np.bool_:
        raise EvaluationError(f"{game.name}: coins of kind {coins.dtype}; they must be true (included) or false")
    numbers = {"included": coins, "scores": scores}
    packed = {name: _packed(_checked(game.name, values, canaries)) for name, values in numbers.items()}
    return {**packed, "seconds": time.perf_counter() - start}


def _checked(name: str, scores: Any, count: int) -> FloatArray:
    """A finite number for every trial, or nothing can be counted."""
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise EvaluationError(f"{name}: the scores are no numbers; give one finite number for each trial") from None
    if values.shape != (count,):
        raise EvaluationError(f"{name}: scores of shape {values.shape}, but {count} trials; give one number for each")
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise EvaluationError(f"{name}: a score is {bad}; scores must be finite (a large number will do for infinity)")
    return values


def _packed(values: FloatArray) -> str:
    """Exact, and a third of the size of decimal digits."""
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def _unpacked(text: str) -> FloatArray:
    return np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64)


def _fingerprint(game: Game | CanaryGame, trials: int, seed: int | None, where: Where) -> str:
    """What a kept piece belongs to: this game, this code, and this many trials.

    The number of trials belongs to it because trials added after a look at the result are not those of a fresh audit.
    """
    if where.finished is None and where.cluster is None and where.jobs == 1:
        return ""  # nothing is kept and nothing sent
    try:
        digest = hashlib.sha256(pickle.dumps(game))
    except Exception as fault:
        raise EvaluationError(f"{game.name}: this game cannot be kept or sent to workers: {fault}") from None
    digest.update(f"{trials} {seed} {getattr(game, 'chunk', '')} {code_fingerprint(*_CODE)}".encode())
    parts = [type(game), *(value for value in vars(game).values() if callable(value))]
    for module in sorted({getattr(part, "__module__", None) or "" for part in parts}):
        found = sys.modules.get(module)
        source = Path(getattr(found, "__file__", None) or "")
        # With a game from a package counts what lies beside it there: scenarios share code.
        for path in sorted(source.parent.glob("*.py")) if getattr(found, "__package__", None) else [source]:
            digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:24]
