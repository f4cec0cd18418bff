"""A distinguishing game: two neighbouring datasets, a release procedure, and a score of what was released.

The auditor plays it many times in both worlds. Whatever separates the scores bounds ε of the release from below
(docs/soundness.md), and `claims` says what has been promised about it from above.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from dpmerge.errors import EvaluationError, TargetError
from dpmerge.profiles import FloatArray
from dpmerge.rules import Standing
from dpmerge.user_code import added, find, running

ClaimStanding = Literal[Standing, "refuted"]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Claim:
    """An upper bound on ε that somebody states about the release, in both directions between the two worlds.

    `standing`: "proved" claims are theorems, and one that is exceeded is an alarm; "conditional" ones rest on an assumption
    that may fail here; "refuted" ones are known to be wrong, and the attack ought to show it.

    `epsilon` is a number, at the δ that was asked for, or a function from δ to ε if the claim is a whole curve: the auditor
    then looks for a violation at every δ. `mu` is given if the claim is that the release is μ-GDP.
    """

    label: str
    standing: ClaimStanding
    epsilon: float | Callable[[float], float]
    mu: float | None = None

    def __post_init__(self) -> None:
        if self.standing not in get_args(ClaimStanding):
            raise TargetError(f"claim {self.label!r}: no standing {self.standing!r}; proved, conditional or refuted")
        for name, value in (("epsilon", self.epsilon), ("mu", self.mu)):
            if isinstance(value, int | float) and not value >= 0:
                raise TargetError(f"claim {self.label!r}: {name} is {value}; it must not be negative")

    def at(self, delta: float) -> float:
        """ε at this δ; a claim that is one number is taken to be about it."""
        return float(self.epsilon(delta) if callable(self.epsilon) else self.epsilon)


class _Audited(Protocol):
    """What every game says about itself; inherit from `Game` or `CanaryGame` to have the defaults."""

    name: str
    about: str  # one sentence: who attacks what
    delta: float  # at which ε is asked for unless the user says otherwise
    trials: int  # as many as show what there is to show, unless the user says otherwise
    simulated: bool = True  # only a simulator may be seeded; real training takes the system's entropy

    @abstractmethod
    def claims(self, delta: float) -> list[Claim]:
        """What is promised about the release at this δ."""


@runtime_checkable
class Game(_Audited, Protocol):
    """Release with the record (D), or without it (D′), many times. A module-level frozen dataclass: workers unpickle it."""

    trials: int = 100_000  # plays of each world; half of them choose the attack, the other half are counted
    chunk: int = 10_000  # plays that are one piece of work

    @abstractmethod
    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """One score for each of so many independent releases, all randomness from `generator`; large says "with"."""


@runtime_checkable
class CanaryGame(_Audited, Protocol):
    """Release once, from data with many canaries, each of which is included or not by a fair coin of its own."""

    trials: int = 1_000  # canaries

    @abstractmethod
    def play_once(self, generator: np.random.Generator, canaries: int) -> tuple[BoolArray, FloatArray]:
        """Which canaries were included, and a score for each of them; large says "included".

        The coins are tossed here, by `generator`: fair, independent of each other and of everything else.
        """


@dataclass(frozen=True)
class FromFunctions(Game):
    """A game from the user's own functions, played one release at a time.

    `train(with_record, generator)` gives models, `merge(models, generator)` what is released, and `score(released)` a number.
    They are functions of a module: workers import them. Unless `simulated`, training has randomness of its own.
    """

    train: Callable[[bool, np.random.Generator], Any]
    merge: Callable[[Any, np.random.Generator], Any]
    score: Callable[[Any], float]
    name: str = "user's game"
    about: str = "a release by the user's own functions"
    delta: float = 1e-5
    claimed: tuple[Claim, ...] = ()
    simulated: bool = False
    trials: int = 1_000
    chunk: int = 10

    def claims(self, delta: float) -> list[Claim]:
        """As given; those that are one number are about `self.delta` and about nothing else."""
        numbers = [claim.label for claim in self.claimed if not callable(claim.epsilon)]
        if numbers and delta != self.delta:
            raise TargetError(f"claim {numbers[0]!r} is one number, about δ = {self.delta:g}; ask for that δ, or claim a curve")
        return list(self.claimed)

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        releases = (self.merge(self.train(with_record, generator), generator) for _ in range(trials))
        return np.array([self.score(released) for released in releases], dtype=np.float64)


def find_game(name: str) -> Game | CanaryGame:
    """A scenario that an installed package adds (entry points `dpmerge.scenarios`), or what `module:function` gives.

    The function gives a game, or three functions: train, merge and score, as `FromFunctions` takes them.
    """
    make = find(name, "scenarios", "the scenario", EvaluationError)
    with running(f"the game {name!r} cannot be made", EvaluationError):
        made = make()
    if isinstance(made, Game | CanaryGame):
        return made
    if isinstance(made, tuple) and len(made) == 3 and all(map(callable, made)):
        return FromFunctions(*made, name=name)
    raise EvaluationError(
        f"{name!r} gave {type(made).__name__}; it must give a Game, a CanaryGame, or three functions: train, merge, score"
    )


def scenario_names() -> list[str]:
    return list(added("scenarios"))


def about(name: str) -> str:
    """The first line of a scenario's docstring."""
    return (find(name, "scenarios", "the scenario", EvaluationError).__doc__ or "").strip().partition("\n")[0].removesuffix(".")
