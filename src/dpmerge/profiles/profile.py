"""A profile: how private one mechanism is. A composition of laws that answers ε(δ), δ(ε) and Rényi divergences.

Nothing is discretised until a question is asked, so profiles compose and mix without a common grid, and the grid is
chosen for the composition as a whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from dpmerge.errors import GridTooLarge, UnsupportedMechanism
from dpmerge.profiles.compose import ComposedLoss, compose
from dpmerge.profiles.curves import Curve, GaussianCurve, LeastCurve, PairCurve, RenyiCurve, RevealedCurve, ShiftCurve
from dpmerge.profiles.formulas import TILTS, Conversion, epsilon_from_renyi
from dpmerge.profiles.grids import DIRECTIONS, Direction, FloatArray, SizedCache, accuracy, closed_forms, spend
from dpmerge.profiles.law import MAX_SHIFT, Law, LossPmf
from dpmerge.profiles.laws import ApproxDpLaw, GaussianLaw, NonPrivateLaw, RenyiLaw
from dpmerge.profiles.mixture import mixture_delta_by_renyi, mixture_epsilon, mixture_epsilon_by_renyi
from dpmerge.profiles.pairs import MixtureLaw, ShiftMixture

_SAMPLED_FACTORS = 32
_FAR = 3000.0  # a larger ε is of no interest


@dataclass(frozen=True)
class Profile:
    """The laws of a composition with their counts, and `failure`: a probability with which anything may happen.

    >>> from dpmerge.profiles import MixtureLaw
    >>> sampled = Profile.of([(MixtureLaw.poisson(rate=0.01, shift=1.0), 1000)])  # 1000 steps, noise multiplier 1
    >>> round(sampled.epsilon(delta=1e-5), 3)
    1.828
    """

    factors: tuple[tuple[Law, int], ...]
    failure: float = 0.0

    @classmethod
    def of(cls, factors: Iterable[tuple[Law, int]], failure: float = 0.0) -> Profile:
        """Gather equal laws; Gaussian ones become a single Gaussian with μ² = Σ μ_i² (exact, no grid).

        What gives everything away when it happens is counted as failure: 1 − Π(1 − p).
        """
        counts: dict[Law, int] = {}
        mu_squared = 0.0
        log_kept = math.log1p(-failure) if failure < 1 else -math.inf
        for whole, count in factors:
            law, lost = whole.bounded()
            log_kept += count * math.log1p(-lost) if lost < 1 else -math.inf
            if law is None:
                continue
            if isinstance(law, GaussianLaw):
                mu_squared += count * law.mu**2
            elif not (isinstance(law, MixtureLaw) and law.shifts == (0.0,)):
                counts[law] = counts.get(law, 0) + count
        if mu_squared > MAX_SHIFT**2 and counts:
            log_kept = -math.inf  # beside other laws it would need a grid, for an ε of thousands
        failure = max(0.0, -math.expm1(log_kept))
        if mu_squared > 0:
            counts[GaussianLaw(math.sqrt(mu_squared))] = 1
        return cls(tuple(counts.items()), failure)

    @classmethod
    def composed(cls, profiles: Iterable[Profile]) -> Profile:
        parts = list(profiles)
        failure = max(0.0, -math.expm1(sum(math.log1p(-p.failure) if p.failure < 1 else -math.inf for p in parts)))
        return cls.of((factor for part in parts for factor in part.factors), failure)

    @property
    def is_private(self) -> bool:
        return self.failure < 1 and not any(isinstance(law, NonPrivateLaw) for law, _ in self.factors)

    @property
    def lost(self) -> float:
        """The probability with which everything is given away, whatever ε is."""
        return self.failure if self.is_private else 1.0

    @property
    def has_loss_distribution(self) -> bool:
        """Whether every law has a privacy loss distribution; Rényi-only records and fixed-size sampling have none."""
        return not any(isinstance(law, RenyiLaw) for law, _ in self.factors)

    @property
    def has_renyi(self) -> bool:
        """Whether some Rényi divergence is finite: an (ε, δ) pair with δ > 0 has none."""
        return not any(isinstance(law, ApproxDpLaw) and law.delta > 0 for law, _ in self.factors)

    @property
    def mu(self) -> float | None:
        """μ if this is exactly μ-GDP, else nothing."""
        if self.failure > 0 or any(not isinstance(law, GaussianLaw) for law, _ in self.factors):
            return None
        return math.sqrt(sum(count * law.mu**2 for law, count in self.factors if isinstance(law, GaussianLaw)))

    @property
    def is_one_shift(self) -> bool:
        """Whether this is one random shift of a Gaussian, which has a closed form."""
        alone = len(self.factors) == 1 and self.factors[0][1] == 1
        return closed_forms() and self.is_private and alone and isinstance(self.factors[0][0], ShiftMixture)

    @property
    def stated_orders(self) -> FloatArray | None:
        """The orders at which Rényi-only laws are known exactly."""
        stated = [law.orders for law, _ in self.factors if isinstance(law, RenyiLaw)]
        return np.unique(np.concatenate(stated)) if stated else None

    # --- Rényi -------------------------------------------------------------------------------------------------------

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """(α−1)·D_α in one direction: the sum over the laws."""
        total = np.zeros(orders.shape)
        for law, count in self.factors:
            total = total + count * law.log_moment(orders, direction)
        return total

    def renyi(self, orders: FloatArray) -> FloatArray:
        """D_α, the larger of both directions (without what `failure` covers)."""
        orders = np.asarray(orders, dtype=np.float64)
        moments = np.maximum(*(self.log_moment(orders, direction) for direction in DIRECTIONS))
        return np.asarray(moments / (orders - 1))

    def epsilon_by_renyi(self, delta: float, conversion: Conversion = "tight") -> float:
        return mixture_epsilon_by_renyi([(1.0, self)], delta, conversion)

    def delta_by_renyi(self, epsilon: float, conversion: Conversion = "tight") -> float:
        return mixture_delta_by_renyi([(1.0, self)], epsilon, conversion)

    # --- privacy loss distribution -------------------------------------------------------------------------------------

    def delta(self, epsilon: float, interval: float | None = None) -> tuple[float, float]:
        """δ at ε ≥ 0 in both directions (remove, add), from the privacy loss distribution.

        Where one direction's Chernoff bound already vanishes beside the other's δ, the bound itself is the answer.
        """
        if self.is_one_shift:
            remove, add = (self.curve(direction, epsilon, None, interval).delta(epsilon) for direction in DIRECTIONS)
            return remove, add
        rough = [self.chernoff(epsilon, direction) for direction in DIRECTIONS]
        first = int(rough[1] > rough[0])
        values = list(rough)
        values[first] = self.curve(DIRECTIONS[first], epsilon, None, interval).delta(epsilon)
        if rough[1 - first] > 1e-6 * values[first]:
            values[1 - first] = self.curve(DIRECTIONS[1 - first], epsilon, None, interval).delta(epsilon)
        return values[0], values[1]

    def chernoff(self, epsilon: float, direction: Direction) -> float:
        """A quick upper bound on δ(ε): the probability of a loss above ε, through its moments; 1 where these are not exact."""
        if not self.is_private or not self.has_loss_distribution or not self.has_renyi or len(self.factors) > _SAMPLED_FACTORS:
            return 1.0
        if not self.factors:
            return self.failure
        _, log_bound = self._tilt(epsilon, direction)
        return min(1.0, math.exp(log_bound) + self.failure)

    def epsilon(self, delta: float, interval: float | None = None) -> float:
        """The smallest ε ≥ 0 at δ, from the privacy loss distribution, both directions."""
        if not self.has_loss_distribution:
            raise UnsupportedMechanism(
                "only Rényi divergences are known for this mechanism, so there is no privacy loss distribution; use "
                "the accountant rdp"
            )
        return mixture_epsilon([(1.0, self)], delta, interval)

    def curve(self, direction: Direction, question: float, tail: float | None, interval: float | None = None) -> Curve:
        """An upper bound on δ(ε) in one direction: valid everywhere it answers, precise around ε = `question`.

        `tail` is how much may be given up far above the question; nothing to a relative 1e-12 of the answer by default.
        """
        known = self._closed_form(direction)
        if known is not None:
            return known
        theta, log_bound = self._tilt(question, direction)
        if tail is None:
            tail = math.exp(max(log_bound, -600.0)) * 1e-12
        lowest = max(0.0, question / 2 - 0.01)
        if interval is not None:
            return self._compose(direction, interval, theta, tail, lowest)
        return self._on_some_grid(direction, self.grid_interval(question, theta), theta, tail, lowest)

    def wide_curve(self, direction: Direction, low: float, high: float, delta: float) -> Curve:
        """One upper bound on δ(ε) for every ε from `low` to `high`, precise to a negligible part of `delta`."""
        known = self._closed_form(direction)
        if known is not None:
            return known
        guesses = epsilon_from_renyi(TILTS + 1, self.cumulants(direction) / TILTS, delta, "tight")
        guess = min(max(float(np.min(np.nan_to_num(guesses, nan=high, posinf=high))), low), high)
        questions = np.geomspace(max(low, 1e-3), max(high, 1e-3), 7).tolist()
        interval = min(self.grid_interval(question, self._tilt(question, direction)[0]) for question in questions)
        # A tilt is precise around its own question and noisy far below: several bounds, of which the least counts.
        tilts = {self._tilt(question, direction)[0] for question in (low, math.sqrt(max(low, 1e-3) * max(guess, 1e-3)), guess)}
        tail, lowest = 1e-12 * delta, max(0.0, low - 0.01)
        return LeastCurve(tuple(self._on_some_grid(direction, interval, theta, tail, lowest) for theta in sorted(tilts)))

    def _closed_form(self, direction: Direction) -> Curve | None:
        if not self.is_private:
            return GaussianCurve(0.0, 1.0)
        if not self.factors:
            return GaussianCurve(0.0, self.failure)
        if closed_forms() and len(self.factors) == 1 and isinstance(self.factors[0][0], GaussianLaw):
            return GaussianCurve(self.factors[0][0].mu * math.sqrt(self.factors[0][1]), self.failure)
        if closed_forms() and self.steps == 1 and isinstance(self.factors[0][0], ApproxDpLaw):
            return PairCurve(self.factors[0][0].epsilon, self.factors[0][0].delta, self.failure)
        if self.is_one_shift:
            law = self.factors[0][0]
            assert isinstance(law, ShiftMixture)
            shifts, probs = np.array(law.shifts), np.array(law.probs)
            if isinstance(law, MixtureLaw):
                return ShiftCurve(shifts, probs, direction, self.failure)
            return RevealedCurve(shifts, probs, self.failure)
        if not self.has_loss_distribution:
            return RenyiCurve(self.renyi, self.failure)
        return None

    def _on_some_grid(self, direction: Direction, interval: float, theta: float, tail: float, lowest: float) -> Curve:
        """Composed on a grid of this interval, or of a wider one if that would be too long: still valid, less tight."""
        for _ in range(4):
            with contextlib.suppress(GridTooLarge):
                return self._compose(direction, interval, theta, tail, lowest)
            interval *= 4
        return self._compose(direction, interval, theta, tail, lowest)

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.factors)

    def grid_interval(self, epsilon: float, theta: float) -> float:
        """Fine enough that discretisation moves ε by about a part in 10⁵ (`precision.accuracy`), and no finer.

        Connect-the-dots raises the log moment of one step by about θ(1+θ)h²/12, hence ε by (1+θ)h²/12 a step. Where ε is
        not what is asked for (near 0), a grid that is fine for the loss' own spread will do.
        """
        sample = self.factors[:: max(1, len(self.factors) // _SAMPLED_FACTORS)]
        weight = sum(count for _, count in sample)
        variance = sum(count * law.loss_variance() for law, count in sample) / weight
        by_spread = math.sqrt(12 * accuracy() * variance)
        steepness = 1 + theta + 2 / max(epsilon, 1e-300)  # of log δ: near 0 it falls on the scale of ε itself
        by_question = math.sqrt(12 * accuracy() * epsilon / (steepness * self.steps))
        if self.steps < 50:  # too few for the cells' errors to average out
            by_question = 0.0
        coarsest = max(5e-3, 1e-4 * math.sqrt(variance * self.steps)) * math.sqrt(accuracy() / 1e-5)
        return float(min(max(by_spread, by_question, 1e-9), coarsest))

    @lru_cache(maxsize=64)  # noqa: B019 (profiles are small, and a process asks about few)
    def cumulants(self, direction: Direction) -> FloatArray:
        """log E[e^{θL}; L < ∞] at a few θ: only to choose a tilt, so a sample of the laws will do.

        Divided by θ it increases with θ; where that has passed any ε of interest, larger θ are left out (infinite).
        """
        sample = self.factors[:: max(1, len(self.factors) // _SAMPLED_FACTORS)]
        scale = self.steps / sum(count for _, count in sample)
        result = np.full(TILTS.shape, math.inf)
        for start in range(0, TILTS.size, 4):
            tilts = TILTS[start : start + 4]
            total = np.zeros(tilts.shape)
            for law, count in sample:
                total = total + count * law.finite_log_moment(tilts + 1, direction)
            result[start : start + 4] = total * scale
            if result[start + tilts.size - 1] > _FAR * tilts[-1]:
                break
        return result

    def _tilt(self, epsilon: float, direction: Direction) -> tuple[float, float]:
        """The θ of the best Chernoff bound on the probability that the loss exceeds ε, and that bound's logarithm."""
        chernoff = self.cumulants(direction) - TILTS * epsilon
        best = int(np.argmin(np.nan_to_num(chernoff, nan=math.inf)))
        return (float(TILTS[best]), float(chernoff[best])) if chernoff[best] < 0 else (0.0, 0.0)

    def _compose(self, direction: Direction, interval: float, theta: float, tail: float, lowest: float) -> ComposedLoss:
        tail = max(
            tail, 5e-324
        )  # the share of a tiny δ may underflow to 0; what is cut off is added to δ, so a larger tail is safe
        per_step = max(tail / (4 * self.steps), 1e-300)
        # Powers of two, so that nearby questions share their discretised laws.
        per_step = 2.0 ** math.floor(math.log2(per_step))
        factors, points = [], 0
        for law, count in self.factors:
            factors.append((_discretised(law, direction, interval, per_step), count))
            points += factors[-1][0].probs.size
            spend(points // 4)  # they are all held at once, but no transform is as long as all of them
        reach = (self.cumulants(direction) - math.log(tail)) / TILTS
        top_theta = float(TILTS[int(np.argmin(np.nan_to_num(reach, nan=math.inf)))])
        return replace(compose(factors, theta, tail, lowest, top_theta), failure=self.failure)


@partial(SizedCache, size_of=lambda pmf: pmf.probs.nbytes)
def _discretised(law: Law, direction: Direction, interval: float, tail: float) -> LossPmf:
    return law.pmf(direction, interval, tail)
