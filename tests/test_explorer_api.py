"""The explorer's API: every endpoint against the library, every refusal with the library's words, and many requests at once."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

import dpmerge
from dpmerge.errors import AccountingError, ExplorerError, JobError, UtilityError
from dpmerge.explorer import Door, Explorer
from dpmerge.explorer.jobs import Job, Jobs
from dpmerge.explorer.pages import PAGE
from dpmerge.explorer.plans import Plans
from dpmerge.explorer.releases import Releases
from dpmerge.explorer.telling import aloud, landscape_answer
from dpmerge.explorer.work import line
from dpmerge.planning import Landscape, simplex
from dpmerge.records import Portfolio
from dpmerge.rules import GLOSSARY, Accounting, Guarantee, RuleName, build, chance_of_guessing, round_up
from tests import builders, ledger_builders
from tests.explorer_builders import BEARER, DELTA, TOKEN, USUAL, ended, explorer, finished, portfolio, warm
from tests.release_builders import WEIGHTS, on_disk, runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    runs(folder)
    return folder


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[TestClient]:
    with explorer(home) as found:
        yield found


def is_problem(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert set(found) == {"type", "title", "status", "detail"}
    assert found["status"] == status
    assert "Traceback" not in response.text
    return str(found["detail"])


def test_health_and_description(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "version": dpmerge.__version__}
    described = client.get("/openapi.json").json()
    wanted = {"/v1/portfolio", "/v1/account", "/v1/plan", "/v1/frontier", "/v1/releases", "/v1/verify", "/healthz"}
    assert wanted <= set(described["paths"])
    page = client.get("/docs")
    assert page.status_code == 200
    assert "<script" not in page.text
    assert "/v1/frontier" in page.text


def test_the_page_and_its_files_are_served_by_name(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script" in page.text and "<style" not in page.text and 'style="' not in page.text
    for name in sorted(path.name for path in PAGE.iterdir()):
        assert client.get(f"/{name}").content == (PAGE / name).read_bytes()
    assert client.get("/app.js").headers["content-type"].startswith("text/javascript")
    for nothing in ("/app.py", "/pages.py", "/..%2Fapi.py", "/%2e%2e%2fapi.py", "/page/app.js", "/nothing"):
        is_problem(client.get(nothing), 404)


def test_portfolio_is_what_the_library_says(client: TestClient, home: Path) -> None:
    about = client.get("/v1/portfolio").json()
    loaded = portfolio(home)
    assert about["models"] == list(loaded.names)
    assert (about["delta"], about["provenance"], about["may_release"], about["has_ledger"]) == (DELTA, "a-priori", False, False)
    assert about["glossary"] == GLOSSARY
    found = client.get("/v1/models", params={"delta": 1e-6}).json()
    assert [card["name"] for card in found["models"]] == list(loaded.names)
    for card in found["models"]:
        for by in ("pld", "rdp"):
            own = dpmerge.joint(loaded, {card["name"]: 1.0}, provenance="a-priori").guarantee(delta=1e-6, by=by)
            assert card["epsilon"][by] == own.epsilon
        assert (card["steps"], card["sampling"]["scheme"], card["standing"]) == (10, "full-batch", "proved")


def test_a_model_without_privacy_has_no_epsilon(tmp_path: Path) -> None:
    runs(tmp_path)
    text = json.loads((tmp_path / "runs" / "a" / "record.json").read_text())
    text["mechanism"] = {"kind": "non-private"}
    (tmp_path / "runs" / "a" / "record.json").write_text(json.dumps(text))
    with explorer(tmp_path) as client:
        card = client.get("/v1/models").json()["models"][0]
        assert (card["epsilon"], card["standing"]) == ({"pld": None, "rdp": None}, "none")
        plan = warm(client)
        alone = next(o for o in plan["options"] if o["rule"] == "single" and o["weights"]["a"] == 1)
        assert (alone["epsilon"], alone["standing"]) == (None, "none")
        grid = client.get("/v1/simplex").json()["rules"]["selection"]
        assert "proved" not in {s for e, s in zip(grid["epsilons"], grid["standings"], strict=True) if e is None}
        assert not alone["feasible"]


@pytest.mark.parametrize("rule", ["selection", "combination", "joint"])
def test_account_is_the_librarys_guarantee(client: TestClient, home: Path, rule: str) -> None:
    found = client.post("/v1/account", json={"rule": rule, "weights": WEIGHTS, "delta": DELTA}).json()
    own = getattr(dpmerge, rule)(portfolio(home), WEIGHTS).guarantee(delta=DELTA)
    assert found["sentence"] == str(own)
    assert (found["epsilon"], found["standing"], found["theorem"]) == (own.epsilon, own.standing, own.theorem)
    back = client.post("/v1/account", json={"rule": rule, "weights": WEIGHTS, "epsilon": own.epsilon}).json()
    assert back["delta"] == pytest.approx(DELTA, rel=1e-3)


def test_what_is_conditional_says_so(client: TestClient) -> None:
    asked = {"rule": "combination", "weights": WEIGHTS, "delta": DELTA, "assume_smoothness": 0.0}
    assert client.post("/v1/account", json=asked).json()["standing"] == "conditional"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"weights": {"a": 0.5}}, "the weights sum to 0.5, not 1"),
        ({"weights": {"nobody": 1.0}}, "no model named 'nobody' in the portfolio"),
        ({"weights": {"../../a": 1.0}}, "no model named"),
        ({"weights": {"\ud800": 1.0}}, "no model named"),
        ({"weights": {"a": -1.0, "b": 2.0}}, "weights are finite and non-negative"),
        ({"delta": 2.0}, "delta is 2.0; it must lie strictly between 0 and 1"),
        ({"delta": 1e-320}, "delta: Input should be greater than or equal to 0.000"),
        ({"delta": None}, "one of the two is needed: a delta (to learn ε) or an epsilon"),
        ({"epsilon": 1.0}, "not both"),
        ({"assume_smoothness": 1.0}, "assume_smoothness has no meaning for selection"),
        ({"rule": "sum"}, "rule"),
        ({"portfolio": "/etc"}, "portfolio: Extra inputs are not permitted"),
        ({"weights": {"a": "1"}}, "weights.a"),
    ],
)
def test_account_refuses_in_the_command_lines_words(client: TestClient, change: dict[str, Any], words: str) -> None:
    asked = {"rule": "selection", "weights": {"a": 1.0}, "delta": DELTA, **change}
    response = client.post("/v1/account", content=json.dumps(asked), headers={"content-type": "application/json"})
    assert words in is_problem(response, 422)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[" * 60000,
        "null",
        "[]",
        '{"epsilon": NaN}',
        '{"epsilon": 1e999}',
        '{"epsilon": ' + "9" * 5000 + "}",
        "\x00",
        '"',
    ],
)
def test_bodies_that_are_no_requests(client: TestClient, body: str) -> None:
    response = client.post("/v1/plan", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    is_problem(response, response.status_code)


def test_bodies_of_other_encodings_are_refused(client: TestClient) -> None:
    response = client.post("/v1/plan", content=b"\xff\xfe\x00", headers={"content-type": "application/json"})
    is_problem(response, response.status_code)
    assert response.status_code in (400, 422)


def test_unknown_places_and_methods(client: TestClient) -> None:
    is_problem(client.get("/v1/nothing"), 404)
    is_problem(client.get("/v1/plan"), 405)
    for delta in ("nan", "inf", "0", "1", "-1", "1e-320", "x"):
        is_problem(client.get("/v1/models", params={"delta": delta}), 422)
    is_problem(client.get("/v1/jobs/unknown"), 404)
    is_problem(client.get("/v1/jobs/unknown/events"), 404)
    is_problem(client.delete("/v1/jobs/unknown", headers=BEARER), 404)
    is_problem(client.get("/v1/budget"), 404)


# --- plans --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.31, 0.5, 1.0, 2.0, 50.0])
def test_what_a_plan_says_fits_does(client: TestClient, home: Path, epsilon: float) -> None:
    """Every option that is said to fit is accounted again, by the library; none beats the search at the target."""
    warm(client)
    loaded = portfolio(home)
    found = client.post("/v1/plan", json={"epsilon": epsilon, "delta": DELTA}).json()
    best = dpmerge.plan(loaded, epsilon=epsilon, delta=DELTA)
    assert "single" in {option["rule"] for option in found["options"]}
    for option in found["options"]:
        if option["feasible"]:
            rule: RuleName = "combination" if option["rule"] == "single" else option["rule"]
            again = build(rule, loaded.weights(option["weights"]), noise=option["noise"]).guarantee(epsilon=epsilon)
            assert again.delta <= DELTA
    if found["best"] is not None:
        assert best.best is not None
        shown = found["options"][found["best"]]
        assert shown["feasible"]
        assert shown["expected_utility"] <= best.best.utility * 1.01  # type: ignore[operator]


def test_utilities_measured_on_private_models_forbid_a_choice_by_them(tmp_path: Path) -> None:
    measured = {"schema": 1, "measured_on": "a test set", "models": "private", "utilities": {"a": 0.9, "b": 0.5, "c": 0.7}}
    (tmp_path / "utilities.json").write_text(json.dumps(measured))
    with explorer(tmp_path, utility=str(tmp_path / "utilities.json")) as client:
        warm(client)
        found = client.post("/v1/plan", json={"epsilon": 1000.0}).json()
        assert found["provenance"] == "after-looking"
        assert {option["rule"] for option in found["options"] if option["feasible"]} == {"joint"}
        assert any("measured on the private models" in option["why"] for option in found["options"])
        asked = {"name": "one", "rule": "selection", "weights": WEIGHTS, "delta": DELTA}
        words = is_problem(client.post("/v1/releases/preview", json=asked), 422)
        assert "weights chosen after looking at the models are not covered by selection" in words


def test_a_full_plan_is_the_command_lines(client: TestClient, home: Path) -> None:
    response = client.post("/v1/plan", json={"epsilon": 0.7, "delta": DELTA, "effort": "full"})
    assert response.status_code == 202
    job = ended(client, response.json())
    best = dpmerge.plan(portfolio(home), epsilon=0.7, delta=DELTA).best
    assert best is not None
    assert job["state"] == "done"
    assert job["result"]["options"][job["result"]["best"]]["weights"] == best.weights.as_dict()


def test_the_latest_delta_is_planned_first_and_old_ones_are_let_go(client: TestClient) -> None:
    for exponent in range(3, 12):
        client.post("/v1/plan", json={"epsilon": 1.0, "delta": 10.0**-exponent})
    assert warm(client, 1e-11)["target"]["delta"] == 1e-11
    assert warm(client)["best"] is not None


# --- the knob -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Portfolio, TestClient]]:
    """Two convex models of one recipe, whose last iterates noise at release hides; a ledger with a budget."""
    folder = tmp_path_factory.mktemp("hidden")
    on_disk(folder / "runs", *(builders.dp_sgd(name, sigma=4.0, steps=10, smoothness=0.2, convex="unclipped") for name in "ab"))
    ledger_builders.new(folder / "ledger.db", epsilon=3.0)
    with explorer(folder, ledger=str(folder / "ledger.db"), allow_release=True) as found:
        warm(found)
        yield portfolio(folder), found


def test_the_line_is_what_the_library_guarantees_and_spans_the_slider(hidden: tuple[Portfolio, TestClient]) -> None:
    loaded, client = hidden
    line = client.get("/v1/line").json()
    assert line["done"] == line["total"] > 0
    low, high = line["range"]
    noisy = [point for point in line["points"] if point["noise"] > 0]
    assert len(noisy) >= 5
    assert noisy[0]["epsilon"] <= low
    assert line["points"][-1]["epsilon"] >= 0.9 * high
    for before, after in itertools.pairwise(line["points"]):  # nothing on it beats anything else
        assert before["epsilon"] < after["epsilon"] and before["expected_utility"] < after["expected_utility"]
    for point in noisy[::3]:
        own = build("combination", loaded.weights(point["weights"]), noise=point["noise"]).guarantee(delta=DELTA)
        assert (own.theorem, point["standing"]) == ("hidden-run", "proved")
        assert own.epsilon == pytest.approx(point["epsilon"], rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.2, 0.73, 1.5])
def test_where_the_slider_stands_still_the_noise_is_for_that_target(
    hidden: tuple[Portfolio, TestClient], epsilon: float
) -> None:
    loaded, client = hidden
    found = client.post("/v1/plan", json={"epsilon": epsilon, "effort": "exact"}).json()
    best = found["options"][found["best"]]
    assert best["noise"] > 0
    assert 0.98 * epsilon <= best["epsilon"] <= epsilon
    own = build("combination", loaded.weights(best["weights"]), noise=best["noise"]).guarantee(delta=DELTA)
    assert own.epsilon <= epsilon
    # Quick answers know it from now on, and it stands on the line.
    assert client.post("/v1/plan", json={"epsilon": epsilon}).json()["options"][found["best"]] == best
    assert best["noise"] in [point["noise"] for point in client.get("/v1/line").json()["points"]]
    # The paragraph says what the numbers are.
    text = " ".join(found["aloud"])
    for words in (
        "right 50 % of the time",
        f"more than {round_up(100 * chance_of_guessing(best['epsilon'], DELTA), 2)} % of the time",
        f"ε = {round_up(best['epsilon'])}",
        "proved",
        "no more than the one with the least noise",
    ):
        assert words in text
    assert len(best["plain_assumptions"]) == len(best["assumptions"])
    assert "Lipschitz" not in " ".join(best["plain_assumptions"])


def test_a_target_that_nothing_meets_is_said(home: Path) -> None:
    plan = dpmerge.plan(portfolio(home), epsilon=0.0, delta=DELTA, search=())
    assert aloud(plan) == ["Nothing that is known so far may be released for ε = 0 and δ = 1e-05."]


def test_noise_is_released_to_recipients_and_the_total_stays(hidden: tuple[Portfolio, TestClient]) -> None:
    client = hidden[1]

    def asked(epsilon: float, name: str) -> dict[str, Any]:
        plan = client.post("/v1/plan", json={"epsilon": epsilon, "effort": "exact"}).json()
        best = plan["options"][plan["best"]]
        weights = {model: weight for model, weight in best["weights"].items() if weight}
        kept = {"rule": "combination", "weights": weights, "noise": best["noise"], "delta": DELTA, "epsilon": epsilon}
        return {**kept, "name": name, "recipient": f"for {name}"}

    first = asked(1.0, "one")
    seen = client.post("/v1/releases/preview", json=first).json()
    assert seen["noise"] == first["noise"]
    assert seen["fits"]
    assert seen["after"][0].startswith(f"It adds ε = {round_up(seen['total']['epsilon'])} to what is spent.")
    assert "with any more noise is free" in seen["after"][1]
    made = finished(client, "/v1/releases", first, **BEARER)
    assert made["certificate"]["recipient"] == "for one"
    second = {**first, "noise": 3 * first["noise"], "name": "two", "recipient": "for two"}
    again = client.post("/v1/releases/preview", json=second).json()
    assert again["after"][0].startswith("It adds nothing to what is spent.")
    finished(client, "/v1/releases", second, **BEARER)
    entries = [entry for entry in client.get("/v1/releases").json()["entries"] if entry["kind"] == "release"]
    assert [entry["recipient"] for entry in entries] == ["for one", "for two"]
    assert entries[0]["noise"] == first["noise"]
    assert entries[0]["total"]["epsilon"] == entries[1]["total"]["epsilon"] == seen["total"]["epsilon"]
    for name in ("one", "two"):
        assert finished(client, "/v1/verify", {"name": name})["code"] == 0
    whole = {"rule": "joint", "weights": first["weights"], "delta": DELTA, "name": "three"}  # now each run counts whole
    after = client.post("/v1/releases/preview", json=whole).json()["after"]
    assert after[0].startswith("It would exceed the budget")
    assert after[1].startswith("Instead, ladder of ") and "is free now" in after[1]
    words = is_problem(client.post("/v1/releases/preview", json={**first, "rule": "selection", "name": "four"}), 422)
    assert "noise at release has no meaning for selection" in words


def test_the_page_begins_with_the_delta_of_the_budget(tmp_path: Path) -> None:
    ledger_builders.new(tmp_path / "ledger.db", delta=1e-3)
    with explorer(tmp_path, ledger=str(tmp_path / "ledger.db")) as client:
        assert client.get("/v1/portfolio").json()["delta"] == 1e-3
    with explorer(tmp_path, ledger=str(tmp_path / "ledger.db"), delta=1e-4) as client:
        assert client.get("/v1/portfolio").json()["delta"] == 1e-4
    with explorer(tmp_path) as client:
        assert client.get("/v1/portfolio").json()["delta"] == 1e-5


def test_beside_other_releases_of_a_model_only_the_total_holds(tmp_path: Path) -> None:
    on_disk(tmp_path / "runs", builders.dp_sgd("a", sigma=4.0, steps=10, smoothness=0.2, convex="unclipped"))
    ledger_builders.new(tmp_path / "ledger.db", epsilon=100.0)
    with explorer(tmp_path, ledger=str(tmp_path / "ledger.db"), allow_release=True) as client:
        asked = {"rule": "combination", "weights": {"a": 1.0}, "delta": DELTA, "noise": 0.01, "name": "noisy"}
        assert not any("other releases" in text for text in client.post("/v1/releases/preview", json=asked).json()["after"])
        finished(client, "/v1/releases", {"rule": "joint", "weights": {"a": 1.0}, "delta": DELTA, "name": "whole"}, **BEARER)
        seen = client.post("/v1/releases/preview", json=asked).json()
        assert seen["total"]["epsilon"] > seen["guarantee"]["epsilon"]
        assert "what holds is the total" in seen["after"][1]


# --- ε over the weights -------------------------------------------------------------------------------------------------------


def filled(client: TestClient, **query: Any) -> dict[str, Any]:
    """The grid once every point is known."""
    for _ in range(1200):
        found: dict[str, Any] = client.get("/v1/simplex", params={"delta": DELTA, **query}).json()
        if found["done"] == found["total"]:
            return found
        time.sleep(0.05)
    raise AssertionError("the grid was not filled")


def test_every_point_of_the_grid_is_the_librarys_guarantee(client: TestClient, home: Path) -> None:
    warm(client)
    found = filled(client)
    loaded = portfolio(home)
    assert found["models"] == list(loaded.names)
    assert len(found["points"]) == 66
    for rule in ("selection", "combination"):
        grid = found["rules"][rule]
        assert set(grid["standings"]) == {"proved"}
        for index in range(0, 66, 8):
            weights = dict(zip(loaded.names, found["points"][index], strict=True))
            own = getattr(dpmerge, rule)(loaded, weights).guarantee(delta=DELTA)
            assert grid["epsilons"][index] == own.epsilon
            asked = {"rule": rule, "weights": {name: w for name, w in weights.items() if w}, "delta": DELTA}
            assert client.post("/v1/account", json=asked).json()["epsilon"] == own.epsilon


def test_points_of_the_grid_are_candidates_for_plans(client: TestClient, home: Path) -> None:
    """A plan is never worse than the best point of the grid that fits."""
    warm(client)
    found = filled(client)
    question = dpmerge.Question(portfolio(home), DELTA)
    for epsilon in (0.5, 1.0, 2.0):
        plan = client.post("/v1/plan", json={"epsilon": epsilon, "delta": DELTA}).json()
        fits = [
            getattr(question.worth, worth)(point)
            for rule, worth in (("selection", "drawn"), ("combination", "averaged"))
            for point, known in zip(found["points"], found["rules"][rule]["epsilons"], strict=True)
            if known <= epsilon
        ]
        assert plan["options"][plan["best"]]["expected_utility"] >= max(fits) - 1e-12


def test_a_grid_between_two_models_and_its_refusals(client: TestClient) -> None:
    assert len(filled(client, model=["a", "c"])["points"]) == 51
    for models, words in (
        (["a"], "needs two or three different models"),
        (["a", "a"], "needs two or three different models"),
        (["a", "nobody"], "no model named 'nobody'"),
    ):
        assert words in is_problem(client.get("/v1/simplex", params={"model": models}), 422)
    is_problem(client.get("/v1/simplex", params={"model": ["a", "b", "c", "a"]}), 422)


def test_grids_are_coarse_first_and_say_what_is_not_known_or_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(simplex._STEPS, 3, USUAL)
    grid = Landscape(portfolio(home), ("a", "b", "c"))
    assert sorted(grid.order) == list(range(231))
    assert [max(grid.points[index]) for index in grid.order[:3]] == [1.0] * 3
    assert set(landscape_answer(grid)["rules"]["selection"]["standings"]) == {"pending"}

    def refuse(*_: Any) -> Any:
        raise AccountingError("no theorem")

    assert grid.advance(refuse) == ("selection", None)
    shown = landscape_answer(grid)
    assert shown["rules"]["selection"]["standings"].count("refused") == shown["done"] == 1


def test_what_is_counted_is_there_for_whoever_reads_meanwhile(home: Path) -> None:
    """The page asks no more when all is done."""
    grid = Landscape(portfolio(home), ("a", "c"))
    counted = []

    def refuse(*_: Any) -> Any:
        counted.append(grid.done)
        raise AccountingError("no theorem")

    class GrowsWhenItWasRead(dict[Any, Any]):
        def items(self) -> Any:
            yield from super().items()
            grid.advance(refuse)

    grid.advance(refuse)
    grid.found = GrowsWhenItWasRead(grid.found)
    shown = landscape_answer(grid)
    assert grid.done == 2 and shown["done"] == shown["rules"]["selection"]["standings"].count("refused") == 1
    assert counted == [0, 1]


def test_points_of_the_knob_are_counted_when_they_are_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, learn = [], Plans.learn

    def learning(self: Plans, options: Any) -> None:
        counted.append((self.turned, self.knob.done))
        learn(self, options)

    monkeypatch.setattr(Plans, "learn", learning)
    plans = Plans(portfolio(home), None, Accounting(), DELTA, 3, lambda *_: None)  # type: ignore[arg-type]
    assert plans.knob.total > 3
    for _ in range(3):
        plans.advance()
    assert counted == [(0, 1), (1, 2), (2, 3)]
    assert plans.done == line(plans)["done"] == 3


def test_with_many_models_the_corners_are_chosen_by_privacy(tmp_path: Path) -> None:
    noise = {"loud": 50.0, "m1": 20.0, "m2": 9.0, "quiet": 3.0}
    models = [builders.dp_sgd(name, sigma=sigma, steps=10, smoothness=0.2) for name, sigma in noise.items()]
    on_disk(tmp_path / "runs", *models)
    with explorer(tmp_path) as client:
        assert client.get("/v1/simplex").json()["models"] == ["loud", "m2", "quiet"]
        assert client.get("/v1/simplex", params={"model": ["m1", "m2"]}).json()["models"] == ["m1", "m2"]


def test_background_work_that_fails_is_given_up_and_the_rest_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    advance, delta = Plans.advance, 3e-7  # other servers of these tests may still be at work, at other δ

    def fail(self: Plans) -> None:
        if self.delta == delta:
            raise ZeroDivisionError("unexpected")
        advance(self)

    monkeypatch.setattr(Plans, "advance", fail)
    with explorer(tmp_path, delta=delta) as client:
        for _ in range(3):
            found = client.post("/v1/plan", json={"epsilon": 1.0, "delta": delta}).json()
            assert {option["rule"] for option in found["options"]} == {"single", "joint"}
    assert [record.message for record in caplog.records].count("computing plans in the background failed") == 1


# --- jobs ---------------------------------------------------------------------------------------------------------------------


def test_a_frontier_is_a_job_with_events(client: TestClient) -> None:
    started = client.post("/v1/frontier", json={"delta": DELTA, "epsilons": [0.5, 1.0, 2.0], "points": 3})
    assert started.status_code == 202
    with client.stream("GET", f"/v1/jobs/{started.json()['id']}/events") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        text = "".join(events.iter_text())
    last = text.strip().split("\n\n")[-1]
    assert last.startswith("event: end\ndata: ")
    assert json.loads(last.split("data: ")[1])["state"] == "done"
    result = ended(client, started.json())["result"]
    assert result["kind"] == "frontier"
    assert {curve["rule"] for curve in result["curves"]} == {"noised", "selection", "combination"}


def test_a_job_stops_where_it_is_cancelled(client: TestClient) -> None:
    job = client.post("/v1/frontier", json={"delta": 1e-7, "epsilons": [1.0], "points": 100}).json()
    assert client.delete(f"/v1/jobs/{job['id']}", headers=BEARER).status_code == 202
    assert ended(client, job)["state"] == "cancelled"


def test_jobs_fail_with_one_line_and_never_with_a_traceback() -> None:
    def impossible(job: Job) -> None:
        raise JobError("two\nlines")

    def broken(job: Job) -> None:
        raise ZeroDivisionError("secret")

    jobs = Jobs()
    for work, words in ((impossible, "two lines"), (broken, "the server's terminal")):
        job = jobs.start("test", work)
        for _ in range(100):
            if job.state != "running":
                break
            time.sleep(0.02)
        assert job.state == "failed"
        assert words in str(job.problem)
        assert "secret" not in str(job.problem)


def test_too_many_jobs_are_refused(client: TestClient) -> None:
    asked = [{"delta": 1e-8, "epsilons": [epsilon], "points": 100} for epsilon in (1.0, 2.0, 3.0)]
    responses = [client.post("/v1/frontier", json=one) for one in asked]
    assert [response.status_code for response in responses][:2] == [202, 202]
    assert "jobs are running already" in is_problem(responses[2], 429)
    again = client.post("/v1/frontier", json=asked[0])
    assert again.json()["id"] == responses[0].json()["id"]  # the same question is the same job
    for response in responses[:2]:
        client.delete(f"/v1/jobs/{response.json()['id']}", headers=BEARER)
        ended(client, response.json())


# --- releases -----------------------------------------------------------------------------------------------------------------


def test_release_history_verify_tamper(tmp_path: Path) -> None:
    runs(tmp_path)
    ledger = tmp_path / "ledger.db"
    ledger_builders.new(ledger, epsilon=8.0)
    with explorer(tmp_path, allow_release=True, ledger=str(ledger)) as client:
        asked = {"name": "first", "rule": "combination", "weights": WEIGHTS, "delta": DELTA}
        before = client.get("/v1/budget").json()
        assert (before["releases"], before["spent"]["epsilon"]) == (0, 0.0)
        shown = client.post("/v1/releases/preview", json=asked).json()
        assert shown["fits"] is True
        assert shown["budget"] == {"epsilon": 8.0, "delta": before["budget"]["delta"]}
        assert client.get("/v1/releases").json()["folders"] == []
        made = finished(client, "/v1/releases", asked, **BEARER)
        assert made["certificate"]["guarantee"]["epsilon"] == shown["guarantee"]["epsilon"]
        written = {path.name for path in (tmp_path / "runs" / ".releases" / "first").iterdir()}
        assert sorted(written) == sorted(shown["files"])  # exactly what was shown
        assert shown["files_if_drawn"] == {}
        assert shown["keeps_openings"] == (tmp_path / "runs" / ".dpmerge" / "openings").exists()
        after = client.get("/v1/budget").json()
        assert not before["spent"]["assumptions"] and after["spent"]["assumptions"]
        assert after["spent"]["epsilon"] == pytest.approx(shown["total"]["epsilon"])
        assert (before["counted"], after["counted"][0][:10]) == ([], "counted by")
        history = client.get("/v1/releases").json()
        assert [entry["kind"] for entry in history["entries"]] == ["release", "completed"]
        assert history["folders"] == [{"name": "first", "entry": 1}]
        assert str(tmp_path) not in json.dumps(history)
        assert finished(client, "/v1/verify", {"name": "first"})["code"] == 0
        assert "exists already" in is_problem(client.post("/v1/releases/preview", json=asked), 422)
        assert "exist" in is_problem(client.post("/v1/releases", json=asked, headers=BEARER), 422)
        tensors = tmp_path / "runs" / ".releases" / "first" / "model.safetensors"
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
        verdict = finished(client, "/v1/verify", {"name": "first"})
        assert verdict["code"] == 1
        assert verdict["sentence"] == "it does NOT hold"


def test_a_release_beyond_the_budget_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    runs(tmp_path)
    ledger = tmp_path / "ledger.db"
    ledger_builders.new(ledger, epsilon=0.5)
    with explorer(tmp_path, allow_release=True, ledger=str(ledger)) as client:
        asked = {"name": "much", "rule": "joint", "weights": {"a": 1.0}, "delta": DELTA}
        assert client.post("/v1/releases/preview", json=asked).json()["fits"] is False
        job = ended(client, client.post("/v1/releases", json=asked, headers=BEARER).json())
        assert job["state"] == "failed"
        assert "this release would bring the total to" in job["problem"]
        assert client.get("/v1/releases").json()["folders"] == []


def test_a_release_that_misses_its_target_is_refused(tmp_path: Path) -> None:
    with explorer(tmp_path, allow_release=True) as client:
        asked = {"name": "one", "rule": "joint", "weights": {"a": 1.0}, "delta": DELTA, "epsilon": 0.01}
        assert "which is above 0.01" in is_problem(client.post("/v1/releases", json=asked, headers=BEARER), 422)
        preview = client.post("/v1/releases/preview", json={**asked, "epsilon": 100.0}).json()
        assert preview["fits"] is None
        assert preview["notes"] == ["no ledger: releases from this data are not being added up"]


def test_a_release_that_has_begun_cannot_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, on = threading.Event(), threading.Event()
    release = Releases.release

    def slowly(self: Releases, *arguments: Any) -> Any:
        begun.set()
        assert on.wait(20)
        return release(self, *arguments)

    monkeypatch.setattr(Releases, "release", slowly)
    with explorer(tmp_path, allow_release=True) as client:
        asked = {"name": "one", "rule": "joint", "weights": {"a": 1.0}, "delta": DELTA}
        job = client.post("/v1/releases", json=asked, headers=BEARER).json()
        assert begun.wait(20)
        assert "cannot be stopped" in is_problem(client.delete(f"/v1/jobs/{job['id']}", headers=BEARER), 409)
        on.set()
        found = ended(client, job)
        assert (found["state"], found["done"], found["total"]) == ("done", found["total"], found["done"])
        assert finished(client, "/v1/verify", {"name": "one"})["code"] == 0


def test_a_portfolio_that_changed_is_not_released_from(tmp_path: Path) -> None:
    """Guarantees come from the records that were read at the start, tensors from the disk: they must belong together."""
    with explorer(tmp_path, allow_release=True) as client:
        asked = {"name": "one", "rule": "combination", "weights": {"b": 1.0}, "delta": DELTA}
        finished(client, "/v1/releases", asked, **BEARER)
        for name in ("record.json", "model.safetensors"):
            (tmp_path / "runs" / "b" / name).write_bytes((tmp_path / "runs" / "a" / name).read_bytes())
        for path in ("/v1/releases/preview", "/v1/releases"):
            response = client.post(path, json={**asked, "name": "two"}, headers=BEARER)
            assert "the portfolio has changed since the explorer started" in is_problem(response, 422)
        job = ended(client, client.post("/v1/verify", json={"name": "one"}).json())
        assert "the portfolio has changed" in job["problem"]
        assert not (tmp_path / "runs" / ".releases" / "two").exists()


def test_a_release_is_finished_before_the_server_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = Releases.release

    def slowly(self: Releases, *arguments: Any) -> Any:
        time.sleep(1.0)
        return release(self, *arguments)

    monkeypatch.setattr(Releases, "release", slowly)
    with explorer(tmp_path, allow_release=True) as client:
        asked = {"name": "one", "rule": "joint", "weights": {"a": 1.0}, "delta": DELTA}
        assert client.post("/v1/releases", json=asked, headers=BEARER).status_code == 202
    assert (tmp_path / "runs" / ".releases" / "one" / "certificate.json").is_file()


def test_a_job_that_stops_or_is_over_answers_nobody_else() -> None:
    jobs, on = Jobs(), threading.Event()
    first = jobs.start("plan", lambda job: on.wait(20), "q")
    assert jobs.start("plan", lambda job: None, "q") is first
    first.cancel()
    second = jobs.start("plan", lambda job: "new", "q")
    assert second is not first
    on.set()
    while second.state == "running":
        time.sleep(0.01)
    assert jobs.start("plan", lambda job: None, "q") is not second
    kept = jobs.start("frontier", lambda job: "kept", "q", reuse_finished=True)
    while kept.state == "running":
        time.sleep(0.01)
    assert jobs.start("frontier", lambda job: None, "q", reuse_finished=True) is kept


def test_a_verdict_that_nobody_waits_for_any_more(tmp_path: Path) -> None:
    jobs, on = Jobs(), threading.Event()
    job = jobs.start("verify", lambda job: on.wait(20))
    job.cancel()
    on.set()
    for _ in range(100):
        if job.state != "running":
            break
        time.sleep(0.02)
    assert (job.state, job.result) == ("cancelled", None)


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    runs(tmp_path)
    for name, make in (("linked", lambda path: path.symlink_to("/etc/passwd")), ("piped", os.mkfifo), ("folder", Path.mkdir)):
        place = tmp_path / "runs" / ".releases" / name
        place.mkdir(parents=True)
        make(place / "certificate.json")
    with explorer(tmp_path) as client:
        for name in ("linked", "piped", "folder"):
            job = ended(client, client.post("/v1/verify", json={"name": name}).json())
            assert job["problem"] == f"release {name!r}: 'certificate.json' is not a plain file; no file was opened"


def test_a_place_for_releases_that_is_a_link(tmp_path: Path) -> None:
    runs(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / ".releases").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ExplorerError, match="not a folder; choose a folder for releases"), explorer(tmp_path):
        pass


def test_scores_on_a_private_validation_set_are_refused_at_the_start(tmp_path: Path) -> None:
    scores = {"schema": 1, "measured_on": "v", "models": "private", "utilities": {"a": 0.9, "b": 0.5, "c": 0.7}}
    (tmp_path / "u.json").write_text(json.dumps(scores | {"validation": {"records": 100, "disjoint": True}}))
    with pytest.raises(UtilityError, match="private validation set"), explorer(tmp_path, utility=str(tmp_path / "u.json")):
        pass


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    """However many corners are looked at, few grids stay; and of what was found only what nothing else beats."""
    loaded = runs(tmp_path)
    alone = {name: dpmerge.joint(loaded, {name: 1.0}, provenance="a-priori").guarantee(delta=DELTA) for name in loaded.names}

    def account(rule: str, weights: Any) -> Guarantee:  # any guarantee will do here, and the real ones take long
        epsilon = sum(weight * alone[name].epsilon for name, weight in weights.items())
        return replace(alone["a"], epsilon=epsilon, rule=rule, weights=weights)

    plans = Plans(loaded, None, Accounting(any_delta=True), DELTA, 3, account)
    for corners in itertools.permutations(loaded.names):
        plans.landscape(corners)
    for corners in itertools.permutations(loaded.names, 2):
        plans.landscape(corners)
    assert len(plans.landscapes) == 8
    while not plans.complete:
        plans.advance()
    for rule in ("selection", "combination"):
        found = plans.known.known[rule]
        assert 0 < len(found) < 231
        assert not any(one.beats(other) for one, other in itertools.permutations(found, 2))


def test_listeners_leave_room_for_others(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.explorer.api._LISTENERS", 0)
    job = client.post("/v1/frontier", json={"delta": DELTA, "epsilons": [0.5, 1.0, 2.0], "points": 3}).json()
    assert "too many clients are following jobs" in is_problem(client.get(f"/v1/jobs/{job['id']}/events"), 429)


# --- many at once -------------------------------------------------------------------------------------------------------------


def post(port: int, epsilon: float) -> tuple[int, dict[str, Any]]:
    """A plan over a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/plan", json.dumps({"epsilon": epsilon}), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_two_hundred_plans_at_once_on_a_real_server(tmp_path: Path) -> None:
    """200 clients with a connection each, 200 different targets, sent together after warm-up.

    Processor time of all of them, clients included: the wall time of each says how busy the machine is (docs/benchmarks.md).
    """
    runs(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = Explorer(tmp_path / "runs", Door(port=port, token=TOKEN), targets=9).app()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(200):
            if server.started:
                break
            time.sleep(0.05)
        while (warming := post(port, 1.0)[1]["warming"])["done"] < warming["total"]:
            time.sleep(0.05)
        together = threading.Barrier(200)

        def ask(index: int) -> int:
            together.wait()
            return post(port, 0.1 + index / 50)[0]

        begun = time.process_time()
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(ask, range(200)))
        spent = time.process_time() - begun
    finally:
        server.should_exit = True
        thread.join(20)
    assert set(answers) == {200}
    assert spent < 4.0, spent
