"""What every command, the library and the HTTP API must say alike: one question has one answer, and prints the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dpmerge as library
from dpmerge.errors import UtilityError
from dpmerge.explorer.portfolio_state import PortfolioState
from dpmerge.records import Model, Portfolio
from dpmerge.rules import Joint, Rule
from dpmerge.rules.asked import AskedName, Looked
from dpmerge.rules.baselines import PairComposition
from dpmerge.rules.theorems import WEIGHTS
from tests import builders
from tests.release_builders import DELTA, certificate, dpmerge, on_disk, runs

GIVEN = {"b": 0.5, "c": 0.5}  # the model left out, "a", is the least private one
TEXT = "b=0.5,c=0.5"
ROWS: dict[AskedName, str] = {
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
def test_every_surface_gives_one_answer(rule: AskedName, provenance: Looked | None, portfolio: Any, tmp_path: Path) -> None:
    loaded: Portfolio = portfolio(tmp_path)
    claimed = [] if provenance is None else ["--provenance", provenance]
    asked = [tmp_path / "runs", "--weights", TEXT, "--delta", DELTA, *claimed]
    account = dpmerge("account", *asked, "--rule", rule)
    merge = dpmerge("merge", *asked, "--rule", rule, "--out", tmp_path / "out")
    assert account.exit_code == merge.exit_code == 0, (account.output, merge.output)
    assert account.stdout in merge.stdout, "the same sentence, theorem, weights and assumptions"
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
    assert {name: found[0][name] for name in released["guarantee"]} == released["guarantee"]
    if rule == "joint" and provenance != "a-priori":
        planned = library.plan(loaded, epsilon=99.0, delta=DELTA, rules=("joint",)).options[0]
        assert (planned.epsilon, planned.assumptions) == (found[0]["epsilon"], tuple(found[0]["assumptions"]))


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
        own = library.joint(loaded, option.weights, provenance="a-priori").guarantee(delta=DELTA)
        assert (option.epsilon, option.assumptions) == (own.epsilon, own.assumptions)


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
