"""Releases killed at chosen points: `python -m tests.ledger_kills 500` says what became of so many.

A child process, forked with everything loaded, makes one release, and kills itself with SIGKILL at the n-th thing that it asks
of the operating system (opening, making, renaming, connecting: what `sys.addaudithook` sees). Afterwards every release that is
out must verify with the ledger, and nothing may count that never was.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpmerge.records import Portfolio
from dpmerge.release import Ledger, choose, release, verify
from dpmerge.release.entries import standing
from tests.ledger_builders import new, written
from tests.ledger_workers import DELTA

AFTER_RENAME = 4  # points between the rename and the end
WEIGHTS: tuple[tuple[str, dict[str, float]], ...] = (
    ("selection", {"b": 0.25, "c": 0.75}),
    ("joint", {"b": 0.5, "c": 0.5}),
    ("combination", {"b": 0.5, "c": 0.5}),
)


def _hook(kill_at: int) -> Counter[str]:
    """Counts what is asked of the operating system from now on, and kills this process at that point; 0: never.

    A negative point is counted from the rename on.
    """
    seen: Counter[str] = Counter()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event.split(".")[0] in ("open", "os", "sqlite3", "shutil", "fcntl", "ctypes"):
            seen["points"] += 1
            seen["after"] += bool(seen["after"]) or arguments[1:] == ("renameat2",)
            if kill_at and kill_at == (seen["points"] if kill_at > 0 else 1 - seen["after"]):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)  # which cannot be taken back: only in a child
    return seen


def _made(folder: Path, name: str, number: int, kill_at: int) -> int:
    """Release in a child that is killed at a point; how many points it passed, if it was not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            portfolio, ledger = Portfolio(folder / "runs"), Ledger(folder / "ledger.db")
            rule, weights = WEIGHTS[number % len(WEIGHTS)]
            choice = choose(portfolio, rule, delta=DELTA, weights=portfolio.weights(weights))  # type: ignore[arg-type]
            seen = _hook(kill_at)
            release(portfolio, choice, folder / "out" / name, ledger=ledger)
            os.write(writing, str(seen["points"]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    assert said or status == signal.SIGKILL, "a release failed before it was killed"
    return int(said or 0)


def prepared(folder: Path) -> list[int]:
    """A portfolio and its ledger with one release of each kind; how many points each passes."""
    written(folder / "runs")
    (folder / "out").mkdir()
    new(folder / "ledger.db", epsilon=30.0)
    return [_made(folder, f"first-{number}", number, 0) for number in range(len(WEIGHTS))]


def seeded(last: list[int], kills: int, seed: int = 0) -> list[int]:
    """Points for so many kills, in turn of each kind: half of them anywhere, half from the rename on."""
    generator = random.Random(seed)
    ends = [last[number % len(last)] for number in range(kills)]
    return [
        generator.randint(1, end) if number % 4 < 2 else -generator.randint(1, AFTER_RENAME) for number, end in enumerate(ends)
    ]


def killed(folder: Path, points: Iterable[int]) -> Counter[str]:
    """Kill a release at each of these points, check all that is left, and count what became of them."""
    for number, point in enumerate(points):
        _made(folder, f"out-{number}", number, point)
    portfolio, ledger = Portfolio(folder / "runs"), Ledger(folder / "ledger.db")
    folders = [path for path in (folder / "out").iterdir() if not path.name.startswith(".")]
    for path in folders:
        verdict = verify(path, portfolio=portfolio, ledger=ledger)
        assert verdict.code == 0, (path.name, verdict)
    ledger.recover()  # what was killed last
    entries = ledger.history()
    counted = {Path(entry.content["out"]).name for entry in standing(entries)}
    assert counted == {path.name for path in folders}, "counted and gone, or out and not counted"
    release(
        portfolio, choose(portfolio, "selection", delta=DELTA, weights=portfolio.weights({"c": 1.0})), folder / "out" / "last"
    )
    left = [path.name for path in (folder / "out").iterdir() if path.name.startswith(".") and any(path.iterdir())]
    assert left == [], f"tensors of unnamed releases were left behind: {left}"
    seen = Counter("adopted" if entry.content.get("adopted") else entry.kind for entry in entries)
    return seen + Counter(out=len(folders))


def main(kills: int, seed: int) -> None:
    """Kill so many releases."""
    with tempfile.TemporaryDirectory() as folder:
        points = seeded(prepared(Path(folder)), kills, seed)
        print(json.dumps({"kills": kills, **killed(Path(folder), points)}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]), seed=0)
