"""Bugs put into the library on purpose: the watchdog must raise the alarm for each, and for none of them before.

Each bug is one a reasonable person might make. The audits are those of test_watchdog.py, with the same seed and confidence.
With a bug the guarantee called proved is too small, and the attack, which knows nothing of the accounting, goes beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dpmerge.audit import Audit, Game, audit, find_game
from dpmerge.profiles import mixture, profile, runs
from dpmerge.records import Adjacency, Model, Portfolio, Weights, distinct_runs
from dpmerge.rules import combination, joint, releases, selection, transport
from dpmerge.rules.transport import Trajectories
from dpmerge.tensors import Noise, path, plan
from dpmerge.tensors.noising import TensorNoise
from dpmerge.tensors.normals import Normals
from dpmerge.tensors.path import Part, rung
from dpmerge_lab.audit.scenarios.shuffled import Shuffled
from tests.test_watchdog import CONFIDENCE, SEED
from tests.violations import Alarm, Report, check_checkpoints, check_ledger, check_transport

pytestmark = pytest.mark.xdist_group("watchdog_bugs")  # so that `sound` remembers
Bug = Callable[[pytest.MonkeyPatch], None]
# Fewer than the watchdog plays: these bugs are far off, but for those in `selection` and `pooled-recipients`.
TRIALS, MORE_TRIALS = 30_000, {"selection": 200_000, "pooled-recipients": 100_000}


def attacked(scenario: str) -> Audit:
    game = find_game(scenario)
    assert isinstance(game, Game) and game.simulated
    return audit(game, trials=MORE_TRIALS.get(scenario, TRIALS), confidence=CONFIDENCE, seed=SEED, jobs=1)


@cache
def sound(scenario: str) -> Audit:
    """Before any bug."""
    return attacked(scenario)


def drop_the_factor_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced record moves a sum by two clipping norms: its own, and the other's."""

    def one(adjacency: Adjacency) -> float:
        return 1.0

    for module in (runs, transport):
        monkeypatch.setattr(module, "record_effect", one)


def look_in_one_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """H_ε(Q, P) alone, where the record is added: under sampling the other direction is the larger."""
    for module in (mixture, profile, selection):
        monkeypatch.setattr(module, "DIRECTIONS", ("add", "add"))


def take_checkpoints_for_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is a run of its own, with noise of its own."""
    monkeypatch.setattr(Model, "run", property(lambda self: f"model:{self.name}"))
    monkeypatch.setattr(combination, "require_independent", lambda models: ())


def forget_the_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hidden copies of a run stay as far apart as the record drove them: the common records do not react."""

    def still(*arguments: Any, **options: Any) -> Trajectories:
        known = transport.trajectories(*arguments, **options)
        return replace(known, pull=np.zeros_like(known.pull), growth=np.minimum(known.growth, 1.0))

    monkeypatch.setattr(combination, "trajectories", still)


def renormalise_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that do not sum to 1 are scaled, silently."""

    def scaled(cls: type[Weights], models: Portfolio, given: Mapping[str, float]) -> Weights:
        total = math.fsum(given.values())
        return cls(models, tuple(given.get(name, 0.0) / total for name in models.names))

    monkeypatch.setattr(Weights, "over", classmethod(scaled))


def ignore_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that share their randomness are taken for independent ones."""
    for module in (joint, combination):
        monkeypatch.setattr(module, "require_independent", lambda models: ())


def take_shuffles_for_poisson(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffled batches are accounted with their share of the data as a rate, without a word."""

    def quietly(model: Model, shuffle: runs.ShuffleAsPoisson | None = None) -> runs.RunProfile:
        return runs.RunProfile(runs.run_profile(model, shuffle or runs.ShuffleAsPoisson(1 / Shuffled().batches)).profile)

    monkeypatch.setattr(joint, "run_profile", quietly)


def forget_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork is a run from public parameters."""
    monkeypatch.setattr(Model, "starts", property(lambda self: iter(())))


def count_one_model_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts do not compose with each other, so neither do the models of one part."""
    real = distinct_runs
    monkeypatch.setattr(releases, "distinct_runs", lambda models: real(models)[:1])


def count_a_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prefix sum has noise of the same multiplier, and the record is in one step, or in few of many."""
    monkeypatch.setattr(runs, "tree_nodes", lambda *_: 1)
    monkeypatch.setattr(runs, "columns", lambda *_: 1)


BUGS: list[tuple[Bug, str]] = [
    (drop_the_factor_two, "repeated-draws"),
    (drop_the_factor_two, "doubled-shift"),
    (look_in_one_direction, "same-batches"),
    (look_in_one_direction, "selection"),
    (take_checkpoints_for_runs, "checkpoints"),
    (forget_the_drift, "transport-logistic"),
    (forget_the_drift, "formula-convex"),
    (renormalise_weights, "loose-weights"),
    (ignore_fingerprints, "same-noise"),
    (ignore_fingerprints, "same-batches"),
    (take_shuffles_for_poisson, "shuffled"),
    (forget_the_start, "forks"),
    (count_one_model_of_a_part, "shards"),
    (count_a_record_once, "tree-aggregation"),
    (count_a_record_once, "banded-matrix"),
]


@pytest.mark.parametrize(("bug", "scenario"), BUGS, ids=[f"{bug.__name__}-{scenario}" for bug, scenario in BUGS])
def test_the_watchdog_fires(bug: Bug, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sound(scenario).alarm
    bug(monkeypatch)
    unsound = attacked(scenario)
    assert unsound.alarm
    assert unsound.epsilon == sound(scenario).epsilon  # the attack is the same: only what is claimed has changed


# --- bugs in the noise of a release: what is claimed stays, and the releases say more than that ------------------------------


def own_noise_for_each_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every release has fresh noise, of the right size: two of them average it away."""

    def parts(root: float, index: int) -> tuple[Part, ...]:
        return (Part(index, Fraction(1), Fraction(rung(root, index)) ** 2),)

    monkeypatch.setattr(path, "parts", parts)


def one_normal_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of another size is the same noise, scaled: two releases give away the average."""

    def parts(root: float, index: int) -> tuple[Part, ...]:
        return (Part(0, Fraction(1), Fraction(rung(root, index)) ** 2),)

    monkeypatch.setattr(path, "parts", parts)


def add_deviations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Increments of τ where they belong to v = τ²: far from the root there is less noise than is said."""

    def parts(root: float, index: int) -> tuple[Part, ...]:
        deviations = [Fraction(0), *(Fraction(rung(root, k)) for k in (*range(0, index, 32), index))]
        return tuple(Part(k, Fraction(1), (b - a) ** 2) for k, (a, b) in enumerate(pairwise(deviations)))

    monkeypatch.setattr(path, "parts", parts)


def forget_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two tensors is averaged without noise."""

    def noise_of(noise: Noise, normals: Normals) -> TensorNoise | None:
        return None if normals.tensor == "bias" else TensorNoise(noise, normals)

    monkeypatch.setattr(plan, "TensorNoise", noise_of)


NOISE_BUGS: list[tuple[Bug, str]] = [
    (own_noise_for_each_release, "ladder"),
    (own_noise_for_each_release, "pooled-recipients"),
    (one_normal_for_all, "ladder"),
    (add_deviations, "noised-release"),
    (forget_a_tensor, "noised-release"),
    (forget_a_tensor, "ladder"),
    (forget_a_tensor, "pooled-recipients"),
]


@pytest.mark.parametrize(("bug", "scenario"), NOISE_BUGS, ids=[f"{bug.__name__}-{scenario}" for bug, scenario in NOISE_BUGS])
def test_the_watchdog_sees_wrong_noise(bug: Bug, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sound(scenario).alarm
    bug(monkeypatch)
    assert attacked(scenario).alarm


# --- the searches for violations, which know the exact laws (tests/violations.py) --------------------------------------------


def full_batches() -> Report:
    return check_transport(20, seed=1)


def poisson_batches() -> Report:
    return check_transport(3, seed=1, sampled=True)


def averages_of_checkpoints() -> Report:
    return check_checkpoints(40, seed=1)


def ledgers() -> Report:
    return check_ledger(30, seed=1)


FOUND: list[tuple[Callable[[], Report], tuple[Bug, ...]]] = [
    (full_batches, (drop_the_factor_two, forget_the_drift)),
    (ledgers, (drop_the_factor_two,)),
    (poisson_batches, (look_in_one_direction, forget_the_drift)),
    (averages_of_checkpoints, (take_checkpoints_for_runs,)),
]


@pytest.mark.parametrize(("search", "bugs"), FOUND, ids=[search.__name__ for search, _ in FOUND])
def test_the_search_finds_them(search: Callable[[], Report], bugs: tuple[Bug, ...]) -> None:
    assert search().largest > 0  # it looked at something, and raised no alarm
    for bug in bugs:
        with pytest.MonkeyPatch.context() as patch:
            bug(patch)
            with pytest.raises(Alarm):
                search()
