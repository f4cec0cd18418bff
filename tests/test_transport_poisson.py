"""Poisson-sampled linear combinations against brute force (docs/theory.md §3.3, "Poisson sampling").

One to three steps, two or three runs, gradients of the common records linear in the state. The theorem conditions on the
batches of the common records, so their curvature is a number at every step, within ±β·|batch|/B; batches up to two
deviations larger than expected are well within the bound M that the library allows for. The record's own coins are
enumerated. The merged model is then a finite mixture of Gaussians with one variance, under both neighbours, and its
hockey-stick divergences are exact. The library may never print less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

from dpmerge.profiles import FloatArray, MixtureLaw, Profile, RevealedShiftLaw, ShiftLaw, sum_of_coins
from dpmerge.profiles.pairs import ReplaceOnePoissonLaw
from dpmerge.records import Adjacency, Model
from dpmerge.rules import Combination, Joint
from dpmerge.rules.transport import Candidate, Trajectories, WeightedRun, candidate_sets, drifts, trajectories
from tests.builders import dp_sgd, weighted
from tests.effort import EFFORT

EPSILONS = (0.0, 0.3, 1.0, 2.5)
# The oracle's rounding: differences of normal cdfs are good to about 1e-15 in absolute terms.
ABSOLUTE, RELATIVE = 1e-13, 1e-9

Knowledge = Literal["non-expansive", "smooth"]


@dataclass(frozen=True)
class Mixture:
    """Σ ρ_j N(m_j, 1)."""

    means: FloatArray
    probs: FloatArray

    def log_density(self, x: FloatArray) -> FloatArray:
        """Up to the constant that all mixtures share."""
        return np.asarray(logsumexp(-((x[:, None] - self.means) ** 2) / 2, axis=1, b=self.probs))

    def mass(self, low: float, high: float) -> float:
        """P(low < x < high), from whichever tail is smaller."""
        a, b = low - self.means, high - self.means
        flip = a > 0
        return float(self.probs @ (ndtr(np.where(flip, -a, b)) - ndtr(np.where(flip, -b, a))))


def hockey_stick(upper: Mixture, lower: Mixture, epsilon: float) -> float:
    """∫ (p − e^ε q)₊: sign changes of the log ratio on a fine grid, each refined, and exact masses in between."""
    low = min(upper.means.min(), lower.means.min()) - 12
    high = max(upper.means.max(), lower.means.max()) + 12
    x = np.linspace(low, high, 1 + math.ceil((high - low) / 0.02))
    excess = upper.log_density(x) - lower.log_density(x) - epsilon

    def at(point: float) -> float:
        one = np.array([point])
        return float((upper.log_density(one) - lower.log_density(one))[0]) - epsilon

    turns = np.flatnonzero(np.diff(np.sign(excess)) != 0)
    roots = [float(brentq(at, x[i], x[i + 1], xtol=1e-13)) if excess[i] * excess[i + 1] < 0 else float(x[i]) for i in turns]
    edges = [low, *roots, high]
    total = 0.0
    for left, right in pairwise(edges):
        if right > left and at((left + right) / 2) > 0:
            total += max(0.0, upper.mass(left, right) - math.exp(epsilon) * lower.mass(left, right))
    return total


@dataclass(frozen=True)
class Instance:
    """Runs with weights, and everything a step needs: rows are runs, columns steps, aligned at the end."""

    models: tuple[Model, ...]
    weights: FloatArray
    eta: FloatArray
    unit: FloatArray  # ηC/B: how far a record moves the state when it is in the batch
    noise: FloatArray
    rate: FloatArray
    curvature: FloatArray  # the largest |b| of the batches at hand
    convex: bool

    def rule(self) -> Combination:
        return Combination(weighted(*zip(self.models, self.weights.tolist(), strict=True)))

    def merged(self, rng: np.random.Generator, neighbours: Literal["absent", "replaced"]) -> tuple[Mixture, Mixture]:
        """The laws of the merged model under D and D′, in units of their standard deviation."""
        lowest = 0.0 if self.convex else -1.0
        share = rng.choice([lowest, 0.0, 0.5, 1.0], self.eta.shape if rng.random() < 0.5 else (len(self.models), 1))
        curvature = share * self.curvature
        factor = 1 - self.eta * curvature
        ones = np.ones((len(self.models), 1))
        later = np.cumprod(np.concatenate((ones, factor[:, :0:-1]), axis=1), axis=1)[:, ::-1]
        deviation = math.sqrt(float(np.sum((self.weights[:, None] * self.noise * later) ** 2)))
        reach = self.weights[:, None] * self.unit * np.abs(later) / deviation
        coins = [(value, rate) for value, rate in zip(reach.ravel(), self.rate.ravel(), strict=True) if value > 0]
        # Mostly the record pulls the same way all the time, which hurts most; sometimes it changes its mind.
        signs = np.ones(len(coins)) if rng.random() < 0.7 else rng.choice([-1.0, 1.0], len(coins))
        upper = enumerate_coins([(value * sign, rate) for (value, rate), sign in zip(coins, signs, strict=True)])
        if neighbours == "absent":
            return upper, Mixture(np.zeros(1), np.ones(1))
        others = -signs if rng.random() < 0.7 else rng.choice([-1.0, 0.0, 1.0], len(coins))
        return upper, enumerate_coins([(value * sign, rate) for (value, rate), sign in zip(coins, others, strict=True)])


def enumerate_coins(coins: list[tuple[float, float]]) -> Mixture:
    """All subsets."""
    means, probs = np.zeros(1), np.ones(1)
    for value, rate in coins:
        means = np.concatenate((means, means + value))
        probs = np.concatenate((probs * (1 - rate), probs * rate))
    return Mixture(means[probs > 0], probs[probs > 0])


def random_instance(rng: np.random.Generator, knowledge: Knowledge, adjacency: Adjacency) -> Instance:
    """Rates from 2 % to a full batch, different noises, schedules, lengths; weights that make the merge interesting."""
    count = int(rng.integers(2, 4))
    longest = int(rng.integers(1, 4))
    shape = (count, longest)
    eta, unit, noise, rates, curvature = (np.zeros(shape) for _ in range(5))
    models = []
    for row in range(count):
        steps = longest if row == 0 else int(rng.integers(1, longest + 1))
        batch = float(rng.choice([50, 200, 5000]))
        rate = float(rng.choice([0.02, 0.1, 0.2, 0.5, 0.9, 1.0], p=[0.04, 0.2, 0.2, 0.2, 0.18, 0.18]))
        schedule = np.exp(rng.normal(0, 1)) * np.exp(rng.normal(0, 0.5, steps))
        sigma, clip = float(rng.uniform(0.8, 4)), float(np.exp(rng.normal(0, 0.5)))
        # Two deviations above the expected batch: an ordinary thing to happen, so the bound must cover it.
        share = math.floor(batch + 2 * math.sqrt(batch * (1 - rate))) / batch
        top = 2 / share if knowledge == "non-expansive" else 1.5
        smoothness = top / float(schedule.max()) * float(rng.choice([0.0, 0.01, rng.random(), 0.999]))
        models.append(
            dp_sgd(
                f"run{row}",
                sigma=sigma,
                clip=clip,
                batch=batch,
                sampling=None if rate == 1 else rate,
                smoothness=smoothness,
                convex="glm" if knowledge == "non-expansive" else None,
                phases=[{"steps": 1, "learning_rate": float(e)} for e in schedule],
                adjacency=adjacency,
            )
        )
        at = (row, slice(longest - steps, None))
        eta[at], unit[at], noise[at] = schedule, schedule * clip / batch, schedule * sigma * clip / batch
        rates[at], curvature[at] = rate, smoothness * share
    shares = np.exp(rng.normal(0, 1, count)) / np.sqrt(np.sum(noise**2, axis=1))
    return Instance(tuple(models), shares / shares.sum(), eta, unit, noise, rates, curvature, knowledge == "non-expansive")


def all_routes(rule: Combination) -> Iterator[tuple[Candidate, Profile]]:
    """Every window and every coupled set that the library could ever choose, not only those it ranks first."""
    runs = trajectories(rule._covered, rule._adjacency, None, 1e-12)
    for coupled in candidate_sets(np.zeros(len(runs.runs)), len(runs.runs)):
        yield Candidate(1, coupled), rule._poisson_route(runs, Candidate(1, coupled), None).profile
    longer = [Candidate(k, ()) for k in range(2, runs.steps + 1)]
    if longer:
        for candidate, drift in zip(longer, drifts(runs, longer), strict=True):
            yield candidate, rule._poisson_route(runs, candidate, drift).profile


def test_trajectories_are_their_numbers() -> None:
    """What was ranked for some is used again for equal ones only."""

    def made(name: str = "a", weight: float = 0.5, **changed: Any) -> Trajectories:
        model = dp_sgd(name, **{"sigma": 1.0, "steps": 5, "sampling": 0.1, **changed})
        return trajectories([WeightedRun(model, weight, 0.5, True)], "add-remove", None, 1e-12)

    assert made() == made("b") and hash(made()) == hash(made("b"))
    others = [made(weight=0.6), made(sigma=1.1), made(steps=6), made(sampling=0.2)]
    assert made() not in (*others, "something else")


def exact_delta(pairs: list[tuple[Mixture, Mixture]], epsilon: float) -> float:
    """The worst of several adversaries, both directions."""
    return max(hockey_stick(p, q, epsilon) for pair in pairs for p, q in (pair, pair[::-1]))


def adversaries(
    rng: np.random.Generator, instance: Instance, adjacency: Adjacency, count: int
) -> list[tuple[Mixture, Mixture]]:
    return [instance.merged(rng, "replaced" if adjacency == "replace-one" else "absent") for _ in range(count)]


def covers(printed: float, exact: float) -> bool:
    return exact <= printed * (1 + RELATIVE) + ABSOLUTE


def test_oracle_agrees_with_closed_forms() -> None:
    """N(μ, 1) against N(0, 1), and total variation of a mixture from its mirror image."""
    one = Mixture(np.array([1.5]), np.ones(1))
    zero = Mixture(np.zeros(1), np.ones(1))
    for epsilon in EPSILONS:
        closed = float(ndtr(0.75 - epsilon / 1.5) - math.exp(epsilon) * ndtr(-0.75 - epsilon / 1.5))
        assert hockey_stick(one, zero, epsilon) == pytest.approx(closed, rel=1e-12)
        assert hockey_stick(zero, one, epsilon) == pytest.approx(closed, rel=1e-12)
    coins = enumerate_coins([(1.0, 0.3), (0.5, 0.6)])
    mirror = Mixture(-coins.means, coins.probs)
    assert hockey_stick(coins, mirror, 0.0) == pytest.approx(float(coins.probs @ (2 * ndtr(coins.means) - 1)), rel=1e-12)


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize("knowledge", ["non-expansive", "smooth"])
def test_printed_delta_is_never_below_brute_force(knowledge: Knowledge, adjacency: Adjacency) -> None:
    """18 instances over all adjacencies through the public API (180 in `make audit`), several adversaries each."""
    rng = np.random.default_rng([3, len(knowledge), len(adjacency)])
    worst = 0.0
    for _ in range(3 * EFFORT):
        instance = random_instance(rng, knowledge, adjacency)
        pairs = adversaries(rng, instance, adjacency, 4)
        rule = instance.rule()
        for epsilon in (0.0, float(rng.choice(EPSILONS[1:]))):
            exact = exact_delta(pairs, epsilon)
            printed = rule.guarantee(epsilon=epsilon).delta
            assert covers(printed, exact), (instance, epsilon)
            worst = max(worst, exact / printed)
    assert worst > 0.9


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("knowledge", ["non-expansive", "smooth"])
def test_every_window_and_coupled_set_is_valid(knowledge: Knowledge, adjacency: Adjacency) -> None:
    """Not only the candidates that rank first: each (k, B) is a theorem of its own, by loss distribution and by Rényi."""
    rng = np.random.default_rng([4, len(knowledge), len(adjacency)])
    seen: dict[str, float] = {}
    done = 0
    while done < 2 * EFFORT:
        instance = random_instance(rng, knowledge, adjacency)
        if instance.eta.shape[1] == 1 or np.all(instance.rate[instance.eta > 0] == 1):
            continue
        done += 1
        pairs = adversaries(rng, instance, adjacency, 6)
        epsilon = float(rng.choice([0.0, 0.3, 1.0]))
        exact = exact_delta(pairs, epsilon)
        for candidate, profile in all_routes(instance.rule()):
            proved = max(profile.delta(epsilon, interval=0.02))  # a coarse grid is quicker, and hardly looser
            assert covers(proved, exact), (instance, candidate)
            assert covers(profile.delta_by_renyi(epsilon), exact), (instance, candidate)
            kind = "coupled" if candidate.coupled else "last step" if candidate.window == 1 else "longer"
            seen[kind] = max(seen.get(kind, 0.0), exact / proved)
    assert seen.keys() == {"coupled", "last step", "longer"}
    assert max(seen.values()) > 0.8


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_printed_epsilon_is_never_below_brute_force(adjacency: Adjacency) -> None:
    """The other question: the printed ε at δ really has δ(ε) ≤ δ, by every accountant."""
    rng = np.random.default_rng([5, len(adjacency)])
    for index in range(4 * EFFORT):
        instance = random_instance(rng, "smooth" if index % 2 else "non-expansive", adjacency)
        pairs = adversaries(rng, instance, adjacency, 3)
        rule = instance.rule()
        delta = 10.0 ** -float(rng.uniform(2, 7))
        for by in ("pld", "rdp"):
            epsilon = rule.guarantee(delta=delta, by=by).epsilon
            assert math.isinf(epsilon) or covers(delta, exact_delta(pairs, epsilon)), (instance, by)


@pytest.mark.parametrize("rates", [(0.05, 0.5), (0.3, None)])
def test_one_step_is_exact_for_add_remove(rates: tuple[float | None, ...]) -> None:
    """A single step has no hidden past: the mixture over subsets is the truth, and the library reaches it."""
    models = [dp_sgd(f"run{i}", sigma=(0.7, 3.0)[i], eta=0.5, batch=100, sampling=rate) for i, rate in enumerate(rates)]
    rule = Combination(weighted((models[0], 0.4), (models[1], 0.6)))
    deviation = math.hypot(0.4 * 0.7, 0.6 * 3)
    truth = enumerate_coins([(w / deviation, 1.0 if q is None else q) for w, q in zip((0.4, 0.6), rates, strict=True)])
    for epsilon in EPSILONS:
        exact = exact_delta([(truth, Mixture(np.zeros(1), np.ones(1)))], epsilon)
        printed = rule.guarantee(epsilon=epsilon)
        assert printed.theorem == "transport-poisson"
        assert covers(printed.delta, exact)
        assert printed.delta <= exact * (1 + 1e-3)


# --- small datasets, where the common records' batches are enumerated too ----------------------------------------------------


@pytest.mark.parametrize("convex", ["glm", None])
def test_fluctuating_batches_of_few_records(convex: str | None) -> None:
    """Three records at rate ½ and expected batch 1: batches are often larger than expected, up to everyone.

    The truth does not reveal the batches; the proof does. Both must be covered.
    """
    rng = np.random.default_rng([6, len(convex or "")])
    rate, batch, common, worst = 0.5, 1.0, 2, 0.0
    sizes = [(0, 0.25), (1, 0.5), (2, 0.25)]
    assert common + 1 <= math.ceil((batch + 1) / rate)
    for _ in range(EFFORT):
        eta, sigma = rng.uniform(0.5, 1.5, 2), np.exp(rng.normal(0, 0.7, 2))
        beta = rng.uniform(0.05, 0.5, 2)
        weights = rng.dirichlet(np.ones(2) * 3)
        models = [
            dp_sgd(
                f"run{i}", sigma=sigma[i], eta=eta[i], steps=2, batch=batch, sampling=rate, smoothness=beta[i], convex=convex
            )
            for i in range(2)
        ]
        rule = Combination(weighted(*zip(models, weights.tolist(), strict=True)))
        sign = 1.0 if convex else float(rng.choice([-1.0, 1.0]))
        cases: list[tuple[float, float, Mixture]] = []  # probability of the batches, deviation, law of the mean
        for first, p in sizes:
            for second, q in sizes:
                factor = 1 - sign * eta * beta * np.array([first, second]) / batch  # of the last step of each run
                deviation = float(np.sqrt(np.sum((weights * eta * sigma) ** 2 * (1 + factor**2))))
                coins = [(w * e * g, rate) for w, e, f in zip(weights, eta, factor, strict=True) for g in (1.0, abs(f))]
                cases.append((p * q, deviation, enumerate_coins(coins)))
        for epsilon in (0.0, 0.5, 1.5):
            printed = rule.guarantee(epsilon=epsilon).delta
            revealed = sum(
                prob * exact_delta([(Mixture(law.means / dev, law.probs), Mixture(np.zeros(1), np.ones(1)))], epsilon)
                for prob, dev, law in cases
            )
            hidden = _hidden_batches(cases, epsilon)
            assert hidden <= revealed * (1 + 1e-6)
            assert covers(printed, revealed)
            worst = max(worst, revealed / printed)
    assert worst > 0.3


@pytest.mark.parametrize(("convex", "beta", "curvature"), [(None, 0.5, -1.0), (None, 0.5, 1.0), ("glm", 1.5, 3.0)])
def test_batches_larger_than_expected_are_covered(convex: str | None, beta: float, curvature: float) -> None:
    """Both common records in a batch where one is expected: curvature 2β, and a convex step that is expansive for it.

    One run has hardly any noise, so that its past is hidden by the last step alone: there the bound is nearly reached.
    """
    rate, weights, sigma = 0.5, (0.2, 0.8), (0.01, 2.0)
    models = [
        dp_sgd("bare", sigma=sigma[0], eta=1.0, steps=2, batch=1, sampling=rate, smoothness=beta, convex=convex),
        dp_sgd("mask", sigma=sigma[1], eta=1.0, steps=1, batch=1, sampling=rate, smoothness=beta, convex=convex),
    ]
    rule = Combination(weighted(*zip(models, weights, strict=True)))
    grown = abs(1 - curvature)
    deviation = math.hypot(weights[0] * sigma[0] * math.hypot(1, grown), weights[1] * sigma[1])
    coins = [(size / deviation, rate) for size in (weights[0], weights[0] * grown, weights[1])]
    pair = (enumerate_coins(coins), Mixture(np.zeros(1), np.ones(1)))
    for epsilon in EPSILONS:
        printed = rule.guarantee(epsilon=epsilon)
        assert printed.theorem == "coupled-coins"
        assert covers(printed.delta, exact_delta([pair], epsilon))


def _hidden_batches(cases: list[tuple[float, float, Mixture]], epsilon: float) -> float:
    """The hockey-stick divergence of the whole mixture over batches and coins, by plain quadrature, both directions."""
    reach = max(float(law.means.max()) + 12 * dev for _, dev, law in cases)
    x = np.linspace(-reach, reach, 20_001)
    upper, lower = np.zeros_like(x), np.zeros_like(x)
    for prob, dev, law in cases:
        scaled = x / dev
        upper += prob / dev * np.exp(Mixture(law.means / dev, law.probs).log_density(scaled))
        lower += prob / dev * np.exp(-(scaled**2) / 2)
    step = (x[1] - x[0]) / math.sqrt(2 * math.pi)
    scale = math.exp(epsilon)
    return float(max(np.maximum(upper - scale * lower, 0).sum(), np.maximum(lower - scale * upper, 0).sum()) * step)


# --- long runs, and runs almost without noise -------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "rate", "varying"), [(60, 0.05, False), (400, 0.01, False), (400, 0.01, True)])
def test_coins_of_a_long_coupled_run(steps: int, rate: float, varying: bool) -> None:
    """A long run with hardly any noise, hidden by one step of another: its coins add up, and the bound is nearly exact.

    Hundreds of coins are grouped, rounded and coarsened by the library, always upwards; here they are multiples of one unit
    and convolved exactly.
    """
    weights, sigma = (0.01, 0.99), (1e-4, 1.5)
    schedule = np.round(np.geomspace(1, 0.1, steps) / 0.05) * 0.05 if varying else np.ones(steps)
    each = [{"steps": 1, "learning_rate": float(eta)} for eta in schedule]
    phases = each if varying else [{"steps": steps, "learning_rate": 1.0}]
    known: dict[str, Any] = {"batch": 1e6, "smoothness": 1e-3, "convex": "glm"}
    long = dp_sgd("long", sigma=sigma[0], sampling=rate, phases=phases, **known)
    short = dp_sgd("short", sigma=sigma[1], eta=0.05, sampling=0.2, **known)
    rule = Combination(weighted((long, weights[0]), (short, weights[1])))
    # A common gradient that does not depend on the state is one of those the records allow.
    spread = math.hypot(weights[0] * sigma[0] * float(np.linalg.norm(schedule)), weights[1] * sigma[1] * 0.05)
    unit = 0.05 * weights[0]  # every coin is a whole number of these, also 0.05 · 0.99
    law = np.zeros(2401)
    law[0] = 1.0
    for value, chance in [(weights[0] * eta, rate) for eta in schedule.tolist()] + [(weights[1] * 0.05, 0.2)]:
        cells = round(value / unit)
        assert cells * unit == pytest.approx(value)
        law = (1 - chance) * law + chance * np.concatenate((np.zeros(cells), law[: law.size - cells]))
    kept = law > 1e-25
    truth = Mixture(np.asarray(np.flatnonzero(kept) * (unit / spread), dtype=np.float64), law[kept])
    for epsilon in (0.0, 0.5, 2.0):
        exact = exact_delta([(truth, Mixture(np.zeros(1), np.ones(1)))], epsilon)
        printed = rule.guarantee(epsilon=epsilon)
        assert printed.theorem == "coupled-coins"
        assert "long" in printed.details["coupled"]
        assert covers(printed.delta, exact)
        assert printed.delta <= exact * (1.05 if varying else 1.001)


@pytest.mark.parametrize("steps", [50, 300, 600, 2000])
def test_growth_beyond_all_numbers_is_no_guarantee_and_no_crash(steps: int) -> None:
    """A noiseless run whose distances grow by 1 + L > 2 at every step: 2^600 is still a number, its square is not."""
    known: dict[str, Any] = {"batch": 256.0, "sampling": 256 / 60_000, "smoothness": 1.0, "eta": 1.0, "steps": steps}
    rule = Combination(weighted((dp_sgd("bare", sigma=0.0, **known), 0.01), (dp_sgd("private", sigma=1.0, **known), 0.99)))
    # Not sampled at all is the least that can be said in favour: a record of the noiseless run is in some batch otherwise.
    sampled = -math.expm1(steps * math.log1p(-256 / 60_000))
    assert rule.guarantee(delta=1e-5).epsilon > 20
    assert 0.5 * sampled <= rule.guarantee(epsilon=1.0).delta <= 1


@pytest.mark.parametrize("sigma", [1e-3, 1e-6, 1e-9, 1e-30])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_nearly_noiseless_runs_cost_what_their_coins_cost(sigma: float, adjacency: Adjacency) -> None:
    """Six sampled steps that give everything away when they touch the record: δ = 1 − (1−q)⁶, and no ε below."""
    models = [dp_sgd(f"run{i}", sigma=sigma, steps=3, batch=100, sampling=0.01, adjacency=adjacency) for i in range(2)]
    rule = Combination(weighted((models[0], 0.5), (models[1], 0.5)))
    touched = 1 - 0.99**6
    assert rule.guarantee(epsilon=1.0).delta == pytest.approx(touched, rel=1e-6)
    assert rule.guarantee(epsilon=1.0).delta >= touched * (1 - 1e-12)
    assert rule.guarantee(delta=0.9 * touched).epsilon > 1000


@pytest.mark.parametrize("case", ["window of revealed coins", "coupled run"])
def test_combination_is_never_worse_than_joint_release(case: str) -> None:
    """Joint release is always among the valid accounts, so the smallest of them is at most that."""
    if case == "window of revealed coins":
        known: dict[str, Any] = {"batch": 20.0, "steps": 2, "sampling": 0.3, "adjacency": "replace-one"}
        models = dp_sgd("a", sigma=0.5, eta=1.0, **known), dp_sgd("b", sigma=100.0, clip=10.0, eta=0.1, **known)
        weights = weighted((models[0], 2 / 3), (models[1], 1 / 3))
    else:
        known = {"batch": 20.0, "sigma": 100.0, "sampling": 0.001, "convex": "glm", "adjacency": "zero-out"}
        slow = [{"steps": 30, "learning_rate": 0.01}, {"steps": 1, "learning_rate": 0.1}]
        fast: list[dict[str, Any]] = [
            {"steps": 30, "learning_rate": 1.0, "clip": 10.0},
            {"steps": 2, "learning_rate": 1.0, "sampling": {"scheme": "full-batch"}},
        ]
        models = dp_sgd("a", smoothness=5.0, phases=slow, **known), dp_sgd("b", smoothness=0.001, phases=fast, **known)
        weights = weighted((models[0], 0.85), (models[1], 0.15))
    assert Combination(weights).guarantee(epsilon=0.0).delta <= Joint(weights).guarantee(epsilon=0.0).delta * (1 + 1e-6)


# --- replace-one: the doubled shift is not enough ----------------------------------------------------------------------------

PER_RECORD, RATES = (2.5, 0.2), (0.05, 0.5)


def test_doubled_shift_mixture_is_below_the_truth_for_replaced_records() -> None:
    """w/s_λ = (2.5, 0.2), q = (0.05, 0.5): true δ(0) = 0.1248, the mixture with doubled shifts says 0.1067."""
    upper = enumerate_coins(list(zip(PER_RECORD, RATES, strict=True)))
    truth = hockey_stick(upper, Mixture(-upper.means, upper.probs), 0.0)
    assert truth == pytest.approx(0.1248, abs=5e-5)
    coins = [ShiftLaw.coin(2 * value, rate) for value, rate in zip(PER_RECORD, RATES, strict=True)]
    doubled = MixtureLaw.of(sum_of_coins(coins, 1e-18))
    assert max(Profile.of([(doubled, 1)]).delta(0.0)) == pytest.approx(0.1067, abs=5e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
def test_replaced_records_are_covered_by_revealing_the_coins(epsilon: float) -> None:
    """The law the library uses, and the guarantee of two runs that have exactly these shifts."""
    upper = enumerate_coins(list(zip(PER_RECORD, RATES, strict=True)))
    truth = hockey_stick(upper, Mixture(-upper.means, upper.probs), epsilon)
    coins = [ShiftLaw.coin(2 * value, rate) for value, rate in zip(PER_RECORD, RATES, strict=True)]
    revealed = RevealedShiftLaw.of(sum_of_coins(coins, 1e-18))
    assert all(covers(delta, truth) for delta in Profile.of([(revealed, 1)]).delta(epsilon))
    # w_i = λ_i η C/B with s_λ² = Σ (w_i σ_i)²: noise multipliers with (2.5σ₁)² + (0.2σ₂)² = 1.
    sigmas = (0.2, math.sqrt(0.75) / 0.2)
    etas = (2 * PER_RECORD[0], 2 * PER_RECORD[1])
    models = [
        dp_sgd(f"run{i}", sigma=sigmas[i], eta=etas[i], batch=1000, sampling=RATES[i], adjacency="replace-one")
        for i in range(2)
    ]
    printed = Combination(weighted((models[0], 0.5), (models[1], 0.5))).guarantee(epsilon=epsilon)
    assert printed.theorem != "transport-poisson"
    assert covers(printed.delta, truth)


def test_single_replaced_record_is_dominated_by_opposite_ones() -> None:
    """One run's own step under replace-one: whatever the two records are, (+C, −C) is the worst pair (both directions)."""
    for rate in (0.01, 0.2, 0.5, 0.9):
        for shift in (0.2, 1.0, 3.0):
            law = Profile.of([(ReplaceOnePoissonLaw(rate, shift), 1)])
            for epsilon in (0.0, 0.2, 1.0):
                printed = min(law.delta(epsilon))
                for one, other in ((1.0, -1.0), (1.0, -0.5), (1.0, 0.0), (0.0, 1.0), (1.0, 0.9), (0.3, -1.0)):
                    probs = np.array([1 - rate, rate])
                    pair = Mixture(np.array([0.0, one * shift]), probs), Mixture(np.array([0.0, other * shift]), probs)
                    assert covers(printed, exact_delta([pair], epsilon))
