"""Forks: runs that start from one private checkpoint, which counts once (docs/theory.md §10)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binom

from dpmerge.errors import DependentRuns, PortfolioError, RecordError, TargetError
from dpmerge.profiles import MixtureLaw, Profile, run_profile
from dpmerge.records import Model, Portfolio, Record, distinct_runs
from dpmerge.release.certificate import published
from dpmerge.release.known import KnownModels
from dpmerge.rules import Accounting, Combination, Exposure, Filter, Joint, Releases, Selection, build
from dpmerge.rules.combination import _Asked
from dpmerge.rules.filter import Charge
from dpmerge.rules.tuning import Base
from tests import builders
from tests.test_shards import exact_delta

DELTA = 1e-5
DIGEST = "0" * 64


def start_of(model: Model, digest: str | None = DIGEST) -> dict[str, Any]:
    held = model.record.as_dict()["mechanism"]
    steps = model.mechanism.steps  # type: ignore[union-attr]
    found = {"run": model.run, "step": steps, "mechanism": held}
    return found if digest is None else {**found, "digest": digest}


def sampled(name: str, steps: int, **more: Any) -> Model:
    return builders.dp_sgd(name, **{"sigma": 1.0, "steps": steps, "sampling": 0.01, **more})


BODY = sampled("body", 1800)


def fork(name: str, steps: int = 200, start: Model = BODY, digest: str | None = DIGEST, **more: Any) -> Model:
    return sampled(name, steps, starts_from=start_of(start, digest), **more)


def forks(count: int, **more: Any) -> Portfolio:
    return Portfolio([fork(f"fork-{i}", **more) for i in range(count)])


def equal(portfolio: Portfolio) -> dict[str, float]:
    return {name: 1 / len(portfolio) for name in portfolio.names}


def steps(count: int) -> Profile:
    return Profile.of([(MixtureLaw.poisson(0.01, 1.0), count)])


@pytest.mark.parametrize(("count", "forked", "separate"), [(3, 2.84, 4.64), (10, 3.62, 9.27)])
def test_the_prefix_counts_once(count: int, forked: float, separate: float) -> None:
    """The reference values of §10: 90 % in common."""
    portfolio = forks(count)
    found = Joint(portfolio.weights(equal(portfolio))).guarantee(delta=DELTA)
    assert found.epsilon == pytest.approx(forked, abs=0.01)
    assert found.theorem == "joint-release"
    assert len(found.details["runs"]) == count + 1
    alone = Portfolio([sampled(f"run-{i}", 2000) for i in range(count)])
    assert Joint(alone.weights(equal(alone))).guarantee(delta=DELTA).epsilon == pytest.approx(separate, abs=0.01)


def test_joint_release_is_dp_accountings_composition() -> None:
    """The same steps, composed by another program."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    other = PLDAccountant(value_discretization_interval=1e-3)
    step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    other.compose(dp_accounting.SelfComposedDpEvent(step, 1800 + 3 * 200))
    portfolio = forks(3)
    found = Joint(portfolio.weights(equal(portfolio))).guarantee(delta=DELTA).epsilon
    assert found == pytest.approx(other.get_epsilon(DELTA), rel=2e-3)


def test_selection_charges_prefix_and_own_steps() -> None:
    portfolio = forks(2)
    found = Selection(portfolio.weights(equal(portfolio))).guarantee(delta=DELTA)
    assert found.epsilon == pytest.approx(steps(2000).epsilon(DELTA), rel=1e-6)
    assert any("starts from a private checkpoint, 'run-body/1800'" in text for text in found.assumptions)
    alone = Joint(portfolio.weights({"fork-0": 1.0})).guarantee(delta=DELTA)
    assert alone.theorem == "single-run"
    assert alone.epsilon == pytest.approx(found.epsilon)


def test_a_released_run_covers_the_prefixes_of_its_forks() -> None:
    """Body released to step 2500: forks from step 1800 add their own steps."""
    portfolio = Portfolio([sampled("body", 2500), fork("a"), fork("b")])
    found = Joint(portfolio.weights(equal(portfolio))).guarantee(delta=DELTA).epsilon
    assert found == pytest.approx(steps(2900).epsilon(DELTA), rel=1e-6)


def test_forks_from_several_steps_count_the_latest() -> None:
    early = fork("early", start=sampled("body", 700), digest="1" * 64)
    portfolio = Portfolio([early, fork("late")])
    found = Joint(portfolio.weights(equal(portfolio))).guarantee(delta=DELTA).epsilon
    assert found == pytest.approx(steps(1800 + 400).epsilon(DELTA), rel=1e-6)


def test_forks_of_forks() -> None:
    first = fork("first")
    portfolio = Portfolio([fork("a", start=first), fork("b", start=first), fork("c")])
    assert sorted(run.run for run in distinct_runs(portfolio.models)) == ["run-a", "run-b", "run-body", "run-c", "run-first"]
    found = Joint(portfolio.weights(equal(portfolio))).guarantee(delta=DELTA).epsilon
    assert found == pytest.approx(steps(1800 + 4 * 200).epsilon(DELTA), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30)), min_size=1, max_size=6), st.integers(1, 30))
def test_every_step_counts_once(tree: list[tuple[int, int]], first: int) -> None:
    """Any tree of forks: full batches, so μ² is the number of steps that any model shows."""
    made = [builders.dp_sgd("root", sigma=10.0, steps=first)]
    for number, (parent, count) in enumerate(tree):
        start = made[min(parent, len(made) - 1)]
        digest = f"{len(made):064x}" if start.name == "root" else f"{int(start.name[1:]):064x}"
        digest = "a" * 64 if start.name == "root" else digest
        made.append(builders.dp_sgd(f"f{number}", sigma=10.0, steps=count, starts_from=start_of(start, digest)))
    portfolio = Portfolio(made[1:])
    shown: dict[str, int] = {}
    for model in portfolio:
        for one in (model, *model.starts):
            shown[one.run] = one.mechanism.steps  # type: ignore[union-attr]
    mu = Joint(portfolio.weights(equal(portfolio))).profile().mu
    assert mu is not None
    assert mu**2 == pytest.approx(sum(shown.values()) / 100, rel=1e-9)


# --- averages ----------------------------------------------------------------------------------------------------------------

TAME: dict[str, Any] = {"sigma": 0.6, "smoothness": 0.5, "convex": "glm", "eta": 0.1, "batch": 100.0, "sampling": 0.1}


def test_own_steps_are_transported_given_the_prefix() -> None:
    """Forks are runs with a known start: the prefix's profile, composed with the merge of the same runs from a public start."""
    body = builders.dp_sgd("body", sigma=60.0, steps=50, batch=1000.0, smoothness=0.2, convex="glm")
    tails: dict[str, Any] = {"steps": 100, "batch": 1000.0, "smoothness": 0.2, "convex": "glm"}
    public = [builders.dp_sgd("a", sigma=60.0, **tails), builders.dp_sgd("b", sigma=15.0, **tails)]
    started = [
        builders.dp_sgd(m.name, sigma=s, **tails, starts_from=start_of(body)) for m, s in zip(public, (60.0, 15.0), strict=True)
    ]
    lam = {"a": 0.8, "b": 0.2}
    told = Accounting(only_release=False)
    alone = build("combination", Portfolio(public).weights(lam), told)
    forked = build("combination", Portfolio(started).weights(lam), told)
    assert isinstance(alone, Combination)
    assert isinstance(forked, Combination)
    mu = min(route.profile.mu for route in alone.routes(target()) if route.profile.mu is not None)
    both = min(route.profile.mu for route in forked.routes(target()) if route.profile.mu is not None)
    assert mu == pytest.approx(0.26903, abs=1e-5)  # §8
    assert both**2 == pytest.approx(mu**2 + 50 / 60**2, rel=1e-9)
    found = forked.guarantee(delta=DELTA)
    assert found.theorem == "transport"
    assert found.details["revealed"] == {"run-body/50": "models start from it"}


def target() -> Any:
    from dpmerge.rules import Target

    return Target(delta=DELTA)


def test_hidden_runs_after_a_prefix_and_a_hidden_prefix() -> None:
    body = builders.dp_sgd("body", steps=20, **TAME)
    portfolio = Portfolio([builders.dp_sgd(n, steps=8, **TAME, starts_from=start_of(body)) for n in "ab"])
    lam = portfolio.weights({"a": 0.5, "b": 0.5})
    joint = build("combination", lam, Accounting(only_release=False)).guarantee(delta=DELTA)
    found = build("combination", lam).guarantee(delta=DELTA)
    assert found.theorem == "hidden-run"
    assert found.details["hidden_starts"] == ["run-body/20"]
    assert "revealed" not in found.details
    assert (
        "the runs that these models start from ('run-body') are among those of which nothing else is published"
        in found.assumptions
    )
    # No more than the last iterate of the body, then the average of runs from a known start.
    public = Portfolio([builders.dp_sgd(n, steps=8, **TAME) for n in "ab"]).weights({"a": 0.5, "b": 0.5})
    prefix = build("combination", Portfolio([body]).weights({"body": 1.0}))
    average = build("combination", public)
    assert isinstance(prefix, Combination)
    assert isinstance(average, Combination)
    parts = [rule.with_profile(target(), "best", "tight", alone=False)[1] for rule in (prefix, average)]
    assert found.epsilon == pytest.approx(Profile.composed(parts).epsilon(DELTA), rel=0.02)
    assert found.epsilon < joint.epsilon


def test_a_prefix_that_shows_more_than_its_last_step_is_not_hidden() -> None:
    """Forks that leave at different steps, or a body that is averaged too: the prefix counts step by step."""
    body, early = (builders.dp_sgd("body", steps=count, **TAME) for count in (20, 6))
    two = [
        builders.dp_sgd("a", steps=8, **TAME, starts_from=start_of(body)),
        builders.dp_sgd("b", steps=8, **TAME, starts_from=start_of(early, "1" * 64)),
    ]
    for models in (two, [two[0], body]):
        portfolio = Portfolio(models)
        rule = Combination(portfolio.weights(equal(portfolio)))
        assert not rule._hidden_starts(_Asked(target(), "best", "tight"))
        assert "models start from it" in rule._revealed.values()
    alone = Combination(Portfolio(two[:1]).weights({"a": 1.0}))
    assert [*alone._hidden_starts(_Asked(target(), "best", "tight"))] == ["run-body"]


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.floats(0.05, 0.5), st.floats(0.8, 2.0), st.floats(0.0, 1.0))
def test_averages_of_forks_never_cost_less_than_their_law(
    prefix: int, own: int, rate: float, sigma: float, epsilon: float
) -> None:
    """Where other records have no gradients, the average keeps every participation: the body's in full, forks' by weight."""
    common: dict[str, Any] = {**TAME, "sampling": rate, "batch": 1000 * rate, "sigma": sigma}
    body = builders.dp_sgd("body", steps=prefix, **common)
    models = [builders.dp_sgd(name, steps=own, **common, starts_from=start_of(body)) for name in "ab"]
    weights = (0.7, 0.3)
    claimed = Combination(Portfolio(models).weights(dict(zip("ab", weights, strict=True)))).guarantee(epsilon=epsilon).delta
    shifts, probs = [0.0], [1.0]
    for count, weight in ((prefix, 1.0), *((own, weight) for weight in weights)):
        coins = [(weight * k, float(binom.pmf(k, count, rate))) for k in range(count + 1)]
        shifts, probs = (
            [shift + more for shift in shifts for more, _ in coins],
            [p * q for p in probs for _, q in coins],
        )
    variance = sigma**2 * (prefix + own * sum(weight**2 for weight in weights))
    assert exact_delta(shifts, probs, variance**0.5, epsilon) <= claimed * (1 + 1e-5) + 1e-9


# --- several releases --------------------------------------------------------------------------------------------------------


def test_prefixes_of_forks_released_one_by_one_count_once() -> None:
    portfolio = forks(3)
    shown = [Exposure.whole([name]) for name in portfolio.names]
    found = Releases(portfolio, shown).guarantee(delta=DELTA).epsilon
    assert found == pytest.approx(steps(2400).epsilon(DELTA), rel=1e-6)
    with_body = Portfolio([*portfolio, BODY])
    again = Releases(with_body, [*shown, Exposure.whole(["body"])]).guarantee(delta=DELTA).epsilon
    assert again == pytest.approx(found, rel=1e-9)


def test_averages_beside_each_other_share_their_prefix() -> None:
    """Two averages of hidden forks of one body: the body once, and each average given it."""
    body = builders.dp_sgd("body", steps=20, **TAME)
    portfolio = Portfolio([builders.dp_sgd(n, steps=8, **TAME, starts_from=start_of(body)) for n in "ab"])
    rules = [build("combination", portfolio.weights({name: 1.0}), noise=0.01) for name in "ab"]
    assert all(isinstance(rule, Combination) for rule in rules)
    together = Releases(portfolio, [], None, tuple(rule for rule in rules if isinstance(rule, Combination)))
    own = [r.with_profile(target(), "best", "tight", with_starts=False)[1] for r in rules if isinstance(r, Combination)]
    expected = Profile.composed([run_profile(body).profile, *own]).epsilon(DELTA)
    assert together.guarantee(delta=DELTA).epsilon == pytest.approx(expected, rel=1e-6)


def test_the_filter_pays_the_prefix_once() -> None:
    portfolio = forks(2)
    models = {model.name: model for model in portfolio}
    by = Filter(8.0, 20.0, 5e-6, 5e-6)
    used = by.total(models, [Charge(Exposure.whole([name])) for name in portfolio.names])
    assert used.divergence == pytest.approx(float(steps(2200).renyi([8.0])[0]), rel=1e-9)  # type: ignore[arg-type]


def test_the_ledger_knows_a_start_by_its_tensors() -> None:
    def entry(model: Model, digest: str | None = None) -> dict[str, Any]:
        contents = {} if digest is None else {"contents": {model.name: digest}}
        return {"names": {model.name: model.name}, "records": {model.name: model.record.as_dict()}, **contents}

    known = KnownModels()
    known.add(entry(BODY, DIGEST), "entry 1")
    known.add(entry(fork("a")), "entry 2")
    with pytest.raises(DependentRuns, match="step 1800 of run 'run-body'"):
        known.add(entry(fork("b", digest="f" * 64)), "entry 3")


def test_a_certificate_shows_no_digest_of_the_start() -> None:
    models = (fork("a"), fork("b"))
    shown = published(models)
    for record in shown.values():
        text = json.dumps(record.as_dict())
        assert DIGEST not in text
        assert "noise-body" not in text
        assert Record.parse(text) == record
    again = Portfolio([Model(name, record) for name, record in shown.items()])
    assert Joint(again.weights(equal(again))).profile() == Joint(Portfolio(models).weights({"a": 0.5, "b": 0.5})).profile()


# --- refusals ----------------------------------------------------------------------------------------------------------------


def test_contradictory_parents_are_refused() -> None:
    with pytest.raises(PortfolioError, match="not the beginning"):
        Portfolio([fork("a"), fork("b", start=sampled("body", 1800, sigma=2.0))])
    with pytest.raises(PortfolioError, match="different tensors"):
        Portfolio([fork("a"), fork("b", digest="1" * 64)])
    with pytest.raises(PortfolioError, match="not the beginning"):
        Portfolio([fork("a"), sampled("body", 900, sigma=3.0)])


def test_the_prefix_must_be_the_stated_step() -> None:
    wrong = {**start_of(BODY), "step": 1700}
    with pytest.raises(RecordError, match="step 1700 of run 'run-body' is said to be the start"):
        sampled("a", 200, starts_from=wrong)


def test_noise_of_the_prefix_must_not_come_back() -> None:
    again = fork("a", noise_fingerprint="noise-body")
    with pytest.raises(DependentRuns, match="noise"):
        run_profile(again)
    with pytest.raises(DependentRuns, match="noise"):
        Selection(Portfolio([again]).weights({"a": 1.0}))


def test_tuning_from_a_private_start_is_refused() -> None:
    with pytest.raises(TargetError, match="private checkpoint"):
        Base.recorded(fork("a"))


def test_records_without_a_start_are_written_as_before() -> None:
    assert "starts_from" not in BODY.record.model_dump_json()
    assert "shard" not in BODY.record.model_dump_json()
    whole = fork("a").record
    assert Record.parse(json.dumps(whole.as_dict())) == whole
    assert replace(fork("a")).own_steps.start is None


# --- what an adversary tried --------------------------------------------------------------------------------------------------


def test_a_model_named_like_a_start_is_counted() -> None:
    """Whoever writes a certificate chooses its names."""
    start = builders.dp_sgd("P", sigma=100.0, steps=10)
    said = {"run": start.run, "step": 10, "mechanism": start.mechanism.model_dump(mode="json")}
    fork = builders.dp_sgd("F", sigma=100.0, steps=5, starts_from=said)
    told = {}
    for name in ("other", f"{start.run}/10"):
        loud = builders.dp_sgd(name, sigma=0.1, steps=5, run="loud", noise_fingerprint="n", sampler_fingerprint="s")
        told[name] = Combination(Portfolio((loud, fork)).weights({"F": 0.5, name: 0.5})).guarantee(delta=1e-5).epsilon
    assert len(set(told.values())) == 1 and told["other"] > 100


def test_what_is_said_of_a_start_is_printed_for_its_forks() -> None:
    start = builders.dp_sgd("P", sigma=4.0, steps=10, left_out=["bn.mean"], others_unchanged=True)
    said = {"run": start.run, "step": 10, "mechanism": start.mechanism.model_dump(mode="json")}
    fork = builders.dp_sgd("F", sigma=4.0, steps=5, starts_from=said)
    further = builders.dp_sgd(
        "G", sigma=4.0, steps=5, starts_from={"run": fork.run, "step": 5, "mechanism": fork.mechanism.model_dump(mode="json")}
    )
    for model in (fork, further):
        printed = "\n".join(Combination(Portfolio([model]).weights({model.name: 1.0})).guarantee(delta=1e-5).assumptions)
        assert f"the record of model '{start.run}/10' was stated by its user" in printed
        assert "no loss was computed with 'bn.mean'" in printed and "are as before it" in printed
        assert f"starts from a private checkpoint, '{start.run}/10'" in printed
    recorded = builders.dp_sgd("F", sigma=4.0, steps=5, starts_from={**said, "source": "recorded"})
    printed = "\n".join(Combination(Portfolio([recorded]).weights({"F": 1.0})).guarantee(delta=1e-5).assumptions)
    assert "was stated by its user" not in printed
