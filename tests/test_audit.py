"""The auditor: limits against exact binomials, coverage and closeness on a known law, no leaks, refusals, resumption."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import bdtr, ndtr
from scipy.stats import binom, norm
from typer.testing import CliRunner

from dpmerge.audit import (
    CanaryGame,
    Claim,
    FromFunctions,
    Game,
    Guessing,
    as_dict,
    audit,
    check,
    find_game,
    picture,
    playing as playing_module,
)
from dpmerge.audit.bounds import (
    Attack,
    Threshold,
    best_threshold,
    ceiling,
    epsilon_bound,
    mu_bound,
    upper_limit,
)
from dpmerge.audit.one_run import chance, guess, one_run_bound
from dpmerge.audit.verdict import Stated
from dpmerge.cli import app
from dpmerge.errors import DpmergeError, EvaluationError, TargetError
from dpmerge.figures import render
from dpmerge.jobs import Finished
from dpmerge.profiles import gaussian_delta, gaussian_epsilon
from dpmerge.rules import round_down
from dpmerge_lab.audit import SCENARIOS
from dpmerge_lab.audit.scenarios.gaussian import GaussianCanaries, GaussianMean
from dpmerge_lab.audit.scores import dot_product, gaussian_log_ratio, mixture_log_ratio

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Noise(Game):
    """A release that says nothing: the claim of ε = 0 is true."""

    name: str = "noise"
    about: str = "nothing is released"
    delta: float = 1e-5

    def claims(self, delta: float) -> list[Claim]:
        return [Claim("perfect privacy", "proved", lambda delta: 0.0, mu=0.0)]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> Floats:
        return generator.standard_normal(trials)


@dataclass(frozen=True)
class Shifted(Game):
    """A Gaussian of this μ under a claim that is the user's."""

    mu: float
    claimed: Claim
    sign: float = 1.0
    name: str = "shifted"
    about: str = "a Gaussian"
    delta: float = 1e-5
    chunk: int = 5_000

    def claims(self, delta: float) -> list[Claim]:
        return [self.claimed]

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> Floats:
        return self.sign * (self.mu * with_record + generator.standard_normal(trials))


@dataclass(frozen=True)
class Bad(Noise):
    """Gives what it was told to give."""

    scores: Any = None

    def play(self, generator: np.random.Generator, trials: int, with_record: bool) -> Any:
        if isinstance(self.scores, Exception):
            raise self.scores
        return self.scores


class Bar:
    """How many pieces were left to do."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0

    def start(self, total: int, label: str) -> None:
        self.total = total

    def advance(self) -> None:
        self.done += 1

    def finish(self) -> None:
        pass


# Limits and bounds.


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("level", [0.3, 0.01, 1e-9])
def test_upper_limits_are_exact(trials: int, level: float) -> None:
    counts = np.arange(trials + 1)
    limits = upper_limit(counts, trials, level)
    assert limits[-1] == 1
    assert np.all(np.diff(limits) >= 0)
    assert np.all(bdtr(counts[:-1], trials, limits[:-1]) <= level * (1 + 1e-9))
    assert np.all(bdtr(counts[:-1], trials, limits[:-1] * (1 - 3e-9)) >= level * (1 - 1e-9))
    for rate in np.linspace(0.001, 0.999, 97):  # coverage, over all counts: no simulation
        missed = binom.pmf(counts[limits < rate], trials, rate).sum()
        assert missed <= level


@given(fpr=st.floats(1e-6, 1), fnr=st.floats(1e-6, 1), delta=st.floats(1e-9, 0.5))
def test_epsilon_bound_is_where_the_definition_of_privacy_breaks(fpr: float, fnr: float, delta: float) -> None:
    bound = float(epsilon_bound(fpr, fnr, delta))

    def allowed(epsilon: float) -> bool:
        return 1 - fnr <= math.exp(epsilon) * fpr + delta and 1 - fpr <= math.exp(epsilon) * fnr + delta

    assert allowed(bound + 1e-9)
    assert bound == 0 or not allowed(bound - 1e-9)


@given(mu=st.floats(0.01, 4), threshold=st.floats(-3, 5))
def test_a_gaussian_reaches_its_own_mu_at_every_threshold_and_its_epsilon_at_the_best(mu: float, threshold: float) -> None:
    fpr, fnr = float(ndtr(-threshold)), float(ndtr(threshold - mu))
    assert float(mu_bound(fpr, fnr)) == pytest.approx(mu, rel=1e-6)
    delta = 1e-4
    assert float(epsilon_bound(fpr, fnr, delta)) <= gaussian_epsilon(mu, delta) + 1e-9
    best = gaussian_epsilon(mu, delta) / mu + mu / 2  # where the likelihood ratio is e^ε
    assert float(epsilon_bound(ndtr(-best), ndtr(best - mu), delta)) == pytest.approx(gaussian_epsilon(mu, delta), abs=1e-6)


def test_rates_without_information_and_impossible_ones_bound_nothing() -> None:
    assert epsilon_bound([1.0, 0.5, 1.0], [1.0, 0.5, 0.0], 0.01).tolist()[:2] == [0, 0]
    assert mu_bound(0.5, 0.5) == 0
    assert mu_bound(1.0, 1.0) == 0


def test_best_threshold_is_the_best_of_all_on_either_side() -> None:
    generator = np.random.default_rng(5)
    with_record, without = generator.normal(1, 1, 200), generator.normal(0, 1, 200)
    for sign in (1, -1):
        found = best_threshold(sign * with_record, sign * without, mu_bound, 0.01)
        attacks = [
            Attack.count("", Threshold(float(value), above), sign * with_record, sign * without, 0.01).mu
            for value in sign * np.concatenate([with_record, without])
            for above in (True, False)
        ]
        assert Attack.count("", found, sign * with_record, sign * without, 0.01).mu == max(attacks)
        assert found.above == (sign > 0)


def test_thinned_thresholds_lose_little() -> None:
    generator = np.random.default_rng(6)
    with_record, without = generator.normal(2, 1, 20_000), generator.normal(0, 1, 20_000)
    worth = partial(epsilon_bound, delta=1e-5)
    found = best_threshold(with_record, without, worth, 0.01)
    shown = Attack.count("", found, with_record, without, 0.01).epsilon(1e-5)
    others = [
        Attack.count("", Threshold(float(value), above), with_record, without, 0.01).epsilon(1e-5)
        for value in np.sort(np.concatenate([with_record, without]))[::7]
        for above in (True, False)
    ]
    assert shown > max(others) - 0.05


def test_ceiling_is_the_bound_of_a_perfect_attack() -> None:
    perfect = Attack.count("", Threshold(0.5, True), np.ones(500), np.zeros(500), 0.01)
    assert perfect.epsilon(1e-5) == ceiling(500, 0.01, 1e-5)
    assert ceiling(500, 0.01, 1e-5) == pytest.approx(math.log((1 - 2 * 1e-5) / (1 - 0.01 ** (1 / 500)) - 1), abs=0.02)
    with pytest.raises(ValueError, match="equally many trials"):
        Attack.count("", Threshold(0.5, True), np.ones(3), np.zeros(4), 0.01)


def test_round_down_of_next_to_nothing_is_nothing() -> None:
    assert [round_down(value) for value in (5e-324, 1e-320, 4e-13)] == [0.0, 0.0, 0.0]


@given(value=st.floats(1e-9, 1e6))
def test_round_down_never_goes_up(value: float) -> None:
    assert 0.998 * value <= round_down(value) <= value


# Audits of a known law.


def test_a_gaussian_is_approached_and_never_exceeded() -> None:
    for sigma in (0.5, 1.0, 4.0):
        found = audit(GaussianMean(sigma), trials=200_000, seed=3, jobs=1)
        [finding] = found.findings
        assert not finding.exceeded
        assert not found.alarm
        assert found.mu is not None
        assert found.mu > 0.85 / sigma
        assert finding.nearest.share > 0.75
        assert finding.verdict.startswith("holds: the attack comes to ")
        assert found.epsilon < found.ceiling
        assert found.epsilon_if_gaussian == gaussian_epsilon(found.mu, 1e-5)


def test_bounds_cover_at_the_stated_confidence() -> None:
    """Of ε at every δ and of μ together; a claim 10 % too small must be caught."""
    true = Claim("true", "proved", partial(gaussian_epsilon, 1.0), 1.0)
    small = Claim("too small", "proved", partial(gaussian_epsilon, 0.9), 0.9)
    alarms = [audit(Shifted(1.0, true), trials=400, confidence=0.8, seed=seed, jobs=1).alarm for seed in range(100)]
    assert sum(alarms) <= 0.2 * 100  # the mean is at most 20; splitting confidence evenly leaves it far below
    assert sum(alarms) >= 1  # not vacuous: at so little confidence it does happen
    assert audit(Shifted(1.0, small), trials=100_000, seed=1, jobs=1).alarm


def test_score_of_the_wrong_sign_is_used_all_the_same() -> None:
    claim = Claim("too small", "refuted", partial(gaussian_epsilon, 0.5), 0.5)
    up, down = (audit(Shifted(1.0, claim, sign), trials=20_000, seed=1, jobs=1) for sign in (1.0, -1.0))
    assert up.findings[0].exceeded
    assert down.findings[0].exceeded
    assert isinstance(down.evidence, tuple)
    assert not any(attack.event.above for attack in down.evidence)
    assert not up.alarm  # a refuted claim is no promise of ours


def test_no_leak_from_choosing_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With confidence of only 0.2 most audits of pure noise still show nothing; choosing on what is counted shows it false."""

    def rate() -> float:
        return sum(audit(Noise(), trials=200, confidence=0.2, seed=seed, jobs=1).alarm for seed in range(100)) / 100

    assert rate() < 0.4

    def leaking(*arguments: Any) -> playing_module.Plays:
        plays = play(*arguments)
        return replace(plays, choose_with=plays.count_with, choose_without=plays.count_without)

    play = playing_module.play
    monkeypatch.setattr("dpmerge.audit.run.play", leaking)
    assert rate() > 0.6


def test_confidence_is_divided_among_all_limits() -> None:
    found = audit(GaussianMean(), trials=2_000, confidence=0.94, seed=1, jobs=1)
    assert isinstance(found.evidence, tuple)
    assert 2 * sum(attack.level for attack in found.evidence) == pytest.approx(0.06)
    assert all(attack.counted == 1_000 for attack in found.evidence)


# Claims and verdicts.


def test_a_claim_that_is_a_curve_is_attacked_along_it() -> None:
    """True at δ = 1e-5, false at δ = 0.1."""

    def bent(delta: float) -> float:
        return 20.0 if delta < 0.01 else 0.1

    found = audit(Shifted(1.0, Claim("bent", "conditional", bent)), trials=20_000, seed=1, jobs=1)
    [finding] = found.findings
    assert finding.at.share < 1
    assert finding.exceeded
    assert finding.nearest.delta > 0.01
    assert "exceeded: ε ≥" in finding.verdict
    one_number = audit(Shifted(1.0, Claim("number", "conditional", 20.0)), trials=20_000, seed=1, jobs=1)
    assert not one_number.findings[0].exceeded
    assert len(one_number.findings[0].curve) == 1


def test_a_mu_is_refuted_where_no_single_epsilon_is() -> None:
    found = audit(Shifted(1.0, Claim("μ", "proved", 20.0, mu=0.8)), trials=50_000, seed=1, jobs=1)
    assert found.alarm
    assert found.findings[0].verdict.startswith("exceeded: not μ-GDP for any μ below 0.9")


def test_shares_of_claims_without_a_number() -> None:
    def finding(claimed: float, measured: float) -> Any:
        return Stated.of(Claim("c", "refuted", claimed), 1e-5, True).against(lambda delta: measured, None)

    assert finding(0.0, 0.1).exceeded
    assert not finding(0.0, 0.0).exceeded
    assert finding(math.inf, 5.0).at.share == 0
    assert finding(2.0, 1.999).verdict == "not exceeded: the attack comes to 99 % of ε"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Claim("c", "proved", -1.0), "claim 'c': epsilon is -1.0"),
        (lambda: Claim("c", "proved", 1.0, math.nan), "claim 'c': mu is nan"),
        (lambda: Claim("c", "certain", 1.0), "standing 'certain' must be proved"),  # type: ignore[arg-type]
        (lambda: check(Shifted(1.0, Claim("c", "proved", lambda delta: math.nan))), "claim 'c': ε is nan at δ = 1e-05"),
        (lambda: check(Shifted(1.0, Claim("c", "proved", lambda delta: 1 / 0))), "its claims cannot be computed: ZeroDivision"),
    ],
)
def test_claims_that_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DpmergeError, match=message):
        make()


# What is refused.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": math.nan}, "delta is nan"),
        ({"confidence": 1.0}, "the confidence is 1.0"),
        ({"confidence": 0.0}, "the confidence is 0.0"),
        ({"seed": -1}, "the seed is -1"),
        ({"trials": 0}, "0 trials of each world are too few.*give at least 20"),
        ({"trials": 18}, "18 trials of each world are too few"),
        ({"trials": -5}, "-5 trials of each world are too few"),
        ({"delta": 0.9999, "trials": 100}, "are too few.*a smaller δ"),
    ],
)
def test_questions_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        audit(GaussianMean(), jobs=1, **options)


def test_the_least_number_of_trials_is_enough() -> None:
    assert check(GaussianMean(), trials=20).ceiling > 0


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros(3), r"scores of shape \(3,\), but 50 trials"),
        (np.zeros((50, 1)), r"scores of shape \(50, 1\)"),
        (0.0, r"scores of shape \(\)"),
        (np.full(50, np.nan), "a score is nan"),
        (np.full(50, np.inf), "a score is inf"),
        (["a"] * 50, "not numbers"),
        (None, "a score is nan|no numbers|shape"),
        (RuntimeError("out of luck"), "a play failed: RuntimeError: out of luck"),
        (TargetError("said on purpose"), "^said on purpose$"),
    ],
)
def test_scores_that_are_refused(scores: Any, message: str) -> None:
    with pytest.raises(DpmergeError, match=message):
        audit(Bad(scores=scores), trials=100, jobs=1)


def test_real_training_takes_no_seed() -> None:
    with pytest.raises(TargetError, match="only a simulator takes a seed"):
        audit(three(), trials=100, seed=1, jobs=1)


def test_what_is_no_game_is_refused() -> None:
    with pytest.raises(EvaluationError, match="int is not a game"):
        audit(5)  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match="the chunk is 0 trials"):
        audit(Shifted(1.0, Claim("c", "proved", 1.0), chunk=0), jobs=1)


# The same again, and where it stopped.


def test_a_seed_repeats_an_audit_on_any_number_of_processes() -> None:
    game = Shifted(1.0, Claim("c", "conditional", 1.0), chunk=300)
    one, two, other = (audit(game, trials=1_500, seed=seed, jobs=jobs) for seed, jobs in ((7, 1), (7, 2), (8, 1)))
    assert one.evidence == two.evidence
    assert one.evidence != other.evidence
    fresh = [audit(game, trials=1_500, jobs=1).evidence for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_pieces_of_one_seed_share_no_randomness() -> None:
    plays = playing_module.play(Shifted(0.0, Claim("c", "proved", 0.0), chunk=10), 200, 1, playing_module.Where(jobs=1))
    scores = np.concatenate([plays.choose_with, plays.choose_without, plays.count_with, plays.count_without])
    assert scores.size == 400
    assert np.unique(scores).size == 400


def test_an_odd_number_of_trials_counts_the_larger_half() -> None:
    plays = playing_module.play(Noise(), 101, 1, playing_module.Where(jobs=1))
    assert (plays.choose_with.size, plays.count_with.size) == (50, 51)


def test_a_killed_audit_continues(tmp_path: Path) -> None:
    """Without a seed: what was played is kept, not played again, and the result is of the same plays."""
    game = Shifted(1.0, Claim("c", "conditional", 1.0), chunk=100)

    def run(trials: int = 1_000, game: Game = game) -> tuple[Any, Bar]:
        bar = Bar()
        with Finished(tmp_path / "plays.jsonl") as finished:
            return audit(game, trials=trials, jobs=1, finished=finished, progress=bar).evidence, bar

    whole, bar = run()
    assert (bar.total, bar.done) == (20, 20)
    again, bar = run()
    assert bar.total == 0
    assert again == whole
    lines = (tmp_path / "plays.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "plays.jsonl").write_bytes(b"".join(lines[:13]) + lines[13][:50])
    _, bar = run()
    assert bar.total == 7
    assert run(1_200)[1].total == 24  # trials added after a look are not those of a fresh audit
    assert run(game=replace(game, mu=2.0))[1].total == 20  # another game


def test_a_game_that_cannot_be_pickled_is_not_kept(tmp_path: Path) -> None:
    game = FromFunctions(lambda *_: 0.0, lambda models, _: models, lambda released: 0.0)
    with Finished(tmp_path / "plays.jsonl") as finished, pytest.raises(EvaluationError, match="cannot be stored or sent"):
        audit(game, trials=100, jobs=1, finished=finished)


# The user's own functions.


def train(with_record: bool, generator: np.random.Generator) -> list[float]:
    return [with_record + generator.standard_normal(), with_record + generator.standard_normal()]


def merge(models: list[float], generator: np.random.Generator) -> float:
    return sum(models) / 2


def score(released: float) -> float:
    return released


def three() -> FromFunctions:
    mu = math.sqrt(2)
    return FromFunctions(train, merge, score, claimed=(Claim("joint", "proved", partial(gaussian_epsilon, mu), mu),))


def test_train_merge_and_score_make_a_game() -> None:
    found = audit(three(), trials=16_000, jobs=1, confidence=1 - 1e-7)  # of real trainings, so without a seed
    assert not found.alarm
    assert found.mu is not None
    assert found.mu > 1.1
    assert found.seconds_per_trial > 0
    numbers = replace(three(), claimed=(Claim("a number", "proved", 3.0),))
    assert check(numbers).claims[0].numbers == ((1e-5, 3.0),)
    with pytest.raises(TargetError, match="'a number' is one number, for δ = 1e-05"):
        check(numbers, delta=1e-6)


MODULE = """
import numpy as np
def train(with_record, generator): return float(with_record)
def merge(models, generator): return models + 0.1 * generator.standard_normal()
def score(released): return released
def triple(): return train, merge, score
def fails(): raise RuntimeError("no luck")
def number(): return 5
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_audit_game.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_user_module_is_audited_from_the_command_line_by_several_processes(user_module: Path) -> None:
    result = invoke("own_audit_game:triple", "--trials", "100", "--jobs", "2", "--out", "out")
    assert result.exit_code == 0, result.output
    numbers = json.loads((user_module / "out" / "own_audit_game-triple.json").read_text())
    assert numbers["game"] == "own_audit_game:triple"
    assert numbers["claims"] == []
    assert 1.3 < numbers["epsilon_at_least"] < 1.992  # without a single error it is 1.991
    assert (user_module / "out" / "own_audit_game-triple.png").read_bytes().startswith(b"\x89PNG")
    before = numbers["evidence"]
    invoke("own_audit_game:triple", "--trials", "100", "--out", "out")
    assert json.loads((user_module / "out" / "own_audit_game-triple.json").read_text())["evidence"] == before


def test_games_that_cannot_be_found(user_module: Path) -> None:
    for name, message in [
        ("nothing", "no scenario is named 'nothing'; give module:function, or one of gaussian-mean"),
        ("own_audit_game:fails", "cannot be created: RuntimeError: no luck"),
        ("own_audit_game:number", "returned int; it must return a Game"),
        ("own_audit_game:absent", "the scenario 'own_audit_game:absent' cannot be loaded"),
        ("no_such_module:f", "cannot be loaded"),
        ("math:pi", "is not a function"),
    ]:
        with pytest.raises(EvaluationError, match=message):
            find_game(name)


def test_without_the_laboratory_a_game_of_ones_own_is_played(user_module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.user_code.entry_points", lambda group: ())
    result = CliRunner().invoke(app, ["audit", "own_audit_game:triple", "--trials", "400", "--jobs", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["epsilon_at_least"] > 1
    with pytest.raises(EvaluationError, match=r"no scenario is named 'gaussian-mean'; give module:function; .* installed from"):
        find_game("gaussian-mean")


# One run with many canaries.


def reference_chance(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """As the paper's appendix D computes it: one binomial at a time."""
    q = 1 / (1 + math.exp(-epsilon))
    total, alpha = 0.0, 0.0
    for i in range(1, v + 1):
        total += float(binom.pmf(v - i, r, q))
        alpha = max(alpha, total / i)
    return min(float(binom.sf(v - 1, r, q)) + 2 * m * delta * alpha, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_chance_is_that_of_the_paper(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 300))
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(0, r))
    epsilon, delta = data.draw(st.floats(0, 8)), data.draw(st.sampled_from([0.0, 1e-9, 1e-5, 1e-3]))
    assert chance(m, r, v, epsilon, delta) == pytest.approx(reference_chance(m, r, v, epsilon, delta), rel=1e-7, abs=1e-300)


def test_without_delta_it_is_a_binomial_with_randomised_responses_accuracy() -> None:
    bound = one_run_bound(500, 100, 90, 0.0, 0.05)
    assert binom.sf(89, 100, 1 / (1 + math.exp(-bound))) == pytest.approx(0.05, rel=1e-6)
    all_right = one_run_bound(64, 64, 64, 0.0, 0.01)
    assert 1 / (1 + math.exp(-all_right)) == pytest.approx(0.01 ** (1 / 64), rel=1e-8)
    assert one_run_bound(64, 64, 32, 0.0, 0.01) == 0


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 0.001, 0.01])
def test_chance_bounds_what_a_worst_mechanism_allows(epsilon: float, delta: float) -> None:
    """Each canary's coin is told with probability δ, else by ε-randomised response: exactly (ε, δ)-DP for each."""
    right = delta + (1 - delta) / (1 + math.exp(-epsilon))
    for m in (1, 2, 10, 40):
        if 2 * m * delta <= 1:
            for v in range(m + 1):
                assert binom.sf(v - 1, m, right) <= chance(m, m, v, epsilon, delta) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.data())
def test_every_smaller_epsilon_is_refuted_too(m: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(1, r))
    delta = data.draw(st.floats(0, 1 / (2 * m)))
    chances = [chance(m, r, v, epsilon, delta) for epsilon in np.linspace(0, 6, 40)]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(chances))
    bound = one_run_bound(m, r, v, delta, 0.05)
    assert bound == 0 or chance(m, r, v, bound, delta) <= 0.05
    assert chance(m, r, v, bound + 1e-6, delta) > 0.05


def test_digits_survive_far_tails() -> None:
    assert one_run_bound(10_000, 5_000, 5_000, 1e-13, 1e-6) == pytest.approx(math.log(5_000 / math.log(1e6)), abs=0.1)
    assert chance(1_000, 1_000, 1_000, 0.5, 0.0) == pytest.approx((1 + math.exp(-0.5)) ** -1_000, rel=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11, 5, 0.0, 0.05), "these counts are inconsistent"),
        ((10, 5, 6, 0.0, 0.05), "these counts are inconsistent"),
        ((10, 0, 0, 0.0, 0.05), "these counts are inconsistent"),
        ((10, 5, 5, 0.0, 1.0), "the level is 1.0"),
        ((1_000, 5, 5, 0.01, 0.05), "with 1000 canaries the theorem needs 0 ≤ δ ≤ 0.0005"),
        ((10, 5, 5, -0.1, 0.05), "the theorem needs"),
    ],
)
def test_counts_that_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        one_run_bound(*arguments)


def test_one_run_covers_and_comes_close() -> None:
    epsilon = 1.0

    @dataclass(frozen=True)
    class RandomisedResponse(CanaryGame):
        """Every coin told truthfully with probability e^ε/(1 + e^ε): the theorem's worst case."""

        name: str = "randomised response"
        about: str = "each coin"
        delta: float = 1e-9

        def claims(self, delta: float) -> list[Claim]:
            return [Claim("randomised response", "proved", epsilon)]

        def play_once(self, generator: np.random.Generator, canaries: int) -> tuple[Any, Floats]:
            coins = generator.random(canaries) < 0.5
            lies = generator.random(canaries) > 1 / (1 + math.exp(-epsilon))
            return coins, np.where(coins ^ lies, 1.0, 0.0) + 1e-3 * generator.random(canaries)

    found = [audit(RandomisedResponse(), trials=200, confidence=0.8, seed=seed, jobs=1) for seed in range(60)]
    assert sum(one.alarm for one in found) <= 20  # at most 12 on average; with 60 audits more than 20 has chance 0.4 %
    large = audit(RandomisedResponse(), trials=20_000, seed=1, jobs=1)
    assert 0.85 < large.epsilon <= 1.0
    assert isinstance(large.evidence, Guessing)
    assert large.evidence.canaries == 10_000
    assert large.mu is None
    assert large.epsilon_if_gaussian is None


def test_guesses_are_chosen_on_the_coins_that_are_revealed() -> None:
    """The hidden half's coins have no part in the numbers of guesses: turning them over changes only what is right."""
    generator = np.random.default_rng(4)
    included = generator.random(400) < 0.5
    scores = included + generator.standard_normal(400)
    turned = included.copy()
    turned[1::2] ^= True
    one, other = guess(included, scores, 1e-6, 0.05), guess(turned, scores, 1e-6, 0.05)
    assert (one.guessed_included, one.guessed_excluded) == (other.guessed_included, other.guessed_excluded)
    assert one.correct + other.correct == one.guesses
    assert one.canaries == 200
    order = np.argsort(scores[1::2])
    highest, lowest = order[200 - one.guessed_included :], order[: one.guessed_excluded]
    assert one.correct == included[1::2][highest].sum() + (~included[1::2][lowest]).sum()


def test_guesses_that_are_refused() -> None:
    coins, scores = np.ones(10, dtype=bool), np.zeros(10)
    with pytest.raises(EvaluationError, match="every canary needs one of each"):
        guess(coins, scores[:5], 1e-6, 0.05)
    with pytest.raises(TargetError, match=r"6 canaries are too few.*give at least 14"):
        audit(GaussianCanaries(), trials=6, jobs=1)
    with pytest.raises(TargetError, match="the theorem needs"):
        audit(GaussianCanaries(), trials=1_000, delta=0.01, jobs=1)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ((np.ones(100), np.zeros(100)), "the coins have type float64"),
        ((np.ones(50, dtype=bool), np.zeros(100)), r"scores of shape \(50,\), but 100"),
        ((np.ones(100, dtype=bool), np.full(100, np.nan)), "a score is nan"),
        (5, "the run failed: TypeError"),
    ],
)
def test_canaries_that_are_refused(outcome: Any, message: str) -> None:
    class Canaries(GaussianCanaries):
        def play_once(self, generator: np.random.Generator, canaries: int) -> Any:
            return outcome

    with pytest.raises(EvaluationError, match=message):
        audit(Canaries(), trials=100, jobs=1)


# Scores.


def test_dot_product_is_the_way_against_the_gradient() -> None:
    models = np.array([[1.0, 2.0], [0.0, 0.0]])
    assert dot_product(models, [3.0, 4.0]).tolist() == [-2.2, 0.0]
    assert dot_product(models, [3.0, 4.0], [1.0, 2.0]).tolist() == [0.0, 2.2]
    assert dot_product(models, [0.0, 0.0]).tolist() == [0.0, 0.0]


def test_likelihood_ratios_are_those_of_the_densities() -> None:
    x = np.linspace(-3, 4, 9)
    expected = norm.logpdf(x, 1, 0.7) - norm.logpdf(x, -0.5, 0.7)
    assert gaussian_log_ratio(x, 1.0, -0.5, 0.7) == pytest.approx(expected)
    vectors = np.random.default_rng(1).normal(size=(9, 3))
    ones, zeros = np.ones(3), np.zeros(3)
    expected = (norm.logpdf(vectors, 1, 2) - norm.logpdf(vectors, 0, 2)).sum(axis=1)
    assert gaussian_log_ratio(vectors, ones, zeros, 2.0) == pytest.approx(expected)
    upper, lower = ([0.3, 0.7], [1.0, 2.0], [0.5, 2.0]), ([0.3, 0.7, 0.0], [0.0, 0.0, 5.0], [0.5, 2.0, 1.0])

    def density(values: Floats, law: tuple[list[float], list[float], list[float]]) -> Floats:
        return np.asarray(sum(p * norm.pdf(values, m, s) for p, m, s in zip(*law, strict=True)))

    assert mixture_log_ratio(x, upper, lower) == pytest.approx(np.log(density(x, upper) / density(x, lower)))
    flat = mixture_log_ratio(x[:, None], (upper[0], [[1.0], [2.0]], upper[2]), (lower[0], [[0.0], [0.0], [5.0]], lower[2]))
    assert flat == pytest.approx(mixture_log_ratio(x, upper, lower))
    single = mixture_log_ratio(vectors, ([1.0], [ones], [2.0]), ([1.0], [zeros], [2.0]))
    assert single == pytest.approx(expected)


def test_the_likelihood_ratio_reaches_the_exact_divergence() -> None:
    """E[(1 − e^{ε−ratio})⁺] with the record is H_ε: the score is on the right scale."""
    ratios = GaussianMean(1.0).play(np.random.default_rng(2), 400_000, True)
    assert np.maximum(1 - np.exp(1.0 - ratios), 0).mean() == pytest.approx(float(gaussian_delta(1.0, 1.0)), rel=0.02)


# Reports and the command line.


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments])


def test_report_and_picture() -> None:
    claims = Claim("half", "refuted", partial(gaussian_epsilon, 0.5))
    found = audit(Shifted(1.0, claims), trials=10_000, seed=1, jobs=1)
    numbers = as_dict(found)
    assert json.loads(json.dumps(numbers)) == numbers
    assert numbers["epsilon_at_least"] == found.epsilon == max(one["epsilon_at_least"] for one in numbers["evidence"])
    assert numbers["claims"][0]["exceeded"]
    assert numbers["claims"][0]["share"] == found.epsilon / gaussian_epsilon(0.5, 1e-5)
    drawn = picture(found)
    claim, measured = drawn.panels[0].lines
    assert (claim.label, claim.standing, measured.standing) == ("half, refuted", "reference", "measured")
    shown = [y for y in measured.y if y is not None]
    assert all(y <= one.measured for y, one in zip(shown, found.findings[0].curve, strict=True))
    assert drawn.warning == "Exceeded: half."
    assert render(drawn, ".png").startswith(b"\x89PNG")
    one_run = audit(GaussianCanaries(), trials=200, seed=1, jobs=1)
    assert render(picture(one_run), ".png").startswith(b"\x89PNG")
    assert as_dict(one_run)["evidence"]["canaries"] == 100


@pytest.mark.parametrize("name", ["gaussian-one-run", "digits-canaries", "digits-softmax"])
def test_scenarios_can_be_audited_by_their_own_settings(name: str) -> None:
    """Those that tests/test_watchdog.py plays by other trials or another δ than their own; the others it plays by their own."""
    checked = check(find_game(name))
    assert checked.ceiling > 0
    assert checked.claims


def test_the_command_line_lists_and_audits(tmp_path: Path) -> None:
    listed = json.loads(invoke("--json").output)
    assert set(listed) == set(SCENARIOS)
    assert "gaussian-mean" in invoke().output
    result = invoke("gaussian-mean", "--trials", "5000", "--seed", "1", "--jobs", "1", "--json")
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert found["trials"] == 5000
    assert found["alarm"] is False
    assert found["files"] == []
    assert {"epsilon_at_least", "mu_at_least", "seconds_per_trial", "confidence", "claims"} <= set(found)
    told = invoke("gaussian-mean", "--trials", "5000", "--seed", "1", "--jobs", "1").output
    assert f"ε ≥ {round_down(found['epsilon_at_least'])} at δ = 1e-05" in told
    assert "holds: the attack comes to" in told
    canaries = invoke("gaussian-one-run", "--trials", "200", "--seed", "1", "--delta", "1e-6")
    assert "canaries of one run" in canaries.output


def test_an_exceeded_proved_claim_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Claim("too small", "proved", partial(gaussian_epsilon, 0.5), 0.5)
    monkeypatch.setattr(GaussianMean, "claims", lambda self, delta: [small])
    result = invoke("gaussian-mean", "--trials", "20000", "--seed", "1", "--jobs", "1")
    assert result.exit_code == 1
    assert "ALARM" in result.output
    assert json.loads(invoke("gaussian-mean", "--trials", "20000", "--seed", "1", "--jobs", "1", "--json").output)["alarm"]
    monkeypatch.setattr(GaussianMean, "claims", lambda self, delta: [replace(small, standing="conditional")])
    assert invoke("gaussian-mean", "--trials", "20000", "--seed", "1", "--jobs", "1").exit_code == 0


def test_a_refused_audit_leaves_nothing(tmp_path: Path) -> None:
    result = invoke("gaussian-mean", "--trials", "3", "--out", str(tmp_path / "out"))
    assert isinstance(result.exception, TargetError)
    assert not (tmp_path / "out").exists()
