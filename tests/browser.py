"""A real server, and a real browser that looks at it: Debian's chromium through Playwright. What goes wrong there is kept.

@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("explorer"), allow_release=True) as found:
        yield found

@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    yield from a_browser()

def test_something(server: Server, chromium: Browser) -> None:
    with visiting(server, chromium, color_scheme="dark") as visit:
        visit.page.goto(server.url)
        visit.assert_clean()
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import pytest
import uvicorn

from dpmerge.explorer import Door, Explorer
from tests.explorer_builders import TOKEN, coarse
from tests.release_builders import runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

SHOTS = Path(__file__).parent.parent / "build" / "screenshots"
DESKTOP, SMALL, PHONE = (1440, 1000), (1024, 768), (390, 844)
_START = 120_000.0  # milliseconds that it may take to start: other workers start at the same time
# Debian's chromium as root has no sandbox of its own; the rest keeps it from calling home.
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", event =>
    console.error(`CSP: ${event.effectiveDirective} refused ${event.blockedURI} at ${event.sourceFile}:${event.lineNumber}`));
"""
_KEPT: WeakKeyDictionary[Browser, Page] = WeakKeyDictionary()
# axe takes the canvas for white where a page has no background of its own; in the dark it is not.
_CANVAS = """() => {
    const own = [document.documentElement, document.body].map(one => getComputedStyle(one).backgroundColor);
    if (own.every(colour => colour === "rgba(0, 0, 0, 0)")) document.documentElement.style.backgroundColor = "Canvas";
}"""


# --- the server -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """An explorer that listens on loopback, and the folder it was made in (its portfolio is `folder / "runs"`)."""

    url: str
    folder: Path
    token: str = TOKEN


@contextmanager
def serving(folder: Path, *, targets: int = 5, host: str = "127.0.0.1", **options: Any) -> Iterator[Server]:
    """A real server in a thread, over the portfolio in `folder / "runs"`; where there is none, three full-batch runs.

    The options are those of `Explorer`: allow_release, ledger, utility, releases, … With another `host` the door takes the
    server for one that others can reach; it listens on loopback all the same.
    """
    if not (folder / "runs").exists():
        runs(folder)
    # With the protocol said, asyncio sends without delay, as behind the command; each answer would take 40 ms longer.
    with coarse(), socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as place:
        place.bind(("127.0.0.1", 0))
        place.listen(256)
        port = place.getsockname()[1]
        app = Explorer(folder / "runs", Door(host, port, TOKEN), targets=targets, **options).app()
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        try:
            until = time.monotonic() + 20
            while not server.started:
                assert thread.is_alive() and time.monotonic() < until, "the server did not start"
                time.sleep(0.02)
            yield Server(f"http://127.0.0.1:{port}/", folder)
        finally:
            server.should_exit = True
            thread.join(20)


# --- the browser ------------------------------------------------------------------------------------------------------------


def chromium_path() -> str | None:
    """The browser of this machine: DPMERGE_CHROMIUM, or chromium where it usually is."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("DPMERGE_CHROMIUM") or next((found for name in names if (found := shutil.which(name))), None)


def a_browser() -> Iterator[Browser]:
    """Chromium without a window; skips where there is none. For a fixture: `yield from a_browser()`."""
    if find_spec("playwright") is None:
        pytest.skip("playwright is not installed")
    path = chromium_path()
    if path is None:
        pytest.skip("no chromium on this machine (DPMERGE_CHROMIUM names one)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS, timeout=_START)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def another(browser: Browser, *flags: str) -> Iterator[Browser]:
    """A second browser beside this one, started with these flags too."""
    found = browser.browser_type.launch(executable_path=chromium_path(), args=[*_FLAGS, *flags], timeout=_START)
    try:
        yield found
    finally:
        found.close()


@dataclass
class Visit:
    """A page in a profile of its own, and everything that went wrong on it."""

    server: Server
    page: Page
    faults: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, words: str) -> None:
        """Faults with these words are wanted here: the console tells of every answer that is an error."""
        self.expected.append(words)

    def wait_for_a_fault(self, words: str) -> None:
        """Return once this has gone wrong: a busy machine takes its time to report it."""
        for _ in range(100):
            self.page.wait_for_timeout(100)
            if any(re.search(words, fault) for fault in self.faults):
                return

    def assert_clean(self) -> None:
        """No error on the console, none in a script, nothing that the policy refused, no request to anyone else."""
        self.page.wait_for_timeout(50)  # what the browser has still to tell
        unwanted = [fault for fault in self.faults if not any(words in fault for words in self.expected)]
        assert not unwanted, "\n".join(unwanted)

    def shot(self, name: str, *, full: bool = False) -> Path:
        """A screenshot, kept in build/screenshots."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        if full:
            self.page.evaluate("scrollTo(0, 0)")  # what sticks to the window would hide something in the middle
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=full)
        return SHOTS / f"{name}.png"

    def assert_accessible(self) -> None:
        """axe-core finds nothing serious or critical."""
        found = serious(self.page)
        assert not found, "\n".join(found)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.server.url, "data:", f"blob:{self.server.url}")):
            self.faults.append(f"request to elsewhere: {request.url}")


@contextmanager
def visiting(server: Server, browser: Browser, **options: Any) -> Iterator[Visit]:
    """A fresh profile with one page, watched from the start. The options are those of `_profile`."""
    context = _profile(browser, **options)
    try:
        yield _watched(server, context.new_page())
    finally:
        context.close()


@contextmanager
def revisiting(server: Server, browser: Browser) -> Iterator[Visit]:
    """The page of an earlier such visit, which it has forgotten: a fresh profile costs the browser a second of work."""
    page = _KEPT.pop(browser, None) or _profile(browser).new_page()
    try:
        yield _watched(server, page)
        page.unroute_all()
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.context.clear_cookies()
        page.mouse.move(0, 0)
        page.goto("about:blank")
    except BaseException:
        page.context.close()
        raise
    _KEPT[browser] = page


def _profile(
    browser: Browser,
    *,
    viewport: tuple[int, int] = DESKTOP,
    color_scheme: Literal["light", "dark"] = "light",
    reduced_motion: Literal["reduce", "no-preference"] = "reduce",
    touch: bool = False,
) -> BrowserContext:
    context = browser.new_context(
        viewport={"width": viewport[0], "height": viewport[1]},
        color_scheme=color_scheme,
        reduced_motion=reduced_motion,
        has_touch=touch,
        locale="en-GB",
        timezone_id="UTC",
    )
    context.add_init_script(_VIOLATIONS)
    context.set_default_timeout(30_000)
    return context


def _watched(server: Server, page: Page) -> Visit:
    visit = Visit(server, page)
    page.on("console", visit._console)
    page.on("pageerror", lambda error: visit.faults.append(f"script: {error}"))
    page.on("crash", lambda _: visit.faults.append("the page crashed"))
    page.context.on("request", visit._request)
    return visit


def serious(page: Page) -> list[str]:
    """What axe-core calls serious or critical, one readable line for each element."""
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-playwright-python is not installed")
    page.evaluate(_CANVAS)
    # Evaluated through the debugger: the page's policy allows no script but its own.
    page.evaluate(Path(found.origin).with_name("axe.min.js").read_text())
    results: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['impact']}: {violation['help']} ({violation['id']}) at {' '.join(map(str, node['target']))}: "
        f"{' '.join(node.get('failureSummary', '').split())}"
        for violation in results["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
