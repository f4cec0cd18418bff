"""Attacks on the explorer, each of which fails to get in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dpmerge.errors import DpmergeError, ExplorerError
from dpmerge.explorer import Door
from dpmerge.explorer.security import BODY_LIMIT, Guard, Message, Receive, Send
from tests.explorer_builders import BEARER, DELTA, HOME, TOKEN, explorer
from tests.release_builders import WEIGHTS
from tests.test_explorer_api import is_problem

RELEASE = {"name": "one", "rule": "selection", "weights": WEIGHTS, "delta": DELTA}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explorer")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[TestClient]:
    with explorer(home, allow_release=True) as found:
        yield found


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong tokens are slowed in tests/test_explorer_crowd.py."""
    monkeypatch.setattr("dpmerge.explorer.security.WRONG_TOKEN_SECONDS", 0.0)


def releases(home: Path) -> list[str]:
    folder = home / "runs" / ".releases"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


# --- DNS rebinding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8710",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost:8711",
        "127.0.0.1:8710.evil.example",
        "localhost:8710@evil.example",
        "[::1]",
        "0.0.0.0:8710",
        "",
    ],
)
def test_other_host_headers_are_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/healthz", "/v1/portfolio", "/openapi.json", "/docs"):
        assert "Host" in is_problem(client.get(path, headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["127.0.0.1:8710", "localhost:8710", "LOCALHOST:8710", "[::1]:8710"])
def test_this_machines_names_get_in(client: TestClient, host: str) -> None:
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_two_host_headers_are_refused(client: TestClient) -> None:
    response = client.get("/healthz", headers=[("host", "127.0.0.1:8710"), ("host", "evil.example")])
    is_problem(response, 400)


# --- other sites --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8711", "http://127.0.0.1", "file://", ""])
def test_foreign_origins_are_refused_even_with_the_token(client: TestClient, home: Path, origin: str) -> None:
    headers = {**BEARER, "origin": origin}
    assert "other sites" in is_problem(client.post("/v1/releases", json=RELEASE, headers=headers), 403)
    is_problem(client.post("/v1/plan", json={"epsilon": 1.0}, headers=headers), 403)
    is_problem(client.delete("/v1/jobs/any", headers=headers), 403)
    is_problem(client.get("/v1/portfolio", headers=headers), 403)
    assert releases(home) == []


def test_its_own_origin_gets_in(client: TestClient) -> None:
    assert client.post("/v1/plan", json={"epsilon": 1.0}, headers={"origin": HOME}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_browser_sends_for_another_site_is_refused(client: TestClient, site: str) -> None:
    headers = {"sec-fetch-site": site}
    is_problem(client.post("/v1/plan", json={"epsilon": 1.0}, headers=headers), 403)
    is_problem(client.get("/v1/portfolio", headers=headers), 403)
    assert client.get("/docs", headers=headers).status_code == 200  # a link may lead here


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_forms_are_refused(client: TestClient, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    is_problem(client.post("/v1/plan", content='{"epsilon": 1.0}', headers=headers), 415)


def test_there_is_no_cors(client: TestClient) -> None:
    asked = {"origin": HOME, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for response in (client.options("/v1/releases", headers=asked), client.get("/v1/portfolio", headers={"origin": HOME})):
        assert not [name for name in response.headers if name.startswith("access-control")]
    assert client.options("/v1/releases", headers={**asked, "origin": "http://evil.example"}).status_code == 403


# --- the token ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN.upper()}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Cookie": f"token={TOKEN}"},
        {"X-Token": TOKEN},
    ],
)
def test_changing_something_needs_the_token(client: TestClient, home: Path, headers: dict[str, str]) -> None:
    assert TOKEN not in is_problem(client.post("/v1/releases", json=RELEASE, headers=headers), 401)
    is_problem(client.post("/v1/releases/", json=RELEASE, headers=headers), 401)
    is_problem(client.delete("/v1/jobs/any", headers=headers), 401)
    assert releases(home) == []


@pytest.mark.parametrize("tail", ["%0A", "%0a", "%0D%0A", "%0A/", "/%0A", "%00", "%20", "%E2%80%A8", "%7F", "//", "%2F"])
@pytest.mark.parametrize("path", ["/v1/releases", "/v1/jobs/any", "/v1/plan", "/V1/releases", "//v1/releases", "/v1//releases"])
def test_no_spelling_of_a_path_gets_around_the_token(client: TestClient, home: Path, path: str, tail: str) -> None:
    """A router may take a newline at the end for none, where a comparison does not: every unknown place needs the token."""
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        response = client.request(method, f"{HOME}{path}{tail}", json=RELEASE)
        assert response.status_code in (400, 401), (method, path, tail, response.text)
    assert releases(home) == []


def test_the_release_asks_again_whether_the_token_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "_needs_token", lambda self, reading, method, path: False)  # a door with a hole
    with explorer(tmp_path, allow_release=True) as client:
        is_problem(client.post("/v1/releases", json=RELEASE), 401)
        assert releases(tmp_path) == []


@pytest.mark.parametrize(
    "token", [" abcdefghijklmnop ", "abcdefgh ijklmnop", " " * 20, "abcdefghijklmnop\n", "abcdefghijklmnopö"]
)
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ExplorerError, match="printable ASCII without spaces"):
        Door(token=token)


@pytest.mark.parametrize(
    "body", ['{"epsilon": 1, "epsilon": 2}', '{"rule": "joint", "weights": {"a": 0.3, "a": 1.0}, "delta": 1e-5}']
)
def test_what_is_said_twice_is_refused(client: TestClient, body: str) -> None:
    response = client.post("/v1/account", content=body, headers={"content-type": "application/json"})
    assert "same key twice" in is_problem(response, 422)


def test_whoever_is_refused_is_hung_up_on(client: TestClient) -> None:
    assert client.get("/healthz", headers={"host": "evil.example"}).headers["connection"] == "close"


@pytest.mark.parametrize("name", ["token", "access_token", "authorization"])
def test_the_token_does_not_work_in_the_url(client: TestClient, home: Path, name: str) -> None:
    is_problem(client.post("/v1/releases", json=RELEASE, params={name: TOKEN}), 401)
    assert releases(home) == []


def test_a_token_that_is_no_text_is_only_wrong(client: TestClient) -> None:
    is_problem(client.post("/v1/releases", json=RELEASE, headers={b"Authorization": b"Bearer \xff\xfe"}), 401)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def never_equal(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr("dpmerge.explorer.security.hmac.compare_digest", never_equal)
    headers = {b"host": [b"127.0.0.1:8710"], b"authorization": [f"Bearer {TOKEN}".encode()]}
    with pytest.raises(Exception, match="token"):
        Door(token=TOKEN).check("DELETE", "/v1/jobs/any", headers)
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


def test_without_a_token_nothing_can_be_changed(tmp_path: Path) -> None:
    with explorer(tmp_path, door=Door(), allow_release=True) as client:
        for headers in ({}, BEARER, {"Authorization": "Bearer "}, {"Authorization": "Bearer None"}):
            is_problem(client.post("/v1/releases", json=RELEASE, headers=headers), 403)
        assert releases(tmp_path) == []


def test_the_token_is_not_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        client.post("/v1/releases", json={**RELEASE, "name": "../x"}, headers=BEARER)
        client.delete("/v1/jobs/any", headers=BEARER)
        client.get("/v1/nothing", headers=BEARER)
    assert TOKEN not in caplog.text


def test_releasing_is_off_unless_allowed(tmp_path: Path) -> None:
    with explorer(tmp_path) as client:
        assert "does not allow releases" in is_problem(client.post("/v1/releases", json=RELEASE, headers=BEARER), 403)
        assert releases(tmp_path) == []


# --- other addresses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "a-name.example"])
def test_another_address_needs_a_token(host: str) -> None:
    with pytest.raises(ExplorerError, match="give a token"):
        Door(host=host)
    assert issubclass(ExplorerError, DpmergeError)
    with pytest.raises(ExplorerError, match="at least 16"):
        Door(host=host, token="short")


@pytest.mark.parametrize("token", ["", "short", "ä" * 20, "a" * 20 + "\n"])
def test_weak_tokens_are_refused(token: str) -> None:
    with pytest.raises(ExplorerError, match="the token must have"):
        Door(token=token)


def test_on_another_address_every_answer_needs_the_token(tmp_path: Path) -> None:
    door = Door(host="192.0.2.7", token=TOKEN)
    with explorer(tmp_path, door=door, base="http://192.0.2.7:8710") as client:
        is_problem(client.get("/v1/portfolio"), 401)
        is_problem(client.post("/v1/plan", json={"epsilon": 1.0}), 401)
        assert client.get("/v1/portfolio", headers=BEARER).status_code == 200
        assert client.get("/healthz").status_code == 200
        is_problem(client.get("/v1/portfolio", headers={**BEARER, "host": "evil.example:8710"}), 421)


def test_on_all_addresses_a_rebound_name_does_not_get_anything_without_the_token(tmp_path: Path) -> None:
    with explorer(tmp_path, door=Door(host="0.0.0.0", token=TOKEN), base="http://evil.example:8710") as client:
        is_problem(client.get("/v1/portfolio"), 401)


# --- paths --------------------------------------------------------------------------------------------------------------------

NAMES = [
    "../runs/a",
    "..",
    ".",
    "/etc",
    "a/b",
    "a\\b",
    "a\x00b",
    "",
    "a" * 65,
    "%2e%2e",
    ".hidden",
    "a.b",
    "~",
    "C:",
    "one\n",
    "ä",
]


@pytest.mark.parametrize("name", NAMES)
def test_releases_are_named_and_never_paths(client: TestClient, home: Path, name: str) -> None:
    before = sorted(home.rglob("*"))
    is_problem(client.post("/v1/verify", json={"name": name}), 422)
    is_problem(client.post("/v1/releases/preview", json={**RELEASE, "name": name}), 422)
    is_problem(client.post("/v1/releases", json={**RELEASE, "name": name}, headers=BEARER), 422)
    assert sorted(home.rglob("*")) == before


def test_a_link_in_the_folder_of_releases_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with explorer(tmp_path, allow_release=True) as client:
        (tmp_path / "runs" / ".releases").mkdir()
        (tmp_path / "runs" / ".releases" / "link").symlink_to(elsewhere)
        is_problem(client.post("/v1/verify", json={"name": "link"}), 404)
        assert client.get("/v1/releases").json()["folders"] == []
        is_problem(client.post("/v1/releases", json={**RELEASE, "name": "link"}, headers=BEARER), 422)
        assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/api.py"]
)
def test_no_file_of_the_machine_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (400, 404, 405)


# --- size, number, headers ----------------------------------------------------------------------------------------------------


def test_large_requests_are_refused(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    is_problem(client.post("/v1/plan", content=b" " * (BODY_LIMIT + 1), headers=headers), 413)
    is_problem(client.post("/v1/plan", content=iter([b" " * 40000, b" " * 40000]), headers=headers), 413)
    is_problem(client.post("/v1/plan", content=b"{}", headers={**headers, "content-length": "-1"}), 413)
    padded = b'{"epsilon": 1.0}' + b" " * (BODY_LIMIT - 16)
    assert client.post("/v1/plan", content=padded, headers=headers).status_code == 200


def call(app: Guard, receive: Receive, **scope: Any) -> asyncio.Task[int]:
    """One request straight to the guard; its status."""

    async def ask() -> int:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        whole = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"127.0.0.1:8710")], **scope}
        await app(whole, receive, send)
        return int(sent[0]["status"])

    return asyncio.ensure_future(ask())


async def nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def test_too_many_at_once_are_told_to_come_back() -> None:
    async def scenario() -> None:
        leave = asyncio.Event()

        async def slow(scope: Message, receive: Receive, send: Send) -> None:
            await leave.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        guard = Guard(slow, Door(), in_flight=2)
        inside = [call(guard, nothing_more) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert await call(guard, nothing_more) == 429
        leave.set()
        assert await asyncio.gather(*inside) == [200, 200]
        assert await call(guard, nothing_more) == 200  # those who left have made room

    asyncio.run(scenario())


def test_a_body_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmerge.explorer.security.BODY_SECONDS", 0.05)

    async def never() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def unreachable(scope: Message, receive: Receive, send: Send) -> None:
        raise AssertionError

    async def scenario() -> int:
        return await call(Guard(unreachable, Door()), never)

    assert asyncio.run(scenario()) == 408


def test_every_answer_has_the_headers(client: TestClient) -> None:
    answers = [
        client.get("/healthz"),
        client.get("/docs"),
        client.get("/v1/nothing"),
        client.get("/healthz", headers={"host": "evil.example"}),
        client.post("/v1/releases", json=RELEASE),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


def test_what_fails_unexpectedly_shows_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("dpmerge.explorer.portfolio_state.PortfolioState.models", fail)
    with explorer(home) as made:
        quiet = TestClient(made.app, base_url=HOME, raise_server_exceptions=False)
        response = quiet.get("/v1/models")
        assert "secret" not in is_problem(response, 500)
        assert response.headers["x-content-type-options"] == "nosniff"
