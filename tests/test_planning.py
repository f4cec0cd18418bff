"""The best weights for a target: exact optima against brute force, feasible sets, provenance, the plan."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dpmerge import plan
from dpmerge.cli import app
from dpmerge.errors import TargetError, UtilityError
from dpmerge.planning import (
    FeasibleSet,
    Knob,
    Utilities,
    Worth,
    pld_optimum,
    renyi_optimum,
    selection_optimum,
    simplex_grid,
    training_variance,
)
from dpmerge.profiles import Profile, gaussian_delta
from dpmerge.records import Model, Portfolio, Record
from dpmerge.rules import Accounting, Selection, Tempered, least_noise, round_up
from tests import builders
from tests.release_builders import runs

NAMES = "abcd"


def gaussians(mus: list[float]) -> Portfolio:
    return builders.portfolio(*(builders.gaussian(n, noise_std=1 / mu) for n, mu in zip(NAMES, mus, strict=False)))


def simplex(count: int, cells: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    points = []
    for cuts in itertools.combinations(range(cells + count - 1), count - 1):
        edges = (-1, *cuts, cells + count - 1)
        points.append([(b - a - 1) / cells for a, b in itertools.pairwise(edges)])
    return np.array(points)


def test_optimum_is_never_beaten_by_brute_force_on_random_portfolios() -> None:
    """200 portfolios of up to four models with random costs in both directions; a grid of the simplex as the rival."""
    rng = np.random.default_rng(11)
    grids = {n: simplex(n, 400 if n == 2 else 60 if n == 3 else 24) for n in (2, 3, 4)}
    closest = math.inf
    for _ in range(200):
        n = int(rng.integers(2, 5))
        costs, utilities = np.exp(rng.normal(0, 2, (2, n))), rng.uniform(0, 1, n)
        found = pld_optimum(costs, utilities)
        points = grids[n]
        inside = points[np.all(points @ costs.T <= 1 - 1e-12, axis=1)]
        if found is None:
            assert inside.size == 0
            continue
        weights = np.array(found.weights)
        assert np.all(weights >= 0)
        assert abs(math.fsum(found.weights) - 1) < 1e-12
        assert np.all(costs @ weights <= 1)
        assert np.count_nonzero(weights > 1e-12) <= 3
        if inside.size:
            rival = float((inside @ utilities).max())
            assert found.utility >= rival - 1e-9
            closest = min(closest, found.utility - rival)
    assert closest < 1e-3


def test_renyi_optimum_mixes_at_most_two_and_is_never_beaten() -> None:
    rng = np.random.default_rng(12)
    for _ in range(100):
        n = int(rng.integers(2, 5))
        log_costs, utilities = rng.normal(0, 3, (n, 5)), rng.uniform(0, 1, n)
        found = renyi_optimum(log_costs, np.arange(2.0, 7.0), utilities)
        points = simplex(n, 40)
        rivals = [points[points @ np.exp(log_costs[:, k]) <= 1 - 1e-12] @ utilities for k in range(5)]
        best = max((float(values.max()) for values in rivals if values.size), default=-math.inf)
        if found is None:
            assert best == -math.inf
        else:
            assert np.count_nonzero(found.weights) <= 2
            assert found.utility >= best - 1e-9


def test_optimum_of_two_gaussians_is_the_closed_form() -> None:
    epsilon, delta = 1.0, 1e-5
    low, high = float(gaussian_delta(0.2, epsilon)), float(gaussian_delta(2.0, epsilon))
    share = (delta - low) / (high - low)
    profiles = [Selection(gaussians([0.2, 2.0]).weights({n: 1.0})).draw()[0][1] for n in "ab"]
    found = selection_optimum(profiles, [0.5, 0.9], epsilon, delta)
    assert found is not None
    assert found.weights[1] == pytest.approx(share, rel=1e-9)
    assert (
        Selection(gaussians([0.2, 2.0]).weights({"a": found.weights[0], "b": found.weights[1]}))
        .guarantee(epsilon=epsilon)
        .delta
        <= delta
    )


def test_two_hundred_models() -> None:
    rng = np.random.default_rng(13)
    costs, utilities = np.exp(rng.normal(0, 3, (2, 200))), rng.uniform(0, 1, 200)
    found = pld_optimum(costs, utilities)
    assert found is not None
    assert np.all(costs @ np.array(found.weights) <= 1)


def test_feasible_set() -> None:
    portfolio = gaussians([0.2, 2.0])
    space = FeasibleSet(Selection, 1.0, 1e-5)
    private, risky = portfolio.weights({"a": 1.0}), portfolio.weights({"b": 1.0})
    assert space.contains(private)
    assert not space.contains(portfolio.weights({"a": 0.5, "b": 0.5}))
    edge = space.boundary(private, risky, tolerance=1e-9)
    low, high = float(gaussian_delta(0.2, 1.0)), float(gaussian_delta(2.0, 1.0))
    assert edge == pytest.approx((1e-5 - low) / (high - low), abs=2e-9)
    assert space.boundary(private, private) == 1.0
    with pytest.raises(TargetError, match="do not meet the target"):
        space.boundary(risky, private)
    with pytest.raises(TargetError, match="does not divide 1"):
        simplex_grid(2, 0.3)


def test_plan_ranks_what_fits_and_says_why_the_rest_does_not() -> None:
    portfolio = builders.portfolio(
        *(builders.dp_sgd(n, sigma=s, steps=100, smoothness=0.2, convex="glm") for n, s in (("safe", 60.0), ("bold", 15.0)))
    )
    found = plan(portfolio, epsilon=1.5, delta=1e-5, utility={"safe": 0.8, "bold": 0.9})
    assert found.provenance == "a-priori"
    assert found.best is not None
    assert found.best.rule == "combination"
    for option in found.options:
        if option.feasible:
            assert option.epsilon <= 1.5
            assert option.delta <= 1e-5
            assert abs(math.fsum(option.weights.values) - 1) < 1e-9
        else:
            assert "is above 1.5" in option.why
    kinds = [option.rule for option in found.options]
    assert {"single", "selection", "combination", "joint"} == set(kinds)
    assert [option.feasible for option in found.options] == sorted((o.feasible for o in found.options), reverse=True)
    recheck = Selection(next(o.weights for o in found.options if o.rule == "selection"))
    assert recheck.guarantee(epsilon=1.5).delta <= 1e-5


def known_only(*epsilons: float) -> Portfolio:
    """Models of which nothing but (ε, 1e-7)-DP is known: no noise hides anything of them."""
    told = [{"kind": "approx-dp", "epsilon": epsilon, "delta": 1e-7} for epsilon in epsilons]
    return builders.portfolio(*(builders.model(name, one) for name, one in zip(NAMES, told, strict=False)))


def test_infeasible_targets_name_the_closest() -> None:
    found = plan(known_only(1.0, 2.0), epsilon=0.1, delta=1e-6)
    assert found.best is None
    assert found.closest.rule in ("single", "selection", "combination")
    assert found.closest.epsilon == pytest.approx(plan(known_only(1.0), epsilon=9.0, delta=1e-6).closest.epsilon, rel=1e-6)


def test_joint_release_says_that_the_deltas_of_pairs_add_up() -> None:
    found = plan(known_only(1.0, 2.0), epsilon=9.0, delta=1e-7)
    joint = next(option for option in found.options if option.rule == "joint")
    assert not joint.feasible and "the δ that these records state add up to 2e-07" in joint.why
    assert found.best is not None and found.best.epsilon == 2.0


def test_utilities_measured_on_private_models_leave_only_joint_release(tmp_path: Path) -> None:
    portfolio = gaussians([0.3, 0.6])
    path = tmp_path / "utilities.json"
    content = {"schema": 1, "measured_on": "public-test", "models": "private", "utilities": {"a": 0.8, "b": 0.9}}
    path.write_text(json.dumps(content))
    looked = plan(portfolio, epsilon=9.0, delta=1e-5, utility=Utilities.parse(portfolio, str(path)), kappa=0.5)
    assert looked.provenance == "after-looking"
    assert {option.rule for option in looked.options if option.feasible} == {"joint", "tempered"}
    assert any("measured on the private models" in option.why for option in looked.options)
    # The base probabilities of tempered selection must not be a function of what was seen.
    path.write_text(json.dumps({**content, "utilities": {"a": 0.9, "b": 0.1}}))
    other = plan(portfolio, epsilon=9.0, delta=1e-5, utility=Utilities.parse(portfolio, str(path)), kappa=0.5)
    bases = [next(o.weights for o in found.options if o.rule == "tempered") for found in (looked, other)]
    assert bases[0] == bases[1]
    path.write_text(json.dumps({**content, "models": "stand-ins"}))
    away = plan(portfolio, epsilon=9.0, delta=1e-5, utility=Utilities.parse(portfolio, str(path)))
    assert away.provenance == "a-priori"
    assert all(option.feasible for option in away.options)


@pytest.mark.parametrize(
    "text,complaint",
    [
        ("a=0.5", "no utility for model 'b'"),
        ("a=0.5,b=nan", "must be finite"),
        ("a=0.5,b=high", "not a number"),
        ("a=0.5,b=0.5,z=1", "no model named 'z'"),
        ("a=0.5,a=0.6,b=1", "given twice"),
        ("missing.json", "no such file"),
    ],
)
def test_bad_utilities_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(UtilityError, match=complaint):
        Utilities.parse(gaussians([0.3, 0.6]), text)


def test_tempered_selection_is_selection_at_kappa_zero_and_costs_at_most_kappa_more() -> None:
    weights = gaussians([0.3, 0.9]).weights({"a": 0.7, "b": 0.3})
    plain = Selection(weights).guarantee(delta=1e-5).epsilon
    assert Tempered(weights, 0.0).guarantee(delta=1e-5).epsilon == pytest.approx(plain, rel=1e-6)
    values = [Tempered(weights, kappa).guarantee(delta=1e-5).epsilon for kappa in (0.0, 0.1, 0.5, 1.0)]
    assert values == sorted(values)
    with pytest.raises(TargetError, match="kappa"):
        Tempered(weights, -1.0)
    # However strong the tilt, the draw is a function of both models together with what κ_i allows: no overflow.
    assert 0 < Tempered(weights, 5000.0).guarantee(epsilon=1.0).delta <= 1.0


def test_tempered_bound_covers_the_exact_law_of_a_small_example() -> None:
    """Two Gaussian means, scores 1{θ > ½}: the law of (I, θ_I) under D and D′ integrated on a fine grid."""
    kappa, pi, mus = 0.8, (0.6, 0.4), (0.5, 1.0)
    x = np.linspace(-9, 10, 4001)
    density = {(k, d): np.exp(-((x - d * mus[k]) ** 2) / 2) / math.sqrt(2 * math.pi) for k in (0, 1) for d in (0, 1)}
    score = (x > 0.5).astype(float)

    def law(d: int, k: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        other = 1 - k
        probability_high = float((density[other, d] * score).sum() * (x[1] - x[0]))
        own = pi[k] * np.exp(kappa * score)
        drawn = sum(
            p * own / (own + pi[other] * math.exp(kappa * s)) for s, p in ((1.0, probability_high), (0.0, 1 - probability_high))
        )
        return np.asarray(drawn * density[k, d])

    weights = gaussians([0.5, 1.0]).weights({"a": 0.6, "b": 0.4})
    rule = Tempered(weights, kappa)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        for upper, lower in ((1, 0), (0, 1)):
            exact = sum(
                float(np.maximum(law(upper, k) - math.exp(epsilon) * law(lower, k), 0).sum() * (x[1] - x[0])) for k in (0, 1)
            )
            assert rule.guarantee(epsilon=epsilon).delta >= exact * (1 - 1e-6)


def test_plan_command(tmp_path: Path) -> None:
    for name, std in (("a", 5.0), ("b", 1.0)):
        (tmp_path / name).mkdir()
        record = {
            "schema": 1,
            "dataset": "d",
            "adjacency": "add-remove",
            "mechanism": {"kind": "gaussian", "sensitivity": 1.0, "noise_std": std},
        }
        (tmp_path / name / "record.json").write_text(json.dumps(record))
    arguments = ["plan", str(tmp_path), "--epsilon", "2", "--delta", "1e-5", "--utility", "a=0.8,b=0.9"]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert found["target"] == {"epsilon": 2.0, "delta": 1e-5}
    wanted = {"rule", "by", "weights", "epsilon", "delta", "standing", "theorem", "expected_utility", "feasible", "why"}
    assert all(wanted <= set(option) for option in found["options"])
    text = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert "best: " in text
    asked = [*arguments[:2], "--epsilon", "0.001", "--delta", "1e-9", "--other-releases"]
    refused = CliRunner().invoke(app, asked, catch_exceptions=False).stdout
    assert "infeasible; the closest is" in refused


def test_profiles_are_shared_by_both_accountants() -> None:
    profiles = [Profile.of([]), Profile.of([])]
    found = selection_optimum(profiles, [0.1, 0.2], 1.0, 1e-5, Accounting("rdp"))
    assert found is not None
    assert found.utility == pytest.approx(0.2)


def test_whole_numbers_and_absurd_targets_are_answered() -> None:
    portfolio = gaussians([0.5, 1.0])
    assert plan(portfolio, epsilon=2, delta=1e-5).best == plan(portfolio, epsilon=2.0, delta=1e-5).best
    open_model = builders.model("n", {"kind": "non-private"})
    sampled = builders.portfolio(builders.dp_sgd("a", sigma=1.0, sampling=0.1, steps=2), open_model)
    far = plan(sampled, epsilon=2e4, delta=1e-5, kappa=0.5, utility={"a": 0.5, "n": 0.9})
    assert far.best is not None
    assert round_up(1e308) == "∞"


def test_a_model_that_no_theorem_covers_does_not_refuse_the_others() -> None:
    known = builders.dp_sgd("known", sigma=4.0)
    shuffled = builders.dp_sgd("shuffled", sigma=4.0)
    record = shuffled.record.model_dump(mode="json", by_alias=True)
    record["mechanism"]["sampling"] = {"scheme": "shuffle"}
    portfolio = Portfolio((known, Model("shuffled", Record.model_validate(record))))
    found = plan(portfolio, epsilon=50.0, delta=1e-5)
    assert found.best is not None
    assert found.best.weights.as_dict() == {"known": 1.0, "shuffled": 0.0}
    (joint,) = (option for option in found.options if option.rule == "joint")
    assert joint.standing == "refused"
    assert "shuffled" in joint.why


def test_a_plan_for_another_target_is_searched_or_looked_up() -> None:
    portfolio = known_only(0.3, 0.9, 2.0)
    first = plan(portfolio, epsilon=4.0, delta=1e-5)
    for epsilon in (0.5, 1.5, 3.0):
        assert first.at(epsilon) == plan(portfolio, epsilon=epsilon, delta=1e-5)
    known = first.at(1.5).at(3.0)
    for epsilon in (0.0, 0.5, 1.5, 2.0, 3.5, 9.0):
        best, found = plan(portfolio, epsilon=epsilon, delta=1e-5).best, known.at(epsilon, search=())
        assert (found.best is None) == (best is None)
        assert {"single", "joint"} <= {option.rule for option in found.options}
        for option in found.options:
            if option.feasible:
                assert option.epsilon <= epsilon and option.delta <= 1e-5
                assert best is not None and (option.utility or 0) <= (best.utility or 0) * (1 + 1e-9)
    assert known.at(1.5, search=()).best == first.at(1.5).best


def test_targets_worth_a_search_come_once_each_both_ends_first() -> None:
    found = plan(gaussians([0.3, 2.0]), epsilon=1.0, delta=1e-5, rules=("single",))
    alone = [option.epsilon for option in found.options]
    for count in range(2, 40):
        targets = found.targets(count)
        assert len(set(targets)) == len(targets) == count
        assert targets[:2] == pytest.approx([0.5 * min(alone), max(alone)])
        assert min(targets) == targets[0] and max(targets) == pytest.approx(targets[1])


# --- noise at release -------------------------------------------------------------------------------------------------------


def heads(**clips: float) -> Portfolio:
    """Small convex models, full batches: everything about their noise has a closed form."""
    made = [
        builders.dp_sgd(name, sigma=4.0, clip=clip, steps=25, eta=1.0, batch=10.0, smoothness=0.5, convex="glm")
        for name, clip in clips.items()
    ]
    return builders.portfolio(*made)


def test_variance_that_records_predict() -> None:
    """A sum over steps, with weight decay as the recursion θ ← (1 − ηω)θ − … has it; checkpoints of one run share noise."""
    phases = [
        {"steps": 3, "learning_rate": 0.5, "weight_decay": 0.1},
        {"steps": 4, "learning_rate": 0.2, "noise_multiplier": 2.0, "clip": 3.0},
    ]
    model = builders.dp_sgd("a", sigma=1.0, clip=2.0, batch=10.0, phases=phases)
    variance = 0.0
    for phase in phases:
        for _ in range(int(phase["steps"])):
            noise = phase["learning_rate"] * phase.get("noise_multiplier", 1.0) * phase.get("clip", 2.0) / 10
            variance = variance * (1 - phase["learning_rate"] * phase.get("weight_decay", 0.0)) ** 2 + noise**2
    assert training_variance(model) == pytest.approx(variance, rel=1e-12)
    assert training_variance(builders.gaussian("g", noise_std=3.0)) == 9.0
    assert training_variance(builders.model("n", {"kind": "non-private"})) == 0.0
    assert training_variance(builders.dp_sgd("adam", sigma=1.0, optimizer="adam")) is None
    worth = Worth.of(builders.portfolio(*(builders.gaussian(n, noise_std=2.0) for n in "ab")), None, {})
    assert worth.variance((0.5, 0.5), noise=1.0) == pytest.approx(0.5 * 4 + 1)
    assert worth.drawn_variance((0.5, 0.5)) == pytest.approx(4.0)
    one_run = [builders.dp_sgd(n, sigma=1.0, steps=4, run="r", noise_fingerprint="f", sampler_fingerprint="s") for n in "ab"]
    shared = Worth.of(builders.portfolio(*one_run), None, {})
    assert shared.variance((0.5, 0.5)) == pytest.approx(shared.variance((1.0, 0.0)))


def test_plan_offers_the_best_model_and_average_with_their_noise() -> None:
    """Like models, full batches: M² of n of them with noise τ is T²s²/(Tν²/n + τ²), in closed form (docs/theory.md §9.3)."""
    portfolio, steps, effect, own = heads(a=1.0, b=1.0, c=1.0), 25, 0.1, 0.4
    found = plan(portfolio, epsilon=1.0, delta=1e-5)
    alone, average = sorted((one for one in found.options if one.noise > 0), key=lambda one: len(one.weights.used))
    assert found.best in (alone, average)
    for count, option in ((3, average), (1, alone)):
        assert option.feasible and option.epsilon <= 1.0
        assert len(option.weights.used) == count
        mu = steps * effect / math.sqrt(steps * own**2 / count + option.noise**2)
        assert float(gaussian_delta(mu, option.epsilon)) == pytest.approx(1e-5, rel=1e-2)
        less = steps * effect / math.sqrt(steps * own**2 / count + (0.99 * option.noise) ** 2)
        assert float(gaussian_delta(less, 1.0)) > 1e-5
        assert option.deviation == pytest.approx(math.sqrt(steps * own**2 / count + option.noise**2))
    told = average.as_dict()
    assert told["noise"] == average.noise > 0
    assert told["utility_kind"] == "predicted"
    assert "; noise " in average.row()["weights"] and average.row()["predicted noise"]


def test_no_grid_of_averages_has_less_predicted_variance_by_much() -> None:
    portfolio = heads(a=1.0, b=2.0)
    best = next(one for one in plan(portfolio, epsilon=1.0, delta=1e-5).options if len(one.weights.used) > 1 and one.noise)
    worth = best.question.worth
    for share in (0.6, 0.7, 0.9):
        weights = portfolio.weights({"a": share, "b": 1 - share})
        noise, _ = least_noise(weights, epsilon=1.0, delta=1e-5)
        assert best.deviation is not None
        assert math.sqrt(worth.variance(weights.values, noise) or 0.0) >= 0.9 * best.deviation


def test_stated_utilities_say_what_noise_costs() -> None:
    """Noise costs what noisier models that are less useful let expect; beyond them they rank first."""
    portfolio = builders.portfolio(
        builders.gaussian("bold", noise_std=0.5),
        builders.gaussian("safe", noise_std=4.0),
        builders.gaussian("poor", noise_std=0.4),
    )
    stated = {"bold": 0.9, "safe": 0.8, "poor": 0.1}
    near = plan(portfolio, epsilon=2.0, delta=1e-5, utility=stated).best
    assert near is not None and near.noise > 0 and near.weights.as_dict()["bold"] == 1
    rate = 0.1 / (4.0**2 - 0.5**2)
    assert near.utility == pytest.approx(0.9 - rate * near.noise**2) and near.utility_kind == "interpolated"
    guess = next(one for one in plan(portfolio, epsilon=0.1, delta=1e-5, utility=stated).options if one.noise > 4)
    assert guess.utility_kind == "extrapolated" and guess.row()["utility"].endswith("?")
    far = plan(portfolio, epsilon=1.05, delta=1e-5, utility=stated)
    alone = next(one for one in far.options if one.rule == "single" and one.weights.as_dict()["safe"] == 1)
    assert alone.feasible and far.best is not None
    assert far.best.rank <= alone.rank


def test_the_knob_has_quick_bounds_first_and_replaces_them() -> None:
    made = [builders.dp_sgd(n, sigma=0.7, steps=20, sampling=0.1, batch=10.0, smoothness=0.5, convex="glm") for n in "ab"]
    knob = Knob(plan(builders.portfolio(*made), epsilon=1.0, delta=1e-5, search=()).question, 0.2, 3.0)
    while knob.done < knob.total:
        assert knob.refined == 0
        knob.advance()
    quick = [dict(one.known) for one in knob.averages]
    assert all(one.quick == set(one.known) for one in knob.averages)
    found = knob.meeting(1.0)[-1]
    assert 0.98 <= found.epsilon <= 1.0 and not any(found.noise in one.quick for one in knob.averages)
    while knob.refined < knob.total:
        knob.advance()
    assert not any(one.quick for one in knob.averages)
    pairs = [(old, one.known[noise]) for one, was in zip(knob.averages, quick, strict=True) for noise, old in was.items()]
    assert all(new.epsilon <= 1.02 * old.epsilon and new.noise == old.noise for old, new in pairs)
    assert any(new.epsilon < old.epsilon for old, new in pairs)


def test_what_adds_nothing_is_not_shown() -> None:
    found = plan(gaussians([0.2, 0.9]), epsilon=5.0, delta=1e-5)
    bold = [one for one in found.options if one.weights.as_dict().get("b") == 1.0]
    assert [one.rule for one in bold] == ["single"]  # no draw, and no average, of this model alone
    tiny = found.question.portfolio.weights({"a": 1 - 1e-7, "b": 1e-7})
    assert "b=" not in replace(found.options[0], weights=tiny).row()["weights"]
    equal = plan(gaussians([0.2, 0.9]), epsilon=9.0, delta=1e-5, utility={"a": 0.5, "b": 0.5})
    epsilons = [one.epsilon for one in equal.options if one.feasible and one.utility == 0.5]
    assert epsilons == sorted(epsilons)


def test_where_noise_buys_nothing_the_plan_says_why() -> None:
    networks = builders.portfolio(*(builders.dp_sgd(n, sigma=4.0, steps=9) for n in "ab"))
    for portfolio, accounting, why in (
        (networks, Accounting(), "nothing bounds how far a step of a network drives two copies apart"),
        (gaussians([0.5, 1.0]), Accounting(only_release=False), "something else of these runs is published"),
        (known_only(1.0, 2.0), Accounting(), "does not say how the parameters move"),
    ):
        found = plan(portfolio, epsilon=0.2, delta=1e-6, accounting=accounting)
        assert all(one.noise == 0 for one in found.options)
        assert why in found.why_no_noise and why in found.as_dict()["why_no_noise"]
        assert all(why in one.why for one in found.options if one.rule == "combination")
        assert all("a model trained with more noise" in one.why for one in found.options if one.rule == "single")
        assert all("train a more private one" in one.why for one in found.options if one.rule == "selection")
    told = plan(networks, epsilon=0.2, delta=1e-6).why_no_noise
    assert all(word in told for word in ("heads on a public body", "forks of one checkpoint", "shards"))


def test_a_model_that_noise_would_make_fit_says_so() -> None:
    found = plan(gaussians([0.5, 1.0]), epsilon=0.2, delta=1e-6)
    assert found.best is not None and found.best.noise > 0
    whys = [one.why for one in found.options if one.rule == "single"]
    assert len(whys) == 2 and all("noise at release lowers it" in why for why in whys)


def test_plan_prints_the_command_that_releases(tmp_path: Path) -> None:
    for model in heads(a=1.0, b=1.0).models:
        (tmp_path / model.name).mkdir()
        (tmp_path / model.name / "record.json").write_text(json.dumps(model.record.as_dict()))
    arguments = ["plan", str(tmp_path), "--epsilon", "1", "--delta", "1e-5"]
    text = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    noises = {one["weights"]["a"]: one["noise"] for one in told["options"] if one["noise"] > 0}
    assert noises.keys() == {0.5, 1.0}
    for weights, noise in (("a=0.5,b=0.5", noises[0.5]), ("a=1.0", noises[1.0])):
        wanted = (
            f"dpmerge merge {tmp_path} --rule combination --weights {weights} --noise {noise!r} --delta 1e-05 --out RELEASE"
        )
        assert f"release: {wanted}\n" in text


def test_a_learning_rate_that_is_too_large_is_named() -> None:
    how: dict[str, Any] = {"sigma": 4.0, "steps": 10, "smoothness": 0.5, "convex": "unclipped", "eta": 6.0, "sampling": 0.1}
    why = plan(Portfolio([builders.dp_sgd(name, **how) for name in "ab"]), epsilon=0.05, delta=1e-6).why_no_noise
    assert "'a' was trained with learning rate 6, and above 3.41 steps can drive two models apart" in why


def test_a_little_of_a_better_model_may_be_worth_more_than_noise_on_it(tmp_path: Path) -> None:
    runs(tmp_path)
    found = plan(Portfolio(tmp_path / "runs"), epsilon=0.31, delta=1e-5)
    with_noise = [option.utility for option in found.options if option.feasible and option.noise]
    assert found.best is not None and found.best.rule == "combination" and found.best.noise == 0
    assert with_noise and found.best.utility > 1.02 * max(with_noise)  # type: ignore[operator, type-var]
