"""The helpers for tests in a real browser, on the page that describes the API: it opens, and what goes wrong is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import PHONE, SHOTS, Server, a_browser, serious, serving, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    yield from a_browser()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("explorer")) as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_description_opens_without_a_fault(server: Server, chromium: Browser, scheme: str) -> None:
    with visiting(server, chromium, color_scheme="dark" if scheme == "dark" else "light", viewport=PHONE) as visit:
        visit.expect("favicon.ico")  # which chromium asks for by itself
        response = visit.page.goto(f"{server.url}docs")
        assert response is not None
        assert response.status == 200
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert visit.page.title() == "dpmerge explorer: the API"
        assert visit.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
        assert visit.page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches")
        visit.assert_clean()
        visit.assert_accessible()
        assert visit.shot(f"docs-{scheme}").stat().st_size > 1000
        assert visit.shot(f"docs-{scheme}").parent == SHOTS


WRONG = {  # by what is noticed of it
    "console error: broken": "console.error('broken')",
    "script: .*broken": "setTimeout(() => { throw new Error('broken') })",
    "404": "fetch('/v1/nothing').catch(() => {})",
    "CSP": "document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.inside = 1'}))",
    "CSP: img-src": "document.head.append(Object.assign(document.createElement('img'), {src: 'http://192.0.2.7/x.png'}))",
    "CSP: connect-src": "fetch('http://192.0.2.7/').catch(() => {})",
    "request to elsewhere: http://127.0.0.1:9/elsewhere": "open('http://127.0.0.1:9/elsewhere')",
}


def test_what_goes_wrong_is_noticed(server: Server, chromium: Browser) -> None:
    with visiting(server, chromium) as visit:
        visit.page.goto(f"{server.url}docs")
        visit.page.wait_for_load_state("networkidle")  # the icon, which chromium asks for by itself
        for words, script in WRONG.items():
            visit.faults.clear()
            visit.page.evaluate(f"() => {{ {script} }}")
            visit.wait_for_a_fault(words)
            with pytest.raises(AssertionError, match=words):
                visit.assert_clean()
            assert visit.page.evaluate("window.inside") is None


def test_what_is_expected_is_no_fault(server: Server, chromium: Browser) -> None:
    with visiting(server, chromium) as visit:
        visit.page.goto(f"{server.url}docs")
        visit.expect("404")
        visit.page.evaluate("fetch('/v1/nothing').then(() => null)")
        visit.assert_clean()


def test_axe_finds_what_cannot_be_read_aloud(server: Server, chromium: Browser) -> None:
    with visiting(server, chromium) as visit:
        visit.page.goto(f"{server.url}docs")
        visit.page.evaluate("document.body.append(document.createElement('button'))")
        assert any("button-name" in line for line in serious(visit.page))
        with pytest.raises(AssertionError, match="critical: Buttons must have discernible text"):
            visit.assert_accessible()
