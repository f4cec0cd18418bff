"""Everything Gaussian: averages over checkpoints of one run, and ledgers of random releases (docs/theory.md §3.1, §5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from dpmerge.profiles import FloatArray, log_delta_from_renyi
from dpmerge.records import Adjacency, Model, Portfolio
from dpmerge.release import Entry
from dpmerge.release.account import Account
from dpmerge.release.entries import Budget, PendingEntry
from dpmerge.release.forms import RuleForm
from dpmerge.rules import Combination, Exposure, Filter
from tests import builders
from tests.exact_densities import gaussian_delta, observed_mu
from tests.ledger_builders import planned
from tests.violations.report import ADJACENCIES, DELTA, Report, compare, held, random_odds

_BATCH = 1e6  # so many records that linear gradients are never clipped


@dataclass(frozen=True)
class LinearRun:
    """θ ← factor·θ ± effect + noise·ξ at each step, with checkpoints: the models, and after how many steps each was saved."""

    factors: FloatArray
    effect: FloatArray
    noise: FloatArray
    saved: tuple[int, ...]
    models: tuple[Model, ...]

    @property
    def loadings(self) -> FloatArray:
        """How the pushes and noises of all steps enter the checkpoints (rows)."""
        rows = np.zeros((len(self.saved), self.factors.size))
        for row, step in zip(rows, self.saved, strict=True):
            row[:step] = np.append(np.cumprod(self.factors[1:step][::-1])[::-1], 1.0)
        return rows


def _linear_run(rng: np.random.Generator, name: str, adjacency: Adjacency, checkpoints: int) -> LinearRun:
    """Two to four steps, each with a learning rate, noise and curvature of its own; non-expansive, down to a factor of −1."""
    steps = int(rng.integers(2, 5))
    etas, sigmas = np.exp(rng.uniform(-1, 1, steps)), np.exp(rng.uniform(-1, 2, steps))
    smoothness = 2 / float(etas.max()) * float(rng.choice([1.0, rng.random()]))
    factors = 1 - etas * smoothness * rng.choice([0.0, 1.0, rng.random()], steps)
    saved = (*sorted(rng.choice(np.arange(1, steps), checkpoints - 1, replace=False).tolist()), steps)
    phases = [{"steps": 1, "learning_rate": float(e), "noise_multiplier": float(s)} for e, s in zip(etas, sigmas, strict=True)]
    common: dict[str, Any] = {"sigma": 1.0, "batch": _BATCH, "smoothness": smoothness, "convex": "glm", "adjacency": adjacency}
    one_run: dict[str, Any] = {"run": f"run-{name}", "noise_fingerprint": name, "sampler_fingerprint": None}
    models = tuple(builders.dp_sgd(f"{name}{step}", phases=phases[:step], **common, **one_run) for step in saved)
    unit = etas / _BATCH
    return LinearRun(factors, (2 if adjacency == "replace-one" else 1) * unit, unit * sigmas, saved, models)


def check_checkpoints(examples: int, seed: int) -> Report:
    """Averages over two checkpoints of one run, and at times another run: noise that the checkpoints share may cancel."""
    rng = np.random.default_rng(seed)
    report = Report()
    for _ in range(examples):
        adjacency: Adjacency = rng.choice(ADJACENCIES)
        run, other = _linear_run(rng, "a", adjacency, 2), _linear_run(rng, "b", adjacency, 1)
        early, late = run.loadings
        cancels = late[0] / early[0] < 0 if early[0] else False
        odds = -late[0] / early[0] if cancels and rng.random() < 0.7 else float(rng.uniform(0, 2))
        weights = np.array([odds, 1.0, rng.choice([0.0, 0.0, rng.random()])])
        weights /= weights.sum()
        loads = [(weights[:2] @ run.loadings, run), (weights[2:] @ other.loadings, other)]
        shift = math.fsum(float(np.abs(load) @ one.effect) for load, one in loads)
        mu = shift / math.sqrt(math.fsum(float(load**2 @ one.noise**2) for load, one in loads))
        rule = Combination(builders.weighted(*zip((*run.models, *other.models), weights.tolist(), strict=True)))
        report.add(compare([rule], lambda epsilon, mu=mu: gaussian_delta(mu, epsilon), (run, other, weights)))  # type: ignore[misc]
    return report


# --- ledgers ------------------------------------------------------------------------------------------------------------

Outcomes = list[tuple[float, list[FloatArray]]]  # probabilities, and what is then seen: linear functions of the models


@dataclass(frozen=True)
class Leaks:
    """μ of what has leaked after all releases, with probabilities: the releases may turn out in many ways."""

    chances: dict[float, float]

    @classmethod
    def of(cls, made: list[Outcomes], shift: FloatArray, covariance: FloatArray) -> Leaks:
        """Every sequence of outcomes, one by one."""
        chances: dict[float, float] = {}
        for sequence in product(*made):
            seen = np.unique(np.array([row for _, rows in sequence for row in rows]), axis=0)
            mu = observed_mu(seen, shift, covariance)
            chances[mu] = chances.get(mu, 0.0) + math.prod(chance for chance, _ in sequence)
        return cls(chances)

    def delta(self, epsilon: float) -> float:
        """δ of everything together, which models were drawn included."""
        return math.fsum(chance * gaussian_delta(mu, epsilon) for mu, chance in self.chances.items())


def check_ledger(examples: int, seed: int) -> Report:
    """Random releases from Gaussian models, checkpoints of one run among them, against every way they can turn out."""
    rng = np.random.default_rng(seed)
    report = Report()
    for _ in range(examples):
        adjacency: Adjacency = rng.choice(ADJACENCIES)
        portfolio, shift, covariance = _linear_portfolio(rng, adjacency)
        entries: list[Entry] = []
        made: list[Outcomes] = []
        for _ in range(int(rng.integers(1, 5))):
            release, outcomes = _random_release(rng, portfolio)
            total = {"total": {"theorem": "several-releases"}}
            entries.append(Entry.following(entries, "start", {"kind": "release", **release.content(), **total}))
            made.append(outcomes)
        leaks = Leaks.of(made, shift, covariance)
        budget = Budget(builders.DATASET, adjacency, float(rng.choice([0.1, 1.0, 8.0])), DELTA, "today")
        account = Account(budget, entries)
        rules = account.rules()
        example = [entry.content["forms"] for entry in entries], portfolio
        report.add(compare(rules, leaks.delta, example))
        report.add(held(budget.total(rules), leaks.delta, example))
        # The same releases by a filter, which must hold however they were chosen: at its own order a bound as well.
        rule = Filter.sharing(4.0, DELTA)
        used = account.used(rule)
        spent = log_delta_from_renyi(np.array([rule.order]), np.array([used.divergence]), 1.0, "tight")
        printed = replace(rule.guarantee(used, adjacency, DELTA), epsilon=1.0, delta=min(1.0, math.exp(spent[0]) + used.pairs))
        report.add(held(printed, leaks.delta, example))
    return report


def _linear_portfolio(rng: np.random.Generator, adjacency: Adjacency) -> tuple[Portfolio, FloatArray, FloatArray]:
    """Private means and checkpoints of linear runs: the models, how their means move, and the covariance of their noises."""
    models: list[Model] = []
    shifts: list[float] = []
    blocks: list[FloatArray] = []
    for name in "abc"[: int(rng.integers(1, 4))]:
        if rng.random() < 0.5:
            size, noise = float(np.exp(rng.uniform(-1, 1))), float(np.exp(rng.uniform(-0.5, 2)))
            models.append(builders.gaussian(name, sensitivity=size, noise_std=size * noise, adjacency=adjacency, run=name))
            shifts.append(size)
            blocks.append(np.array([[(size * noise) ** 2]]))
        else:
            run = _linear_run(rng, name, adjacency, int(rng.integers(1, 3)))
            models += run.models
            shifts += (run.loadings @ (run.effect * rng.choice([-1, 1], run.effect.size))).tolist()
            blocks.append((run.loadings * run.noise**2) @ run.loadings.T)
    covariance = np.zeros((len(models), len(models)))
    for block in blocks:
        place = int(np.count_nonzero(covariance.any(axis=0)))
        covariance[place : place + len(block), place : place + len(block)] = block
    return Portfolio(tuple(models)), np.array(shifts), covariance


def _random_release(rng: np.random.Generator, portfolio: Portfolio) -> tuple[PendingEntry, Outcomes]:
    """A release as the ledger is told of it, and what is really seen.

    A draw shows a model and which one it is. In a tempered draw here all models have equal scores.
    """
    names, unit = portfolio.names, np.eye(len(portfolio.names))
    odds = random_odds(rng, len(names))
    given: dict[str, Any] = dict(zip(names, odds.tolist(), strict=True))
    drawn: Outcomes = [(chance, [unit[i]]) for i, chance in enumerate(odds.tolist())]
    kind = rng.choice(["selection", "selection", "coupled", "combination", "joint", "tempered"])
    if kind == "coupled":
        return _coupled(portfolio, (odds, random_odds(rng, len(names))))
    if kind == "combination":
        return planned(portfolio, "combination", **given), [(1.0, [odds])]
    if kind == "joint":
        looked = [name for name in names if rng.random() < 0.3]
        chosen: dict[str, Any] = {str(rng.choice(names)): 1.0}
        seen = [unit[i] for i, name in enumerate(names) if name in looked or name in chosen]
        return planned(portfolio, "joint", looked_at=looked, **chosen), [(1.0, seen)]
    if kind == "tempered":
        return planned(portfolio, "tempered", kappa=float(rng.uniform(0, 2)).hex(), **given), drawn
    return planned(portfolio, "selection", **given), drawn


def _coupled(portfolio: Portfolio, both: tuple[FloatArray, FloatArray]) -> tuple[PendingEntry, Outcomes]:
    """Two draws with one uniform number."""
    weights = [portfolio.weights_in_order(odds.tolist()) for odds in both]
    written = [{name: value.hex() for name, value in one.as_dict().items()} for one in weights]
    forms = tuple(RuleForm.model_validate({"rule": "selection", "weights": one}) for one in written)
    guarantees = tuple(form.build(portfolio).guarantee(delta=DELTA) for form in forms)
    ladders = [np.cumsum(odds) for odds in both]
    unit = np.eye(len(portfolio.names))
    outcomes: Outcomes = []
    for low, high in pairwise(np.unique(np.concatenate(([0.0, 1.0], *ladders)).clip(0, 1))):
        drawn = [min(int(np.searchsorted(ladder, (low + high) / 2)), len(unit) - 1) for ladder in ladders]
        outcomes.append((float(high - low), [unit[i] for i in drawn]))
    return PendingEntry(forms, portfolio, Exposure.drawn(*weights), guarantees, "nowhere"), outcomes
