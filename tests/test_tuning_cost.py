"""The price of tuning: laws of the best of K against sums and draws, bounds against brute force, and against each other."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import gammaln, logsumexp, ndtr
from typer.testing import CliRunner

from dpmerge import example_portfolio
from dpmerge.cli import app, main
from dpmerge.errors import TargetError
from dpmerge.profiles import ORDERS, GaussianLaw, Profile
from dpmerge.profiles.laws import RenyiLaw
from dpmerge.rules import (
    PROFILE,
    RENYI,
    Base,
    Calibration,
    Poisson,
    Trials,
    pairs_of,
    renyi_epsilon,
    trials,
    tuning_cost,
)
from dpmerge.rules.tuning import calibrated_mu, own_score_epsilon, worst_score_epsilon
from dpmerge.rules.tuning_bounds import GaussianPair, ProfilePair, _Cells, profile_epsilon, tuned_renyi
from dpmerge.rules.tuning_trials import TruncatedNegativeBinomial
from dpmerge_lab.experiments.results import Options, write
from dpmerge_lab.experiments.tuning_cost import FIGURE_1, tuning_cost_figure
from tests.test_records import RECORD

Floats = npt.NDArray[np.float64]
DELTA = 1e-5
LAWS = [
    Poisson(0.3),
    Poisson(7.0),
    TruncatedNegativeBinomial(1.0, 1.0),
    TruncatedNegativeBinomial(6.0, 1.0),
    TruncatedNegativeBinomial(6.0, 0.0),
    TruncatedNegativeBinomial(6.0, -0.5),
    TruncatedNegativeBinomial(6.0, 3.5),
]
some_trials = st.one_of(
    st.floats(0.2, 300).map(Poisson),
    st.builds(TruncatedNegativeBinomial, st.floats(1, 300), st.sampled_from([-0.7, -0.5, 0.0, 0.4, 1.0, 3.0, 10.0])),
)


def pmf(law: Trials, most: int = 4000) -> Floats:
    """P(K = k) for k = 0 … most, from the definitions (Papernot and Steinke 2022, Def. 1)."""
    k = np.arange(1, most + 1)
    if isinstance(law, Poisson):
        return np.asarray(np.exp(np.arange(most + 1) * math.log(law.mean) - law.mean - gammaln(np.arange(most + 1) + 1.0)))
    assert isinstance(law, TruncatedNegativeBinomial)
    gamma, eta = math.exp(law.log_gamma), law.shape
    if gamma == 1:
        return np.array([0.0, 1.0])
    if eta == 0:
        return np.concatenate(([0.0], (1 - gamma) ** k / (k * math.log(1 / gamma))))
    rising = np.cumprod((np.arange(most) + eta) / k)
    return np.concatenate(([0.0], (1 - gamma) ** k / (gamma**-eta - 1) * rising))


def price(epsilon: float, mean: float, law: str, calibrate: Calibration = "exact", shape: float | None = None) -> Any:
    return tuning_cost(Base.calibrated(epsilon, DELTA, calibrate), trials(law, mean, shape), DELTA)  # type: ignore[arg-type]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_generating_functions_are_those_of_the_laws(law: Trials) -> None:
    probabilities = pmf(law)
    k = np.arange(len(probabilities))
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert probabilities @ k == pytest.approx(law.mean, rel=1e-9)
    assert probabilities[0] == pytest.approx(law.nothing)
    for x, p in ((0.0, 0.3), (0.2, 0.5), (0.01, 1e-4), (0.6, 0.4)):
        mass = probabilities @ ((1 - x) ** k - (1 - x - p) ** k)
        assert np.exp(law.log_mass(np.array(x), np.array(p))) == pytest.approx(mass, rel=1e-8)
        derivative = probabilities[1:] @ (k[1:] * (1 - x) ** (k[1:] - 1.0))
        assert law.mean * np.exp(law.log_decay(np.array(x))) == pytest.approx(derivative, rel=1e-8)


def test_gamma_follows_from_the_mean() -> None:
    assert trials("geometric", 72).as_dict()["gamma"] == pytest.approx(1 / 72, rel=1e-12)
    assert trials("tnb", 72, 1.0) == trials("geometric", 72)
    assert trials("tnb", 72, 0.0) == trials("logarithmic", 72)
    for shape in (-0.9, -0.5, 1e-9, 0.3, 40.0):
        law = TruncatedNegativeBinomial(33.0, shape)
        gamma = math.exp(law.log_gamma)
        assert shape * (1 / gamma - 1) / -math.expm1(shape * law.log_gamma) == pytest.approx(33, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("poisson", 0.0), "above 0"),
        (("poisson", math.inf), "finite"),
        (("geometric", 0.5), "at least 1"),
        (("logarithmic", math.nan), "at least 1"),
        (("geometric", 5.0, 1.0), "shape belongs to distribution tnb"),
        (("tnb", 5.0), "needs a shape"),
        (("tnb", 5.0, -1.0), "above −1"),
        (("tnb", 5.0, -1 + 1e-9), "no γ"),
        (("uniform", 5.0), "there are poisson, geometric"),
    ],
)
def test_laws_that_do_not_exist_are_refused(arguments: tuple[Any, ...], told: str) -> None:
    with pytest.raises(TargetError, match=told):
        trials(*arguments)


@pytest.mark.parametrize("name", ["poisson", "geometric", "logarithmic"])
def test_the_best_of_k_falls_where_the_law_says(name: str) -> None:
    generator = np.random.default_rng(20220425)
    law, draws = trials(name, 8.0), 200_000  # type: ignore[arg-type]
    if isinstance(law, TruncatedNegativeBinomial):
        gamma = math.exp(law.log_gamma)
        counts = generator.geometric(gamma, draws) if name == "geometric" else generator.logseries(1 - gamma, draws)
    else:
        counts = generator.poisson(8.0, draws)
    owner = np.repeat(np.arange(draws), counts)
    outcomes = generator.standard_normal(owner.size)
    best = np.full(draws, -np.inf)
    np.maximum.at(best, owner, outcomes)
    for low, high in ((-1.0, 0.5), (0.5, 1.5), (1.5, np.inf)):
        expected = math.exp(law.log_mass(ndtr(np.array(-high)), ndtr(np.array(high)) - ndtr(np.array(low))))
        measured = float(np.mean((best > low) & (best <= high)))
        assert abs(measured - expected) < 5 * math.sqrt(expected * (1 - expected) / draws)
    assert np.mean(np.isinf(best)) == pytest.approx(law.nothing, abs=5 * math.sqrt(law.nothing / draws) + 1e-12)


class DiscretePair:
    """Any two laws on finitely many outcomes, in the order of their scores, the worst first."""

    reach = 20.0

    def __init__(self, here: Floats, there: Floats) -> None:
        self.here, self.there = here, there

    def hockey_stick(self, epsilons: Floats) -> Floats:
        return np.asarray(np.maximum(0.0, self.here - np.multiply.outer(np.exp(epsilons), self.there)).sum(axis=-1))

    def largest(self, share: Floats) -> Floats:
        """By Neyman and Pearson: outcomes in the order of the ratio, the last one with a probability."""
        order = np.argsort(self.here / self.there)
        return np.asarray(np.interp(share, np.cumsum([0.0, *self.here[order]]), np.cumsum([0.0, *self.there[order]])))

    def best(self, law: Trials) -> tuple[Floats, Floats]:
        """The logarithms of the two laws of the best of K, exactly."""
        here, there = (law.log_mass(np.maximum(0.0, 1 - np.cumsum(one)), one) for one in (self.here, self.there))
        return here, there


def random_pair(seed: int, outcomes: int, spread: float) -> DiscretePair:
    generator = np.random.default_rng(seed)
    here, there = (np.exp(spread * generator.standard_normal(outcomes)) for _ in range(2))
    return DiscretePair(here / here.sum(), there / there.sum())


@settings(max_examples=60, deadline=None)
@given(some_trials, st.integers(0, 10**6), st.integers(2, 7), st.floats(0.1, 2.5), st.floats(0, 5), st.floats(-3, 5))
def test_no_discrete_mechanism_in_any_order_exceeds_the_curve_bound(
    law: Trials, seed: int, outcomes: int, spread: float, epsilon: float, charge: float
) -> None:
    pair = random_pair(seed, outcomes, spread)
    here, there = pair.best(law)
    exact = float(np.maximum(0.0, np.exp(here) - np.exp(epsilon + there)).sum())
    cells = _Cells.of(pair, law, 1e-6, 300)
    assert cells.bound(epsilon).delta(epsilon) >= exact * (1 - 1e-9)
    assert cells.bound(epsilon + 1, charge).delta(epsilon) >= exact * (1 - 1e-9)


@pytest.mark.parametrize("law", [Poisson(30.0), TruncatedNegativeBinomial(30.0, 1.0)], ids=str)
@pytest.mark.parametrize("charge", [None, 2.0])
def test_cells_err_upwards(law: Trials, charge: float | None) -> None:
    bounds = [
        _Cells.of(GaussianPair(0.5), law, DELTA, count).bound(3.0, charge).delta(3.0) for count in (20, 200, 2000, 20_000)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 1.1 * bounds[-1]


@settings(max_examples=60, deadline=None)
@given(some_trials, st.integers(0, 10**6), st.integers(2, 7), st.floats(0.1, 1.5))
def test_no_discrete_mechanism_in_any_order_exceeds_the_renyi_bound(
    law: Trials, seed: int, outcomes: int, spread: float
) -> None:
    pair = random_pair(seed, outcomes, spread)

    def divergence(log_one: Floats, log_other: Floats, orders: Floats) -> Floats:
        exponents = np.multiply.outer(orders, log_one) + np.multiply.outer(1 - orders, log_other)
        return np.asarray(logsumexp(exponents, axis=1) / (orders - 1))

    def renyi(orders: Floats) -> Floats:
        here, there = np.log(pair.here), np.log(pair.there)
        return np.maximum(divergence(here, there, orders), divergence(there, here, orders))

    known: Any = SimpleNamespace(renyi=renyi, stated_orders=None)
    orders = np.array([1.05, 1.5, 2.0, 4.0, 9.0, 30.0])
    bound = tuned_renyi(known, (pair, DiscretePair(pair.there, pair.here)), law, orders)
    nothing = [math.log(law.nothing)] if law.nothing else []
    here, there = (np.append(one, nothing) for one in pair.best(law))
    assert np.all(divergence(here, there, orders) <= bound + 1e-9)


def test_papernot_and_steinkes_poisson_theorem_needs_the_outcome_of_no_run() -> None:
    """Without e^{−m} the bound would be negative for few trials, which no divergence is."""
    profile = Profile.of([(GaussianLaw(0.3), 1)])
    orders = np.array([2.0, 4.0])
    hatted = GaussianPair(0.3).hockey_stick(np.log1p(1 / (orders - 1)))
    assert np.all(profile.renyi(orders) + 0.1 * hatted + math.log(0.1) / (orders - 1) < 0)
    assert np.all(tuned_renyi(profile, pairs_of(profile), Poisson(0.1), orders) >= 0)


@pytest.mark.uncounted  # runs the lines of other tests, at length
@settings(max_examples=12, deadline=None)
@given(some_trials, st.floats(0.05, 4.0), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_the_bracket_is_a_bracket(law: Trials, mu: float, delta: float) -> None:
    cost = tuning_cost(Base.gaussian(mu), law, delta)
    assert cost.lower is not None and cost.lower_own_score is not None
    assert cost.lower_own_score <= cost.lower <= cost.epsilon == min(cost.bounds.values())


@pytest.mark.uncounted  # runs the lines of other tests, at length
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_for_at_least_one_trial_the_price_is_known(epsilon: float) -> None:
    """docs/theory.md §7: the worst score found comes within 2 % of the curve bound."""
    for law, shape in (("geometric", None), ("logarithmic", None), ("tnb", -0.5)):
        for mean in (72, 432):
            cost = price(epsilon, mean, law, shape=shape)
            assert cost.lower <= cost.epsilon <= 1.02 * cost.lower


@pytest.mark.uncounted  # runs the lines of other tests, at length
@pytest.mark.parametrize(("law", "shape"), [("poisson", None), ("geometric", None), ("logarithmic", None), ("tnb", -0.5)])
def test_prices_grow_with_trials_and_with_epsilon(law: str, shape: float | None) -> None:
    over_trials = [price(1.0, mean, law, shape=shape) for mean in (1, 2, 8, 40, 300)]
    over_epsilon = [price(epsilon, 30, law, shape=shape) for epsilon in (0.3, 1.0, 2.5, 8.0)]
    for some in (over_trials, over_epsilon):
        for name in (PROFILE, RENYI):
            values = [one.bounds[name] for one in some]
            assert values == sorted(values)
        lowers = [one.lower for one in some]
        assert lowers == sorted(lowers)


@pytest.mark.parametrize("law", ["geometric", "logarithmic"])
def test_one_trial_costs_what_a_run_costs(law: str) -> None:
    cost = price(1.0, 1, law)
    assert cost.epsilon == pytest.approx(1, abs=1e-6)
    assert cost.lower == pytest.approx(1, abs=1e-4)
    assert cost.bounds[RENYI] == pytest.approx(Base.calibrated(1.0, DELTA).run.profile.epsilon_by_renyi(DELTA), abs=1e-9)


@pytest.mark.uncounted  # runs the lines of other tests, at length
@pytest.mark.parametrize(
    ("claim", "own", "geometric"),
    list(zip(FIGURE_1, (4.64, 8.14, 41.5, 156), (2.61, 2.97, 16.07, 18.33), strict=True)),
)
def test_figure_1_is_geometric_and_not_poisson(claim: Any, own: float, geometric: float) -> None:
    poisson = {how: price(claim.epsilon, claim.trials, "poisson", how) for how in ("exact", "rdp")}
    assert own <= poisson["exact"].lower_own_score < own * 1.003
    by_rdp = price(claim.epsilon, claim.trials, "geometric", "rdp").bounds[RENYI]
    assert geometric <= by_rdp < geometric + 0.01
    assert math.ceil(by_rdp * 100) / 100 == claim.reported
    for cost in poisson.values():
        assert cost.lower > cost.lower_own_score > claim.reported


def test_reference_values_of_the_theory() -> None:
    """docs/theory.md §7, noise calibrated exactly: at least and at most."""
    rows = {(1.0, 72): (5.02, 5.62, 1.97, 1.99), (8.0, 432): (160.7, 165.5, 16.2, 16.3)}
    for (epsilon, mean), (low, high, geometric_low, geometric_high) in rows.items():
        poisson, geometric = price(epsilon, mean, "poisson"), price(epsilon, mean, "geometric")
        assert low <= poisson.lower < poisson.epsilon <= high
        assert geometric_low <= geometric.lower < geometric.epsilon <= geometric_high


@pytest.mark.parametrize("law", [Poisson(20.0), Poisson(3.0), TruncatedNegativeBinomial(50.0, 1.0)], ids=str)
def test_own_outcomes_as_scores_have_the_exact_curve(law: Trials) -> None:
    """The lower bound by intervals is the exact one: the hockey-stick by quadrature has the same ε at δ."""
    mu, delta = 0.8, 1e-4
    y = np.linspace(-9, 9, 200_001)

    def density(centre: float, sign: int) -> Floats:
        weight = law.mean * np.exp(law.log_decay(ndtr(sign * (y - centre))))
        return np.asarray(weight * np.exp(-((y - centre) ** 2) / 2) / math.sqrt(2 * math.pi))

    def exact(epsilon: float) -> float:
        return max(
            float(np.sum(np.maximum(0, density(one, sign) - math.exp(epsilon) * density(other, sign))) * (y[1] - y[0]))
            for sign in (1, -1)
            for one, other in ((mu, 0.0), (0.0, mu))
        )

    found = own_score_epsilon(mu, law, delta)
    assert exact(found) >= delta * (1 - 1e-3)
    assert exact(found + 2e-3) <= delta


def test_the_worst_score_is_an_event_of_a_real_mechanism() -> None:
    """By drawing: runs below a are best, then those above b; "the best is above b" is as likely as claimed on both datasets."""
    mu, law, delta, draws = 1.0, trials("geometric", 10), 0.02, 200_000
    generator = np.random.default_rng(7)
    places = [(-1.0, 1.0), (-0.5, 1.75), (0.0, 2.5), (0.25, 3.0)]
    claimed: dict[tuple[float, float], list[float]] = {place: [] for place in places}
    for centre in (mu, 0.0):
        owner = np.repeat(np.arange(draws), generator.geometric(0.1, draws))
        outcomes = centre + generator.standard_normal(owner.size)
        smallest, largest = np.full(draws, np.inf), np.full(draws, -np.inf)
        np.minimum.at(smallest, owner, outcomes)
        np.maximum.at(largest, owner, outcomes)
        for low, high in places:
            expected = math.exp(law.log_mass(ndtr(np.array(low - centre)), ndtr(np.array(centre - high))))
            measured = float(np.mean((smallest >= low) & (largest > high)))
            assert abs(measured - expected) < 5 * math.sqrt(expected / draws)
            claimed[low, high].append(expected)
    event = max(math.log((here - delta) / there) for here, there in claimed.values() if here > delta)
    assert own_score_epsilon(mu, law, delta) < event <= worst_score_epsilon(mu, law, delta)


@pytest.mark.uncounted  # runs the lines of other tests, at length
@pytest.mark.parametrize("mean", [2, 10, 72])
def test_against_dp_accounting(mean: int) -> None:
    """Equal for the negative binomial; for Poisson its δ̂ from Rényi divergences is looser."""
    dp_event = pytest.importorskip("dp_accounting.dp_event")
    rdp = pytest.importorskip("dp_accounting.rdp")
    base = Base.calibrated(1.0, DELTA, "rdp").run.profile
    assert base.mu is not None
    for law, shape in ((Poisson(mean), math.inf), (trials("geometric", mean), 1), (trials("tnb", mean, 2.5), 2.5)):
        accountant = rdp.RdpAccountant(ORDERS.tolist())
        accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1 / base.mu), mean, shape))
        theirs = accountant.get_epsilon(DELTA)
        ours = renyi_epsilon(base, pairs_of(base), law, DELTA)
        if shape < math.inf:
            assert ours == pytest.approx(theirs, rel=1e-6)
        else:
            assert ours < theirs
        assert profile_epsilon(GaussianPair(base.mu), law, DELTA, ours) < ours


@pytest.mark.parametrize("by", ["exact", "rdp"])
def test_calibrated_noise_is_just_enough(by: Calibration) -> None:
    for epsilon in (0.1, 1.0, 8.0, 100.0):
        profile = Profile.of([(GaussianLaw(calibrated_mu(epsilon, DELTA, by)), 1)])
        found = profile.epsilon(DELTA) if by == "exact" else profile.epsilon_by_renyi(DELTA)
        assert found == pytest.approx(epsilon, rel=1e-6)
    assert 1 / calibrated_mu(1.0, DELTA, "exact") == pytest.approx(3.7306, abs=1e-4)


def test_any_profile_is_priced_like_the_gaussian_it_is() -> None:
    """The tabulated curve of a Gaussian gives no less, and little more, than its closed form."""
    profile = Profile.of([(GaussianLaw(0.7), 1)])
    law = trials("geometric", 30)
    closed = profile_epsilon(GaussianPair(0.7), law, DELTA, 5.0)
    tabulated = profile_epsilon(ProfilePair(profile, "remove"), law, DELTA, 5.0)
    assert closed * (1 - 1e-6) <= tabulated <= closed * 1.005


def test_a_renyi_curve_alone_has_a_price() -> None:
    orders = tuple(float(order) for order in range(2, 65))
    profile = Profile.of([(RenyiLaw(orders, tuple(0.02 * order for order in orders)), 1)])
    pairs = pairs_of(profile)
    law = trials("geometric", 20)
    gaussian = profile_epsilon(GaussianPair(0.2), law, DELTA, 5.0)
    assert max(profile_epsilon(pair, law, DELTA, 5.0) for pair in pairs) > gaussian


@pytest.fixture
def portfolio(tmp_path: Path) -> Path:
    """One run of every kind."""
    pair = {"kind": "approx-dp", "run": "pair", "noise_fingerprint": None, "epsilon": 1.0, "delta": 1e-7}
    gaussian = {"kind": "gaussian", "run": "gauss", "noise_fingerprint": None, "sensitivity": 1.0, "noise_std": 2.0}
    for name, mechanism in {"pair": pair, "gauss": gaussian}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps({**RECORD, "mechanism": mechanism}))
    return tmp_path


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["account", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_command_prints_bracket_theorem_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--run-epsilon", "1", "--delta", "1e-5", "--trials", "72", "--tuning")
    found = run(*common, "geometric", "--calibrate", "rdp")
    assert found["lower"] < found["epsilon"] == found["bounds"]["tuning-profile"] < found["bounds"]["tuning-rdp"]
    assert found["theorem"] == "tuning-profile" and found["standing"] == "proved"
    assert any("Gaussian mechanism" in text for text in found["assumptions"])
    assert found["base"]["calibrate"] == "rdp" and found["trials"]["gamma"] == pytest.approx(1 / 72)
    text = CliRunner().invoke(app, ["account", *common, "poisson"], catch_exceptions=False).stdout
    for told in ("(5.6", "no theorem can guarantee less than ε = 5.02", "is not published", "no run is drawn"):
        assert told in text


def test_command_takes_one_run_from_a_record(portfolio: Path) -> None:
    common = ("--delta", "1e-5", "--trials", "20", "--tuning", "geometric")
    recorded = run(str(portfolio), "--model", "gauss", *common)
    stated = run("--run-noise", "2", *common)
    assert recorded["epsilon"] == pytest.approx(stated["epsilon"]) == pytest.approx(run("--run-mu", "0.5", *common)["epsilon"])
    assert recorded["lower"] == pytest.approx(stated["lower"])
    pair = run(str(portfolio), "--model", "pair", *common)
    assert 1 < pair["epsilon"] <= 3 + 1e-3, "(2+η)ε for a pure ε, with 20 · 1e-7 of δ spent"
    assert pair["lower"] is None and pair["bounds"]["tuning-rdp"] == math.inf
    none = run(str(portfolio), "--model", "pair", *common, "--delta", "1e-6")
    assert none["epsilon"] == math.inf, "δ is below 20 · 1e-7"


def test_command_prices_a_sampled_run() -> None:
    found = run(str(example_portfolio()), "--model", "mnist-c1-s2", "--delta", "1e-5", "--trials", "10", "--tuning", "poisson")
    assert 0.2043 < found["epsilon"] < found["bounds"]["tuning-rdp"]
    assert found["alone"] == pytest.approx(0.2043, abs=1e-3)
    assert any("mnist-c1-s2" in text for text in found["assumptions"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "describe each run in one way"),
        (("--run-epsilon", "1", "--run-mu", "1"), "describe each run in one way"),
        (("--run-mu", "1", "--calibrate", "rdp"), "require --run-epsilon"),
        (("--run-mu", "1", "--model", "a"), "require a portfolio"),
        (("--run-mu", "31"), "must lie in (0, 30]"),
        (("--run-mu", "nan"), "must lie in (0, 30]"),
        (("--run-noise", "0"), "above 0"),
        (("--run-epsilon", "-1"), "ε above 0"),
        (("--run-epsilon", "5000"), "no Gaussian mechanism"),
        (("--run-epsilon", "1", "--shape", "2"), "belongs to distribution tnb"),
        (("--run-epsilon", "1", "--run-delta", "1.5"), "strictly between 0 and 1"),
        ((str(example_portfolio()),), "choose one with --model"),
        ((str(example_portfolio()), "--model", "none"), "no model named 'none'"),
        (("no-such-folder", "--model", "a"), "no such folder"),
    ],
)
def test_refusals_are_one_line(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["--delta", "1e-5", "--trials", "9", "--tuning", "geometric"]
    monkeypatch.setattr(sys, "argv", ["dpmerge", "account", *arguments, *common])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and told in lines[0]


@pytest.mark.uncounted  # runs the lines of other tests, at length
@pytest.mark.uncounted  # of the laboratory
def test_the_experiment_contradicts_the_papers_caption(tmp_path: Path) -> None:
    result = tuning_cost_figure(Options(quick=True, jobs=1))
    for row in result.numbers["the paper's numbers"]:
        assert row["impossible for Poisson trials"] is True
        assert 0 <= row["difference to geometric"] < 0.01
        assert row["geometric, at most"]["rdp"] < row["paper"]
    picture = result.pictures["figure-1"]
    assert "Poisson" in picture["warning"] and len(picture["panels"]) == 4
    paths = write(result, tmp_path)
    assert [path.suffix for path in paths] == [".json", ".png"]
