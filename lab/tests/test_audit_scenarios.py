"""Scenarios of shared randomness, checkpoints, draws, shuffles, real trainings: what they play, and what dpmerge refuses."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.audit import Game, about, find_game
from dpmerge.datasets import bounded_features
from dpmerge.errors import DependentRuns, UnsupportedMechanism, WeightsError
from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import Model, Weights
from dpmerge.release import Ledger
from dpmerge.rules import Combination, Joint, Selection
from dpmerge.training import Recipe, train
from dpmerge_lab.audit.scenarios import digits as audited_digits, poisson
from dpmerge_lab.audit.scenarios.accounts import DATASET, even
from dpmerge_lab.audit.scenarios.checkpoints import Checkpoints
from dpmerge_lab.audit.scenarios.digits import DigitsCanaries, DigitsSoftmax
from dpmerge_lab.audit.scenarios.forks import Forks
from dpmerge_lab.audit.scenarios.ladders import NoisedReleases
from dpmerge_lab.audit.scenarios.last_iterate import LastIterate
from dpmerge_lab.audit.scenarios.logistic import TransportLogistic
from dpmerge_lab.audit.scenarios.loose_weights import LooseWeights
from dpmerge_lab.audit.scenarios.prefix_sums import PrefixSums
from dpmerge_lab.audit.scenarios.repeated_draws import RepeatedDraws
from dpmerge_lab.audit.scenarios.same_randomness import SameBatches, SameNoise
from dpmerge_lab.audit.scenarios.shards import Shards
from dpmerge_lab.audit.scenarios.shuffled import Shuffled
from dpmerge_lab.tasks import digits
from tests.ledger_builders import planned

MINE = ("same-noise", "same-batches", "checkpoints", "loose-weights", "selection", "repeated-draws", "transport-logistic")
HIDDEN = ("last-iterate", "last-iterate-noised")
REAL = ("digits-softmax", "digits-canaries")
TRAINED = ("forks", "shards")
STREAMS = ("tree-aggregation", "banded-matrix")
NOISED = ("noised-release", "ladder", "pooled-recipients", "pooled-independent")
RESULTS = Path(__file__).parent.parent / "results" / "audit"


@pytest.mark.parametrize("name", [*MINE, *HIDDEN, *NOISED, *TRAINED, *STREAMS, *REAL, "shuffled"])
def test_a_scenario_says_what_it_is(name: str) -> None:
    game = find_game(name)
    assert (game.name, game.simulated) == (name, name not in REAL)
    assert about(name) and game.about


# --- what dpmerge refuses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Joint, Combination])
@pytest.mark.parametrize(
    "runs",
    [SameNoise().runs(noise_fingerprint="seed 42"), SameBatches().runs(sampler_fingerprint="seed 42")],
    ids=["same noise", "same batches"],
)
def test_runs_with_the_same_randomness_are_refused(rule: type[Joint | Combination], runs: tuple[Model, ...]) -> None:
    weights = even(*runs)
    with pytest.raises(DependentRuns, match="seed 42"):
        rule(weights)
    assert Selection(weights).guarantee(delta=1e-5).standing == "proved"  # draws one, and needs no independence


def test_a_run_s_checkpoints_count_once() -> None:
    one = Combination(Checkpoints().average(one_run=True)).guarantee(delta=1e-5)
    two = Combination(Checkpoints().average(one_run=False)).guarantee(delta=1e-5)
    assert (one.theorem, two.theorem) == ("single-run", "transport")
    assert two.epsilon < one.epsilon / 10


def test_weights_are_not_scaled() -> None:
    game = LooseWeights()
    with pytest.raises(WeightsError, match="never renormalised"):
        game.portfolio().weights(dict.fromkeys("abc", game.chance))


def test_shuffled_batches_are_refused_or_conditional() -> None:
    run = even(Shuffled().run())
    with pytest.raises(UnsupportedMechanism, match="shuffled"):
        Joint(run)
    assert Joint(run, ShuffleAsPoisson(1 / 50)).guarantee(delta=1e-5).standing == "conditional"


# --- what is played -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["same-batches", "selection", "repeated-draws", "loose-weights", "shuffled", *TRAINED])
def test_scores_are_likelihood_ratios(name: str) -> None:
    """If the score is log dP/dQ, then P(a ≤ L < b) = E_Q[L; a ≤ L < b] for every interval."""
    game = find_game(name)
    assert isinstance(game, Game)
    rng = np.random.default_rng(3)
    there, absent = (np.exp(game.play(rng, 100_000, world)) for world in (True, False))
    for low, high in ((0.0, 0.5), (0.5, 1.0), (1.0, 2.0), (2.0, 9.0)):
        inside, weighed = (there >= low) & (there < high), np.where((absent >= low) & (absent < high), absent, 0.0)
        error = math.sqrt((inside.var() + weighed.var()) / 100_000)
        assert inside.mean() == pytest.approx(weighed.mean(), abs=6 * error + 1e-9)


def test_same_batches_say_no_more_than_their_mean() -> None:
    """The likelihood ratio of both runs is that of one run with noise σ/√2, for which theory.md §0 has two numbers."""
    game = SameBatches()
    rng = np.random.default_rng(4)
    runs = rng.standard_normal((2, 1_000, game.steps))
    sigma, noise = game.noise_multiplier, game.noise_multiplier / math.sqrt(2)
    both = np.log1p(game.rate * np.expm1((runs.sum(axis=0) - 1) / sigma**2)).sum(axis=1)
    assert poisson.log_ratio(runs.mean(axis=0) / noise, game.rate, 1 / noise) == pytest.approx(both)
    paper = SameBatches(noise_multiplier=0.8, rate=0.01, steps=1000)
    assert [claim.at(1e-5) for claim in paper.claims(1e-5)] == pytest.approx([4.29, 8.97], abs=0.01)


def test_same_noise_cancels() -> None:
    scores = SameNoise().play(np.random.default_rng(5), 1_000, True)
    assert scores == pytest.approx(np.ones(1_000), abs=1e-12)


def test_averaged_checkpoints_hide_nothing_behind_the_first_step() -> None:
    """Half of the second update: shift η₂/2n, noise σ₂ times as much."""
    game = Checkpoints()
    unit = game.learning_rates[1] / 2 / 100_000
    there, absent = (game.play(np.random.default_rng(6), 100_000, world) / unit for world in (True, False))
    assert [there.mean(), absent.mean()] == pytest.approx([1.0, 0.0], abs=0.02)
    assert [there.std(), absent.std()] == pytest.approx([1.0, 1.0], abs=0.02)


def test_the_vectorised_regression_is_the_real_one() -> None:
    """Without noise, simulated and trained parameters agree, in both worlds; clipping is at work in the second setting."""
    for rates in ((0.9, 0.005), (300.0, 0.005)):
        game = TransportLogistic(learning_rates=rates, noise_multipliers=(0.0, 0.0), steps=5)
        for with_record in (True, False):
            features = np.full((10_001, 1), 2.0, dtype=np.float32)
            labels = np.repeat([0, 1], [5_000, 5_001])
            features[-1] *= with_record
            merged = 0.0
            for weight, rate in zip(game.weights, rates, strict=True):
                recipe = Recipe(steps=5, learning_rate=rate * 10_001 / 10_000, clip=1.02, noise_multiplier=0.0)
                wide = np.hstack([features, np.zeros_like(features)])  # the trainer keeps its last column apart, as the bias
                (model,) = train(wide, labels, 2, recipe, norm_bound=2.0, dataset="test", loss="logistic")
                merged += weight * float(model.tensors["weight"][0, 0])
            played = game.play(np.random.default_rng(7), 1, with_record)[0]
            assert merged == pytest.approx(played, rel=0.02, abs=5e-8)  # trained in single precision


def test_the_ledger_says_the_same_of_repeated_draws(tmp_path: Path) -> None:
    """Entered one by one, under names that have nothing to do with weights."""
    game = RepeatedDraws()
    given = game.portfolio()
    odds: dict[str, Any] = given.as_dict()
    ledger = Ledger.create(tmp_path / "ledger.db", dataset=DATASET, adjacency="replace-one", epsilon=100.0, delta=game.delta)
    for _ in range(game.draws):
        ledger.enter(planned(given.portfolio, **odds))
    once, every = game.claims(game.delta)
    total = ledger.cumulative()
    assert total is not None
    assert total.epsilon == pytest.approx(every.at(game.delta), rel=1e-9)
    assert ledger.history()[0].content["total"]["epsilon"] == pytest.approx(once.at(game.delta), rel=1e-9)


@pytest.mark.parametrize("name", TRAINED)
def test_the_ledger_says_the_same_of_forks_and_shards(name: str, tmp_path: Path) -> None:
    """Models released one by one, in any order: a start counts once, and parts are averaged over last."""
    game = find_game(name)
    assert isinstance(game, Forks | Shards)
    given = game.portfolio()
    models = given.portfolio if isinstance(given, Weights) else given
    ledger = Ledger.create(tmp_path / "ledger.db", dataset=DATASET, adjacency="add-remove", epsilon=100.0, delta=game.delta)
    for one in reversed(models.names):
        odds: dict[str, Any] = {one: 1.0}
        ledger.enter(planned(models, **odds))
    total = ledger.cumulative()
    assert total is not None
    assert total.epsilon == pytest.approx(game.claims(game.delta)[1].at(game.delta), rel=1e-6)


# --- real trainings -----------------------------------------------------------------------------------------------------------


def test_canaries_are_where_no_digit_has_ink() -> None:
    examples, _ = digits.load()
    assert not examples.images[:, audited_digits._DARK].any()
    canary = audited_digits._canaries(np.array([0]), digits.PIXELS)
    assert np.linalg.norm(canary) == pytest.approx(10.0, rel=1e-4)
    assert np.array_equal(audited_digits._features()[0], bounded_features(examples.images, 10.0))


def test_one_canary_moves_its_own_column() -> None:
    """With hardly any noise: by the learning rate over the batch, nearly, at each step that it takes part in."""
    recipe = Recipe(steps=4, learning_rate=1.0, clip=1.0, noise_multiplier=1e-3)
    game = DigitsSoftmax(recipe=recipe)
    there, absent = (game.play(np.random.default_rng(8), 3, world) for world in (True, False))
    unit = recipe.steps * recipe.learning_rate / 1438
    assert there / unit == pytest.approx(np.full(3, 0.995), abs=0.01)
    assert absent / unit == pytest.approx(np.zeros(3), abs=0.01)


def test_many_canaries_are_told_apart() -> None:
    recipe = Recipe(steps=4, learning_rate=1.0, clip=1.0, noise_multiplier=1e-2)
    included, scores = DigitsCanaries(recipe=recipe).play_once(np.random.default_rng(9), 200)
    assert 60 < included.sum() < 140
    assert scores[included].min() > scores[~included].max()
    coins = partial(DigitsCanaries(recipe=recipe).play_once, canaries=20)
    assert not np.array_equal(coins(np.random.default_rng(1))[0], coins(np.random.default_rng(2))[0])


# --- the last iterate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HIDDEN)
def test_the_last_iterate_holds_the_participations_and_the_noise(name: str) -> None:
    """The record's gradient is clipped at every step and nothing of it is forgotten: that is what makes the attack strong."""
    game = find_game(name)
    assert isinstance(game, LastIterate)
    trials = 4_000
    noise = math.sqrt(game.steps * game.noise_multiplier**2 + game.release_noise**2)
    for with_record in (False, True):
        scores = game.play(np.random.default_rng(1), trials, with_record) / game.unit
        mean = game.steps * game.rate * with_record
        deviation = math.sqrt(noise**2 + mean * (1 - game.rate))
        assert scores.mean() == pytest.approx(mean, abs=5 * deviation / math.sqrt(trials))
        assert scores.std() == pytest.approx(deviation, rel=0.06)


@pytest.mark.parametrize("name", HIDDEN)
def test_the_last_iterate_is_claimed_by_hidden_run(name: str) -> None:
    game = find_game(name)
    assert isinstance(game, LastIterate)
    found = Combination(game.trained(), noise=game.release_noise * game.unit).guarantee(delta=game.delta)
    assert (found.theorem, found.standing) == ("hidden-run", "proved")
    assert found.epsilon < 0.75 * Joint(game.trained()).guarantee(delta=game.delta).epsilon


# --- noise at release ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOISED)
def test_releases_have_the_record_and_the_noise_of_one_path(name: str) -> None:
    """Of each release the participations, the training's noise and the path's, whose covariance is the smaller variance."""
    game = find_game(name)
    assert isinstance(game, NoisedReleases)
    trials = 4_000
    participations = game.steps * (game.rate or 1.0)
    coins = participations * (1 - (game.rate or 1.0)) / 2
    for with_record in (False, True):
        generator = np.random.default_rng(1)
        rows = game._released(game._train(generator, trials, with_record), generator.bytes(32))[::2]  # of one tensor
        noises = np.array(game.deviations) / game.unit
        path = np.minimum.outer(noises, noises) ** 2 if game.one_path else np.diag(noises**2)
        law = path + game.steps * game.noise_multiplier**2 + with_record * coins
        error = 6 * np.sqrt(law.diagonal() / trials)
        assert np.all(np.abs(rows.mean(axis=1) - with_record * participations / math.sqrt(2)) < error)
        assert np.atleast_2d(np.cov(rows)) == pytest.approx(law, abs=0.12 * law.max())


@pytest.mark.parametrize("name", ["noised-release", "ladder"])
def test_the_attacker_of_noised_releases_finds_the_least_noisy_one(name: str) -> None:
    game = find_game(name)
    assert isinstance(game, NoisedReleases)
    weights = game._weights()
    least = int(np.argmin(game.deviations))
    assert weights[2 * least : 2 * least + 2] == pytest.approx([0.5, 0.5], abs=0.02)
    assert np.abs(weights).sum() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", NOISED)
def test_kept_audits_reach_three_fifths_of_what_noise_promises(name: str) -> None:
    """Of ε at the scenario's own δ, of the bound that is proved."""
    kept = json.loads((RESULTS / f"{name}.json").read_text())
    (proved,) = (claim for claim in kept["claims"] if claim["standing"] == "proved")
    assert 0.6 <= proved["share"] <= 1 and not proved["exceeded"]
    assert all(claim["exceeded"] for claim in kept["claims"] if claim["standing"] == "refuted")


@pytest.mark.parametrize("name", STREAMS)
def test_prefix_sums_tell_as_much_as_their_theorem_allows(name: str) -> None:
    """The score is a number with variance 1 whose mean differs by μ: that of three nodes, or of four columns."""
    game = find_game(name)
    assert isinstance(game, PrefixSums)
    there, absent = (game.play(np.random.default_rng(7), 200_000, world) for world in (True, False))
    assert [there.std(), absent.std()] == pytest.approx([1.0, 1.0], abs=0.01)
    counted = {"tree-aggregation": 3, "banded-matrix": 4}[name]
    assert there.mean() - absent.mean() == pytest.approx(np.sqrt(counted) / game.noise_multiplier, abs=1e-9)
    assert game.claims(game.delta)[1].mu == pytest.approx(np.sqrt(counted) / game.noise_multiplier, rel=1e-6)
