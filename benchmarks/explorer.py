"""The explorer: how soon a move is answered, while plans are still being made and after, and many requests at once."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.resources import files
from typing import Any

from benchmarks.report import Claim

_DELTA = 1e-5
_AT_ONCE = 200


def moves() -> Iterator[Claim]:
    """The portfolio that ships with the package, nothing cached: plans and points from the first second on."""
    with _server() as ask:
        started = time.perf_counter()
        early, known = _until_known(ask, started)
        yield Claim("explorer: the first paragraph and what fits after", f"{known['plan']:.1f} s", "< 5 s", known["plan"] < 5)
        yield Claim("explorer: the slider's line, end to end, after", f"{known['line']:.1f} s", "< 5 s", known["line"] < 5)
        exact = sorted(ask("POST", "/v1/plan", {**_target(), "effort": "exact"})[1] for _ in range(5))
        yield Claim("explorer: the noise for a target itself, median", f"{statistics.median(exact):.1f} s", "", True)
        yield Claim(
            "explorer: a move of the slider while plans are being made, p95",
            _ms(early, 0.95),
            "< 150 ms",
            early[int(0.95 * len(early))] < 0.15,
        )
        yield Claim("explorer: a bound for every point of the triangle after", f"{known['grid']:.0f} s", "", True)
        yield Claim("explorer: every plan made beforehand after", f"{known['plans']:.0f} s", "", True)
        late = sorted(ask("POST", "/v1/plan", _target())[1] for _ in range(200))
        yield Claim("explorer: the same after, p95", _ms(late, 0.95), "< 150 ms", late[190] < 0.15)
        grid = ask("GET", f"/v1/simplex?delta={_DELTA}")[0]
        drags = sorted(ask("POST", "/v1/account", _point(grid))[1] for _ in range(10))
        yield Claim("explorer: the sentence of a dragged point, whose ε is known", _ms(drags, 0.9), "", True)
        together = _together(ask)
        yield Claim(f"explorer: {_AT_ONCE} plans at once, p95", _ms(together, 0.95), "< 1000 ms", together[190] < 1.0)


ALL = (moves,)


@contextmanager
def _server() -> Iterator[Any]:
    """The command in a process of its own, and a function that asks it: the answer and the seconds it took."""
    portfolio = str(files("dpmerge") / "data" / "portfolio")
    command = [sys.executable, "-m", "dpmerge", "explore", portfolio, "--port", "0", "--json", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "DPMERGE_CACHE": "off"}) as process:
        assert process.stdout is not None
        host = json.loads(process.stdout.readline())["url"].removeprefix("http://").rstrip("/")

        def ask(method: str, path: str, body: Any = None) -> tuple[Any, float]:
            connection = HTTPConnection(host, timeout=60)
            start = time.perf_counter()
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"content-type": "application/json"} if sent else {})
            response = connection.getresponse()
            answer = json.loads(response.read())
            seconds = time.perf_counter() - start
            connection.close()
            assert response.status < 300, answer
            return answer, seconds

        try:
            yield ask
        finally:
            process.terminate()


def _until_known(ask: Any, started: float) -> tuple[list[float], dict[str, float]]:
    """Moves of the slider until every plan and a bound for every point is known, in the page's order, and when that was."""
    ask("POST", "/v1/plan", _target())  # the first computes each model alone
    seconds: list[float] = []
    known = {"plan": time.perf_counter() - started}
    while not {"line", "grid", "plans"} <= set(known):
        plan, took = ask("POST", "/v1/plan", _target())
        seconds.append(took)
        line = ask("GET", f"/v1/line?delta={_DELTA}")[0]
        if line["done"] == line["total"]:
            known.setdefault("line", time.perf_counter() - started)
            grid = ask("GET", f"/v1/simplex?delta={_DELTA}")[0]["rules"]
            if not any("pending" in rule["standings"] for rule in grid.values()):
                known.setdefault("grid", time.perf_counter() - started)
        if plan["warming"]["done"] == plan["warming"]["total"]:
            known.setdefault("plans", time.perf_counter() - started)
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
