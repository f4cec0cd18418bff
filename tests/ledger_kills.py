"""Releases killed at chosen points: `python -m tests.ledger_kills 500 [postgresql]` says what became of so many.

A child process, forked with everything loaded, makes one release, and kills itself with SIGKILL at the n-th thing that it asks
of the operating system or the database (what `sys.addaudithook` and SQLAlchemy's events see), or is killed at a random moment;
on PostgreSQL also the server is, at a random moment. Afterwards every release that is out must verify with the ledger, and
nothing may count that never was.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import event

from dpmerge.errors import DpmergeError
from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release, verify
from dpmerge.release.entries import standing
from tests.ledger_builders import new, written
from tests.ledger_workers import DELTA
from tests.postgresql_server import Server, started_server

AFTER_RENAME = 4  # points between the rename and the end
WEIGHTS: tuple[tuple[str, dict[str, float]], ...] = (
    ("selection", {"b": 0.25, "c": 0.75}),
    ("joint", {"b": 0.5, "c": 0.5}),
    ("combination", {"b": 0.5, "c": 0.5}),
)
Point = int | float  # the n-th thing that is asked for, from the rename on if negative; or seconds


@dataclass(frozen=True)
class Place:
    """Where releases are made and entered."""

    folder: Path
    where: str
    server: Server | None = None

    def prepared(self) -> tuple[list[int], float]:
        """A portfolio and its ledger with one release of each kind; how many points each passes, and the longest time."""
        written(self.folder / "runs")
        (self.folder / "out").mkdir()
        new(self.where, epsilon=30.0)
        start = time.monotonic()
        points = [self._made(f"first-{number}", number, 0) for number in range(len(WEIGHTS))]
        return points, (time.monotonic() - start) / len(points)

    def _child(self, name: str, number: int, kill_at: int, said: int) -> None:
        portfolio, ledger = Portfolio(self.folder / "runs"), Ledger(self.where)
        rule, weights = WEIGHTS[number % len(WEIGHTS)]
        choice = choose(portfolio, rule, delta=DELTA, weights=portfolio.weights(weights))  # type: ignore[arg-type]
        seen = _hook(ledger, kill_at)
        release(portfolio, choice, self.folder / "out" / name, ledger=ledger)
        os.write(said, str(seen["points"]).encode())

    def _made(self, name: str, number: int, point: Point, stop: Callable[[int], None] | None = None) -> int:
        """Release in a child that is killed at a point; how many points it passed, if it was not.

        `stop` is what happens at a moment instead: to the server, of which the child is told by an error.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self._child(name, number, point if isinstance(point, int) else 0, writing)
            except DpmergeError as fault:
                if stop is None:
                    raise
                os.write(writing, b"0" if "ledger" in str(fault) else b"")
            finally:
                os._exit(0)
        os.close(writing)
        if isinstance(point, float):
            time.sleep(point)
            (stop or (lambda one: os.kill(one, signal.SIGKILL)))(child)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        status = os.waitpid(child, 0)[1]
        assert said or status == signal.SIGKILL, "a release failed before it was killed"
        return int(said or 0)

    def _stop_server(self, _: int) -> None:
        assert self.server is not None
        self.server.stop(signal.SIGQUIT)
        self.server.start()

    def killed(self, points: Iterable[Point]) -> Counter[str]:
        """Kill a release at each of these points, check all that is left, and count what became of them."""
        for number, point in enumerate(points):
            on_server = self.server is not None and isinstance(point, float) and number % 16 == 3
            self._made(f"out-{number}", number, point, self._stop_server if on_server else None)
        portfolio, ledger, out = Portfolio(self.folder / "runs"), Ledger(self.where), self.folder / "out"
        folders = [path for path in out.iterdir() if not path.name.startswith(".")]
        for path in folders:
            verdict = verify(path, portfolio=portfolio, ledger=ledger)
            assert verdict.code == 0, (path.name, verdict)
        ledger.recover()  # what was killed last
        entries = ledger.history()
        counted = {Path(entry.content["out"]).name for entry in standing(entries)}
        assert counted == {path.name for path in folders}, "counted and gone, or out and not counted"
        last = choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0}))
        release(portfolio, last, out / "last", ledger=ledger)
        left = [path.name for path in out.iterdir() if path.name.startswith(".")]
        assert left == [], f"folders of unnamed releases were left behind: {left}"
        seen = Counter("adopted" if entry.content.get("adopted") else entry.kind for entry in entries)
        return seen + Counter(out=len(folders))


def _hook(ledger: Ledger, kill_at: int) -> Counter[str]:
    """Counts what is asked for from now on, and kills this process at that point; 0: never."""
    seen: Counter[str] = Counter()

    def pass_point(is_rename: bool = False) -> None:
        seen["points"] += 1
        seen["after"] += bool(seen["after"]) or is_rename
        if kill_at and kill_at == (seen["points"] if kill_at > 0 else 1 - seen["after"]):
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(name: str, arguments: tuple[Any, ...]) -> None:
        if name.split(".")[0] in ("open", "os", "sqlite3", "shutil", "fcntl", "ctypes"):
            pass_point(arguments[1:] == ("renameat2",))

    if ledger._engine.dialect.name == "postgresql":  # whose driver asks for nothing that can be heard
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(ledger._engine, name, lambda *_: pass_point())
    sys.addaudithook(hear)  # which cannot be taken back: only in a child
    return seen


def seeded(last: list[int], seconds: float, kills: int, seed: int = 0) -> list[Point]:
    """Points for so many kills, in turn of each kind: half anywhere, a quarter from the rename on, a quarter at a moment."""
    generator = random.Random(seed)
    ends = [last[number % len(last)] for number in range(kills)]
    drawn: list[Point] = []
    for number, end in enumerate(ends):
        at = number % 4
        if at == 3:
            drawn.append(generator.uniform(0, seconds))
        else:
            drawn.append(generator.randint(1, end) if at < 2 else -generator.randint(1, AFTER_RENAME))
    return drawn


def main(kills: int, seed: int, database: str = "sqlite") -> None:
    """Kill so many releases."""
    with tempfile.TemporaryDirectory() as name, started_server() if database == "postgresql" else nullcontext() as server:
        where = str(Path(name) / "ledger.db") if server is None else server.new_database("ledger")
        place = Place(Path(name), where, server)
        points = seeded(*place.prepared(), kills, seed)
        print(json.dumps({"database": database, "kills": kills, **place.killed(points)}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), 0, *sys.argv[2:])
