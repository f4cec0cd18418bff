"""`dpmerge explore` as a user starts it: one line that says where, refusals before anything listens, and a quick end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from dpmerge.cli.options import Shuffle
from dpmerge.cli.pages import explore as explore_command
from dpmerge.errors import DpmergeError, ExplorerError
from dpmerge.explorer import Door, serving
from dpmerge.explorer.security import Guard, Message, Receive, Send
from tests import ledger_builders
from tests.explorer_builders import DELTA, TOKEN
from tests.release_builders import WEIGHTS, runs

RELEASE = {"name": "one", "rule": "selection", "weights": WEIGHTS, "delta": DELTA}


def explore(portfolio: Path, *, shuffle_rate: float | None = None, **options: Any) -> None:
    explore_command(portfolio, Shuffle(shuffle_rate=shuffle_rate), **options)


@pytest.fixture(scope="module")
def portfolio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("explore")
    runs(home)
    return home / "runs"


class Served:
    """The command in a process of its own."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dpmerge", "explore", *map(str, arguments), "--port", "0", "--no-browser"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    @property
    def place(self) -> str:
        """Host and port, from what was printed."""
        return urlsplit(self.line.split()[0] if self.line.startswith("http") else self.told["url"]).netloc

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line)
        return found

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str) -> tuple[int, Any]:
        connection = HTTPConnection(self.place, timeout=30)
        headers |= {"content-type": "application/json"} | ({} if token is None else {"authorization": f"Bearer {token}"})
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def leave(self, by: signal.Signals) -> tuple[int, float, str]:
        """Exit code, seconds until the end, and everything that was printed."""
        start = time.monotonic()
        self.process.send_signal(by)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, time.monotonic() - start, self.line + out + err


@contextmanager
def served(*arguments: object, **environment: str) -> Iterator[Served]:
    found = Served(*arguments, **environment)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def test_it_serves_with_a_token_that_is_never_printed(tmp_path: Path) -> None:
    runs(tmp_path)
    ledger_builders.new(tmp_path / "ledger.db")
    options = ["--ledger", tmp_path / "ledger.db", "--releases", tmp_path / "out", "--allow-release", "--json"]
    with served(tmp_path / "runs", *options, DPMERGE_EXPLORER_TOKEN=TOKEN) as server:
        assert server.told == {"url": server.told["url"], "token": None, "allow_release": True, "ledger": True}
        assert server.told["url"].startswith("http://127.0.0.1:")
        assert server.ask("GET", "/healthz")[0] == 200
        status, plan = server.ask("POST", "/v1/plan", {"epsilon": 1.0})
        assert (status, plan["target"]["epsilon"]) == (200, 1.0)
        assert server.ask("GET", "/healthz", host="evil.example")[0] == 421
        assert server.ask("POST", "/v1/releases", RELEASE)[0] == 401
        assert server.ask("POST", "/v1/releases", RELEASE, token=TOKEN)[0] == 202
        assert server.ask("POST", "/v1/plan", {"secret-field": "secret-value"}, token=TOKEN)[0] == 422
        with socket.create_connection(("127.0.0.1", urlsplit(server.told["url"]).port or 0)) as rude:
            rude.sendall(f"{TOKEN} secret-value\r\n\r\n".encode())
            assert rude.recv(100).startswith(b"HTTP/1.1 400")
        code, seconds, printed = server.leave(signal.SIGINT)
    assert code == 0
    assert seconds < 10
    assert (tmp_path / "out" / "one" / "certificate.json").is_file()  # brought to its end, whenever the server left
    for secret in (TOKEN, "secret-field", "secret-value", "Traceback"):
        assert secret not in printed


def test_it_makes_a_token_and_ends_although_someone_listens(portfolio: Path) -> None:
    with served(portfolio, "--json") as server:
        made = server.told["token"]
        assert len(made) >= 32
        assert not server.told["allow_release"] and not server.told["ledger"]
        assert made not in server.told["url"]
        assert server.ask("DELETE", "/v1/jobs/unknown")[0] == 401
        assert server.ask("DELETE", "/v1/jobs/unknown", token=made)[0] == 404
        assert server.ask("POST", "/v1/releases", RELEASE, token=made)[0] == 403
        job = server.ask("POST", "/v1/frontier", {"epsilons": [n / 20 for n in range(1, 200)], "points": 100})[1]
        events = HTTPConnection(server.place, timeout=30)
        events.request("GET", f"/v1/jobs/{job['id']}/events")
        response = events.getresponse()
        assert response.readline().startswith(b"event: progress")
        code, seconds, printed = server.leave(signal.SIGTERM)
        with suppress(OSError):
            response.close()
        events.close()
    assert code == -signal.SIGTERM
    assert seconds < 10
    assert printed == server.line


def test_people_are_told_where_and_how_to_leave(portfolio: Path) -> None:
    with served(portfolio) as server:
        assert server.line.startswith("http://127.0.0.1:")
        assert server.line.endswith("/ (leave with Ctrl-C)\n")
        assert server.process.stdout is not None
        assert server.process.stdout.readline().startswith("token for this session: ")
        assert server.ask("GET", "/healthz")[0] == 200
        assert server.leave(signal.SIGINT)[0] == 0


# --- refusals -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def listened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done that a refusal must come before."""
    done: list[str] = []
    monkeypatch.setattr(socket.socket, "listen", lambda *_: done.append("listened"))
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: done.append("served"))
    monkeypatch.setattr("webbrowser.open", lambda *_: done.append("opened"))
    return done


def test_a_mistake_is_one_line_and_exit_code_2(portfolio: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [sys.executable, "-m", "dpmerge", "explore", str(portfolio), "--port", str(port), "--no-browser"]
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: port {port} is in use: choose another port, or 0 for a free one\n"


def test_a_port_that_is_bound_before_it_is_listened_on(portfolio: Path) -> None:
    """Two that were both bound: only one can listen, and the other is told."""
    with serving.taking("127.0.0.1", 0) as first, serving.taking("127.0.0.1", first.port) as second:
        second.listen(slow_app)
        with pytest.raises(ExplorerError, match="is in use"):
            first.listen(slow_app)


@pytest.mark.parametrize(
    "error, words",
    [
        (PermissionError(13, "Permission denied"), "no permission to listen on port 80: choose a port from 1024 on"),
        (OSError(97, "Address family not supported"), "cannot listen on port 80 of '127.0.0.1': Address family not supported"),
    ],
)
def test_what_the_machine_refuses(
    portfolio: Path, listened: list[str], monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ExplorerError, match=words):
        explore(portfolio, port=80)
    assert listened == []


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7", "a" * 70 + ".invalid", ""])
def test_hosts_that_are_no_address_of_this_machine(portfolio: Path, listened: list[str], host: str) -> None:
    with pytest.raises(ExplorerError, match=r"is not an address of this machine: choose another host|cannot listen"):
        explore(portfolio, host=host, port=0, token=TOKEN)
    assert listened == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_another_address_needs_a_token_of_the_users(portfolio: Path, listened: list[str], host: str) -> None:
    with pytest.raises(ExplorerError, match="give a token"):
        explore(portfolio, host=host, port=0)
    with pytest.raises(ExplorerError, match="at least 16"):
        explore(portfolio, host=host, port=0, token="short")
    assert listened == []


@pytest.mark.parametrize(
    "options, words",
    [
        ({"portfolio": Path("nothing")}, "no such folder"),
        ({"ledger": "nothing.db"}, "nothing.db"),
        ({"ledger": "text"}, "text"),
        ({"delta": 0.0}, "strictly between 0 and 1"),
        ({"utility": "a=1"}, "no utility"),
        ({"utility": "nothing.json"}, "nothing.json"),
        ({"shuffle_rate": 0.5}, "--treat-shuffle-as-poisson"),
        ({"releases": Path("text")}, "not a folder; choose a folder for releases"),
        ({"releases": Path("nothing/at/all"), "allow_release": True}, "no such folder; create it"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anyone_can_connect(
    portfolio: Path,
    listened: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("neither a ledger nor a folder, and long enough to be read as a database header " * 3)
    with pytest.raises(DpmergeError, match=words):
        explore(**{"portfolio": portfolio, "port": 0, **options})
    assert listened == []
    assert capsys.readouterr().out == ""


def test_a_folder_for_releases_that_cannot_be_written(
    portfolio: Path, listened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ExplorerError, match="no permission to write"):
        explore(portfolio, port=0, allow_release=True)
    assert listened == []
    explore(portfolio, port=0, browser=False)  # reading needs no such folder
    assert listened == ["listened", "served"]


def test_without_the_extra_it_says_what_to_install(portfolio: Path) -> None:
    script = f"import sys; sys.modules['fastapi'] = None; sys.argv = ['dpmerge', 'explore', {str(portfolio)!r}]; "
    arguments = [sys.executable, "-c", script + "from dpmerge.cli import main; main()"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: fastapi is not installed: install dpmerge[explorer]\n"


def test_the_command_line_loads_no_server() -> None:
    script = "import dpmerge.cli, sys; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fastapi", "starlette", "uvicorn", "asyncio", "plotly"} & set(loaded)


# --- where it listens, and the browser ----------------------------------------------------------------------------------------


def test_localhost_is_this_machine_whatever_a_resolver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(name: str, *arguments: Any, **options: Any) -> Any:
        asked.append(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with serving.taking("localhost", 0) as found:
        assert found.socket.getsockname()[0] == "127.0.0.1"
        assert found.socket.proto == socket.IPPROTO_TCP  # else asyncio leaves Nagle's algorithm on, and answers wait 40 ms
    assert asked == ["127.0.0.1"]


@pytest.mark.parametrize("broken", [False, True])
def test_the_browser_is_opened_once_it_listens_and_without_the_token(
    portfolio: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    opened: list[str] = []
    done = threading.Event()

    def browse(url: str) -> None:
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5):
            opened.append(url)
        done.set()
        if broken:
            raise RuntimeError("no browser")

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: done.wait(10))
    explore(portfolio, port=0, token=TOKEN)
    assert len(opened) == 1
    assert TOKEN not in opened[0]
    assert urlsplit(opened[0]).query == urlsplit(opened[0]).fragment == ""


def test_no_browser_is_opened_for_another_address(portfolio: Path, listened: list[str]) -> None:
    explore(portfolio, port=0, host="0.0.0.0", token=TOKEN)
    time.sleep(0.1)
    assert listened == ["listened", "served"]


# --- connections that only wait -----------------------------------------------------------------------------------------------


_ASKED: list[str] = []  # the requests that slow_app was given


async def slow_app(scope: Message, receive: Receive, send: Send) -> None:
    """Answers after a while, longer than a request may take to arrive; or with more than fits into any buffer."""
    if scope["path"] == "/long":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        return
    _ASKED.append(scope["path"])
    await asyncio.sleep(0.7)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(serving, "_CONNECTIONS", 3)
    with socket.create_server(("127.0.0.1", 0)) as place:
        config = uvicorn.Config(slow_app, http=serving._TimedProtocol, lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield place.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_connections_on_which_no_request_arrives_are_closed(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as waiting:
        waiting.sendall(sent)
        with suppress(ConnectionResetError):
            assert waiting.recv(100) == b""


def dripping(port: int, begun: bytes) -> float:
    """How long a client that sends a byte now and then is listened to."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as waiting:
        waiting.sendall(begun)
        start = time.monotonic()
        with suppress(ConnectionResetError, BrokenPipeError):
            while time.monotonic() - start < 5:
                waiting.sendall(b"x")
                time.sleep(0.05)
        return time.monotonic() - start


def test_headers_that_drip_are_not_waited_for(port: int) -> None:
    assert dripping(port, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ") < 3


def test_bodies_that_drip_after_the_answer_are_not_waited_for(port: int) -> None:
    assert 0.7 < dripping(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n") < 3


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"]
)
def test_what_is_no_http_is_answered_like_everything_refused(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head.splitlines()[0]
    assert b"content-security-policy: default-src 'none'" in head
    assert b"application/problem+json" in head
    assert json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["status"] == 400


def test_slow_answers_and_second_requests_are_waited_for(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(2):
        connection.request("GET", "/")
        response = connection.getresponse()
        assert (response.status, response.read()) == (204, b"")
        time.sleep(0.2)
    connection.close()


def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds all connections open without a request keeps nobody out."""
    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 5.0)
    waiting = []
    for _ in range(3):
        waiting.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        time.sleep(0.02)  # so that it is seen to be older than the next
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/")
    start = time.monotonic()
    with suppress(ConnectionResetError):
        assert waiting[0].recv(100) == b""
    assert time.monotonic() - start < 2.5  # long before its own time was over
    waiting[2].setblocking(False)
    with pytest.raises(BlockingIOError):  # the newer ones stay, for now
        waiting[2].recv(100)
    assert connection.getresponse().status == 204
    connection.close()
    for one in waiting:
        one.close()


def test_who_does_not_take_the_answer_is_not_waited_for(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(1)
        taken = 0
        with suppress(ConnectionResetError):
            while piece := connection.recv(1_000_000):
                taken += len(piece)
        assert 0 < taken < 50_000_000  # what was in buffers, of twice as much


def test_connections_beyond_the_limit_are_closed_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 5.0)
    _ASKED.clear()
    some = [HTTPConnection("127.0.0.1", port, timeout=10) for _ in range(3)]
    for connection in some:
        connection.request("GET", "/")
    while len(_ASKED) < 3:  # none of them waits for a request any more
        time.sleep(0.01)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as more, suppress(ConnectionResetError):
        start = time.monotonic()
        assert more.recv(100) == b""
        assert time.monotonic() - start < 2.5
    for connection in some:
        assert connection.getresponse().status == 204
        connection.close()


@pytest.mark.parametrize("length", [b"\xb9", b"-1", b"1e3", b"", b"9" * 5000])
def test_a_length_that_is_no_number_is_only_refused(length: bytes) -> None:
    sent: list[Message] = []

    async def nothing() -> Message:
        raise AssertionError("nothing of the body is read")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8710"), (b"content-type", b"application/json"), (b"content-length", length)]
    scope = {"type": "http", "method": "POST", "path": "/v1/plan", "headers": headers}
    asyncio.run(Guard(slow_app, Door())(scope, nothing, send))
    assert sent[0]["status"] == 413
