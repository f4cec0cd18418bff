"""Random selections between mechanisms whose laws are known (docs/theory.md §2, §3.4, §4)."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from dpmerge.profiles import FloatArray
from dpmerge.records import Adjacency, Model
from dpmerge.rules import Selection, Tempered
from dpmerge_lab.hidden_selection import HiddenSelection
from tests import builders
from tests.exact_densities import HiddenRun, Ramp, ReleaseLaws, Step, discrete_delta, selected_mean_delta
from tests.violations.report import ADJACENCIES, Report, compare, random_odds


def check_selection(examples: int, seed: int) -> Report:
    """Arbitrary mechanisms on few outcomes, drawn or drawn by score; sampled steps; private means whose index stays hidden."""
    rng = np.random.default_rng(seed)
    report = Report()
    tempered = [_tempered_selection] * 3  # the quickest, and the one that needs the most luck
    kinds = (_discrete_selection, *tempered, _sampled_selection, _mean_selection)
    for number in range(examples):
        report.add(kinds[number % len(kinds)](rng))
    return report


def _discrete_models(rng: np.random.Generator, count: int) -> tuple[list[Model], list[FloatArray]]:
    """Mechanisms on few outcomes: what their records say, and their laws under D and D′ (rows)."""
    models, pairs = [], []
    for number in range(count):
        kind = rng.choice(["any", "canonical", "curve", "revealed"], p=[0.4, 0.3, 0.15, 0.15])
        epsilon = float(rng.uniform(0, 2))
        pair = np.array(rng.dirichlet(np.full(int(rng.integers(2, 5)), rng.choice([0.5, 3.0])), size=2)) + 1e-12
        if kind == "canonical":
            lost, kept = 10 ** float(rng.uniform(-4, -1)), 1 / (1 + math.exp(-epsilon))
            upper = np.array([lost, (1 - lost) * kept, (1 - lost) * (1 - kept), 0.0])
            pair = np.stack([upper, upper[::-1]])
        elif kind == "revealed":
            pair = np.eye(2)
        pair = pair / pair.sum(axis=1, keepdims=True)
        known = {"kind": "non-private"} if kind == "revealed" else _known_as(pair, epsilon, as_curve=kind == "curve")
        models.append(builders.model(f"m{number}", known))
        pairs.append(pair)
    return models, pairs


def _known_as(pair: FloatArray, epsilon: float, as_curve: bool) -> dict[str, object]:
    """What a record may truthfully say of these two laws: one point of their curve, or Rényi divergences."""
    if as_curve:
        orders = [1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0]
        curve = [max(math.log(float(np.sum(p**a * q ** (1 - a)))) / (a - 1) for p, q in (pair, pair[::-1])) for a in orders]
        return {"kind": "rdp", "orders": orders, "values": [value * (1 + 1e-12) + 1e-12 for value in curve]}
    return {"kind": "approx-dp", "epsilon": epsilon, "delta": min(_both_ways(pair, epsilon) * (1 + 1e-12), 1 - 1e-15)}


def _both_ways(pair: FloatArray, epsilon: float) -> float:
    return max(discrete_delta(pair[0], pair[1], epsilon), discrete_delta(pair[1], pair[0], epsilon))


def _discrete_selection(rng: np.random.Generator) -> Report:
    """Index and model are released: for fixed neighbours δ is exactly Σ π_i δ_i, per direction."""
    odds = random_odds(rng, int(rng.integers(1, 5)))
    models, pairs = _discrete_models(rng, odds.size)
    rule = Selection(builders.weighted(*zip(models, odds.tolist(), strict=True)))
    released = np.concatenate([chance * pair for chance, pair in zip(odds, pairs, strict=True)], axis=1)
    return compare([rule], lambda epsilon: _both_ways(released, epsilon), (odds, pairs))


def _tempered_selection(rng: np.random.Generator) -> Report:
    """Every outcome has a public score; index and model drawn by score, enumerated over what all the models may be."""
    odds = random_odds(rng, int(rng.integers(2, 4)))
    models, pairs = _discrete_models(rng, odds.size)
    kappa = float(rng.uniform(0, 2))
    scores = [rng.choice([0.0, 1.0, rng.random()], pair.shape[1]) for pair in pairs]
    laws = [np.zeros_like(pair) for pair in pairs]
    for outcomes in product(*(range(pair.shape[1]) for pair in pairs)):
        tilted = odds * np.exp([kappa * score[outcome] for score, outcome in zip(scores, outcomes, strict=True)])
        chance = np.prod([pair[:, outcome] for pair, outcome in zip(pairs, outcomes, strict=True)], axis=0)
        for law, outcome, share in zip(laws, outcomes, tilted / tilted.sum(), strict=True):
            law[:, outcome] += share * chance
    rule = Tempered(builders.weighted(*zip(models, odds.tolist(), strict=True)), kappa)
    released = np.concatenate(laws, axis=1)
    return compare([rule], lambda epsilon: _both_ways(released, epsilon), (odds, pairs, scores, kappa))


def _sampled_selection(rng: np.random.Generator) -> Report:
    """A few sampled steps whose common records stand still: a mixture of Gaussians. The index is published."""
    odds = random_odds(rng, int(rng.integers(1, 4)))
    adjacency: Adjacency = rng.choice(ADJACENCIES)
    replacement = Ramp.constant(1.0) if adjacency == "replace-one" else None
    models, laws = [], []
    for number in range(odds.size):
        rate, sigma = float(rng.choice([0.01, 0.1, 0.5, 0.9])), float(np.exp(rng.uniform(-1.5, 1.5)))
        steps = int(rng.choice([1, 1, 2, 3]))
        run = builders.dp_sgd(f"m{number}", sigma=sigma, steps=steps, batch=1.0, eta=1.0, sampling=rate, adjacency=adjacency)
        step = Step(Ramp.constant(0.0), Ramp.constant(-1.0), replacement, 0, rate, sigma)
        models.append(run)
        laws.append(ReleaseLaws.of([HiddenRun(1.0, (step,) * steps)]))
    rule = Selection(builders.weighted(*zip(models, odds.tolist(), strict=True)))
    return compare([rule], lambda epsilon: max(odds @ np.array([law.delta(epsilon) for law in laws])), (models, odds))


def _mean_selection(rng: np.random.Generator) -> Report:
    """One statistic, noise of different sizes, and nobody told which: the law of the release itself."""
    dimension = int(rng.choice([1, 1, 2, 10]))
    odds = random_odds(rng, 2 if dimension > 1 else int(rng.integers(2, 4)))
    deviations = np.exp(rng.uniform(-1, 1.5, odds.size)).tolist()
    shift = float(rng.choice([1.0, rng.uniform(0.2, 1)]))
    models = [builders.gaussian(f"m{i}", noise_std=s, dimension=dimension) for i, s in enumerate(deviations)]
    rule = HiddenSelection(builders.weighted(*zip(models, odds.tolist(), strict=True)))

    def truth(epsilon: float) -> float:
        return selected_mean_delta(odds.tolist(), deviations, shift, dimension, epsilon)

    example = f"dimension {dimension}, deviations {deviations}, odds {odds}, shift {shift}"
    return compare([rule], truth, example, both_ways=dimension == 1)  # beyond, ε at a δ takes seconds
