"""Several releases of the same realised models: what has leaked, against enumeration, closed forms and joint release."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpmerge.errors import DependentRuns, PortfolioError
from dpmerge.profiles import Profile, ShuffleAsPoisson, run_profile
from dpmerge.profiles.mixture import mixture_renyi
from dpmerge.records import Portfolio, Weights
from dpmerge.rules import By, Exposure, Joint, Releases, Selection, coupled_outcomes, releases
from dpmerge.rules.releases import leaked
from tests import builders

EPSILONS = (0.0, 0.3, 1.0, 2.5)
NAMES = "abcd"
BOTH: tuple[By, By] = ("pld", "rdp")
Law = dict[frozenset[str], Fraction]


def gaussians(*stds: float) -> Portfolio:
    """Gaussian mechanisms a, b, …: every answer is in closed form."""
    return builders.portfolio(*(builders.gaussian(n, noise_std=s, run=n) for n, s in zip(NAMES, stds, strict=False)))


FOUR = gaussians(0.7, 1.0, 2.0, 5.0)


def weights(values: Sequence[float], portfolio: Portfolio = FOUR) -> Weights:
    """These odds over the portfolio's first models, divided by their sum."""
    return portfolio.weights({name: value / math.fsum(values) for name, value in zip(portfolio.names, values, strict=False)})


def spent(exposures: Sequence[Exposure], epsilon: float, portfolio: Portfolio = FOUR) -> float:
    """δ of all releases at ε."""
    return Releases(portfolio, exposures).guarantee(epsilon=epsilon).delta


def joint(models: Iterable[str], portfolio: Portfolio = FOUR) -> Joint:
    """Joint release of these models."""
    names = sorted(models)
    return Joint(portfolio.weights({name: 1 / len(names) for name in names}))


odds = st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda values: sum(values) > 0.01)
draws = odds.map(lambda values: Exposure.drawn(weights(values)))
together = st.tuples(odds, odds).map(lambda pair: Exposure.drawn(*map(weights, pair)))
certain = st.sets(st.sampled_from(NAMES), min_size=1).map(Exposure.whole)
exposures = st.lists(st.one_of(draws, together, certain), min_size=1, max_size=4)


# --- the set of models that have leaked -------------------------------------------------------------------------------


def enumerated(made: Sequence[Exposure]) -> Law:
    """Every sequence of outcomes, one by one."""
    law: Law = {}
    for sequence in product(*(release.outcomes for release in made)):
        models = frozenset[str]().union(*(drawn for _, drawn in sequence))
        law[models] = law.get(models, Fraction(0)) + math.prod((chance for chance, _ in sequence), start=Fraction(1))
    return law


@settings(max_examples=60, deadline=None)
@given(made=exposures)
def test_the_law_of_what_leaked_is_that_of_all_sequences_rounded_up(made: list[Exposure]) -> None:
    exact = enumerated(made)
    found = leaked(made)
    assert sum(exact.values()) == 1
    assert {models for models, chance in exact.items() if chance > 0} == set(found)
    for models, chance in found.items():
        assert exact[models] <= Fraction(chance) <= exact[models] * (1 + Fraction(1, 10**12)) + Fraction(1, 10**300)


def test_rounding_never_loses_probability_in_a_long_ledger() -> None:
    made = [Exposure.drawn(weights([0.1, 0.2, 0.3, 0.4]))] * 300
    seldom = Fraction(*(0.1 / math.fsum([0.1, 0.2, 0.3, 0.4])).as_integer_ratio())
    never_a = math.prod([1 - seldom] * 300, start=Fraction(1))  # up to the rounding of the weights' sum
    found = sum(Fraction(chance) for models, chance in leaked(made).items() if "a" not in models)
    assert never_a * (1 - Fraction(1, 10**12)) <= found <= never_a * (1 + Fraction(1, 10**10))
    assert sum(map(Fraction, leaked(made).values())) >= 1


def test_nothing_released_is_nothing_to_account_for() -> None:
    with pytest.raises(PortfolioError, match="nothing was released"):
        Releases(FOUR, [])
    with pytest.raises(PortfolioError, match="no model named 'z'"):
        Releases(FOUR, [Exposure.whole({"z"})])


def test_sets_are_named_alike_in_every_process() -> None:
    """Answers are cached under what an exposure prints."""
    code = "from dpmerge.rules.releases import Exposure; print(Exposure.whole({'a', 'b', 'c', 'd', 'e', 'f'}))"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(shown) == 1
    assert repr(Exposure.whole("ab")) != repr(Exposure.whole("ac"))


# --- coupled draws ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(several=st.lists(odds, min_size=1, max_size=4))
def test_coupled_draws_have_exactly_the_stated_odds(several: list[list[float]]) -> None:
    drawn = [weights(values) for values in several]
    outcomes = coupled_outcomes(drawn)
    assert sum(chance for chance, _ in outcomes) == 1
    assert all(chance > 0 for chance, _ in outcomes)
    for which, one in enumerate(drawn):
        total = sum(map(Fraction, one.values))
        for name, value in one.as_dict().items():
            assert sum((chance for chance, names in outcomes if names[which] == name), Fraction(0)) == Fraction(value) / total


def test_coupled_draws_follow_one_uniform_number() -> None:
    outcomes = coupled_outcomes([weights([1, 1, 0, 0]), weights([1, 3, 0, 0])])
    assert outcomes == [(Fraction(1, 4), ("a", "a")), (Fraction(1, 4), ("a", "b")), (Fraction(1, 2), ("b", "b"))]


def test_equal_targets_coupled_are_one_draw() -> None:
    one = weights([0.1, 0.2, 0.3, 0.4])
    assert sorted(Exposure.drawn(one, one, one).outcomes, key=str) == sorted(Exposure.drawn(one).outcomes, key=str)


@settings(max_examples=40, deadline=None)
@given(first=st.floats(0, 1), second=st.floats(0, 1), epsilon=st.sampled_from(EPSILONS))
def test_of_two_models_coupling_never_leaks_more_than_drawing_twice(first: float, second: float, epsilon: float) -> None:
    one, other = (FOUR.weights({"a": share, "c": 1 - share}) for share in (first, second))
    coupled = spent([Exposure.drawn(one, other)], epsilon)
    assert coupled <= spent([Exposure.drawn(one), Exposure.drawn(other)], epsilon) * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_neighbouring_targets_coupled_leak_less_than_drawn_apart(epsilon: float) -> None:
    targets = [weights([0.1 + step, 0.2, 0.3, 0.4 - step]) for step in (0, 0.01, 0.02, 0.03)]
    coupled = spent([Exposure.drawn(*targets)], epsilon)
    apart = spent([Exposure.drawn(one) for one in targets], epsilon)
    assert spent([Exposure.drawn(targets[-1])], epsilon) < coupled < 0.95 * apart


def test_coupling_is_counted_as_it_is_even_where_it_leaks_more() -> None:
    """Targets that are far apart: one uniform number always draws two models, two numbers sometimes the same one twice."""
    one, other = weights([1, 1, 0, 0]), weights([0, 1, 1, 0])
    coupled = Exposure.drawn(one, other)
    assert {models: chance for chance, models in coupled.outcomes} == {
        frozenset("ab"): Fraction(1, 2),
        frozenset("bc"): Fraction(1, 2),
    }
    equal = gaussians(1.0, 1.0, 1.0)
    assert spent([coupled], 1.0, equal) == pytest.approx(joint("ab", equal).guarantee(epsilon=1.0).delta, rel=1e-9)
    assert spent([coupled], 1.0, equal) > spent([Exposure.drawn(one), Exposure.drawn(other)], 1.0, equal)


# --- what several releases cost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_draw_is_random_selection_with_its_index_published(epsilon: float) -> None:
    drawn = weights([0.05, 0.15, 0.3, 0.5])
    selection = Selection(drawn)
    assert spent([Exposure.drawn(drawn)], epsilon) == pytest.approx(selection.guarantee(epsilon=epsilon).delta, rel=1e-9)
    several = Releases(FOUR, [Exposure.drawn(drawn)]).guarantee(delta=1e-5)
    assert several.epsilon == pytest.approx(selection.guarantee(delta=1e-5).epsilon, rel=1e-9)
    assert several.theorem == "several-releases"


@settings(max_examples=40, deadline=None)
@given(made=exposures, more=st.one_of(draws, together, certain), epsilon=st.sampled_from(EPSILONS))
def test_another_release_never_costs_less_and_all_never_more_than_joint_release(
    made: list[Exposure], more: Exposure, epsilon: float
) -> None:
    before, after = spent(made, epsilon), spent([*made, more], epsilon)
    assert before <= after * (1 + 1e-9)
    everything = frozenset[str]().union(*(one.models for one in (*made, more)))
    whole = joint(everything).guarantee(epsilon=epsilon).delta
    assert after <= whole * (1 + 1e-9)
    assert spent([*made, more, Exposure.whole(everything)], epsilon) == pytest.approx(whole, rel=1e-9)


def test_drawing_the_same_model_again_costs_nothing_more() -> None:
    only_a, mixed = Exposure.whole("a"), Exposure.drawn(weights([1, 1, 0, 0]))
    assert spent([only_a] * 5, 1.0) == pytest.approx(spent([only_a], 1.0), rel=1e-9)
    assert spent([only_a], 1.0) < spent([only_a, mixed], 1.0) < spent([only_a, mixed, mixed], 1.0)


def test_beyond_so_many_sets_the_improbable_count_as_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Exposure.drawn(weights([0.4, 0.3, 0.2, 0.1])), Exposure.drawn(weights([0.1, 0.2, 0.3, 0.4]))] * 2
    exact = leaked(made)
    assert len(exact) == 15
    deltas = {epsilon: spent(made, epsilon) for epsilon in EPSILONS}
    for limit in (1, 3, 6, 14):
        monkeypatch.setattr(releases, "_SUBSETS", limit)
        cut = leaked(made)
        assert len(cut) <= limit + 1
        assert sum(cut.values()) == pytest.approx(1, rel=1e-12)
        everything = frozenset(NAMES)
        assert all(chance <= exact[models] * (1 + 1e-12) for models, chance in cut.items() if models != everything)
        assert cut[everything] > exact[everything]
        for epsilon, delta in deltas.items():
            assert delta <= spent(made, epsilon) <= joint(NAMES).guarantee(epsilon=epsilon).delta * (1 + 1e-9)
    monkeypatch.setattr(releases, "_SUBSETS", 15)
    assert leaked(made) == exact


def test_checkpoints_of_one_run_count_once_at_the_latest() -> None:
    early = builders.dp_sgd("early", sigma=4.0, steps=10, run="r", noise_fingerprint="n", sampler_fingerprint="s")
    late = builders.dp_sgd("late", sigma=4.0, steps=30, run="r", noise_fingerprint="n", sampler_fingerprint="s")
    other = builders.dp_sgd("other", sigma=4.0, steps=30)
    portfolio = builders.portfolio(early, late, other)

    def delta(*made: Exposure) -> float:
        return spent(made, 1.0, portfolio)

    def alone(model: str) -> float:
        return joint([model], portfolio).guarantee(epsilon=1.0).delta

    assert delta(Exposure.whole({"early"}), Exposure.whole({"late"})) == pytest.approx(alone("late"), rel=1e-9)
    assert delta(Exposure.whole({"early", "late"})) == pytest.approx(alone("late"), rel=1e-9)
    both = Exposure.drawn(portfolio.weights({"early": 0.5, "late": 0.5}))
    assert delta(both) == pytest.approx((alone("early") + alone("late")) / 2, rel=1e-9)
    assert delta(both, both) == pytest.approx(alone("early") / 4 + 3 * alone("late") / 4, rel=1e-9)
    two_runs = joint(["late", "other"], portfolio).guarantee(epsilon=1.0).delta
    assert delta(Exposure.whole({"early", "other"}), Exposure.whole({"late"})) == pytest.approx(two_runs, rel=1e-9)


def test_dependent_runs_may_be_drawn_from_but_not_both_leak() -> None:
    twins = [builders.gaussian(name, noise_std=1.0, run=name, noise_fingerprint="the same") for name in "ab"]
    portfolio = builders.portfolio(*twins, builders.gaussian("c", noise_std=1.0, run="c"))
    either = Exposure.drawn(portfolio.weights({"a": 0.5, "b": 0.5}))
    assert spent([either], 1.0, portfolio) == pytest.approx(joint("a", portfolio).guarantee(epsilon=1.0).delta, rel=1e-9)
    assert spent([either, Exposure.whole("c")], 1.0, portfolio) < 1
    with pytest.raises(DependentRuns, match="the same noise_fingerprint"):
        Releases(portfolio, [either, either])
    with pytest.raises(DependentRuns):
        Releases(portfolio, [either, Exposure.whole("b")])
    same = portfolio.weights({"a": 0.5, "b": 0.5})
    Releases(portfolio, [Exposure.drawn(same, same)])  # one uniform number: never both


def test_what_is_taken_on_the_users_word_is_said() -> None:
    unstated = [builders.gaussian(name, noise_std=1.0, run=name, noise_fingerprint=None) for name in "ab"]
    portfolio = builders.portfolio(*unstated)
    found = Releases(portfolio, [Exposure.whole("ab")]).guarantee(delta=1e-5)
    assert any("on the user's word" in text for text in found.assumptions)
    assert found.standing == "proved"
    assert found.details["exposed"] == [{"models": ["a", "b"], "probability": pytest.approx(1)}]
    shuffled = builders.dp_sgd("s", sigma=2.0, sampling=None)
    mechanism = {**shuffled.mechanism.model_dump(), "sampling": {"scheme": "shuffle"}}
    portfolio = builders.portfolio(builders.model("s", mechanism))
    assert Releases(portfolio, [Exposure.whole("s")], ShuffleAsPoisson(0.1)).guarantee(delta=1e-5).standing == "conditional"


# --- both directions --------------------------------------------------------------------------------------------------


def test_sums_are_per_direction_and_then_the_larger() -> None:
    models = [builders.dp_sgd("a", sigma=0.8, sampling=0.3), builders.dp_sgd("b", sigma=1.5, sampling=0.1, steps=4)]
    portfolio = builders.portfolio(*models)
    drawn = Exposure.drawn(portfolio.weights({"a": 0.25, "b": 0.75}))
    profiles = {name: run_profile(model).profile for name, model in zip("ab", models, strict=True)}
    sets = {"a": 1 / 16, "b": 9 / 16, "ab": 6 / 16}
    for epsilon in (0.05, 0.2, 0.8):
        pairs = {
            key: Profile.of([factor for name in key for factor in profiles[name].factors]).delta(epsilon, interval=1e-4)
            for key in sets
        }
        directions = [sum(chance * pairs[key][which] for key, chance in sets.items()) for which in (0, 1)]
        assert directions[0] > 1.02 * directions[1]  # else this would say nothing about directions
        assert spent([drawn, drawn], epsilon, portfolio) == pytest.approx(max(directions), rel=1e-3)


class _OneSided(Profile):
    """A profile that answers as it is told, in both directions."""

    answers: tuple[float, float]

    def delta(self, epsilon: float, interval: float | None = None) -> tuple[float, float]:
        return self.answers


def test_no_direction_borrows_from_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One model leaks when a record is removed, the other when it is added: their average leaks less than either."""

    def one_sided(profiles: Iterable[Profile]) -> Profile:
        first = next(iter(profiles))
        made = _OneSided(first.factors)
        object.__setattr__(made, "answers", (0.4, 0.0) if first.mu == 1 else (0.0, 0.3))
        return made

    monkeypatch.setattr(Profile, "composed", one_sided)
    portfolio = gaussians(1.0, 2.0)
    drawn = Releases(portfolio, [Exposure.drawn(portfolio.weights({"a": 0.5, "b": 0.5}))])
    assert drawn.guarantee(epsilon=1.0, by="pld").delta == pytest.approx(0.2)


# --- an exact discrete example ----------------------------------------------------------------------------------------


def randomised(*levels: float) -> Portfolio:
    """Models that are one bit each, by randomised response: of such a record, the canonical pair is the mechanism itself."""
    records = [{"kind": "approx-dp", "epsilon": level, "delta": 0.0, "run": n} for n, level in zip(NAMES, levels, strict=False)]
    return builders.portfolio(*(builders.model(str(record["run"]), record) for record in records))


def two_draws(
    levels: Sequence[float], first: Sequence[float], second: Sequence[float], fresh: bool
) -> list[tuple[float, float]]:
    """P and Q of every (indices, outputs): the same realised models are released again, or `fresh` ones."""
    law: dict[tuple[int, ...], tuple[float, float]] = {}
    likely = [1 / (1 + math.exp(-level)) for level in levels]

    def chance(bits: Sequence[int]) -> tuple[float, float]:
        p = math.prod(keep if bit else 1 - keep for keep, bit in zip(likely * 2, bits, strict=False))
        q = math.prod(1 - keep if bit else keep for keep, bit in zip(likely * 2, bits, strict=False))
        return p, q

    count = len(levels)
    for i, j in product(range(count), repeat=2):
        for bits in product((0, 1), repeat=2 * count if fresh else count):
            seen = (i, j, bits[i], bits[count + j] if fresh else bits[j])
            p, q = chance(bits)
            weight = first[i] * second[j]
            held = law.get(seen, (0.0, 0.0))
            law[seen] = (held[0] + weight * p, held[1] + weight * q)
    return list(law.values())


LEVELS, FIRST, SECOND = (1.0, 0.3), (0.2, 0.8), (0.6, 0.4)


def two_released() -> Releases:
    portfolio = randomised(*LEVELS)
    drawn = [Exposure.drawn(portfolio.weights(dict(zip("ab", odd, strict=True)))) for odd in (FIRST, SECOND)]
    return Releases(portfolio, drawn)


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.5, 0.9, 1.15])
def test_two_draws_against_every_outcome_of_indices_and_outputs(epsilon: float) -> None:
    exact, again = (
        sum(max(0.0, p - math.exp(epsilon) * q) for p, q in two_draws(LEVELS, FIRST, SECOND, fresh)) for fresh in (False, True)
    )
    found = two_released().guarantee(epsilon=epsilon).delta
    assert exact * (1 - 1e-12) <= found <= exact * 1.002
    if epsilon > 0:  # fresh mechanisms would cost more: these are the same models
        assert again > 1.05 * exact


def test_two_draws_by_renyi_divergences_against_every_outcome() -> None:
    outcomes = np.array(two_draws(LEVELS, FIRST, SECOND, fresh=False))
    orders = np.array([1.5, 2.0, 4.0, 16.0, 64.0])
    exact = [math.log(np.sum(outcomes[:, 0] ** order * outcomes[:, 1] ** (1 - order))) / (order - 1) for order in orders]
    assert mixture_renyi(two_released().draw(), orders) == pytest.approx(exact, rel=1e-9)
    by_rdp = two_released().guarantee(delta=1e-5, by="rdp")
    assert by_rdp.by == "rdp"
    assert by_rdp.epsilon >= two_released().guarantee(delta=1e-5, by="pld").epsilon


def test_renyi_never_beats_the_loss_distribution_over_several_releases() -> None:
    made = [Exposure.drawn(weights([1, 2, 3, 4]))] * 3
    for delta in (1e-8, 1e-5, 1e-2):
        by = {name: Releases(FOUR, made).guarantee(delta=delta, by=name).epsilon for name in BOTH}
        assert by["pld"] <= by["rdp"] <= 1.5 * by["pld"] + 0.5


def test_portfolios_with_the_same_names_are_not_mistaken_for_each_other() -> None:
    """Answers are cached under all that a rule was made of: the records among it."""
    made = []
    for sigma in (2.0, 4.0, 4.0):
        portfolio = builders.portfolio(builders.dp_sgd("a", sigma=sigma), builders.dp_sgd("b", sigma=sigma))
        made.append(Releases(portfolio, [Exposure.whole(["a", "b"])])._content())
    assert made[0] != made[1] == made[2]
