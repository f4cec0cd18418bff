"""Theorem hidden-run where users meet it: commands, plans, certificates, ledgers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dpmerge as library
from dpmerge import Accounting, Ledger, Portfolio
from dpmerge.errors import TargetError
from dpmerge.release import choose, preview
from dpmerge.rules import Combination, compare, least_noise
from tests import builders
from tests.release_builders import DELTA, certificate, dpmerge, on_disk

EVERY_STEP = Accounting(only_release=False)


def convex(name: str, sigma: float = 0.6, **changes: Any) -> Any:
    known = {"steps": 40, "sampling": 0.02, "batch": 20.0, "smoothness": 0.2, "convex": "glm", **changes}
    return builders.dp_sgd(name, sigma=sigma, **known)


@pytest.fixture
def portfolio(tmp_path: Path) -> Portfolio:
    return on_disk(tmp_path / "runs", convex("a"), convex("b", 3.0))


def answer(*arguments: object) -> dict[str, Any]:
    result = dpmerge(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_one_model_is_charged_for_its_last_iterate_unless_more_is_published(portfolio: Portfolio, tmp_path: Path) -> None:
    asked = ["account", tmp_path / "runs", "--rule", "combination", "--weights", "a=1", "--delta", DELTA]
    last, every = answer(*asked), answer(*asked, "--other-releases")
    assert (last["theorem"], every["theorem"]) == ("hidden-run", "single-run")
    assert last["epsilon"] < 0.9 * every["epsilon"]
    assert last["details"]["once_more"] == pytest.approx(every["epsilon"])
    assert {"noise", "absorption", "window", "atoms"} <= set(last["details"])
    assert any("nothing of these runs but this release" in text for text in last["assumptions"])
    assert not any("nothing of these runs but this release" in text for text in every["assumptions"])
    printed = dpmerge(*asked).stdout
    assert "this holds while nothing else of these runs is released" in printed
    assert f"{every['epsilon']:.3f}"[:4] in printed.split("counts whole")[1]


def test_noise_at_release_buys_privacy_and_the_least_is_found(portfolio: Portfolio, tmp_path: Path) -> None:
    asked = ["account", tmp_path / "runs", "--rule", "combination", "--weights", "a=0.5,b=0.5", "--delta", DELTA]
    bare, noisy = answer(*asked), answer(*asked, "--noise", 0.02)
    assert noisy["epsilon"] < bare["epsilon"]
    assert noisy["details"]["noise"] == 0.02
    assert "noise at release: 0.02" in dpmerge(*asked, "--noise", 0.02).stdout
    solved = answer(*asked, "--epsilon", bare["epsilon"] / 3, "--solve", "noise")
    noise = solved["details"]["noise"]
    assert solved["epsilon"] <= bare["epsilon"] / 3 < answer(*asked, "--noise", 0.99 * noise)["epsilon"]
    weights = portfolio.weights({"a": 0.5, "b": 0.5})
    assert least_noise(weights, epsilon=100.0, delta=DELTA)[0] == 0.0


@pytest.mark.parametrize(
    "options,words",
    [
        (["--solve", "noise", "--delta", DELTA], "needs both --epsilon and --delta"),
        (["--solve", "noise", "--delta", DELTA, "--epsilon", 1, "--noise", 1], "without --noise"),
        (["--noise", -1, "--delta", DELTA], "it is 0, or from 1e-100 to 1e+100"),
        (["--noise", "inf", "--delta", DELTA], "it is 0, or from 1e-100 to 1e+100"),
    ],
)
def test_questions_about_noise_without_a_meaning_are_refused(
    portfolio: Portfolio, tmp_path: Path, options: list[object], words: str
) -> None:
    result = dpmerge("account", tmp_path / "runs", "--rule", "combination", "--weights", "a=1", *options)
    assert result.exit_code != 0
    assert words in str(result.exception)


def test_weights_chosen_by_looking_are_refused_before_their_noise_is_solved_for(portfolio: Portfolio, tmp_path: Path) -> None:
    asked = ["account", tmp_path / "runs", "--rule", "combination", "--weights", "a=1", "--delta", DELTA, "--epsilon", 1]
    result = dpmerge(*asked, "--solve", "noise", "--provenance", "after-looking")
    assert "chosen after looking at the models are not covered by" in str(result.exception)


@pytest.mark.parametrize("epsilon", [1e-4, 0.0])
def test_a_target_near_nothing_has_its_noise(epsilon: float) -> None:
    """Before, a grid that was too coarse for so much noise ended in a refusal, with a reason that was not true."""
    weights = builders.portfolio(convex("a", steps=100)).weights({"a": 1.0})
    noise, found = least_noise(weights, epsilon=epsilon, delta=DELTA)
    assert found.epsilon <= epsilon
    assert noise < 1e9


def test_beside_much_noise_of_the_training_a_little_more_is_no_reason_to_give_up() -> None:
    long = convex("a", 1.0, steps=20_000, sampling=0.002)
    noise, found = least_noise(builders.portfolio(long).weights({"a": 1.0}), epsilon=0.5, delta=DELTA)
    assert found.epsilon <= 0.5 and noise > 0


def test_a_decay_that_overturns_the_parameters_is_accounted_for() -> None:
    phases = [{"steps": 5, "learning_rate": 1.0, "weight_decay": 1.5}]
    flat = convex("a", phases=phases, smoothness=0.0)
    found = library.combination(builders.portfolio(flat), {"a": 1.0}, noise=1.0).guarantee(delta=DELTA)
    assert found.epsilon < 100


def test_noise_belongs_to_averages(portfolio: Portfolio, tmp_path: Path) -> None:
    for rule in ("joint", "selection"):
        asked = ["account", tmp_path / "runs", "--rule", rule, "--weights", "a=1", "--delta", DELTA, "--noise", 1]
        assert "only linear combination" in str(dpmerge(*asked).exception)


def test_where_nothing_is_known_of_gradients_noise_buys_nothing_and_it_is_said() -> None:
    weights = builders.portfolio(convex("a", smoothness=None, convex=None)).weights({"a": 1.0})
    with pytest.raises(TargetError, match=r"no noise at release gives ε = 0.5 here.*convex models trained by plain SGD"):
        least_noise(weights, epsilon=0.5, delta=DELTA)


def test_a_comparison_shows_every_step_and_the_last_iterate(portfolio: Portfolio) -> None:
    rows = {row.label: row.guarantee for row in compare(portfolio, {"a": 0.5, "b": 0.5}, delta=DELTA, noise=0.01)}
    every, last = rows["linear combination (proved)"], rows["linear combination (last iterate only)"]
    assert every is not None and last is not None
    assert last.theorem == "hidden-run" != every.theorem
    assert last.epsilon < every.epsilon
    without = compare(portfolio, {"a": 0.5, "b": 0.5}, delta=DELTA, accounting=EVERY_STEP)
    assert "linear combination (last iterate only)" not in [row.label for row in without]


def test_a_comparison_has_a_row_for_noise_and_says_where_it_hides_nothing(portfolio: Portfolio, tmp_path: Path) -> None:
    half = {"a": 0.5, "b": 0.5}
    rows = {row.label: row for row in compare(portfolio, half, delta=DELTA, noise=0.01)}
    noised, last = (rows[f"linear combination ({what})"].guarantee for what in ("noise 0.01 at release", "last iterate only"))
    assert noised is not None and last is not None
    assert noised.details["noise"] == 0.01 and last.details["noise"] == 0
    assert noised.epsilon == library.combination(portfolio, half, noise=0.01).guarantee(delta=DELTA).epsilon < last.epsilon
    published = {row.label: row for row in compare(portfolio, half, delta=DELTA, noise=0.01, accounting=EVERY_STEP)}
    assert "hides nothing" in str(published["linear combination (noise 0.01 at release)"].refusal)
    asked = ["compare", tmp_path / "runs", "--weights", "a=0.5,b=0.5", "--delta", DELTA]
    assert "hides nothing once" in dpmerge(*asked, "--noise", 0.01, "--other-releases").stdout
    target = 0.5 * last.epsilon
    (met,) = (row for row in answer(*asked, "--epsilon", target)["rows"] if f"for ε ≤ {target:g}" in row["label"])
    assert met["epsilon"] <= target and met["details"]["noise"] > 0
    refused = answer(*asked, "--epsilon", target, "--other-releases")["rows"]
    assert any("hides nothing" in str(row["refused"]) for row in refused if "noise for ε" in row["label"])


def test_each_model_alone_has_both_numbers(portfolio: Portfolio, tmp_path: Path) -> None:
    models = answer("account", tmp_path / "runs", "--alone", "--delta", DELTA)["models"]
    for entry in models:
        own = library.combination(portfolio, {entry["model"]: 1.0}).guarantee(delta=DELTA)
        assert entry["last_iterate"] == pytest.approx(own.epsilon)
        assert entry["last_iterate"] <= entry["pld"] * (1 + 1e-9)
        assert entry["last_iterate_assumptions"] == list(own.assumptions)
    printed = dpmerge("account", tmp_path / "runs", "--alone", "--delta", DELTA).stdout
    assert "last only" in printed
    assert any("for last only" in line and "nothing of these runs but this release" in line for line in printed.splitlines())


def test_a_planned_model_is_released_certified_and_counted_until_the_second(portfolio: Portfolio, tmp_path: Path) -> None:
    """The ledger counts it as it is while it is alone, and the run whole from the second release on."""
    ledger = tmp_path / "ledger.db"
    Ledger.create(ledger, dataset=builders.DATASET, adjacency="add-remove", epsilon=50.0, delta=DELTA)
    plan = library.plan(portfolio, epsilon=40.0, delta=DELTA, rules=("single",), ledger=ledger)
    (single,) = [option for option in plan.options if option.weights.as_dict()["a"] == 1]
    assert single.guarantee is not None and single.guarantee.theorem == "hidden-run"
    seen = preview(portfolio, choose(portfolio, "combination", weights=single.weights, delta=DELTA), tmp_path / "out")
    assert any("this holds while nothing else" in note for note in seen.choice.guarantee.notes)
    released = single.release(tmp_path / "out")
    assert any("this holds while nothing else" in note for note in released.notes)
    held = certificate(tmp_path / "out")
    assert held["rule"]["last_only"] is True
    assert held["guarantee"]["theorem"] == "hidden-run"
    assert held["ledger"]["epsilon"] == pytest.approx(single.epsilon, rel=1e-6)
    verdict = library.verify(tmp_path / "out", portfolio=portfolio, ledger=ledger)
    assert verdict.code == 0, verdict
    again = library.merge(portfolio, {"a": 1.0}, out=tmp_path / "again", rule="selection", delta=DELTA, ledger=ledger)
    whole = library.joint(portfolio, {"a": 1.0}, provenance="a-priori").guarantee(delta=DELTA).epsilon
    assert again.certificate.ledger is not None
    assert again.certificate.ledger.epsilon == pytest.approx(whole, rel=1e-4)


def test_a_choice_that_does_not_rest_on_it_does_not_claim_it(portfolio: Portfolio) -> None:
    weights = portfolio.weights({"a": 1.0})
    assert choose(portfolio, "combination", weights=weights, delta=DELTA).form.last_only
    assert choose(portfolio, "combination", weights=weights, delta=DELTA, accounting=EVERY_STEP).form.last_only is None


def test_a_certificate_that_claims_it_for_a_draw_is_refused(portfolio: Portfolio) -> None:
    form = choose(portfolio, "selection", weights=portfolio.weights({"a": 1.0}), delta=DELTA).form
    told = form.model_copy(update={"last_only": True}).contradictions
    assert told["the last iterate only, under a rule that does not average"]


def test_delta_at_the_epsilon_of_a_delta() -> None:
    """With large δ more may be given up than with a small one: whoever asks for δ gets what that buys too."""
    model = convex("a", 1.2, steps=15, eta=0.11, sampling=0.2, batch=287.4, clip=7.2112, smoothness=13.0)
    rule = Combination(Portfolio([model]).weights({"a": 1.0}), noise=0.028)
    found = rule.guarantee(delta=1e-4)
    assert found.theorem == "hidden-run"
    assert rule.guarantee(epsilon=found.epsilon).delta <= 1e-4 * (1 + 1e-9)
