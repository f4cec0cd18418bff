"""A crowd without the token does not keep out whoever has it, and work that nobody waits for is not done."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import LifoQueue
from typing import Any

import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dpmerge.errors import JobError, TargetError
from dpmerge.explorer import Door, Explorer, api, computing, jobs, security
from dpmerge.explorer.computing import Caller, Lane
from dpmerge.explorer.jobs import Job, Jobs
from dpmerge.explorer.plans import Plans
from dpmerge.explorer.portfolio_state import Asked, PortfolioState
from dpmerge.explorer.security import Guard, Message, Receive, Send
from dpmerge.explorer.workers import AccountingInTurn, Stopped, Worker
from dpmerge.rules import DEFAULT_ACCOUNTING, Accounting, Guarantee, Rule, Selection, Target
from tests.explorer_builders import BEARER, DELTA, TOKEN
from tests.release_builders import runs
from tests.test_explorer_security import call, nothing_more


class Line:
    """A caller's connection, which may hang up."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def hang_up(self) -> None:
        self._gone.set()


class Work:
    """What computes, until it may end; and what has begun."""

    def __init__(self) -> None:
        self.begun: list[object] = []
        self.may_end = threading.Event()

    def __call__(self, place: object) -> object:
        self.begun.append(place)
        assert self.may_end.wait(10)
        return place

    async def has_begun(self, times: int) -> None:
        while len(self.begun) < times:
            await asyncio.sleep(0.001)


def scenario(play: Callable[[Work, Lane[Any]], Awaitable[None]], *, everybody: int = 1) -> None:
    async def played() -> None:
        work = Work()
        try:
            await asyncio.wait_for(play(work, Lane(range(everybody), ["the owner's"])), 10)
        finally:
            work.may_end.set()

    asyncio.run(played())


# --- lanes --------------------------------------------------------------------------------------------------------------------


def test_a_place_is_kept_for_the_owner() -> None:
    async def play(work: Work, lane: Lane[Any]) -> None:
        crowd = [asyncio.ensure_future(lane.run(Caller(False, Line().receive), number, work)) for number in range(20)]
        await work.has_begun(1)
        assert await lane.run(Caller(True, Line().receive), "question", lambda place: place) == "the owner's"
        assert work.begun == [0]  # and no more than one of the others at a time
        work.may_end.set()
        assert await asyncio.gather(*crowd) == [0] * 20

    scenario(play)


def test_what_its_callers_hung_up_on_never_begins() -> None:
    async def play(work: Work, lane: Lane[Any]) -> None:
        first = asyncio.ensure_future(lane.run(Caller(False, Line().receive), "first", work))
        await work.has_begun(1)
        lines = [Line() for _ in range(20)]
        waiting = [asyncio.ensure_future(lane.run(Caller(False, line.receive), line, work)) for line in lines]
        last = asyncio.ensure_future(lane.run(Caller(False, Line().receive), "last", work))
        await asyncio.sleep(0.01)
        for line in lines:
            line.hang_up()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ClientDisconnect}
        work.may_end.set()
        await asyncio.gather(first, last)
        assert len(work.begun) == 2

    scenario(play)


def test_what_has_begun_keeps_its_place_when_its_caller_hangs_up() -> None:
    """Otherwise whoever asks and hangs up, again and again, would have any number of computations run."""

    async def play(work: Work, lane: Lane[Any]) -> None:
        for _ in range(5):
            line = Line()
            asked = asyncio.ensure_future(lane.run(Caller(False, line.receive), line, work))
            await work.has_begun(1)
            await asyncio.sleep(0.01)
            line.hang_up()
            with pytest.raises(ClientDisconnect):
                await asked
        assert len(work.begun) == 1
        work.may_end.set()
        assert await lane.run(Caller(False, Line().receive), "next", work) == 0

    scenario(play)


def test_a_question_is_computed_once_for_all_who_ask_it() -> None:
    async def play(work: Work, lane: Lane[Any]) -> None:
        lines = [Line() for _ in range(10)]
        asked = [asyncio.ensure_future(lane.run(Caller(False, line.receive), "same", work)) for line in lines]
        await work.has_begun(1)
        lines[0].hang_up()  # the others still wait for it
        work.may_end.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert len(set(found[1:])) == 1
        assert len(work.begun) == 1

    scenario(play, everybody=3)


def test_too_many_that_wait_are_told_to_come_back_and_the_owner_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "_WAITING", 5)

    async def play(work: Work, lane: Lane[Any]) -> None:
        crowd = [asyncio.ensure_future(lane.run(Caller(False, Line().receive), number, work)) for number in range(5)]
        await work.has_begun(1)
        with pytest.raises(HTTPException, match="too many computations wait"):
            await lane.run(Caller(False, Line().receive), "one more", work)
        assert await lane.run(Caller(True, Line().receive), "one more", lambda place: place) == "the owner's"
        work.may_end.set()
        await asyncio.gather(*crowd)

    scenario(play)


# --- processes ----------------------------------------------------------------------------------------------------------------


def asked(share: float = 0.25) -> Asked:
    return Asked("selection", (share, 1 - share, 0.0), Target(delta=DELTA), DEFAULT_ACCOUNTING, None)


def test_a_process_gives_the_librarys_answers_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio = runs(tmp_path)
    worker = Worker(3)

    def account(worker: Worker, merge: Asked) -> Guarantee:
        return worker.guarantee(merge.built(portfolio), merge.accounting, merge.target)

    assert account(worker, asked()) == asked().answer(portfolio)
    with pytest.raises(TargetError, match="more than one time in a hundred"):
        account(worker, Asked("selection", (1.0, 0.0, 0.0), Target(delta=0.5), Accounting(), None))
    process = worker._process
    assert process is not None and process.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 3
    sent, usual = threading.Event(), Connection.send

    def noted(self: Connection, content: object) -> None:
        usual(self, content)
        sent.set()

    monkeypatch.setattr(Connection, "send", noted)
    with ThreadPoolExecutor(1) as pool:
        os.kill(process.pid, signal.SIGSTOP)  # it computes for very long
        waiting = pool.submit(account, worker, asked(0.5))
        assert sent.wait(10)
        worker.kill()
        with pytest.raises(JobError, match="was stopped; ask again"):
            waiting.result(10)
    assert account(worker, asked()) == asked().answer(portfolio)  # by a new process
    worker.kill()


def test_a_process_that_nobody_waits_for_is_killed_after_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(computing, "_GRACE_S", 0.05)
    work, killed = Work(), threading.Event()

    class Slow(Worker):
        def kill(self) -> None:
            killed.set()

    async def play() -> None:
        line, lane = Line(), Lane([Slow(0)], [])
        waiting = asyncio.ensure_future(lane.run(Caller(False, line.receive), "long", work))
        await work.has_begun(1)
        await asyncio.sleep(0.1)
        assert not killed.is_set()
        line.hang_up()
        with pytest.raises(ClientDisconnect):
            await waiting
        while not killed.is_set():
            await asyncio.sleep(0.01)
        work.may_end.set()

    asyncio.run(asyncio.wait_for(play(), 10))


def test_threads_account_in_processes_while_the_server_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portfolio, workers, busy = runs(tmp_path), LifoQueue[Worker](), False
    workers.put(Worker(0))
    planning = AccountingInTurn.of(Accounting(any_delta=True), lambda: busy, workers)
    here = replace(planning, by="pld").guarantee(asked().built(portfolio), delta=DELTA)
    monkeypatch.setattr(Selection, "_guarantee", lambda *_: pytest.fail("computed in this process"))
    busy = True
    assert replace(planning, by="pld").guarantee(asked().built(portfolio), delta=DELTA) == here
    with pytest.raises(TargetError):
        planning.guarantee(asked().built(portfolio), delta=2.0)
    assert workers.qsize() == 1  # it is given back, also after an error
    monkeypatch.undo()
    monkeypatch.setattr(Worker, "guarantee", stopped)
    assert replace(planning, by="pld").guarantee(asked().built(portfolio), delta=DELTA) == here  # by this process
    workers.get().kill()


def stopped(*_: object) -> Guarantee:
    raise Stopped("killed")


def test_the_server_is_busy_with_many_requests_and_never_computes_a_release_elsewhere(tmp_path: Path) -> None:
    runs(tmp_path)
    made = api._Server(Explorer(tmp_path / "runs"))
    made.relieve(lambda: True)
    assert type(made.state.accounting) is Accounting  # what releases take: computed afresh, here
    assert isinstance(made.state.planning, AccountingInTurn) and made.state.planning.busy()

    async def play(guard: Guard, leave: asyncio.Event) -> None:
        crowd = [call(guard, nothing_more) for _ in range(9)]
        assert not guard.busy
        await asyncio.sleep(0.05)
        assert guard.busy
        leave.set()
        await asyncio.gather(*crowd)
        assert not guard.busy

    guard_scenario(play)


# --- the whole server ---------------------------------------------------------------------------------------------------------


@contextmanager
def server(folder: Path) -> Iterator[int]:
    runs(folder)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen(100)
        port: int = place.getsockname()[1]
        app = Explorer(folder / "runs", Door(port=port, token=TOKEN), targets=2).app()
        running = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield port
        finally:
            running.should_exit = True
            thread.join(20)


def send(port: int, path: str, body: str = "", **headers: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    given = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    connection.sendall("\r\n".join([*lines, "", body]).encode())
    return connection


def test_the_owner_is_answered_among_strangers_and_who_hung_up_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers, may_end = [], threading.Event()
    usual = Worker.guarantee

    def guarantee(self: Worker, rule: Rule, accounting: Accounting, target: Target) -> Guarantee:
        if self.niceness == api._NICE:  # those of everybody
            strangers.append(rule)
            assert may_end.wait(20)
            return accounting.guarantee(rule, delta=target.delta)
        return usual(self, rule, accounting, target)

    def merge(share: float) -> str:
        return f'{{"rule": "selection", "weights": {{"a": {share}, "b": {1 - share}}}, "delta": 1e-5}}'

    def forget(self: Any, key: Any, task: Any) -> None:
        owned, _ = key
        if not owned:
            forgotten.add(key)
        usually(self, key, task)

    forgotten: set[Any] = set()
    usually = Lane._forget
    monkeypatch.setattr(Worker, "guarantee", guarantee)
    monkeypatch.setattr(Lane, "_forget", forget)
    with server(tmp_path) as port:
        crowd = [send(port, "/v1/account", merge(number / 100)) for number in range(1, 30)]
        while len(strangers) < 2:
            time.sleep(0.01)
        with send(port, "/v1/account", merge(0.5), **BEARER) as own:
            assert own.recv(100).startswith(b"HTTP/1.1 200 ")
        with send(port, "/healthz") as health:
            assert health.recv(100).startswith(b"HTTP/1.1 200 ")
        for connection in crowd[:-1]:
            connection.close()
        end = time.monotonic() + 10
        while len(forgotten) < len(crowd) - 1 and time.monotonic() < end:
            time.sleep(0.01)
        may_end.set()
        with crowd[-1] as last:
            assert last.recv(100).startswith(b"HTTP/1.1 200 ")
    assert 2 <= len(strangers) <= 3  # the two that had begun, and the one that was waited for
    end = time.monotonic() + 5
    while own_children() and time.monotonic() < end:
        time.sleep(0.01)
    assert own_children() == []  # processes end with the server


def own_children() -> list[Any]:
    """Processes that this one started, but for those of joblib, which other tests leave for the next one."""
    return [child for child in multiprocessing.active_children() if "Loky" not in child.name]


# --- the guard ----------------------------------------------------------------------------------------------------------------


def guard_scenario(play: Callable[[Guard, asyncio.Event], Awaitable[None]], **limits: int) -> None:
    """A guard before something that answers when it is let, but healthz at once."""

    async def played() -> None:
        leave = asyncio.Event()

        async def app(scope: Message, receive: Receive, send: Send) -> None:
            if scope["path"] != "/healthz":
                await leave.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        await asyncio.wait_for(play(Guard(app, Door(token=TOKEN), **limits), leave), 10)

    asyncio.run(played())


def with_token(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"127.0.0.1:8710"), (b"authorization", f"Bearer {token}".encode())]


async def never_ends() -> Message:
    await asyncio.sleep(60)
    raise AssertionError


def test_requests_with_the_token_have_their_own_share_and_healthz_is_always_answered() -> None:
    async def play(guard: Guard, leave: asyncio.Event) -> None:
        crowd = [call(guard, nothing_more) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert await call(guard, nothing_more) == 429
        own = call(guard, nothing_more, headers=with_token(TOKEN))
        await asyncio.sleep(0.01)
        assert not own.done()
        assert await call(guard, nothing_more, headers=with_token(TOKEN)) == 429
        assert await call(guard, never_ends, path="/healthz") == 200
        leave.set()
        assert await asyncio.gather(*crowd, own) == [200] * 3

    guard_scenario(play, in_flight=2, own_in_flight=1)


def test_wrong_tokens_are_slowed_and_the_right_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "WRONG_TOKENS", 3)
    monkeypatch.setattr(security, "WRONG_TOKEN_SECONDS", 0.2)

    async def play(guard: Guard, leave: asyncio.Event) -> None:
        leave.set()
        start = time.monotonic()
        guesses = [call(guard, nothing_more, headers=with_token("x" * 20)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert await call(guard, nothing_more, headers=with_token("y" * 20)) == 429
        assert await call(guard, nothing_more, headers=with_token(TOKEN)) == 200
        assert await call(guard, nothing_more) == 200
        assert not any(guess.done() for guess in guesses)
        assert await asyncio.gather(*guesses) == [401] * 3
        assert time.monotonic() - start >= 0.2
        assert await call(guard, nothing_more, headers=with_token("y" * 20)) == 401

    guard_scenario(play)


def test_a_crowd_begins_a_few_at_a_time() -> None:
    """Whoever comes next waits for a few requests, not for all that came before."""
    begun = 0

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def play() -> None:
        guard = Guard(app, Door(token=TOKEN))
        crowd = [call(guard, nothing_more) for _ in range(400)]
        own = call(guard, nothing_more, headers=with_token(TOKEN))
        assert await own == 200
        assert begun < 20
        assert await asyncio.gather(*crowd) == [200] * 400

    asyncio.run(play())


# --- jobs and plans -----------------------------------------------------------------------------------------------------------


def test_a_job_is_kept_for_the_owner() -> None:
    jobs, on = Jobs(), threading.Event()

    def wait(_: Job) -> None:
        assert on.wait(10)

    try:
        for number in range(2):
            jobs.start("frontier", wait, number)
        with pytest.raises(JobError, match="2 jobs are running already"):
            jobs.start("frontier", wait, "another")
        jobs.start("frontier", wait, "the owner's", owner=True)
        with pytest.raises(JobError, match="3 jobs are running already"):
            jobs.start("frontier", wait, "another of the owner's", owner=True)
    finally:
        on.set()


@pytest.mark.parametrize("owner", [False, True])
def test_a_job_that_nobody_asks_for_any_more_is_cancelled(monkeypatch: pytest.MonkeyPatch, owner: bool) -> None:
    monkeypatch.setattr(jobs, "_FORGOTTEN_S", 0.2)
    job = Job("frontier", owner=owner)
    for _ in range(4):
        time.sleep(0.1)
        job.status()
        job.report()  # somebody asks
    time.sleep(0.25)
    if owner:
        job.report()
    else:
        with pytest.raises(jobs.Cancelled):
            job.report()


def test_nobody_elses_plans_displace_the_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PortfolioState, "_work", lambda self: None)
    state = PortfolioState(runs(tmp_path))
    first = state.plans(1e-4)  # the server's own
    own = [state.plans(delta, owner=True) for delta in (1e-5, 1e-6)]
    others = [state.plans(1e-7 * (1 + number)) for number in range(20)]
    assert [state.plans(plans.delta) for plans in (first, *own)] == [first, *own]
    assert state.plans(others[0].delta) is not others[0]
    assert len(state._plans) == 9
    state.plans(others[-1].delta)
    assert [state._unfinished() for _ in range(4)] == 2 * [own[1], state.plans(others[-1].delta)]  # in turn


def test_whether_plans_are_complete_is_known_without_computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop asks, and a new δ takes more than half a second."""
    monkeypatch.setattr("dpmerge.plan", lambda *_, **__: pytest.fail("computed"))
    loaded = runs(tmp_path)
    plans = Plans(loaded, None, Accounting(any_delta=True), DELTA, 3, lambda rule, weights: pytest.fail("computed"))
    assert not plans.complete
