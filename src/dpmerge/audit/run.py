"""An audit: play a game in both worlds, choose attacks on one half of the plays, count the other, compare with the claims.

All bounds of one audit hold jointly with probability at least `confidence`: 1 − confidence is divided evenly among the upper
limits that it computes, and every bound follows from these limits (docs/soundness.md).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial

from dpmerge.audit.bounds import Attack, Worth, best_threshold, ceiling, epsilon_bound, mu_bound
from dpmerge.audit.game import CanaryGame, Game
from dpmerge.audit.one_run import Guessing, guess, one_run_bound
from dpmerge.audit.playing import Plays, Where, play, play_once
from dpmerge.audit.verdict import Finding, Stated
from dpmerge.errors import EvaluationError, TargetError
from dpmerge.jobs import Finished, Progress
from dpmerge.profiles import gaussian_epsilon
from dpmerge.user_code import running

_LIMITS = 6  # upper limits of rates: three attacks, two rates each

Evidence = tuple[Attack, ...] | Guessing


@dataclass(frozen=True)
class Audit:
    """The result of an audit. `epsilon` is a lower bound at `delta`; `mu` refutes every claim of μ′-GDP with μ′ below it.

    `trials` are plays of each world, or canaries of the one run; half of them were counted. `ceiling` is the bound that an
    attack that never errs would give with as many trials. `seconds` is the sum over all workers.
    """

    game: str
    about: str
    delta: float
    confidence: float
    trials: int
    seed: int | None
    evidence: Evidence
    findings: tuple[Finding, ...]
    ceiling: float
    seconds: float
    wall_seconds: float

    @property
    def epsilon(self) -> float:
        return measured_epsilon(self.evidence, self.delta)

    @property
    def mu(self) -> float | None:
        """The release is not μ′-GDP for any μ′ below this. None for a one-run audit."""
        return measured_mu(self.evidence)

    @property
    def epsilon_if_gaussian(self) -> float | None:
        """ε at δ of the Gaussian mechanism with this μ: a lower bound only if the release is exactly Gaussian."""
        return None if self.mu is None else gaussian_epsilon(self.mu, self.delta)

    @property
    def alarm(self) -> bool:
        """Whether a claim with standing "proved" was exceeded."""
        return any(finding.exceeded and finding.standing == "proved" for finding in self.findings)

    @property
    def seconds_per_trial(self) -> float:
        """Per play of one world; in a one-run audit, per canary."""
        return self.seconds / (self.trials if isinstance(self.evidence, Guessing) else 2 * self.trials)


def audit(
    game: Game | CanaryGame,
    *,
    trials: int | None = None,
    delta: float | None = None,
    confidence: float = 0.99,
    seed: int | None = None,
    jobs: int = -1,
    cluster: str | None = None,
    finished: Finished | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Lower bounds on the privacy loss of a game's release, compared with its claims.

    `trials` are plays of each world, half of which choose the attacks (for a `CanaryGame`: canaries, half of which choose the
    numbers of guesses). With `seed` a simulator gives the same scores on any number of processes. The other arguments are those
    of `dpmerge.jobs.run_all`: with the same `finished`, an interrupted audit continues.
    """
    asked = check(game, trials=trials, delta=delta, confidence=confidence, seed=seed)
    start = time.perf_counter()
    where = Where(jobs, cluster, finished, progress)
    evidence: Evidence
    if isinstance(game, Game):
        plays = play(game, asked.trials, seed, where)
        seconds, evidence = plays.seconds, _attacks(plays, asked.delta, (1 - confidence) / _LIMITS)
    else:
        included, scores, seconds = play_once(game, asked.trials, seed, where)
        evidence = guess(included, scores, asked.delta, 1 - confidence)
    measured, mu = partial(measured_epsilon, evidence), measured_mu(evidence)
    return Audit(
        game=game.name,
        about=game.about,
        delta=asked.delta,
        confidence=confidence,
        trials=asked.trials,
        seed=seed,
        evidence=evidence,
        findings=tuple(stated.against(measured, mu) for stated in asked.claims),
        ceiling=asked.ceiling,
        seconds=seconds,
        wall_seconds=time.perf_counter() - start,
    )


def measured_epsilon(evidence: Evidence, delta: float) -> float:
    """Lower bound on ε at any δ, from the same counts and with the same confidence."""
    return evidence.epsilon(delta) if isinstance(evidence, Guessing) else max(attack.epsilon(delta) for attack in evidence)


def measured_mu(evidence: Evidence) -> float | None:
    return None if isinstance(evidence, Guessing) else max(attack.mu for attack in evidence)


def _attacks(plays: Plays, delta: float, level: float) -> tuple[Attack, ...]:
    """Events that are rare, less rare and common in one world, chosen on one half of the plays and counted on the other."""
    rare = {f"ε at δ = {one:.2g}": partial(epsilon_bound, delta=one) for one in (delta, math.sqrt(delta))}
    aims: dict[str, Worth] = {**rare, "μ": mu_bound}
    events = {aim: best_threshold(plays.choose_with, plays.choose_without, worth, level) for aim, worth in aims.items()}
    return tuple(Attack.count(aim, event, plays.count_with, plays.count_without, level) for aim, event in events.items())


@dataclass(frozen=True)
class Asked:
    """An audit's validated arguments."""

    trials: int
    delta: float
    claims: tuple[Stated, ...]
    ceiling: float


def check(
    game: Game | CanaryGame,
    *,
    trials: int | None = None,
    delta: float | None = None,
    confidence: float = 0.99,
    seed: int | None = None,
) -> Asked:
    """Validate the arguments of `audit` before the first play."""
    if not isinstance(game, Game | CanaryGame):
        raise EvaluationError(f"{type(game).__name__} is not a game; inherit from Game or CanaryGame, or use FromFunctions")
    trials = game.trials if trials is None else trials
    delta = game.delta if delta is None else delta
    if not 0 < delta < 1:
        raise TargetError(f"delta is {delta}; it must lie strictly between 0 and 1")
    if not 0 < confidence < 1:
        raise TargetError(f"the confidence is {confidence}; it must lie strictly between 0 and 1")
    if seed is not None and seed < 0:
        raise TargetError(f"the seed is {seed}; it must not be negative")
    if seed is not None and not game.simulated:
        raise TargetError(f"{game.name} trains real models with the system's entropy; only a simulator takes a seed")
    if isinstance(game, Game) and game.chunk < 1:
        raise EvaluationError(f"{game.name}: the chunk is {game.chunk} trials; it must be at least 1")
    most = _most(game, trials // 2, delta, confidence) if trials >= 2 else 0.0
    if most == 0:
        what = "trials of each world" if isinstance(game, Game) else "canaries"
        raise TargetError(
            f"{trials} {what} are too few: half of them are counted, and even an attack that never errs would prove nothing "
            f"with confidence {confidence:g} at δ = {delta:g}; give {_enough(game, delta, confidence)}"
        )
    return Asked(trials, delta, _claims(game, delta), most)


def _claims(game: Game | CanaryGame, delta: float) -> tuple[Stated, ...]:
    """The game's claims as numbers. The one-run bound holds at the audit's δ only."""
    with running(f"{game.name}: its claims cannot be computed", EvaluationError):
        return tuple(Stated.of(claim, delta, along=isinstance(game, Game)) for claim in game.claims(delta))


def _most(game: Game | CanaryGame, counted: int, delta: float, confidence: float) -> float:
    if isinstance(game, Game):
        return ceiling(counted, (1 - confidence) / _LIMITS, delta)
    return one_run_bound(counted, counted, counted, delta, 1 - confidence)


def _enough(game: Game | CanaryGame, delta: float, confidence: float) -> str:
    """The smallest sufficient number of trials, if it is moderate."""
    for counted in range(1, 1_000):
        if not isinstance(game, Game) and 2 * counted * delta > 1:
            break
        if _most(game, counted, delta, confidence) > 0:
            return f"at least {2 * counted}"
    return "a smaller δ, or less confidence"
