"""One training run, many canaries: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (2023).

Each of m canaries is included by its own fair coin. The auditor sees the release and guesses r of the coins. Their Theorem 5.2
bounds the probability of v or more correct guesses if the release is (ε, δ)-DP for adding or removing one canary. Every ε for
which the observed number is too unlikely is refuted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, gammaln

from dpmerge.audit.game import BoolArray
from dpmerge.errors import EvaluationError, TargetError
from dpmerge.profiles import FloatArray

_ROUNDING = 1 + 1e-9


def chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Upper bound on P[at least v = `correct` correct guesses] under (ε, δ)-DP.

    β + 2mδ·max_i P[v − i ≤ W < v]/i with W ~ Binomial(r, e^ε/(1 + e^ε)) and β = P[W ≥ v]. Terms are summed, never
    subtracted, so that probabilities far below 1e-16 keep their digits.
    """
    if correct == 0:
        return 1.0
    q = 1 / (1 + math.exp(-epsilon))
    enough = float(betainc(correct, guesses - correct + 1, q))
    if delta == 0:
        return min(enough * _ROUNDING, 1.0)
    short = np.arange(1, correct + 1)  # i: how many guesses are missing
    k = correct - short
    log_ways = gammaln(guesses + 1) - gammaln(k + 1) - gammaln(guesses - k + 1)
    log_q, log_not = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    nearly = np.cumsum(np.exp(log_ways + k * log_q + (guesses - k) * log_not))
    return min((enough + 2 * canaries * delta * float(np.max(nearly / short))) * _ROUNDING, 1.0)


def one_run_bound(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """Lower bound on ε at δ, too large with probability at most `level`.

    With 2mδ ≤ 1, `chance` increases with ε (it is a maximum of means of increasing functions of W). So every ε below the
    answer is refuted, not only the values tried.
    """
    if not (0 <= correct <= guesses <= canaries and guesses > 0):
        raise TargetError(f"{correct} of {guesses} guesses right about {canaries} canaries: these counts are inconsistent")
    if not 0 < level < 1:
        raise TargetError(f"the level is {level}; it must lie strictly between 0 and 1")
    if not 0 <= delta <= 1 / (2 * canaries):
        raise TargetError(f"delta is {delta:g}; with {canaries} canaries the theorem needs 0 ≤ δ ≤ {1 / (2 * canaries):g}")

    def refuted(epsilon: float) -> bool:
        return chance(canaries, guesses, correct, epsilon, delta) <= level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > 700:
            return low
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Guessing:
    """The guesses about one run's coins, and the bound they give."""

    canaries: int  # those whose coins were hidden when the numbers of guesses were chosen
    guessed_included: int
    guessed_excluded: int
    correct: int
    level: float

    @property
    def guesses(self) -> int:
        return self.guessed_included + self.guessed_excluded

    def epsilon(self, delta: float) -> float:
        return one_run_bound(self.canaries, self.guesses, self.correct, delta, self.level)


def guess(included: BoolArray, scores: FloatArray, delta: float, level: float) -> Guessing:
    """Guess that the highest scores are of included canaries and the lowest of excluded ones; abstain in between.

    Half of the coins (every second canary) are revealed, to choose the numbers of guesses with the largest bound. Given these
    coins the hidden ones are still fair, and the release is as private for them: the theorem applies to the hidden half.
    """
    if included.shape != scores.shape or scores.ndim != 1:
        raise EvaluationError(f"{included.shape} coins and {scores.shape} scores: every canary needs one of each")
    highest, lowest = _best_numbers(_ordered(included[::2], scores[::2]), delta, level)
    hidden = _ordered(included[1::2], scores[1::2])
    highest = min(highest, hidden.size)
    lowest = min(lowest, hidden.size - highest)
    correct = int(np.count_nonzero(hidden[hidden.size - highest :])) + int(np.count_nonzero(~hidden[:lowest]))
    return Guessing(hidden.size, highest, lowest, correct, level)


def _ordered(included: BoolArray, scores: FloatArray) -> BoolArray:
    """By score; ties are broken by position, which is independent of the coins."""
    return np.asarray(included[np.argsort(scores, kind="stable")])


def _best_numbers(ordered: BoolArray, delta: float, level: float) -> tuple[int, int]:
    """From a grid, the numbers of guesses that prove the largest ε; if none proves any, those least likely by chance."""
    size = ordered.size
    inside = np.concatenate([[0], np.cumsum(ordered[::-1])])
    outside = np.concatenate([[0], np.cumsum(~ordered)])
    ladder = sorted({0, size // 2, *(int(n) for n in np.geomspace(1, max(size, 1), 16))})
    pairs = [(high, low) for high in ladder for low in ladder if 0 < high + low <= size]
    right = {pair: int(inside[pair[0]] + outside[pair[1]]) for pair in pairs}
    shown = 0.0
    chosen = min(pairs, key=lambda pair: chance(size, sum(pair), right[pair], 0.0, delta))
    for pair in pairs:
        if chance(size, sum(pair), right[pair], shown, delta) <= level:  # it proves more than the best so far
            chosen, shown = pair, one_run_bound(size, sum(pair), right[pair], delta, level)
    return chosen
