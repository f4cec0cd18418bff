"""How rules behave: directions, accountants, grouping of checkpoints, refusals, fallbacks, standing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpmerge.errors import DependentRuns, RecordError, TargetError, UnsupportedMechanism
from dpmerge.profiles import ShuffleAsPoisson, gaussian_delta, gaussian_epsilon, run_profile
from dpmerge.records import Adjacency, Model
from dpmerge.rules import (
    THEOREMS,
    Combination,
    Guarantee,
    Joint,
    PairComposition,
    Selection,
    compare,
    no_free_lunch_threshold,
    round_up,
    significant,
)
from dpmerge.rules.compare import papers_no_free_lunch_threshold
from dpmerge.rules.joint import advanced_composition
from tests import builders
from tests.effort import EFFORT

FULL = [builders.dp_sgd("a", sigma=60.0, steps=100), builders.dp_sgd("b", sigma=15.0, steps=100)]
POISSON = [
    builders.dp_sgd("a", sigma=0.7, steps=200, sampling=0.01, batch=100),
    builders.dp_sgd("b", sigma=2.0, steps=300, sampling=0.01, batch=100),
]


def half(*models: Model) -> dict[str, float]:
    return {model.name: 1 / len(models) for model in models}


# --- random selection ---------------------------------------------------------------------------------------------------


def test_selection_of_gaussians_is_the_mixture_of_closed_forms() -> None:
    rule = Selection(builders.portfolio(*FULL).weights({"a": 0.9, "b": 0.1}))
    for epsilon in (0.1, 0.5, 2.0):
        exact = 0.9 * float(gaussian_delta(10 / 60, epsilon)) + 0.1 * float(gaussian_delta(10 / 15, epsilon))
        assert rule.guarantee(epsilon=epsilon).delta == pytest.approx(exact, rel=1e-9)
    found = rule.guarantee(delta=1e-6)
    assert found.by == "gdp"
    assert found.epsilon == pytest.approx(rule.guarantee(delta=1e-6, by="pld").epsilon)
    assert (
        found.epsilon
        < rule.guarantee(delta=1e-6, by="rdp").epsilon
        < rule.guarantee(delta=1e-6, by="rdp", conversion="paper").epsilon
    )


def test_selection_lies_between_its_models_and_grows_with_the_riskier_one() -> None:
    portfolio = builders.portfolio(*POISSON)
    values = [Selection(portfolio.weights({"a": p, "b": 1 - p})).guarantee(delta=1e-5).epsilon for p in (0.0, 0.01, 0.3, 1.0)]
    assert values == sorted(values)


def test_selection_covers_dependent_runs_and_checkpoints() -> None:
    same_noise = [builders.dp_sgd(n, sigma=1.0, steps=s, noise_fingerprint="n") for n, s in (("a", 10), ("b", 20))]
    assert Selection(builders.portfolio(*same_noise).weights(half(*same_noise))).guarantee(delta=1e-5).epsilon < math.inf


def test_non_private_members_cost_their_probability() -> None:
    models = [FULL[0], builders.model("open", {"kind": "non-private"})]
    rule = Selection(builders.portfolio(*models).weights({"a": 1 - 1e-6, "open": 1e-6}))
    alone = gaussian_epsilon(10 / 60, 9e-6)
    assert rule.guarantee(delta=1e-5).epsilon == pytest.approx(alone, rel=1e-3)
    assert rule.guarantee(delta=1e-7).epsilon == math.inf
    assert rule.guarantee(delta=1e-5, by="rdp").epsilon == math.inf


def test_selection_of_what_is_only_known_as_pairs_or_curves() -> None:
    models = [
        builders.model("pair", {"kind": "approx-dp", "epsilon": 1.0, "delta": 1e-6}),
        builders.model("curve", {"kind": "rdp", "orders": [2.0, 8.0, 32.0], "values": [0.02, 0.08, 0.32]}),
    ]
    rule = Selection(builders.portfolio(*models).weights({"pair": 0.3, "curve": 0.7}))
    found = rule.guarantee(delta=1e-5)
    assert 0.3 < found.epsilon <= 1.0 + 1e-3
    assert rule.guarantee(epsilon=1.0).delta <= 0.3e-6 * 1.01 + 0.7 * run_profile(models[1]).profile.delta_by_renyi(1.0) * 1.01


@settings(max_examples=25, deadline=None)
@given(
    mus=st.lists(st.floats(0.05, 3), min_size=2, max_size=4),
    raw=st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    epsilon=st.floats(0, 4),
)
def test_selection_never_below_the_exact_mixture(mus: list[float], raw: list[float], epsilon: float) -> None:
    models = [builders.gaussian(f"m{i}", noise_std=1 / mu) for i, mu in enumerate(mus)]
    total = math.fsum(raw[: len(mus)])
    pi = [value / total for value in raw[: len(mus)]]
    rule = Selection(builders.portfolio(*models).weights(dict(zip((m.name for m in models), pi, strict=True))))
    exact = sum(p * float(gaussian_delta(mu, epsilon)) for p, mu in zip(pi, mus, strict=True))
    assert rule.guarantee(epsilon=epsilon, by="pld").delta >= exact * (1 - 1e-12)
    assert rule.guarantee(epsilon=epsilon, by="rdp").delta >= exact * (1 - 1e-9)


# --- joint release ------------------------------------------------------------------------------------------------------


def test_joint_release_of_gaussians_adds_squares() -> None:
    rule = Joint(builders.portfolio(*FULL).weights(half(*FULL)))
    mu = math.hypot(10 / 60, 10 / 15)
    assert rule.guarantee(delta=1e-6).epsilon == pytest.approx(gaussian_epsilon(mu, 1e-6))
    orders = np.array([2.0, 5.0])
    assert rule.profile().renyi(orders) == pytest.approx(orders * mu**2 / 2)


def test_checkpoints_of_one_run_count_once_at_the_latest() -> None:
    kwargs: dict[str, Any] = {"run": "r", "noise_fingerprint": "n", "sampler_fingerprint": "s"}
    early, late = (builders.dp_sgd(n, sigma=5.0, steps=s, **kwargs) for n, s in (("early", 10), ("late", 40)))
    other = builders.dp_sgd("other", sigma=5.0, steps=9)
    portfolio = builders.portfolio(early, late, other)
    expected = gaussian_epsilon(math.sqrt(49) / 5, 1e-5)
    for rule in (Joint(portfolio.weights(half(*portfolio.models))), Combination(portfolio.weights(half(*portfolio.models)))):
        found = rule.guarantee(delta=1e-5)
        assert found.epsilon == pytest.approx(expected)
        assert found.theorem == "joint-release"
    lc = Combination(portfolio.weights(half(*portfolio.models))).guarantee(delta=1e-5)
    assert "several checkpoints of one run" in lc.details["revealed"]["late"]
    alone = Combination(portfolio.weights({"early": 0.5, "late": 0.5})).guarantee(delta=1e-5)
    assert alone.theorem == "single-run"
    assert alone.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(40) / 5, 1e-5))


def _field(name: str) -> dict[str, Any]:
    return {name: "same"}


@pytest.mark.parametrize("field", ["noise_fingerprint", "sampler_fingerprint"])
@pytest.mark.parametrize("rule", [Joint, Combination])
def test_shared_randomness_is_refused_with_a_way_out(field: str, rule: type[Joint] | type[Combination]) -> None:
    models = [builders.dp_sgd(n, sigma=1.0, sampling=0.1, **_field(field)) for n in "ab"]
    with pytest.raises(DependentRuns, match=f"same {field}.*random selection"):
        rule(builders.portfolio(*models).weights(half(*models)))
    # A model without weight does not take part.
    rule(builders.portfolio(*models).weights({"a": 1.0}))


def test_missing_fingerprints_are_printed_as_an_assumption() -> None:
    models = [builders.dp_sgd(n, sigma=1.0, noise_fingerprint=None) for n in "ab"]
    for rule in (Joint, Combination):
        found = rule(builders.portfolio(*models).weights(half(*models))).guarantee(delta=1e-5)
        assert any("on the user's word" in text for text in found.assumptions)
    stated = [builders.dp_sgd(n, sigma=1.0) for n in "ab"]
    quiet = Joint(builders.portfolio(*stated).weights(half(*stated))).guarantee(delta=1e-5)
    assert not any("user's word" in text for text in quiet.assumptions)


def test_pairs_and_curves_do_not_compose() -> None:
    models = [
        builders.model("pair", {"kind": "approx-dp", "epsilon": 1.0, "delta": 1e-6}),
        builders.model("curve", {"kind": "rdp", "orders": [2.0, 8.0], "values": [0.02, 0.08]}),
    ]
    with pytest.raises(UnsupportedMechanism, match="restate the latter as an approx-dp record"):
        Joint(builders.portfolio(*models).weights(half(*models))).guarantee(delta=1e-5)
    with pytest.raises(UnsupportedMechanism, match="no finite Rényi divergence"):
        Joint(builders.portfolio(models[0]).weights({"pair": 1.0})).guarantee(delta=1e-5, by="rdp")


# --- linear combination ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override,why",
    [
        ({"optimizer": "adam"}, "plain SGD"),
        ({"optimizer": "sgd-momentum"}, "plain SGD"),
        ({"clipping": "per-layer"}, "one clip over all parameters"),
        ({"clipping": "adaptive"}, "one clip over all parameters"),
    ],
)
def test_uncovered_runs_fall_back_to_joint_release_and_say_why(override: dict[str, Any], why: str) -> None:
    models = [FULL[0], builders.dp_sgd("b", sigma=15.0, steps=100, **override)]
    weights = builders.portfolio(*models).weights(half(*models))
    found = Combination(weights).guarantee(delta=1e-5)
    assert found.epsilon == pytest.approx(Joint(weights).guarantee(delta=1e-5).epsilon)
    assert why in found.details["revealed"]["b"]
    assert found.theorem == "joint-release"


def test_an_uncovered_run_is_revealed_and_the_rest_transported() -> None:
    covered = [builders.dp_sgd(n, sigma=s, steps=100, smoothness=0.2, convex="glm") for n, s in (("a", 60.0), ("b", 15.0))]
    odd = builders.dp_sgd("odd", sigma=40.0, steps=10, optimizer="adam")
    weights = builders.portfolio(*covered, odd).weights({"a": 0.72, "b": 0.18, "odd": 0.1})
    found = Combination(weights).guarantee(delta=1e-5)
    mu = math.hypot(0.26903, math.sqrt(10) / 40)  # λ enters the theorem only through its proportions
    assert found.epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)
    assert found.theorem == "transport"


def test_fixed_size_batches() -> None:
    """dp-accounting has an amplification bound for replaced records (with its factor 2 put right); Rényi only."""
    fixed = builders.dp_sgd("a", sigma=4.0, steps=50, adjacency="replace-one", sampling=0.1)
    mechanism = fixed.mechanism.model_dump()
    mechanism["sampling"] = {"scheme": "fixed-size", "rate": 0.1}
    sized = builders.model("a", mechanism, "replace-one")
    rule = Joint(builders.portfolio(sized).weights({"a": 1.0}))
    found = rule.guarantee(delta=1e-5)
    assert found.by == "rdp"
    whole = gaussian_epsilon(2 * math.sqrt(50) / 4, 1e-5)
    assert 0 < found.epsilon < whole
    with pytest.raises(UnsupportedMechanism, match="pld does not apply"):
        rule.guarantee(delta=1e-5, by="pld")
    poisson = Joint(builders.portfolio(fixed).weights({"a": 1.0})).guarantee(delta=1e-5, by="rdp")
    assert found.epsilon > poisson.epsilon
    with pytest.raises(UnsupportedMechanism, match="replace-one or zero-out"):
        Joint(builders.portfolio(builders.model("a", mechanism, "add-remove")).weights({"a": 1.0}))


def test_shuffled_batches_are_refused_or_conditional() -> None:
    mechanism = {**POISSON[0].mechanism.model_dump(), "sampling": {"scheme": "shuffle"}}
    shuffled = builders.model("a", mechanism)
    weights = builders.portfolio(shuffled, POISSON[1]).weights({"a": 0.5, "b": 0.5})
    for rule in (Selection, Joint, Combination):
        with pytest.raises(UnsupportedMechanism, match="ShuffleAsPoisson"):
            rule(weights).guarantee(delta=1e-5)
        found = rule(weights, shuffle=ShuffleAsPoisson(0.01)).guarantee(delta=1e-5)
        assert found.standing == "conditional"
        assert any("not proved" in text for text in found.assumptions)
    # Without a rate no amplification is claimed: every step may hold the record.
    plain = Joint(builders.portfolio(shuffled).weights({"a": 1.0}), ShuffleAsPoisson()).guarantee(delta=1e-5)
    assert plain.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(200) / 0.7, 1e-5))
    assert plain.standing == "conditional"


def test_unknown_smoothness_still_beats_joint_release_by_the_last_step() -> None:
    weights = builders.portfolio(*POISSON).weights({"a": 0.1, "b": 0.9})
    found = Combination(weights).guarantee(delta=1e-5)
    assert found.standing == "proved"
    assert found.details == {"window": 1, "coupled": []}
    assert found.epsilon < Joint(weights).guarantee(delta=1e-5).epsilon


@pytest.mark.parametrize(
    "known,theorem", [({"sigma": 40.0}, "transport"), ({"sigma": 2.0, "sampling": 0.01, "batch": 100.0}, "coupled-coins")]
)
def test_a_member_with_hardly_any_noise_becomes_affordable_through_coupling(known: dict[str, Any], theorem: str) -> None:
    """Without any noise no stored number could hide it: joint release, and it says why (docs/theory.md §3.6)."""
    common: dict[str, Any] = {**known, "steps": 20, "smoothness": 0.1, "convex": "glm"}

    def guarantee(sigma: float) -> Guarantee:
        runs = [builders.dp_sgd("private", **common), builders.dp_sgd("open", **{**common, "sigma": sigma})]
        return Combination(builders.portfolio(*runs).weights({"private": 0.99, "open": 0.01})).guarantee(delta=1e-5)

    found = guarantee(1e-9)
    assert found.epsilon < 2
    assert found.theorem == theorem
    assert found.details["coupled"] == ["open"]
    bare = guarantee(0.0)
    assert bare.epsilon == math.inf
    assert bare.theorem == "joint-release"
    assert "the last update of 'open' has no noise" in bare.details["joint_because"]


def test_runs_of_different_lengths_align_at_the_end() -> None:
    """A one-step run beside a long one: before its step it has nothing to hide."""
    runs = [builders.dp_sgd("long", sigma=30.0, steps=30), builders.dp_sgd("short", sigma=30.0, steps=1)]
    found = Combination(builders.portfolio(*runs).weights(half(*runs))).guarantee(delta=1e-5)
    mu = math.sqrt(29 / 900 + 2 / 900)  # the last step of both together: (1/2 + 1/2)² / (2·(30/2)²)
    assert found.epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-6)


def test_learning_rate_schedule_of_many_phases() -> None:
    phases = [{"steps": 1, "learning_rate": 0.1 * (1 - t / 300)} for t in range(300)]
    runs = [builders.dp_sgd(n, sigma=s, phases=phases, smoothness=0.1, convex="glm") for n, s in (("a", 60.0), ("b", 15.0))]
    weights = builders.portfolio(*runs).weights({"a": 0.8, "b": 0.2})
    proved = Combination(weights).guarantee(delta=1e-5).epsilon
    paper = Combination(weights, assume_smoothness=0).guarantee(delta=1e-5).epsilon
    assert paper < proved < Joint(weights).guarantee(delta=1e-5).epsilon


def test_replace_one_full_batch_doubles_mu() -> None:
    single = [
        builders.dp_sgd("a", sigma=20.0, steps=25, adjacency=adjacency)
        for adjacency in ("add-remove", "replace-one", "zero-out")
    ]
    mus = [run_profile(model).profile.mu for model in single]
    assert mus == pytest.approx([0.25, 0.5, 0.25])


def test_replace_one_poisson_combination_reveals_coins_and_is_valid_side() -> None:
    runs = [
        builders.dp_sgd(
            m.name, sigma=2.0, steps=50, sampling=0.01, batch=100, smoothness=0.01, convex="glm", adjacency="replace-one"
        )
        for m in POISSON
    ]
    weights = builders.portfolio(*runs).weights({"a": 0.02, "b": 0.98})
    found = Combination(weights).guarantee(delta=1e-5)
    assert found.epsilon <= Joint(weights).guarantee(delta=1e-5).epsilon
    assert found.theorem in ("transport-replace-one", "joint-release")


def test_record_smoothness_of_zero_is_conditional() -> None:
    runs = [builders.dp_sgd(n, sigma=s, steps=10, smoothness=0.0) for n, s in (("a", 20.0), ("b", 5.0))]
    found = Combination(builders.portfolio(*runs).weights({"a": 0.8, "b": 0.2})).guarantee(delta=1e-5)
    assert found.theorem == "transport"
    assert found.standing == "conditional"


def test_assumed_smoothness_is_conditional_and_named() -> None:
    weights = builders.portfolio(*FULL).weights({"a": 0.8, "b": 0.2})
    found = Combination(weights, assume_smoothness=0.2).guarantee(delta=1e-5)
    assert found.standing == "conditional"
    assert any("an assumption of the user" in text for text in found.assumptions)


def test_full_batch_phase_of_a_sampled_run_uses_the_number_of_records() -> None:
    """A Poisson phase says how many records there are, and its full batches then hold that many (not expected_batch)."""
    eta, sigma, lam = (1.88367154, 0.01423987), (18.38919366, 0.32363778), (0.0048878, 0.9951122)
    runs = [
        builders.dp_sgd(
            name,
            sigma=s,
            batch=100,
            smoothness=0.39433266 / 100,
            convex="glm",
            phases=[
                {"steps": 1, "learning_rate": 0.0, "noise_multiplier": 100.0, "sampling": {"scheme": "poisson", "rate": 0.01}},
                {"steps": 35, "learning_rate": e},
            ],
        )
        for name, e, s in zip("ab", eta, sigma, strict=True)
    ]
    weights = builders.portfolio(*runs).weights({"a": lam[0], "b": 1 - lam[0]})
    assert Combination(weights).guarantee(delta=1e-5).epsilon > gaussian_epsilon(2.6212, 1e-5)


def test_many_models() -> None:
    rng = np.random.default_rng(5)
    runs = [
        builders.dp_sgd(
            f"m{i}", sigma=float(rng.uniform(0.8, 2)), steps=30, sampling=0.01, batch=100, smoothness=0.05, convex="glm"
        )
        for i in range(12)
    ]
    lam = rng.dirichlet(np.ones(12))
    given_weights = {m.name: float(w) for m, w in zip(runs, lam, strict=True)}
    weights = builders.portfolio(*runs).weights(given_weights)
    paper = Combination(weights, assume_smoothness=0).guarantee(delta=1e-5).epsilon
    proved = Combination(weights).guarantee(delta=1e-5).epsilon
    joint = Joint(weights).guarantee(delta=1e-5).epsilon
    assert 0 < paper < proved <= joint * (1 + 1e-4)
    assert Selection(weights).guarantee(delta=1e-5).epsilon < joint


# --- dp-ftrl -----------------------------------------------------------------------------------------------------------------


def test_tree_aggregation_agrees_with_dp_accounting() -> None:
    import dp_accounting
    from dp_accounting import rdp

    mechanism = {"kind": "dp-ftrl", "noise_multiplier": 5.0, "steps": 400, "restarts": 3, "tree_steps": 100}
    model = builders.model("t", mechanism, "zero-out")
    profile = run_profile(model).profile
    orders = np.array([2.0, 10.0, 33.0])
    accountant = rdp.RdpAccountant(orders.tolist(), dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(5.0, 100), 4)
    assert profile.renyi(orders) == pytest.approx(accountant.rdp)
    with pytest.raises(UnsupportedMechanism, match="zero-out"):
        run_profile(builders.model("t", {"kind": "dp-ftrl", "noise_multiplier": 5.0, "steps": 4, "restarts": 0}))


@pytest.mark.parametrize(("adjacency", "effect"), [("zero-out", 1.0), ("replace-one", 2.0)])
def test_a_banded_matrix_is_charged_for_every_time_a_record_takes_part(adjacency: Adjacency, effect: float) -> None:
    for steps, separation, times in ((12, 12, 1), (12, 40, 1), (13, 12, 2), (12, 4, 3), (7, 1, 7)):
        stated = {"noise_multiplier": 5.0, "steps": steps, "restarts": 0, "separation": separation}
        found = run_profile(builders.model("b", {"kind": "dp-ftrl", **stated}, adjacency))
        assert found.profile.mu == pytest.approx(effect * math.sqrt(times) / 5)
        assert f"at most once in any {separation} consecutive steps" in found.assumptions[0]
    with pytest.raises(UnsupportedMechanism, match="zero-out"):
        run_profile(builders.model("b", {"kind": "dp-ftrl", **stated}, "add-remove"))


def nodes_paid(steps: int, restarts: int, **stated: int) -> float:
    mechanism = {"kind": "dp-ftrl", "noise_multiplier": 1.0, "steps": steps, "restarts": restarts, **stated}
    renyi = run_profile(builders.model("t", mechanism, "zero-out")).profile.renyi(np.array([2.0]))
    return float(renyi[0])  # α·μ²/2 at α = 2


def most_nodes_by_counting(steps: int, length: int) -> int:
    """Trees of `length` steps one after the other: the most blocks of 2^h steps that one leaf of each is in, summed up."""
    total = 0
    for start in range(0, steps, length):
        leaves = min(length, steps - start)
        blocks = [range(k << h, (k + 1) << h) for h in range(leaves.bit_length()) for k in range(leaves >> h)]
        total += max(sum(leaf in block for block in blocks) for leaf in range(leaves))
    return total


def test_a_tree_record_is_charged_for_the_worst_trees_it_may_have() -> None:
    """Every length with which a tree may have been restarted so often, and no other, is counted out."""
    assert nodes_paid(12, 1) == pytest.approx(7)  # trees of 8 and 4; before, two of 6 were taken for granted
    assert nodes_paid(25, 3) == pytest.approx(13)  # trees of 8, 8, 8 and 1
    for steps in range(2, 34):
        for restarts in range(1, steps):
            lengths = [n for n in range(1, steps + 1) if restarts * n <= steps <= (restarts + 1) * n]
            if lengths:
                counted = {n: most_nodes_by_counting(steps, n) for n in lengths}
                assert nodes_paid(steps, restarts) == pytest.approx(max(counted.values()))
                for length, nodes in counted.items():
                    assert nodes_paid(steps, restarts, tree_steps=length) == pytest.approx(nodes)
            else:
                with pytest.raises(RecordError, match="at equal distances do not fit"):
                    nodes_paid(steps, restarts)


def test_two_records_of_a_run_never_pay_less_than_the_trees_both_allow() -> None:
    """(12, 1) and (16, 1) of one run leave trees of 8 to 12 steps: the first is 8 + 4."""
    for first, second in (((12, 1), (16, 1)), ((14, 2), (21, 3)), ((9, 1), (30, 4)), ((20, 2), (40, 4))):
        both = [
            n for n in range(1, 41) if all(restarts * n <= steps <= (restarts + 1) * n for steps, restarts in (first, second))
        ]
        assert both
        for steps, restarts in (first, second):
            assert nodes_paid(steps, restarts) >= max(most_nodes_by_counting(steps, n) for n in both) - 1e-9


# --- baselines ---------------------------------------------------------------------------------------------------------------


def test_compositions_are_ordered() -> None:
    models = [builders.dp_sgd(f"m{i}", sigma=100.0, steps=10) for i in range(20)]
    weights = builders.portfolio(*models).weights(half(*models))
    found = {c: PairComposition(weights, c).guarantee(delta=1e-6).epsilon for c in ("basic", "advanced", "optimal")}
    joint = Joint(weights).guarantee(delta=1e-6).epsilon
    assert joint < found["optimal"] < found["advanced"] < found["basic"] * 1.5
    assert found["optimal"] <= found["basic"]


def test_advanced_composition_is_the_theorem() -> None:
    epsilon, count, slack = 0.05, 40, 1e-6
    expected = epsilon * math.sqrt(2 * count * math.log(1 / slack)) + count * epsilon * math.expm1(epsilon)
    assert advanced_composition([epsilon] * count, slack) == pytest.approx(expected)


def test_composition_delta_inverts_epsilon() -> None:
    weights = builders.portfolio(*FULL).weights(half(*FULL))
    for name in ("basic", "advanced", "optimal"):
        rule = PairComposition(weights, name)
        delta = rule.guarantee(epsilon=3.0).delta
        assert rule.guarantee(delta=delta).epsilon <= 3.0
        assert rule.guarantee(delta=delta * 0.99).epsilon > 3.0 - 1e-3


def test_no_free_lunch() -> None:
    """Corrected threshold t(ε′,δ′)/t(ε₂,δ), and the counterexample to Prop. 3.1 (docs/theory.md §6).

    Of Differentially Private Model Merging, version 1.
    """
    assert no_free_lunch_threshold(1.0, 0.0, 8.0, 0.0) == pytest.approx(math.tanh(0.5) / math.tanh(4))
    paper = papers_no_free_lunch_threshold(0.01, 0.1, 1.0, 0.0)
    assert paper == pytest.approx(0.172, abs=1e-3)
    reaction = 0.19  # above the paper's threshold …
    assert reaction > paper
    assert reaction * math.tanh(0.5) < 0.1  # … yet every output pair is within total variation δ′, hence (ε′, δ′)-DP
    assert no_free_lunch_threshold(0.01, 0.1, 1.0, 0.0) > reaction
    with pytest.raises(TargetError, match="epsilon"):
        no_free_lunch_threshold(-1.0, 0.0, 1.0, 0.0)


def test_joint_renyi_is_below_advanced_composition() -> None:
    """Prop. 7.1 of the merging paper for equal Gaussians."""
    models = [builders.gaussian(f"m{i}", noise_std=4.0) for i in range(10)]
    weights = builders.portfolio(*models).weights(half(*models))
    joint = Joint(weights).guarantee(delta=1e-6, by="rdp", conversion="paper").epsilon
    assert joint <= PairComposition(weights, "advanced").guarantee(delta=1e-6, by="rdp", conversion="paper").epsilon


# --- guarantees ------------------------------------------------------------------------------------------------


def test_epsilon_and_delta_are_inverse_to_each_other() -> None:
    weights = builders.portfolio(*POISSON).weights({"a": 0.3, "b": 0.7})
    for rule in (Selection(weights), Joint(weights), Combination(weights), Combination(weights, assume_smoothness=0)):
        epsilon = rule.guarantee(delta=1e-6).epsilon
        assert rule.guarantee(epsilon=epsilon).delta == pytest.approx(1e-6, rel=2e-2)


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"delta": 1e-5, "epsilon": 1.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
        {"epsilon": -1.0},
        {"epsilon": math.inf},
    ],
)
def test_meaningless_targets_are_refused(target: dict[str, float]) -> None:
    rule = Joint(builders.portfolio(*FULL).weights(half(*FULL)))
    with pytest.raises(TargetError):
        rule.guarantee(**target)  # type: ignore[arg-type]


def test_accountants_that_do_not_apply_are_refused_with_the_reason() -> None:
    rule = Joint(builders.portfolio(*POISSON).weights(half(*POISSON)))
    with pytest.raises(UnsupportedMechanism, match="gdp does not apply: GDP is exact only"):
        rule.guarantee(delta=1e-5, by="gdp")


def test_a_guarantee_prints_as_one_sentence() -> None:
    found = Joint(builders.portfolio(*FULL).weights(half(*FULL))).guarantee(delta=1e-5)
    text = str(found)
    assert text.startswith(f"({round_up(found.epsilon)}, 1e-05)-DP, add-remove · proved: joint release")
    assert "\n" not in text


@given(st.floats(1e-9, 1e6))
def test_printed_numbers_are_never_below(value: float) -> None:
    assert float(round_up(value)) >= value
    assert float(significant(value)) >= value * (1 - 1e-15)
    assert float(significant(value)) <= value * (1 + 2e-5)


def test_every_theorem_named_by_a_guarantee_exists() -> None:
    rows = compare(builders.portfolio(*POISSON), {"a": 0.5, "b": 0.5}, delta=1e-5).rows
    assert rows[3].label == "linear combination (papers' formula)"
    for row in rows:
        assert row.guarantee is not None
        assert row.guarantee.theorem in THEOREMS


def test_compare_shows_refusals_as_rows() -> None:
    models = [builders.dp_sgd(n, sigma=1.0, noise_fingerprint="same") for n in "ab"]
    rows = compare(builders.portfolio(*models), half(*models), delta=1e-5).rows
    assert rows[0].guarantee is not None
    assert all(row.refusal is not None for row in rows[1:])


@pytest.mark.uncounted  # runs the lines of other tests, at length
@settings(max_examples=3 * EFFORT, deadline=None)
@given(
    sigma=st.tuples(st.floats(0.5, 4), st.floats(0.5, 4)),
    lam=st.floats(0.001, 0.999),
    rate=st.floats(0.001, 0.2),
    steps=st.integers(2, 40),
    smoothness=st.floats(0.001, 1),
)
def test_combination_lies_between_formula_and_joint(
    sigma: tuple[float, float], lam: float, rate: float, steps: int, smoothness: float
) -> None:
    runs = [
        builders.dp_sgd(
            n, sigma=s, steps=steps, sampling=rate, batch=max(1.0, 1000 * rate), smoothness=smoothness, convex="glm"
        )
        for n, s in zip("ab", sigma, strict=True)
    ]
    weights = builders.portfolio(*runs).weights({"a": lam, "b": 1 - lam})
    paper = Combination(weights, assume_smoothness=0).guarantee(delta=1e-5).epsilon
    proved = Combination(weights, only_release=False).guarantee(delta=1e-5).epsilon
    joint = Joint(weights).guarantee(delta=1e-5).epsilon
    assert paper <= proved * (1 + 1e-4) + 1e-6
    assert proved <= joint * (1 + 1e-4) + 1e-6


@pytest.mark.parametrize("sigma", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_next_to_no_noise_costs_the_probability_of_being_sampled(sigma: float, adjacency: Any) -> None:
    """A sampled record gives everything away, and that is all: δ = 1 − (1 − q)^T, at any ε that anyone prints."""
    model = builders.dp_sgd("a", sigma=sigma, steps=5, sampling=0.01, batch=100, adjacency=adjacency)
    rule = Joint(builders.portfolio(model).weights({"a": 1.0}))
    assert rule.guarantee(epsilon=3.0).delta == pytest.approx(1 - 0.99**5, rel=1e-9)
    assert rule.guarantee(delta=1e-5).epsilon == math.inf


@pytest.mark.parametrize("steps", [50, 600, 2000])
def test_gradients_that_explode_end_in_a_number_not_a_crash(steps: int) -> None:
    """Smoothness 1 at learning rate 1: coupled distances double at every step."""
    runs = [
        builders.dp_sgd(n, sigma=s, eta=1.0, steps=steps, batch=256, sampling=256 / 60000, smoothness=1.0)
        for n, s in (("open", 0.0), ("private", 1.0))
    ]
    weights = builders.portfolio(*runs).weights({"open": 0.01, "private": 0.99})
    assert Combination(weights).guarantee(delta=1e-5).epsilon == math.inf
    assert 0.3 < Combination(weights).guarantee(epsilon=1.0).delta <= 1.0


@pytest.mark.parametrize("delta", [1e-300, 1e-318, 5e-324])
def test_deltas_at_the_end_of_floats_end_in_a_number_not_a_crash(delta: float) -> None:
    run = builders.dp_sgd("a", sigma=2.0, steps=20, sampling=0.1)
    found = Joint(builders.portfolio(run).weights({"a": 1.0})).guarantee(delta=delta)
    assert found.epsilon > 100


@settings(max_examples=500, deadline=None)
@given(whole=st.integers(0, 10**9), ulps=st.integers(0, 3), digits=st.integers(1, 6))
def test_what_is_rounded_for_people_is_never_too_small(whole: int, ulps: int, digits: int) -> None:
    """Next to a number of few digits, where a product rounds either way."""
    value = whole / 10**digits
    for _ in range(ulps):
        value = math.nextafter(value, math.inf)
    assert value <= float(round_up(value, digits)) <= value + 2.01 / 10**digits
