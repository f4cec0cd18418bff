"""Shards: models of disjoint parts of the data (docs/theory.md §10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binom, norm

from dpmerge.errors import DependentRuns, PortfolioError, RecordError
from dpmerge.planning import selection_frontier, selection_optimum
from dpmerge.planning.simplex import _selections, simplex_grid
from dpmerge.profiles import GaussianLaw, MixtureLaw, Profile, run_profile
from dpmerge.records import Adjacency, Model, Portfolio, places
from dpmerge.rules import (
    Accounting,
    Combination,
    Exposure,
    Filter,
    Joint,
    Releases,
    Selection,
    Target,
    Tempered,
    build,
    placed_profiles,
)
from dpmerge.rules.filter import Charge
from dpmerge.rules.theorems import SECRET_PARTS, SHARDS
from dpmerge.rules.transport import WeightedRun, trajectories
from tests import builders

DELTA = 1e-5


def shard(part: int, of: int = 5, assignment: str = "keyed-hash", partition: str = "p") -> dict[str, Any]:
    return {"partition": partition, "part": part, "of": of, "assignment": assignment}


def mean(name: str, part: int | None, mu: float = 1.0, of: int = 2, assignment: str = "keyed-hash") -> Model:
    more: dict[str, Any] = {} if part is None else {"shard": shard(part, of, assignment)}
    return builders.gaussian(name, noise_std=1 / mu, run=f"run-{name}", **more)


def equal(portfolio: Portfolio) -> dict[str, float]:
    return {name: 1 / len(portfolio) for name in portfolio.names}


def hockey(mu: float, epsilon: float) -> float:
    return float(norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)) if mu else 0.0


def joint(portfolio: Portfolio) -> Joint:
    return Joint(portfolio.weights(equal(portfolio)), None, ())


def test_parts_of_different_models_do_not_compose() -> None:
    """By id: the largest part. In secret: the average over parts, also over those without a model."""
    known = Portfolio([mean("a", 1, 1.0, 5, "by-id"), mean("b", 2, 0.5, 5, "by-id")])
    found = joint(known).guarantee(epsilon=1.0)
    assert found.delta == pytest.approx(hockey(1.0, 1.0), rel=1e-6)
    assert found.theorem == "shards"
    assert SHARDS in found.assumptions
    assert SECRET_PARTS not in found.assumptions
    secret = Portfolio([mean("a", 1, 1.0, 5), mean("b", 2, 0.5, 5)])
    found = joint(secret).guarantee(epsilon=1.0)
    assert found.delta == pytest.approx((hockey(1.0, 1.0) + hockey(0.5, 1.0)) / 5, rel=1e-6)
    assert SECRET_PARTS in found.assumptions
    assert found.details["partitions"] == {"p": {"parts": 5, "counted": "average"}}


def test_the_average_is_taken_last() -> None:
    """Parts μ = (0, 1), two releases of the second, ε = 3: .0158. Composing the averages says .0087 (§10)."""
    portfolio = Portfolio([mean("a", 2), mean("b", 2)])
    both = Releases(portfolio, [Exposure.whole(["a"]), Exposure.whole(["b"])]).guarantee(epsilon=3.0)
    assert both.delta == pytest.approx(hockey(2**0.5, 3.0) / 2, rel=1e-6)
    assert both.delta == pytest.approx(0.0158, abs=5e-5)
    # Composing averages would draw the part anew for each release: neither, one or both see the record.
    wrong = hockey(1.0, 3.0) / 2 + hockey(2**0.5, 3.0) / 4
    assert wrong == pytest.approx(0.0087, abs=5e-5)


def test_the_average_bounds_the_real_release() -> None:
    """Exactly: a record in one of two parts, a sum of each part released with noise. Never more than claimed, and near it."""
    x = np.linspace(-12, 13, 1501)
    density = norm.pdf(x)
    without = np.outer(density, density)
    shifted = norm.pdf(x - 1.0)
    with_record = (np.outer(shifted, density) + np.outer(density, shifted)) / 2
    cell = (x[1] - x[0]) ** 2
    portfolio = Portfolio([mean("a", 1), mean("b", 2)])
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        claimed = joint(portfolio).guarantee(epsilon=epsilon).delta
        for p, q in ((with_record, without), (without, with_record)):
            true = float(np.maximum(p - np.exp(epsilon) * q, 0).sum() * cell)
            assert true <= claimed * (1 + 1e-3)
    assert claimed > 0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 2.0)), min_size=1, max_size=6),
    st.sampled_from(["keyed-hash", "fair-draw", "by-id"]),
    st.floats(0.0, 3.0),
)
def test_joint_release_against_brute_force(models: list[tuple[int, float]], assignment: str, epsilon: float) -> None:
    """Part 0 stands for a model of all data. Everything that a record's part shows is composed, then averaged or compared."""
    portfolio = Portfolio([mean(f"m{i}", part or None, mu, 4, assignment) for i, (part, mu) in enumerate(models)])
    squares = {part: sum(mu**2 for p, mu in models if p in (0, part)) for part in range(1, 5)}
    deltas = [hockey(square**0.5, epsilon) for square in squares.values()]
    expected = max(deltas) if assignment == "by-id" else sum(deltas) / 4
    assert joint(portfolio).guarantee(epsilon=epsilon).delta == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_two_partitions() -> None:
    """Independent secret partitions: every pair of parts is as probable."""
    models = [
        builders.gaussian("a", noise_std=1.0, run="a", shard=shard(1, 2, partition="p")),
        builders.gaussian("b", noise_std=1.0, run="b", shard=shard(1, 3, partition="q")),
    ]
    found = joint(Portfolio(models)).guarantee(epsilon=1.0).delta
    expected = hockey(2**0.5, 1.0) / 6 + hockey(1.0, 1.0) * (2 / 6 + 1 / 6)
    assert found == pytest.approx(expected, rel=1e-6)
    assert sum(place.share for group in places(models) for place in group) == 1


def test_selection_and_tempered_selection() -> None:
    portfolio = Portfolio([mean("a", 1, 1.0, 2, "by-id"), mean("b", 2, 0.5, 2, "by-id")])
    weights = portfolio.weights({"a": 0.25, "b": 0.75})
    drawn = Selection(weights).guarantee(epsilon=0.5)
    assert drawn.delta == pytest.approx(max(0.25 * hockey(1.0, 0.5), 0.75 * hockey(0.5, 0.5)), rel=1e-6)
    assert drawn.theorem == "selection-pld"
    assert SHARDS in drawn.assumptions
    whole = Portfolio([mean("a", None, 1.0), mean("b", None, 0.5)]).weights({"a": 0.25, "b": 0.75})
    tempered, plain = Tempered(weights, 0.1), Tempered(whole, 0.1)
    assert drawn.delta < tempered.guarantee(epsilon=0.5).delta < plain.guarantee(epsilon=0.5).delta


def test_a_draw_in_secret_parts_is_the_average() -> None:
    secret = Portfolio([mean("a", 1, 1.0, 2), mean("b", 2, 0.5, 2)]).weights({"a": 0.25, "b": 0.75})
    expected = (0.25 * hockey(1.0, 0.5) + 0.75 * hockey(0.5, 0.5)) / 2
    assert Selection(secret).guarantee(epsilon=0.5).delta == pytest.approx(expected, rel=1e-6)


TAME: dict[str, Any] = {
    "sigma": 0.8,
    "steps": 40,
    "eta": 0.1,
    "batch": 100.0,
    "sampling": 0.01,
    "smoothness": 0.5,
    "convex": "glm",
}


def runs(count: int, assignment: str = "by-id", **more: Any) -> Portfolio:
    settings = {**TAME, **more}
    return Portfolio([builders.dp_sgd(f"m{i}", **settings, shard=shard(i, count, assignment)) for i in range(1, count + 1)])


def test_any_average_of_networks_costs_the_largest_part() -> None:
    """Nothing known of the gradients: an average of five parts costs one run."""
    portfolio = runs(5, smoothness=None, convex=None)
    one = Profile.of([(MixtureLaw.poisson(0.01, 1 / 0.8), 40)]).epsilon(DELTA)
    average = build("combination", portfolio.weights(equal(portfolio)), Accounting(only_release=False)).guarantee(delta=DELTA)
    assert average.epsilon == pytest.approx(one, rel=1e-6)
    assert average.theorem == "shards"
    assert joint(portfolio).guarantee(delta=DELTA).epsilon == pytest.approx(one, rel=1e-6)
    secret = runs(5, "fair-draw", smoothness=None, convex=None)
    assert joint(secret).guarantee(delta=DELTA).epsilon == pytest.approx(one, rel=1e-6)  # all parts alike


def test_the_last_noise_of_other_parts_hides() -> None:
    """Theorem hidden-run with the other parts' last noise as noise at release: between none and joint release."""
    portfolio = runs(4, "keyed-hash")
    rule = build("combination", portfolio.weights(equal(portfolio)))
    assert isinstance(rule, Combination)
    found = rule.guarantee(delta=DELTA)
    assert found.theorem == "hidden-run"
    assert found.epsilon < joint(portfolio).guarantee(delta=DELTA).epsilon
    place = rule.places.all[0]
    inner = rule.placed(place)
    step = 0.25 * 0.1 * 0.8 / 100  # λ·ν of one model
    assert inner._hiding == pytest.approx(step * 3**0.5, rel=1e-9)
    # The same run alone with that much noise at release, λ = 1: shifts and noises are four times as large.
    alone = builders.dp_sgd("alone", **{**TAME, "batch": 100.0}, shard=shard(1, 4, "keyed-hash"))
    single = build("combination", Portfolio([alone]).weights({"alone": 1.0}), noise=4 * step * 3**0.5)
    assert isinstance(single, Combination)
    one = single.placed(place).with_profile(Target(delta=DELTA), "best", "tight")[0]
    assert inner.with_profile(Target(delta=DELTA), "best", "tight")[0].epsilon == pytest.approx(one.epsilon, rel=1e-3)


def test_a_part_may_have_more_records_than_its_share() -> None:
    """Batches are bounded by the largest part that a secret draw may give, except with a probability that is part of δ."""
    portfolio = runs(4, "keyed-hash", eta=1.0)
    found = build("combination", portfolio.weights(equal(portfolio))).guarantee(delta=DELTA)
    assert found.theorem == "hidden-run"
    assert found.details["batch_bound_failure"] >= 1e-4 * DELTA / 2
    assert any("at most 40400 records (expected_batch is rate × records / 4 parts" in text for text in found.assumptions)
    bounds = {}
    for assignment in ("keyed-hash", "by-id"):
        run = WeightedRun(runs(4, assignment).models[0], 1.0, 0.5, True)
        bounds[assignment] = trajectories((run,), "add-remove", None, 1e-9).records_bound[0]
    assert bounds["by-id"] == 40400  # nothing says that parts are alike
    assert bounds["keyed-hash"] == pytest.approx(10100 + 6.2 * (40400 * 3 / 16) ** 0.5, rel=0.005)


def test_full_batches_of_a_part_are_counted_whole() -> None:
    models = [builders.dp_sgd(f"m{i}", sigma=5.0, steps=3, smoothness=0.1, convex="glm", shard=shard(i, 2)) for i in (1, 2)]
    found = build("combination", Portfolio(models).weights({"m1": 0.5, "m2": 0.5})).guarantee(delta=DELTA)
    assert found.theorem == "shards"
    assert all("not bounded by the divisor" in why for why in found.details["revealed"].values())


def test_forks_of_one_body_on_parts() -> None:
    """A body that saw all data, and heads on parts: the body once, then the worst part."""
    body = builders.dp_sgd("body", sigma=10.0, steps=50)
    start = {"run": "run-body", "step": 50, "digest": "0" * 64, "mechanism": body.record.as_dict()["mechanism"]}
    heads = [
        builders.dp_sgd(f"h{i}", sigma=10.0, steps=10 * i, starts_from=start, shard=shard(i, 3, "by-id")) for i in (1, 2, 3)
    ]
    found = joint(Portfolio(heads)).guarantee(delta=DELTA)
    assert found.epsilon == pytest.approx(Profile.of([(GaussianLaw(0.1), 80)]).epsilon(DELTA), rel=1e-9)


def test_the_filter_counts_the_worst_part() -> None:
    portfolio = Portfolio([mean("a", 1, 1.0), mean("b", 2, 0.5), mean("c", 2, 1.0)])
    used = Filter(8.0, 50.0, 5e-6, 5e-6).total(
        {model.name: model for model in portfolio}, [Charge(Exposure.whole([name])) for name in portfolio.names]
    )
    assert used.divergence == pytest.approx(8 * (0.5**2 + 1.0) / 2, rel=1e-9)


def test_parts_that_share_noise_are_refused() -> None:
    """The difference of both models would be the record's part of one of them, without noise."""
    models = [mean("a", 1), builders.gaussian("b", noise_std=1.0, run="run-b", noise_fingerprint="noise-a", shard=shard(2, 2))]
    weights = Portfolio(models).weights({"a": 0.5, "b": 0.5})
    for rule in (Joint, Combination):
        with pytest.raises(DependentRuns, match="noise-a"):
            rule(weights).guarantee(delta=DELTA)
    with pytest.raises(DependentRuns, match="noise-a"):
        Combination(weights).placed(places(models)[0][0])
    Selection(weights).guarantee(delta=DELTA)  # shows one of them


@pytest.mark.parametrize("assignment", ["by-id", "keyed-hash"])
def test_the_best_draw_knows_parts(assignment: str) -> None:
    """The linear program's optimum is feasible by the rule, and on its edge; without parts less would be allowed."""
    portfolio = Portfolio(
        [mean("a", 1, 2.0, 3, assignment), mean("b", 2, 1.5, 3, assignment), mean("c", 3, 0.2, 3, assignment)]
    )
    utilities, epsilon, delta = (1.0, 0.8, 0.1), 0.5, 0.05
    groups = placed_profiles(portfolio.models, None)
    profiles = [run_profile(model).profile for model in portfolio]
    best = selection_optimum(profiles, utilities, epsilon, delta, groups=groups)
    worse = selection_optimum(profiles, utilities, epsilon, delta)
    assert best is not None
    assert worse is not None
    assert best.utility > worse.utility + 0.05
    found = Selection(portfolio.weights_in_order(best.weights)).guarantee(epsilon=epsilon).delta
    assert delta * (1 - 1e-6) <= found <= delta
    line = selection_frontier(profiles, utilities, [0.4, epsilon], delta, groups=groups)[1]
    assert line is not None
    assert line.utility == pytest.approx(best.utility, rel=1e-3)
    grid = simplex_grid(3, 0.5)
    for panel in _selections(portfolio, grid, 1e-3, Accounting(), ("pld", "rdp")):
        for point, shown in zip(grid.tolist(), panel.epsilons, strict=True):
            own = Selection(portfolio.weights_in_order(point)).guarantee(delta=1e-3, by=panel.by).epsilon
            assert shown == pytest.approx(own, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("how", ["shuffle", "equal-sizes", "content-hash"])
def test_other_assignments_are_refused(how: str) -> None:
    with pytest.raises(RecordError, match="depends on a record's content, or on which other records there are"):
        mean("a", 1, assignment=how)


def test_replace_one_is_refused() -> None:
    adjacency: Adjacency = "replace-one"
    with pytest.raises(RecordError, match="may change its part"):
        builders.gaussian("a", noise_std=1.0, adjacency=adjacency, shard=shard(1))
    builders.gaussian("a", noise_std=1.0, adjacency="zero-out", shard=shard(1))


def test_contradictory_parts_are_refused() -> None:
    with pytest.raises(RecordError, match="part 6 of 5"):
        mean("a", 6, of=5)
    with pytest.raises(PortfolioError, match="different things of it"):
        Portfolio([mean("a", 1, of=5), mean("b", 2, of=4)])
    with pytest.raises(PortfolioError, match="different things of it"):
        Portfolio([mean("a", 1, of=5), mean("b", 2, of=5, assignment="by-id")])
    many = [
        builders.gaussian(f"m{name}{part}", noise_std=1.0, shard=shard(part, 20, partition=name))
        for name in "pqr"
        for part in range(1, 21)
    ]
    with pytest.raises(PortfolioError, match="more than 4096 combinations"):
        Portfolio(many)


# --- exact laws of averages over parts ----------------------------------------------------------------------------------------


def exact_delta(shifts: Any, probs: Any, deviation: float, epsilon: float) -> float:
    """The larger of H_ε(Σ p N(s, v), N(0, v)) and the reverse, on a fine grid."""
    x = np.linspace(-14 * deviation, float(max(shifts)) + 14 * deviation, 200_001)
    law = sum(p * norm.pdf(x, s, deviation) for s, p in zip(shifts, probs, strict=True))
    base = norm.pdf(x, 0, deviation)
    cell, factor = x[1] - x[0], np.exp(epsilon)
    return float(max(np.maximum(law - factor * base, 0).sum(), np.maximum(base - factor * law, 0).sum()) * cell)


@settings(max_examples=15, deadline=None)
@given(
    st.floats(0.1, 0.9),
    st.floats(0.6, 2.0),
    st.floats(0.6, 2.0),
    st.integers(1, 6),
    st.floats(0.05, 0.6),
    st.floats(0.0, 1.5),
)
def test_averages_over_parts_never_cost_less_than_their_law(
    weight: float, own: float, other: float, steps: int, rate: float, epsilon: float
) -> None:
    """Runs whose other records have no gradients keep everything; runs whose last step forgets all show that step alone.

    The record is in part 1. Of the other part's run only the last noise is known to hide it.
    """
    settings: dict[str, Any] = {**TAME, "steps": steps, "sampling": rate, "batch": 1000 * rate}
    models = [
        builders.dp_sgd(name, **{**settings, "sigma": sigma}, shard=shard(part, 2))
        for name, sigma, part in (("a", own, 1), ("b", other, 2))
    ]
    rule = Combination(Portfolio(models).weights({"a": weight, "b": 1 - weight}))
    place = next(place for place in rule.places.all if dict(place.parts)["p"] == 1)
    claimed = rule.placed(place).with_profile(Target(epsilon=epsilon), "best", "tight")[0].delta
    noise = np.array([weight * own, (1 - weight) * other])  # of one step, in units of what the record does in model a's
    counts = np.arange(steps + 1)
    kept = exact_delta(weight * counts, binom.pmf(counts, steps, rate), float(np.hypot(*noise)) * steps**0.5, epsilon)
    last = exact_delta([0.0, weight], [1 - rate, rate], float(np.hypot(*noise)), epsilon)
    assert max(kept, last) <= claimed * (1 + 1e-5) + 1e-9
    if steps == 1:  # then there is nothing else
        assert claimed == pytest.approx(last, rel=2e-2, abs=1e-6)


def test_a_rate_of_one_does_not_bound_a_part() -> None:
    """All ids may fall into one part: then a full batch of it has twice the records that its divisor says."""
    batch, steps = 10_000, 7
    step = 2 * (1 - 1e-9)
    one: dict[str, Any] = {"sigma": 1.0, "clip": 1.0, "steps": steps, "eta": step, "batch": batch}
    one |= {"smoothness": 1.0, "convex": "glm"}
    by_id = {"partition": "p", "part": 1, "of": 2, "assignment": "by-id"}
    noise = 100 * step / batch
    found = {
        rate: Combination(
            Portfolio([builders.dp_sgd("a", **one, sampling=rate, shard=by_id)]).weights({"a": 1.0}), noise=noise
        ).guarantee(delta=1e-5)
        for rate in (None, 1.0)
    }
    assert found[1.0].theorem != "hidden-run" and found[1.0].epsilon == pytest.approx(found[None].epsilon)
    assert found[1.0].epsilon > 2.917  # the exact ε of Huber losses that pull all of 2B records apart
