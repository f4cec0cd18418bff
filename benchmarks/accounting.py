"""The accounting core against dp-accounting."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from benchmarks.report import Claim, best_time
from dpmerge import example_portfolio
from dpmerge.profiles import MixtureLaw, Profile, ShiftLaw, run_profile, sum_of_coins
from dpmerge.records import Model, Portfolio, Record, Weights
from dpmerge.rules import Combination, Guarantee, least_noise

DELTA = 1e-5


def run(name: str, phases: list[dict[str, Any]], **mechanism: Any) -> Model:
    record = {
        "schema": 1,
        "dataset": "benchmark",
        "adjacency": "add-remove",
        "mechanism": {
            "kind": "dp-sgd",
            "run": name,
            "noise_fingerprint": name,
            "sampler_fingerprint": name,
            "optimizer": "sgd",
            "sampling": {"scheme": "poisson", "rate": 256 / 60000},
            "expected_batch": 256,
            "noise_multiplier": 1.0,
            "clip": 1.0,
            "clipping": "flat",
            "phases": phases,
            "smoothness": None,
            "convex": None,
            **mechanism,
        },
    }
    return Model(name, Record.parse(json.dumps(record)))


def average_of_three() -> float:
    """ε of the average of the portfolio of docs/theory.md §8 (papers' formula: every step is a mixture of 8 Gaussians)."""
    portfolio = Portfolio(
        tuple(
            run(n, [{"steps": 705, "learning_rate": 0.1}], clip=c, noise_multiplier=s)
            for n, c, s in (("a", 1.0, 0.5), ("b", 2.0, 0.5), ("c", 1.0, 2.0))
        )
    )
    weights = portfolio.weights({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    return Combination(weights, assume_smoothness=0).guarantee(delta=DELTA, by="pld").epsilon


def linear_combination() -> Iterator[Claim]:
    """One guarantee of a linear combination."""
    clips, sigmas, q = (1.0, 2.0, 1.0), (0.5, 0.5, 2.0), 256 / 60000
    noise = math.sqrt(sum((c * s) ** 2 for c, s in zip(clips, sigmas, strict=True)))
    coins = sum_of_coins([ShiftLaw.coin(c / noise, q) for c in clips], 0.0)

    def theirs() -> float:
        law = privacy_loss_distribution.from_mixture_gaussian_mechanism(1.0, coins.values.tolist(), coins.probs.tolist())
        return float(law.self_compose(705).get_epsilon_for_delta(DELTA))

    our_time, our_epsilon = best_time(average_of_three, 5)
    their_time, their_epsilon = best_time(theirs, 2)
    exact = Profile.of([(MixtureLaw.of(coins), 705)]).epsilon(DELTA, interval=1e-5)
    yield Claim(
        "one guarantee of a linear combination, N = 3, T = 705, PLD, against dp-accounting at its default interval",
        f"{our_time * 1e3:.1f} ms against {their_time * 1e3:.0f} ms: {their_time / our_time:.0f} times",
        "≥ 20 times",
        their_time / our_time >= 20,
    )
    yield Claim(
        "… and its accuracy against an interval of 1e-5",
        f"ε = {our_epsilon:.6f}, {their_epsilon:.6f}, {exact:.6f}: |Δε| = {abs(our_epsilon - exact):.1e}",
        "≤ 1e-4",
        abs(our_epsilon - exact) <= 1e-4,
    )


def equation_nine() -> Iterator[Claim]:
    """Eq. (9) of Differentially Private Model Merging at α = 32 for four models, as a quadrature."""
    shifts = (0.4, 0.8, 0.2, 0.6)

    def ours() -> float:
        law = MixtureLaw.of(sum_of_coins([ShiftLaw.coin(s, 0.01) for s in shifts], 0.0))
        return float(law.log_moment(np.array([32.0]), "remove")[0]) / 31

    seconds, value = best_time(ours, 20)
    terms = math.comb(32 + 2**4 - 1, 2**4 - 1)
    yield Claim(
        "Eq. (9) of Differentially Private Model Merging at α = 32, N = 4",
        f"{seconds * 1e3:.2f} ms (ε_α = {value:.6g}); the literal sum has {terms:,} terms",
        "milliseconds",
        seconds < 0.01,
    )


def full_batch_phases() -> Iterator[Claim]:
    """1000 different full-batch phases: closed form."""
    phases = [{"steps": 1, "learning_rate": 0.1, "noise_multiplier": 20 + 0.01 * t} for t in range(1000)]
    model = run("full", phases, sampling={"scheme": "full-batch"})

    def ours() -> float:
        return run_profile(model).profile.epsilon(DELTA)

    seconds, epsilon = best_time(ours, 10)
    yield Claim("1000 different full-batch phases", f"{seconds * 1e3:.1f} ms (ε = {epsilon:.6f})", "< 50 ms", seconds < 0.05)


def poisson_phases(count: int = 1000) -> Iterator[Claim]:
    """1000 different Poisson phases at one interval, composed by both."""
    sigmas = np.linspace(0.8, 1.2, count)
    interval = 1e-4

    def ours() -> float:
        laws = [(MixtureLaw.poisson(256 / 60000, 1 / float(s)), 1) for s in sigmas]
        return Profile.of(laws).epsilon(DELTA, interval=interval)

    def theirs() -> float:
        composed = privacy_loss_distribution.identity(interval)
        for sigma in sigmas:
            step = privacy_loss_distribution.from_gaussian_mechanism(
                float(sigma), sampling_prob=256 / 60000, value_discretization_interval=interval
            )
            composed = composed.compose(step)
        return float(composed.get_epsilon_for_delta(DELTA))

    our_time, our_epsilon = best_time(ours, 1)
    their_time, their_epsilon = best_time(theirs, 1)
    yield Claim(
        f"{count} different Poisson phases at interval 1e-4",
        f"{our_time:.1f} s against {their_time:.1f} s: {their_time / our_time:.1f} times "
        f"(ε = {our_epsilon:.5f}, {their_epsilon:.5f})",
        "≥ 5 times",
        their_time / our_time >= 5,
    )


def start_up() -> Iterator[Claim]:
    """Whole processes, as a user starts them."""
    portfolio = str(example_portfolio())
    weights = "mnist-c1-s0.5=0.025,mnist-c2-s0.5=0.025,mnist-c1-s2=0.95"
    commands = [("--help", ["--help"], 0.4)] + [
        (f"account --rule {rule}", ["account", portfolio, "--rule", rule, "--weights", weights, "--delta", "1e-5"], 1.5)
        for rule in ("selection", "combination", "joint")
    ]
    for name, arguments, limit in commands:
        command = [sys.executable, "-m", "dpmerge", *arguments]
        seconds, _ = best_time(partial(subprocess.run, command, capture_output=True, check=True), 5)
        yield Claim(f"dpmerge {name}, whole process", f"{seconds:.2f} s", f"< {limit} s", seconds < limit)


def _guarantee(weights: Weights, noise: float) -> Guarantee:
    return Combination(weights, noise=noise).guarantee(delta=DELTA)


def hidden_runs() -> Iterator[Claim]:
    """Theorem hidden-run: convex models whose last iterate alone is released, with noise at release where one is stated."""
    known = {"noise_multiplier": 0.5, "smoothness": 0.245, "convex": "glm"}
    short = [run(f"m{i}", [{"steps": 705, "learning_rate": 0.1}], **known) for i in range(8)]
    rare = {"noise_multiplier": 0.5, "sampling": {"scheme": "poisson", "rate": 5e-5}, "expected_batch": 3.0}
    long = run("long", [{"steps": 100_000, "learning_rate": 0.1}], **{**known, **rare})
    unknown = [run(f"n{i}", [{"steps": 705, "learning_rate": 0.1}], noise_multiplier=2.0) for i in range(190)]
    effect = 0.1 / 256  # what one record does in one step
    cases = [
        ("one run of 705 steps", short[:1], 0.0, 0.3),
        ("one run of 100,000 steps", [long], 0.1, 5.0),
        ("8 runs of 705 steps", short, 4 * effect, 3.0),
        (
            "200 models, 10 of them hidden",
            [*short, *(run(f"o{i}", [{"steps": 705, "learning_rate": 0.1}], **known) for i in "ab"), *unknown],
            4 * effect,
            30.0,
        ),
    ]
    _guarantee(
        Portfolio((run("w", [{"steps": 9, "learning_rate": 0.1}], **known),)).weights({"w": 1.0}), 0.0
    )  # loads libraries
    for name, models, noise, limit in cases:
        weights = Portfolio(tuple(models)).weights({model.name: 1 / len(models) for model in models})
        seconds, found = best_time(partial(_guarantee, weights, noise), 1)
        told = f"{seconds:.2f} s (ε = {found.epsilon:.3f}, {found.theorem})"
        yield Claim(f"hidden-run: {name}", told, f"< {limit:g} s", seconds < limit)
    weights = Portfolio(tuple(short[:1])).weights({"m0": 1.0})
    seconds, (noise, _) = best_time(lambda: least_noise(weights, epsilon=1.0, delta=DELTA), 1)
    told = f"{seconds:.2f} s (τ = {noise / effect:.2f} effects of a record)"
    yield Claim("hidden-run: the least noise for ε = 1, 705 steps", told, "< 2 s", seconds < 2)


ALL = (linear_combination, equation_nine, full_batch_phases, start_up, poisson_phases, hidden_runs)
