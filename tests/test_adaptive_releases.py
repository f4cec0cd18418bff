"""Releases that are chosen by what earlier ones showed: what is then true, exactly, and what a ledger allows."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import BudgetExceeded, DependentRuns, LedgerError, TargetError
from dpmerge.profiles import log_delta_from_renyi
from dpmerge.records import Model, Portfolio
from dpmerge.release import Entry, Ledger, choose, preview, release, release_together, verify, what_fits
from dpmerge.release.account import FILTER, Account
from dpmerge.release.entries import Budget, PendingEntry
from dpmerge.release.forms import ValidationForm
from dpmerge.release.provisions import provisions as first_entries
from dpmerge.rules import Charge, Exposure, Filter
from tests import builders
from tests.effort import EFFORT
from tests.exact_densities import gaussian_delta
from tests.ledger_builders import PRECISE, THREE, command, joint, new, planned as planned_at, total, written
from tests.ledger_workers import DELTA


def pair(name: str, epsilon: float, delta: float, **more: Any) -> Model:
    mechanism = {"kind": "approx-dp", "epsilon": epsilon, "delta": delta, "run": name, "noise_fingerprint": name}
    return builders.model(name, {**mechanism, **more})


def alone(model: Model, dependent: bool = False) -> PendingEntry:
    """The release of one model, entered only."""
    weights: dict[str, Any] = {model.name: 1.0}
    return planned_at(Portfolio((model,)), dependent=dependent, delta=0.5, **weights)


# --- the reproduction -------------------------------------------------------------------------------------------------

MU, EPSILON, TOTAL = 0.6, 3.0, 0.01
FIRST = builders.gaussian("first", noise_std=1 / MU, run="first")
OPTIONS = (pair("pure", 1.8648, 0.0), pair("rare", 0.0, 0.009989))


def hockey_stick(epsilon: float, delta: float, at: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    """H at any real ε of the canonical (ε, δ) pair, the worst of all."""
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    rare = (1 - delta) / (1 + math.exp(epsilon))
    return delta + np.maximum(likely - np.exp(at) * rare, 0) + np.maximum(rare - np.exp(at) * likely, 0)


def chosen_by_the_first(options: list[tuple[float, float]], mu: float = MU, epsilon: float = EPSILON) -> float:
    """δ(ε) of a Gaussian release and the worst of these, chosen by what the Gaussian showed: an integral over that."""
    seen = np.linspace(-12.0, 12.0 + mu, 400_001)
    density = np.exp(-((seen - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    left = epsilon - (mu * seen - mu**2 / 2)
    worst = np.max([hockey_stick(*one, left) for one in options], axis=0)
    return float(np.sum(density * worst) * (seen[1] - seen[0]))


def test_each_choice_fits_and_choosing_does_not() -> None:
    """Why what lies on the path taken must not be added up: δ(3) = 0.0194 of a budget (3, 0.01)."""
    states = [(1.8648, 0.0), (0.0, 0.009989)]
    for one in states:
        assert chosen_by_the_first([one]) == pytest.approx(0.009989, abs=2e-6)
    assert chosen_by_the_first(states) == pytest.approx(0.019433, abs=2e-6)
    assert chosen_by_the_first([(0.0, 0.0)]) == pytest.approx(gaussian_delta(MU, EPSILON), rel=1e-4)
    budget = Budget(builders.DATASET, "add-remove", EPSILON, TOTAL, "today")
    for option in OPTIONS:  # as if it depended on nothing
        assert Account(budget, entered(budget, alone(FIRST)), alone(option)).total().fits


def entered(budget: Budget, *releases: PendingEntry, **provisions: Any) -> list[Entry]:
    """The entries of a ledger in memory, each release as the ledger allows it; none that it refuses."""
    given = {"declared": (), "filter_share": 0.0, "filter_order": None, **provisions}
    entries = first_entries(budget, **given)
    for one in releases:
        entries = after(budget, entries, one)
    return entries


def after(budget: Budget, entries: list[Entry], one: PendingEntry) -> list[Entry]:
    account = Account(budget, entries, one)
    try:
        account.require_provision("memory")
    except LedgerError:
        return entries
    found = account.total()
    if not found.fits:
        return entries
    content = {"kind": "release", **one.content(), "total": {"theorem": found.guarantee.theorem}}
    return [*entries, Entry.following(entries, budget.hash, content)]


@pytest.mark.parametrize(
    "provisions, allowed",
    [
        ({}, set()),
        ({"filter_share": 0.5}, set()),
        ({"filter_share": 0.99}, set()),
        ({"declared": [Portfolio((OPTIONS[0],))]}, {"pure"}),
        ({"declared": [Portfolio((OPTIONS[1],))]}, {"rare"}),
        ({"declared": [Portfolio((OPTIONS[0],))], "filter_share": 0.1}, set()),  # less is left for the tight count
    ],
)
def test_no_ledger_allows_both(tmp_path: Path, provisions: dict[str, Any], allowed: set[str]) -> None:
    """Before: both were accepted in any ledger."""
    made = set()
    for option in OPTIONS:
        ledger = new(tmp_path / f"{option.name}.db", epsilon=EPSILON, delta=TOTAL, **provisions)
        try:
            ledger.enter(alone(FIRST))
        except BudgetExceeded:
            continue
        try:
            ledger.enter(alone(option, dependent=True))
            made.add(option.name)
        except LedgerError:
            continue
    assert made == allowed
    states = {"pure": (1.8648, 0.0), "rare": (0.0, 0.009989)}
    assert chosen_by_the_first([states[name] for name in made] or [(0.0, 0.0)]) <= TOTAL


def test_choosing_among_what_passes_a_filter_stays_within_the_budget() -> None:
    budget = Budget(builders.DATASET, "add-remove", EPSILON, TOTAL, "today")
    start = entered(budget, alone(FIRST), filter_share=0.5)

    def passes(epsilon: float, delta: float) -> bool:
        return len(after(budget, start, alone(pair("next", epsilon, delta), dependent=True))) > len(start)

    assert passes(1.176, 0.002499) and passes(0.0, 0.002499)
    assert not passes(1.177, 0.0) and not passes(0.0, 0.002501)
    assert chosen_by_the_first([(1.176, 0.0), (0.0, 0.0025), (1.176, 0.0025)]) == pytest.approx(0.002863, abs=1e-6)


def test_both_declared_cost_what_they_may_show_together(tmp_path: Path) -> None:
    with pytest.raises(
        BudgetExceeded, match=r"all models declared cost ε = [\d.]+ at δ = 0.01 together, and the budget is ε = 0.5"
    ):
        new(tmp_path / "small.db", epsilon=0.5, delta=TOTAL, declared=[Portfolio(OPTIONS)])
    assert not (tmp_path / "small.db").exists()
    ledger = new(tmp_path / "ledger.db", epsilon=5.0, delta=0.02, declared=[Portfolio((FIRST, *OPTIONS))])
    whole = total(ledger)
    for model in (FIRST, *OPTIONS):
        entry = ledger.enter(alone(model, dependent=True))
        assert entry.content["total"]["theorem"] == "several-releases"
        assert total(ledger) == pytest.approx(whole, rel=PRECISE)
    assert chosen_by_the_first([(1.8648, 0.0), (0.0, 0.009989)], epsilon=whole) <= 0.02


# --- every way to choose, exactly -------------------------------------------------------------------------------------

Stated = tuple[float, float]


def worst_choice(
    budget: Budget, start: list[Entry], fixed: tuple[int, ...], menu: list[Stated], adaptive: bool = True
) -> float:
    """The largest δ(ε) of everything released by one who chooses by what was shown, and by what the ledger allows.

    Rounds alternate: one release that is asked for whatever happened, then one of his choice, or none. Every mechanism is a
    canonical pair, so outcomes are few and each value is exact. `adaptive`: he says that his choices depend on releases.
    """
    models = [pair(f"m{i}", *one) for i, one in enumerate(menu)]
    held: dict[tuple[tuple[int, bool], ...], list[Entry]] = {(): start}

    def with_one_more(made: tuple[tuple[int, bool], ...], which: int, dependent: bool) -> bool:
        longer = (*made, (which, dependent))
        if longer not in held:
            held[longer] = after(budget, held[made], alone(models[which], dependent and adaptive))
        return held[longer] is not held[made]

    @cache
    def shown(made: tuple[tuple[int, bool], ...], which: int, dependent: bool, left: float, turn: int) -> float:
        """After this release was allowed: over its outcomes."""
        epsilon, delta = menu[which]
        longer = (*made, (which, dependent))
        return delta + sum(
            (1 - delta) / (1 + math.exp(-loss)) * value(longer, left - loss, turn + 1) for loss in (epsilon, -epsilon)
        )

    @cache
    def value(made: tuple[tuple[int, bool], ...], left: float, turn: int) -> float:
        if turn == 2 * len(fixed):
            return max(0.0, -math.expm1(left)) if left < 0 else 0.0
        known = {which for which, _ in made}
        round_, his = divmod(turn, 2)
        if not his:
            which = fixed[round_]
            if which in known or not with_one_more(made, which, False):
                return value(made, left, turn + 1)
            return shown(made, which, False, left, turn)
        choices = [value(made, left, turn + 1)]
        for which in range(len(menu)):
            if which not in known and which not in fixed and with_one_more(made, which, True):
                choices.append(shown(made, which, True, left, turn))
        return max(choices)

    return value((), budget.epsilon, 0)


def random_menu(rng: np.random.Generator) -> list[Stated]:
    """Two that are asked for in any case, and three to choose from."""
    epsilons = np.round(rng.uniform(0.0, 2.0, 5) * rng.choice([0.0, 1.0, 1.0], 5), 3)
    deltas = np.round(rng.uniform(0.0, 0.012, 5) * rng.choice([0.0, 1.0], 5), 5)
    return list(zip(epsilons.tolist(), deltas.tolist(), strict=True))


@pytest.mark.uncounted  # runs the lines of other tests, at length
@pytest.mark.parametrize("seed", range(2 * EFFORT))
def test_no_way_to_choose_passes_the_budget(seed: int) -> None:
    """Releases that depend on nothing between those that do: a ledger may allow the first on some paths only."""
    rng = np.random.default_rng(seed)
    most = 0.0
    for _ in range(3):
        menu = random_menu(rng)
        budget = Budget(builders.DATASET, "add-remove", float(rng.uniform(1.0, 3.0)), 0.02, "today")
        provisions: list[dict[str, Any]] = [{"filter_share": share} for share in (0.3, 0.9)]
        free = Portfolio((pair("m2", *menu[2]), pair("m3", *menu[3])))
        provisions += [{"declared": [free]}, {"declared": [free], "filter_share": 0.5}]
        for given in provisions:
            try:
                start = entered(budget, **given)
            except LedgerError:  # what is declared does not fit
                continue
            true = worst_choice(budget, start, (0, 1), menu)
            assert true <= budget.delta * (1 + 1e-9), (menu, budget, given)
            most = max(most, true / budget.delta)
    assert most > 0.2  # it is not all refused


def test_the_search_finds_what_is_wrong_with_adding_up_the_path() -> None:
    """One who chooses by what was shown and does not say so: the tight count is then no bound."""
    menu = [(0.53, 0.0), (0.28, 0.0), (1.12, 0.0), (0.0, 0.0188), (0.42, 0.0075)]
    budget = Budget(builders.DATASET, "add-remove", 1.86, 0.02, "today")
    silent = worst_choice(budget, [], (0, 1), menu, adaptive=False)
    assert silent > 1.5 * budget.delta
    said = worst_choice(budget, entered(budget, filter_share=0.5), (0, 1), menu)
    assert said <= budget.delta


# --- the filter -------------------------------------------------------------------------------------------------------


def test_a_filter_has_the_room_that_converts_to_its_budget() -> None:
    rule = Filter.sharing(3.0, 1e-5)
    logs = log_delta_from_renyi(np.array([rule.order]), np.array([rule.room]), 3.0, "tight")
    assert math.exp(logs[0]) == pytest.approx(5e-6, rel=1e-6)
    assert math.exp(logs[0]) <= 5e-6
    for order in (0.7 * rule.order, 1.4 * rule.order):  # for Gaussians it is the best
        assert Filter.sharing(3.0, 1e-5, order).room / order < rule.room / rule.order
    for wrong, complaint in ((1.0, "must be above 1"), (math.nan, "must be above 1"), (1.2, "has no room")):
        with pytest.raises(TargetError, match=complaint):
            Filter.sharing(3.0, 1e-5, wrong)


def spends(rule: Filter, models: list[Model], *exposures: Exposure, paid: tuple[float, ...] = ()) -> tuple[float, float]:
    found = rule.total({model.name: model for model in models}, [Charge(one, paid) for one in exposures])
    return found.divergence, found.pairs


def test_what_a_release_uses_of_a_filter() -> None:
    rule = Filter.sharing(8.0, 1e-5, 6.0)
    a, b = builders.gaussian("a", noise_std=2.0), builders.gaussian("b", noise_std=1.0)
    both = Exposure.whole("ab")
    assert spends(rule, [a, b], both)[0] == pytest.approx(6.0 * (0.25 + 1.0) / 2, rel=1e-9)
    assert spends(rule, [a, b], both, both, Exposure.whole("a"))[0] == pytest.approx(6.0 * 1.25 / 2, rel=1e-9)
    draw = Exposure.drawn(Portfolio((a, b)).weights({"a": 0.75, "b": 0.25}))
    once = math.log(0.75 * math.exp(5 * 6 * 0.25 / 2) + 0.25 * math.exp(5 * 6 / 2)) / 5
    assert spends(rule, [a, b], draw)[0] == pytest.approx(once, rel=1e-9)
    assert spends(rule, [a, b], draw, draw)[0] == pytest.approx(2 * once, rel=1e-9)  # which was drawn is not known to it
    assert spends(rule, [a, b], both, draw)[0] == pytest.approx(6.0 * 1.25 / 2, rel=1e-9)
    half = Exposure.drawn(Portfolio((a, b)).weights({"a": 0.5, "b": 0.5}))
    states = [pair("a", 0.4, 0.0), pair("b", 0.4, 0.01)]
    response = math.log((math.exp(0.4 * 6) + math.exp(-0.4 * 5)) / (1 + math.exp(0.4))) / 5
    assert spends(rule, states, half) == pytest.approx((response, 0.005), rel=1e-9)
    assert spends(rule, states, both) == pytest.approx((2 * response, 0.01), rel=1e-9)
    assert spends(rule, [a], Exposure.whole("a"), paid=(0.4,))[0] == pytest.approx(6.0 * 0.25 / 2 + response, rel=1e-9)


def test_a_run_pays_for_further_steps_only_and_a_tree_for_all_again() -> None:
    rule = Filter.sharing(8.0, 1e-5, 4.0)
    story: dict[str, Any] = {"run": "r", "noise_fingerprint": "n", "sampler_fingerprint": "s", "sigma": 4.0}
    early, late = (builders.dp_sgd(name, steps=steps, **story) for name, steps in (("a", 10), ("b", 40)))
    whole = spends(rule, [early, late], Exposure.whole("b"))[0]
    assert whole == pytest.approx(4.0 * 40 / 16 / 2, rel=1e-9)
    assert spends(rule, [early, late], Exposure.whole("a"), Exposure.whole("b"))[0] == pytest.approx(whole, rel=1e-9)
    assert spends(rule, [early, late], Exposure.whole("b"), Exposure.whole("a"))[0] == pytest.approx(whole, rel=1e-9)
    tree: dict[str, Any] = {"kind": "dp-ftrl", "run": "t", "noise_fingerprint": "t", "noise_multiplier": 4.0, "restarts": 0}
    trees = [builders.model(name, {**tree, "steps": steps}, "zero-out") for name, steps in (("a", 10), ("b", 40))]
    first, second = (spends(rule, trees, Exposure.whole(name))[0] for name in "ab")
    assert spends(rule, trees, Exposure.whole("a"), Exposure.whole("b"))[0] == pytest.approx(first + second, rel=1e-9)
    assert spends(rule, trees, Exposure.whole("b"), Exposure.whole("a"))[0] == pytest.approx(second, rel=1e-9)


def test_runs_that_share_their_noise_do_not_pass_a_filter() -> None:
    rule = Filter.sharing(8.0, 1e-5)
    twins = [builders.gaussian(name, noise_std=2.0, noise_fingerprint="n") for name in "ab"]
    with pytest.raises(DependentRuns):
        spends(rule, twins, Exposure.whole("a"), Exposure.whole("b"))


def test_a_curve_that_ends_below_the_order_does_not_pass(tmp_path: Path) -> None:
    ledger = new(tmp_path / "ledger.db", epsilon=3.0, filter_share=0.5, filter_order=16.0)
    for top, fits in ((32.0, True), (8.0, False)):
        curve = {"kind": "rdp", "run": f"to {top}", "orders": [2.0, top], "values": [0.01, 0.05]}
        one = alone(builders.model("curve", curve), dependent=True)
        if fits:
            assert ledger.enter(one).content["total"]["theorem"] == FILTER
        else:
            with pytest.raises(
                BudgetExceeded, match="no finite divergence of order 16, at which the filter counts, is known of run"
            ):
                ledger.enter(one)


# --- ledgers with a filter --------------------------------------------------------------------------------------------


def test_what_passes_by_the_filter_is_covered_by_the_whole_budget(tmp_path: Path) -> None:
    portfolio = written(tmp_path / "p")
    file = str(tmp_path / "ledger.db")
    made = command(
        "ledger", "new", file, "--dataset", builders.DATASET, "--epsilon", "8", "--delta", "1e-5", "--filter-share", "0.25"
    )
    assert "filter of order " in made
    ledger = Ledger(file)
    by_c = portfolio.weights({"c": 1.0})
    first = release(portfolio, choose(portfolio, "selection", delta=DELTA, weights=by_c), tmp_path / "one", ledger=ledger)
    stated = first.certificate.ledger
    assert stated is not None and stated.theorem == "selection-pld" and stated.delta == pytest.approx(0.75e-5)
    mixed = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": 0.001, "c": 0.999}))
    seen = preview(portfolio, mixed, tmp_path / "two", ledger=ledger, dependent=True)
    assert seen.fits and seen.total is not None and (seen.total.epsilon, seen.total.delta) == (8.0, 1e-5)
    second = release(portfolio, mixed, tmp_path / "two", ledger=ledger, dependent=True)
    stated = second.certificate.ledger
    assert stated is not None and (stated.theorem, stated.epsilon, stated.delta) == (FILTER, 8.0, 1e-5)
    card = (tmp_path / "two" / "README.md").read_text()
    assert "With everything that was or will be released from this dataset it is **(8.0000, 1e-05)-differ" in card
    assert verify(tmp_path / "two", portfolio=portfolio, ledger=ledger).code == 0
    third = release(portfolio, choose(portfolio, "selection", delta=DELTA, weights=by_c), tmp_path / "three", ledger=ledger)
    assert third.certificate.ledger is not None and third.certificate.ledger.theorem == FILTER  # once by the filter, always
    shown = command("ledger", "show", file)
    assert "counted by: releases chosen by what earlier ones showed, by a Rényi filter" in shown
    assert "spent: ε = 8.0000" in shown
    history = " ".join(command("ledger", "history", file).split())
    assert "filter of order" in history and "(depends on" in history and "8.0000 (filter)" in history
    fits = what_fits(ledger, portfolio)
    assert fits["alone"] == ["c", "b"]
    share = fits["largest_probability"]["a"]
    assert 0 < share < 1
    with pytest.raises(BudgetExceeded, match="would sum to"):
        ledger.enter(planned_at(portfolio, a=1.02 * share, c=1 - 1.02 * share))
    ledger.enter(planned_at(portfolio, a=share, c=1 - share))
    with pytest.raises(
        BudgetExceeded, match=r"divergences of order [\d.]+ would sum to [\d.]+ in a filter with room for [\d.]+"
    ):
        ledger.enter(planned_at(portfolio, "joint", dependent=True, a=1.0))


def test_releases_that_depend_on_none_are_counted_tightly_beside_a_filter(tmp_path: Path) -> None:
    plain, shared = new(tmp_path / "plain.db"), new(tmp_path / "shared.db", delta=DELTA / 0.9, filter_share=0.1)
    for one in (planned_at(THREE, b=0.25, c=0.75), planned_at(THREE, c=1.0)):
        for ledger in (plain, shared):
            ledger.enter(one)
        assert total(shared) == pytest.approx(total(plain), rel=1e-6)


def test_coupled_draws_may_depend_on_releases(tmp_path: Path) -> None:
    portfolio = written(tmp_path / "p")
    ledger = new(tmp_path / "ledger.db", epsilon=30.0, filter_share=0.5)
    choices = {
        name: choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"b": share, "c": 1 - share}))
        for name, share in (("x", 0.2), ("y", 0.3))
    }
    made = release_together(portfolio, choices, tmp_path / "out", ledger=ledger, dependent=True)
    assert all(one.certificate.ledger is not None and one.certificate.ledger.theorem == FILTER for one in made)


def test_a_voided_release_leaves_the_filter_unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new(tmp_path / "ledger.db", filter_share=0.5)
    from tests.test_ledger_processes import process_here

    monkeypatch.setattr("dpmerge.release.ledger.this_process", lambda: {**process_here(), "started": "1"})
    ledger.enter(planned_at(THREE, dependent=True, c=1.0))
    assert total(ledger) == 8.0
    ledger.void(2, "the disk was full")
    assert ledger.cumulative() is None
    assert ledger.enter(planned_at(THREE, c=1.0)).content["total"]["theorem"] == "selection-pld"


# --- ledgers that declare ---------------------------------------------------------------------------------------------


def test_any_choice_among_declared_models_is_free(tmp_path: Path) -> None:
    portfolio = written(tmp_path / "p")
    file = str(tmp_path / "ledger.db")
    line = ["ledger", "new", file, "--dataset", builders.DATASET, "--epsilon", "30", "--delta", "1e-5"]
    made = command(*line, "--declare", str(tmp_path / "p"))
    assert "declared, so counted whole and free to choose from: a, b, c" in made
    ledger = Ledger(file)
    whole = joint("a", "b", "c")
    assert total(ledger) == pytest.approx(whole, rel=PRECISE)
    for number, (rule, dependent) in enumerate(
        [("selection", False), ("selection", True), ("combination", True), ("joint", True)]
    ):
        choice = choose(portfolio, rule, delta=DELTA, weights=portfolio.weights({"b": 0.5, "c": 0.5}))  # type: ignore[arg-type]
        out = release(portfolio, choice, tmp_path / f"out{number}", ledger=ledger, dependent=dependent)
        assert out.certificate.ledger is not None
        assert out.certificate.ledger.epsilon == pytest.approx(whole, rel=PRECISE)
        assert out.certificate.ledger.theorem == "several-releases"
    other = builders.gaussian("d", noise_std=2.0, run="run d")
    ledger.enter(alone(other))
    assert total(ledger) > whole
    with pytest.raises(
        LedgerError, match=r"it involves run 'run e', not declared here\. A ledger must provide for that before its first"
    ):
        ledger.enter(alone(builders.gaussian("e", noise_std=2.0, run="run e"), dependent=True))
    paying = ValidationForm(records=100, disjoint=True, epsilon=(0.5).hex()).model_dump()
    with pytest.raises(LedgerError, match="it was chosen by a private validation set"):
        ledger.enter(planned_at(portfolio, "joint", dependent=True, b=1.0, validation=paying))
    assert "declares a, b, c" in command("ledger", "history", file)


def test_what_is_declared_is_what_is_released(tmp_path: Path) -> None:
    run = builders.dp_sgd("m", sigma=4.0, steps=5)
    declared, other = written(tmp_path / "p", Portfolio((run,))), tmp_path / "q"
    ledger = new(tmp_path / "ledger.db", declared=[declared])
    written(other, Portfolio((builders.gaussian("first", noise_std=1.0), run)))
    swapped = Portfolio((Portfolio(other).models[1],))
    choice = choose(swapped, "selection", delta=DELTA, weights=swapped.weights({"m": 1.0}))
    with pytest.raises(DependentRuns, match=r"'m' \(declared in entry 1\) and 'm' \(this release\) both are step 5"):
        release(swapped, choice, tmp_path / "out", ledger=ledger, dependent=True)
    assert len(ledger.history()) == 1


def test_without_a_provision_a_dependent_release_is_refused(tmp_path: Path) -> None:
    portfolio, ledger = written(tmp_path / "p"), new(tmp_path / "ledger.db")
    choice = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    for attempt in (release, preview):
        with pytest.raises(
            LedgerError, match=r"no rule for such a release\. A ledger must provide .* declares portfolios.* has a filter"
        ):
            attempt(portfolio, choice, tmp_path / "out", ledger=ledger, dependent=True)
    assert ledger.history() == []
    assert {path.name for path in tmp_path.iterdir()} == {"p", "ledger.db"}


@pytest.mark.parametrize(
    "wrong, complaint",
    [
        ({"filter_share": 1.0}, r"must lie in \[0, 1\)"),
        ({"filter_share": -0.1}, r"must lie in \[0, 1\)"),
        ({"filter_share": math.nan}, r"must lie in \[0, 1\)"),
        ({"filter_order": 8.0}, "no share of δ for it"),
        ({"declared": [Portfolio((builders.gaussian("x", noise_std=9.0),))]}, "no run id"),
    ],
)
def test_provisions_that_are_none(tmp_path: Path, wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(LedgerError, match=complaint):
        new(tmp_path / "ledger.db", **wrong)
    assert not (tmp_path / "ledger.db").exists()


def test_what_would_still_fit_instead_is_said_for_releases_that_depend_too(tmp_path: Path) -> None:
    portfolio = written(tmp_path / "p")
    ledger = new(tmp_path / "ledger.db", epsilon=2.0, delta=0.01, filter_share=0.02)
    release(
        portfolio,
        choose(portfolio, "selection", delta=0.01, weights=portfolio.weights({"c": 1.0})),
        tmp_path / "one",
        ledger=ledger,
    )
    assert what_fits(ledger, portfolio)["alone"] == ["c"]
    risky = choose(portfolio, "selection", delta=0.01, weights=portfolio.weights({"a": 1.0}))
    with pytest.raises(BudgetExceeded, match=r"in a filter with room for [\d.]+; what would still fit: c alone"):
        release(portfolio, risky, tmp_path / "two", ledger=ledger, dependent=True)
    closed = new(tmp_path / "closed.db", epsilon=7.0, filter_share=1e-6)
    closed.enter(planned_at(THREE, b=1.0))
    assert "so it is closed" in command("ledger", "show", str(tmp_path / "closed.db"))
    mild = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
    with pytest.raises(BudgetExceeded, match="no model of this portfolio would still fit alone"):
        release(portfolio, mild, tmp_path / "three", ledger=closed, dependent=True)


def test_a_refusal_shows_no_password() -> None:
    with pytest.raises(BudgetExceeded, match=r"^all models declared cost ε"):
        new("postgresql://u:secret@localhost/nothing", epsilon=0.01, declared=[THREE])
    with pytest.raises(LedgerError, match=r"^the ledger is for dataset 'other'"):
        new("postgresql://u:secret@localhost/nothing", dataset="other", declared=[THREE])
