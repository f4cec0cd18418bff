"""What every command, the library and the HTTP API must say alike: one question has one answer, and prints the same weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

import dpmerge as library
from attacks.victim import forge
from dpmerge.errors import PortfolioError, TargetError, UtilityError
from dpmerge.explorer.portfolio_state import PortfolioState
from dpmerge.figures import frontier as frontiers, heatmap
from dpmerge.jobs import run_all
from dpmerge.planning import frontier, heatmap as simplex
from dpmerge.profiles import ShuffleAsPoisson
from dpmerge.records import Model, Portfolio
from dpmerge.rules import (
    THEOREMS,
    WEIGHTS,
    Base,
    Combination,
    Exposure,
    Guarantee,
    Joint,
    Looked,
    PairComposition,
    Poisson,
    Releases,
    Rule,
    RuleName,
    Selection,
    Tempered,
    Validated,
    Validation,
    about_delta,
    require_wanted,
    tuning_cost,
)
from dpmerge.rules.joint import Composition
from tests import builders
from tests.explorer_builders import explorer
from tests.release_builders import DELTA, certificate, dpmerge, on_disk, runs

GIVEN = {"b": 0.5, "c": 0.5}  # the model left out, "a", is the least private one
TEXT = "b=0.5,c=0.5"
ROWS: dict[RuleName, str] = {
    "selection": "random selection",
    "combination": "linear combination (proved)",
    "joint": "joint release",
}


def answered(*arguments: object) -> Any:
    result = dpmerge(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shown_weights(printed: str) -> str:
    return next(line for line in printed.splitlines() if line.startswith("  weights: "))


# --- 12: the guarantee of one merge -------------------------------------------------------------------------------------------


def means(folder: Path) -> Portfolio:
    """Private means, of which a selection has a smaller δ if nobody learns which was drawn; `merge` tells."""
    sizes = {"a": 1.0, "b": 4.0, "c": 9.0}
    return on_disk(folder / "runs", *(builders.gaussian(name, noise_std=s, dimension=3) for name, s in sizes.items()))


@pytest.mark.parametrize("portfolio", [runs, means])
@pytest.mark.parametrize(
    ("rule", "provenance"),
    [("selection", None), ("combination", None), ("joint", None), ("joint", "after-looking"), ("joint", "a-priori")],
)
def test_every_surface_gives_one_answer(rule: RuleName, provenance: Looked | None, portfolio: Any, tmp_path: Path) -> None:
    loaded: Portfolio = portfolio(tmp_path)
    claimed = [] if provenance is None else ["--provenance", provenance]
    asked = [tmp_path / "runs", "--weights", TEXT, "--delta", DELTA, *claimed]
    account = dpmerge("account", *asked, "--rule", rule)
    merge = dpmerge("merge", *asked, "--rule", rule, "--out", tmp_path / "out")
    assert account.exit_code == merge.exit_code == 0, (account.output, merge.output)
    stored = {"standing", "assumptions"} if rule == "combination" else set()  # of real numbers, and of a file (theory.md §3.6)
    assert stored or account.stdout in merge.stdout, "the same sentence, theorem, weights and assumptions"
    assert shown_weights(merge.stdout) == "  weights: b=0.5, c=0.5"
    released = certificate(tmp_path / "out")
    assert released["rule"]["weights"] == {"b": "0x1.0000000000000p-1", "c": "0x1.0000000000000p-1"}
    compared = next(row for row in answered("compare", *asked)["rows"] if row["label"] == ROWS[rule])
    made: Rule = (
        library.joint(loaded, GIVEN, provenance=provenance) if rule == "joint" else getattr(library, rule)(loaded, GIVEN)
    )
    explored = PortfolioState(loaded).guarantee(rule, GIVEN, delta=DELTA, provenance=provenance)
    found = [
        answered("account", *asked, "--rule", rule),
        {key: value for key, value in compared.items() if key not in ("label", "refused")},
        json.loads(json.dumps(made.guarantee(delta=DELTA).as_dict())),
        json.loads(json.dumps(explored.as_dict())),
    ]
    assert found[0]["weights"] == {"a": 0.0, **GIVEN}
    assert all(one == found[0] for one in found)
    assert all(found[0][name] == value for name, value in released["guarantee"].items() if name not in stored)
    assert released["guarantee"]["standing"] == ("conditional" if stored else "proved")
    if rule == "joint" and provenance != "a-priori":
        planned = library.plan(loaded, epsilon=99.0, delta=DELTA, rules=("joint",)).options[0]
        assert planned.guarantee is not None
        assert (planned.epsilon, planned.guarantee.assumptions) == (found[0]["epsilon"], tuple(found[0]["assumptions"]))


def test_joint_release_counts_what_was_looked_at(tmp_path: Path) -> None:
    """Before, `account` counted b and c, `merge` all three, and `merge` printed weights that nothing had."""
    loaded = runs(tmp_path)
    looked = library.joint(loaded, GIVEN).guarantee(delta=DELTA)
    fixed = library.joint(loaded, GIVEN, provenance="a-priori").guarantee(delta=DELTA)
    assert looked.details["runs"] == ["run-a", "run-b", "run-c"] and fixed.details["runs"] == ["run-b", "run-c"]
    assert looked.epsilon > 2 * fixed.epsilon
    assert looked.weights == fixed.weights == {"a": 0.0, **GIVEN}
    assert WEIGHTS in fixed.assumptions and WEIGHTS not in looked.assumptions


def test_joint_release_is_the_guarantee_of_a_model_alone_in_a_plan(tmp_path: Path) -> None:
    loaded = runs(tmp_path)
    alone = library.plan(loaded, epsilon=99.0, delta=DELTA, rules=("single",)).options
    for option in alone:
        assert option.guarantee is not None
        own = library.joint(loaded, option.guarantee.weights, provenance="a-priori").guarantee(delta=DELTA)
        assert (option.epsilon, option.guarantee.assumptions) == (own.epsilon, own.assumptions)


@pytest.mark.parametrize("given", [GIVEN, {"a": 1.0}])
def test_an_average_that_is_accounted_as_joint_release_still_assumes_fixed_weights(given: dict[str, float]) -> None:
    """Adam is covered by no other theorem, and one model alone by one run's: which models have weight is not covered."""
    portfolio = builders.portfolio(*(builders.dp_sgd(name, sigma=4.0, optimizer="adam") for name in "abc"))
    found = library.combination(portfolio, given).guarantee(delta=DELTA)
    assert found.theorem in ("joint-release", "single-run") and found.assumptions.count(WEIGHTS) == 1
    assert found.assumptions == library.joint(portfolio, given, provenance="a-priori").guarantee(delta=DELTA).assumptions


def test_records_stated_by_users_count_also_where_they_were_only_looked_at() -> None:
    alone, other = builders.dp_sgd("a", sigma=4.0), builders.dp_sgd("b", sigma=4.0)
    stated = Model("b", other.record.model_copy(update={"source": "stated-by-user"}))
    given = Portfolio((alone, stated)).weights({"a": 1.0})
    for rule in (Joint(given, None, ("b",)), PairComposition(given, "basic", None, ("b",))):
        assert any("'b' was stated by its user" in text for text in rule.guarantee(delta=DELTA).assumptions)


@pytest.mark.parametrize("rule", ["selection", "combination"])
def test_weights_chosen_by_looking_are_refused_everywhere(rule: str, tmp_path: Path) -> None:
    runs(tmp_path)
    asked = [tmp_path / "runs", "--rule", rule, "--weights", TEXT, "--delta", DELTA, "--provenance", "after-looking"]
    for command in (["account", *asked], ["merge", *asked, "--out", tmp_path / "out"]):
        refused = dpmerge(*command).exception
        assert isinstance(refused, UtilityError) and f"not covered by {rule}" in str(refused)


def test_a_comparison_of_weights_chosen_by_looking_answers_as_a_release_does(tmp_path: Path) -> None:
    """Before, it printed selection and combination as proved."""
    loaded = runs(tmp_path)
    rows = library.compare(loaded, GIVEN, delta=DELTA, provenance="after-looking").rows
    assert [row.guarantee is None for row in rows] == [True] * 4 + [False] * 4
    assert all("chosen after looking at the models are not covered by" in str(row.refusal) for row in rows[:4])
    printed = dpmerge("compare", tmp_path / "runs", "--weights", TEXT, "--delta", DELTA, "--provenance", "after-looking")
    assert printed.exit_code == 0 and printed.stdout.count("refused, ") == 4
    explicit = library.compare(loaded, GIVEN, delta=DELTA, provenance="a-priori")
    assert all(row.guarantee is not None for row in explicit.rows[:4])


# --- 15: folders that are no models -------------------------------------------------------------------------------------------


def test_folders_that_hold_nothing_of_a_model_are_passed_over(tmp_path: Path) -> None:
    """Before, one folder of logs stopped every command."""
    loaded = runs(tmp_path)
    (tmp_path / "runs" / "logs").mkdir()
    (tmp_path / "runs" / "logs" / "events.txt").write_text("step 1")
    (tmp_path / "runs" / "notes").mkdir()
    again = Portfolio(tmp_path / "runs")
    assert again.passed_over == ("logs", "notes") and again == loaded
    asked = ["--rule", "joint", "--weights", TEXT, "--delta", DELTA]
    for command in (["account", *asked], ["account", "--alone"], ["merge", *asked, "--out", tmp_path / "out"]):
        result = dpmerge(command[0], tmp_path / "runs", *command[1:], "--json")
        assert result.exit_code == 0, result.output
        assert result.stderr.count("\n") == 1
        assert "passed over 'logs', 'notes': neither a record.json nor tensors" in result.stderr
        json.loads(result.stdout)
    checked = dpmerge("verify", tmp_path / "out", "--portfolio", tmp_path / "runs")
    assert checked.exit_code == 0 and "passed over" in checked.stderr


@pytest.mark.parametrize(
    "file",
    [
        *("model.safetensors", "pytorch_model.bin", "step-9/model.pt", "model.safetensors.index.json", "adapter_config.json"),
        *("weights.npz", "weights.npy", "model.h5", "flax_model.msgpack", "model.gguf", "model.onnx"),
    ],
)
def test_tensors_without_a_record_are_refused(file: str, tmp_path: Path) -> None:
    runs(tmp_path)
    (tmp_path / "runs" / "d" / file).parent.mkdir(parents=True)
    (tmp_path / "runs" / "d" / file).touch()
    with pytest.raises(
        PortfolioError, match=r"holds files of a model .* but no record\.json.*dpmerge\.training\.record writes one"
    ):
        Portfolio(tmp_path / "runs")


def test_a_link_that_points_nowhere_is_refused(tmp_path: Path) -> None:
    """Before, it was left out without a word, and joint release did not count it."""
    runs(tmp_path)
    (tmp_path / "runs" / "d").symlink_to(tmp_path / "moved", target_is_directory=True)
    with pytest.raises(PortfolioError, match=r"d: is a link that points nowhere.*mend the link, or remove it"):
        Portfolio(tmp_path / "runs")
    (tmp_path / "runs" / "d").rename(tmp_path / "runs" / ".d")
    Portfolio(tmp_path / "runs")


@pytest.mark.parametrize("place", ["d", "several/epsilon-1"])
def test_a_release_among_the_models_is_named_as_one(place: str, tmp_path: Path) -> None:
    runs(tmp_path)
    (tmp_path / "runs" / place).mkdir(parents=True)
    (tmp_path / "runs" / place / "certificate.json").write_text("{}")
    (tmp_path / "runs" / place / "model.safetensors").touch()
    with pytest.raises(PortfolioError, match=r"is a release .*without a record.json.*move it out"):
        Portfolio(tmp_path / "runs")


@pytest.mark.parametrize("out", ["runs/out", "runs/a/out", "linked/out"])
def test_an_output_inside_its_own_portfolio_is_refused_before_anything_is_written(out: str, tmp_path: Path) -> None:
    """Nothing is charged either."""
    loaded = runs(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "runs")
    ledger = tmp_path / "ledger.db"
    budget = ["--epsilon", 50, "--delta", DELTA, "--dataset", builders.DATASET, "--adjacency", loaded.adjacency]
    made = dpmerge("ledger", "new", ledger, *budget)
    assert made.exit_code == 0, made.output
    before = sorted(tmp_path.rglob("*"))
    asked = [tmp_path / "runs", "--delta", DELTA, "--ledger", ledger]
    alone = ["--rule", "joint", "--weights", TEXT]
    coupled = ["--rule", "selection", "--couple", "1,2"]
    for command in (["merge", *asked, *alone], ["merge", *asked, *coupled]):
        refused = dpmerge(*command, "--out", tmp_path / out).exception
        assert isinstance(refused, PortfolioError) and "inside the portfolio" in str(refused)
    for command in (
        ["frontier", tmp_path / "runs", "--delta", DELTA],
        ["frontier", tmp_path / "runs", "--simplex", "--delta", DELTA],
    ):
        refused = dpmerge(*command, "--out", tmp_path / out).exception
        assert isinstance(refused, PortfolioError)
    assert sorted(tmp_path.rglob("*")) == before
    assert answered("ledger", "remaining", ledger)["releases"] == 0


# --- 11: initialisation -------------------------------------------------------------------------------------------------------


def names_initialisation(assumptions: Iterable[str]) -> bool:
    return any("initialisation" in text and "depend on the data" in text for text in assumptions)


def test_every_theorem_that_stands_alone_assumes_it() -> None:
    """A guarantee prints what its theorem assumes; the one theorem about a rule inside another prints what that assumes."""
    missing = {key for key, theorem in THEOREMS.items() if not names_initialisation(theorem.assumptions)}
    assert missing == {"private-validation"}


def test_every_guarantee_prints_it(tmp_path: Path) -> None:
    portfolio = runs(tmp_path)
    given = portfolio.weights(GIVEN)
    rules: list[Rule] = [
        Selection(given),
        Tempered(given, 0.5),
        Combination(given),
        Combination(given, 0.0),
        Joint(given),
        Joint(portfolio.weights({"a": 1.0})),
        Releases(portfolio, [Exposure.drawn(given)]),
        Validated(Joint(given), Validation(100, disjoint=True), 0.1),
        Validated(Tempered(given, 0.5), Validation(100, disjoint=False), 0.1),
        *(PairComposition(given, name) for name in get_args(Composition)),
    ]
    for rule in rules:
        assert names_initialisation(rule.guarantee(delta=DELTA).assumptions), rule.name
    for base in (Base.gaussian(0.5), Base.recorded(portfolio.models[0])):
        assert names_initialisation(tuning_cost(base, Poisson(5.0), DELTA).assumptions)
    alone = answered("account", tmp_path / "runs", "--alone")["models"]
    assert all(names_initialisation(entry["assumptions"]) for entry in alone)
    assert "initialisation" in dpmerge("account", tmp_path / "runs", "--alone").stdout
    assert "initialisation" in heatmap.HOW_TO_READ and "initialisation" in frontiers.HOW_TO_READ


def test_plans_comparisons_and_verdicts_print_what_they_assume(tmp_path: Path) -> None:
    """Also plans in which nothing fits, options that are not the best, tables in a notebook, and what is conditional."""
    loaded, place, out = runs(tmp_path), tmp_path / "runs", tmp_path / "out"
    noise = "the noise of the release is fresh"  # of options that add some
    for epsilon in (3, 0.01):
        printed = dpmerge("plan", place, "--epsilon", epsilon, "--delta", DELTA)
        assert printed.exit_code == 0 and "initialisation" in printed.stdout
        assert ("the draw uses fresh, secure randomness [selection]" in printed.stdout) == (epsilon == 3)
        assert noise in printed.stdout
    for found in (
        library.plan(loaded, epsilon=3.0, delta=DELTA, rules=("joint", "single")),
        library.compare(loaded, GIVEN, delta=DELTA),
    ):
        assert "initialisation" in found._repr_html_() and names_initialisation(found.assumptions)
    assert dpmerge("merge", place, "--rule", "combination", "--weights", TEXT, "--delta", DELTA, "--out", out).exit_code == 0
    printed = dpmerge("verify", out)
    assert "· conditional: linear combination by transport, GDP\nassuming: each record" in printed.stdout
    shown = answered("verify", out)
    assert names_initialisation(shown["assumptions"]) and shown["assumptions"] == certificate(out)["guarantee"]["assumptions"]
    (out / "model.safetensors").write_bytes(b"")
    assert "certified: " not in dpmerge("verify", out).stdout, "of what does not hold nothing is certified"


# --- 14: δ that nobody can want -----------------------------------------------------------------------------------------------

SMALL = {"batch": 100.0}  # runs on a hundred records: every δ from 0.01 on is at least 1/n
BEWARE = "is at least 1/100, and if there are 100 records, the divisor in the record of model"


@pytest.mark.parametrize(
    ("changes", "delta", "warned"),
    [
        ({"batch": 100.0}, 0.01, True),
        ({"batch": 100.0}, 0.0099, False),
        ({"batch": 10.0, "sampling": 0.1}, 0.01, True),
        ({"batch": 10.0, "sampling": 0.1}, 0.0099, False),
    ],
)
def test_a_delta_of_one_over_n_is_warned_of(changes: dict[str, Any], delta: float, warned: bool) -> None:
    given = builders.portfolio(builders.dp_sgd("a", sigma=2.0, steps=5, **changes)).weights({"a": 1.0})
    found = Joint(given).guarantee(delta=delta)
    assert bool(found.warnings) == warned == (" · beware: " in str(found))
    back = Joint(given).guarantee(epsilon=found.epsilon)
    assert bool(back.warnings) == (back.delta >= 0.01), "also where δ is the answer"
    assert Guarantee.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_the_largest_number_that_a_record_tells_counts() -> None:
    few, many = builders.dp_sgd("few", sigma=2.0, batch=50.0), builders.dp_sgd("many", sigma=2.0, batch=1000.0)
    none = builders.gaussian("none", noise_std=1.0)
    assert about_delta(0.005, [many, none]) and not about_delta(0.005, [few]) and not about_delta(0.9, [none])
    assert "'many'" in about_delta(0.005, [many, few])[0], "a small one does not silence it"
    phases = [{"steps": 1, "learning_rate": 0.1}, {"steps": 1, "learning_rate": 0.1, "expected_batch": 5}]
    assert about_delta(0.005, [builders.dp_sgd("a", sigma=2.0, phases=phases)]), "nor does a small phase"


def test_shuffled_batches_tell_how_many_records_there_are_at_least() -> None:
    phases = [{"steps": 1, "learning_rate": 0.1, "sampling": {"scheme": "shuffle"}}]
    shuffled = builders.dp_sgd("a", sigma=2.0, batch=50.0, phases=phases)
    assert "there are at least 50 records" in about_delta(0.02, [shuffled])[0] and not about_delta(0.002, [shuffled])
    rate = ShuffleAsPoisson(0.05)
    assert "there are about 1000 records" in about_delta(0.002, [shuffled], rate)[0]
    given = builders.portfolio(shuffled).weights({"a": 1.0})
    for rule in (Joint(given, rate), Selection(given, rate), Combination(given, None, rate)):
        assert "about 1000 records" in rule.guarantee(delta=0.002).warnings[0]


def test_every_surface_warns(tmp_path: Path) -> None:
    loaded = runs(tmp_path, **SMALL)
    place, out = tmp_path / "runs", tmp_path / "out"
    asked = ["--weights", TEXT, "--delta", 0.01]
    ledger = tmp_path / "ledger.db"
    assert dpmerge("ledger", "new", ledger, "--epsilon", 9, "--delta", 0.01, "--dataset", builders.DATASET).exit_code == 0
    printed = {
        "account": dpmerge("account", place, "--rule", "joint", *asked),
        "compare": dpmerge("compare", place, *asked),
        "plan": dpmerge("plan", place, "--epsilon", 3, "--delta", 0.01, "--rule", "joint", "--rule", "single"),
        "alone": dpmerge("account", place, "--alone", "--delta", 0.01),
        "tuning": dpmerge("account", place, "--model", "a", "--tuning", "poisson", "--trials", 3, "--delta", 0.01),
        "merge": dpmerge("merge", place, "--rule", "joint", *asked, "--out", out, "--ledger", ledger),
        "verify": dpmerge("verify", out),
        "ledger": dpmerge("ledger", "remaining", ledger, "--portfolio", place),
    }
    for name, result in printed.items():
        assert result.exit_code == 0, (name, result.output)
        assert BEWARE in result.stdout, name
    assert BEWARE in printed["merge"].stderr, "before anything is written"
    assert all("warning: " in dpmerge("ledger", command, ledger).stdout for command in ("show", "history"))
    small = dpmerge(
        "merge", place, "--rule", "joint", "--weights", TEXT, "--delta", DELTA, "--out", tmp_path / "b", "--ledger", ledger
    )
    assert f"note: all releases together: δ = 0.01 {BEWARE}" in small.stdout
    assert "is at least 1/100" in (out / "README.md").read_text()
    assert BEWARE in certificate(out)["guarantee"]["warnings"][0]
    for command in (["verify", out], ["account", place, "--alone", "--delta", 0.01], ["ledger", "show", ledger]):
        assert "is at least 1/100" in answered(*command)["warnings"][0]
    with explorer(tmp_path) as client:
        card = client.get("/v1/models", params={"delta": 0.01}).json()["models"][0]
        assert any(BEWARE in text for text in card["warnings"])
        found = client.post("/v1/account", json={"rule": "joint", "weights": GIVEN, "delta": 0.01}).json()
        assert BEWARE in found["sentence"] and BEWARE in found["warnings"][0]
        for option in client.post("/v1/plan", json={"epsilon": 9.0, "delta": 0.01}).json()["options"]:
            assert "1/100" in option["sentence"] and option["warnings"]
    picture = frontier(loaded, delta=0.01, epsilons=[1.0], points=[(1.0, 0.0, 0.0)], run=partial(run_all, jobs=1))
    assert picture.warning is not None and BEWARE in picture.warning
    assert BEWARE in (simplex(loaded, delta=0.01, step=1.0, run=partial(run_all, jobs=1)).warning or "")


def test_nothing_is_said_where_delta_is_small(tmp_path: Path) -> None:
    """Certificates of before have the hash they had."""
    runs(tmp_path, **SMALL)
    asked = ["--rule", "joint", "--weights", TEXT, "--delta", DELTA]
    result = dpmerge("merge", tmp_path / "runs", *asked, "--out", tmp_path / "out")
    assert result.exit_code == 0 and "1/100" not in result.output
    assert "warnings" not in certificate(tmp_path / "out")["guarantee"]
    assert "Beware" not in (tmp_path / "out" / "README.md").read_text()


def test_a_certificate_cannot_warn_of_what_is_not_so(tmp_path: Path) -> None:
    """One without a warning that is due is an older one: it holds, and the recheck itself warns."""
    runs(tmp_path, **SMALL)
    out = tmp_path / "out"
    asked = ["--rule", "joint", "--weights", TEXT, "--delta", 0.01]
    assert dpmerge("merge", tmp_path / "runs", *asked, "--out", out).exit_code == 0

    forge(out, lambda content: content["guarantee"].pop("warnings"))
    assert not library.verify(out).broken and library.verify(out).warnings
    forge(out, lambda content: content["guarantee"].update(warnings=["of nothing"]))
    assert any("warnings" in text for text in library.verify(out).broken)


LARGE = "--any-delta"


def test_a_delta_above_one_in_a_hundred_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Before, δ = 0.5 was answered with ε = 0.0000, "proved"."""
    loaded = runs(tmp_path)
    place = tmp_path / "runs"
    commands = [
        ["account", place, "--rule", "joint", "--weights", TEXT],
        ["compare", place, "--weights", TEXT],
        ["plan", place, "--epsilon", 3],
        ["frontier", place, "--out", tmp_path / "f"],
        ["frontier", place, "--simplex", "--out", tmp_path / "h"],
        ["report", place, "--out", tmp_path / "r.html"],
        ["account", place, "--alone"],
        ["account", "--tuning", "poisson", "--run-mu", 1, "--trials", 3],
        ["merge", place, "--rule", "joint", "--weights", TEXT, "--out", tmp_path / "m"],
        ["ledger", "new", tmp_path / "l.db", "--epsilon", 3, "--dataset", "d"],
        ["run", "average", place, "--rule", "uniform", "--out", tmp_path / "a"],
        ["run", "predict", place, "--rule", "opa", "--task", "digits", "--out", tmp_path / "p.json"],
        ["run", "uncertainty", place, "--task", "digits", "--out", tmp_path / "u"],
        ["run", "choose", place, "--rule", "uta", "--values", "1", "--task", "digits", "--out", tmp_path / "t"],
    ]
    for command in commands:
        refused = dpmerge(*command, "--delta", 0.5).exception
        assert isinstance(refused, TargetError) and "more than one time in a hundred" in str(refused), command[0]
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    accepted = dpmerge(*commands[0], "--delta", 0.5, LARGE)
    assert accepted.exit_code == 0 and "(0.0000, 0.5)-DP" in accepted.stdout and "warning: δ = 0.5" in accepted.stdout
    calls: list[partial[Any]] = [
        partial(library.plan, loaded, epsilon=1.0, delta=0.02, rules=("joint",)),
        partial(library.compare, loaded, GIVEN, delta=0.02),
        partial(library.merge, loaded, GIVEN, out=tmp_path / "out", rule="joint", delta=0.02),
    ]
    for call in calls:
        with pytest.raises(TargetError, match="any_delta=True"):
            call()
        call(accounting=library.Accounting(any_delta=True))
    with explorer(tmp_path) as client:
        account: dict[str, Any] = {"rule": "joint", "weights": GIVEN, "delta": 0.5}
        plan = {"epsilon": 1.0, "delta": 0.5}
        posted = {"/v1/account": account, "/v1/plan": plan, "/v1/frontier": {"epsilons": [1.0], "delta": 0.5}}
        posted["/v1/releases/preview"] = {**account, "name": "one"}
        for path, body in posted.items():
            told = client.post(path, json=body)
            assert told.status_code in (400, 422) and "time in a hundred" in told.json()["detail"], path
            assert client.post(path, json={**body, "any_delta": True}).status_code in (200, 202), path
        for path in ("/v1/models", "/v1/simplex"):
            assert "time in a hundred" in client.get(path, params={"delta": 0.5}).json()["detail"]
            assert client.get(path, params={"delta": 0.5, "any_delta": True}).status_code == 200


def test_one_in_a_hundred_is_taken_and_rules_themselves_take_any() -> None:
    require_wanted(0.01)
    require_wanted(None)
    with pytest.raises(TargetError):
        require_wanted(math.nextafter(0.01, 1))
    alone = builders.portfolio(builders.gaussian("a", noise_std=1.0)).weights({"a": 1.0})
    assert Joint(alone).guarantee(delta=0.45).epsilon >= 0, "audits measure there"
