"""A distinguishing game: two neighbouring datasets, a release procedure, and a score of what was released.

The auditor plays it many times in both worlds. An event that separates the scores gives a lower bound on the release's ε
(docs/soundness.md); `claims` are the upper bounds stated for it.
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
    """A stated upper bound on the release's ε, in both directions between the two worlds.

    `standing`: "proved" claims are theorems, and exceeding one raises an alarm; "conditional" ones rest on an assumption
    that may fail here; "refuted" ones are known to be false, and the attack should show it.

    `epsilon` is a number, valid at the audit's δ, or a function from δ to ε if the claim is a whole curve: the auditor then
    looks for a violation at every δ. `mu` is given if the claim is that the release satisfies μ-GDP.
    """

    label: str
    standing: ClaimStanding
    epsilon: float | Callable[[float], float]
    mu: float | None = None

    def __post_init__(self) -> None:
        if self.standing not in get_args(ClaimStanding):
            raise TargetError(f"claim {self.label!r}: standing {self.standing!r} must be proved, conditional or refuted")
        for name, value in (("epsilon", self.epsilon), ("mu", self.mu)):
            if isinstance(value, int | float) and not value >= 0:
                raise TargetError(f"claim {self.label!r}: {name} is {value}; it must not be negative")

    def at(self, delta: float) -> float:
        """ε at this δ; a claim that is one number is assumed to be about this δ."""
        return float(self.epsilon(delta) if callable(self.epsilon) else self.epsilon)


class _Audited(Protocol):
    """Properties of every game; inherit from `Game` or `CanaryGame` to get the defaults."""

    name: str
    about: str  # one sentence: the attacker and the release
    delta: float  # the default δ of an audit
    trials: int  # the default number of trials, enough for a meaningful bound
    simulated: bool = True  # only a simulator may be seeded; real training uses the system's entropy

    @abstractmethod
    def claims(self, delta: float) -> list[Claim]:
        """The claims about the release at this δ."""


@runtime_checkable
class Game(_Audited, Protocol):
    """Many releases with the record (D) or without it (D′). Must be a module-level frozen dataclass: workers unpickle it."""

    trials: int = 100_000  # plays of each world; half of them choose the attack, the other half are counted
    chunk: int = 10_000  # plays per piece of work

    @abstractmethod
    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        """Scores of `trials` independent releases; larger suggests the record was included. Uses only `generator`."""


@runtime_checkable
class CanaryGame(_Audited, Protocol):
    """One release, from data with many canaries. A fair coin decides for each canary whether it is included."""

    trials: int = 1_000  # canaries

    @abstractmethod
    def play_once(self, generator: np.random.Generator, canaries: int) -> tuple[BoolArray, FloatArray]:
        """Which canaries were included, and a score for each; larger suggests the canary was included.

        This method tosses the coins with `generator`: fair, independent of each other and of everything else.
        """


@dataclass(frozen=True)
class FromFunctions(Game):
    """A game from the user's own functions, played one release at a time.

    `train(with_record, generator)` returns models, `merge(models, generator)` the release, and `score(released)` a number. They
    must be module-level functions: workers import them. Unless `simulated`, training uses its own randomness.
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
        """As given; a claim that is one number holds at `self.delta` only."""
        numbers = [claim.label for claim in self.claimed if not callable(claim.epsilon)]
        if numbers and delta != self.delta:
            raise TargetError(f"claim {numbers[0]!r} is one number, for δ = {self.delta:g}; use that δ, or claim a curve")
        return list(self.claimed)

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> FloatArray:
        releases = (self.merge(self.train(with_record, generator), generator) for _ in range(trials))
        return np.array([self.score(released) for released in releases], dtype=np.float64)


def find_game(name: str) -> Game | CanaryGame:
    """A scenario of an installed package (entry points `dpmerge.scenarios`), or what `module:function` returns.

    The function returns a game, or three functions: train, merge and score, as in `FromFunctions`.
    """
    make = find(name, "scenarios", "the scenario", EvaluationError)
    with running(f"the game {name!r} cannot be created", EvaluationError):
        made = make()
    if isinstance(made, Game | CanaryGame):
        return made
    if isinstance(made, tuple) and len(made) == 3 and all(map(callable, made)):
        return FromFunctions(*made, name=name)
    raise EvaluationError(
        f"{name!r} returned {type(made).__name__}; it must return a Game, a CanaryGame, or three functions: train, merge, score"
    )


def scenario_names() -> list[str]:
    return list(added("scenarios"))


def about(name: str) -> str:
    """The first line of a scenario's docstring."""
    return (find(name, "scenarios", "the scenario", EvaluationError).__doc__ or "").strip().partition("\n")[0].removesuffix(".")
