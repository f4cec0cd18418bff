"""The full-batch transport theorem against the truth, where the truth is known (docs/theory.md §3.3).

If the common records' gradients are linear in the state, a run is a linear recursion driven by Gaussian noise, the merged
model is exactly Gaussian under both neighbours, and its true μ is a closed form. The record may contribute ±C at every
step, and the curvature may change from step to step as long as it stays within what the record of the run states: the
theorem is about arbitrary step maps. The proved μ must never be below the true one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from scipy.stats import norm

from dpmerge.profiles import FloatArray
from dpmerge.records import Adjacency, Model
from dpmerge.rules import Combination, Target
from dpmerge.rules.merged_steps import squared_ratio
from dpmerge.rules.transport import Candidate, WeightedRun, candidate_sets, trajectories, windows
from tests.builders import dp_sgd, weighted
from tests.effort import EFFORT

# Above the rounding of the closed form, far below any error of substance.
ROUNDING = 1e-10
# So many records that the linear gradients of the common ones are never clipped: their cap 2ηC is out of reach.
BATCH = 1e9

Knowledge = Literal["non-expansive", "convex", "smooth"]


@dataclass(frozen=True)
class Instance:
    """Runs with their weights; rows of `eta` are runs, columns steps, aligned at the end."""

    models: tuple[Model, ...]
    weights: FloatArray
    eta: FloatArray
    effect: FloatArray
    noise: FloatArray
    smoothness: FloatArray
    convex: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.eta.shape[0], self.eta.shape[1]


def random_instance(rng: np.random.Generator, knowledge: Knowledge) -> Instance:
    """Different lengths, schedules, noises and curvatures, and weights down to 1e-6.

    "non-expansive": convex and ηβ ≤ 2 at every step. "convex": some steps may be too long for that. "smooth": β alone.
    """
    count, longest = int(rng.integers(2, 4)), int(rng.choice([5, 6, 7, 8, 10, 12, 16, 20, 28, 40], p=[0.15] * 6 + [0.025] * 4))
    adjacency: Adjacency = rng.choice(["add-remove", "add-remove", "add-remove", "zero-out", "replace-one"])
    eta, smoothness = np.zeros((count, longest)), np.zeros(count)
    effect, noise = np.zeros((count, longest)), np.zeros((count, longest))
    models = []
    varying = rng.random() < 0.5
    for row in range(count):
        steps = longest if row == 0 else int(rng.integers(1, longest + 1))
        schedule = np.exp(rng.normal(0, 2)) * (np.exp(rng.normal(0, 0.7, steps)) if varying else np.ones(steps))
        sigma, clip = float(np.exp(rng.normal(1, 1.5))), float(np.exp(rng.normal(0, 1)))
        sigmas = sigma * np.exp(rng.normal(0, 1, steps)) if varying and rng.random() < 0.3 else np.full(steps, sigma)
        longest_step = float(schedule.max())
        if knowledge == "non-expansive":
            smoothness[row] = 2 / longest_step * rng.choice([1.0, rng.random(), 10 ** rng.uniform(-4, 0)])
        else:
            # Growth (1 + L)^T stays below e^16, so distances stay far below the cap.
            smoothness[row] = 16 / steps / longest_step * rng.choice([rng.random(), 10 ** rng.uniform(-4, 0)])
        phases: list[dict[str, Any]] = (
            [
                {"steps": 1, "learning_rate": float(e), "noise_multiplier": float(s)}
                for e, s in zip(schedule, sigmas, strict=True)
            ]
            if varying
            else [{"steps": steps, "learning_rate": longest_step}]
        )
        models.append(
            dp_sgd(
                f"run{row}",
                sigma=sigma,
                clip=clip,
                batch=BATCH,
                phases=phases,
                smoothness=float(smoothness[row]),
                convex=None if knowledge == "smooth" else "glm",
                adjacency=adjacency,
            )
        )
        a = 2 if adjacency == "replace-one" else 1
        eta[row, -steps:] = schedule
        effect[row, -steps:] = schedule * a * clip / BATCH
        noise[row, -steps:] = schedule * sigmas * clip / BATCH
    # Half the time every run has its share in the merged noise, else one of them may rule it.
    shares = 1 / np.sqrt(np.sum(noise**2, axis=1)) if rng.random() < 0.5 else np.ones(count)
    shares *= np.exp(rng.uniform(-1, 0, count) * rng.choice([0.0, 2.0, 14.0]))
    return Instance(tuple(models), shares / shares.sum(), eta, effect, noise, smoothness, knowledge != "smooth")


def curvatures(rng: np.random.Generator, instance: Instance, count: int) -> FloatArray:
    """Curvatures b within ±β (0…β if convex), one for each dynamics, run and step: constant, extreme and random ones."""
    runs, steps = instance.shape
    lowest = 0.0 if instance.convex else -1.0
    shape = (count, runs, steps)
    constant = np.broadcast_to(rng.uniform(lowest, 1, (count, runs, 1)), shape)
    extreme = rng.choice([lowest, 0.0, 1.0], shape)
    anything = rng.uniform(lowest, 1, shape)
    kind = rng.integers(3, size=(count, 1, 1))
    share = np.where(kind == 0, constant, np.where(kind == 1, extreme, anything))
    share[0], share[1], share[2] = 1.0, lowest, 0.0
    beta = instance.smoothness[None, :, None]
    result = share * beta
    # ηb = 1 forgets the state at once: what was hidden by earlier noise is then gone.
    with np.errstate(divide="ignore"):
        result[3] = np.minimum(beta[0], np.where(instance.eta > 0, 1 / instance.eta, 0.0))
    result[4] = np.where(rng.random(result[4].shape) < 0.5, result[3], result[1])
    return result


def true_mu(instance: Instance, curvature: FloatArray) -> FloatArray:
    """θ ← (1 − ηb)θ ± s + νξ: with the best signs the means differ by Σ s_t |Π_{τ>t}(1 − η_τ b_τ)|, for each dynamics."""
    factor = 1 - instance.eta * curvature
    ones = np.ones((*factor.shape[:-1], 1))
    later = np.cumprod(np.concatenate((ones, factor[..., :0:-1]), axis=-1), axis=-1)[..., ::-1]
    mean = np.sum(instance.effect * np.abs(later), axis=-1)
    variance = np.sum((instance.noise * later) ** 2, axis=-1)
    return np.asarray((mean @ instance.weights) / np.sqrt(variance @ instance.weights**2))


def proved_mu(instance: Instance) -> float:
    """What the library's transport gives, by the functions it uses itself (for speed; the public API is tested too)."""
    parts = zip(instance.models, instance.weights.tolist(), instance.smoothness.tolist(), strict=True)
    adjacency = instance.models[0].record.adjacency
    runs = trajectories(
        [WeightedRun(model, weight, beta, instance.convex) for model, weight, beta in parts], adjacency, None, 0.0
    )
    sets = candidate_sets(np.zeros(len(runs.runs)), len(runs.runs))
    candidates = [
        Candidate(k, coupled, by_noise) for k in windows(runs.steps) for coupled in sets for by_noise in (False, True)
    ]
    squares = Combination._squared_mu(runs, squared_ratio(runs.effect, runs.noise), candidates)
    return math.sqrt(float(squares.min()))


def joint_mu(instance: Instance) -> float:
    """Every run revealed whole."""
    started = instance.effect > 0
    return math.sqrt(float(np.sum((instance.effect[started] / instance.noise[started]) ** 2)))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """H_ε of N(μ, 1) from N(0, 1), written out here so that the library is not its own judge."""
    return float(norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon + float(norm.logsf(epsilon / mu + mu / 2))))


@pytest.mark.parametrize(("knowledge", "seed", "count"), [("non-expansive", 1, 150), ("convex", 2, 100), ("smooth", 3, 150)])
def test_true_mu_never_exceeds_the_proved_one(knowledge: Knowledge, seed: int, count: int) -> None:
    """400 instances (4,000 in `make audit`), the worst of 24 dynamics each; nearly reached where it beats joint release."""
    rng = np.random.default_rng(seed)
    worst, worst_gain = 0.0, 0.0
    for _ in range(count * EFFORT):
        instance = random_instance(rng, knowledge)
        proved = proved_mu(instance)
        ratio = float(true_mu(instance, curvatures(rng, instance, 24)).max()) / proved
        assert ratio <= 1 + ROUNDING, instance
        worst = max(worst, ratio)
        if proved < 0.7 * joint_mu(instance):
            worst_gain = max(worst_gain, ratio)
    assert worst > 0.999
    assert worst_gain > 0.9


@pytest.mark.parametrize(("knowledge", "seed"), [("non-expansive", 11), ("convex", 12), ("smooth", 13)])
def test_public_guarantee_covers_the_true_mu(knowledge: Knowledge, seed: int) -> None:
    """120 instances (1,200 in `make audit`), both ways to ask, and the standing: recorded smoothness is no assumption."""
    rng = np.random.default_rng(seed)
    for _ in range(40 * EFFORT):
        instance = random_instance(rng, knowledge)
        mu = float(true_mu(instance, curvatures(rng, instance, 24)).max())
        rule = Combination(weighted(*zip(instance.models, instance.weights.tolist(), strict=True)))
        delta = 10.0 ** -float(rng.uniform(2, 8))
        given_delta = rule.guarantee(delta=delta, by="gdp")
        assert gaussian_delta(mu, given_delta.epsilon) <= delta * (1 + 1e-8)
        given_epsilon = rule.guarantee(epsilon=1.0)
        assert gaussian_delta(mu, 1.0) <= given_epsilon.delta * (1 + 1e-8) + 1e-15
        assert given_delta.standing == given_epsilon.standing == "proved"
        for route in rule.routes(Target(delta=delta)):
            assert route.profile.mu is not None
            assert mu <= route.profile.mu * (1 + ROUNDING)


def test_true_mu_in_the_plane_never_exceeds_the_proved_one() -> None:
    """Two dimensions: curvatures are symmetric matrices in any direction, and the record pulls where it hurts most.

    Drifts of different runs need not be parallel here, so norms are all that the bound may use.
    """
    rng = np.random.default_rng(21)
    worst = 0.0
    for index in range(250 * EFFORT):
        instance = random_instance(rng, "smooth" if index % 2 else "non-expansive")
        true = max(_true_mu_in_the_plane(rng, instance) for _ in range(3))
        worst = max(worst, true / proved_mu(instance))
        assert worst <= 1 + ROUNDING, instance
    assert worst > 0.9


def _true_mu_in_the_plane(rng: np.random.Generator, instance: Instance) -> float:
    """√(d V⁻¹ d) of the merged means' difference d and covariance V."""
    runs, steps = instance.shape
    angle = rng.uniform(0, math.pi, (runs, steps))
    turn = np.moveaxis(np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]), (0, 1), (-2, -1))
    lowest = 0.0 if instance.convex else -1.0
    bends = rng.choice([lowest, 0.5, 1.0], (runs, steps, 2)) * instance.smoothness[:, None, None]
    factors = turn @ ((1 - instance.eta[..., None] * bends)[..., None] * np.swapaxes(turn, -1, -2))
    aim = np.array([1.0, 0.0])
    later = np.broadcast_to(np.eye(2), (runs, 2, 2)).copy()
    difference, covariance = np.zeros(2), np.zeros((2, 2))
    for t in range(steps - 1, -1, -1):
        pull = np.swapaxes(later, -1, -2) @ aim  # the direction of the record's term that moves the end farthest along `aim`
        unit = pull / np.maximum(np.linalg.norm(pull, axis=-1, keepdims=True), 1e-300)
        difference += (instance.weights * instance.effect[:, t]) @ (later @ unit[..., None])[..., 0]
        scale = (instance.weights * instance.noise[:, t]) ** 2
        covariance += np.einsum("i,ijk,ilk->jl", scale, later, later)
        later = later @ factors[:, t]
    return math.sqrt(float(difference @ np.linalg.solve(covariance, difference)))


@pytest.mark.parametrize("convex", ["glm", None])
def test_noiseless_and_idle_steps(convex: str | None) -> None:
    """A run with hardly any noise and small weight, one that pauses (η = 0), one that starts late: covered, and finite."""
    rng = np.random.default_rng(31)
    for _ in range(60):
        eta = np.zeros((3, 12))
        eta[0], eta[1], eta[2, 7:] = rng.uniform(0.1, 1, 12), rng.uniform(0.1, 1, 12), 0.5
        eta[0, rng.integers(0, 11)] = 0.0
        sigma = np.array([[1e-9], [rng.uniform(2, 20)], [rng.uniform(2, 20)]])
        weights = np.array([rng.uniform(1e-4, 1e-2), 0.5, 0.0])
        weights[2] = 1 - weights.sum()
        beta = rng.uniform(0, 2, 3)
        models = tuple(
            dp_sgd(
                f"run{i}",
                sigma=float(sigma[i, 0]),
                batch=BATCH,
                smoothness=float(beta[i]),
                convex=convex,
                phases=[{"steps": 1, "learning_rate": float(e)} for e in (eta[i] if i < 2 else eta[2, 7:])],
            )
            for i in range(3)
        )
        instance = Instance(models, weights, eta, eta / BATCH, eta * sigma / BATCH, beta, convex is not None)
        mu = float(true_mu(instance, curvatures(rng, instance, 24)).max())
        guarantee = Combination(weighted(*zip(models, weights.tolist(), strict=True))).guarantee(delta=1e-5)
        assert math.isfinite(guarantee.epsilon)
        assert "run0" in guarantee.details["coupled"]
        assert gaussian_delta(mu, guarantee.epsilon) <= 1e-5 * (1 + 1e-8)


def test_long_runs_search_only_some_windows_and_stay_valid() -> None:
    """Beyond 64 steps not every window is tried; whichever is chosen must cover the truth."""
    rng = np.random.default_rng(41)
    worst = 0.0
    for steps in (65, 100, 333, 1000):
        for convex in ("glm", None):
            beta = np.array([0.3, 1.0]) if convex else np.array([4.0, 8.0]) / steps
            eta = np.vstack([np.ones(steps), np.concatenate((np.zeros(steps // 3), np.ones(steps - steps // 3)))])
            sigma, weights = np.array([[30.0], [6.0]]), np.array([0.9, 0.1])
            models = tuple(
                dp_sgd(
                    f"run{i}",
                    sigma=float(sigma[i, 0]),
                    eta=1.0,
                    steps=int(eta[i].sum()),
                    batch=BATCH,
                    smoothness=float(beta[i]),
                    convex=convex,
                )
                for i in range(2)
            )
            instance = Instance(models, weights, eta, eta / BATCH, eta * sigma / BATCH, beta, convex is not None)
            mu = float(true_mu(instance, curvatures(rng, instance, 24)).max())
            *_, route = Combination(weighted(*zip(models, weights.tolist(), strict=True))).routes(Target(delta=1e-5))
            assert route.profile.mu is not None
            worst = max(worst, mu / route.profile.mu)
    assert 0.3 < worst <= 1 + ROUNDING


def test_proved_mu_grows_with_smoothness_and_without_convexity() -> None:
    """Knowing less never proves more: convex ≤ smooth ≤ rougher ≤ unknown, and no smoothness beats joint release's μ."""
    rng = np.random.default_rng(51)
    for _ in range(40 * EFFORT):
        instance = random_instance(rng, "non-expansive")
        adjacency = instance.models[0].record.adjacency

        def proved(factor: float, convex: bool, instance: Instance = instance, adjacency: Adjacency = adjacency) -> float:
            known = zip(instance.models, instance.weights.tolist(), (factor * instance.smoothness).tolist(), strict=True)
            runs = trajectories([WeightedRun(model, w, beta, convex) for model, w, beta in known], adjacency, None, 0.0)
            sets = candidate_sets(np.zeros(len(runs.runs)), len(runs.runs))
            ramps = (False, True)
            candidates = [Candidate(k, coupled, ramp) for k in windows(runs.steps) for coupled in sets for ramp in ramps]
            return math.sqrt(float(Combination._squared_mu(runs, squared_ratio(runs.effect, runs.noise), candidates).min()))

        ladder = [proved(0.0, False), proved(1.0, True), proved(1.0, False), proved(3.0, False), proved(math.inf, False)]
        for better, worse in pairwise([*ladder, joint_mu(instance)]):
            assert better <= worse * (1 + ROUNDING)


@pytest.mark.parametrize("last_noise", [1e-8, 1e-9, 1e-12])
def test_nearly_noiseless_last_phase_does_not_hide_the_cost_of_earlier_steps(last_noise: float) -> None:
    """50 steps at noise multiplier 1, then one at almost none: what the first 50 cost must not drown in rounding."""
    last = {"steps": 1, "learning_rate": 1.0, "noise_multiplier": last_noise}
    run = dp_sgd("run", sigma=1.0, batch=BATCH, phases=[{"steps": 50, "learning_rate": 1.0}, last])
    masked = dp_sgd("mask", sigma=1000.0, batch=BATCH, eta=0.004)
    # No gradient depends on the state: effects add up, and so do variances.
    mu = (51 + 0.004) / math.sqrt(50 + last_noise**2 + 16)
    guarantee = Combination(weighted((run, 0.5), (masked, 0.5))).guarantee(delta=1e-5)
    assert gaussian_delta(mu, guarantee.epsilon) <= 1e-5


def test_noise_next_to_nothing_is_no_guarantee_and_no_crash() -> None:
    """A noise multiplier that is not zero and might as well be: no finite ε, as for zero. A record holds no smaller one."""
    models = [dp_sgd(f"run{i}", sigma=1e-30, steps=2) for i in range(2)]
    assert math.isinf(Combination(weighted((models[0], 0.5), (models[1], 0.5))).guarantee(delta=1e-5).epsilon)
