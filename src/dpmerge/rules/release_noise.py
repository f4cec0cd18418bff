"""The least noise at release that meets a target (docs/theory.md §9)."""

from __future__ import annotations

import math
from functools import cache

from dpmerge.errors import TargetError
from dpmerge.profiles import binomial_quantile, grids_of_accuracy
from dpmerge.records import LARGEST, SMALLEST, Weights
from dpmerge.rules.building import DEFAULT_ACCOUNTING, Accounting, build
from dpmerge.rules.combination import Combination
from dpmerge.rules.guarantee import Guarantee
from dpmerge.rules.statements import round_up
from dpmerge.rules.theorems import NOISE_PAYS

_CLOSE = 4e-3  # by how much, relatively, the noise may exceed the least
_FAR = 1e9  # times a first guess: noise that hides all that noise can hide


def least_noise(
    weights: Weights, *, epsilon: float, delta: float, accounting: Accounting = DEFAULT_ACCOUNTING
) -> tuple[float, Guarantee]:
    """The least standard deviation with which this average is (ε, δ)-DP, rounded up, and the guarantee it then has.

    More noise never costs more. The search ends above the root, with a noise whose own guarantee was computed.
    """

    def whole(noise: float) -> Guarantee:
        return accounting.guarantee(build("combination", weights, accounting, noise=noise), delta=delta)

    bare = whole(0.0)
    if bare.epsilon <= epsilon:
        return 0.0, bare

    @cache
    def at(noise: float) -> float:
        rule = build("combination", weights, accounting, noise=noise)
        assert isinstance(rule, Combination)
        with grids_of_accuracy(accounting.accuracy):
            return rule.hidden_epsilon(delta, accounting.by, accounting.conversion)

    low, high = 0.0, _first_guess(weights)
    far = _FAR * high
    while at(high) > epsilon:
        if high > LARGEST:
            raise TargetError(_why_not(bare, epsilon))
        # Beside much noise of the training itself a little more changes nothing: only much more tells whether any helps.
        changes_nothing = at(high) >= 0.99 * at(low) if low else math.isinf(at(high))
        if changes_nothing and at(far) > epsilon:
            raise TargetError(_why_not(bare, epsilon))
        low, high = high, 2 * high
    halved, shrink = 0, 2.0
    while high - low > _CLOSE * high and high > SMALLEST:
        middle = _between(low, high, at(low) if low else math.inf, at(high), epsilon)
        if low == 0:  # any noise may do, and the guess be far off
            halved, shrink = halved + 1, shrink if halved < 64 else shrink**2
            middle = max(high / shrink, SMALLEST / 2)
        low, high = (low, middle) if at(middle) <= epsilon else (middle, high)
    return high, whole(high)


def largest_learning_rate(
    smoothness: float, *, batch: float, rate: float | None, weight_decay: float, draws: int, delta: float
) -> float:
    """η with ηβM/B ≤ 2 − 2ηω, so that no step drives two models apart (docs/theory.md §9.1).

    M is the size that so many Poisson batches exceed with probability δ/10 in all.
    """
    share = 1.0
    if rate is not None and rate < 1:
        records = math.ceil((batch + 1) / rate)
        share = binomial_quantile(records, rate, delta / 10 / draws) / batch
    pull = smoothness * share + 2 * weight_decay
    return 2 / pull * (1 - 1e-9) if pull > 0 else math.inf


def _first_guess(weights: Weights) -> float:
    """A few times what one record does to the average in one step."""
    rule = build("combination", weights)
    assert isinstance(rule, Combination)
    return 4 * rule.record_effect


def _between(low: float, high: float, above: float, below: float, wanted: float) -> float:
    """Where a power law through both ends has the wanted ε, kept away from them."""
    if low == 0 or not math.isfinite(above):
        return high / 2
    if not 0 < wanted < above or not 0 < below < above:
        return math.sqrt(low * high)
    slope = math.log(below / above) / math.log(high / low)
    if slope == 0:
        return math.sqrt(low * high)
    guess = high * math.exp(math.log(wanted / below) / slope) * (1 + _CLOSE / 3)
    edge = _CLOSE / 2 * high
    return min(max(guess, low + edge), high - edge)


def _why_not(found: Guarantee, epsilon: float) -> str:
    revealed = "; ".join(f"{name}: {why}" for name, why in found.details.get("revealed", {}).items())
    return (
        f"no noise at release gives ε = {epsilon:g} here (without noise it is {round_up(found.epsilon)}): some of these runs "
        f"are accounted for as if every step had been published; {NOISE_PAYS}" + (f" ({revealed})" if revealed else "")
    )
