"""The report: one page that needs nothing else, says what it rests on, and tells nothing that it must not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import dpmerge
from dpmerge.errors import DpmergeError, FigureError, LedgerError, PortfolioError, TargetError, UtilityError
from dpmerge.explorer import ReportScope, report
from dpmerge.figures import page
from dpmerge.jobs import run_all
from dpmerge.planning import Utilities
from dpmerge.records import Portfolio
from dpmerge.release import Ledger
from dpmerge.rules import GLOSSARY, chance_of_guessing, round_up
from tests import builders
from tests.release_builders import DELTA, dpmerge as command, on_disk, runs
from tests.test_figures import without_plotly

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
Document = dict[str, Any]
QUICK = ("--points", 2, "--grid", 0.5, "--jobs", 1)


def document(portfolio: Portfolio, *epsilons: float, **options: Any) -> Document:
    return report(portfolio, ReportScope(DELTA, epsilons, points=2, step=0.5), run=one_process, **options)


def one_process(function: Any, items: Any, *, keys: Any) -> Any:
    return run_all(function, items, keys=keys, jobs=1)


def some(*names: str, **changes: Any) -> Portfolio:
    return builders.portfolio(
        *(builders.dp_sgd(name, sigma=4.0 + 6 * k, steps=10, smoothness=0.2, **changes) for k, name in enumerate(names))
    )


class _Outline(HTMLParser):
    """Tags in order, and whether they are closed in the order they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> list[str]:
    found = _Outline()
    found.feed(text)
    assert not found.open
    return found.tags


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs(folder)
    return folder / "runs"


# --- the command ------------------------------------------------------------------------------------------------------------


def test_one_page_of_what_the_json_says(three: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = command("report", three, "-o", out, *QUICK, "--json")
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert page(json.loads(result.stdout)) == out.read_text()
    before = out.read_bytes()
    again = command("report", three, "--out", out, *QUICK)
    assert again.exit_code == 0 and again.stdout.strip() == str(out)
    assert out.read_bytes() == before


def test_the_page_loads_nothing_and_is_well_formed(three: Path) -> None:
    from plotly.offline import get_plotlyjs

    text = page(document(Portfolio(three)))
    rest = without_plotly(text)
    assert text.count(get_plotlyjs()) == 1 and len(rest) < 500_000
    assert rest.startswith("<!DOCTYPE html>") and "default-src 'none'" in rest
    assert not re.search(r"<script[^>]*\ssrc|<link|<img|<iframe|@import|url\(|https?://", rest)
    tags = outline(rest)
    assert tags.count("h1") == 1 and tags.count("table") == tags.count("caption") and tags.count("figure") == 2
    assert len(re.findall(r"<th>", rest)) == 0 and 'scope="col"' in rest and 'scope="row"' in rest
    assert str(three) not in text and str(three.parent) not in text


def test_it_says_what_plan_and_account_say(three: Path) -> None:
    portfolio = Portfolio(three)
    found = document(portfolio, 0.5, 3.0)
    text = page(found)
    assert f"dpmerge {dpmerge.__version__}" in text and "test-data" in text and "add-remove neighbours" in text
    for model, card in zip(portfolio.names, found["models"], strict=True):
        alone = dpmerge.joint(portfolio, {model: 1.0}, provenance="a-priori")
        for by in ("pld", "rdp"):
            exact = alone.guarantee(delta=DELTA, by=by).epsilon
            assert card["epsilon"][by] == exact and round_up(exact) in text
    for plan, epsilon in zip(found["plans"], (0.5, 3.0), strict=True):
        expected = dpmerge.plan(portfolio, epsilon=epsilon, delta=DELTA, rules=("single", "selection", "combination", "joint"))
        assert [(one["rule"], one["epsilon"], one["weights"]) for one in plan["options"]] == [
            (one.rule, one.epsilon, one.weights.as_dict()) for one in expected.options
        ]
        best = plan["options"][0]
        assert best["feasible"] and f"<strong>{best['claim']}</strong>" in text
        assert "; ".join(best["assumptions"]) in text.replace("&#x27;", "'")
    assert "These targets were requested." in text and "✓ proved" in text
    assert [shape["x0"] for shape in _layout(text)["shapes"]] == [0.5, 3.0]


def _layout(text: str) -> Document:
    """The layout of the frontier, as plotly.js is given it."""
    given = re.search(r'Plotly\.newPlot\(\s*"frontier",\s*', without_plotly(text))
    assert given is not None
    reader = json.JSONDecoder()
    rest = without_plotly(text)[given.end() :]
    _, end = reader.raw_decode(rest)
    layout: Document = reader.raw_decode(rest[end:].lstrip(" ,\n"))[0]
    return layout


def test_targets_of_its_own_are_said_to_be(three: Path) -> None:
    portfolio = Portfolio(three)
    found = document(portfolio)
    alone = [card["epsilon"]["pld"] for card in found["models"]]
    low, middle, high = (plan["epsilon"] for plan in found["plans"])
    assert 0.45 * min(alone) < low <= 0.5 * min(alone) and low < middle < high
    assert max(alone) <= high < 1.01 * max(alone)
    assert "No targets were requested." in page(found)
    assert any(one["feasible"] and one["rule"] == "single" for one in found["plans"][-1]["options"])


def test_it_opens_with_a_paragraph_to_be_read_aloud() -> None:
    found = document(some("a", "b", convex="unclipped"), 0.5, 1.0, 2.0)
    best = next(option for option in found["plans"][1]["options"] if option["feasible"])
    opening = page(found).split("<h2>")[0]
    for words in (
        "For ε = 1:",
        "right 50 % of the time",
        f"{round_up(100 * chance_of_guessing(best['epsilon'], DELTA), 2)} % of the time",
        f"ε = {round_up(best['epsilon'])}",
        "Noise of standard deviation",
        "recipients who pool their copies know no more",
        *(f"<dt>{term}</dt>" for term in GLOSSARY),
    ):
        assert words in opening


def test_what_does_not_fit_says_why() -> None:
    found = document(some("a", "b"), 0.001, accounting=dpmerge.Accounting(only_release=False))
    text = page(found)
    assert not any(one["feasible"] for one in found["plans"][0]["options"])
    assert "Nothing fits. The closest is" in text and "is above 0.001" in text


def test_conditional_is_said_in_words_and_by_a_mark() -> None:
    portfolio = builders.portfolio(*(_shuffled(name) for name in ("a", "b")))
    found = document(portfolio, 2.0, accounting=dpmerge.Accounting(shuffle=dpmerge.ShuffleAsPoisson(1.0)))
    text = page(found)
    assert '<span class="standing conditional">◇ conditional</span>' in text
    assert '<span class="standing proved">' not in text
    assert any("shuffl" in warning for card in found["models"] for warning in card["warnings"])


def _shuffled(name: str) -> Any:
    made = builders.dp_sgd(name, sigma=8.0, steps=5, smoothness=0.2)
    mechanism = made.record.as_dict()["mechanism"] | {"sampling": {"scheme": "shuffle", "rate": None}}
    return builders.model(name, mechanism)


def test_an_accountant_that_does_not_apply_is_a_dash_with_its_reason() -> None:
    three = builders.portfolio(*(_fixed_size(name) for name in "abc"))
    found = document(three, 2.0)
    text = page(found)
    assert all("pld" not in card["epsilon"] and card["epsilon"]["rdp"] for card in found["models"])
    assert "fixed-size at rate 0.1" in text and "the accountant pld does not apply" in text
    assert "No figure of ε over all weights:" in text
    two = document(builders.portfolio(*(_fixed_size(name) for name in "ab")), 2.0)
    assert {line["by"] for line in two["weights"]["picture"]["lines"] if line["standing"] != "reference"} == {"rdp"}


def _fixed_size(name: str) -> Any:
    made = builders.dp_sgd(name, sigma=8.0, steps=5, smoothness=0.2, adjacency="replace-one")
    mechanism = made.record.as_dict()["mechanism"] | {"sampling": {"scheme": "fixed-size", "rate": 0.1}}
    return builders.model(name, mechanism, "replace-one")


# --- how many models --------------------------------------------------------------------------------------------------------


def test_two_models_have_a_curve_over_their_weights() -> None:
    portfolio = some("a", "b")
    found = document(portfolio, 1.0)
    picture = found["weights"]["picture"]
    selection, _, combination, _, target = picture["lines"]
    assert picture["kind"] == "lines" and selection["x"] == [0.0, 0.5, 1.0] and target["y"] == [1.0, 1.0]
    half = {"a": 0.5, "b": 0.5}
    for line, rule in ((selection, dpmerge.selection), (combination, dpmerge.combination)):
        exact = rule(portfolio, half).guarantee(delta=DELTA, by="pld").epsilon
        assert line["standing"] == "proved" and line["y"][1] == pytest.approx(exact, rel=5e-4)
    assert selection["y"][0] > selection["y"][2]  # the second model is the one with more noise
    text = page(found)
    assert "weight of b, the rest on a" in text and "target ε = 1" in text


def test_three_models_have_a_simplex(three: Path) -> None:
    found = document(Portfolio(three), 1.0)
    assert found["weights"]["picture"]["kind"] == "heatmap" and len(found["weights"]["picture"]["points"]) == 6
    assert "ε of every merge of three models" in page(found)


@pytest.mark.parametrize(
    ("names", "why"),
    [("a", "one model has no weights to choose"), ("abcd", "the weights of 4 models cannot be drawn in a plane")],
)
def test_other_numbers_of_models_say_why_there_is_no_such_picture(names: str, why: str) -> None:
    found = document(some(*names), 1.0)
    text = page(found)
    assert found["weights"]["picture"] is None and why in text
    assert outline(without_plotly(text)).count("figure") == 1


def test_a_poisson_portfolio() -> None:
    portfolio = builders.portfolio(
        *(builders.dp_sgd(name, sigma=sigma, sampling=0.01, steps=20) for name, sigma in (("a", 1.0), ("b", 4.0)))
    )
    text = page(document(portfolio, 1.0))
    assert "poisson at rate 0.01" in text and "dp-sgd" in text


def test_models_without_any_finite_epsilon() -> None:
    portfolio = builders.portfolio(builders.model("open", {"kind": "non-private"}))
    found = document(portfolio)
    text = page(found)
    assert [plan["epsilon"] for plan in found["plans"]] == [0.1, 1.0, 10.0]
    assert "no model has a finite ε" in text and "Nothing fits." in text and "∞" in text
    assert found["models"][0]["standing"] == "none"
    assert "✗ no guarantee" in text and '<span class="standing proved">' not in text


# --- what must not be told --------------------------------------------------------------------------------------------------


def test_names_are_never_markup(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    on_disk(folder, builders.dp_sgd(HOSTILE, sigma=4.0, smoothness=0.2), builders.dp_sgd("</b>".replace("/", ""), sigma=8.0))
    out = tmp_path / "r.html"
    assert command("report", folder, "-o", out, *QUICK).exit_code == 0
    rest = without_plotly(out.read_text())
    assert "<img" not in rest and "\\u003cimg" not in rest
    assert "&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;" in rest
    assert "img" not in outline(rest)


def test_every_text_is_escaped() -> None:
    found = document(some("a", "b"), 1.0)
    bad = "<i onload=1>\udc80\x00"
    for key in ("version", "dataset", "adjacency", "provenance", "utilities_source", "warning", "targets_chosen"):
        found[key] = bad
    for option in found["plans"][0]["options"]:
        for key in ("rule", "by", "sentence", "theorem", "theorem_title", "theorem_source", "utility_kind", "why"):
            option[key] = bad
        option |= {"assumptions": [bad], "weights": {bad: 1.0}, "details": {"revealed": {bad: bad}}}
    for card in found["models"]:
        card |= {"name": bad, "kind": bad, "warnings": [bad], "sampling": {"scheme": bad}}
    found["weights"] = {"picture": None, "why": bad}
    rest = without_plotly(page(found).encode().decode())
    assert "<i " not in rest and "&lt;i onload=1&gt;" in rest


def test_utilities_of_private_models_come_with_a_warning(three: Path, tmp_path: Path) -> None:
    scores = {"schema": 1, "measured_on": "public test", "models": "private", "utilities": {"a": 0.9, "b": 0.7, "c": 0.8}}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    out = tmp_path / "r.html"
    result = command("report", three, "-o", out, "--utility", tmp_path / "scores.json", "--epsilon", 1, *QUICK)
    assert result.exit_code == 0 and "note: The utilities on this page were measured on the private models" in result.output
    text = out.read_text()
    assert "no guarantee on this page covers them" in text and "after-looking" in text
    assert "the closest is" in text.lower() and "only joint release of every model looked at" in text


def test_private_validation_scores_are_never_shown(three: Path, tmp_path: Path) -> None:
    scores = {"schema": 1, "measured_on": "held out", "models": "private", "utilities": {"a": 0.9, "b": 0.7, "c": 0.8}}
    (tmp_path / "scores.json").write_text(json.dumps(scores | {"validation": {"records": 100, "disjoint": True}}))
    result = command("report", three, "-o", tmp_path / "r.html", "--utility", tmp_path / "scores.json", *QUICK)
    assert isinstance(result.exception, UtilityError) and "private validation set" in str(result.exception)
    assert not (tmp_path / "r.html").exists()


def test_the_ledger_without_its_paths(three: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "budget.ledger"
    Ledger.create(ledger, dataset=builders.DATASET, adjacency="add-remove", epsilon=2.0, delta=DELTA)
    portfolio = Portfolio(three)
    assert "Nothing was released yet." in page(document(portfolio, 1.0, ledger=str(ledger)))
    out = ("--out", tmp_path / "first", "--ledger", ledger, "--delta", DELTA)
    assert command("merge", three, "--rule", "selection", "--weights", "b=0.5,c=0.5", *out).exit_code == 0
    found = document(portfolio, 1.0, ledger=str(ledger))
    text = page(found)
    spent = found["ledger"]["budget"]["spent"]["epsilon"]
    assert f"together they have spent ε = {round_up(spent)}" in text and "Releases so far: 1" in text
    assert "Counted by: " in text
    assert "first: selection of b, c" in text and "completed entry 1" in text
    assert "a may still be drawn with probability up to" in text and "May still be released alone: b" in text
    assert str(tmp_path) not in text and str(tmp_path) not in json.dumps(found)


def test_what_the_budget_refuses_may_not_be_released(three: Path, tmp_path: Path) -> None:
    ledger, portfolio = tmp_path / "budget.ledger", Portfolio(three)
    alone = document(portfolio, 1.0)["plans"][0]["options"][0]
    Ledger.create(ledger, dataset=builders.DATASET, adjacency="add-remove", epsilon=alone["epsilon"] / 10, delta=DELTA)
    found = document(portfolio, 1.0, ledger=str(ledger))
    assert "Nothing that is known so far may be released" in found["aloud"][1]
    assert "What meets it exceeds the budget: all releases together would have ε = " in found["aloud"][1]
    best = found["plans"][0]["options"][0]
    assert alone["feasible"] and not best["feasible"] and best["why"].startswith("the ledger's total would be ε = ")
    assert str(tmp_path) not in json.dumps(found)


def test_with_a_ledger_its_delta_is_the_default(three: Path, tmp_path: Path) -> None:
    Ledger.create(tmp_path / "ledger.db", dataset=builders.DATASET, adjacency="add-remove", epsilon=2.0, delta=1e-3)
    asked = (*QUICK, three, "-o", tmp_path / "r.html", "--ledger", tmp_path / "ledger.db", "--json")
    assert json.loads(command("report", *asked).stdout)["delta"] == 1e-3


# --- refusals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["{missing}"], PortfolioError, "missing"),
        (["{three}", "--delta", "0"], TargetError, "strictly between 0 and 1"),
        (["{three}", "--epsilon", "-1"], TargetError, "epsilon is -1.0"),
        (["{three}", "--epsilon", "inf"], TargetError, "must be finite"),
        (["{three}", "--grid", "0.3"], TargetError, "does not divide 1"),
        (["{three}", "--shuffle-rate", "0.1"], TargetError, "--treat-shuffle-as-poisson"),
        (["{three}", "--utility", "a=1"], UtilityError, "no utility for model"),
        (["{three}", "--provenance", "after-looking"], UtilityError, "is about utilities, and none are given"),
        (["{three}", "--ledger", "{missing}"], LedgerError, "missing"),
        (["{three}", "-o", "{missing}/r.html"], FigureError, "its folder does not exist"),
        (["{three}", "-o", "{folder}"], FigureError, "it is a folder"),
        (["{three}", "-o", "{missing}.pdf"], FigureError, "must end in .html"),
    ],
)
def test_refusals(arguments: list[str], error: type[DpmergeError], words: str, three: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    places = {"missing": tmp_path / "missing", "three": three, "folder": tmp_path / "folder.html"}
    given = [argument.format(**places) for argument in arguments]
    result = command("report", *QUICK, *(given if "-o" in given else [*given, "-o", tmp_path / "r.html"]))
    assert isinstance(result.exception, error) and words in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_a_ledger_of_other_data_is_refused(three: Path, tmp_path: Path) -> None:
    Ledger.create(tmp_path / "l", dataset="other", adjacency="add-remove", epsilon=2.0, delta=DELTA)
    result = command("report", three, "-o", tmp_path / "r.html", "--ledger", tmp_path / "l", *QUICK)
    assert isinstance(result.exception, LedgerError) and not (tmp_path / "r.html").exists()


def test_a_document_that_is_no_report_is_refused_by_its_field(three: Path) -> None:
    found = document(Portfolio(three), 1.0)
    with pytest.raises(FigureError, match="field plans: Field required"):
        page({name: value for name, value in found.items() if name != "plans"})
    with pytest.raises(FigureError, match=r"field models\.0\.standing"):
        page({**found, "models": [{**found["models"][0], "standing": "certain"}]})


def test_a_folder_that_cannot_be_written(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.figures.drawing.os.access", lambda _, mode: not mode & os.W_OK)
    result = command("report", three, "-o", tmp_path / "r.html", *QUICK)
    assert isinstance(result.exception, FigureError) and "read-only" in str(result.exception)


def test_without_plotly_it_says_what_to_install(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    result = command("report", three, "-o", tmp_path / "r.html", *QUICK)
    assert isinstance(result.exception, FigureError) and "dpmerge[plots]" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_it_needs_no_server() -> None:
    code = "import sys, dpmerge.explorer.report, dpmerge.figures.report\nprint(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fastapi", "starlette", "uvicorn", "plotly", "torch"} & set(loaded)


def test_stated_utilities_are_those_of_the_table(three: Path) -> None:
    portfolio = Portfolio(three)
    stated = Utilities.stated(portfolio, {"a": 0.91, "b": 0.5, "c": 0.75})
    found = document(portfolio, 1.0, utility=stated)
    assert [card["utility"] for card in found["models"]] == [0.91, 0.5, 0.75]
    assert [model["utility"] for model in found["frontier"]["models"]] == [0.91, 0.5, 0.75]
    assert found["warning"] is None and "stated beforehand" in page(found)
