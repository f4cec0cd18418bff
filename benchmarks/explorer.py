"""The explorer: how soon a move is answered, while plans are still being made and after, and many requests at once."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.report import Claim

_DELTA = 1e-5
_AT_ONCE = 200
_READY = {
    "plan": "the first paragraph and what fits",
    "line": "the slider's line, the frontier, end to end",
    "coarse": "a bound for every tenth of the triangle",
    "grid": "a bound for every point of the triangle",
    "plans": "every plan made beforehand",
}


def moves() -> Iterator[Claim]:
    """The portfolio that ships with the package, nothing cached: plans and points from the first second on."""
    with serving() as server:
        ask = server.ask
        early, known = _until_known(server)
        for name, what in _READY.items():
            wall, work = known[name]
            limit = "" if name == "grid" else "< 5 s"  # in view is the coarse grid; the other points follow
            yield Claim(f"explorer: {what} after", f"{wall:.1f} s ({work:.1f} s of work)", limit, not limit or wall < 5)
        exact = sorted(ask("POST", "/v1/plan", {**_target(), "effort": "exact"})[1] for _ in range(5))
        yield Claim("explorer: the noise for a target itself, median", f"{statistics.median(exact):.1f} s", "", True)
        yield Claim(
            "explorer: a move of the slider while plans are being made, p95",
            _ms(early, 0.95),
            "< 150 ms",
            early[int(0.95 * len(early))] < 0.15,
        )
        late = sorted(ask("POST", "/v1/plan", _target())[1] for _ in range(200))
        yield Claim("explorer: the same after, p95", _ms(late, 0.95), "< 150 ms", late[190] < 0.15)
        grid = ask("GET", f"/v1/simplex?delta={_DELTA}")[0]
        drags = sorted(ask("POST", "/v1/account", _point(grid))[1] for _ in range(10))
        yield Claim("explorer: the sentence of a dragged point, whose ε is known", _ms(drags, 0.9), "", True)
        together = _together(ask)
        yield Claim(f"explorer: {_AT_ONCE} plans at once, p95", _ms(together, 0.95), "< 1000 ms", together[190] < 1.0)


ALL = (moves,)


@dataclass(frozen=True)
class Server:
    """The command in a process of its own."""

    address: str
    token: str
    pid: int

    def ask(self, method: str, path: str, body: Any = None) -> tuple[Any, float]:
        """The answer to a request on a new connection, and the seconds it took."""
        start = time.perf_counter()
        connection = HTTPConnection(self.address, timeout=600)
        connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        seconds = time.perf_counter() - start
        connection.close()
        assert response.status < 300, answer
        return answer, seconds

    def spent(self) -> float:
        """Processor time of the server, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving() -> Iterator[Server]:
    """A server over the portfolio that ships with the package; its cache on disk is empty."""
    portfolio = str(files("dpmerge") / "data" / "portfolio")
    command = [sys.executable, "-m", "dpmerge", "explore", portfolio, "--port", "0", "--json", "--no-browser"]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "DPMERGE_CACHE": empty}) as process,
    ):
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        try:
            yield Server(told["url"].removeprefix("http://").rstrip("/"), told["token"], process.pid)
        finally:
            process.terminate()


def _until_known(server: Server) -> tuple[list[float], dict[str, tuple[float, float]]]:
    """Moves of the slider until every plan and a bound for every point is known, in the page's order; and when that was.

    By the clock, and in processor time of the server, which says more where other programs run.
    """
    ask, spent = server.ask, server.spent
    started, before = time.perf_counter(), spent()
    seconds: list[float] = []
    known: dict[str, tuple[float, float]] = {}

    def note(name: str, ready: bool) -> None:
        if ready:
            known.setdefault(name, (time.perf_counter() - started, spent() - before))

    ask("POST", "/v1/plan", _target())  # the first computes each model alone
    note("plan", True)
    while not set(_READY) <= set(known):
        plan, took = ask("POST", "/v1/plan", _target())
        seconds.append(took)
        line = ask("GET", f"/v1/line?delta={_DELTA}")[0]
        note("line", line["done"] == line["total"])
        if "line" in known:
            grid = ask("GET", f"/v1/simplex?delta={_DELTA}")[0]
            tenths = [all(round(20 * weight) % 2 == 0 for weight in point) for point in grid["points"]]
            pending = [
                tenth
                for rule in grid["rules"].values()
                for tenth, standing in zip(tenths, rule["standings"], strict=True)
                if standing == "pending"
            ]
            note("coarse", not any(pending))
            note("grid", not pending)
        note("plans", plan["warming"]["done"] == plan["warming"]["total"])
        time.sleep(0.2)
    return sorted(seconds), known


def _together(ask: Any) -> list[float]:
    gate = threading.Barrier(_AT_ONCE)

    def one(_: int) -> float:
        gate.wait()
        seconds: float = ask("POST", "/v1/plan", _target())[1]
        return seconds

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sorted(pool.map(one, range(_AT_ONCE)))


def _target() -> dict[str, float]:
    return {"epsilon": round(random.uniform(0.2, 8), 3), "delta": _DELTA}


def _point(grid: dict[str, Any]) -> dict[str, Any]:
    weights = dict(zip(grid["models"], random.choice(grid["points"]), strict=True))
    return {"rule": "combination", "weights": {name: w for name, w in weights.items() if w > 0}, "delta": _DELTA}


def _ms(seconds: list[float], share: float) -> str:
    at = seconds[int(share * len(seconds))]
    return f"{1e3 * at:.1f} ms (median {1e3 * statistics.median(seconds):.1f}, largest {1e3 * seconds[-1]:.1f})"
