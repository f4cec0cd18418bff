"""What releases count for in a ledger, and what its budget refuses."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import BudgetExceeded, DependentRuns, PortfolioError
from dpmerge.records import Model, Portfolio, Weights
from dpmerge.release import choose, release, release_together, what_fits
from dpmerge.release.account import Account
from dpmerge.release.entries import PendingEntry
from dpmerge.release.forms import ValidationForm
from dpmerge.rules import Accounting, Exposure, Joint, Releases, Selection, Tempered
from tests import builders
from tests.ledger_builders import PRECISE, THREE, drawn, joint, new, planned, total, written
from tests.ledger_workers import DELTA


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# --- what counts for how much -----------------------------------------------------------------------------------------


def test_draws_cost_the_union_of_the_models_drawn(tmp_path: Path, file: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 0.25, "c": 0.75}))
    made = [release(portfolio, choice, tmp_path / f"out{i}", ledger=ledger) for i in range(3)]
    expected = [drawn(*[choice.weights] * count) for count in (1, 2, 3)]
    totals = [entry.content["total"]["epsilon"] for entry in ledger.history() if entry.kind == "release"]
    assert totals == pytest.approx(expected, rel=PRECISE)
    assert totals[0] == pytest.approx(choice.guarantee.epsilon, rel=PRECISE)
    assert totals[0] < totals[1] < totals[2] < joint("b", "c")
    assert [one.certificate.ledger.epsilon for one in made if one.certificate.ledger] == totals
    kinds = [(entry.kind, entry.content.get("of")) for entry in ledger.history()]
    assert kinds == [
        ("release", None),
        ("completed", 1),
        ("release", None),
        ("completed", 3),
        ("release", None),
        ("completed", 5),
    ]
    assert ledger.history()[1].content["certificates"] == [made[0].certificate.sha256]
    assert Account(ledger.budget, ledger.history()).delta_spent() == pytest.approx(
        Releases(THREE, [Exposure.drawn(THREE.weights({"b": 0.25, "c": 0.75}))] * 3).guarantee(epsilon=30.0).delta, rel=1e-6
    )


def test_an_average_of_stored_numbers_counts_as_joint_release_alone_and_with_another(tmp_path: Path, file: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    half = portfolio.weights({"b": 0.5, "c": 0.5})
    choice = choose(portfolio, "combination", delta=DELTA, weights=half)
    release(portfolio, choice, tmp_path / "one", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)
    assert total(ledger) > choice.guarantee.epsilon
    again = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    release(portfolio, again, tmp_path / "two", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)


def test_a_conditional_combination_counts_by_what_is_proved(tmp_path: Path, file: Path) -> None:
    runs = [builders.dp_sgd(name, sigma=sigma, steps=20, smoothness=0.2) for name, sigma in (("a", 20.0), ("b", 30.0))]
    portfolio, ledger = written(tmp_path / "p", Portfolio(tuple(runs))), new(file)
    weights = portfolio.weights({"a": 0.3, "b": 0.7})
    choice = choose(portfolio, "combination", delta=DELTA, weights=weights, accounting=Accounting(assume_smoothness=0.0))
    assert choice.guarantee.standing == "conditional"
    release(portfolio, choice, tmp_path / "one", ledger=ledger)
    proved = Joint(weights).guarantee(delta=DELTA)  # of an average of stored numbers nothing less is (docs/theory.md §3.6)
    assert proved.standing == "proved"
    spent = ledger.cumulative()
    assert spent is not None
    assert spent.standing == ledger.history()[0].content["total"]["standing"] == "proved"
    assert spent.epsilon == pytest.approx(proved.epsilon, rel=PRECISE)
    assert spent.epsilon > 1.05 * choice.guarantee.epsilon


def test_a_combination_whose_certificate_shows_its_inputs_counts_as_joint(file: Path) -> None:
    one = planned(THREE, "combination", b=0.5, c=0.5)
    shown = replace(one, guarantees=(replace(one.guarantees[0], theorem="joint-release"),))
    ledger = new(file)
    ledger.enter(shown)
    assert one.guarantees[0].epsilon < total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)


def test_coupled_targets_count_as_the_one_release_they_are(tmp_path: Path, file: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choices = {
        f"share-{share}": choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": share, "c": 1 - share}))
        for share in (0.2, 0.3)
    }
    made = release_together(portfolio, choices, tmp_path / "together", ledger=ledger)
    assert [one.folder for one in made] == [tmp_path / "together" / name for name in choices]
    weights = [choice.weights for choice in choices.values()]
    coupled = Releases(portfolio, [Exposure.drawn(*weights)]).guarantee(delta=DELTA).epsilon
    assert total(ledger) == pytest.approx(coupled, rel=PRECISE)
    assert max(choice.guarantee.epsilon for choice in choices.values()) < total(ledger) < drawn(*weights)
    assert len(ledger.history()) == 2
    release_together(portfolio, choices, tmp_path / "again", ledger=ledger)
    assert total(ledger) == pytest.approx(Releases(portfolio, [Exposure.drawn(*weights)] * 2).guarantee(delta=DELTA).epsilon)


def test_joint_release_counts_every_model_looked_at(tmp_path: Path, file: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=30.0)
    choice = choose(portfolio, "joint", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    release(portfolio, choice, tmp_path / "one", ledger=ledger)
    assert total(ledger) == pytest.approx(joint("a", "b", "c"), rel=PRECISE)
    ledger.enter(planned(portfolio, a=0.5, b=0.5))
    assert total(ledger) == pytest.approx(joint("a", "b", "c"), rel=PRECISE)


def test_nothing_ever_costs_more_than_everything_together(file: Path) -> None:
    ledger = new(file, epsilon=30.0)
    wild = planned(THREE, "tempered", b=0.5, c=0.5, kappa=(20.0).hex())
    alone = Tempered(THREE.weights({"b": 0.5, "c": 0.5}), 20.0)
    assert alone.epsilon(DELTA) > 3 * joint("b", "c") == pytest.approx(3 * alone.guarantee(delta=DELTA).epsilon, rel=PRECISE)
    ledger.enter(wild)
    assert total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)
    for release_of in (planned(THREE, "combination", b=0.2, c=0.8), planned(THREE, b=0.5, c=0.5), wild):
        ledger.enter(release_of)
        assert total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)


def test_a_mild_tempered_draw_counts_its_own_and_twice_joint(file: Path) -> None:
    ledger = new(file, epsilon=30.0)
    mild = planned(THREE, "tempered", b=0.1, c=0.9, kappa=(0.1).hex())
    ledger.enter(mild)
    assert total(ledger) == pytest.approx(mild.guarantees[0].epsilon, rel=PRECISE)
    assert total(ledger) < 0.95 * joint("b", "c")
    ledger.enter(mild)
    assert total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)


def test_what_depends_on_earlier_releases_counts_as_everything_it_might_have_been(tmp_path: Path, file: Path) -> None:
    portfolio = written(tmp_path / "p")
    own = Selection(portfolio.weights({"b": 0.1, "c": 0.9})).guarantee(delta=DELTA).epsilon
    for number, rule in enumerate(("selection", "combination")):
        ledger = new(file.with_name(f"{number}.db"), epsilon=30.0, declared=[portfolio])
        ledger.enter(planned(portfolio, rule, dependent=True, b=0.1, c=0.9))
        assert own < total(ledger) == pytest.approx(joint("a", "b", "c"), rel=PRECISE)
    ledger = new(file, epsilon=30.0, declared=[Portfolio(portfolio.models[1:])])
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 0.1, "c": 0.9}))
    release(portfolio, choice, tmp_path / "one", ledger=ledger, dependent=True)
    assert total(ledger) >= joint("b", "c") * (1 - PRECISE) > 1.05 * own


def test_choosing_what_to_release_by_earlier_releases_can_cost_more_than_either_path() -> None:
    """Why a declared portfolio counts whole: a bit decides which of two models is released next."""
    bit, epsilon = 0.5, 2.7
    models = [
        builders.model("bit", {"kind": "approx-dp", "epsilon": bit, "delta": 0.0, "run": "bit", "noise_fingerprint": "1"}),
        builders.gaussian("b", noise_std=2.0, run="b"),
        builders.model("c", {"kind": "approx-dp", "epsilon": 0.5, "delta": 1e-6, "run": "c", "noise_fingerprint": "2"}),
    ]
    portfolio = Portfolio(tuple(models))

    def delta(*names: str, at: float = epsilon) -> float:
        return Joint(portfolio.weights({name: 1 / len(names) for name in names})).guarantee(epsilon=at).delta

    likely = 1 / (1 + math.exp(-bit))
    truth = likely * delta("b", at=epsilon - bit) + (1 - likely) * delta("c", at=epsilon + bit)
    assert truth > 1.3 * max(delta("bit", "b"), delta("bit", "c"))
    assert truth <= delta("bit", "b", "c")


def test_a_model_is_itself_in_every_portfolio(file: Path) -> None:
    ledger = new(file, epsilon=30.0)
    ledger.enter(planned(THREE, b=0.5, c=0.5))
    ledger.enter(planned(Portfolio((THREE.models[2], THREE.models[1])), b=0.5, c=0.5))
    half = THREE.weights({"b": 0.5, "c": 0.5})
    assert total(ledger) == pytest.approx(drawn(half, half), rel=PRECISE)
    ledger.enter(planned(Portfolio(THREE.models[1:2]), "joint", b=1.0))
    ledger.enter(planned(THREE, "joint", c=1.0))
    assert total(ledger) == pytest.approx(joint("b", "c"), rel=PRECISE)
    ledger.enter(planned(Portfolio((Model("again", THREE.models[1].record),)), again=1.0))  # its own word against the name
    assert total(ledger) > 1.1 * joint("b", "c")


@pytest.mark.parametrize("rule", ["selection", "combination", "joint", "tempered"])
def test_two_models_of_one_run_at_one_step_count_once(file: Path, rule: str) -> None:
    """The last checkpoint and a copy of it, or an average on the way to it: the records are the same."""
    run = builders.dp_sgd("run", sigma=1.0)
    twins = Portfolio((Model("last", run.record), Model("smoothed", run.record)))
    ledger = new(file, epsilon=30.0)
    kappa: dict[str, Any] = {"kappa": (0.5).hex()} if rule == "tempered" else {}
    ledger.enter(planned(twins, rule, last=0.5, smoothed=0.5, **kappa))
    ledger.enter(planned(twins, rule, last=0.25, smoothed=0.75, **kappa))
    assert total(ledger) == pytest.approx(joint("b"), rel=PRECISE)


def test_checkpoints_of_one_run_count_once_at_the_latest_released(file: Path) -> None:
    story = {"run": "r", "noise_fingerprint": "n", "sampler_fingerprint": "s"}
    early, late = (builders.dp_sgd(name, sigma=8.0, steps=steps, **story) for name, steps in (("early", 10), ("late", 40)))  # type: ignore[arg-type]
    ledger = new(file, epsilon=30.0)
    ledger.enter(planned(Portfolio((late,)), late=1.0))
    latest = total(ledger)
    ledger.enter(planned(Portfolio((early,)), early=1.0))
    assert total(ledger) == pytest.approx(latest, rel=PRECISE)
    ledger.enter(planned(Portfolio((early, late)), "combination", early=0.5, late=0.5))
    assert total(ledger) == pytest.approx(latest, rel=PRECISE)
    other = builders.dp_sgd("other", sigma=4.0, steps=80, **story)  # type: ignore[arg-type]
    with pytest.raises(PortfolioError, match="both claim run 'r'"):
        ledger.enter(planned(Portfolio((other,)), other=1.0))
    stranger = builders.dp_sgd("stranger", sigma=8.0, steps=10, run="q", noise_fingerprint="n", sampler_fingerprint="t")
    with pytest.raises(DependentRuns, match="noise_fingerprint 'n'"):
        ledger.enter(planned(Portfolio((stranger,)), stranger=1.0))
    assert len(ledger.history()) == 3


@pytest.mark.parametrize("rule, extra", [("joint", {}), ("tempered", {"kappa": (1.0).hex()})])
def test_choices_by_a_private_validation_set_are_paid_for_every_time(file: Path, rule: str, extra: dict[str, Any]) -> None:
    def paying(epsilon: float, disjoint: bool) -> PendingEntry:
        form = ValidationForm(records=100, disjoint=disjoint, epsilon=epsilon.hex())
        return planned(THREE, rule, b=0.5, c=0.5, validation=form.model_dump(), **extra)

    both = joint("b", "c")
    overlapping = new(file, epsilon=60.0)
    overlapping.enter(paying(0.5, disjoint=False))
    assert total(overlapping) <= (both + 0.5) * (1 + PRECISE)
    for costs in (0.75, 1.25):
        overlapping.enter(paying(costs - 0.5 if costs < 1 else 0.5, disjoint=False))
        assert total(overlapping) == pytest.approx(both + costs, rel=PRECISE)
    disjoint = new(file.with_name("disjoint.db"), epsilon=60.0)
    disjoint.enter(paying(0.75 * both, disjoint=True))
    before = total(disjoint)
    assert before <= both * (1 + PRECISE)
    disjoint.enter(paying(0.5 * both, disjoint=True))
    assert total(disjoint) == pytest.approx(1.25 * both, rel=PRECISE)
    disjoint.enter(paying(0.5 * both, disjoint=False))
    assert total(disjoint) == pytest.approx(1.75 * both, rel=PRECISE)  # a record of no D may be in all three sets
    spent = disjoint.cumulative()
    assert spent is not None
    assert spent.theorem == "private-validation"


def test_an_entry_that_states_less_than_its_draw_costs_is_counted_in_full(file: Path) -> None:
    """Entries from before a moving divisor was charged twice: κ = 100 on 100 records is 2, not 1."""
    form = ValidationForm(records=100, disjoint=False, epsilon=(1.0).hex())
    ledger = new(file, epsilon=60.0)
    ledger.enter(planned(THREE, "tempered", b=0.5, c=0.5, kappa=(100.0).hex(), validation=form.model_dump()))
    assert total(ledger) == pytest.approx(joint("b", "c") + 2.0, rel=PRECISE)
    ledger.enter(planned(THREE, "tempered", b=0.5, c=0.5, kappa=(100.0).hex(), validation=form.model_dump()))
    assert total(ledger) == pytest.approx(joint("b", "c") + 4.0, rel=PRECISE)


def test_shuffled_batches_count_at_the_largest_rate_claimed(file: Path) -> None:
    models = []
    for name in "ab":
        plain = builders.dp_sgd(name, sigma=3.0, steps=20).mechanism.model_dump()
        models.append(builders.model(name, {**plain, "sampling": {"scheme": "shuffle"}}))
    portfolio, ledger = Portfolio(tuple(models)), new(file, epsilon=30.0)
    for rate, alone in ((0.05, "a"), (0.2, "b"), (0.1, "a")):
        weights: dict[str, Any] = {alone: 1.0}
        ledger.enter(planned(portfolio, shuffle_rate=rate.hex(), **weights))
    poisson = Portfolio(tuple(builders.dp_sgd(name, sigma=3.0, steps=20, sampling=0.2) for name in "ab"))
    assert total(ledger) == pytest.approx(joint("a", "b", portfolio=poisson), rel=1e-4)
    assert ledger.history()[-1].content["total"]["standing"] == "conditional"


# --- the budget -------------------------------------------------------------------------------------------------------


def everything_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, file: Path) -> None:
    portfolio = written(tmp_path / "p")
    ledger = new(file, epsilon=5.0)
    ledger.enter(planned(portfolio, c=1.0))
    before, state = everything_in(tmp_path), file.read_bytes()
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"a": 0.5, "b": 0.5}))
    with pytest.raises(BudgetExceeded) as caught:
        release(portfolio, choice, tmp_path / "out", ledger=ledger)
    assert (everything_in(tmp_path), file.read_bytes()) == (before, state)
    with pytest.raises(BudgetExceeded):
        release_together(portfolio, {"x": choice, "y": choice}, tmp_path / "out", ledger=ledger)
    assert (everything_in(tmp_path), file.read_bytes()) == (before, state)
    message = str(caught.value)
    assert "\n" not in message
    would_be = drawn(THREE.weights({"c": 1.0}), choice.weights)
    stated = re.search(r"would bring the total to ε = ([\d.]+) at δ = 1e-05; the budget is ε = 5;", message)
    assert stated is not None
    assert would_be <= float(stated[1]) <= would_be + 1e-4
    assert "what would still fit: c alone" in message or "what would still fit: c or b alone" in message
    suggested = re.search(r"or a selection with (\S+)$", message)
    assert suggested is not None
    fitting = Weights.parse(portfolio, suggested[1])
    assert fitting.as_dict()["a"] > 0
    release(portfolio, choose(portfolio, "selection", delta=DELTA, weights=fitting), tmp_path / "out", ledger=ledger)
    assert 0.97 * 5.0 < total(ledger) <= 5.0 or Account(ledger.budget, ledger.history()).delta_spent() <= DELTA


def test_when_no_model_fits_it_says_so(tmp_path: Path, file: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(file, epsilon=0.01)
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"a": 0.5, "b": 0.5}))
    with pytest.raises(BudgetExceeded, match="no model of this portfolio would still fit alone"):
        release(portfolio, choice, tmp_path / "out", ledger=ledger)


def test_a_release_that_meets_the_budget_exactly_passes(file: Path) -> None:
    exact = joint("b", "c")
    ledger = new(file, epsilon=exact)
    ledger.enter(planned(THREE, b=1.0))
    ledger.enter(planned(THREE, c=1.0))
    with pytest.raises(BudgetExceeded):
        ledger.enter(planned(THREE, a=1e-4, c=1 - 1e-4))
    ledger.enter(planned(THREE, b=0.5, c=0.5))  # has leaked already
    below = new(file.with_name("below.db"), epsilon=exact * (1 - 1e-6))
    below.enter(planned(THREE, b=1.0))
    with pytest.raises(BudgetExceeded):
        below.enter(planned(THREE, c=1.0))


@pytest.mark.parametrize("before", [{}, {"c": 1.0}, {"b": 0.01, "c": 0.99}])
def test_what_is_said_to_fit_fits_and_not_much_more_does(file: Path, before: dict[str, Any]) -> None:
    ledger = new(file, epsilon=5.5)
    if before:
        ledger.enter(planned(THREE, **before))
    found = what_fits(ledger, THREE)
    assert found["alone"] == ["c", "b"]
    assert found["in_selection_with"] == "c"
    share = found["largest_probability"]["a"]
    assert f"a: with probability up to {share:g} in a selection with c" in found["text"][1]
    with pytest.raises(BudgetExceeded):
        ledger.enter(planned(THREE, a=1.01 * share, c=1 - 1.01 * share))
    ledger.enter(planned(THREE, a=share, c=1 - share))


def test_a_model_without_privacy_fits_in_a_tiny_dose(file: Path) -> None:
    bare = builders.model("bare", {"kind": "non-private", "run": "bare"})
    portfolio, ledger = Portfolio((*THREE.models, bare)), new(file)
    share = what_fits(ledger, portfolio)["largest_probability"]["bare"]
    assert 0.99 * DELTA < share < DELTA
    ledger.enter(planned(portfolio, bare=share, c=1 - share))
    with pytest.raises(BudgetExceeded, match="ε = ∞"):
        ledger.enter(planned(portfolio, bare=share, c=1 - share))
