"""The explorer under a crowd: plans on 500 connections beside 256 account calls, and the owner among strangers."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.explorer import Server, serving
from benchmarks.report import Claim

_DELTA = 1e-5
_PLANS, _ROUNDS = 500, 10  # connections, and requests on each, one after the other
_ACCOUNTS = 256
_PROBE_S = 0.05  # between two probes of /healthz
_STRANGERS_S = 20.0


def crowd() -> Iterator[Claim]:
    """What is made beforehand is there; merges are all different, so none is in a cache, and nobody sends the token."""
    with serving() as server:
        _warm(server)
        targets: tuple[tuple[str, Callable[[], float]], ...] = (("one target", lambda: 2.0), ("different targets", _any_target))
        for what, target in targets:
            plans, accounts, health = asyncio.run(_plans_beside_accounts(server, target))
            yield plans.claim(f"{_PLANS} connections on plan, {what}, beside {_ACCOUNTS} account calls", 1.0)
            yield health.claim("healthz meanwhile", 0.1)
            yield accounts.claim("the account calls answered meanwhile; then all hung up")
        yield asyncio.run(_accounts(server)).claim(f"{_ACCOUNTS} account calls alone", all_answered=True)


def owner() -> Iterator[Claim]:
    """Strangers hold connections open, drip, hang up, guess tokens, and ask for what takes long; the owner sends the token."""
    with serving() as server:
        _warm(server)
        plans, accounts, health, strangers = asyncio.run(_among_strangers(server))
        yield plans.claim("the owner's plans among strangers", 1.0)
        yield accounts.claim("the owner's account calls among strangers", all_answered=True)
        yield health.claim("healthz among strangers", 1.0)
        yield strangers.claim("the strangers themselves")


ALL = (crowd, owner)


@dataclass
class _Seconds:
    """How long answers took, and how many came with each status; 0 is a connection that was closed without one."""

    answered: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    def note(self, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:
            self.answered.append(seconds)

    def claim(self, name: str, p95: float | None = None, *, all_answered: bool = False) -> Claim:
        seconds = sorted(self.answered) or [float("inf")]
        at = {percent: seconds[int(percent / 100 * len(seconds))] for percent in (50, 95, 99)}
        told = ", ".join(f"p{percent} {value:.3f} s" for percent, value in at.items())
        counts = ", ".join(f"{count} × {status}" for status, count in sorted(self.statuses.items()))
        promised = [*(["all answered"] if all_answered or p95 else []), *([f"p95 < {p95:g} s"] if p95 else [])]
        holds = not promised or (set(self.statuses) == {200} and (p95 is None or at[95] < p95))
        return Claim(f"explorer: {name}", f"{told} ({counts})", ", ".join(promised), holds)


class _Client:
    """One connection, opened again when the server closed it: less work than a client library, which would be measured too."""

    def __init__(self, server: Server, token: str | None = None) -> None:
        self._host, _, port = server.address.partition(":")
        self._port, self._address = int(port), server.address
        self._authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None, into: _Seconds | None = None) -> int:
        """The status of the answer; the time until its last byte, connecting included, is noted."""
        text = json.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._address}\r\n{self._authorization}"
        start, status = time.perf_counter(), 0
        with suppress(OSError, asyncio.IncompleteReadError):
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port)
            reader, writer = self._streams
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
            await reader.readexactly(length)
            status = int(lines[0].split()[1])
            if "connection: close" in lines:
                self.close()
        if status == 0:
            self.close()
        if into is not None:
            into.note(status, time.perf_counter() - start)
        return status

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def _plans_beside_accounts(server: Server, target: Callable[[], float]) -> tuple[_Seconds, _Seconds, _Seconds]:
    plans, accounts, health = _Seconds(), _Seconds(), _Seconds()
    others = [asyncio.create_task(_account(server, accounts)) for _ in range(_ACCOUNTS)]
    await asyncio.sleep(1)  # all of them are there

    async def moves() -> None:
        client = _Client(server)
        for _ in range(_ROUNDS):
            await client.ask("POST", "/v1/plan", {"epsilon": target(), "delta": _DELTA}, plans)
        client.close()

    probe = asyncio.create_task(_probe(server, health))
    await asyncio.gather(*(moves() for _ in range(_PLANS)))
    await _stop(probe, *others)
    return plans, accounts, health


async def _accounts(server: Server) -> _Seconds:
    accounts = _Seconds()
    await asyncio.gather(*(_account(server, accounts) for _ in range(_ACCOUNTS)))
    return accounts


async def _among_strangers(server: Server) -> tuple[_Seconds, _Seconds, _Seconds, _Seconds]:
    plans, accounts, health, strangers = _Seconds(), _Seconds(), _Seconds(), _Seconds()

    async def forever(once: Callable[[], Coroutine[Any, Any, object]]) -> None:
        while True:
            await once()
            await asyncio.sleep(0.01)

    async def ask(path: str, body: Callable[[], dict[str, Any]], token: str | None = None) -> None:
        client = _Client(server, token)
        await client.ask("POST", path, body(), strangers)
        client.close()

    async def drip(begun: bytes) -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(*server.address.split(":"))
            writer.write(begun)
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(1)

    async def hang_up() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await _account(server, _Seconds())

    def anything() -> dict[str, Any]:
        return {"epsilon": _any_target(), "delta": random.uniform(1e-6, 1e-5)}

    header = f" HTTP/1.1\r\nHost: {server.address}\r\nContent-Type: application/json\r\nContent-Length: 999\r\n"
    crowd: list[tuple[int, Callable[[], Coroutine[Any, Any, object]]]] = [
        (300, lambda: drip(f"POST /v1/plan{header}X-Slow: ".encode())),
        (100, lambda: drip(f"POST /v1/plan{header}\r\n".encode())),
        (300, lambda: ask("/v1/account", _merge)),
        (100, hang_up),
        (50, lambda: ask("/v1/plan", anything)),
        (50, lambda: ask("/v1/plan", lambda: {"epsilon": _any_target(), "delta": _DELTA, "effort": "exact"})),
        (20, lambda: ask("/v1/frontier", lambda: {"epsilons": [_any_target()], "delta": _DELTA})),
        (50, lambda: ask("/v1/releases", dict, "not-the-token-of-this-server")),
    ]
    tasks = [asyncio.create_task(forever(once)) for many, once in crowd for _ in range(many)]
    await asyncio.sleep(3)
    probe = asyncio.create_task(_probe(server, health))

    async def work(path: str, body: Callable[[], dict[str, Any]], into: _Seconds) -> None:
        client, end = _Client(server, server.token), time.perf_counter() + _STRANGERS_S
        while time.perf_counter() < end:
            await client.ask("POST", path, body(), into)
        client.close()

    await asyncio.gather(
        work("/v1/plan", lambda: {"epsilon": _any_target(), "delta": _DELTA}, plans),
        work("/v1/account", _merge, accounts),
    )
    await _stop(probe, *tasks)
    return plans, accounts, health, strangers


async def _account(server: Server, into: _Seconds) -> None:
    client = _Client(server)
    try:
        await client.ask("POST", "/v1/account", _merge(), into)
    finally:
        client.close()


async def _probe(server: Server, into: _Seconds) -> None:
    while True:
        client = _Client(server)
        await client.ask("GET", "/healthz", into=into)
        client.close()
        await asyncio.sleep(_PROBE_S)


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _warm(server: Server) -> None:
    """Wait until every plan that is made beforehand is there, and nothing is computed in the background any more."""
    while True:
        warming = server.ask("POST", "/v1/plan", {"epsilon": 1.0, "delta": _DELTA})[0]["warming"]
        line = server.ask("GET", f"/v1/line?delta={_DELTA}")[0]
        if warming["done"] == warming["total"] and line["refined"] == line["total"]:
            return
        time.sleep(0.2)


def _any_target() -> float:
    return round(random.uniform(0.2, 8), 3)


def _merge() -> dict[str, Any]:
    """An average that nobody asked for before."""
    one = random.uniform(0.1, 0.5)
    return {"rule": "combination", "weights": {"mnist-c1-s0.5": one, "mnist-c1-s2": 1 - one}, "delta": _DELTA}
