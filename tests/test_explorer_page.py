"""The explorer's page in a real browser: what it shows is what the API and the library say, by mouse and by keyboard alike."""

from __future__ import annotations

import json
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

import dpmerge
from dpmerge.explorer import work
from dpmerge.explorer.jobs import Job
from dpmerge.records import Portfolio
from dpmerge.rules import GLOSSARY, chance_of_guessing, round_up
from tests import builders, ledger_builders
from tests.browser import DESKTOP, PHONE, SMALL, Server, Visit, a_browser, another, revisiting, serving, visiting
from tests.explorer_builders import DELTA, TOKEN
from tests.release_builders import on_disk

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

QUICK_MS = 400  # 150 on a machine that has nothing else to do; the suite keeps both cores busy
TYPED = {"a": 0.125, "b": 0.625, "c": 0.25}  # off the grid, and exact
TWO = [builders.dp_sgd(name, sigma=sigma, steps=10, smoothness=0.2) for name, sigma in (("a", 4.0), ("b", 40.0))]
EVIL = "<img src=x onerror=document.title='inside'>"
EVIL_DATASET = "<script>document.title='inside'</script>"


# --- servers and visits -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    yield from a_browser()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Three models, utilities, a ledger with room, and releases allowed."""
    folder = tmp_path_factory.mktemp("explorer")
    ledger_builders.new(folder / "ledger.db", epsilon=100.0)
    with serving(folder, ledger=str(folder / "ledger.db"), utility="a=0.9,b=0.5,c=0.8", allow_release=True) as found:
        yield found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models; no ledger, and no releases allowed."""
    folder = tmp_path_factory.mktemp("two")
    on_disk(folder / "runs", *TWO)
    with serving(folder, targets=2) as found:
        yield found


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four models, and a ledger whose budget is too small for any."""
    folder = tmp_path_factory.mktemp("four")
    noise = {"a": 4.0, "b": 40.0, "c": 10.0, "d": 20.0}
    on_disk(folder / "runs", *(builders.dp_sgd(name, sigma=sigma, steps=10) for name, sigma in noise.items()))
    ledger_builders.new(folder / "ledger.db", epsilon=0.01)
    with serving(folder, targets=2, ledger=str(folder / "ledger.db"), allow_release=True) as found:
        yield found


@pytest.fixture(scope="module")
def conditional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models, one trained on shuffled batches that the user has accounted as Poisson ones; names that try to run."""
    folder = tmp_path_factory.mktemp("conditional")
    shuffled = builders.dp_sgd(EVIL, sigma=4.0, steps=3, batch=100.0).record.model_dump(by_alias=True, mode="json")["mechanism"]
    shuffled |= {"sampling": {"scheme": "shuffle"}}
    plain = builders.dp_sgd("b", sigma=8.0, steps=3).record.model_dump(by_alias=True, mode="json")["mechanism"]
    models = (builders.model(EVIL, shuffled, dataset=EVIL_DATASET), builders.model("b", plain, dataset=EVIL_DATASET))
    on_disk(folder / "runs", *models)
    with serving(folder, targets=2, accounting=dpmerge.Accounting(shuffle=dpmerge.ShuffleAsPoisson())) as found:
        yield found


READY = """() => document.querySelector('#frontier svg') && document.getElementById('aloud').dataset.exact
    && document.getElementById('models').childElementCount
    && document.getElementById('weights-progress').textContent === '' && document.getElementById('warming').textContent === ''
    && document.getElementById('verdict').dataset.target && document.getElementById('releases').childElementCount"""


@contextmanager
def opened(server: Server, chromium: Browser, ready: str = READY, **options: Any) -> Iterator[Visit]:
    """The page once everything on it is known; when it is left, nothing may have gone wrong on it."""
    with visiting(server, chromium, **options) if options else revisiting(server, chromium) as visit:
        visit.page.goto(server.url)
        visit.page.wait_for_function(ready, timeout=120_000)  # some seconds of work, more where the machine is busy
        yield visit
        visit.assert_clean()


@pytest.fixture(scope="module")
def desk(server: Server, chromium: Browser) -> Iterator[Visit]:
    """One page of the three models, for the tests that leave nothing behind on it."""
    with opened(server, chromium) as found:
        yield found


@pytest.fixture
def visit(desk: Visit) -> Iterator[Visit]:
    """That page as at its beginning; when it is left, nothing may have gone wrong on it."""
    page = desk.page
    page.evaluate("document.querySelectorAll('dialog[open]').forEach((one) => one.close())")
    set_target(page, 0.8)
    page.check("input[value=combination]")
    for index, weight in enumerate((0.35, 0.35, 0.3)):
        page.fill(f"#weight-{index}", str(weight))
    yield desk
    desk.assert_clean()


def api(server: Server, path: str, body: Any = None) -> Any:
    """What the API says, asked beside the browser."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{server.url}v1/{path}", data, {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return json.load(answer)


def portfolio(server: Server) -> Portfolio:
    return Portfolio(server.folder / "runs")


def text(page: Page, place: str) -> str:
    return " ".join(page.locator(place).inner_text().split())


def value(page: Page, place: str) -> float:
    return float(page.locator(place).input_value())


def settled(page: Page, epsilon: float, delta: float = DELTA) -> None:
    """Until the verdict is that of the target."""
    script = "(wanted) => String(document.getElementById('verdict').dataset.target.split(' ').map(Number)) === String(wanted)"
    page.wait_for_function(script, arg=[epsilon, delta])


def exactly(page: Page, epsilon: float, delta: float = DELTA) -> None:
    """Until the answer for this very target is there, which comes where the slider stands still."""
    script = "(wanted) => document.getElementById('aloud').dataset.exact?.split(' ').map(Number).join() === wanted.join()"
    page.wait_for_function(script, arg=[epsilon, delta])


def set_target(page: Page, epsilon: float) -> None:
    page.fill("#epsilon-box", str(epsilon))
    settled(page, epsilon)


def set_target_at(page: Page, epsilon: float, delta: float) -> None:
    page.fill("#epsilon-box", str(epsilon))
    settled(page, epsilon, delta)


def assert_shows_plan(server: Server, page: Page, epsilon: float, delta: float = DELTA) -> None:
    """Every option on the page has the numbers of the API's plan, and so has the verdict."""
    settled(page, epsilon, delta)
    exactly(page, epsilon, delta)
    plan = api(server, "plan", {"epsilon": epsilon, "delta": delta})
    for rule in dict.fromkeys(one["rule"] for one in plan["options"]):
        option = next(one for one in plan["options"] if one["rule"] == rule)
        guarantee = f"ε = {round_up(option['epsilon'])} at δ = {delta:g}".replace("e-0", "e-")
        page.locator(f"#options [data-rule={rule}]", has_text=guarantee).wait_for(timeout=5000)
        card = text(page, f"#options [data-rule={rule}]")
        assert ("● fits ε ≤" in card) == option["feasible"]
        assert option["claim"] in card
        assumed = text(page, "#assumed")
        for words in option["assumptions"]:  # every one in sight: beside the guarantee, or once for all of them
            assert " ".join(words.split()) in card + assumed
        assert ("★ best" in card) == (plan["best"] is not None and plan["options"][plan["best"]] == option)
    assert text(page, "#aloud") == " ".join(" ".join(plan["aloud"]).split())
    if plan["best"] is None:
        assert "Nothing known fits" in text(page, "#verdict")
    else:
        assert f"ε = {round_up(plan['options'][plan['best']]['epsilon'])} fits ({epsilon:g}, " in text(page, "#verdict")


# --- what the page shows ----------------------------------------------------------------------------------------------------


def test_the_page_says_what_the_api_says(server: Server, visit: Visit) -> None:
    page = visit.page
    known = api(server, "models")
    cards = page.locator("#models .card")
    assert cards.count() == len(known["models"]) == 3
    for index, model in enumerate(known["models"]):
        card = " ".join(cards.nth(index).inner_text().split())
        for by in ("pld", "rdp"):
            assert f"ε at δ = 1e-5 by {by.upper()} {round_up(model['epsilon'][by])}" in card
        for words in (
            model["name"],
            "✓ proved",
            "sampling full-batch",
            "steps 10",
            f"utility {model['utility']}",
            *model["warnings"],
        ):
            assert words in card
    assert "3 models trained on test-data; neighbouring datasets: add-remove." in text(page, "#about")
    assert_shows_plan(server, page, value(page, "#epsilon-box"))
    assert "ε = 0.0000 of 100 spent" in text(page, "#budget") or "of 100 spent" in text(page, "#budget")
    assert "null" not in page.locator("main").inner_text()
    assert "undefined" not in page.locator("main").inner_text()
    visit.shot("explorer-light", full=True)


def test_conditional_is_a_word_a_sign_and_a_border_and_names_are_text(conditional: Server, chromium: Browser) -> None:
    with opened(conditional, chromium) as visit:
        page = visit.page
        badges = page.locator(".badge.conditional")
        assert badges.count() >= 3
        for place in ("#models .card:first-child", "#options [data-rule=joint]", "#weights-verdict"):
            badge = page.locator(place).locator(".badge.conditional").first
            assert badge.inner_text() == "◇ conditional"
            assert badge.evaluate("one => getComputedStyle(one).borderStyle") == "dashed"
        proved = page.locator("#models .card:nth-child(2) .badge").first
        assert (proved.inner_text(), proved.evaluate("one => getComputedStyle(one).borderStyle")) == ("✓ proved", "solid")
        # What it holds under besides stands open, and as a warning at the model.
        (assumed,) = [one for one in api(conditional, "models")["models"] if one["name"] == EVIL]
        assert assumed["warnings"]
        for warning in assumed["warnings"]:
            assert warning in text(page, "#models .card:first-child .warnings")
            said = warning.partition(" (not recorded")[0]  # of a merge, one sentence about all its models
            assert said in text(page, "#options [data-rule=joint] .assumed")
        # Names are the user's; they are shown and never run.
        assert EVIL in text(page, "#models .card:first-child h3")
        assert EVIL_DATASET in text(page, "#about")
        page.locator("#frontier-numbers summary").click()
        assert EVIL in text(page, "#frontier-table")
        assert page.title() == "dpmerge explorer"
        assert page.locator("main img, main script").count() == 0
        visit.assert_accessible()


def test_one_model_has_nothing_to_weigh(tmp_path: Path, chromium: Browser) -> None:
    on_disk(tmp_path / "runs", builders.dp_sgd("a", sigma=4.0, steps=10))
    ready = READY.replace("document.getElementById('weights-progress').textContent === ''", "true")
    with serving(tmp_path) as alone, opened(alone, chromium, ready) as visit:
        assert "There is one model, so there are no weights to choose." in text(visit.page, "#weights")
        assert "1 model trained on" in text(visit.page, "#about")
        set_target(visit.page, 50)
        assert "fits (50, 1e-5)" in text(visit.page, "#verdict")
        visit.assert_accessible()


# --- the knob ---------------------------------------------------------------------------------------------------------------


def test_the_target_follows_the_slider_the_keys_and_the_boxes(server: Server, visit: Visit) -> None:
    page = visit.page
    place = page.locator("#epsilon-slider").bounding_box()
    assert place is not None
    seen = {value(page, "#epsilon-box")}
    for share in (0.2, 0.5, 0.9):
        page.mouse.click(place["x"] + share * place["width"], place["y"] + place["height"] / 2)
        seen.add(target := value(page, "#epsilon-box"))
        assert page.get_attribute("#epsilon-slider", "aria-valuetext") == f"ε at most {target:g}"
        assert_shows_plan(server, page, target)
    for key in ("ArrowLeft", "ArrowRight", "PageDown", "Home", "End"):
        page.focus("#epsilon-slider")
        page.keyboard.press(key)
        seen.add(target := value(page, "#epsilon-box"))
        assert_shows_plan(server, page, target)
    assert len(seen) >= 8
    set_target(page, 0.7)
    assert_shows_plan(server, page, 0.7)
    before = value(page, "#epsilon-slider")
    set_target(page, 1.4)
    assert value(page, "#epsilon-slider") > before


def test_nonsense_is_said_and_changes_nothing(visit: Visit) -> None:
    page = visit.page
    set_target(page, 1.5)
    exactly(page, 1.5)
    before = text(page, "#verdict")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for place, typed in (("epsilon", "-1"), ("epsilon", ""), ("epsilon", "1e9"), ("delta", "2"), ("delta", "0"), ("delta", "")):
        page.fill(f"#{place}-box", typed)
        words = "ε is a number from 0 to a million." if place == "epsilon" else "δ is a number between 0 and 1"
        assert words in text(page, "#target-error")
        page.wait_for_timeout(50)
        assert text(page, "#verdict") == before
    assert not any("/v1/plan" in url for url in asked)
    page.focus("#epsilon-slider")
    page.keyboard.press("ArrowRight")
    assert text(page, "#target-error") == ""
    assert value(page, "#delta-box") == DELTA


def test_another_delta_is_another_page(two: Server, chromium: Browser) -> None:
    with opened(two, chromium) as visit:
        page = visit.page
        page.focus("#delta-slider")
        page.keyboard.press("ArrowLeft")
        assert value(page, "#delta-box") == 1e-6
        assert page.get_attribute("#delta-slider", "aria-valuetext") == "δ at most 1e-6"
        page.wait_for_function("() => document.getElementById('models').innerText.includes('1e-6')")
        page.wait_for_function(READY)
        assert_shows_plan(two, page, value(page, "#epsilon-box"), 1e-6)
        for index, model in enumerate(api(two, "models?delta=1e-6")["models"]):
            assert f"ε at δ = 1e-6 by PLD {round_up(model['epsilon']['pld'])}" in " ".join(
                page.locator("#models .card").nth(index).inner_text().split()
            )
        assert "at δ = 1e-6" in text(page, "#weights-verdict")
        # So is the line.
        assert "at δ = 1e-6" in (page.get_attribute("#frontier", "aria-label") or "")
        assert "at δ = 1e-6" in (page.locator("#frontier-table caption").text_content() or "")


# From an input to the answer on the page, for many moves one after the other.
MOVES = """async () => {
  const slider = document.getElementById('epsilon-slider'), verdict = document.getElementById('verdict'), took = [], shown = [];
  for (let move = 0; move < 24; move += 1) {
    const started = performance.now();
    slider.value = String(100 + (move * 337) % 800);
    slider.dispatchEvent(new Event('input', {bubbles: true}));
    const wanted = document.getElementById('epsilon-box').value;
    await new Promise((resolve) => {
      const watch = new MutationObserver(() => {
        if (Number(verdict.dataset.target.split(' ')[0]) !== Number(wanted)) return;
        watch.disconnect();
        resolve();
      });
      watch.observe(verdict, {childList: true, attributes: true, subtree: true});
    });
    took.push(performance.now() - started);
    shown.push(Number(verdict.dataset.ms));
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return {took, shown};
}"""


def p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]


def test_a_move_is_answered_at_once(visit: Visit) -> None:
    visit.page.evaluate(MOVES)  # the first ones warm the scripts up
    measured = visit.page.evaluate(MOVES)
    assert len(measured["took"]) == 24
    assert p90(measured["took"]) < QUICK_MS, sorted(measured["took"])
    assert p90(measured["shown"]) < QUICK_MS, sorted(measured["shown"])


def test_a_search_at_the_target_itself(server: Server, visit: Visit) -> None:
    set_target(visit.page, 1.7)
    before = api(server, "plan", {"epsilon": 1.7, "delta": DELTA})
    visit.page.click("#search")
    visit.page.wait_for_function("() => !document.getElementById('search').disabled")
    after = api(server, "plan", {"epsilon": 1.7, "delta": DELTA})
    assert after["options"][0]["expected_utility"] >= before["options"][0]["expected_utility"]
    visit.page.wait_for_timeout(200)
    assert_shows_plan(server, visit.page, 1.7)


# --- any weights ------------------------------------------------------------------------------------------------------------


def guarantee(server: Server, rule: str, weights: dict[str, float]) -> Any:
    build: Callable[..., Any] = dpmerge.combination if rule == "combination" else dpmerge.selection
    return build(portfolio(server), weights).guarantee(delta=DELTA)


def fields(page: Page, *names: str) -> dict[str, float]:
    return {name: value(page, f"#weight-{index}") for index, name in enumerate(names)}


def assert_shows_weights(server: Server, page: Page, rule: str, *names: str) -> dict[str, float]:
    """The guarantee shown is the library's at exactly the weights in the fields."""
    weights = fields(page, *names)
    page.wait_for_function("() => document.querySelector('#weights-sentence .sentence')")
    found = guarantee(server, rule, {name: weight for name, weight in weights.items() if weight})
    shown = text(page, "#weights-verdict")
    assert f"ε = {round_up(found.epsilon)} at δ = 1e-5" in shown
    assert f"{'✓' if found.standing == 'proved' else '◇'} {found.standing}" in shown
    assert ("● fits ε ≤" in shown) == (found.epsilon <= value(page, "#epsilon-box"))
    assert text(page, "#weights-sentence .sentence") == " ".join(str(found).split())
    assert round_up(found.epsilon) in (page.get_attribute("#handle", "aria-valuetext") or "")
    return weights


def centre(page: Page, place: str) -> tuple[float, float]:
    box = page.locator(place).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def on_screen(page: Page, x: float, y: float) -> tuple[float, float]:
    """A point of the picture's own coordinates."""
    script = "([x, y]) => new DOMPoint(x, y).matrixTransform(document.querySelector('.simplex').getScreenCTM()).toJSON()"
    found = page.evaluate(script, [x, y])
    return found["x"], found["y"]


WATCH = """() => {
  window.took = [];
  document.querySelector('.simplex').addEventListener('pointermove', () => { window.moved = performance.now(); }, true);
  const watch = new MutationObserver(() => window.took.push(performance.now() - window.moved));
  watch.observe(document.getElementById('weights-verdict'), {childList: true});
  watch.observe(document.getElementById('weights-sentence'), {childList: true});
}"""


def test_a_point_is_dragged_and_its_guarantee_follows(server: Server, visit: Visit) -> None:
    page = visit.page
    page.locator("#handle").scroll_into_view_if_needed()
    page.evaluate(WATCH)
    assert fields(page, "a", "b", "c") == {"a": 0.35, "b": 0.35, "c": 0.3}
    page.mouse.move(*centre(page, "#handle"))
    page.mouse.down()
    seen = []
    for x, y in ((260, 200), (150, 300), (90, 400), (30, 432), (-80, 600), (400, 420), (260, 34)):  # also outside of it
        page.mouse.move(*on_screen(page, x, y), steps=3)
        live = text(page, "#weights-verdict")  # before anything else is asked: the point is still held
        weights = assert_shows_weights(server, page, "combination", "a", "b", "c")
        assert live.split(" at ")[0] in text(page, "#weights-verdict")
        seen.append(tuple(weights.values()))
    page.mouse.up()
    assert seen[3] == seen[4] == (0.0, 1.0, 0.0)
    assert seen[-1] == (1.0, 0.0, 0.0)
    assert len(set(seen)) == 6
    took = page.evaluate("window.took")
    assert len(took) > 10
    assert p90(took) < QUICK_MS, sorted(took)
    page.mouse.move(*on_screen(page, 260, 200))  # let go: it stays
    assert fields(page, "a", "b", "c")["a"] == 1.0


def test_a_drag_survives_news_from_the_server(visit: Visit) -> None:
    """Plans and points that become known meanwhile draw the picture anew under the hand."""
    page = visit.page
    page.locator("#handle").scroll_into_view_if_needed()
    page.mouse.move(*centre(page, "#handle"))
    page.mouse.down()
    page.mouse.move(*on_screen(page, 260, 200), steps=2)
    before = fields(page, "a", "b", "c")
    page.evaluate(
        "() => { const box = document.getElementById('epsilon-box'); box.value = 3; box.dispatchEvent(new Event('input')); }"
    )
    settled(page, 3)
    page.mouse.move(*on_screen(page, 260, 60), steps=2)
    assert fields(page, "a", "b", "c")["a"] > before["a"]
    page.mouse.up()


def test_the_point_moves_by_keys(server: Server, visit: Visit) -> None:
    page = visit.page
    page.focus("#handle")
    seen = []
    for key in ("ArrowUp", "ArrowDown", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        seen.append(tuple(assert_shows_weights(server, page, "combination", "a", "b", "c").values()))
    assert seen == [(0.5, 0.2, 0.3), (0.4, 0.3, 0.3), (0.4, 0.2, 0.4), (0.4, 0.3, 0.3), (1.0, 0.0, 0.0)]
    page.keyboard.press("Tab")  # and it is left as any other control
    assert page.evaluate("document.activeElement.id") == "weight-0"


def test_weights_are_typed_and_never_normalised(server: Server, visit: Visit) -> None:
    page = visit.page
    for index, weight in enumerate(TYPED.values()):
        page.fill(f"#weight-{index}", str(weight))
    assert assert_shows_weights(server, page, "combination", "a", "b", "c") == TYPED
    for typed, words in (
        ("0.5", "The weights sum to 1.25, not 1"),
        ("", "Each weight is a number"),
        ("-0.1", "Each weight is a number"),
    ):
        page.fill("#weight-2", typed)
        assert words in text(page, "#weights-error")
        assert page.locator("#weight-2").input_value() == typed
        assert text(page, "#weights-verdict") == text(page, "#weights-sentence") == ""  # no guarantee beside other numbers
        assert page.locator("#release-weights").is_disabled()
    page.fill("#weight-2", "0.25")
    assert assert_shows_weights(server, page, "combination", "a", "b", "c") == TYPED
    assert page.locator("#release-weights").is_enabled()
    page.check("input[value=selection]")
    assert assert_shows_weights(server, page, "selection", "a", "b", "c") == TYPED
    page.click("#options [data-rule=selection] >> text=In the picture")
    chosen = next(
        one
        for one in api(server, "plan", {"epsilon": value(page, "#epsilon-box"), "delta": DELTA})["options"]
        if one["rule"] == "selection"
    )
    assert assert_shows_weights(server, page, "selection", "a", "b", "c") == chosen["weights"]


@pytest.mark.parametrize("rule", ["combination", "selection"])
def test_every_mark_is_the_librarys_answer(server: Server, visit: Visit, rule: str) -> None:
    page = visit.page
    page.check(f"input[value={rule}]")
    points = api(server, "simplex")["points"]
    marks = page.evaluate("() => [...document.querySelectorAll('.simplex .dot')].map((one) => one.classList[1])")
    assert len(marks) == len(points) == 66
    target = value(page, "#epsilon-box")
    fits = [guarantee(server, rule, dict(zip("abc", point, strict=True))).epsilon <= target for point in points]
    assert 0 < sum(fits) < 66
    assert marks == ["fits" if one else "misses" for one in fits]
    assert page.locator(".simplex .cell").count() == sum(fits)
    assert f"{sum(fits)} of 66 points fit ε ≤ {target:g}." in text(page, "#picture-summary")


def test_two_models_make_a_curve(two: Server, chromium: Browser) -> None:
    with opened(two, chromium) as visit:
        page = visit.page
        assert page.locator(".curve.combination .point").count() == page.locator(".curve.selection .point").count() == 51
        page.locator("#handle").scroll_into_view_if_needed()
        page.mouse.move(*centre(page, "#handle"))
        page.mouse.down()
        heights = []
        for x in (120, 300, 62, 480):
            page.mouse.move(*on_screen(page, x, 100), steps=3)
            weights = assert_shows_weights(two, page, "combination", "a", "b")
            assert weights["b"] == pytest.approx((x - 62) / 438, abs=0.011)
            heights.append(centre(page, "#handle")[1])
        page.mouse.up()
        assert heights[2] < heights[0] < heights[1] < heights[3]  # a alone is the least private: the highest ε
        page.focus("#handle")
        seen = []
        for key in ("Home", "ArrowRight", "ArrowUp", "ArrowLeft", "End", "ArrowDown"):
            page.keyboard.press(key)
            seen.append(assert_shows_weights(two, page, "combination", "a", "b")["b"])
        assert seen == [0.0, 0.02, 0.04, 0.02, 1.0, 0.98]
        visit.shot("curve-two-models", full=True)
        visit.assert_accessible()


def test_of_four_models_three_are_chosen(four: Server, chromium: Browser) -> None:
    with opened(four, chromium) as visit:
        page = visit.page
        corners = page.locator("#corners select")
        assert [corners.nth(index).input_value() for index in range(3)] == ["a", "b", "c"]  # least, most, and middle private
        corners.nth(2).select_option("d")
        page.wait_for_function("() => document.querySelector('label[for=weight-2]')?.innerText === 'd'")
        assert_shows_weights(four, page, "combination", "a", "b", "d")
        corners.nth(0).select_option("b")  # they change places: a corner is never there twice
        page.wait_for_function("() => document.querySelector('label[for=weight-0]')?.innerText === 'b'")
        assert [corners.nth(index).input_value() for index in range(3)] == ["b", "a", "d"]
        assert_shows_weights(four, page, "combination", "b", "a", "d")
        visit.assert_accessible()


# --- calls that fail, or answer late ------------------------------------------------------------------------------------------

BUSY = {"status": 429, "content_type": "application/problem+json", "body": json.dumps({"detail": "too many requests at once"})}


def nothing_is_claimed(page: Page) -> None:
    assert text(page, "#weights-verdict") == text(page, "#weights-sentence") == ""
    assert page.locator(".dot").count() == page.locator("#picture-summary").count() == 0
    assert page.locator("#release-weights").is_disabled()


def test_no_guarantee_stands_beside_a_delta_it_is_not_for(server: Server, chromium: Browser) -> None:
    """The grid of the new δ does not come: what was known of the old one is gone, and comes back for the new one alone."""
    with opened(server, chromium) as visit:
        page = visit.page
        visit.expect("429")
        page.route("**/v1/simplex?*", lambda route: route.fulfill(**BUSY))
        page.fill("#delta-box", "1e-9")
        page.locator("#problem:has-text('too many requests')").wait_for()
        nothing_is_claimed(page)
        page.check("input[value=selection]")
        set_target_at(page, 2.0, 1e-9)
        nothing_is_claimed(page)
        page.unroute("**/v1/simplex?*")
        set_target_at(page, 3.0, 1e-9)
        page.locator("#weights-sentence .sentence").wait_for()
        weights = {name: value(page, f"#weight-{index}") for index, name in enumerate("abc")}
        own = dpmerge.selection(portfolio(server), weights).guarantee(delta=1e-9)
        assert text(page, "#weights-verdict").startswith(f"ε = {round_up(own.epsilon)} at δ = 1e-9")


def test_no_guarantee_stands_beside_models_it_is_not_for(four: Server, chromium: Browser) -> None:
    with opened(four, chromium) as visit:
        page = visit.page
        visit.expect("429")
        page.route("**/v1/simplex?*", lambda route: route.fulfill(**BUSY))
        page.locator("#corners select").nth(2).select_option("d")
        page.locator("#weights-error:has-text('too many requests')").wait_for()
        nothing_is_claimed(page)
        page.unroute("**/v1/simplex?*")
        page.fill("#epsilon-box", "1.5")
        page.locator("#weights-sentence .sentence").wait_for()
        assert_shows_weights(four, page, "combination", "a", "b", "d")


def test_a_model_that_guarantees_nothing_is_not_called_proved(tmp_path: Path, chromium: Browser) -> None:
    plain = builders.dp_sgd("a", sigma=4.0, steps=3)
    on_disk(tmp_path / "runs", plain, builders.model("open", {"kind": "non-private"}))
    with serving(tmp_path, targets=2) as server, opened(server, chromium) as visit:
        page = visit.page
        card = text(page, "#models .card:nth-child(2)")
        assert card.startswith("open ✗ no guarantee") and "by PLD ∞" in card and "proved" not in card
        joint = text(page, "[data-rule=joint]")
        assert "✗ no guarantee" in joint and "proved" not in joint
        page.fill("#weight-0", "0")
        page.fill("#weight-1", "1")
        page.locator("#weights-sentence:has-text('nothing is guaranteed')").wait_for()
        assert text(page, "#weights-verdict") == "✗ no guarantee nothing is guaranteed for these weights"
        visit.assert_accessible()


def test_a_plan_that_fails_leaves_nothing_that_fits(server: Server, chromium: Browser) -> None:
    with opened(server, chromium) as visit:
        page = visit.page
        visit.expect("429")
        page.route("**/v1/plan", lambda route: route.fulfill(**BUSY))
        page.fill("#epsilon-box", "0.01")
        page.locator("#problem:has-text('too many requests')").wait_for()
        assert text(page, "#verdict") == text(page, "#options") == text(page, "#assumed") == ""
        assert "nothing known fits it" in str(page.get_attribute("#frontier", "aria-label"))
        assert text(page, "#weights-verdict").endswith("does not fit ε ≤ 0.01")  # which needs no plan
        page.unroute("**/v1/plan")
        assert_shows_plan_after(server, page, 0.9)
        page.locator("#problem").wait_for(state="hidden")


def test_a_busy_server_is_offered_the_token(server: Server, chromium: Browser) -> None:
    with opened(server, chromium) as visit:
        page = visit.page
        visit.expect("429")
        assert page.locator("#busy").is_hidden()
        page.route("**/v1/plan", lambda route: route.fulfill(**BUSY))
        page.fill("#epsilon-box", "0.5")
        page.click("#give-token")
        give_token(page)
        page.locator("#busy").wait_for(state="hidden")
        page.unroute("**/v1/plan")
        with page.expect_request("**/v1/plan") as sent:
            page.fill("#epsilon-box", "0.9")
        assert sent.value.headers["authorization"] == f"Bearer {TOKEN}"


def assert_shows_plan_after(server: Server, page: Page, epsilon: float) -> None:
    page.fill("#epsilon-box", str(epsilon))
    page.wait_for_function("() => document.getElementById('verdict').dataset.target")
    assert_shows_plan(server, page, epsilon)


def test_what_is_slow_keeps_nothing_else_from_following(server: Server, chromium: Browser) -> None:
    with opened(server, chromium) as visit:
        page = visit.page
        held: list[Any] = []
        page.route("**/v1/models?*", lambda route: held.append(route))
        page.fill("#delta-box", "1e-7")
        set_target_at(page, 0.02, 1e-7)  # answered while the cards of the new δ are still to come
        for _ in range(100):
            if held:
                break
            page.wait_for_timeout(50)
        assert len(held) == 1
        page.locator("#options:has-text('fits ε ≤ 0.02')").wait_for()
        held[0].continue_()
        page.locator("#models:has-text('δ = 1e-7')").wait_for()


def test_the_handle_says_what_stands_beside_it(visit: Visit) -> None:
    page = visit.page
    said = "document.getElementById('handle').getAttribute('aria-valuetext')"
    page.wait_for_function(f"() => {said}.includes('proved')")
    page.fill("#weight-0", "0.9")
    assert page.evaluate(said).endswith(": nothing is accounted")
    page.fill("#weight-0", "0.35")
    page.wait_for_function(f"() => {said}.includes('proved')")


def test_a_call_that_only_failed_is_no_refusal(visit: Visit) -> None:
    page = visit.page
    visit.expect("429")
    page.route("**/v1/account", lambda route: route.fulfill(**BUSY))
    for index, weight in enumerate((0.11, 0.22, 0.67)):  # off the grid, so that only the server knows
        page.fill(f"#weight-{index}", str(weight))
    page.locator("#weights-sentence:has-text('too many requests')").wait_for()
    assert text(page, "#weights-verdict") == "not known"
    page.unroute("**/v1/account")
    page.fill("#weight-2", "0.6")
    page.fill("#weight-2", "0.67")
    page.locator("#weights-verdict:has-text('proved')").wait_for()


def test_a_target_of_nothing_does_not_stop_the_page(two: Server, chromium: Browser) -> None:
    with opened(two, chromium) as visit:
        page = visit.page
        for typed in ("0", "0.", "0.5"):
            page.fill("#epsilon-box", typed if typed != "0." else "0.0")
        settled(page, 0.5)
        set_target(page, 0)
        assert page.evaluate("1 + 1") == 2
        assert page.locator(".curve .point").count() > 50


def test_weights_asked_for_before_there_is_a_picture(four: Server, chromium: Browser) -> None:
    with visiting(four, chromium) as visit:
        page = visit.page
        held: list[Any] = []
        page.route("**/v1/simplex?*", lambda route: held.append(route))
        page.goto(four.url)
        page.locator("button[data-key=show-single]").click()
        page.wait_for_timeout(100)
        for route in tuple(held):
            route.continue_()
        page.unroute("**/v1/simplex?*")
        page.locator("#weights-sentence .sentence").wait_for()
        assert page.locator("#weights-form input").count() == 3
        assert 1.0 in [value(page, f"#weight-{index}") for index in range(3)]
        visit.assert_clean()


def test_after_looking_no_weights_are_said_to_fit(tmp_path: Path, chromium: Browser) -> None:
    measured = {"schema": 1, "measured_on": "a test set", "models": "private", "utilities": {"a": 0.9, "b": 0.5, "c": 0.7}}
    (tmp_path / "utilities.json").write_text(json.dumps(measured))
    with serving(tmp_path, targets=2, utility=str(tmp_path / "utilities.json")) as server, opened(server, chromium) as visit:
        page = visit.page
        set_target(page, 50)
        assert "○ not covered after looking" in text(page, "#weights-verdict")
        assert "fits" not in text(page, "#weights-verdict") and "not covered" in text(page, "#picture-summary")
        fitting = [card for card in page.locator("#options article").all() if "● fits" in card.inner_text()]
        assert [card.get_attribute("data-rule") for card in fitting] == ["joint"]


def test_a_release_that_fails_says_why_and_may_be_tried_again(server: Server, chromium: Browser) -> None:
    with opened(server, chromium) as visit:
        page = visit.page
        visit.expect("422")
        open_release(page, "combination", "never")
        broken = {"status": 422, "content_type": "application/problem+json", "body": json.dumps({"detail": "no room left"})}
        page.route(
            "**/v1/releases", lambda route: route.fulfill(**broken) if route.request.method == "POST" else route.continue_()
        )
        page.click("#release-confirm")
        page.locator("#release-job:has-text('Releasing: no room left')").wait_for()
        assert page.locator("#release-confirm").is_enabled()
        assert not (server.folder / "runs" / ".releases" / "never").exists()


# --- the line and its words ---------------------------------------------------------------------------------------------------


def test_the_slider_moves_one_marker_along_the_line(server: Server, visit: Visit) -> None:
    page = visit.page
    seen = []
    for target in (0.3, 0.9, 2.1):
        set_target(page, target)
        exactly(page, target)
        plan = api(server, "plan", {"epsilon": target, "delta": DELTA})
        best = plan["options"][plan["best"]]
        said = page.get_attribute("#frontier", "aria-label") or ""
        assert f"the target ε = {target} is marked" in said
        assert f"has ε = {round_up(best['epsilon'])} and utility" in said
        assert page.locator("#frontier .marker").count() == page.locator("#frontier .target-line").count() == 1
        seen.append(float(page.get_attribute("#frontier .marker", "cx") or "nan"))
        assert f"more than {round_up(100 * chance_of_guessing(best['epsilon'], DELTA), 2)} %" in text(page, "#aloud")
    assert seen == sorted(set(seen))
    line = api(server, "line")
    low, high = line["range"]
    page.locator("#frontier-numbers summary").click()
    page.wait_for_function(
        "(count) => document.querySelectorAll('#frontier-table tbody tr').length === count",
        arg=sum(low / 2 <= point["epsilon"] <= high for point in line["points"]),
    )
    page.locator("#frontier-numbers summary").click()


def test_every_term_is_explained_by_keyboard_and_assumptions_stay_in_sight(server: Server, visit: Visit) -> None:
    page = visit.page
    set_target(page, 0.9)
    exactly(page, 0.9)
    terms = page.locator("#aloud button.term")
    assert {"ε", "δ", "proved", "one person"} <= set(terms.all_inner_texts())
    for index in range(terms.count()):
        term = terms.nth(index)
        assert term.get_attribute("aria-expanded") == "false"
        term.focus()
        page.keyboard.press("Enter")
        assert term.get_attribute("aria-expanded") == "true"
        assert text(page, "#term") == f"{term.inner_text()}: {GLOSSARY[term.inner_text()]}"
    page.keyboard.press("Enter")
    assert page.locator("#term").is_hidden()
    plan = api(server, "plan", {"epsilon": 0.9, "delta": DELTA})
    best = plan["options"][plan["best"]]
    for words in best["plain_assumptions"]:
        assert words in text(page, "#rests")
    page.locator("#rests summary").click()
    for words in (best["theorem_title"], *best["assumptions"]):
        assert " ".join(words.split()) in text(page, "#rests")
    page.locator("#rests summary").click()
    page.locator("#after:has-text('All releases together then have')").wait_for()


def held(page: Page, where: str, words: str) -> list[Route]:
    """Requests to there that have these words as their method or in their body, from now on; all others go on at once."""
    found: list[Route] = []

    def hold_or_let_go(route: Route) -> None:
        if words == route.request.method or words in (route.request.post_data or ""):
            found.append(route)
        else:
            route.continue_()

    page.route(where, hold_or_let_go)
    return found


def the_only(page: Page, found: list[Route]) -> Route:
    """The held request, which the browser may tell of later than of what the page shows."""
    for _ in range(100):
        if found:
            break
        page.wait_for_timeout(20)
    assert len(found) == 1
    return found[0]


def test_a_job_is_stopped_with_the_token(tmp_path: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def searching(_: Any, __: Any, job: Job) -> Any:
        """Until it is stopped."""
        for _ in range(2000):
            job.report("searching")
            time.sleep(0.05)

    monkeypatch.setattr(work, "full_plan", searching)
    on_disk(tmp_path / "runs", *TWO)
    with serving(tmp_path, targets=1) as slow, visiting(slow, chromium) as visit:
        page = visit.page
        page.goto(slow.url)
        page.wait_for_function("() => document.getElementById('verdict').dataset.target")
        page.click("#search")
        assert re.search(r"Searching at ε = [\d.]+, δ = 1e-5", text(page, "#search-job"))
        visit.expect("401")
        page.click("#search-job >> text=Stop")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.getElementById('search-job').innerText.includes('stopped.')")
        # Stop is heard before the server has answered that the job began. The page says so, whatever it hears of the job.
        searches, stops = held(page, "**/v1/plan", '"full"'), held(page, "**/v1/jobs/*", "DELETE")
        page.click("#search")
        page.click("#search-job >> text=Stop")
        page.locator("#search-job:has-text('stopping …')").wait_for()
        search = the_only(page, searches)
        with page.expect_response("**/v1/jobs/*/events"):
            search.continue_()
        page.unroute("**/v1/plan")
        stop = the_only(page, stops)
        page.wait_for_timeout(300)  # the first event comes at once
        assert page.locator("#search-job button").is_disabled()
        assert "stopping …" in text(page, "#search-job")
        # A stop that failed can be tried again.
        visit.expect("500")
        stop.fulfill(status=500, json={"detail": "not now"})
        page.locator("#search-job button:enabled").wait_for()
        page.unroute("**/v1/jobs/*")
        page.click("#search-job >> text=Stop")
        page.wait_for_function("() => document.getElementById('search-job').innerText.includes('stopped.')")
        assert len(stops) == 1
        visit.assert_clean()


# --- releasing --------------------------------------------------------------------------------------------------------------


def open_release(page: Page, rule: str, name: str) -> None:
    """The dialogue for an option, with its preview."""
    page.click(f"#options [data-rule={rule}] >> text=Release …")
    page.fill("#release-name", name)
    page.wait_for_function(f"() => document.querySelector('#release-preview code')?.innerText === '{name}'")


def give_token(page: Page, token: str = TOKEN) -> None:
    page.locator("#token-dialog[open]").wait_for()
    page.fill("#token", token)
    page.keyboard.press("Enter")


def released(page: Page, name: str) -> None:
    page.wait_for_function(f"() => document.getElementById('release-preview').innerText.includes('Released as {name}.')")


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


STORES = """() => [location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage),
  document.documentElement.outerHTML, document.getElementById('token').value]"""


def test_a_release_is_previewed_made_verified_and_broken(server: Server, chromium: Browser) -> None:
    with opened(server, chromium) as visit:
        page = visit.page
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        set_target(page, 1.8)
        exactly(page, 1.8)
        before = page.locator("#releases tbody tr").count()
        open_release(page, "combination", "first")
        preview = text(page, "#release-preview")
        option = next(
            one for one in api(server, "plan", {"epsilon": 1.8, "delta": DELTA})["options"] if one["rule"] == "combination"
        )
        asked = {
            "name": "first",
            "rule": "combination",
            "weights": {k: w for k, w in option["weights"].items() if w},
            "delta": DELTA,
            "noise": option["noise"],
        }
        told = api(server, "releases/preview", {**asked, "epsilon": 1.8})
        # Noise at release is added to the exact average: what is proved of real numbers holds for the file.
        assert option["noise"] > 0
        assert f"✓ proved ε = {round_up(option['epsilon'])} at δ = 1e-5" in preview
        assert "Noise of standard deviation" in preview
        assert " ".join(told["guarantee"]["sentence"].split()) in preview
        assert (
            f"all releases together are ({round_up(told['total']['epsilon'])}, 1e-5)-DP, of a budget of (100, 1e-5). That fits."
            in preview
        )
        promised = set(page.locator("#release-preview .files code").all_inner_texts())
        visit.assert_accessible()
        visit.shot("release-dialogue")
        # A wrong token is refused, the right one works; neither is kept anywhere.
        visit.expect("401")
        page.click("#release-confirm")
        give_token(page, "a-wrong-token-0123456789")
        page.wait_for_function("() => document.getElementById('token-why').innerText.includes('not the right one')")
        visit.assert_accessible()
        assert not (server.folder / "runs" / ".releases" / "first").exists()
        give_token(page)
        released(page, "first")
        folder = server.folder / "runs" / ".releases" / "first"
        assert written(folder) == promised
        assert f"Certificate {json.loads((folder / 'certificate.json').read_text())['sha256']}" in text(
            page, "#release-preview"
        )
        assert not any(TOKEN in one for one in [*page.evaluate(STORES), *urls])
        assert page.context.cookies() == []
        page.click("#release-cancel")
        # History and budget have it.
        page.wait_for_function("wanted => document.querySelectorAll('#releases tbody tr').length === wanted", arg=before + 1)
        row = page.locator("#releases tbody tr", has_text="first")
        assert f"({round_up(option['epsilon'])}, 1e-5)" in row.inner_text()
        assert "completed" in row.inner_text()
        # It is verified; a flipped byte is found.
        verdict = page.locator("[data-verdict=first]")
        page.get_by_label("Verify first").click()
        verdict.get_by_text("it holds").wait_for()
        assert verdict.inner_text().startswith("✓ it holds")
        assert "null" not in verdict.inner_text()
        assert "initialisation" in (verdict.text_content() or "")
        tensors = folder / "model.safetensors"
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
        page.get_by_label("Verify first").click()
        verdict.get_by_text("it does NOT hold").wait_for()
        assert verdict.inner_text().startswith("✗ it does NOT hold")
        assert "model.safetensors" in verdict.inner_text()
        row.scroll_into_view_if_needed()
        visit.shot("verify-broken")
        for details in page.locator("details").all():
            details.evaluate("one => { one.open = true; }")
        visit.assert_accessible()
        # The same name again is refused before anything is asked for.
        visit.expect("422")
        page.click("#options [data-rule=single] >> text=Release …")
        page.fill("#release-name", "first")
        page.wait_for_function("() => document.getElementById('release-error').innerText.includes('exists already')")
        assert page.locator("#release-confirm").is_disabled()


def test_a_draw_names_the_files_by_model(server: Server, chromium: Browser) -> None:
    with opened(server, chromium) as visit:
        page = visit.page
        page.check("input[value=selection]")
        assert_shows_weights(server, page, "selection", "a", "b", "c")
        page.click("#release-weights")
        page.fill("#release-name", "drawn")
        page.wait_for_function("() => document.querySelector('#release-preview code')?.innerText === 'drawn'")
        promised = set(page.locator("#release-preview .files code").all_inner_texts())
        said = text(page, "#release-preview .files")
        assert "and the files of the one model that is drawn: a (model.safetensors, config.json) or b (" in said
        visit.expect("401")
        page.click("#release-confirm")
        give_token(page)
        released(page, "drawn")
        assert written(server.folder / "runs" / ".releases" / "drawn") == promised | {"config.json", "model.safetensors"}


def test_one_model_alone_is_released_with_its_own_guarantee(server: Server, visit: Visit) -> None:
    page = visit.page
    set_target(page, 1.8)
    option = next(one for one in api(server, "plan", {"epsilon": 1.8, "delta": DELTA})["options"] if one["rule"] == "single")
    (name,) = (name for name, weight in option["weights"].items() if weight)
    open_release(page, "single", "alone")
    assert text(page, "#release-title") == f"Release {name} alone"
    assert f"✓ proved ε = {round_up(option['epsilon'])} at δ = 1e-5" in text(page, "#release-preview")
    assert " ".join(option["sentence"].split()) in text(page, "#release-preview")
    page.keyboard.press("Escape")
    page.click("#options [data-rule=single] >> text=In the picture")
    assert assert_shows_weights(server, page, "combination", "a", "b", "c") == option["weights"]


def test_beyond_the_budget_nothing_can_be_released(four: Server, chromium: Browser) -> None:
    with opened(four, chromium) as visit:
        open_release(visit.page, "single", "too-much")
        assert "That exceeds the budget, so it will be refused." in text(visit.page, "#release-preview")
        assert visit.page.locator("#release-confirm").is_disabled()


def test_releasing_is_off_unless_allowed(two: Server, chromium: Browser) -> None:
    with opened(two, chromium) as visit:
        open_release(visit.page, "joint", "not-allowed")
        assert "Releasing is off: start the explorer with --allow-release." in text(visit.page, "#release-preview")
        assert "No ledger: nothing is added up." in text(visit.page, "#release-preview")
        assert visit.page.locator("#release-confirm").is_disabled()
        assert "No ledger: releases from this data are not being added up." in text(visit.page, "#budget")
        assert "Nothing was released yet." in text(visit.page, "#releases")


def test_the_dialogue_keeps_the_keyboard_and_gives_it_back(visit: Visit) -> None:
    page = visit.page
    page.focus("#options [data-rule=single] [data-key=release-single]")
    page.keyboard.press("Enter")
    page.wait_for_function("() => !document.getElementById('release-confirm').disabled")
    inside = "() => document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
    seen = set()
    for _ in range(8):
        assert page.evaluate(inside)
        seen.add(page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
    assert {"release-name", "release-depends", "release-cancel", "release-confirm"} <= seen
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.key") == "release-single"
    assert not page.locator("#release-dialog").is_visible()


# --- the token, and others --------------------------------------------------------------------------------------------------


def test_off_loopback_the_page_asks_for_the_token_at_once(tmp_path: Path, chromium: Browser) -> None:
    on_disk(tmp_path / "runs", *TWO)
    with serving(tmp_path, host="0.0.0.0", targets=2) as open_server, visiting(open_server, chromium) as visit:
        visit.expect("401")
        visit.page.goto(open_server.url)
        visit.page.locator("#token-dialog[open]").wait_for()
        assert "Reading the portfolio" in text(visit.page, "#about")
        assert visit.page.evaluate("document.activeElement.id") == "token"
        visit.assert_accessible()
        give_token(visit.page)
        visit.page.wait_for_function(READY)
        assert "2 models trained on test-data" in text(visit.page, "#about")
        visit.assert_clean()


def test_without_the_token_nothing_is_shown(tmp_path: Path, chromium: Browser) -> None:
    on_disk(tmp_path / "runs", *TWO)
    with serving(tmp_path, host="0.0.0.0", targets=1) as open_server, visiting(open_server, chromium) as visit:
        visit.expect("401")
        visit.page.goto(open_server.url)
        visit.page.locator("#token-dialog[open]").wait_for()
        visit.page.keyboard.press("Escape")
        visit.page.locator("#problem").get_by_text("this needs the server's token").wait_for()
        assert visit.page.locator("#models .card").count() == 0
        visit.assert_clean()


ATTACKS = """async (base) => {
  const tried = {};
  const late = () => new Promise((done) => setTimeout(done, 20000, 'no answer'));
  const attempt = async (name, work) => {
    tried[name] = await Promise.race([work().catch((error) => `refused: ${error.name}`), late()]);
  };
  const loaded = (name, given) => new Promise((done, fail) => {
    const one = Object.assign(document.createElement(name), given);
    one.onload = () => done('loaded');
    one.onerror = () => fail(new Error());
    document.body.append(one);
  });
  const connected = (one) => new Promise((done, fail) => {
    one.onopen = () => done('open');
    one.onerror = () => { one.close(); fail(new Error()); };
  });
  const read = (given) => fetch(`${base}v1/portfolio`, given).then((answer) => answer.text());
  const body = JSON.stringify({name: 'stolen', rule: 'joint', weights: {a: 1}, delta: 1e-5});
  const release = (given) => fetch(`${base}v1/releases`, {method: 'POST', body, ...given}).then((answer) => answer.text());
  const json = {'content-type': 'application/json', authorization: 'Bearer guessed-0123456789'};
  await attempt('read', () => read({}));
  await attempt('read without cors', () => read({mode: 'no-cors'}));
  await attempt('release', () => release({headers: json}));
  await attempt('release without cors', () => release({mode: 'no-cors', headers: {'content-type': 'text/plain'}}));
  await attempt('img', () => loaded('img', {src: `${base}icon.svg`}));
  await attempt('script', () => loaded('script', {src: `${base}app.js`}));
  await attempt('module', () => import(`${base}api.js`).then((found) => Object.keys(found).join()));
  await attempt('events', () => connected(new EventSource(`${base}v1/portfolio`)));
  await attempt('socket', () => connected(new WebSocket(base.replace('http', 'ws'))));
  const frame = Object.assign(document.createElement('iframe'), {src: base, name: 'inside'});
  const form = Object.assign(document.createElement('form'), {method: 'post', action: `${base}v1/releases`, target: 'inside'});
  form.enctype = 'text/plain';
  form.append(Object.assign(document.createElement('input'), {name: body.replace('}}', '},"x":"'), value: '"}'}));
  document.body.append(frame, form);
  await new Promise((done) => setTimeout(done, 500));
  form.submit();
  await new Promise((done) => setTimeout(done, 500));
  const inside = frame.contentDocument === null ? 'closed' : frame.contentDocument.body.innerText;
  return {...tried, frame: inside};
}"""


class _Elsewhere(BaseHTTPRequestHandler):
    """A page of another origin, without any policy of its own."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_a_page_of_another_origin_gets_nothing_and_changes_nothing(server: Server, chromium: Browser) -> None:
    before = api(server, "releases"), written(server.folder)
    elsewhere = ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    context = chromium.new_context()
    try:
        page = context.new_page()
        answers: list[tuple[str, int]] = []
        page.on("response", lambda response: answers.append((response.url.removeprefix(server.url), response.status)))
        page.goto(f"http://127.0.0.1:{elsewhere.server_port}/")
        tried = page.evaluate(ATTACKS, server.url)
    finally:
        context.close()
        elsewhere.shutdown()
        elsewhere.server_close()
    assert tried.pop("frame") == "closed"
    assert len(tried) == 9
    assert all(one.startswith("refused") or one == "" for one in tried.values()), tried
    assert all(status == 403 for path, status in answers if path.startswith("v1/")), answers
    assert (api(server, "releases"), written(server.folder)) == before


def test_a_name_that_is_made_to_point_here_is_refused(server: Server, chromium: Browser) -> None:
    port = server.url.rstrip("/").rpartition(":")[2]
    with another(chromium, "--host-resolver-rules=MAP evil.example 127.0.0.1") as rebound:
        page = rebound.new_page()
        for path in ("", "v1/portfolio", "healthz", "app.js"):
            answer = page.goto(f"http://evil.example:{port}/{path}")
            assert answer is not None
            assert answer.status == 421
            assert "the Host header is not an address of this server" in page.content()
            assert "test-data" not in page.content()


# --- for everybody ----------------------------------------------------------------------------------------------------------

# Text smaller than 12 px, and targets smaller than 24 px; a link within a sentence is as large as the sentence.
SIZES = """() => {
  const small = [];
  const seen = {visibilityProperty: true, opacityProperty: true};
  const shown = (one) => one.checkVisibility(seen) && !one.closest('.hidden, .skip');
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const one = words.currentNode.parentElement;
    if (!words.currentNode.textContent.trim() || !shown(one) || one.closest('noscript, script')) continue;
    const scale = one instanceof SVGElement && one.getScreenCTM ? one.getScreenCTM() : {a: 1, b: 0};
    const size = parseFloat(getComputedStyle(one).fontSize) * Math.hypot(scale.a, scale.b);
    if (size < 11.95) small.push(`text ${size.toFixed(1)}: ${words.currentNode.textContent.slice(0, 40)}`);
  }
  for (const one of document.querySelectorAll('button, input, select, summary, [role=slider], a')) {
    if (!shown(one) || one.closest('p a')) continue;
    const {width, height} = (one.closest('label') || one).getBoundingClientRect();
    if (Math.min(width, height) < 24) small.push(`target ${width} × ${height}: ${one.id || one.textContent}`);
  }
  return small;
}"""
SIDEWAYS = """() => [...document.querySelectorAll('body *')].filter((one) =>
  !one.closest('.scroll > *, .hidden, .skip') && one.checkVisibility()
  && one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 100))"""


@pytest.mark.parametrize(
    "name, viewport, scheme",
    [("explorer-dark", DESKTOP, "dark"), ("explorer-1024", SMALL, "light"), ("explorer-phone", PHONE, "dark")],
)
def test_every_screen_shows_it_whole_and_readable(
    server: Server, chromium: Browser, name: str, viewport: tuple[int, int], scheme: str
) -> None:
    with opened(server, chromium, viewport=viewport, color_scheme=scheme, touch=viewport == PHONE) as visit:
        page = visit.page
        visit.shot(name, full=True)
        for details in page.locator("details").all():  # with everything open that can be, nothing is hidden from axe
            details.evaluate("one => { one.open = true; }")
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), page.evaluate(SIDEWAYS)
        assert page.evaluate(SIDEWAYS) == []
        assert page.evaluate(SIZES) == []
        visit.assert_accessible()
        page.click("#options [data-rule=single] >> text=Release …")
        page.locator("#release-preview .files").wait_for()
        assert page.evaluate(SIZES) == []
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        visit.assert_accessible()


def test_the_two_models_are_readable_on_a_phone(two: Server, chromium: Browser) -> None:
    with opened(two, chromium, viewport=PHONE) as visit:
        assert visit.page.evaluate(SIZES) == []
        assert visit.page.evaluate(SIDEWAYS) == []


# Where the focus is: whether it can be seen, is in sight and not under the target's card, and its place in the document.
FOCUS = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const all = [...document.querySelectorAll('*')];
  const box = one.getBoundingClientRect();
  const card = document.getElementById('target');
  const sticks = getComputedStyle(card).position === 'sticky' && !card.contains(one) && !one.closest('.skip');
  const over = sticks && card.getBoundingClientRect().top < 1 ? card.getBoundingClientRect().bottom : 0;
  const style = getComputedStyle(one.id === 'handle' ? one.querySelector('.halo') : one);
  return {
    index: all.indexOf(one), id: one.id || one.dataset.key || one.textContent.slice(0, 30),
    ring: one.id === 'handle' ? style.stroke !== 'none' : style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
    inSight: box.bottom > over + 4 && box.top < innerHeight && (box.top >= over - 4 || box.height > innerHeight / 3),
  };
}"""
REACHABLE = """() => [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')].filter((one) =>
  one.checkVisibility() && !one.disabled && !(one.type === 'radio' && !one.checked)).length"""


def walk(page: Page, key: str, most: int) -> list[dict[str, Any]]:
    """Where the focus is after each stroke of the key, until it leaves the page."""
    seen: list[dict[str, Any]] = []
    while len(seen) <= most:
        page.keyboard.press(key)
        if (found := page.evaluate(FOCUS)) is None:
            break
        seen.append(found)
    return seen


@pytest.mark.parametrize("viewport", [SMALL, (1024, 500)])
def test_everything_is_reached_by_tab_in_order_and_in_sight(
    server: Server, chromium: Browser, viewport: tuple[int, int]
) -> None:
    with opened(server, chromium, viewport=viewport) as visit:
        page = visit.page
        page.locator("#after:has-text('All releases together then have')").wait_for()  # the last part that comes
        wanted = page.evaluate(REACHABLE)
        seen = walk(page, "Tab", wanted)
        assert len(seen) == wanted >= 20
        assert [one["index"] for one in seen] == sorted(one["index"] for one in seen)
        assert [one["id"] for one in seen if not one["ring"]] == []
        assert [one["id"] for one in seen if not one["inSight"]] == []
        back = walk(page, "Shift+Tab", wanted - 1)  # upwards things come in from above, where the target's card is
        assert [one["index"] for one in reversed(back)] == [one["index"] for one in seen]
        assert [one["id"] for one in back if not one["inSight"]] == []
        assert seen[0]["id"] == "Skip to the target"
