"""Dominating pairs of single steps: two laws P and Q on one outcome that are at least as easy to tell apart as the step.

A law answers two questions, each in both directions: its Rényi moments and its privacy loss distribution on a grid.
Everything is normalised to unit noise, so nothing depends on the scale of gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from dpmerge.errors import UnsupportedMechanism
from dpmerge.profiles.arrays import DIRECTIONS, Direction, FloatArray
from dpmerge.profiles.gaussian import gaussian_delta
from dpmerge.profiles.pmf import LossPmf, connect_dots
from dpmerge.profiles.shifts import ShiftLaw


class Law(ABC):
    """A dominating pair (P, Q)."""

    @abstractmethod
    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """(α−1)·D_α of the upper law from the lower one, for each order α > 1; never below the true value."""

    def finite_log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """The same moment over finite losses only; a hint where to look, not a bound."""
        return self.log_moment(orders, direction)

    @abstractmethod
    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """The privacy loss distribution on a grid, with at most `tail` moved to +∞."""

    @abstractmethod
    def loss_variance(self) -> float:
        """The variance of the privacy loss under P: the scale on which a grid must be fine."""


@dataclass(frozen=True)
class GaussianLaw(Law):
    """N(μ, 1) against N(0, 1). Compositions of these are again one of these."""

    mu: float

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """D_α = αμ²/2."""
        return orders * (orders - 1) * self.mu**2 / 2

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """By the general construction, with the inverse in closed form."""
        return _monotone_pmf(MixtureLaw((self.mu,), (1.0,)), direction, interval, tail)

    def loss_variance(self) -> float:
        """μ²."""
        return self.mu**2


class _GaussianPair(Law):
    """P and Q are mixtures of unit Gaussians whose log density ratio ℓ(x) increases in x."""

    upper: tuple[FloatArray, FloatArray]  # shifts and probabilities of P
    lower: tuple[FloatArray, FloatArray]  # shifts and probabilities of Q
    least_loss: float  # the infimum of ℓ, at x → −∞

    @abstractmethod
    def excess_ratio(self, x: FloatArray) -> FloatArray:
        """y = p(x)/q(x) − 1, without cancellation where it is small."""

    @abstractmethod
    def loss(self, x: FloatArray) -> FloatArray:
        """ℓ(x) = log p(x)/q(x)."""

    @abstractmethod
    def inverse(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """The points where ℓ takes these values (−∞ where it never falls so low), and the largest error in ℓ."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """The distance between the outermost means: ℓ is analytic and free of zeros within π/spread of the real line."""

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """log E_Q[(p/q)^s] with s = α (remove) or 1 − α (add), as one integral for each real order (theory.md §3.5)."""
        powers = orders if direction == "remove" else 1 - orders
        return _log_power_moments(self, powers)

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """By inverting ℓ on the whole grid at once."""
        return _monotone_pmf(self, direction, interval, tail)

    def loss_variance(self) -> float:
        """By quadrature under P."""
        shifts, probs = self.upper
        mean = float(probs @ shifts)
        deviation = math.sqrt(1 + float(probs @ (shifts - mean) ** 2))
        x = np.linspace(mean - 12 * deviation, max(mean + 12 * deviation, float(shifts[-1]) + 8), 2049)
        weights = np.exp(_log_density(x, shifts, probs))
        weights /= weights.sum()
        losses = self.loss(x)
        centre = float(weights @ losses)
        return float(weights @ (losses - centre) ** 2)


@dataclass(frozen=True)
class MixtureLaw(_GaussianPair):
    """Σ_j ρ_j N(Δ_j, 1) against N(0, 1): one Poisson-sampled step (shifts 0 and 1/σ), or a merged one."""

    shifts: tuple[float, ...]
    probs: tuple[float, ...]

    @classmethod
    def of(cls, law: ShiftLaw) -> MixtureLaw:
        """The mixture that a random shift drives. Probability given up by the shift law is the caller's to add to δ."""
        return cls(tuple(law.values.tolist()), tuple((law.probs / law.probs.sum()).tolist()))

    @classmethod
    def poisson(cls, rate: float, shift: float) -> MixtureLaw:
        """One step with Poisson sampling: the record's shift with probability `rate`."""
        return cls((shift,), (1.0,)) if rate >= 1 else cls((0.0, shift), (1 - rate, rate))

    @cached_property
    def upper(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        """P."""
        return np.array(self.shifts), np.array(self.probs)

    @property
    def lower(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        """Q = N(0, 1)."""
        return np.zeros(1), np.ones(1)

    @property
    def least_loss(self) -> float:  # type: ignore[override]
        """log ρ_∅ if the step may leave no trace, else −∞."""
        return math.log(self.probs[0]) if self.shifts[0] == 0 else -math.inf

    @property
    def spread(self) -> float:
        """The largest shift."""
        return self.shifts[-1]

    def excess_ratio(self, x: FloatArray) -> FloatArray:
        """Σ ρ_j (e^{Δ_j x − Δ_j²/2} − 1)."""
        shifts, probs = self.upper
        total = np.zeros_like(x)
        with np.errstate(over="ignore"):
            for shift, prob in zip(shifts, probs, strict=True):
                total += prob * np.expm1(shift * x - shift * shift / 2)
        return total

    def loss(self, x: FloatArray) -> FloatArray:
        """log Σ ρ_j e^{Δ_j x − Δ_j²/2}."""
        return self._loss_and_slope(x)[0]

    def _loss_and_slope(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        shifts, probs = self.upper
        losses, slopes = np.empty_like(x), np.empty_like(x)
        block = max(1, 2_000_000 // shifts.size)
        constants = np.log(probs) - shifts * shifts / 2
        for start in range(0, x.size, block):
            part = slice(start, start + block)
            exponents = np.multiply.outer(shifts, x[part])
            exponents += constants[:, None]
            top = exponents.max(axis=0)
            np.exp(exponents - top, out=exponents)
            total = exponents.sum(axis=0)
            losses[part] = top + np.log(total)
            slopes[part] = (shifts @ exponents) / total
        return losses, slopes

    def inverse(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """In closed form for one shift (with or without a zero one), else by safeguarded Newton steps on the whole grid."""
        rounding = 4e-16 * (1 + float(np.abs(losses).max()))
        x = np.full(losses.shape, -math.inf)
        reached = losses > self.least_loss
        target = losses[reached]
        if len(self.shifts) == 1:
            (shift,) = self.shifts
            x[reached] = target / shift + shift / 2
            return x, rounding
        if len(self.shifts) == 2 and self.shifts[0] == 0:
            shift, rate = self.shifts[1], self.probs[1]
            # log((e^ε − (1−q))/q) = log1p((e^ε − 1)/q); for large ε as ε + log((1 − (1−q)e^−ε)/q).
            with np.errstate(over="ignore", divide="ignore"):
                small = np.log1p(np.expm1(np.minimum(target, 1.0)) / rate)
                large = target + np.log1p(-(1 - rate) * np.exp(-np.maximum(target, 1e-3))) - math.log(rate)
            x[reached] = np.where(target < 1, small, large) / shift + shift / 2
            residual = self.loss(x[reached][np.isfinite(x[reached])]) - target[np.isfinite(x[reached])]
            return x, rounding + float(np.abs(residual).max(initial=0.0))
        x[reached], residual_size = self._newton(target)
        return x, rounding + residual_size

    def _newton(self, target: FloatArray) -> tuple[FloatArray, float]:
        shifts, probs = self.upper
        moving = shifts > 0
        # Each component alone bounds ℓ from below, hence x from above; ℓ ≥ ε there, and ℓ is convex, so Newton's
        # steps descend to the root from there. A table of ℓ brings the start close.
        top = float(np.min((target[-1] - np.log(probs[moving]) + shifts[moving] ** 2 / 2) / shifts[moving])) + 1e-9
        low = -8.0
        while float(self.loss(np.array([low]))[0]) > target[0] and low > -1e8:
            low *= 2
        table = np.linspace(low, top, 4097)
        table_loss = np.maximum.accumulate(self.loss(table))
        index = np.clip(np.searchsorted(table_loss, target), 1, table.size - 1)
        left, right = table[index - 1].copy(), table[index].copy()
        x = np.clip(np.interp(target, table_loss, table), left, right)
        error = np.full(x.shape, math.inf)
        tolerance = 1e-13 * (1 + np.abs(target))
        active = np.arange(x.size)
        for _ in range(100):
            losses, slopes = self._loss_and_slope(x[active])
            error[active] = losses - target[active]
            over = error[active] > 0
            right[active[over]] = x[active[over]]
            left[active[~over]] = x[active[~over]]
            with np.errstate(divide="ignore", invalid="ignore"):
                step = x[active] - error[active] / slopes
            inside = (step > left[active]) & (step < right[active])
            settled = (np.abs(error[active]) <= tolerance[active]) | (right[active] - left[active] < 1e-15)
            x[active] = np.where(settled, x[active], np.where(inside, step, (left[active] + right[active]) / 2))
            active = active[~settled]
            if active.size == 0:
                break
        return x, float(np.abs(error).max())


@dataclass(frozen=True)
class ReplaceOnePoissonLaw(_GaussianPair):
    """(1−q)N(0,1) + qN(s,1) against (1−q)N(0,1) + qN(−s,1): a record replaced, Poisson sampling (theory "replace-one")."""

    rate: float
    shift: float

    @property
    def upper(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        """P."""
        return np.array([0.0, self.shift]), np.array([1 - self.rate, self.rate])

    @property
    def lower(self) -> tuple[FloatArray, FloatArray]:  # type: ignore[override]
        """Q, the mirror image."""
        return np.array([-self.shift, 0.0]), np.array([self.rate, 1 - self.rate])

    @property
    def least_loss(self) -> float:  # type: ignore[override]
        """ℓ is odd and unbounded."""
        return -math.inf

    @property
    def spread(self) -> float:
        """From −s to s."""
        return 2 * self.shift

    def _side(self, x: FloatArray) -> FloatArray:
        return np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + self.shift * x - self.shift**2 / 2)

    def loss(self, x: FloatArray) -> FloatArray:
        """The difference of the two sides."""
        return np.asarray(self._side(x) - self._side(-x))

    def excess_ratio(self, x: FloatArray) -> FloatArray:
        """2q e^{−s²/2} sinh(sx) over q's density ratio."""
        with np.errstate(over="ignore"):
            log_scale = math.log(self.rate) - self.shift**2 / 2 - self._side(-x)
            return np.exp(log_scale + self.shift * x) - np.exp(log_scale - self.shift * x)

    def inverse(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """The positive root of c·y² − b(e^ε − 1)·y − e^ε·c = 0 with y = e^{sx}, b = 1−q, c = q e^{−s²/2}; ℓ is odd."""
        size = np.abs(losses)
        half = size / 2
        # Divide by e^{ε/2}: c·z² − 2b·sinh(ε/2)·z − c = 0 with z = y·e^{−ε/2}, so x = (ε/2 + asinh(b·sinh(ε/2)/c))/s.
        log_sinh = half + np.log1p(-np.exp(-size) * (size > 0)) - math.log(2)
        log_argument = math.log1p(-self.rate) - math.log(self.rate) + self.shift**2 / 2 + log_sinh
        with np.errstate(over="ignore"):
            small = np.arcsinh(np.exp(np.minimum(log_argument, 20.0)))
        asinh = np.where(log_argument < 20, small, log_argument + math.log(2))
        x = np.sign(losses) * (half + asinh) / self.shift
        return x, 4e-15 * (1 + float(size.max())) + float(np.abs(self.loss(x) - losses).max())


@dataclass(frozen=True)
class RevealedShiftLaw(Law):
    """The pair (J, N(D_J, 1)) against (J, N(0, 1)): the coins are given away (theory "replace-one-window")."""

    shifts: tuple[float, ...]
    probs: tuple[float, ...]

    @classmethod
    def of(cls, law: ShiftLaw) -> RevealedShiftLaw:
        """The revealed mixture of a random shift."""
        return cls(tuple(law.values.tolist()), tuple((law.probs / law.probs.sum()).tolist()))

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """log Σ ρ_J e^{α(α−1)D_J²/2}, kept precise where it is small."""
        exponents = np.multiply.outer(orders * (orders - 1) / 2, np.square(self.shifts))
        plain = logsumexp(exponents, axis=1, b=np.array(self.probs))
        with np.errstate(over="ignore"):
            precise = np.log1p(np.expm1(exponents) @ np.array(self.probs))
        return np.where(plain < 0.5, precise, plain) * (1 + 1e-12)

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """The mixture of the Gaussians' own loss distributions."""
        parts = [
            (prob, _monotone_pmf(MixtureLaw((shift,), (1.0,)), direction, interval, tail))
            for shift, prob in zip(self.shifts, self.probs, strict=True)
            if shift > 0
        ]
        lower = min([0, *(part.lower for _, part in parts)])
        upper = max([0, *(part.lower + part.probs.size - 1 for _, part in parts)])
        probs = np.zeros(upper - lower + 1)
        probs[-lower] += sum(prob for shift, prob in zip(self.shifts, self.probs, strict=True) if shift == 0)
        for prob, part in parts:
            start = part.lower - lower
            probs[start : start + part.probs.size] += prob * part.probs
        infinity = sum(prob * part.infinity for prob, part in parts)
        return LossPmf(interval, lower, probs, infinity, max([0.0, *(part.loss_slack for _, part in parts)]))

    def loss_variance(self) -> float:
        """The law of total variance with means D²/2 and variances D²."""
        squares, probs = np.square(self.shifts), np.array(self.probs)
        return float(probs @ squares + probs @ (squares / 2) ** 2 - (probs @ squares / 2) ** 2)


@dataclass(frozen=True)
class ApproxDpLaw(Law):
    """The canonical pair of an (ε, δ)-DP mechanism (Kairouz, Oh and Viswanath 2015)."""

    epsilon: float
    delta: float

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """Infinite unless δ = 0; then randomised response's."""
        if self.delta > 0:
            return np.full(orders.shape, math.inf)
        return self.finite_log_moment(orders, direction)

    def finite_log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """Of the losses ±ε."""
        keep, flip = -np.logaddexp(0, -self.epsilon), -np.logaddexp(0, self.epsilon)
        return np.asarray(np.logaddexp(keep + (orders - 1) * self.epsilon, flip - (orders - 1) * self.epsilon))

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """Losses ±ε, each split between its two neighbours on the grid."""
        likely, rare = (1 - self.delta) / (1 + math.exp(-self.epsilon)), (1 - self.delta) / (1 + math.exp(self.epsilon))
        reach = math.floor(self.epsilon / interval) + 1
        upper_mass, lower_mass = np.zeros(2 * reach), np.zeros(2 * reach)
        for loss, up, down in ((self.epsilon, likely, rare), (-self.epsilon, rare, likely)):
            cell = min(max(math.floor(loss / interval) + reach, 0), 2 * reach - 1)
            upper_mass[cell] += up
            lower_mass[cell] += down
        slack = 4e-16 * (1 + self.epsilon)
        return connect_dots(
            interval, -reach, upper_mass, lower_mass, np.full(2 * reach, 1e-15), 0.0, self.delta, slack
        )

    def loss_variance(self) -> float:
        """About ε²."""
        return self.epsilon**2


@dataclass(frozen=True)
class RenyiLaw(Law):
    """Only Rényi divergences are known: (α−1)·D_α at `orders`, the same in both directions."""

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """(α−1)D_α is convex in α and 0 at α = 1, so straight lines between known orders lie above it; ∞ beyond them."""
        known = np.concatenate(([1.0], self.orders))
        moments = np.concatenate(([0.0], (np.array(self.orders) - 1) * np.array(self.values)))
        return np.where(orders > known[-1], math.inf, np.interp(orders, known, moments))

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """There is none."""
        raise UnsupportedMechanism("only a Rényi curve is known, so there is no privacy loss distribution; use --by rdp")

    def loss_variance(self) -> float:
        """Never asked for: there is no grid."""
        return 0.0


@dataclass(frozen=True)
class NonPrivateLaw(Law):
    """No privacy: H_ε ≡ 1."""

    def log_moment(self, orders: FloatArray, direction: Direction) -> FloatArray:
        """Infinite."""
        return np.full(orders.shape, math.inf)

    def pmf(self, direction: Direction, interval: float, tail: float) -> LossPmf:
        """All mass at +∞."""
        return LossPmf(interval, 0, np.zeros(1), 1.0)

    def loss_variance(self) -> float:
        """Never asked for: profiles that contain this law answer without a grid."""
        return 0.0


def revealed_delta(law: RevealedShiftLaw, epsilon: float) -> float:
    """Σ_J ρ_J H_ε(N(D_J, 1), N(0, 1)): one revealed step, exactly."""
    return float(sum(p * gaussian_delta(s, epsilon) for s, p in zip(law.shifts, law.probs, strict=True)))


def _log_density(x: FloatArray, shifts: FloatArray, probs: FloatArray) -> FloatArray:
    exponents = [math.log(prob) - (x - shift) ** 2 / 2 for shift, prob in zip(shifts, probs, strict=True) if prob > 0]
    return np.asarray(np.logaddexp.reduce(exponents) - math.log(2 * math.pi) / 2)


_MAX_NODES = 40_000


def _log_power_moments(pair: _GaussianPair, powers: FloatArray) -> FloatArray:
    """log E_Q[(p/q)^s] for each power s > 1 or s < 0, by the trapezoid rule on grids that neighbouring powers share.

    D_α of a mixture is at most that of its farthest component (quasi-convexity), which also bounds what a grid of
    reasonable size cannot hold.
    """
    orders = np.where(powers > 1, powers, 1 - powers)
    bound = orders * (orders - 1) * pair.spread**2 / 2
    result = bound.copy()
    ranked = np.argsort(orders, kind="stable")
    start = 0
    while start < ranked.size:
        base = orders[ranked[start]]
        stop = int(np.searchsorted(orders[ranked], max(3 * base, base + 12 / pair.spread), side="right"))
        chunk = ranked[start:stop]
        values = _chunk_moments(pair, powers[chunk])
        if values is None:
            break  # larger orders only need larger grids
        result[chunk] = np.minimum(values, bound[chunk])
        start = stop
    return result


def _chunk_moments(pair: _GaussianPair, powers: FloatArray) -> FloatArray | None:
    """The moments on one grid, or nothing if it would be too long.

    The integrand is analytic in |Im x| < π/spread, so with step 0.4/spread the rule's error is below e^−49 of it. Near
    1 the moment is 1 + E_Q[(1+y)^s − 1 − s·y] with y = p/q − 1, E_Q y = 0: every term is ≥ 0, nothing cancels, and
    rates as small as 1e-12 keep their digits.
    """
    (upper_shifts, _), (lower_shifts, lower_probs) = pair.upper, pair.lower
    step = min(0.25, 0.4 / pair.spread)
    # The integrand's peaks lie where one component rules: at power·Δ + (1 − power)·γ.
    extreme = powers[[np.argmin(powers), np.argmax(powers)]]
    corners = np.add.outer(
        np.multiply.outer(extreme, upper_shifts[[0, -1]]), np.zeros(2)
    ) + np.multiply.outer(1 - extreme, lower_shifts[[0, -1]])[:, None, :]
    low, high = min(-14.0, float(corners.min()) - 14), max(14.0, float(corners.max()) + 14)
    nodes = math.ceil((high - low) / step) + 1
    if nodes > _MAX_NODES:
        return None
    x = low + step * np.arange(nodes)
    y, losses = pair.excess_ratio(x), pair.loss(x)
    log_weight = _log_density(x, lower_shifts, lower_probs) + math.log(step)
    precise_losses = np.where(np.abs(y) < 0.5, np.log1p(np.clip(y, -0.5, 0.5)), losses)
    result = np.empty(powers.shape)
    for index, power in enumerate(powers.tolist()):
        plain = _log_sum_exp(power * losses + log_weight)
        result[index] = (
            plain * (1 + 1e-12) + 1e-13 if plain > 0.5 else _moment_near_one(power, y, precise_losses, log_weight)
        )
    return result


def _moment_near_one(power: float, y: FloatArray, losses: FloatArray, log_weight: FloatArray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = power * losses
        direct = np.expm1(exponent) - power * y
        series = power * (power - 1) / 2 * y * y * (1 + (power - 2) / 3 * y * (1 + (power - 3) / 4 * y))
        tiny = np.abs(y) * (1 + abs(power)) < 1e-3
        # Where e^{sℓ} overflows, the weight is what makes the product finite.
        terms = np.where(
            exponent > 300,
            np.exp(np.minimum(exponent + log_weight, 300.0)),
            np.where(tiny, series, direct) * np.exp(log_weight),
        )
    # 1e-9 is above the series' remainder and the rounding of `direct` where it is used.
    return math.log1p(float(terms.sum()) * (1 + 1e-9))


def _log_sum_exp(values: FloatArray) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def _monotone_pmf(pair: _GaussianPair, direction: Direction, interval: float, tail: float) -> LossPmf:
    return _monotone_pmfs(pair, interval, tail)[DIRECTIONS.index(direction)]


@lru_cache(maxsize=64)
def _monotone_pmfs(pair: _GaussianPair, interval: float, tail: float) -> tuple[LossPmf, LossPmf]:
    """Cells of width h in the loss are intervals in x; their masses under P and Q are differences of normal cdfs.

    One inversion serves both directions: the loss of the other is −ℓ, and the grid is symmetric.
    """
    reach = -float(ndtri(tail)) + 1e-3
    x_low = float(pair.lower[0][0]) - reach
    x_high = _upper_quantile(*pair.upper, tail)
    ends = pair.loss(np.array([x_low, x_high]))
    first, last = math.floor(float(ends[0]) / interval), math.ceil(float(ends[1]) / interval)
    if last - first > 50_000_000:
        raise UnsupportedMechanism(f"a privacy loss of {ends[1]:.3g} on a grid of {interval:.3g} does not fit in memory")
    first = max(first, math.floor(pair.least_loss / interval)) if pair.least_loss > -math.inf else first
    last = max(last, first + 1)
    edges, slack = pair.inverse(np.arange(first, last + 1) * interval)
    edges = np.maximum.accumulate(edges)
    p_cells, p_below, p_above, p_rounding = _cell_masses(edges, *pair.upper)
    q_cells, q_below, q_above, q_rounding = _cell_masses(edges, *pair.lower)
    rounding = p_rounding + q_rounding
    return (
        connect_dots(interval, first, p_cells, q_cells, rounding, p_below, p_above, slack),
        connect_dots(interval, -last, q_cells[::-1], p_cells[::-1], rounding[::-1], q_above, q_below, slack),
    )


def _cell_masses(edges: FloatArray, shifts: FloatArray, probs: FloatArray) -> tuple[FloatArray, float, float, FloatArray]:
    """Masses between the edges, below the first and above the last, and the cells' relative rounding errors.

    Each difference is taken on the side of the mean where the tail is small, so tails keep their relative precision.
    """
    masses = np.zeros(edges.size - 1)
    tails = np.zeros(edges.size - 1)
    below = above = 0.0
    for shift, prob in zip(shifts, probs, strict=True):
        centred = edges - shift
        tail = ndtr(-np.abs(centred))  # the smaller of cdf and survival function
        right = centred[:-1] > 0
        left = centred[1:] <= 0
        straddle = ~(right | left)
        difference = np.where(right, tail[:-1] - tail[1:], tail[1:] - tail[:-1])
        difference = np.where(straddle, 1 - tail[:-1] - tail[1:], difference)
        masses += prob * np.maximum(difference, 0.0)
        tails += prob * np.where(straddle, 1.0, np.maximum(tail[:-1], tail[1:]))
        below += prob * float(ndtr(centred[0]))
        above += prob * float(ndtr(-centred[-1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        rounding = np.where(masses > 0, 4e-16 * tails / masses, 1.0)
    return masses, below, above, rounding


def _upper_quantile(shifts: FloatArray, probs: FloatArray, tail: float) -> float:
    """A point beyond which the mixture has at most mass `tail`."""
    low, high = float(shifts[0]), float(shifts[-1]) - float(ndtri(tail)) + 1e-3
    for _ in range(40):
        middle = (low + high) / 2
        if float(probs @ ndtr(shifts - middle)) > tail:
            low = middle
        else:
            high = middle
    return high


__all__ = [
    "DIRECTIONS",
    "ApproxDpLaw",
    "GaussianLaw",
    "Law",
    "MixtureLaw",
    "NonPrivateLaw",
    "RenyiLaw",
    "ReplaceOnePoissonLaw",
    "RevealedShiftLaw",
    "revealed_delta",
]
